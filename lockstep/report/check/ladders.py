"""Rules about a curve over world sizes: its sizes, its shape, and points that do not fit it.

Rules about a published table alone: its ratios, and lines that are impossible or twice.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from typing import Any

from lockstep.core.formats import TIME_UNITS, percent_span
from lockstep.report.check.evidence import UNIT, Evidence, Hit, are_apart, hit, rule
from lockstep.report.check.work import NOTABLE_LOSS
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.imports import TIMES
from lockstep.report.load.results import Row
from lockstep.report.predict.models import TOLERANCE, between, breaks, growth_interval

# Between neighbouring sizes; beyond it a curve is drawn through sizes that were not measured.
WIDEST_STEP = 2.0
# By so much a point may lie below the line through its neighbours: a curve that bends downward,
# as scaling curves do, lies above it.
OUTLIER = 0.15


@rule(
    "super-linear", "warning", "more than each rank can do alone: a slow baseline, a "
    "cache, or other work",
    "measure the baseline again with this size, and say which of them it is",
    facts={"efficiency-alone": "efficiency is {efficiency:percent}, without an interval"},
)  # fmt: skip
def super_linear(evidence: Evidence) -> Iterator[Hit]:
    """An efficiency above 1 beyond its interval, or by 5 % where there is none."""
    for series in evidence.ladders:
        for point in series.points:
            # What `unit` names is no efficiency.
            if point is series.base or point.parallel_efficiency > UNIT:
                continue
            # Where the report shows no interval, that of too few launches excuses nothing.
            grown = (
                (growth_interval(point.rates, series.base.rates, len(series.points) - 1))
                if point.efficiency_interval
                else None
            )
            factor = point.world_size / series.baseline
            span = (grown[0] / factor, grown[1] / factor) if grown else None
            low = span[0] if span else point.parallel_efficiency / (1 + TOLERANCE)
            if low > 1:
                kind = "efficiency" if span else "efficiency-alone"
                yield hit(
                    kind, series, point.world_size, efficiency=point.parallel_efficiency,
                    span=percent_span(span),
                )  # fmt: skip


@rule(
    "ladder-gap", "warning", "where the curve bends between them is not known",
    "measure the sizes between, doubling at most",
    doubts=False,
    facts={"gap": "no size between {small} and {large} was measured"},
)  # fmt: skip
def ladder_gap(evidence: Evidence) -> Iterator[Hit]:
    """Neighbouring sizes lie further apart than a factor of two."""
    sizes: dict[str, set[int]] = {}
    for row in evidence.results.rows:  # those in conflict were measured, too
        sizes.setdefault(row.case, set()).add(row.world_size)
    for series in evidence.ladders:
        for small, large in pairwise(sorted(sizes[series.case])):
            if large > WIDEST_STEP * small:
                yield hit("gap", series, small, large, small=small, large=large)


@rule(
    "no-baseline", "warning", "losses below it are hidden from every ratio",
    "measure one rank, or name the baseline next to each ratio",
    doubts=False,
    facts={"baseline": "the smallest size is {size}, so efficiency there is 1 by definition"},
)  # fmt: skip
def no_baseline(evidence: Evidence) -> Iterator[Hit]:
    """The smallest size of a curve is above 1."""
    for series in evidence.ladders:
        if series.baseline > 1:
            yield hit("baseline", series, series.baseline, size=series.baseline)


@rule(
    "break", "warning", "one curve through all points would describe neither side of it",
    "look for its cause there: a node's edge, a slow link, a shared file system",
    doubts=False,
    facts={
        "within-node": "within one node {factor:g} times the ranks give {growth:ratio} "
        "times the throughput at {below}",
        "node-shares": "within one node {factor:g} times the ranks give {growth:ratio} "
        "times the throughput at {below}, and {nodes} nodes {grown:ratio} times that of one",
    },
    actions={
        "within-node": "look at what the ranks of a node share: input workers, cores, "
        "memory, links",
        "node-shares": "look at the input first: each node brings its own workers, cores "
        "and disks",
    },
)  # fmt: skip
def broken_curve(evidence: Evidence) -> Iterator[Hit]:
    """Throughput falls, saturates, or drops at one size as it does at no other."""
    for series in evidence.ladders:
        sizes = [point.world_size for point in series.points]
        nodes = [point.rows[0].num_nodes or 0 for point in series.points]
        repeats = [point.rates for point in series.points]
        odd = {point.world_size for _, point, _ in _dips(series)}
        for break_ in breaks(sizes, repeats, nodes if all(nodes) else None):
            index = sizes.index(break_.world_size)
            # Where launches disagree, it is unknown which of them the curve goes through.
            apart = any(map(are_apart, series.points[index - 1 : index + 1]))
            if break_.world_size not in odd and not apart:
                kind, over = _within_node(series, index, nodes)
                yield hit(kind or break_.kind, series, break_.world_size, **break_.values, **over)


def _within_node(series: Series, index: int, nodes: list[int]) -> tuple[str, dict[str, Any]]:
    """Return what a break within one node is, by whether whole nodes add up; of others nothing."""
    if nodes[index] != 1 or not all(nodes):
        return "", {}
    grown = [(count, series.points[i].rate) for i, count in enumerate(nodes) if count > 1]
    over = [(count, rate / series.points[index].rate) for count, rate in grown]
    if over and all(growth > (1 - NOTABLE_LOSS) * count for count, growth in over):
        return "node-shares", {"nodes": over[-1][0], "grown": over[-1][1]}
    return "within-node", {}


@rule(
    "outlier", "warning", "scaling curves bend downward, so this point was held up",
    "measure it again, in new launches, before any curve is drawn through it",
    facts={"odd-point": "{loss:percent} below the line through {left} and {right}"},
)  # fmt: skip
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


# Published numbers are rounded.
ROUNDED = 0.05
EPOCH = "epoch_time"
SPEEDUPS = "speed_?up"
EFFICIENCIES = "(parallel_)?efficiency"
DATA = "(data(set)?|train\\w*)_(size|samples)|num_samples|samples_per_epoch"
ACCURACIES = "((final|best|val|validation|test|eval)_)*(top_?1(_acc(uracy)?)?|acc(uracy)?)"
# Ten times the 0.1 of a point by which seeds differ on ImageNet (Goyal et al. 2017, table 1).
LESS_ACCURATE = 0.01
# Repeats that agree to so many digits are one measurement, written down twice.
DIGITS = 4
# An efficiency above it is written in per cent.
LARGEST_FRACTION = 2.0


@rule(
    "published-ratio", "error", "both cannot be true of one table",
    "find out which the source measured, and correct the other",
    facts={
        "published-ratio": "its {ratio} over {baseline} is stated as {published:ratio}, "
        "but its values give {computed:ratio}",
    },
)  # fmt: skip
def published_ratio(evidence: Evidence) -> Iterator[Hit]:
    """A table's own column of speed-up or efficiency is not what its values give."""
    for series in evidence.ladders:
        computed = {p.world_size: p.speedup for p in series.points}
        yield from _held_against("speed-up", series, _column(series, SPEEDUPS), computed)
        computed = {p.world_size: p.parallel_efficiency for p in series.points}
        published = _column(series, EFFICIENCIES)
        if max(published.values(), default=0) > LARGEST_FRACTION:
            published = {size: value / 100 for size, value in published.items()}
        yield from _held_against("efficiency", series, published, computed)


