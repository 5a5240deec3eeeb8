"""Rules about a curve over world sizes: its sizes, its shape, and points that do not fit it."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from lockstep.core.formats import percent_span
from lockstep.report.check.evidence import UNIT, Evidence, Hit, are_apart, hit
from lockstep.report.check.rules.work import NOTABLE_LOSS
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval
from lockstep.report.predict.ladder_rules import between
from lockstep.report.predict.models import TOLERANCE, breaks, growth_interval

# Between neighbouring sizes; beyond it a curve is drawn through sizes that were not measured.
WIDEST_STEP = 2.0
# By so much a point may lie below the line through its neighbours: a curve that bends downward,
# as scaling curves do, lies above it.
OUTLIER = 0.15


def super_linear(evidence: Evidence) -> Iterator[Hit]:
    """An efficiency above 1 beyond its interval, or by 5 % where there is none."""
    for series in evidence.ladders:
        for point in series.points:
            # What `unit` names is no efficiency.
            if point is series.base or point.parallel_efficiency > UNIT:
                continue
            # Where the report shows no interval, that of too few launches excuses nothing.
            grown = _growth(series, point, series.base) if point.efficiency_interval else None
            factor = point.world_size / series.baseline
            span = (grown[0] / factor, grown[1] / factor) if grown else None
            low = span[0] if span else point.parallel_efficiency / (1 + TOLERANCE)
            if low > 1:
                kind = "efficiency" if span else "efficiency-alone"
                yield hit(
                    kind, series, point.world_size, efficiency=point.parallel_efficiency,
                    span=percent_span(span),
                )  # fmt: skip


def _growth(series: Series, point: Point, other: Point) -> Interval | None:
    """Return the interval of a ratio of rates that holds with those of the series' other points."""
    return growth_interval(point.rates, other.rates, len(series.points) - 1)


def ladder_gap(evidence: Evidence) -> Iterator[Hit]:
    """Neighbouring sizes lie further apart than a factor of two."""
    sizes: dict[str, set[int]] = {}
    for row in evidence.results.rows:  # those in conflict were measured, too
        sizes.setdefault(row.case, set()).add(row.world_size)
    for series in evidence.ladders:
        for small, large in pairwise(sorted(sizes[series.case])):
            if large > WIDEST_STEP * small:
                yield hit("gap", series, small, large, small=small, large=large)


def no_baseline(evidence: Evidence) -> Iterator[Hit]:
    """The smallest size of a curve is above 1."""
    for series in evidence.ladders:
        if series.baseline > 1:
            yield hit("baseline", series, series.baseline, size=series.baseline)


def broken_curve(evidence: Evidence) -> Iterator[Hit]:
    """Throughput falls, saturates, or drops at one size as it does at no other."""
    for series in evidence.ladders:
        sizes = [point.world_size for point in series.points]
        nodes = [point.rows[0].num_nodes or 0 for point in series.points]
        repeats = [point.rates for point in series.points]
        odd = {point.world_size for _, point, _ in _dips(series)}
        for found in breaks(sizes, repeats, nodes if all(nodes) else None):
            index = sizes.index(found.world_size)
            # Where launches disagree, it is unknown which of them the curve goes through.
            apart = any(map(are_apart, series.points[index - 1 : index + 1]))
            if found.world_size not in odd and not apart:
                kind, over = _within_node(series, index, nodes)
                yield hit(kind or found.kind, series, found.world_size, **found.values, **over)


def _within_node(series: Series, index: int, nodes: list[int]) -> tuple[str, dict[str, Any]]:
    """Return what a break within one node is, by whether whole nodes add up; of others nothing."""
    if nodes[index] != 1 or not all(nodes):
        return "", {}
    grown = [(count, series.points[i].rate) for i, count in enumerate(nodes) if count > 1]
    over = [(count, rate / series.points[index].rate) for count, rate in grown]
    if over and all(growth > (1 - NOTABLE_LOSS) * count for count, growth in over):
        return "node-shares", {"nodes": over[-1][0], "grown": over[-1][1]}
    return "within-node", {}


def outlier(evidence: Evidence) -> Iterator[Hit]:
    """A point lies well below the line through its neighbours, and the next is well again."""
    for series in evidence.ladders:
        for left, point, right in _dips(series):
            expected = _between(left, right, point.world_size)
            yield hit(
                "odd-point", series, point.world_size, loss=1 - point.rate / expected,
                left=left.world_size, right=right.world_size,
            )  # fmt: skip


def _dips(series: Series) -> Iterator[tuple[Point, Point, Point]]:
    """Yield each odd point between its neighbours."""
    points = series.points
    for left, point, right in zip(points, points[1:], points[2:], strict=False):
        low = point.rate < (1 - OUTLIER) * _between(left, right, point.world_size)
        # A point below all before it, or with all after it as low, is a break and no odd point.
        grown = right.rate / point.rate / (right.world_size / point.world_size)
        recovers = point.rate > left.rate and grown > 1 + TOLERANCE
        if low and recovers and not any(map(are_apart, (left, point, right))):
            yield left, point, right


def _between(left: Point, right: Point, size: int) -> float:
    """Return the rate at a size on the straight line, of logarithms, through two points."""
    sizes, rates = (left.world_size, right.world_size), (left.rate, right.rate)
    return between(sizes, rates, size)
