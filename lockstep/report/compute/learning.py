"""What training runs learn, and in what time: pooled over the runs of a point.

A point's runs agree in all that changes what is learned or how fast, but for their seed and repeat:
`lockstep.report.load.training_runs` names what must agree.

    epoch_s     seconds of a median epoch of updates, those that warmed up left aside
    accuracy    mean over runs of the validation accuracy, after the last epoch and at best, with
                Student's t interval over seeds, since runs of one seed repeat one learning
    reached_s   seconds of training, validation left aside, to the end of the first epoch that has
                the accuracy to reach
    curve       mean over runs at the end of each epoch, and its t interval over seeds

The accuracy to reach is the one that the runs were given. Where they were given none, or several,
it is the highest that every run of a workload on its data comes to, in whole per cent.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from lockstep.core.record import Epoch
from lockstep.report.compute import quantities, replicates
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval, linear_interval, log_interval
from lockstep.report.load.results import Row

Targets = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Pooled:
    """A value over runs, and its 95 % interval; None where no spread is known."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Learned:
    """What the runs of a point came to.

    Attributes:
        accuracy: After the last epoch; None where no accuracy is measured.
        target: Accuracy to reach; None where none is known.
        reached_s: Seconds until they do; None unless all runs do.
    """

    num_seeds: int
    epoch_s: Pooled
    accuracy: Pooled | None
    best: Pooled | None
    target: float | None
    num_reached: int
    reached_s: Pooled | None


@dataclass(frozen=True)
class Curve:
    """A quantity at the end of each epoch, over the runs of a point."""

    epochs: list[int]
    elapsed_s: list[float]
    values: list[Pooled]


def trained(series: Iterable[Series]) -> list[Series]:
    """Return the series of training runs."""
    return [one for one in series if one.row.training is not None]


def learned(point: Point, target: float | None) -> Learned:
    """Return what the runs of a point came to."""
    times = [reached_s(row, target) for row in point.rows]
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


def targets(series: Iterable[Series]) -> Targets:
    """Return the accuracy to reach, by workload and data."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for one in trained(series):
        for point in one.points:
            rows.setdefault(learns(one), []).extend(point.rows)
    found = {key: target(own) for key, own in rows.items()}
    return {key: one for key, one in found.items() if one is not None}


def target(rows: Sequence[Row]) -> float | None:
    """Return the accuracy that runs are to reach: as they were given it, or as all reach it."""
    if are_given(rows):
        return rows[0].training.target_accuracy if rows[0].training else None
    known = [one for row in rows if (one := best_accuracy(row)) is not None]
    if not known or len(known) < len(rows):
        return None
    # 0.29 * 100 is 28.999999999999996.
    return math.floor(100 * min(known) + 1e-9) / 100 or None


def are_given(rows: Iterable[Row]) -> bool:
    """Tell whether runs were all given one accuracy to reach."""
    given = {row.training.target_accuracy for row in rows if row.training}
    return len(given) == 1 and None not in given


def learns(series: Series) -> tuple[str, str]:
    """Return what runs learn: the workload, and from which data."""
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
    """Return the seconds of a run's median epoch, those that warmed up left aside."""
    return (row.step_s or 0.0) * (row.steps_per_round or 1)


def reached_s(row: Row, target: float | None) -> float | None:
    """Return the seconds of training until an epoch had an accuracy; None where none had."""
    if target is None:
        return None
    ends = zip(epochs(row), elapsed_s(row), strict=True)
    return next((end for epoch, end in ends if (epoch.accuracy or 0.0) >= target), None)


def curve(rows: Sequence[Row], value: Callable[[Epoch], float | None]) -> Curve:
    """Return a quantity of the epochs that all runs have, where every run knows it."""
    found = Curve([], [], [])
    for place in range(min(len(epochs(row)) for row in rows)):
        known = [one for row in rows if (one := value(epochs(row)[place])) is not None]
        if len(known) == len(rows):
            found.epochs.append(epochs(rows[0])[place].epoch)
            found.elapsed_s.append(fmean(elapsed_s(row)[place] for row in rows))
            over = replicates.of_seeds(list(map(seed, rows)), known)
            found.values.append(Pooled(fmean(known), linear_interval([(1.0, over)])))
    return found


def _accuracy(rows: Sequence[Row], value: Callable[[Row], float | None]) -> Pooled | None:
    """Return the mean over runs, with its interval over seeds; None unless every run has one."""
    known = [one for row in rows if (one := value(row)) is not None]
    if not known or len(known) < len(rows):
        return None
    over = replicates.of_seeds(list(map(seed, rows)), known)
    return Pooled(fmean(known), quantities.share_interval(over))


def mean_accuracy(rows: Sequence[Row]) -> float:
    """Return the mean accuracy after the last epoch; 0 where none is measured."""
    pooled = _accuracy(rows, final_accuracy)
    return pooled.value if pooled else 0.0
