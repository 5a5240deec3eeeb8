"""A ladder of eleven sizes to 1,024 ranks, as no test measures it, for tests of the page's size."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from data.report_samples import document, provenance, record, write

from lockstep.core.record import SCHEMA_VERSION, CaseRecord

SIZES = tuple(2**power for power in range(11))
RANKS_PER_NODE = 4
WORKLOADS = {"resnet18": 0.9, "resnet50": 0.95, "gpt_small": 0.85, "vit_base": 0.97}
COLLECTIVES = ("all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter")
MESSAGES = tuple(4**power for power in range(5, 15))
LATENCY_S, RATE_BYTES_PER_S = 20e-6, 20e9
BASIS = {"data": "synthetic", "input": "not timed", "optimizer": "SGD"}
# Of a step that communicates: what is hidden behind nothing grows with the ranks.
GLOBAL_BATCH, LOCAL_BATCH = 2048, 64
FIXED_S, SAMPLE_S = 0.004, 0.0004


def wide_tree(root: Path) -> Path:
    """Write a campaign of four workloads, settings and collectives, with causes that are known."""
    noise = np.random.default_rng(1)
    for size in SIZES:
        nodes = max(1, size // RANKS_PER_NODE)
        facts = {"provenance": _provenance(size), "num_nodes": nodes}
        write(root, document(f"w{size}-r0", size, _cases(size, nodes, noise), **facts))
    planned = [{"name": f"w{size}-r0", "world_size": size, "repeat": 0} for size in SIZES]
    campaign = {"schema": SCHEMA_VERSION, "name": "wide", "launches": planned}
    (root / "campaign.json").write_text(json.dumps(campaign))
    return root


def _provenance(size: int) -> dict[str, Any]:
    ranks = [
        {
            "rank": rank, "local_rank": rank % RANKS_PER_NODE, "host": _host(rank),
            "device": f"cuda:{rank % RANKS_PER_NODE}", "device_name": "H100",
        }
        for rank in range(size)
    ]  # fmt: skip
    return provenance(size, ranks=ranks)


def _host(rank: int) -> str:
    return f"node{rank // RANKS_PER_NODE:03d}"


def _cases(size: int, nodes: int, noise: np.random.Generator) -> dict[str, CaseRecord]:
    cases = {}
    for workload, scale in WORKLOADS.items():
        for study in ("strong", "weak"):
            batch = max(1, GLOBAL_BATCH // size) if study == "strong" else LOCAL_BATCH
            cases[f"{study}[{workload}]"] = _step(study, workload, batch, size, nodes, scale, noise)
        for factor, value, speed in (
            ("precision", "fp32", 1.0), ("precision", "tf32", 0.7), ("precision", "bf16", 0.5),
            ("bucket_cap_mb", 1, 1.2), ("bucket_cap_mb", 25, 1.0), ("bucket_cap_mb", 100, 1.05),
        ):  # fmt: skip
            study = "precision" if factor == "precision" else "bucket"
            factors = {"workload": workload, factor: value, "local_batch": LOCAL_BATCH}
            cases[f"{study}[{workload}-{value}]"] = _step(
                study, workload, LOCAL_BATCH, size, nodes, scale * speed, noise, factors
            )
    return cases | _collectives(size, nodes, noise)


def _step(
    study: str, workload: str, batch: int, size: int, nodes: int, scale: float,
    noise: np.random.Generator, factors: dict[str, Any] | None = None,
) -> CaseRecord:  # fmt: skip
    own_s = scale * (FIXED_S + SAMPLE_S * batch)
    exposed_s = 0.0006 * np.log2(size) if size > 1 else 0.0
    step_s = (own_s + exposed_s) * noise.normal(1, 0.004)
    half_s = scale * (FIXED_S + SAMPLE_S * batch / 2)
    turns = {
        name: (seconds * noise.normal(1, 0.003, (size, 4))).tolist()
        for name, seconds in (("full", step_s), ("own", own_s), ("half", half_s))
    }
    strong = study == "strong"
    named = {"workload": workload, "global_batch" if strong else "local_batch":
             GLOBAL_BATCH if strong else LOCAL_BATCH}  # fmt: skip
    return record(
        study, size, workload=workload, factors=factors or named, num_nodes=nodes,
        sample_unit="sequences" if workload == "gpt_small" else "images",
        samples_per_step=batch * size, local_batch=batch, global_batch=batch * size,
        precision=(factors or {}).get("precision", "fp32"),
        rank_round_s=[(4 * step_s * noise.normal(1, 0.003, 3)).tolist()] * size,
        rank_hosts=[_host(rank) for rank in range(size)],
        details={"basis": BASIS} | ({} if factors else {"rank_variant_s": turns}),
    )  # fmt: skip


def _collectives(size: int, nodes: int, noise: np.random.Generator) -> dict[str, CaseRecord]:
    cases = {}
    for name in COLLECTIVES if size > 1 else ():
        for message in MESSAGES:
            step_s = (LATENCY_S + message / RATE_BYTES_PER_S) * noise.normal(1, 0.05)
            cases[f"collective[{name}-{message}]"] = record(
                "collective", size, step_s, workload=name, scaling=None, num_nodes=nodes,
                factors={"collective": name, "message_bytes": message}, sample_unit="bytes",
                samples_per_step=message,
                details={"message_bytes": message, "algbw_gb_per_s": message / step_s / 1e9,
                         "busbw_gb_per_s": 2 * (size - 1) / size * message / step_s / 1e9},
            )  # fmt: skip
    return cases
