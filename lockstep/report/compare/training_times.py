"""What two sides of training runs took: time of an epoch, and time to an accuracy.

The accuracy to reach is the one that both sides were given, else what every run of both comes to.
Ratios are of B over A, so below 1 B is quicker; their intervals are Welch's at 95 %, over runs or
jobs, and not corrected for the number of points. A difference in accuracy is among the quantities
that `comparison` gives of every point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from lockstep.report.compare.pairing import Pair
from lockstep.report.compute import learning, replicates
from lockstep.report.compute.statistics import Interval, ratio_interval
from lockstep.report.load.results import Row


@dataclass(frozen=True)
class Times:
    """One time of both sides.

    Attributes:
        a: Median over runs of A, in seconds; None where a run does not reach the accuracy.
        ratio: b / a; None where one is not known.
        interval: Of the ratio; None where no spread is known.
    """

    kind: str
    a: float | None
    b: float | None
    ratio: float | None
    interval: Interval | None
    accuracy: float | None = None


def times(pair: Pair) -> list[Times]:
    """Return the times of a point of training runs; nothing of other points."""
    rows = [*pair.a, *pair.b]
    if not all(row.training for row in rows):
        return []
    found = [_times("epoch", pair, learning.epoch_s, None)]
    goal = learning.target(rows)
    if goal is not None:
        found.append(_times("target", pair, lambda row: learning.reached_s(row, goal), goal))
    return found


def _times(
    kind: str, pair: Pair, value: Callable[[Row], float | None], accuracy: float | None
) -> Times:
    sides = [(rows, [one for row in rows if (one := value(row))]) for rows in (pair.a, pair.b)]
    a, b = (median(known) if len(known) == len(rows) else None for rows, known in sides)
    if a is None or b is None:
        return Times(kind, a, b, None, None, accuracy)
    below, above = (replicates.independent(rows, known) for rows, known in sides)
    return Times(kind, a, b, b / a, ratio_interval(above, below), accuracy)
