"""Where the time of a step goes, and what of it a ladder loses to its baseline.

After the timed rounds every rank runs the same step without gradient synchronisation, waiting for
nobody, and each of those steps is timed. With x_r the seconds of rank r in such a step, and s the
mean step of the timed rounds:

    own work                E[min over ranks of x_r]
    imbalance               E[max] - E[min]
    exposed communication   s - E[max]

which add up to s. Which steps of two ranks meet is not known, and ranks that are slow in turn look
the same alone as ranks that are slow together. So E[max] is known within bounds only:

    max over ranks of E[x_r]  <=  E[max]  <=  min over t of t + sum over ranks of E[max(x_r - t, 0)]

(below by Jensen; above by Lai and Robbins, "Maximally dependent random variables", PNAS 73, 1976,
which ranks in turn reach), and E[min] likewise. Of each launch's steps one half chooses the rank or
the t and the other half is judged by it, so that noise moves no bound inwards in the mean.

With f the time an ideal step has over the baseline's (p0/p for strong scaling, 1 where the local
batch is fixed), a cause's loss is its time less f times its time at the baseline; the losses add
up to s - f s0. At one rank the step without synchronisation lacks only DDP's own copies of the
gradients, which are as large at every size: of a ladder from one rank they are a cause apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np

from lockstep.report.compute.diagnosis import NOTABLE
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval, linear_interval
from lockstep.report.load.results import Row

Array = np.ndarray[Any, np.dtype[np.float64]]
Cause = Literal["own work", "imbalance", "exposed communication", "DDP's own copies"]

Kind = Literal["little", "named", "open"]

OWN: Cause = "own work"
IMBALANCE: Cause = "imbalance"
EXPOSED: Cause = "exposed communication"
COPIES: Cause = "DDP's own copies"
CAUSES = (EXPOSED, IMBALANCE, OWN, COPIES)
# Steps of a rank alone without which there are no two halves.
LEAST_STEPS = 2

# What one launch says of a cause, in seconds: no less than, no more than.
Bounds = tuple[float, float]
Split = Mapping[Cause, Bounds]
# A weight, and what each launch says of a cause.
Term = tuple[float, Sequence[Bounds]]


@dataclass(frozen=True)
class Part:
    """Seconds of a step that go to one cause, or are lost to it.

    Attributes:
        cause: One of `CAUSES`.
        seconds: The middle of what the launches allow, their mean; negative where it took less.
        interval: 95 % over launches, from the lower bounds to the upper; None without repeats.
    """

    cause: Cause
    seconds: float
    interval: Interval | None


@dataclass(frozen=True)
class Loss:
    """What a point's mean step takes longer than an ideal one, and to what it is lost.

    Attributes:
        kind: `named`: the causes named are shown by their intervals to take most of it. `little`:
            it is shown to be less than `NOTABLE` of the step. `open`: not enough evidence for
            either.
        step_s: The point's mean step.
        seconds: The loss, `step_s` less the ideal step.
        interval: Of the loss, 95 % over launches.
        parts: The loss of each cause; they add up to `seconds`.
        named: The parts that are shown, the largest first.
        uneven_s: How far the bounds lie apart: what ranks that are slow in turn may take.
    """

    kind: Kind
    step_s: float
    seconds: float
    interval: Interval | None
    parts: tuple[Part, ...]
    named: tuple[Part, ...]
    uneven_s: float


def split(row: Row) -> Split | None:
    """Return within which bounds a launch's mean step divides; None where no step was timed alone.

    Results of a release that kept only each rank's median have bounds of no width.
    """
    if row.mean_step_s is None or not row.rank_alone_s:
        return None
    (least, most), (low, high) = extremes(np.array(row.rank_alone_s))
    step_s = row.mean_step_s
    rest = (step_s - high, step_s - low)
    alone = row.world_size == 1
    return {
        OWN: (least, most),
        IMBALANCE: (low - most, high - least),
        EXPOSED: (0.0, 0.0) if alone else rest,
        COPIES: rest if alone else (0.0, 0.0),
    }


def extremes(alone_s: Array) -> tuple[Bounds, Bounds]:
    """Return the bounds of the mean over steps of the fastest, and of the slowest rank's time.

    Args:
        alone_s: Seconds of each rank's steps alone, shape (num_ranks, num_steps).
    """
    half = alone_s.shape[1] // 2
    if len(alone_s) == 1 or half == 0:
        mean = alone_s.mean(axis=1)
        return (mean.min(), mean.min()), (mean.max(), mean.max())
    first, second = alone_s[:, :half], alone_s[:, half : 2 * half]
    both = [_judged(first, second), _judged(second, first)]
    least, most, low, high = np.mean(both, axis=0).tolist()
    return (least, most), (low, high)


def _judged(chosen: Array, judged: Array) -> tuple[float, float, float, float]:
    """Return bounds of the fastest and slowest time by what one half chose, of the other half."""
    own, means = chosen.mean(axis=1), judged.mean(axis=1)
    ordered, half = np.sort(chosen, axis=None), chosen.shape[1]
    # Beyond this t lie as many values as a rank has steps, which is where the bound is least.
    bottom, top = ordered[half - 1], ordered[-half]
    return (
        float(bottom - np.maximum(bottom - judged, 0).mean(axis=1).sum()),
        float(means[own.argmin()]),
        float(means[own.argmax()]),
        float(top + np.maximum(judged - top, 0).mean(axis=1).sum()),
    )


def parts(point: Point) -> tuple[Part, ...] | None:
    """Return where a point's mean step goes; None where a launch timed no step alone."""
    here = _splits(point)
    if here is None:
        return None
    shown = _shown([point])
    return tuple(
        Part(cause, *_sum([(1.0, here[cause])], shown))
        for cause in CAUSES
        if any(bounds != (0.0, 0.0) for bounds in here[cause])
    )


