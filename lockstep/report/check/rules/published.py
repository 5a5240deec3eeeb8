"""Rules about a published table alone: its ratios, and lines that are impossible or twice."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from lockstep.core.formats import TIME_UNITS
from lockstep.report.check.evidence import Evidence, Hit, hit
from lockstep.report.compute.scaling import Series
from lockstep.report.load.imports import TIMES
from lockstep.report.load.results import Row

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


def accuracy_falls(evidence: Evidence) -> Iterator[Hit]:
    """The accuracy that a table gives falls from its smallest size to its largest."""
    for series in evidence.ladders:
        reached = _column(series, ACCURACIES)
        first, last = reached.get(series.baseline), reached.get(series.points[-1].world_size)
        if first and last and first - last > LESS_ACCURATE * (100 if first > 1 else 1):
            sizes = series.points[-1].world_size
            yield hit("less-accurate", series, sizes, first=first, last=last)


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
                if len(names) > 1 and _digits(value) >= DIGITS:
                    yield hit("same-line", series, point.world_size, names=names)


def _value(row: Row, unit: float) -> str:
    """Return the value of a line as it was written, as far as it is known."""
    seconds = row.time_s or row.step_s
    return f"{row.rate:.12g}" if seconds is None else f"{seconds / unit:.12g}"


def _digits(number: str) -> int:
    """Return how many digits of a number say something: 3 of 0.0241, 1 of 1000."""
    return len(number.partition("e")[0].replace(".", "").strip("0"))
