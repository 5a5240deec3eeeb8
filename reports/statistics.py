"""Intervals and tests over launches: the arithmetic below every claim of a report.

The launch is the unit of replication: rounds within a launch share its clocks, placement and
neighbours, so a launch gives one value, the median of its rounds. Over launches the logarithms of
those values are compared by Student's t, and two sides by Welch's, whose interval contains the
uncertainty of both (Hoefler and Belli, SC15, rules 5 to 7). An interval of order statistics needs
six launches to reach 95 %, and a bootstrap of three covers the truth in 89 % of ladders; t on
logarithms holds what it says from three launches on (`tests/figures_statistics.py` prints all).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

CONFIDENCE = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True)
class Ratio:
    """A ratio of geometric means on the scale of logarithms, as Welch's test sees it.

    Attributes:
        log_ratio: Mean of the logarithms above, minus that below.
        error: Standard error of `log_ratio`.
        freedom: Degrees of freedom by Welch and Satterthwaite.
    """

    log_ratio: float
    error: float
    freedom: float

    @property
    def p_value(self) -> float:
        """Probability of a log ratio so far from 0 where the truth is 0; two-sided."""
        # scipy.stats takes seconds to import; the one function needed lives in scipy.special.
        from scipy.special import stdtr

        if self.error == 0:
            return 1.0 if self.log_ratio == 0 else 0.0
        return 2 * float(stdtr(self.freedom, -abs(self.log_ratio) / self.error))

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Return the two-sided interval of the ratio."""
        half = t_quantile(self.freedom, confidence) * self.error if self.error else 0.0
        return math.exp(self.log_ratio - half), math.exp(self.log_ratio + half)


def welch(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """Return the ratio of geometric means of two sets of positive values, one value per launch.

    None where either side has fewer than two launches: nothing is then known of their spread.
    """
    if min(len(above), len(below)) < 2:
        return None
    (mean_a, var_a), (mean_b, var_b) = _log_moments(above), _log_moments(below)
    part_a, part_b = var_a / len(above), var_b / len(below)
    if part_a + part_b == 0:
        return Ratio(mean_a - mean_b, 0.0, float(len(above) + len(below) - 2))
    # Shares of the whole, since the square of a small variance may be no number above 0.
    share = part_a / (part_a + part_b)
    freedom = 1 / (share**2 / (len(above) - 1) + (1 - share) ** 2 / (len(below) - 1))
    return Ratio(mean_a - mean_b, math.sqrt(part_a + part_b), freedom)


def log_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the Student t interval of the geometric mean, or None for fewer than two launches."""
    if len(values) < 2:
        return None
    mean, variance = _log_moments(values)
    error = math.sqrt(variance / len(values))
    return Ratio(mean, error, float(len(values) - 1)).interval(confidence)


def ratio_interval(
    above: Sequence[float], below: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Return Welch's interval of a ratio of geometric means, or None without repeats."""
    ratio = welch(above, below)
    return ratio.interval(confidence) if ratio else None


def family_error(p_values: Sequence[float], error: float = 1 - CONFIDENCE) -> float:
    """Return the error rate at which each of many intervals is drawn, so that they hold together.

    Benjamini and Hochberg (1995): of m tests the R smallest p-values are taken for real whose k-th
    is at most error * k / m. Intervals at 1 - error * R / m are theirs (Benjamini and Yekutieli,
    2005): such an interval leaves 1 out exactly where its test is one of the R. Where nothing
    differs, no interval of the family leaves 1 out, but for a share `error` of families.

    Args:
        p_values: One per point of the family, in any order.
        error: Share of false claims allowed.
    """
    if not p_values:
        return error
    ranked = enumerate(sorted(p_values), start=1)
    found = max((k for k, p in ranked if p <= error * k / len(p_values)), default=1)
    return error * found / len(p_values)


def median_rate(rates: Sequence[float]) -> float:
    """Return the rate at the median time, so that rate times median time is the work done."""
    return 1 / median([1 / rate for rate in rates])


@lru_cache(maxsize=4096)
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t for a number of degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def _log_moments(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and unbiased variance of the logarithms."""
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    return mean, math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1)
