"""What is odd about the rounds of a launch, or the launches of a point, and what would settle it.

Nothing here drops a value: what is found becomes a flag on the result. A finding needs both an
effect that matters (`NOTABLE`) and a pattern that noise alone shows in about one of a thousand sets
of rounds (`make statistics` prints how often).

From the matrix of a case's rounds to what a report says of them.

The rounds of ten thousand cases are reduced in numpy blocks of equal shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.core.flags import Flag, flag
from lockstep.core.metrics import NOTABLE
from lockstep.core.record import CaseRecord
from lockstep.report.compute.statistics import t_quantile

if TYPE_CHECKING:
    from lockstep.report.load.results import Row


Array = np.ndarray[Any, np.dtype[np.float64]]

# More than half of a launch's time, so that its mean says more of what held it up than of a step.
MOST = 0.5
# Fewer values show no trend, and no two modes, that noise would not show too.
FEWEST = 8
MODE_FEWEST = 12
# Four launches tell too little of their spread to call one of them far.
OUTLIER_FEWEST = 5
# Share of points of normal noise alone that hold an outlier.
OUTLIER_CHANCE = 0.001
# Share of noise alone that is taken for a trend.
CHANCE = 0.0005
# Of two modes each holds at least this share of the values.
MODE_SHARE = 0.25
# The gap between two modes is so many times as wide as the wider of them.
MODE_GAP = 2.0
# Multiples of the interquartile range beyond which a value lies far out (Tukey, 1977).
FAR_OUT = 3.0
# Of squares of ranks, which are whole numbers or halves; less is rounding.
TINY = 1e-9


def of_rounds(round_s: Array) -> list[list[Flag]]:
    """Return what is odd about each record's rounds.

    Args:
        round_s: Seconds of each round in the order of time, shape (num_records, num_rounds).
    """
    found: list[list[Flag]] = [[] for _ in round_s]
    middle = np.median(round_s, axis=1)
    beyond = np.maximum(round_s - middle[:, None], 0).sum(axis=1) / round_s.sum(axis=1)
    for record in np.flatnonzero(beyond > MOST):
        longest_s, median_s = float(round_s[record].max()), float(middle[record])
        share = float(beyond[record])
        found[record] += [flag("long-round", longest_s=longest_s, median_s=median_s, share=share)]
    if round_s.shape[1] < FEWEST:
        return found
    rounds = round_s.shape[1]
    changes, apart = trend(round_s), modes(round_s)
    for record in np.flatnonzero((changes != 0) | (apart != 0)):
        change = float(changes[record])
        if change < 0:
            found[record].append(flag("warm-up-drift", change=-change, rounds=rounds))
        elif change > 0:
            found[record].append(flag("slows-down", change=change, rounds=2 * rounds))
        else:
            wide = float(apart[record])
            found[record].append(flag("two-modes", apart=wide, rounds=2 * rounds))
    return found


def far_out(round_s: Array) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return how many rounds of each record lie far outside its quartiles; shape (num_records,).

    Tukey's outer fences: further than `FAR_OUT` interquartile ranges from the nearer quartile.
    Fewer than `FEWEST` rounds do not tell.
    """
    low, high = np.quantile(round_s, (0.25, 0.75), axis=1)[..., None]
    fence = FAR_OUT * (high - low)
    return np.asarray(((round_s < low - fence) | (round_s > high + fence)).sum(axis=1))


def trend(values: Array) -> Array:
    """Return the change from the first third to the last, 0 where there is no sure trend.

    Sure is Spearman's rank correlation with the order in time at `CHANCE`, for as many values as
    the rounds are worth where each resembles the one before; the change is that of the medians of
    the thirds, as a fraction of the first.

    Args:
        values: In the order of time, shape (num_records, num_values).
    """
    third = values.shape[1] // 3
    first, last = np.median(values[:, :third], axis=1), np.median(values[:, -third:], axis=1)
    change = np.asarray(last / first - 1)
    large = np.abs(change) > NOTABLE
    if large.any():
        large[large] = _is_sure(values[large])
    return np.where(large, change, 0.0)


def _is_sure(values: Array) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Tell which records rise or fall in time by more than chance; shape (num_records,)."""
    # scipy.stats takes seconds to import; the one function needed lives in scipy.special.
    from scipy.special import stdtrit

    middle = (values.shape[1] - 1) / 2
    ranks, order = _mid_ranks(values) - middle, np.arange(values.shape[1]) - middle
    slope = ranks @ order / (order @ order)
    total = np.maximum((ranks**2).sum(axis=1), TINY)
    correlation = np.abs(slope) * np.sqrt(order @ order / total)
    freedom = _worth(ranks - slope[:, None] * order) - 2
    t = correlation * np.sqrt(freedom / np.maximum(1 - correlation**2, TINY))
    return np.asarray(t > stdtrit(freedom, 1 - CHANCE / 2))


def _mid_ranks(values: Array) -> Array:
    """Return each value's rank in its record from 0; equal values share the mean of theirs."""
    order = values.argsort(axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    index = np.arange(values.shape[1])
    starts, ends = np.ones(values.shape, dtype=bool), np.ones(values.shape, dtype=bool)
    starts[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    ends[:, :-1] = starts[:, 1:]
    first = np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, index, len(index))[:, ::-1], axis=1)[:, ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2, axis=1)
    return ranks


