"""Intervals and tests over launches, by Student's t on logarithms; two sides by Welch's.

The launch is the unit of replication: it gives one value, the median of its rounds (Hoefler and
Belli, SC15, rules 5 to 7). `make statistics` prints how often these intervals hold.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median, variance

CONFIDENCE = 0.95
# Share of Smyth's shrinkage towards a family's variance, tuned by
# `tests/validation/figures_compare.py`. If one point of eight is noisy, full shrinkage claims a
# difference in up to 25 % of equal families, this share in 3.8 %. Plain Welch shows one slow point
# of eight in 52 % of families, this share in 71 %.
TRUST = 0.4
# Least variance of a point, as a share of its family's median variance. If launches have two modes
# at a distance d, three launches of A may all be in one mode and three of B in the other. Each side
# then seems quiet, while the family has variances of about d^2 / 4. The least share f gives
# t = sqrt(6 / f), and a half is the smallest f with which a family of two claims nothing (4 degrees
# of freedom, error 0.025: t below 3.5).
LEAST_OF_MEDIAN = 0.5
# Differences of logarithms below this are rounding.
ROUNDING = 1e-12
# Ends of an interval are clipped to exp(-this) and exp(this), so that they are finite.
WIDEST_LOG = 600.0
# Half the degrees of freedom of a variance known almost exactly, since all points share it.
ALIKE = 1e6
# Power: probability of detecting a difference of the stated size.
POWER = 0.9
MOST_LAUNCHES = 1000
# The ratio of an interval's ends beyond which it says little.
WIDE = 1.5
# Launches may have two modes, each equally likely. In 2^(1 - n) of comparisons of n launches all
# of A are then in one mode and all of B in the other: 12 % for four, 6 % for five, 3 % for six.
# Such sides look quiet, so fewer than six launches count as one degree of freedom.
FEW_LAUNCHES = 6

Interval = tuple[float, float]


@dataclass(frozen=True)
class Ratio:
    """A ratio of geometric means, as Welch's test sees it.

    Attributes:
        log_ratio: Difference of the means of logarithms.
        error: Standard error of `log_ratio`; 0 if the launches of each side are equal to the last
            digit, so that they were rounded or copied and their spread is unknown.
        freedom: Degrees of freedom by Welch and Satterthwaite.
        per_launch: Sum of 1 / launches over the sides; error^2 / per_launch is a launch's variance.
    """

    log_ratio: float
    error: float
    freedom: float
    per_launch: float

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of a launch's value."""
        return self.error / math.sqrt(self.per_launch)

    @property
    def p_value(self) -> float:
        """Two-sided p-value of a ratio of 1; 1 if the spread is unknown."""
        # scipy.stats takes seconds to import, scipy.special does not.
        from scipy.special import stdtr

        if self.error == 0:
            return 1.0
        return 2 * float(stdtr(self.freedom, -abs(self.log_ratio) / self.error))

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the two-sided interval of the ratio; None if the spread is unknown."""
        if self.error == 0:
            return None
        half = t_quantile(self.freedom, confidence) * self.error
        low, high = self.log_ratio - half, self.log_ratio + half
        return math.exp(max(low, -WIDEST_LOG)), math.exp(min(high, WIDEST_LOG))


def welch(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """Return the ratio of geometric means of two sets of positive values, one value per launch.

    None if a side has fewer than two launches.
    """
    if min(len(above), len(below)) < 2:
        return None
    (mean_a, var_a), (mean_b, var_b) = _log_moments(above), _log_moments(below)
    part_a, part_b = var_a / len(above), var_b / len(below)
    per_launch = 1 / len(above) + 1 / len(below)
    if part_a + part_b == 0:
        return Ratio(mean_a - mean_b, 0.0, float(len(above) + len(below) - 2), per_launch)
    # Shares of the sum, since the square of a small variance may underflow.
    share = part_a / (part_a + part_b)
    freedom = 1 / (share**2 / (len(above) - 1) + (1 - share) ** 2 / (len(below) - 1))
    return Ratio(mean_a - mean_b, math.sqrt(part_a + part_b), freedom, per_launch)


def log_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the Student t interval of the geometric mean; the median may lie outside it.

    None for fewer than two launches, and for launches equal to the last digit.
    """
    if len(values) < 2:
        return None
    mean, variance = _log_moments(values)
    error = math.sqrt(variance / len(values))
    return Ratio(mean, error, float(len(values) - 1), 1 / len(values)).interval(confidence)


