"""The rule of `lockstep compare`: faster, slower, the same, or not enough evidence.

`judge` has the rule; docs/numbers.md says what each verdict means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from lockstep.report.compute.statistics import (
    CONFIDENCE,
    FEW_LAUNCHES,
    Interval,
    Ratio,
    family_error,
    moderate,
    smallest_change,
    welch,
)

MARGIN = 0.03
FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "same", "not-enough-evidence"
BLOCKED = "blocked"


@dataclass(frozen=True)
class Judged:
    """The verdict of the rule on one point.

    Attributes:
        ratio: Median of B's rates / that of A's; `judge` returns the ratio of geometric means.
        interval: Interval of the ratio at 1 - `error`; None without a known spread.
        test: The ratio as Welch's test sees it; None without an interval.
        is_repeated: Whether both sides have several launches.
        in_one_job: Whether the repeats of a side share a job in which the other side did not run.
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


def side_of(interval: Interval, limits: Interval) -> Literal["below", "within", "above", "across"]:
    """Return the side of the limits on which a closed interval lies, or `across` a limit."""
    (low, high), (least, most) = interval, limits
    if high < least:
        return "below"
    if low > most:
        return "above"
    return "within" if low >= least and high <= most else "across"


def judge(
    rates: Sequence[tuple[Sequence[float], Sequence[float]]],
    margin: float = MARGIN,
    allowed: float = 1 - CONFIDENCE,
) -> tuple[list[Judged], float]:
    """Judge a family of points, so that at most a share `allowed` of equal families gets a claim.

    The interval of a point is Welch's at the level 1 - `family_error`, its spread shrunk towards
    that of all points (`moderate`). The point is the same if the interval lies within
    1 / (1 + margin) to 1 + margin (Schuirmann 1987), else faster or slower if it leaves 1 out. It
    has no interval if a side has fewer than two launches, or the launches of both are equal to the
    last digit and no two other points show a spread.

    `rates` are, for each point, those of A's launches and of B's. Also returned is the error rate
    at which the intervals are drawn. A margin that is not between 0 and 1 raises ValueError.
    """
    if not 0 < margin < 1:
        raise ValueError(
            f"margin {margin} is not a fraction between 0 and 1; write three per cent as 0.03"
        )
    alone = [welch(b, a) for a, b in rates]
    together = iter(moderate([test for test in alone if test]))
    tests = [next(together) if test else None for test in alone]
    tests = [
        replace(ratio, freedom=1.0) if ratio and len(a) + len(b) < FEW_LAUNCHES else ratio
        for ratio, (a, b) in zip(tests, rates, strict=True)
    ]
    error = family_error([ratio.p_value for ratio in tests if ratio and ratio.error], allowed)
    judged = []
    for test, (a, b) in zip(tests, rates, strict=True):
        interval = test.interval(1 - error) if test else None
        if test is None or interval is None:
            ratio = math.exp(fmean(map(math.log, b)) - fmean(map(math.log, a)))
            is_repeated = min(len(a), len(b)) > 1
            judged.append(Judged(ratio, None, UNKNOWN, is_repeated=is_repeated))
            continue
        verdict = {"above": FASTER, "below": SLOWER}.get(side_of(interval, (1.0, 1.0)), UNKNOWN)
        if side_of(interval, (1 / (1 + margin), 1 + margin)) == "within":
            verdict = SAME
        ratio = math.exp(test.log_ratio)
        judged.append(Judged(ratio, interval, verdict, test, error, is_repeated=True))
    return judged, error
