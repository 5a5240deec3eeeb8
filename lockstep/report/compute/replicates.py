"""The repeats of a point: its launches, or the Slurm jobs that they ran in.

Launches of one job share its nodes, so their interval does not cover other nodes (`make statistics`
prints how often it holds). If several jobs have several launches, each job counts as their mean.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from statistics import fmean, geometric_mean
from typing import TypeVar

from lockstep.report.load.results import Launch, Row

Value = TypeVar("Value")

# Largest `lead`; above it a drift may explain a difference. A B A B has 0.5.
MOST_APART = 0.5


def begun(launch: Launch) -> datetime | None:
    """Return the start of a launch; None if it is not recorded with a time zone."""
    try:
        when = datetime.fromisoformat(str(launch.facts.get("started")))
    except ValueError:
        return None
    return when if when.tzinfo else None


def lead(pairs: Sequence[tuple[datetime, datetime]]) -> float:
    """Return the share of pairs whose first is earlier, minus the share whose second is earlier.

    Over all pairs of an A and a B it is 0 for A B B A, 0.5 for A B A B, and 1 for A A B B. The bias
    that a steady drift causes in the difference in speed is proportional to the share.
    """
    return sum((a < b) - (a > b) for a, b in pairs) / len(pairs) if pairs else 0.0


def num_jobs(rows: Sequence[Row]) -> int | None:
    """Return the number of Slurm jobs of the rows; None if one has no job."""
    jobs = {row.job for row in rows}
    return None if None in jobs else len(jobs)


def in_one_job(rows: Sequence[Row]) -> bool:
    """Tell whether there are repeats, and all of them ran in one Slurm job."""
    return len(rows) > 1 and num_jobs(rows) == 1


def independent(
    rows: Sequence[Row],
    values: Sequence[float],
    mean: Callable[[Sequence[float]], float] = geometric_mean,
) -> list[float]:
    """Return the values for an interval: the mean of each group of `group_values`.

    If some rows have no value, the values are returned as they are.
    """
    if len(values) != len(rows) or len(rows) == 1:
        return list(values)
    return [unit[0] if len(unit) == 1 else mean(unit) for unit in group_values(rows, values)]


def group_values(rows: Sequence[Row], values: Sequence[Value]) -> list[list[Value]]:
    """Return the values by job if there are several jobs, by launch of trainings, else singly.

    Trainings of several seeds in one launch share whatever slows the launch.
    """
    jobs = num_jobs(rows)
    if jobs is not None and jobs not in (1, len(rows)):
        return _grouped([row.job for row in rows], values)
    if all(row.training for row in rows):
        return _grouped([row.launch for row in rows], values)
    return [[value] for value in values]


def average_seeds(seeds: Sequence[object], values: Sequence[float]) -> list[float]:
    """Return the mean of each seed, since runs of one seed differ by rounding only."""
    return [fmean(runs) for runs in _grouped(seeds, values)]


def _grouped(keys: Sequence[object], values: Sequence[Value]) -> list[list[Value]]:
    groups: dict[object, list[Value]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(key, []).append(value)
    return list(groups.values())
