"""Accuracy and time of training runs, pooled over the runs of a point.

Intervals of accuracies are Student's t over seeds, since runs of one seed reach the same accuracy.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from lockstep.core.record import Epoch, time_to
from lockstep.report.compute import quantities, replicates
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval, linear_interval, log_interval
from lockstep.report.load.results import Row


@dataclass(frozen=True)
class Pooled:
    """A value over runs, and its 95 % interval; None if the spread is unknown."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Learned:
    """Results of the training runs of a point."""

    num_seeds: int
    epoch_s: Pooled  # seconds of the updates of a median epoch, without warm-up epochs
    accuracy: Pooled | None  # mean validation accuracy after the last epoch
    best: Pooled | None  # mean validation accuracy of the best epochs
    target: float | None  # accuracy to reach
    num_reached: int
    # Seconds of training, without validation, to the end of the first epoch with the target; None
    # unless all runs reach it.
    reached_s: Pooled | None


@dataclass(frozen=True)
class Curve:
    """A quantity at the end of each epoch, over the runs of a point."""

    epochs: list[int]
    elapsed_s: list[float]
    values: list[Pooled]


def select_trainings(series: Iterable[Series]) -> list[Series]:
    """Return the series of training runs."""
    return [curve for curve in series if curve.row.training is not None]


def summarise(point: Point, target: float | None) -> Learned:
    """Return the results of the training runs of a point."""
    times = [time_to(target, epochs(row)) for row in point.rows]
    known = [time for time in times if time is not None]
    reached = None
    if len(known) == len(times) and min(known) > 0:
        over = replicates.independent(point.rows, known)
        reached = Pooled(median(known), log_interval(over))
    steps, ends = point.rows[0].steps_per_round or 1, point.step_interval
    interval = (steps * ends[0], steps * ends[1]) if ends else None
    return Learned(
        num_seeds=len({seed(row) for row in point.rows}),
        epoch_s=Pooled(steps * (point.step_s or 0.0), interval),
        accuracy=_accuracy(point.rows, final_accuracy),
        best=_accuracy(point.rows, best_accuracy),
        target=target,
        num_reached=len(known),
        reached_s=reached,
    )


def learn(series: Iterable[Series]) -> dict[Point, Learned]:
    """Return the results of each point of training runs.

    Runs of one workload and data share the accuracy to reach.
    """
    trained = select_trainings(series)
    rows: dict[tuple[str, str], list[Row]] = {}
    for curve in trained:
        rows.setdefault(_task(curve), []).extend(curve.rows)
    goals = {task: target(own) for task, own in rows.items()}
    return {
        point: summarise(point, goals[_task(curve)]) for curve in trained for point in curve.points
    }


def target(rows: Sequence[Row]) -> float | None:
    """Return the requested accuracy, else the highest that all runs reach, in whole per cent."""
    if have_same_target(rows):
        return rows[0].training.target_accuracy if rows[0].training else None
    known = [best for row in rows if (best := best_accuracy(row)) is not None]
    if not known or len(known) < len(rows):
        return None
    # 0.29 * 100 is 28.999999999999996.
    return math.floor(100 * min(known) + 1e-9) / 100 or None


def have_same_target(rows: Iterable[Row]) -> bool:
    """Tell whether the same accuracy was requested of all runs."""
    goals = {row.training.target_accuracy for row in rows if row.training}
    return len(goals) == 1 and None not in goals


def _task(series: Series) -> tuple[str, str]:
    return series.row.workload, str(series.row.factors.get("data"))


def seed(row: Row) -> int | None:
    """Return the seed of a run."""
    return row.training.seed if row.training else None


def epochs(row: Row) -> list[Epoch]:
    """Return the epochs of a run."""
    return row.training.rows if row.training else []


def elapsed_s(row: Row) -> list[float]:
    """Return the seconds of training to the end of each epoch."""
    return list(accumulate(epoch.time_s for epoch in epochs(row)))


def final_accuracy(row: Row) -> float | None:
    """Return the validation accuracy after the last epoch."""
    return next(iter(quantities.values([row], "validation_accuracy")), None)


def best_accuracy(row: Row) -> float | None:
    """Return the best validation accuracy of all epochs."""
    return max(
        (epoch.accuracy for epoch in epochs(row) if epoch.accuracy is not None), default=None
    )


def epoch_s(row: Row) -> float:
    """Return the seconds of a run's median epoch, without warm-up epochs."""
    return (row.step_s or 0.0) * (row.steps_per_round or 1)


def curve(rows: Sequence[Row], value: Callable[[Epoch], float | None]) -> Curve:
    """Return the curve of a quantity over the epochs that all runs have."""
    curve = Curve([], [], [])
    for index in range(min(len(epochs(row)) for row in rows)):
        known = [x for row in rows if (x := value(epochs(row)[index])) is not None]
        if len(known) == len(rows):
            curve.epochs.append(epochs(rows[0])[index].epoch)
            curve.elapsed_s.append(fmean(elapsed_s(row)[index] for row in rows))
            over = replicates.average_seeds(list(map(seed, rows)), known)
            curve.values.append(Pooled(fmean(known), linear_interval([(1.0, over)])))
    return curve


def _accuracy(rows: Sequence[Row], value: Callable[[Row], float | None]) -> Pooled | None:
    """Return the mean over runs, its interval over seeds; None unless every run has a value."""
    known = [accuracy for row in rows if (accuracy := value(row)) is not None]
    if not known or len(known) < len(rows):
        return None
    over = replicates.average_seeds(list(map(seed, rows)), known)
    return Pooled(fmean(known), quantities.share_interval(over))
