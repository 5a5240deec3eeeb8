"""What repeats a point: its launches, or the Slurm jobs that they ran in.

Launches of one job share its nodes. What a node adds to or takes from every launch there is no
noise between them, so an interval over the launches of one job says nothing about the next job's
nodes (`make statistics` prints how often such intervals hold). Where a point has
several jobs, and one of them several launches, a job gives one value: the mean of its launches.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from statistics import fmean, geometric_mean
from typing import TypeVar

from lockstep.report.load.results import Launch, Row

Value = TypeVar("Value")

# Largest lead of launches over others; beyond it a difference may be a drift. A B A B has 0.5.
MOST_APART = 0.5


def begun(launch: Launch) -> datetime | None:
    """Return when a launch began; None where it does not say so, with its time zone."""
    try:
        when = datetime.fromisoformat(str(launch.facts.get("started")))
    except ValueError:
        return None
    return when if when.tzinfo else None


def lead(pairs: Sequence[tuple[datetime, datetime]]) -> float:
    """Return the share of pairs whose first came first, less that of those whose second did.

    Of all pairs of an A and a B it is 0 for A B B A, 0.5 for A B A B, 1 for A A B B. What drifts
    steadily shifts the difference in speed in proportion to it.
    """
    return sum((a < b) - (a > b) for a, b in pairs) / len(pairs) if pairs else 0.0


def num_jobs(rows: Sequence[Row]) -> int | None:
    """Return in how many Slurm jobs the launches of a point ran; None where one names none."""
    jobs = {row.job for row in rows}
    return None if None in jobs else len(jobs)


def in_one_job(rows: Sequence[Row]) -> bool:
    """Tell whether all of a point's repeats ran in one Slurm job."""
    return len(rows) > 1 and num_jobs(rows) == 1


def independent(
    rows: Sequence[Row],
    values: Sequence[float],
    mean: Callable[[Sequence[float]], float] = geometric_mean,
) -> list[float]:
    """Return the values that an interval is over: one per job where there are several, else all.

    Of trainings, of which a launch may hold several, it is one per launch. Where some rows have no
    value no job is formed; else `mean` makes one value of a job's launches.
    """
    if len(values) != len(rows) or len(rows) == 1:
        return list(values)
    return [one[0] if len(one) == 1 else mean(one) for one in grouped(rows, values)]


def grouped(rows: Sequence[Row], values: Sequence[Value]) -> list[list[Value]]:
    """Return the values that `independent` makes one of; of a list each where nothing is shared."""
    jobs = num_jobs(rows)
    if jobs is not None and jobs not in (1, len(rows)):
        return _grouped([row.job for row in rows], values)
    # Trainings of several seeds in one launch share all that slows it.
    if all(row.training for row in rows):
        return _grouped([row.launch for row in rows], values)
    return [[value] for value in values]


def of_seeds(seeds: Sequence[object], values: Sequence[float]) -> list[float]:
    """Return one value for each seed: runs of one seed learn the same but for rounding."""
    return [fmean(one) for one in _grouped(seeds, values)]


def _grouped(keys: Sequence[object], values: Sequence[Value]) -> list[list[Value]]:
    """Return the values of each key, in the order in which the keys first come."""
    found: dict[object, list[Value]] = {}
    for key, value in zip(keys, values, strict=True):
        found.setdefault(key, []).append(value)
    return list(found.values())
