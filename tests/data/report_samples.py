"""Small result trees with times chosen by hand, for the tests of the reports room."""

import copy
import functools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lockstep.core.record import KEY, SCHEMA_VERSION, CaseRecord
from lockstep.report.load.results import Results

CASE = "strong[64]"
# What is put in the place of every value: none, and of every type and range.
WRONG = (None, "x", 0, {}, 1e308)


def record(study: str = "strong", world_size: int = 1, step_s: float = 0.1, **changes: Any):
    """Return a case whose every step takes `step_s`, in rounds of 4 steps."""
    strong = study == "strong"
    values: dict[str, Any] = {
        "study": study,
        "workload": "mlp",
        "scaling": "strong" if strong else "weak",
        "world_size": world_size,
        "num_nodes": 1,
        "factors": {"workload": "mlp", "global_batch" if strong else "local_batch": 64},
        "sample_unit": "images",
        "samples_per_step": 64 if strong else 64 * world_size,
        "steps_per_round": 4,
        "rank_round_s": [[4 * step_s] * 5 for _ in range(world_size)],
        "precision": "fp32",
        "local_batch": 64 // world_size if strong else 64,
        "global_batch": 64 if strong else 64 * world_size,
        "peak_memory_bytes": [1_000_000_000] * world_size,
    }
    return CaseRecord(**(values | changes))


def entry(name: str, case: CaseRecord) -> dict[str, Any]:
    rounds = case.round_s
    return {
        "name": name,
        "fullname": f"bench/test_x.py::{name}",
        "group": case.study,
        "params": dict(case.factors),
        "extra_info": {KEY: case.to_dict()},
        "stats": {
            "min": min(rounds),
            "max": max(rounds),
            "mean": statistics.fmean(rounds),
            "stddev": statistics.pstdev(rounds),
            "median": statistics.median(rounds),
            "rounds": len(rounds),
            "data": rounds,
        },
    }


def provenance(world_size: int = 1, device: str = "cuda:0", **changes: Any) -> dict[str, Any]:
    ranks = [
        {"rank": r, "local_rank": r, "host": "node1", "device": device, "device_name": "H100"}
        for r in range(world_size)
    ]
    known = {
        "hostname": "node1", "torch": "2.7.0", "cuda": "12.8", "nccl": "2.26", "driver": "570.1",
        "image_sha256": "ab12", "device_names": ["H100"], "environment": {"OMP_NUM_THREADS": "1"},
        "ranks": ranks,
    }  # fmt: skip
    return known | changes


def document(
    launch: str, world_size: int, cases: dict[str, CaseRecord], **facts: Any
) -> dict[str, Any]:
    own = {
        "schema": SCHEMA_VERSION, "complete": True, "launch": launch, "campaign": "demo",
        "repeat": 0, "world_size": world_size, "num_nodes": 1,
        "started": "2026-11-20T12:00:00+00:00", "provenance": provenance(world_size),
        "expected": list(cases), "skipped": [], "failed": [],
    }  # fmt: skip
    entries = [entry(name, case) for name, case in cases.items()]
    return {"benchmarks": entries, "version": "5.3.1", KEY: own | facts}


def one_launch(**changes: Any) -> dict[str, Any]:
    return document("w1-r0", 1, {CASE: record(**changes)})


