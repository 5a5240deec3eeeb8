"""Rules about a published table alone: its own ratios, and lines that occur twice."""

from collections.abc import Iterator, Mapping
from itertools import permutations

from lockstep.report.check.evidence import Evidence, Hit, hit
from lockstep.report.compute.scaling import Series
from lockstep.report.load.imports import TIMES
from lockstep.report.load.results import Row
from lockstep.vocabulary.text.durations import TIME_UNITS

# Published numbers are rounded.
ROUNDED = 0.05
EPOCH = "epoch_time"
SPEEDUPS = ("speedup", "speed_up", "speed-up")
EFFICIENCIES = ("efficiency", "parallel_efficiency")
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


def _column(series: Series, names: tuple[str, ...]) -> dict[int, float]:
    """Return the column of a table that has one of these names, by world size."""
    found = {}
    for point in series.points:
        details = {name.lower(): value for name, value in point.rows[0].details.items()}
        text = next((str(details[name]) for name in names if name in details), "")
        number = text.strip().removesuffix("%").removesuffix("x").strip()
        if number.replace(".", "", 1).isdecimal() and float(number) > 0:
            found[point.world_size] = float(number)
    return found


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