def ratio_interval(
    above: Sequence[float], below: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Return Welch's interval of a ratio of geometric means; None if the spread is unknown."""
    ratio = welch(above, below)
    return ratio.interval(confidence) if ratio else None


def is_wide(interval: Interval | None) -> bool:
    """Tell whether an interval is unknown, or too wide to say much."""
    return interval is None or interval[1] > WIDE * interval[0]


def is_below_one(interval: Interval | None) -> bool | None:
    """Tell whether a ratio's interval is below 1; None if it is wide and not below 1."""
    return True if interval and interval[1] < 1 else None if is_wide(interval) else False


def linear_interval(terms: Sequence[tuple[float, Sequence[float]]]) -> Interval | None:
    """Return the interval of a sum of weighted means, with Welch and Satterthwaite's freedom.

    A term is a weight, and one value per launch, independent of the other terms. None if a term
    has fewer than two launches, or all are equal to the last digit.
    """
    if min(len(values) for _, values in terms) < 2:
        return None
    errors = [weight**2 * variance(values) / len(values) for weight, values in terms]
    total = sum(errors)
    scale = max(abs(weight * value) for weight, values in terms for value in values)
    if total <= (ROUNDING * scale) ** 2:
        return None
    known = zip(errors, terms, strict=True)
    freedom = 1 / sum((error / total) ** 2 / (len(values) - 1) for error, (_, values) in known)
    half = t_quantile(freedom) * math.sqrt(total)
    middle = sum(weight * fmean(values) for weight, values in terms)
    return middle - half, middle + half


def moderate(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Return the ratios of a family, each variance shrunk towards the family's (Smyth 2004, limma).

    The family's variance counts as `TRUST` of Smyth's degrees of freedom, at most as many as the
    point's own; the result is at least `LEAST_OF_MEDIAN`. A ratio without a known spread gets the
    family's if two other ratios have one.
    """
    known = [ratio for ratio in ratios if ratio.error > 0]
    if len(known) < 2:
        return list(ratios)
    prior, common = _prior([ratio.spread**2 for ratio in known], [ratio.freedom for ratio in known])
    most = sum(ratio.freedom for ratio in known)
    least = math.sqrt(LEAST_OF_MEDIAN * median(ratio.spread**2 for ratio in known))
    shrunk = []
    for ratio in ratios:
        added = min(TRUST * prior, ratio.freedom)
        own = ratio.freedom / (ratio.freedom + added)
        root = math.sqrt(ratio.per_launch)
        spread = math.sqrt(own * ratio.spread**2 + (1 - own) * common)
        freedom = min(ratio.freedom + added, most)
        shrunk.append(replace(ratio, error=max(spread, least) * root, freedom=freedom))
    return shrunk


def _prior(variances: Sequence[float], freedoms: Sequence[float]) -> tuple[float, float]:
    """Return the degrees of freedom that a family's variance is worth, and that variance.

    Both follow from moments of log variances with a scaled F distribution (Smyth 2004).
    """
    from scipy.special import polygamma, psi

    logs = [
        math.log(v) - float(psi(f / 2)) + math.log(f / 2)
        for v, f in zip(variances, freedoms, strict=True)
    ]
    excess = variance(logs) - fmean(float(polygamma(1, f / 2)) for f in freedoms)
    freedom = 2 * ALIKE
    if excess > 1 / ALIKE:
        x = 0.5 + 1 / excess  # trigamma(x) = excess, by Newton's steps on 1 / trigamma
        for _ in range(50):
            trigamma = float(polygamma(1, x))
            step = trigamma * (1 - trigamma / excess) / float(polygamma(2, x))
            x += step
            if abs(step) < 1e-8 * x:
                break
        freedom = 2 * x
    return freedom, math.exp(fmean(logs) + float(psi(freedom / 2)) - math.log(freedom / 2))


def family_error(p_values: Sequence[float], error: float = 1 - CONFIDENCE) -> float:
    """Return the error rate of each of m intervals, so that they hold together.

    The rate is error * R / m: the R smallest p-values, whose k-th is at most error * k / m, are
    significant (Benjamini and Hochberg 1995), and exactly their intervals exclude 1 (Benjamini and
    Yekutieli 2005). If nothing differs, an interval excludes 1 in a share `error` of families.
    """
    if not p_values:
        return error
    ranked = enumerate(sorted(p_values), start=1)
    count = max((k for k, p in ranked if p <= error * k / len(p_values)), default=1)
    return error * count / len(p_values)


def smallest_change(standard_error: float, freedom: float, error: float) -> float | None:
    """Return the relative difference that a t test detects with 90 % power; None if it overflows.

    From the noncentral t distribution (Cohen, Statistical Power Analysis, 1988, chapter 2). The
    standard error, with its degrees of freedom, is that of the difference of the logarithms.
    """
    from scipy.special import nctdtrinc

    distance = float(nctdtrinc(freedom, 1 - POWER, t_quantile(freedom, 1 - error)))
    try:
        change = math.expm1(distance * standard_error)
    except OverflowError:
        return None
    return change if math.isfinite(change) else None


def launches_needed(spread: float, margin: float, error: float) -> int | None:
    """Return the number of launches per side that detect the margin with 90 % power.

    `spread` is the standard deviation of the logarithm of a launch's rate. The number is None if
    `MOST_LAUNCHES` are not enough.
    """

    def is_enough(number: int) -> bool:
        freedom = 2 * number - 2 if 2 * number >= FEW_LAUNCHES else 1
        change = smallest_change(spread * math.sqrt(2 / number), freedom, error)
        return change is not None and change <= margin

    counts = range(2, MOST_LAUNCHES + 1)
    place = bisect_left(counts, True, key=is_enough)
    return counts[place] if place < len(counts) else None


def launches_to_narrow(spread: float) -> int | None:
    """Return the number of launches per side whose interval is not wide, with 90 % power."""
    from scipy.special import chdtri

    for number in range(2, MOST_LAUNCHES + 1):
        freedom = 2 * number - 2
        error = spread * math.sqrt(2 / number * float(chdtri(freedom, 1 - POWER)) / freedom)
        if 2 * t_quantile(freedom) * error <= math.log(WIDE):
            return number
    return None


def median_rate(rates: Sequence[float]) -> float:
    """Return the rate at the median time, so that rate times median time is the work done."""
    return 1 / median([1 / rate for rate in rates])


@lru_cache(maxsize=4096)
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t for a number of degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def _log_moments(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and unbiased variance of the logarithms; 0 within rounding."""
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    if max(logs) - min(logs) <= ROUNDING:
        return mean, 0.0
    return mean, math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1)
