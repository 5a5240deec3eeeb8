"""Statistics of rounds, and flags for odd rounds of a launch or odd launches of a point.

A flag needs an effect of at least `NOTABLE`, and a pattern that noise alone shows in about one of a
thousand sets of rounds (`make statistics` prints how often). No value is dropped.
"""

import math
from collections.abc import Sequence
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

# If the time above the median round exceeds this share of a launch, its mean describes stalls.
MOST = 0.5
# Fewest values to test for a trend and for two modes, and fewest launches for an outlier.
FEWEST = 8
MODE_FEWEST = 12
OUTLIER_FEWEST = 5
# Probability that noise alone gives a point with an outlier, or a trend in one direction.
OUTLIER_CHANCE = 0.001
CHANCE = 0.0005
# Smallest share of the values in a mode, and the gap between modes over the width of the wider one.
MODE_SHARE = 0.25
MODE_GAP = 2.0
# Distance from a quartile, in interquartile ranges, that is far out (Tukey, 1977).
FAR_OUT = 3.0
# Sums of squares of ranks below this are rounding errors.
TINY = 1e-9


def flag_rounds(round_s: Array) -> list[list[Flag]]:
    """Return the flags of each record; `round_s` has shape (num_records, num_rounds)."""
    flags: list[list[Flag]] = [[] for _ in round_s]
    middle = np.median(round_s, axis=1)
    beyond = np.maximum(round_s - middle[:, None], 0).sum(axis=1) / round_s.sum(axis=1)
    for record in np.flatnonzero(beyond > MOST):
        longest_s, median_s = float(round_s[record].max()), float(middle[record])
        share = float(beyond[record])
        flags[record] += [flag("long-round", longest_s=longest_s, median_s=median_s, share=share)]
    rounds = round_s.shape[1]
    if rounds < FEWEST:
        return flags
    changes, gaps = trend(round_s), modes(round_s)
    for record in np.flatnonzero((changes != 0) | (gaps != 0)):
        change, apart = float(changes[record]), float(gaps[record])
        if change < 0:
            flags[record].append(flag("warm-up-drift", change=-change, rounds=rounds))
        elif change > 0:
            flags[record].append(flag("slows-down", change=change, rounds=2 * rounds))
        else:
            flags[record].append(flag("two-modes", apart=apart, rounds=2 * rounds))
    return flags


def far_out(round_s: Array) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return how many rounds of each record lie beyond Tukey's outer fences, (num_records,)."""
    low, high = np.quantile(round_s, (0.25, 0.75), axis=1)[..., None]
    fence = FAR_OUT * (high - low)
    return np.asarray(((round_s < low - fence) | (round_s > high + fence)).sum(axis=1))


def trend(values: Array) -> Array:
    """Return the change from the median of the first third to that of the last; 0 for no trend.

    A trend is Spearman's rank correlation with the order in time, significant at `CHANCE` for the
    number of independent values. `values` has shape (num_records, num_values), in order of time.
    """
    third = values.shape[1] // 3
    first, last = np.median(values[:, :third], axis=1), np.median(values[:, -third:], axis=1)
    change = np.asarray(last / first - 1)
    large = np.abs(change) > NOTABLE
    if large.any():
        large[large] = _has_trend(values[large])
    return np.where(large, change, 0.0)


def _has_trend(values: Array) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    # scipy.stats takes seconds to import; the one function needed lives in scipy.special.
    from scipy.special import stdtrit

    middle = (values.shape[1] - 1) / 2
    ranks, order = _mid_ranks(values) - middle, np.arange(values.shape[1]) - middle
    slope = ranks @ order / (order @ order)
    total = np.maximum((ranks**2).sum(axis=1), TINY)
    correlation = np.abs(slope) * np.sqrt(order @ order / total)
    freedom = _effective_number(ranks - slope[:, None] * order) - 2
    t = correlation * np.sqrt(freedom / np.maximum(1 - correlation**2, TINY))
    return np.asarray(t > stdtrit(freedom, 1 - CHANCE / 2))


def _mid_ranks(values: Array) -> Array:
    """Return each value's rank in its record, from 0; equal values share their mean rank."""
    # scipy.stats.rankdata does the same, but scipy.stats takes seconds to import.
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


