"""The rules by which a curve is continued: what a careful engineer would draw with a ruler.

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
from collections.abc import Callable, Sequence

import numpy as np

from lockstep.report.predict.models import non_negative

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
