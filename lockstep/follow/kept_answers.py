"""What Slurm last said, kept in the campaign's folder: shown with its age where it is silent."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lockstep.core import files
from lockstep.slurm import cluster
from lockstep.slurm.cluster import MIB_PER_GIB, Partition
from lockstep.slurm.status.sent import Results

ANSWER = "last-answer.json"
INVENTORY = "inventory.json"
# What a cluster has changes seldom, and asking for all its nodes is not cheap.
INVENTORY_S = 3600.0


def stamp(at: float) -> str:
    """Return a time, in seconds of the epoch, as ISO 8601 with this machine's zone."""
    return datetime.fromtimestamp(at, UTC).astimezone().isoformat(timespec="seconds")


def at(facts: dict[str, Any], results: Results, now: float) -> float | None:
    """Keep what Slurm has just said of a campaign, or add what it said last where it is silent.

    Returns:
        When Slurm's answer was given; None where none is kept.
    """
    if facts["errors"]:
        return add(results, facts["jobs"])
    keep(results, facts["jobs"], now)
    return now


def keep(results: Results, jobs: list[dict[str, Any]], now: float) -> None:
    """Keep the states that Slurm has just said, where the folder may be written."""
    known = {row["id"]: row["state"] for row in jobs if row["id"] and row["state"] != "unknown"}
    _write(results.jobs_folder / ANSWER, {"time": now, "states": known})


def add(results: Results, jobs: list[dict[str, Any]]) -> float | None:
    """Add to each job of unknown state what Slurm last said of it.

    Returns:
        When that was, in seconds of the epoch; None where nothing is kept.
    """
    kept = _read(results.jobs_folder / ANSWER)
    states = kept.get("states", {})
    if not isinstance(states, dict) or not isinstance(kept.get("time"), int | float):
        return None
    for row in jobs:
        if row["state"] == "unknown" and row["id"] in states:
            row["last_known"] = {"state": states[row["id"]], "time": stamp(kept["time"])}
    return float(kept["time"])


def inventory(results: Results, now: float, *, ask: bool) -> dict[str, Any] | None:
    """Return what the cluster has by partition, as kept, or asked anew where that is old."""
    kept = _read(results.jobs_folder / INVENTORY)
    is_whole = isinstance(kept.get("time"), int | float) and isinstance(kept.get("rows"), list)
    if ask and not (is_whole and now - kept["time"] < INVENTORY_S):
        with suppress(RuntimeError):
            found = cluster.read()
            rows = [row for partition in found.partitions for row in _rows(partition)]
            kept = {"time": now, "cluster": found.name, "slurm": found.version, "rows": rows}
            is_whole = True
            _write(results.jobs_folder / INVENTORY, kept)
    return kept if is_whole else None


def _rows(partition: Partition) -> list[dict[str, Any]]:
    features = {word for node in partition.nodes for word in node.features}
    here = {kind.shape: 0 for kind, _ in partition.kinds}
    for node in partition.nodes:
        here[node.kind.shape] += node.is_here
    return [
        {"partition": partition.name, "num_nodes": count, "num_here": here[kind.shape],
         "gpu_type": kind.gpu_type, "gpus_per_node": kind.num_gpus, "cpus": kind.num_cpus,
         "memory_gib": kind.memory_mib / MIB_PER_GIB, "max_time": partition.max_time,
         "features": sorted(features)}
        for kind, count in partition.kinds
    ]  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = files.parse(files.content(path))
    except ValueError:
        return {}  # none yet
    return kept if isinstance(kept, dict) else {}


def _write(path: Path, document: dict[str, Any]) -> None:
    if not path.parent.is_dir():
        return
    with suppress(OSError):  # who only looks may not write
        files.write_atomically(path, json.dumps(document))