def write(root: Path, content: dict[str, Any]) -> Path:
    folder = root / "launches" / content[KEY]["launch"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result.json"
    path.write_text(json.dumps(content))
    return path


# Two launches per size: throughput 64/0.1 = 640 and 64/0.0625 = 1024 images/s, so the speed-up at
# two ranks is 1.6 and the efficiency 0.8. A hair apart: equal launches have no interval.
HAIR = 1e-7
STRONG_STEP_S = {
    size: (step_s * (1 - HAIR), step_s * (1 + HAIR)) for size, step_s in ((1, 0.1), (2, 0.0625))
}


def strong_tree(
    root: Path, steps: dict[int, tuple[float, ...]] | None = None, **facts: Any
) -> Path:
    """Write a campaign of one strong case, one launch per time given for each world size."""
    for world_size, times in (steps or STRONG_STEP_S).items():
        for repeat, step_s in enumerate(times):
            case = record("strong", world_size, step_s)
            name = "test_strong_scaling[workload=mlp-global_batch=64]"
            launch = f"w{world_size}-r{repeat}"
            write(root, document(launch, world_size, {name: case}, repeat=repeat, **facts))
    return root


def sweep(
    root: Path, study: str, factor: str, steps: dict[Any, float], size: int = 2, launches: int = 3,
    drift: float = 0.001, **changes: Any,
) -> Path:  # fmt: skip
    """Write launches of a study of one factor, value -> step time, each a share slower."""
    for repeat in range(launches):
        cases = {
            f"{study}[{factor}={value}]": record(
                study, size, step_s * (1 + drift * repeat),
                factors={"workload": "mlp", factor: value}, **changes,
            )
            for value, step_s in steps.items()
        }  # fmt: skip
        write(root, document(f"w{size}-r{repeat}", size, cases, repeat=repeat))
    return root


def unequal_tree(root: Path, threads: dict[int, int], device: str = "cpu") -> Path:
    for world_size, count in threads.items():
        facts = provenance(world_size, device, threads_per_rank=count)
        case = record("strong", world_size)
        launch = f"w{world_size}-r0"
        write(root, document(launch, world_size, {CASE: case}, provenance=facts))
    return root


def full_tree(root: Path, device: str = "cuda:0") -> Path:
    """Write a campaign with every study, three sizes and two repeats."""
    for world_size in (1, 2, 4):
        for repeat in (0, 1):
            drift = 1 + 0.01 * repeat
            facts = {"provenance": provenance(world_size, device), "repeat": repeat}
            facts |= {"skipped": [{"case": "test_x[fp16]", "reason": "fp16 needs a GPU"}]}
            launch = f"w{world_size}-r{repeat}"
            write(root, document(launch, world_size, _cases(world_size, drift), **facts))
    planned = [
        {"name": f"w{size}-r{repeat}", "world_size": size, "repeat": repeat}
        for size in (1, 2, 4, 8)
        for repeat in (0, 1)
    ]
    campaign = {"schema": SCHEMA_VERSION, "name": "demo", "launches": planned}
    (root / "campaign.json").write_text(json.dumps(campaign))
    return root


def _cases(world_size: int, drift: float) -> dict[str, CaseRecord]:
    cases = {
        CASE: record("strong", world_size, drift * 0.1 / world_size**0.9),
        "weak[64]": record("weak", world_size, drift * 0.1 * world_size**0.1),
    }
    for precision, factor in (("fp32", 1.0), ("bf16", 0.6)):
        cases[f"precision[{precision}]"] = record(
            "precision", world_size, drift * factor * 0.1, precision=precision,
            factors={"workload": "mlp", "precision": precision, "local_batch": 64},
            flags=[{"kind": "bf16-emulated"}] if precision == "bf16" else [],
        )  # fmt: skip
    for cap, real in ((1, [1_000_000] * 3), (25, [3_000_000]), (50, [3_000_000])):
        cases[f"bucket[{cap}]"] = record(
            "bucket", world_size, drift * 0.1, details={"bucket_bytes": real},
            factors={"workload": "mlp", "bucket_cap_mb": cap},
        )  # fmt: skip
    for workers in (0, 2):
        cases[f"loader[{workers}]"] = record(
            "loader", world_size, drift * 0.02 / (1 + workers), scaling=None, precision=None,
            factors={"dataset": "memory", "num_workers": workers},
        )  # fmt: skip
    for rate, momentum in ((0.1, 0.0), (0.1, 0.9), (0.2, 0.0), (0.2, 0.9)):
        cases[f"sensitivity[{rate}-{momentum}]"] = record(
            "sensitivity", world_size, drift * 0.1 * (1 + rate) * (1 + momentum),
            factors={"workload": "mlp", "learning_rate": rate, "momentum": momentum},
        )  # fmt: skip
    for size in (1024, 1_048_576) if world_size > 1 else ():
        cases[f"collective[{size}]"] = record(
            "collective", world_size, drift * size / 1e9, workload="all_reduce", scaling=None,
            factors={"collective": "all_reduce", "message_bytes": size}, sample_unit="bytes",
            samples_per_step=size, details={
                "message_bytes": size, "algbw_gb_per_s": 1.0,
                "busbw_gb_per_s": 2 * (world_size - 1) / world_size,
            },
        )  # fmt: skip
    return cases


def read_or_refused(
    path: Path, content: dict[str, Any], read: Callable[[Iterable[Path]], Results]
) -> Iterator[Results]:
    """Yield what is read of a document with one wrong value, for each place and value.

    It may be refused instead, by the name of its file.
    """
    for place in _positions(content):
        for value in WRONG:
            changed = copy.deepcopy(content)
            holder: Any = functools.reduce(lambda inner, key: inner[key], place[:-1], changed)
            holder[place[-1]] = value
            path.write_text(json.dumps(changed))
            try:
                results = read([path])
            except ValueError as error:
                assert path.name in str(error), (place, value)
            else:
                yield results


def _positions(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from _positions(value[key], (*path, key))
