"""Intervals and tests over launches: the arithmetic below every claim of a report.

The launch is the unit of replication: rounds within a launch share its clocks, placement and
neighbours, so a launch gives one value, the median of its rounds. Over launches the logarithms of
those values are compared by Student's t, and two sides by Welch's, whose interval contains the
uncertainty of both (Hoefler and Belli, SC15, rules 5 to 7). An interval of order statistics needs
six launches to reach 95 %, and a bootstrap of three covers the truth in 89 % of ladders; t on
logarithms holds what it says from three launches on (`make statistics` prints all).

Every interval is of a geometric mean, or of a ratio of two. A report's points are medians: where
launches can only be slower, never faster, the two part, and a median may lie outside the interval.
Launches that are equal to the last digit were rounded or copied: nothing is known of their spread,
and they have no interval, never one of no width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median, variance

CONFIDENCE = 0.95
# A heuristic: the weight of Smyth's pull towards a family's variance, which is in addition never
# worth more than a point's own launches (`_drawn`). Tuned by `tests/validation/figures_compare.py`:
# where one point of eight is noisy, Smyth's whole pull claims a difference in up to 25 % of equal
# families, this in 3.8 %. Plain Welch claims none too many either, but finds one slow point of
# eight in 52 % of families, this in 71 %.
TRUST = 0.4
# No point's variance counts for less than this share of its family's median variance. Launches in
# two modes are sometimes parted by their modes, all of A in one and all of B in the other, a
# distance d apart and each side seemingly quiet: the family then knows variances of about d^2 / 4,
# and with the share f three launches a side give t = sqrt(6 / f). The least f at which that is no
# claim in a family of two (4 freedoms, error 0.025: t below 3.5) is a half.
LEAST_OF_MEDIAN = 0.5
# Logarithms that vary by less are equal but for the last digits of the arithmetic.
ROUNDING = 1e-12
# The logarithm of an end of an interval; beyond it a number would be none, or infinite.
WIDEST_LOG = 600.0
# Half the degrees of freedom of a variance that all points share.
ALIKE = 1e6

Interval = tuple[float, float]


@dataclass(frozen=True)
class Ratio:
    """A ratio of geometric means on the scale of logarithms, as Welch's test sees it.

    Attributes:
        log_ratio: Mean of the logarithms above, minus that below.
        error: Standard error of `log_ratio`.
        freedom: Degrees of freedom by Welch and Satterthwaite.
        per_launch: Sum of 1 / launches over the sides; error^2 over it is a launch's variance.
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
        """Probability of a log ratio so far from 0 where the truth is 0; two-sided.

        1 where no spread is known: launches equal to the last digit show nothing.
        """
        # scipy.stats takes seconds to import; the one function needed lives in scipy.special.
        from scipy.special import stdtr

        if self.error == 0:
            return 1.0
        return 2 * float(stdtr(self.freedom, -abs(self.log_ratio) / self.error))

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the two-sided interval of the ratio, its ends within the range of numbers.

        None where no spread is known: launches equal to the last digit were rounded or copied.
        """
        if self.error == 0:
            return None
        half = t_quantile(self.freedom, confidence) * self.error
        low, high = self.log_ratio - half, self.log_ratio + half
        return math.exp(max(low, -WIDEST_LOG)), math.exp(min(high, WIDEST_LOG))


def welch(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """Return the ratio of geometric means of two sets of positive values, one value per launch.

    None where either side has fewer than two launches: nothing is then known of their spread. Its
    error is 0 where the launches of each side are equal to the last digit.
    """
    if min(len(above), len(below)) < 2:
        return None
    (mean_a, var_a), (mean_b, var_b) = _log_moments(above), _log_moments(below)
    part_a, part_b = var_a / len(above), var_b / len(below)
    per_launch = 1 / len(above) + 1 / len(below)
    if part_a + part_b == 0:
        return Ratio(mean_a - mean_b, 0.0, float(len(above) + len(below) - 2), per_launch)
    # Shares of the whole, since the square of a small variance may be no number above 0.
    share = part_a / (part_a + part_b)
    freedom = 1 / (share**2 / (len(above) - 1) + (1 - share) ** 2 / (len(below) - 1))
    return Ratio(mean_a - mean_b, math.sqrt(part_a + part_b), freedom, per_launch)


def log_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the Student t interval of the geometric mean.

    The median of skewed values may lie outside it. None for fewer than two launches, and for
    launches equal to the last digit.
    """
    if len(values) < 2:
        return None
    mean, variance = _log_moments(values)
    error = math.sqrt(variance / len(values))
    return Ratio(mean, error, float(len(values) - 1), 1 / len(values)).interval(confidence)


