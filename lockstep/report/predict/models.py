"""What a ladder's curve tells: the Universal Scalability Law, serial fractions, gains and breaks.

The law is X(p) = gamma p / (1 + alpha (p-1) + beta p (p-1)), with X the throughput at p ranks
(Gunther, Guerrilla Capacity Planning, 2007). It is fitted by unweighted least squares on the
throughput, as the R package usl does, so that its published coefficients can be compared. It says
where throughput would peak. No size is predicted by it: on published ladders the rules of
`lockstep.report.predict.models` err less.

No coefficient is negative. One at its bound of zero was not found in the data: it is called not
identifiable, and nothing is derived from it.

The rules by which a curve is continued: what a careful engineer would draw with a ruler.

Each goes through the last size measured, p, and gives the throughput X at a larger one, q:

    level     efficiency stays as last measured              X(q) = X(p) q/p
    falling   it goes on falling as between the last two     X(q) = X(p) (q/p)^s
    halfway   it falls half as fast as that                  X(q) = X(p) (q/p)^((1+s)/2)
    amdahl    a part of the work is serial                   X(q) = X(p) (a + b/p) / (a + b/q)

s is the slope of log X over log p between the last two sizes, at most 1. a and b, serial and
parallel time (Amdahl, AFIPS 1967), are fitted to all sizes by non-negative least squares on
relative residuals. A fifth rule, between, is the straight line of logarithms through the sizes on
either side of one that was left out.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lockstep.report.compute.statistics import CONFIDENCE, Interval, median_rate, t_quantile, welch

Array = NDArray[np.float64]
# A column of a fit that adds less than this share to the others was not found.
LEAST_SHARE = 1e-9
# Relative changes by which a fit ends.
TINY = 1e-14
COEFFICIENTS = ("alpha", "beta", "gamma")


@dataclass(frozen=True)
class Fit:
    """A fitted Universal Scalability Law.

    Attributes:
        coefficients: alpha, beta and gamma; gamma in the unit of the throughput.
        errors: Standard errors; None where the coefficient is at its bound or no point is left
            to tell them from.
        freedom: Points less free coefficients.
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
    """Return the x >= 0 for which matrix @ x is closest to one, shape (num_columns,)."""
    from scipy.optimize import nnls

    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    values = nnls(matrix / scale, np.ones(len(matrix)))[0]
    return np.asarray(np.where(values > LEAST_SHARE, values, 0.0) / scale)


def usl_rates(p: Array, alpha: float, beta: float, gamma: float) -> Array:
    """Return the throughput of the Universal Scalability Law at sizes of shape (num_sizes,)."""
    return np.asarray(gamma * p / (1 + alpha * (p - 1) + beta * p * (p - 1)))


def fit_usl(sizes: Sequence[float], rates: Sequence[float] | Array) -> Fit:
    """Fit the Universal Scalability Law by unweighted least squares on the throughput.

    By `scipy.optimize.least_squares` with a bound at zero; the rest is fitted again without what is
    at its bound.
    """
    p, x = np.asarray(sizes, dtype=float), np.asarray(rates, dtype=float)
    unit = float(x.max())
    start, free = _usl_start(p, x / unit), [0, 1, 2]
    while True:
        values, jacobian = _usl_least(p, x / unit, start, free)
        above = [index for index in free if values[index] > LEAST_SHARE]
        if above == free:
            break
        free = above
    residuals = usl_rates(p, *values) - x / unit
    errors = _standard_errors(jacobian, residuals)
    scale = np.array([1.0, 1.0, unit])
    known: dict[str, float | None] = dict.fromkeys(COEFFICIENTS)
    for index, error in zip(free, errors, strict=True):
        known[COEFFICIENTS[index]] = None if error is None else error * float(scale[index])
    found = dict(zip(COEFFICIENTS, (values * scale).tolist(), strict=True))
    return Fit(found, known, len(p) - len(free))


def _usl_start(p: Array, x: Array) -> Array:
    """Return (alpha, beta, gamma) from the linear form of p / X, weighted by relative error."""
    columns = np.stack([np.ones_like(p), p - 1, p * (p - 1)], axis=1)
    base, first, second = non_negative(columns * (x / p)[:, None])
    if base == 0:  # the rate does not depend on the first rank's work: all of it is serial
        return np.array([1.0, 0.0, float(x.max())])
    return np.array([first / base, second / base, 1 / base])