def _effective_number(residuals: Array) -> Array:
    """Return the number of independent values in each record, from 3 to n.

    It is n (1 - r) / (1 + r) for residuals of lag-1 correlation r (Bayley and Hammersley, 1946),
    where (2 + 4 r) / n corrects the bias of r in a sample without its trend (Kendall, 1954).
    """
    count = residuals.shape[1]
    total = (residuals**2).sum(axis=1)
    lag = (residuals[:, 1:] * residuals[:, :-1]).sum(axis=1) / np.maximum(total, TINY)
    known = np.clip(lag + (2 + 4 * lag) / count, 0, 1)
    # A record that lies on its trend has no residuals.
    number = np.where(total > TINY, count * (1 - known) / (1 + known), count)
    return np.asarray(np.maximum(number, 3))


def modes(values: Array) -> Array:
    """Return the gap between two groups of values over the lower group; 0 for one group.

    The gap is at least `MODE_GAP` times as wide as the wider group; each group has at least
    `MODE_SHARE` of the values, and at least three. `values` has shape (num_records, num_values).
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


def flag_launches(rows: "Sequence[Row]") -> list[Flag]:
    """Return the flags of a point from its launches: outliers, and a trend in time."""
    rows = sorted(rows, key=lambda row: row.started)
    rates = [row.rate for row in rows]
    flags = []
    # Outliers by Grubbs' test (1969) on logarithms: a launch differs from the mean of the others by
    # more than `NOTABLE`, and by more than Student's t allows with the spread of the others.
    if len(rates) >= OUTLIER_FEWEST:
        logs = [math.log(rate) for rate in rates]
        border = t_quantile(len(rates) - 2, 1 - OUTLIER_CHANCE / len(rates))
        border *= math.sqrt(1 + 1 / (len(rates) - 1))
        for i, value in enumerate(logs):
            others = logs[:i] + logs[i + 1 :]
            if abs(value - fmean(others)) > max(border * stdev(others), math.log1p(NOTABLE)):
                change = rates[i] / median(rates) - 1
                flags.append(flag("outlier", launch=rows[i].launch, change=change))
    # Lines of an imported table have no start.
    if len(rates) >= FEWEST and all(row.started for row in rows):
        change = float(trend(np.array([rates]))[0])
        if change:
            flags.append(flag("trend", change=change))
    return flags


def reduce_rounds(cases: Sequence[CaseRecord]) -> list[dict[str, Any]]:
    """Return the fields of a `Row` that follow from the rounds of each case, times per step.

    Cases of equal shape are reduced as one numpy block. A round lasts as long as its slowest rank.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, case in enumerate(cases):
        shape = (len(case.rank_round_s), len(case.rank_round_s[0]))
        shapes.setdefault(shape, []).append(index)
    reduced: dict[int, dict[str, Any]] = {}
    for (_, num_rounds), indices in shapes.items():
        # Shape (num_cases, num_ranks, num_rounds), then (num_cases, num_rounds).
        rounds = np.array([cases[index].rank_round_s for index in indices], dtype=float).max(axis=1)
        steps = np.array([cases[index].steps_per_round for index in indices])
        spread = rounds.std(axis=1, ddof=1) if num_rounds > 1 else np.zeros(len(rounds))
        counts = far_out(rounds).tolist() if num_rounds >= FEWEST else [None] * len(rounds)
        columns: dict[str, list[Any]] = {
            "step_s": (np.median(rounds, axis=1) / steps).tolist(),
            "mean_step_s": (rounds.mean(axis=1) / steps).tolist(),
            "min_step_s": (rounds.min(axis=1) / steps).tolist(),
            "max_step_s": (rounds.max(axis=1) / steps).tolist(),
            "stddev_step_s": (spread / steps).tolist(),
            "num_far_out": counts,
            "flags": flag_rounds(rounds),
        }
        for index, values in zip(indices, zip(*columns.values(), strict=True), strict=True):
            reduced[index] = dict(zip(columns, values, strict=True))
    return [reduced[index] for index in range(len(cases))]