def ratio_interval(
    above: Sequence[float], below: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Return Welch's interval of a ratio of geometric means, or None where no spread is known."""
    ratio = welch(above, below)
    return ratio.interval(confidence) if ratio else None


def linear_interval(terms: Sequence[tuple[float, Sequence[float]]]) -> Interval | None:
    """Return the interval of a sum of weighted means, with the freedoms of Welch and Satterthwaite.

    None where a term has fewer than two launches, and where no spread is known. A term is a weight
    and one value per launch; the terms' launches are independent.
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


def moderated(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Return the ratios of one family with the spread of their launches told by all together.

    Few launches tell little of a point's spread, many points more: each variance is drawn towards
    the family's, as far as the family's own variances agree (Smyth 2004, as in limma). The pull is
    `TRUST` of Smyth's, and no more than a point's own launches say, so that a family of quiet and
    of noisy points claims no more than it may; upwards, to `LEAST_OF_MEDIAN`, each is raised.
    Launches equal to the last digit tell the family nothing; where two other points do, they are
    drawn like the rest.
    """
    known = [ratio for ratio in ratios if ratio.error > 0]
    if len(known) < 2:
        return list(ratios)
    prior, common = _prior([ratio.spread**2 for ratio in known], [ratio.freedom for ratio in known])
    most = sum(ratio.freedom for ratio in known)
    least = math.sqrt(LEAST_OF_MEDIAN * median(ratio.spread**2 for ratio in known))
    drawn = [_drawn(ratio, TRUST * prior, common, most) for ratio in ratios]
    return [replace(o, error=max(o.spread, least) * math.sqrt(o.per_launch)) for o in drawn]


def _drawn(ratio: Ratio, prior: float, common: float, most: float) -> Ratio:
    """Return a ratio whose variance was averaged with the family's, worth so many freedoms."""
    prior = min(prior, ratio.freedom)
    own = ratio.freedom / (ratio.freedom + prior)
    spread = math.sqrt(own * ratio.spread**2 + (1 - own) * common)
    error = spread * math.sqrt(ratio.per_launch)
    return replace(ratio, error=error, freedom=min(ratio.freedom + prior, most))


def _prior(variances: Sequence[float], freedoms: Sequence[float]) -> tuple[float, float]:
    """Return how many degrees of freedom a family's variance is worth, and that variance.

    By the moments of the logarithms of variances that follow a scaled F distribution.
    """
    from scipy.special import polygamma, psi

    logs = [
        math.log(v) - float(psi(f / 2)) + math.log(f / 2)
        for v, f in zip(variances, freedoms, strict=True)
    ]
    noise = fmean(float(polygamma(1, f / 2)) for f in freedoms)
    apart = variance(logs) - noise
    freedom = 2 * _inverse_trigamma(apart) if apart > 1 / ALIKE else 2 * ALIKE
    return freedom, math.exp(fmean(logs) + float(psi(freedom / 2)) - math.log(freedom / 2))


def _inverse_trigamma(value: float) -> float:
    """Return x with trigamma(x) = value > 0, by Newton's steps on 1 / trigamma."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


def family_error(p_values: Sequence[float], error: float = 1 - CONFIDENCE) -> float:
    """Return the error rate at which each of many intervals is drawn, so that they hold together.

    Benjamini and Hochberg (1995): of m tests the R smallest p-values are taken for real whose k-th
    is at most error * k / m. Intervals at 1 - error * R / m are theirs (Benjamini and Yekutieli,
    2005): such an interval leaves 1 out exactly where its test is one of the R. Where nothing
    differs, no interval of the family leaves 1 out, but for a share `error` of families.
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
    """Return mean and unbiased variance of the logarithms; 0 within rounding."""
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    if max(logs) - min(logs) <= ROUNDING:
        return mean, 0.0
    return mean, math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1)