def loss(series: Series, point: Point) -> Loss | None:
    """Return what a point loses to its baseline; None for that, and without steps timed alone."""
    here, base = _splits(point), _splits(series.base)
    if here is None or base is None or point is series.base:
        return None
    factor = series.baseline / point.world_size if series.row.scaling == "strong" else 1.0
    shown = _shown([point, series.base])
    step_s = fmean(_steps(point))
    whole_s, interval = _sum(
        [(1.0, _exact(_steps(point))), (-factor, _exact(_steps(series.base)))], shown=True
    )
    found = tuple(
        Part(cause, *_sum(terms, shown)) for cause, terms in _terms(here, base, factor).items()
    )
    named = sorted(_named(found, step_s), key=lambda part: -part.seconds)
    return Loss(
        _kind(whole_s, interval, named, step_s), step_s, whole_s, interval, found, tuple(named),
        fmean(high - low for low, high in here[EXPOSED]),
    )  # fmt: skip


def _terms(
    here: Mapping[Cause, Sequence[Bounds]], base: Mapping[Cause, Sequence[Bounds]], factor: float
) -> dict[Cause, list[Term]]:
    """Return of what each cause's loss is the sum."""
    terms = {cause: [(1.0, here[cause]), (-factor, base[cause])] for cause in CAUSES[:-1]}
    copies = base[COPIES]  # of a ladder from one rank
    terms[EXPOSED].append((-1.0, copies))
    return terms | ({COPIES: [(1.0 - factor, copies)]} if factor != 1 and any(copies[0]) else {})


def _sum(terms: Sequence[Term], shown: bool) -> tuple[float, Interval | None]:
    """Return the sum of weighted means over launches, and an interval that holds their bounds."""
    ends: list[list[tuple[float, list[float]]]] = [[], []]
    for weight, bounds in terms:
        low, high = [b[0] for b in bounds], [b[1] for b in bounds]
        ends[0].append((weight, low if weight > 0 else high))
        ends[1].append((weight, high if weight > 0 else low))
    middle = sum(weight * fmean(values) for end in ends for weight, values in end) / 2
    low_end, high_end = (linear_interval(end) for end in ends)
    return middle, (low_end[0], high_end[1]) if shown and low_end and high_end else None


def _named(found: Sequence[Part], step_s: float) -> list[Part]:
    """Return the parts that are worth a word and whose intervals lie above 0."""
    return [
        part
        for part in found
        if part.seconds >= NOTABLE * step_s and part.interval and part.interval[0] > 0
    ]


def _kind(whole_s: float, interval: Interval | None, named: Sequence[Part], step_s: float) -> Kind:
    """Tell what is shown: that there is little, causes that take most of the loss, or neither."""
    if interval and interval[1] < NOTABLE * step_s:
        return "little"
    sure_s = sum(part.interval[0] for part in named if part.interval)
    return "named" if named and sure_s > whole_s / 2 else "open"


def _splits(point: Point) -> dict[Cause, list[Bounds]] | None:
    """Return each launch's bounds by cause; None where a launch timed no step alone."""
    found = [split(row) for row in point.rows]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    return {cause: [one[cause] for one in known] for cause in CAUSES}


def _shown(points: Sequence[Point]) -> bool:
    """Tell whether every launch kept its steps alone, so that its bounds say what is open."""
    rows = [row for point in points for row in point.rows]
    return all(len(row.rank_alone_s[0]) >= LEAST_STEPS for row in rows)


def _steps(point: Point) -> list[float]:
    return [row.mean_step_s for row in point.rows if row.mean_step_s is not None]


def _exact(values: Sequence[float]) -> list[Bounds]:
    return [(value, value) for value in values]
