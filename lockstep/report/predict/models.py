"""Models of a ladder's curve: the Universal Scalability Law, serial fractions, gains and breaks.

The law is X(p) = gamma p / (1 + alpha (p-1) + beta p (p-1)), with X the throughput at p ranks
(Gunther, Guerrilla Capacity Planning, 2007). It is fitted by unweighted least squares on the
throughput, as the R package usl does, so that its published coefficients can be compared. Its only
use is the size at which throughput would peak: on published ladders the rules below predict better.
No coefficient is negative; nothing is derived from a coefficient at its bound of zero.

The rules that continue a curve each go through the last size measured, p, and give the throughput X
at a larger one, q:

    level     efficiency stays as last measured              X(q) = X(p) q/p
    falling   efficiency falls as between the last two       X(q) = X(p) (q/p)^s
    halfway   efficiency falls half as fast                  X(q) = X(p) (q/p)^((1+s)/2)
    amdahl    a part of the work is serial                   X(q) = X(p) (a + b/p) / (a + b/q)

s is the slope of log X over log p between the last two sizes, at most 1. a and b, serial and
parallel time (Amdahl, AFIPS 1967), are fitted to all sizes by non-negative least squares on
relative residuals. A fifth rule, between, is the straight line of logarithms through the sizes on
either side of one that was not measured.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.core.formats import counted, percent, ratio
from lockstep.report.compute.statistics import CONFIDENCE, Interval, median_rate, t_quantile, welch

Array = NDArray[np.float64]
# A fitted coefficient with a smaller share than this counts as zero.
LEAST_SHARE = 1e-9
# A fit ends at relative changes smaller than this.
TINY = 1e-14
COEFFICIENTS = ("alpha", "beta", "gamma")


@dataclass(frozen=True)
class Fit:
    """A fitted Universal Scalability Law.

    Attributes:
        coefficients: alpha, beta and gamma; gamma in the unit of the throughput.
        errors: Standard errors; None for a coefficient at its bound, or without spare points.
        freedom: Points minus free coefficients.
    """

    coefficients: Mapping[str, float]
    errors: Mapping[str, float | None]
    freedom: int

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return a coefficient's 95 % Student t interval, or None without a standard error."""
        error = self.errors[name]
        if error is None:
            return None
        half = t_quantile(self.freedom) * error
        return self.coefficients[name] - half, self.coefficients[name] + half


def non_negative(matrix: Array) -> Array:
    """Return the x >= 0 with matrix @ x closest to a vector of ones, shape (num_columns,)."""
    from scipy.optimize import nnls

    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    values = nnls(matrix / scale, np.ones(len(matrix)))[0]
    return np.asarray(np.where(values > LEAST_SHARE, values, 0.0) / scale)


def fit_usl(sizes: Sequence[float], rates: Sequence[float] | Array) -> Fit:
    """Fit the Universal Scalability Law; coefficients at zero are left out of a second fit."""
    from scipy.optimize import least_squares

    p, x = np.asarray(sizes, dtype=float), np.asarray(rates, dtype=float)
    unit = float(x.max())
    start, free = _usl_start(p, x / unit), [0, 1, 2]

    def residuals(some: Array) -> Array:
        whole = np.zeros(3, dtype=some.dtype)  # complex while a slope is computed
        whole[free] = some
        alpha, beta, gamma = whole
        return np.asarray(gamma * p / (1 + alpha * (p - 1) + beta * p * (p - 1)) - x / unit)

    while True:
        solved = least_squares(
            residuals, start[free], bounds=(0, np.inf), x_scale="jac", jac="cs",
            xtol=TINY, ftol=TINY, gtol=TINY,
        )  # fmt: skip
        above = [index for index, value in zip(free, solved.x, strict=True) if value > LEAST_SHARE]
        if above == free:
            break
        free = above
    freedom = len(p) - len(free)
    # The squared errors are the diagonal of s^2 (J^T J)^-1.
    spread = math.sqrt(2 * solved.cost / freedom) if freedom else None
    norms = np.linalg.norm(np.linalg.pinv(solved.jac), axis=1)
    coefficients = dict.fromkeys(COEFFICIENTS, 0.0)
    errors: dict[str, float | None] = dict.fromkeys(COEFFICIENTS)
    for index, value, norm in zip(free, solved.x, norms, strict=True):
        name, scale = COEFFICIENTS[index], unit if index == 2 else 1.0
        coefficients[name] = float(value) * scale
        errors[name] = None if spread is None else float(norm) * spread * scale
    return Fit(coefficients, errors, freedom)


