"""Rules about a curve over world sizes: its sizes, its shape, and points that do not fit it."""

import math
from collections.abc import Iterator
from itertools import pairwise

from reports.check.evidence import Evidence, Hit, at
from reports.formats import percent, percent_span
from reports.models import breaks
from reports.scaling import Point, Series
from reports.statistics import CONFIDENCE, Interval, welch

# Between neighbouring sizes; beyond it a curve is drawn through what nobody measured.
WIDEST_STEP = 2.0
# By so much an efficiency without an interval may exceed 1.
TOLERANCE = 0.05
# By so much a point may lie below the line through its neighbours: a curve that bends downward,
# as scaling curves do, lies above it.
OUTLIER = 0.15


def super_linear(evidence: Evidence) -> Iterator[Hit]:
    """An efficiency above 1 beyond its interval, or by 5 % where there is none."""
    for one in evidence.ladders:
        for point in one.points:
            interval = _held_together(one, point)
            low = interval[0] if interval else point.parallel_efficiency / (1 + TOLERANCE)
            if point.world_size != one.baseline and low > 1:
                span = f" ({percent_span(interval)} %)" if interval else ", without an interval"
                yield Hit(
                    at(one, point.world_size),
                    f"efficiency is {percent(point.parallel_efficiency)} %{span}",
                )


def _held_together(series: Series, point: Point) -> Interval | None:
    """Return the interval of an efficiency that holds with those of the series' other points.

    By Bonferroni, so that clean data are not accused one time in twenty for each of many points.
    """
    between = welch(point.rates, series.base.rates)
    if between is None or point is series.base:
        return None
    tests = len(series.points) - 1
    low, high = between.interval(1 - (1 - CONFIDENCE) / tests)
    factor = point.world_size / series.baseline
    return low / factor, high / factor


def ladder_gap(evidence: Evidence) -> Iterator[Hit]:
    """Neighbouring sizes lie further apart than a factor of two."""
    for one in evidence.ladders:
        for small, large in pairwise(point.world_size for point in one.points):
            if large > WIDEST_STEP * small:
                yield Hit(at(one, small, large), f"nothing stands between {small} and {large}")


def no_baseline(evidence: Evidence) -> Iterator[Hit]:
    """The smallest size is above 1, or above that of the other cases of its study."""
    for one in evidence.ladders:
        if one.baseline > 1:
            yield Hit(
                at(one, one.baseline),
                f"the smallest size is {one.baseline}, so efficiency there is 1 by definition",
            )


def broken_curve(evidence: Evidence) -> Iterator[Hit]:
    """Throughput falls, saturates, or drops at one size as it does at no other."""
    for one in evidence.ladders:
        sizes = [point.world_size for point in one.points]
        rates = [point.rate for point in one.points]
        nodes = [point.rows[0].num_nodes or 0 for point in one.points]
        for size, what in breaks(sizes, rates, nodes if all(nodes) else None):
            yield Hit(at(one, size), what)


def outlier(evidence: Evidence) -> Iterator[Hit]:
    """A point lies well below the line through its neighbours."""
    for one in evidence.ladders:
        for left, point, right in zip(one.points, one.points[1:], one.points[2:], strict=False):
            expected = _between(left, right, point.world_size)
            # At a size that falls below all before it stands a break, and no odd point.
            if point.rate < (1 - OUTLIER) * expected and point.rate > left.rate:
                yield Hit(
                    at(one, point.world_size),
                    f"{percent(1 - point.rate / expected)} % below the line through "
                    f"{left.world_size} and {right.world_size}",
                )


def _between(left: Point, right: Point, size: int) -> float:
    """Return the rate at a size on the straight line, of logarithms, through two points."""
    share = math.log(size / left.world_size) / math.log(right.world_size / left.world_size)
    return math.exp((1 - share) * math.log(left.rate) + share * math.log(right.rate))