def _column(series: Series, names: str) -> dict[int, float]:
    """Return the column of a table whose name the expression matches, by world size."""
    found = {point.world_size: _number(point.rows[0], names) for point in series.points}
    return {size: number for size, number in found.items() if number}


def _number(row: Row, names: str) -> float:
    """Return what a line has in the column whose name matches; 0 where that is no number."""
    for name, value in row.details.items():
        if re.fullmatch(names, re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")):
            number = str(value).strip().removesuffix("%").removesuffix("x").strip()
            return float(number) if number.replace(".", "", 1).isdecimal() else 0.0
    return 0.0


def _held_against(
    ratio: str, series: Series, published: Mapping[int, float], computed: Mapping[int, float]
) -> Iterator[Hit]:
    base = published.get(series.baseline, 1.0)
    for size, value in published.items():
        own = value / base
        if abs(own / computed[size] - 1) > ROUNDED:
            yield hit(
                "published-ratio", series, size, ratio=ratio, published=own,
                computed=computed[size], baseline=series.baseline,
            )  # fmt: skip


@rule(
    "epoch-against-run", "warning", "a run has more than its epochs, or more epochs",
    "say which of both a speed-up is of, and find out where the rest of the run goes",
    facts={
        "epoch-and-run": "an epoch is {epoch:ratio} times as fast, and the whole run "
        "{run:ratio} times",
    },
)  # fmt: skip
def epoch_against_run(evidence: Evidence) -> Iterator[Hit]:
    """An epoch and the whole run of one import have other speed-ups."""
    for part, whole in permutations((s for s in evidence.ladders if s.row.origin == "cited"), 2):
        tables = evidence.table(part), evidence.table(whole)
        metrics = tuple(table.get("metric") for table in tables)
        if metrics[0] != EPOCH or metrics[1] not in set(TIMES) - {EPOCH}:
            continue
        stated = [
            tuple(table.get(name) for table in tables) for name in ("path", "source", "model")
        ]
        runs = {point.world_size: point.speedup for point in whole.points}
        if part.baseline != whole.baseline or any(one != other for one, other in stated):
            continue
        for point in part.points:
            run = runs.get(point.world_size)
            if run and abs(point.speedup / run - 1) > ROUNDED:
                yield hit(
                    "epoch-and-run", part, point.world_size, other_table=whole.case,
                    epoch=point.speedup, run=run,
                )  # fmt: skip


@rule(
    "impossible-line", "error", "one of its numbers is wrong, or counts something else",
    "correct the line in the table, and import it again",
    facts={
        "more-nodes": "{size:rank} on {nodes} nodes, where each node has one at least",
        "small-data": "a global batch of {batch} is more than the {samples} samples of the data",
        "nodes-as-n": "{size:rank} on as many nodes are faster than {larger} on {fewer}, "
        "as where n counts nodes",
    },
)  # fmt: skip
def impossible(evidence: Evidence) -> Iterator[Hit]:
    """A line of a table has more nodes than ranks, nodes for ranks, or more batch than data."""
    tables: dict[str, list[Row]] = {}
    for row in evidence.results.rows:
        if row.origin != "measured":
            tables.setdefault(row.case, []).append(row)
    for case, lines in tables.items():
        for row in lines:
            for kind, values in _faults(row, lines):
                yield Hit(kind, values, (case,), (row.world_size,), is_table=True)


def _faults(row: Row, lines: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is impossible in one of a table's lines: kind and values of the fact."""
    size, nodes, batch = row.world_size, row.num_nodes or 0, row.global_batch or 0
    of_run = (row.time_s or 0) * (row.throughput_samples_per_s or 0)
    samples = round(_number(row, DATA) or of_run)
    if nodes > size:
        yield "more-nodes", {"size": size, "nodes": nodes}
    if 0 < samples < batch:
        yield "small-data", {"batch": batch, "samples": samples}
    # n counts nodes there, where it has as many as more ranks on fewer nodes are slower.
    larger = [one for one in lines if one.world_size > size > (one.num_nodes or size)]
    slower = [one for one in larger if nodes == size and one.rate < row.rate]
    if slower:
        one = slower[-1]
        yield "nodes-as-n", {"size": size, "larger": one.world_size, "fewer": one.num_nodes}


@rule(
    "less-accurate", "warning", "more ranks are faster and learn less, so the speed-up is "
    "not one of the same training",
    "quote the accuracy beside it, or compare the times to one accuracy",
    doubts=False,
    facts={"less-accurate": "the accuracy falls from {first:.4g} to {last:.4g}"},
)  # fmt: skip
def accuracy_falls(evidence: Evidence) -> Iterator[Hit]:
    """The accuracy that a table gives falls from its smallest size to its largest."""
    for series in evidence.ladders:
        reached = _column(series, ACCURACIES)
        first, last = reached.get(series.baseline), reached.get(series.points[-1].world_size)
        if first and last and first - last > LESS_ACCURATE * (100 if first > 1 else 1):
            sizes = series.points[-1].world_size
            yield hit("less-accurate", series, sizes, first=first, last=last)


@rule(
    "duplicate-line", "error", "a line written twice is no repeat, and hides the noise",
    "remove one of the lines",
    facts={"same-line": "{names} hold the same value to the last digit"},
)  # fmt: skip
def line_twice(evidence: Evidence) -> Iterator[Hit]:
    """A line of a table occurs twice, equal to a digit that no repeat would be."""
    for series in evidence.series:
        if series.row.origin == "measured":
            continue
        unit = TIME_UNITS.get(str(evidence.table(series).get("unit")), 1.0)
        for point in series.points:
            lines: dict[tuple[str, str], list[str]] = {}
            for row in point.rows:
                lines.setdefault((_value(row, unit), str(row.details)), []).append(row.launch)
            for (value, _), names in lines.items():
                if (
                    len(names) > 1
                    and (len(value.partition("e")[0].replace(".", "").strip("0"))) >= DIGITS
                ):
                    yield hit("same-line", series, point.world_size, names=names)


def _value(row: Row, unit: float) -> str:
    """Return the value of a line as it was written, as far as it is known."""
    seconds = row.time_s or row.step_s
    return f"{row.rate:.12g}" if seconds is None else f"{seconds / unit:.12g}"