def _usl_start(p: Array, x: Array) -> Array:
    """Return (alpha, beta, gamma) from the linear form of p / X, weighted by relative error."""
    columns = np.stack([np.ones_like(p), p - 1, p * (p - 1)], axis=1)
    base, first, second = non_negative(columns * (x / p)[:, None])
    if base == 0:  # throughput does not grow with the ranks: all work is serial
        return np.array([1.0, 0.0, float(x.max())])
    return np.array([first / base, second / base, 1 / base])


def peak_size(fitted: Fit) -> float | None:
    """Return the size of largest throughput, sqrt((1 - alpha) / beta) (Gunther 2007, chapter 4)."""
    alpha, beta = fitted.coefficients["alpha"], fitted.coefficients["beta"]
    return math.sqrt(max(0.0, 1 - alpha) / beta) if beta > 0 else None


def karp_flatt(speedup: float, factor: float) -> float | None:
    """Return the experimentally determined serial fraction (Karp and Flatt, CACM 1990).

    It is (1/S - 1/n) / (1 - 1/n), with n the ranks over the baseline's; None for the baseline.
    """
    if factor == 1:
        return None
    return (1 / speedup - 1 / factor) / (1 - 1 / factor)


def marginal_efficiencies(
    sizes: Sequence[int], rates: Sequence[float]
) -> list[tuple[int, int, float]]:
    """Return (from, to, gain of speed-up per added rank) of neighbouring sizes.

    The speed-up is over the smallest size, and added ranks are counted in multiples of that size.
    From 4 to 8 GPUs a speed-up from 3.43 to 6 gains 2.57 for 4 GPUs, 0.64 of what is possible.
    """
    pairs = list(zip(sizes, rates, strict=True))
    per_rank = rates[0] / sizes[0] if pairs else 1.0
    return [(p, q, (xq - xp) / (q - p) / per_rank) for (p, xp), (q, xq) in pairwise(pairs)]


# Limits of a break: least share of the possible gain; largest loss of a doubling; that loss over
# the usual one. With them, published tables whose authors name a cause (a network, a loader, a
# parameter server) show a break there.
SATURATED_GAIN = 0.25
CLIFF_LOSS = 0.14
CLIFF_TIMES_USUAL = 3.0
# Assumed error of a ratio of two rates whose interval is unknown.
TOLERANCE = 0.05


def growth_interval(above: Sequence[float], below: Sequence[float], tests: int) -> Interval | None:
    """Return the interval of a ratio of rates, widened by Bonferroni for a number of tests."""
    between = welch(above, below)
    return between.interval(1 - (1 - CONFIDENCE) / tests) if between else None


@dataclass(frozen=True)
class Break:
    """A size at which a curve breaks.

    Attributes:
        kind: "node-boundary" is a cliff at the first size on several nodes.
        below: The size before.
        growth: Throughput over that at the size before.
        factor: Ranks over those at the size before.
    """

    kind: Literal["falls", "saturation", "cliff", "node-boundary"]
    world_size: int
    below: int
    growth: float
    factor: float

    @property
    def values(self) -> dict[str, Any]:
        """The numbers of a finding, those of `text` among them."""
        return {
            "below": self.below, "growth": self.growth, "factor": self.factor,
            "change": abs(self.growth - 1), "loss": 1 - self.growth / self.factor,
        }  # fmt: skip

    @property
    def text(self) -> str:
        fewer_ranks = counted(self.below, "rank")
        if self.kind == "falls":
            return f"throughput is {percent(self.values['change'])} % lower than on {fewer_ranks}"
        if self.kind == "saturation":
            return (
                f"saturation: {self.factor:g} times as many ranks give {ratio(self.growth)} "
                f"times the throughput of {fewer_ranks}"
            )
        loss, kind = percent(self.values["loss"]), self.kind.replace("-", " ")
        return f"{kind}: each rank is {loss} % slower than on {fewer_ranks}"


