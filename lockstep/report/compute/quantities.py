"""What a point has beside its speed: shares and fractions, and where in a result each is found.

A quantity is a fraction from 0 to 1, one value per launch. Where a case's details, or a column of
an imported table, bear its name, that value counts; else it is worked out where it can be:

    mfu                   model FLOP per second over the datasheet's peak
    communication_share   exposed communication over the step of the launch's turns, whose mean it
                          is a part of (`attribution`); noise may take a launch below 0
    overlap               1 - exposed communication / the all-reduce of the gradients alone: what of
                          it the backward hides; noise may take a launch beyond 0 or 1
    gpu_utilisation       share of NVML's sample periods in which a kernel ran, the mean over ranks
    loader_idle           of a step on batches of a loader, what the same step on a batch that lies
                          there does not have (`lockstep.measure.loading.loader_cases`)

Energy is no fraction: the joules of a sample are the mean power of all ranks' boards, while their
rounds were timed, over the throughput.

A point's value is the report's: the median over launches of the MFU, the mean of the others. Its
interval is Student's t of the mean over launches, or over jobs where there are several, and over
seeds of what was learned (`lockstep.report.compute.replicates`), its ends kept within 0 to 1.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from lockstep.report.compute import attribution, replicates
from lockstep.report.compute.statistics import Interval, linear_interval
from lockstep.report.load.results import Row

# name -> what it is, for texts
NAMES = {
    "mfu": "fraction of the datasheet's peak FLOP/s",
    "communication_share": "exposed communication as a share of the step",
    "validation_accuracy": "share of the validation set that is predicted right",
    "gpu_utilisation": "share of the time in which a kernel ran on the GPU",
    "loader_idle": "share of a step that waits for the data loader",
}


def values(rows: Sequence[Row], name: str) -> list[float]:
    """Return a quantity of each launch of a point; empty where not every launch holds it."""
    found = [_value(row, name) for row in rows]
    return [one for one in found if one is not None] if None not in found else []


def centre(found: Sequence[float], name: str) -> float:
    """Return a point's value of a quantity, as the report has it."""
    return median(found) if name == "mfu" else _kept(fmean(found))


def interval(rows: Sequence[Row], name: str) -> Interval | None:
    """Return the Student t interval of a quantity's mean, within 0 to 1.

    None for fewer than two launches, and for launches equal to the last digit.
    """
    return share_interval(units(rows, name))


def units(rows: Sequence[Row], name: str) -> list[float]:
    """Return what an interval is over: launches or jobs, and of what was learned, seeds."""
    found = values(rows, name)
    if found and name == "validation_accuracy" and all(row.training for row in rows):
        return replicates.of_seeds([row.training and row.training.seed for row in rows], found)
    return replicates.independent(rows, found, fmean)


def share_interval(found: Sequence[float]) -> Interval | None:
    """Return the Student t interval of the mean of fractions, within 0 to 1."""
    ends = linear_interval([(1.0, found)])
    return (_kept(ends[0]), _kept(ends[1])) if ends else None


def joules_per_sample(row: Row) -> float | None:
    """Return the energy of a sample; None unless every rank's board told its energy."""
    energy_j, elapsed_s = (of_ranks(row, name) for name in ("energy_j", "elapsed_s"))
    if not energy_j or not all(elapsed_s or [0.0]) or not row.throughput_samples_per_s:
        return None
    powers = [energy / seconds for energy, seconds in zip(energy_j, elapsed_s, strict=True)]
    return sum(powers) / row.throughput_samples_per_s


def _gpu_utilisation(row: Row) -> float | None:
    shares = of_ranks(row, "gpu_utilisation", "mean")
    return fmean(shares) if shares else None


def of_ranks(row: Row, *path: str) -> list[float]:
    """Return what telemetry has of every rank; empty where a rank's is unknown."""
    known = [one for one in _telemetry(row, *path) if one is not None]
    return known if len(known) == row.world_size else []


def rank_mean(rows: Sequence[Row], name: str, rank: int) -> float | None:
    """Return the mean of a rank's gauge, such as power_w, over the cases of its launch.

    A case counts by the time for which it was watched. None where no case has it.
    """
    found = [(_telemetry(row, name, "mean"), _telemetry(row, "elapsed_s")) for row in rows]
    known = [
        (means[rank], times_s[rank])
        for means, times_s in found
        if rank < min(len(means), len(times_s))
    ]
    pairs = [(mean, time_s) for mean, time_s in known if mean is not None and time_s]
    total_s = sum(time_s for _, time_s in pairs)
    return sum(mean * time_s for mean, time_s in pairs) / total_s if pairs else None


def _telemetry(row: Row, *path: str) -> list[float | None]:
    """Return what telemetry has of each rank by such a path, None where that is no amount."""
    found: Any = row.details.get("telemetry")
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    values = found if isinstance(found, list) else []
    return [one if isinstance(one, int | float) and one >= 0 else None for one in values]


def _kept(end: float) -> float:
    """Return an end of an interval, within what a fraction can be."""
    return min(max(end, 0.0), 1.0)


def _value(row: Row, name: str) -> float | None:
    recorded = _fraction(row.details.get(name))
    derived = _DERIVED.get(name)
    return recorded if recorded is not None or derived is None else derived(row)


def _fraction(given: object) -> float | None:
    """Return a number from 0 to 1, as a record or a cell of a table gives it; else None."""
    try:
        value = float(given) if isinstance(given, int | float | str) else math.nan
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def _communication_share(row: Row) -> float | None:
    found = attribution.split(row) if row.world_size > 1 else None
    return found["exposed"] / found["step"] if found and "exposed" in found else None


def _overlap(row: Row) -> float | None:
    found = attribution.split(row)
    if not found or "exposed" not in found or not found.get("reduce"):
        return None
    return 1 - found["exposed"] / found["reduce"]


def _validation_accuracy(row: Row) -> float | None:
    """Return the accuracy of a training run after its last epoch."""
    return row.training.rows[-1].accuracy if row.training and row.training.rows else None


_DERIVED: dict[str, Callable[[Row], float | None]] = {
    "mfu": lambda row: row.mfu,
    "communication_share": _communication_share,
    "overlap": _overlap,
    "validation_accuracy": _validation_accuracy,
    "gpu_utilisation": _gpu_utilisation,
}
