"""Result files of any number of points, for the time a report takes over them."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from lockstep.core import sizes, studies
from lockstep.core.record import KEY, SCHEMA_VERSION, CaseRecord

STUDIES = ("strong", "weak", "precision", "bucket", "sensitivity", "accumulation")
WORLD_SIZES = (1, 2)
ROUNDS = 20
STEPS_PER_ROUND = 20
SAMPLES_PER_S = 1000.0


def write_files(folder: Path, num_points: int) -> list[Path]:
    """Write one launch's file per world size, together of so many points."""
    paths = []
    for world_size in WORLD_SIZES:
        chosen = islice(cases(), num_points // len(WORLD_SIZES))
        draw = random.Random(world_size)  # noqa: S311, no secret
        document = {
            "machine_info": {"node": "generated"},
            "commit_info": {"id": "none", "dirty": False},
            "benchmarks": [entry(study, row, world_size, draw) for study, row in chosen],
            "datetime": "2026-01-01T00:00:00+00:00",
            "version": "5.3.1",
            KEY: {"schema": SCHEMA_VERSION, "launch": f"w{world_size}-r0"},
        }
        paths.append(folder / f"{num_points}-w{world_size}.json")
        paths[-1].write_text(json.dumps(document), encoding="utf-8")
    return paths


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield study and row without end: every training study, one model after another."""
    for width in count(1):
        size = replace(
            sizes.SIZES["node"],
            workload=f"mlp:width={width}",
            bucket_workload=f"mlp:width={width}",
            sensitivity_workload=f"mlp:width={width}",
        )
        for study in STUDIES:
            yield from ((study, row) for row in studies.rows(study, size))


def entry(study: str, row: dict[str, Any], world_size: int, draw: random.Random) -> dict[str, Any]:
    """Return one benchmark as pytest-benchmark writes it, its rounds drawn at random."""
    from pytest_benchmark.stats import Stats

    record = case_record(study, row, world_size, draw)
    make_stats: Any = Stats  # without annotations of its own
    stats = make_stats()
    for duration in record.round_s:
        stats.update(duration)
    name = f"test_{study}[{sizes.case_id(row)}]"
    return {
        "group": study,
        "name": name,
        "fullname": f"bench/test_{study}.py::{name}",
        "params": row,
        "param": sizes.case_id(row),
        "extra_info": {KEY: record.to_dict()},
        "options": {"disable_gc": False, "timer": "slowest_rank", "min_rounds": 5},
        "stats": stats.as_dict() | {"data": stats.data, "iterations": 1},
    }


def case_record(
    study: str, row: dict[str, Any], world_size: int, draw: random.Random
) -> CaseRecord:
    """Return a record whose ranks take about as long as their samples ask for."""
    strong = study == "strong"
    global_batch = row["global_batch"] if strong else row["local_batch"] * world_size
    local_batch = global_batch // world_size
    base_s = STEPS_PER_ROUND * local_batch / SAMPLES_PER_S
    return CaseRecord(
        study=study,
        workload=row["workload"],
        scaling="strong" if strong else "weak",
        world_size=world_size,
        num_nodes=1,
        factors=row,
        sample_unit="vectors",
        samples_per_step=global_batch,
        steps_per_round=STEPS_PER_ROUND,
        rank_round_s=[
            [base_s * draw.uniform(1.0, 1.05) for _ in range(ROUNDS)] for _ in range(world_size)
        ],
        precision=row["precision"],
        local_batch=local_batch,
        global_batch=global_batch,
        peak_memory_bytes=[2**30] * world_size,
        checks={"loss_first": 2.3, "loss_last": 2.2, "parameters_equal": True},
    )