def breaks(
    sizes: Sequence[int], repeats: Sequence[Sequence[float]], nodes: Sequence[int] | None = None
) -> list[Break]:
    """Return the breaks of a curve that noise between launches cannot explain.

    A break is a fall of throughput; saturation, a gain under a quarter of what the added ranks
    could add; or a cliff, a doubling that loses over 13 % per rank and three times the usual loss.
    """
    rates = [median_rate(launches) for launches in repeats]
    pairs = pairwise(zip(sizes, rates, strict=True))
    # A difference of logarithms is finite where a ratio of rates would not be.
    losses = [_loss(math.log(xq) - math.log(xp), q / p) for (p, xp), (q, xq) in pairs]
    breaks_ = []
    for i in range(1, len(sizes)):
        factor, growth = sizes[i] / sizes[i - 1], rates[i] / rates[i - 1]
        # The largest growth that the launches' scatter allows.
        interval = growth_interval(repeats[i], repeats[i - 1], len(sizes) - 1)
        most = max(growth * (1 + TOLERANCE), max(repeats[i]) / min(repeats[i - 1]))
        most = interval[1] if interval else most
        others = losses[: i - 1] + losses[i:]
        usual = float(np.median(others)) if others else math.inf
        kind: Literal["falls", "saturation", "cliff", "node-boundary"]
        if most < 1:
            kind = "falls"
        elif (most - 1) / (factor - 1) < SATURATED_GAIN:
            kind = "saturation"
        elif _loss(math.log(most), factor) > max(CLIFF_LOSS, CLIFF_TIMES_USUAL * usual):
            kind = "node-boundary" if nodes and nodes[i - 1] == 1 < nodes[i] else "cliff"
        else:
            continue
        breaks_.append(Break(kind, sizes[i], sizes[i - 1], growth, factor))
    return breaks_


def _loss(log_growth: float, factor: float) -> float:
    """Return the logarithm of the time that each doubling adds per unit of a rank's work."""
    return (math.log(factor) - log_growth) / math.log2(factor)


Continuation = Callable[[Sequence[int], Sequence[float], float], float]
# Fewest sizes for a slope.
LEAST_KNOWN = 2
# Limit of logarithms of ratios, so that squares of ratios stay finite.
WIDEST_LOG = 300.0


def level(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate at a larger size if efficiency stays that of the last size."""
    return rates[-1] * at / sizes[-1]


def falling(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate if efficiency keeps falling as between the last two sizes."""
    return _along(_last_slope(sizes, rates), sizes, rates, at)


def halfway(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate if efficiency falls half as fast as between the last two sizes."""
    return _along((1 + _last_slope(sizes, rates)) / 2, sizes, rates, at)


def amdahl(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate by Amdahl's law, fitted to all sizes and scaled to meet the last size."""
    p = np.asarray(sizes, dtype=float)
    logs = np.clip(np.log(rates) - math.log(rates[-1]), -WIDEST_LOG, WIDEST_LOG)
    rate = np.exp(logs)
    serial, parallel = non_negative(np.stack([rate, rate / p], axis=1))
    return float(rates[-1] * (serial + parallel / p[-1]) / (serial + parallel / at))


def between(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Interpolate the rate between the neighbouring sizes, on logarithms."""
    index = min(max(bisect.bisect_left(sizes, at), 1), len(sizes) - 1)
    (p, q), (x, y) = sizes[index - 1 : index + 1], rates[index - 1 : index + 1]
    share = math.log(at / p) / math.log(q / p)
    return math.exp((1 - share) * math.log(x) + share * math.log(y))


def _last_slope(sizes: Sequence[int], rates: Sequence[float]) -> float:
    growth = math.log(rates[-1]) - math.log(rates[-2])
    return min(1.0, growth / math.log(sizes[-1] / sizes[-2]))


def _along(slope: float, sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    return rates[-1] * math.exp(max(-WIDEST_LOG, slope * math.log(at / sizes[-1])))


RULES: dict[str, Continuation] = {
    "level": level, "halfway": halfway, "falling": falling, "amdahl": amdahl,
}  # fmt: skip
BETWEEN = "between"