def _worth(residuals: Array) -> Array:
    """Return how many independent values each record is worth, beside its trend.

    n (1 - r) / (1 + r) of n values whose residuals follow one another with the correlation r
    (Bayley and Hammersley, 1946), to which (2 + 4 r) / n is added, by which a sample with a trend
    taken out falls short of it (Kendall, 1954). No fewer than three, no more than n.
    """
    count = residuals.shape[1]
    total = (residuals**2).sum(axis=1)
    lag = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=1) / np.maximum(total, TINY)
    known = np.clip(lag + (2 + 4 * lag) / count, 0, 1)
    # A record that falls on its trend has no residuals to follow one another.
    worth = np.where(total > TINY, count * (1 - known) / (1 + known), count)
    return np.asarray(np.maximum(worth, 3))


def modes(values: Array) -> Array:
    """Return how far apart two groups of values are, relative to the lower; 0 for one group.

    Two groups are separated by a gap of `MODE_GAP` times the wider of them, each with at least
    `MODE_SHARE` of the values and three.

    Args:
        values: In any order, shape (num_records, num_values).
    """
    count = values.shape[1]
    if count < MODE_FEWEST:
        return np.zeros(len(values))
    ordered = np.sort(values, axis=1)
    least = max(3, round(MODE_SHARE * count))
    cuts = np.arange(least, count - least + 1)
    gaps = ordered[:, cuts] - ordered[:, cuts - 1]
    at = cuts[gaps.argmax(axis=1)]
    rows = np.arange(len(values))
    below, above = ordered[rows, at - 1], ordered[rows, at]
    widest = np.maximum(below - ordered[:, 0], ordered[:, -1] - above)
    separate = (above - below > MODE_GAP * widest) & (above / below - 1 > NOTABLE)
    return np.where(separate, above / below - 1, 0.0)


def of_launches(rows: "Sequence[Row]") -> list[Flag]:
    """Return what is odd about the launches of one point."""
    rows = sorted(rows, key=lambda row: row.started)
    rates = [row.rate for row in rows]
    flags = [
        flag("outlier", launch=rows[i].launch, change=rates[i] / median(rates) - 1)
        for i in _outliers(rates)
    ]
    # The lines of an imported table stand in no order of time.
    if len(rates) >= FEWEST and all(row.started for row in rows):
        change = float(trend(np.array([rates]))[0])
        if change:
            flags.append(flag("trend", change=change))
    return flags


def _outliers(rates: Sequence[float]) -> list[int]:
    """Return which launches, of five or more, are far from the others.

    Far is `NOTABLE`, and further from the mean of the others' logarithms than Student's t allows
    one launch of them all, with the probability `OUTLIER_CHANCE` (Grubbs 1969, as the externally
    studentised residual). The spread is that of the others, which one launch cannot widen.
    """
    if len(rates) < OUTLIER_FEWEST:
        return []
    logs = [math.log(rate) for rate in rates]
    border = t_quantile(len(rates) - 2, 1 - OUTLIER_CHANCE / len(rates))
    border *= math.sqrt(1 + 1 / (len(rates) - 1))
    far = []
    for i, value in enumerate(logs):
        others = logs[:i] + logs[i + 1 :]
        if abs(value - fmean(others)) > max(border * stdev(others), math.log1p(NOTABLE)):
            far.append(i)
    return far


Named = tuple[str, CaseRecord]


@dataclass(slots=True)
class Rounds:
    """The rounds of one case in one launch; a round is as long as its slowest rank took.

    Attributes:
        num_far_out: Rounds far outside the quartiles; they are kept. None where there are too
            few to tell.
        findings: What is odd about the rounds.
    """

    median_s: float
    mean_s: float
    min_s: float
    max_s: float
    stddev_s: float
    num_far_out: int | None
    findings: list[Flag]


def reduce_rounds(records: list[Named]) -> list[Rounds]:
    """Return the rounds of each record, reduced.

    Args:
        records: Each case by its name; `record.problem` has found nothing wrong with them.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, (_, case) in enumerate(records):
        shape = (len(case.rank_round_s), len(case.rank_round_s[0]))
        shapes.setdefault(shape, []).append(index)
    found: dict[int, Rounds] = {}
    for (_, num_rounds), indices in shapes.items():
        # Of shape (num_records, num_ranks, num_rounds), then (num_records, num_rounds).
        block = np.array([records[index][1].rank_round_s for index in indices], dtype=float)
        rounds = block.max(axis=1)
        spread = rounds.std(axis=1, ddof=1) if num_rounds > 1 else np.zeros(len(rounds))
        columns: list[list[float]] = [
            np.median(rounds, axis=1).tolist(), rounds.mean(axis=1).tolist(),
            rounds.min(axis=1).tolist(), rounds.max(axis=1).tolist(), spread.tolist(),
        ]  # fmt: skip
        counts = far_out(rounds).tolist() if num_rounds >= FEWEST else [None] * len(rounds)
        reduced = map(Rounds, *columns, counts, of_rounds(rounds))
        found.update(zip(indices, reduced, strict=True))
    return [found[index] for index in range(len(records))]
