"""The rule of `lockstep compare`: faster, slower, the same, or not enough evidence.

    error   = family_error(p-values of all points whose spread of launches is known)
    interval of each point: Welch's, at the level 1 - error, its spread of launches drawn towards
                           that of all points (lockstep.report.compute.statistics); one degree
                           of freedom where both sides have fewer than six launches together
    `same`                 the interval lies within 1 / (1 + margin) to 1 + margin
    `faster`, `slower`     else, where the interval leaves 1 out
    `not-enough-evidence`  else, and wherever a side has fewer than two launches, or the launches
                           of both are equal to the last digit and no two other points show a
                           spread, or a side's repeats share one job and the other's do not
    `blocked`              an error of `lockstep check` touches results of a side; such a point is
                           left out of the family

`same` is the test of equivalence by confidence interval (Schuirmann 1987). Where nothing differs,
at most 5 % of families of points hold a `faster` or `slower`, over all looks at a campaign that
grows (`lockstep.report.looks`; `make statistics` prints what simulated campaigns give).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lockstep.report.compute.statistics import (
    CONFIDENCE,
    Interval,
    Ratio,
    family_error,
    moderated,
    t_quantile,
    welch,
)

MARGIN = 0.03
FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "same", "not-enough-evidence"
BLOCKED = "blocked"
# Power: probability of detecting a difference of the stated size.
POWER = 0.9
MOST_LAUNCHES = 1000
# If launches have two modes that are equally likely, all of A are in one mode and all of B in the
# other in 2^(1 - n) of comparisons of n launches: 12 % for four, 6 % for five, 3 % for six. Both
# sides then look quiet, so with fewer than six launches one degree of freedom is assumed.
FEW_LAUNCHES = 6


@dataclass(frozen=True)
class Judged:
    """The verdict of the rule on one point.

    Attributes:
        ratio: Median of B's rates / that of A's; from `judge`, ratio of geometric means.
        interval: Interval of the ratio at the family's level; None without a known spread.
        verdict: `faster`, `slower`, `same`, `not-enough-evidence` or `blocked`.
        test: The ratio as Welch's test sees it; None without an interval.
        error: Error rate at which the interval is drawn.
        blocked_by: Rules of the check whose errors touch the results of a side.
        is_repeated: Whether both sides have several launches.
        in_one_job: Whether the repeats of a side share a job that the other side's do not.
    """

    ratio: float
    interval: Interval | None
    verdict: str
    test: Ratio | None = None
    error: float = 1 - CONFIDENCE
    blocked_by: tuple[str, ...] = ()
    is_repeated: bool = False
    in_one_job: bool = False

    @property
    def spread(self) -> float | None:
        """Return the standard deviation of the log rate of launches; None without an interval."""
        return self.test.spread if self.test else None

    @property
    def smallest_change(self) -> float | None:
        """Return the relative difference that these launches detect with 90 % power, or None."""
        if self.test is None:
            return None
        return smallest_change(self.test.error, self.test.freedom, self.error)


def judge(
    rates: Sequence[tuple[Sequence[float], Sequence[float]]],
    margin: float = MARGIN,
    allowed: float = 1 - CONFIDENCE,
) -> tuple[list[Judged], float]:
    """Judge a family of points by the rule of this module.

    Args:
        rates: For each point, the rates of A's launches and of B's.
        margin: Largest relative difference that still counts as the same.
        allowed: Error rate of the family: share of families with a false claim.

    Returns:
        The conclusion for each point, and the error rate at which the intervals are drawn.

    Raises:
        ValueError: The margin is not between 0 and 1.
    """
    if not 0 < margin < 1:
        raise ValueError(
            f"margin {margin} is not a fraction between 0 and 1; write three per cent as 0.03"
        )
    alone = [welch(b, a) for a, b in rates]
    together = iter(moderated([test for test in alone if test]))
    tests = [next(together) if test else None for test in alone]
    tests = [
        replace(ratio, freedom=1.0) if ratio and len(a) + len(b) < FEW_LAUNCHES else ratio
        for ratio, (a, b) in zip(tests, rates, strict=True)
    ]
    error = family_error([ratio.p_value for ratio in tests if ratio and ratio.error], allowed)
    pairs = zip(tests, rates, strict=True)
    return [_judged(test, error, margin, *sides) for test, sides in pairs], error


def _judged(
    test: Ratio | None, error: float, margin: float, a: Sequence[float], b: Sequence[float]
) -> Judged:
    interval = test.interval(1 - error) if test else None
    if test is None or interval is None:
        means = [fmean(map(math.log, side)) for side in (a, b)]
        ratio = math.exp(means[1] - means[0])
        return Judged(ratio, None, UNKNOWN, is_repeated=min(len(a), len(b)) > 1)
    verdict = _verdict(interval, margin)
    return Judged(math.exp(test.log_ratio), interval, verdict, test, error, is_repeated=True)


def _verdict(interval: Interval, margin: float) -> str:
    low, high = interval
    if 1 / (1 + margin) <= low and high <= 1 + margin:
        return SAME
    if low > 1:
        return FASTER
    return SLOWER if high < 1 else UNKNOWN


def smallest_change(standard_error: float, freedom: float, error: float) -> float | None:
    """Return the relative difference that a t test detects with 90 % power.

    From the noncentral t distribution (Cohen, Statistical Power Analysis, 1988, chapter 2).

    Args:
        standard_error: Of the difference of the logarithms.
        freedom: Degrees of freedom of that error.
        error: Error rate of the test.

    Returns:
        A fraction; None if it overflows.
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

    `spread` is the standard deviation of the logarithm of a launch's rate.

    Returns:
        Launches per side; None if `MOST_LAUNCHES` are not enough.
    """
    for number in range(2, MOST_LAUNCHES + 1):
        freedom = 2 * number - 2 if 2 * number >= FEW_LAUNCHES else 1
        change = smallest_change(spread * math.sqrt(2 / number), freedom, error)
        if change is not None and change <= margin:
            return number
    return None
