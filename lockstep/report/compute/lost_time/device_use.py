"""What the devices of a launch did while its rounds were timed: telemetry, rank by rank."""

from collections.abc import Sequence
from typing import Any

from lockstep.report.load.results import Row


def rank_mean(rows: Sequence[Row], name: str, rank: int) -> float | None:
    """Return the mean of what a rank's telemetry has by a name, over the cases of its launch.

    A case counts by the time for which it was watched. None where no case has it.

    Args:
        rows: The cases.
        name: A gauge of `lockstep.machine.telemetry`, such as power_w.
        rank: Whose.
    """
    pairs = [
        (value, elapsed_s)
        for row in rows
        if (value := _of_rank(row, rank, name, "mean")) is not None
        if (elapsed_s := _of_rank(row, rank, "elapsed_s"))
    ]
    total_s = sum(elapsed_s for _, elapsed_s in pairs)
    return sum(value * elapsed_s for value, elapsed_s in pairs) / total_s if pairs else None


def _of_rank(row: Row, rank: int, *path: str) -> float | None:
    found: Any = row.details.get("telemetry")
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    value = found[rank] if isinstance(found, list) and rank < len(found) else None
    return float(value) if isinstance(value, int | float) and value >= 0 else None