def _usl_least(p: Array, x: Array, start: Array, free: list[int]) -> tuple[Array, Array]:
    """Return the least-squares (alpha, beta, gamma) >= 0 with all but `free` at zero.

    Also its Jacobian with respect to the free ones, of shape (num_sizes, num_free).
    """
    from scipy.optimize import least_squares

    def residuals(some: Array) -> Array:
        whole = np.zeros(3, dtype=some.dtype)  # complex where a slope is taken
        whole[free] = some
        return usl_rates(p, *whole) - x

    solved = least_squares(
        residuals, start[free], bounds=(0, np.inf), x_scale="jac", jac="cs",
        xtol=TINY, ftol=TINY, gtol=TINY,
    )  # fmt: skip
    values = np.zeros(3)
    values[free] = np.where(solved.x > LEAST_SHARE, solved.x, 0.0)
    return values, np.asarray(solved.jac)


def _standard_errors(jacobian: Array, residuals: Array) -> list[float | None]:
    """Return the square roots of the diagonal of s^2 (J^T J)^-1; None where it is singular."""
    num_sizes, count = jacobian.shape
    scale = np.linalg.norm(jacobian, axis=0)
    if num_sizes <= count or not scale.all() or np.linalg.cond(jacobian / scale) > 1 / LEAST_SHARE:
        return [None] * count
    inverse = np.linalg.pinv(jacobian / scale)
    spread = math.sqrt(residuals @ residuals / (num_sizes - count))
    errors: list[float | None] = (np.linalg.norm(inverse, axis=1) / scale * spread).tolist()
    return errors


def peak_size(fitted: Fit) -> float | None:
    """Return where the throughput is largest, sqrt((1 - alpha) / beta); None without a beta.

    Gunther 2007, chapter 4.
    """
    alpha, beta = fitted.coefficients["alpha"], fitted.coefficients["beta"]
    return math.sqrt(max(0.0, 1 - alpha) / beta) if beta > 0 else None


def karp_flatt(speedup: float, factor: float) -> float | None:
    """Return the experimentally determined serial fraction (Karp and Flatt, CACM 1990).

    (1/S - 1/n) / (1 - 1/n), which stays level where work is serial, and grows where overhead does;
    n is the ranks over the baseline's, and None is returned for the baseline itself.
    """
    if factor == 1:
        return None
    return (1 / speedup - 1 / factor) / (1 - 1 / factor)


def marginal_efficiencies(
    sizes: Sequence[int], rates: Sequence[float]
) -> list[tuple[int, int, float]]:
    """Return (from, to, gain of speed-up per added rank) of neighbouring sizes.

    The speed-up is over the smallest size, and added ranks are counted in its multiples: from 4 to
    8 GPUs a speed-up that goes from 3.43 to 6 gains 2.57 for 4 GPUs, 0.64 of what it could.
    """
    pairs = list(zip(sizes, rates, strict=True))
    per_rank = rates[0] / sizes[0] if pairs else 1.0
    return [(p, q, (xq - xp) / (q - p) / per_rank) for (p, xp), (q, xq) in pairwise(pairs)]


# Breaks: limits on what a doubling of the ranks may cost, chosen so that the published tables
# whose authors name a cause (a network, a loader, a parameter server) show theirs.
SATURATED_GAIN = 0.25
CLIFF_LOSS = 0.14
CLIFF_TIMES_USUAL = 3.0
# By so much a ratio of two rates may miss the truth where no interval is known.
TOLERANCE = 0.05


def growth_interval(above: Sequence[float], below: Sequence[float], tests: int) -> Interval | None:
    """Return the interval of a ratio of rates that holds together with those of other points.

    By Bonferroni, so that clean data are not accused one time in twenty for each of many points.
    """
    between = welch(above, below)
    return between.interval(1 - (1 - CONFIDENCE) / tests) if between else None


@dataclass(frozen=True)
class Break:
    """A size at which a curve breaks; `check.evidence` has the sentence of its kind.

    Attributes:
        kind: "falls", "saturation", "cliff", or "node-boundary" where the ranks leave their node.
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
        """The numbers of its sentence."""
        change, loss = abs(self.growth - 1), 1 - self.growth / self.factor
        return {
            "below": self.below, "growth": self.growth, "factor": self.factor,
            "change": change, "loss": loss,
        }  # fmt: skip


def breaks(
    sizes: Sequence[int], repeats: Sequence[Sequence[float]], nodes: Sequence[int] | None = None
) -> list[Break]:
    """Return where a curve breaks even if the launches' noise made it look so.

    A throughput may fall; it may saturate, gaining under a quarter of what the added ranks could;
    or it may drop by a cliff, where a doubling loses over 13 % per rank and three times what it
    usually does.
    """
    rates = [median_rate(each) for each in repeats]
    losses = _losses(sizes, rates)
    found = []
    for i in range(1, len(sizes)):
        factor = sizes[i] / sizes[i - 1]
        most = _most_growth(repeats[i], repeats[i - 1], len(sizes) - 1)
        leaves_node = nodes is not None and nodes[i - 1] == 1 < nodes[i]
        kind: Literal["falls", "saturation", "cliff", "node-boundary"]
        if most < 1:
            kind = "falls"
        elif (most - 1) / (factor - 1) < SATURATED_GAIN:
            kind = "saturation"
        elif _is_cliff(_loss(math.log(most), factor), losses[: i - 1] + losses[i:]):
            kind = "node-boundary" if leaves_node else "cliff"
        else:
            continue
        found.append(Break(kind, sizes[i], sizes[i - 1], rates[i] / rates[i - 1], factor))
    return found


def _most_growth(above: Sequence[float], below: Sequence[float], tests: int) -> float:
    """Return the most that a throughput may have grown by, as far as launches differ."""
    interval = growth_interval(above, below, tests)
    if interval:
        return interval[1]
    ratio = median_rate(above) / median_rate(below)
    return max(ratio * (1 + TOLERANCE), max(above) / min(below))


def _losses(sizes: Sequence[int], rates: Sequence[float]) -> list[float]:
    """Return the loss from each size to the next, of shape (num_sizes - 1,)."""
    pairs = pairwise(zip(sizes, rates, strict=True))
    # A ratio of rates may be no number above 0, or infinite; its logarithm is neither.
    return [_loss(math.log(xq) - math.log(xp), q / p) for (p, xp), (q, xq) in pairs]


def _loss(log_growth: float, factor: float) -> float:
    """Return the log of the time per unit of a rank's work that each doubling adds."""
    return (math.log(factor) - log_growth) / math.log2(factor)


def _is_cliff(loss: float, others: Sequence[float]) -> bool:
    usual = float(np.median(others)) if others else math.inf
    return loss > CLIFF_LOSS and loss > CLIFF_TIMES_USUAL * usual


Continuation = Callable[[Sequence[int], Sequence[float], float], float]
# Fewer sizes have no slope.
LEAST_KNOWN = 2
# Logarithms of ratios are kept within it, so that squares of ratios are numbers.
WIDEST_LOG = 300.0


def level(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate at a larger size if efficiency stays as at the last one."""
    return rates[-1] * at / sizes[-1]


def falling(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate if efficiency goes on falling as between the last two sizes."""
    return _along(_last_slope(sizes, rates), sizes, rates, at)


def halfway(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate if efficiency falls half as fast as between the last two sizes."""
    return _along((1 + _last_slope(sizes, rates)) / 2, sizes, rates, at)


def amdahl(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate by Amdahl's law, fitted to all sizes and led through the last one."""
    p = np.asarray(sizes, dtype=float)
    logs = np.clip(np.log(rates) - math.log(rates[-1]), -WIDEST_LOG, WIDEST_LOG)
    rate = np.exp(logs)
    serial, parallel = non_negative(np.stack([rate, rate / p], axis=1))
    return float(rates[-1] * (serial + parallel / p[-1]) / (serial + parallel / at))


def between(sizes: Sequence[int], rates: Sequence[float], at: float) -> float:
    """Return the rate on the line of logarithms through the sizes on either side."""
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
