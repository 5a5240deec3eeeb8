"""The points of a report as lines for a terminal of 80 to 120 columns."""

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import in_words, number, percent, ratio
from lockstep.core.studies import LADDERS
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.results import Results
from lockstep.report.page import parts
from lockstep.report.words import ranking_card, training_words
from lockstep.report.words.lines import numbers, sentence

NARROWEST, WIDEST = 80, 120
MAX_LINES = 60


def console_table(
    results: Results, series: Sequence[Series], width: int | None = None
) -> list[str]:
    """Return the points of the scaling series as aligned lines, a header first.

    A series' name has a line of its own where it leaves its numbers no room. Without a width the
    terminal is asked, and 80 to 120 columns are taken.
    """
    columns = width or min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    trained = training_words.ordered(series)
    shown = _shown(series)
    lines = _lines(_names(shown), *_cells(results, shown), columns) if shown else []
    if not trained:
        return lines
    return [*lines, *[""] * bool(lines), *_training(trained, columns)]


def point_lines(results: Results, series: Sequence[Series]) -> list[str]:
    """Return the table, as far as a terminal has room for it, and what belongs below it."""
    lines = console_table(results, series)
    if len(lines) > MAX_LINES + 1:
        left = len(lines) - MAX_LINES - 1
        lines = [*lines[: MAX_LINES + 1], f"... {left} further lines: use --csv"]
    return [*lines, *cost_lines(results, series), *ranking_card.rate_lines(series)]


def cost_lines(results: Results, series: Sequence[Series]) -> list[str]:
    """Return at which step the table's hours are, where they are of samples."""
    points = [point for curve in _shown(series) for point in curve.points if point.step_s]
    if {point.device_hours_per for point in points} <= {None, "run"}:
        return []
    return sentence(parts.cost_note(_unit_of_cost(results), points), NARROWEST)


def _shown(series: Sequence[Series]) -> list[Series]:
    """Return the ladders and what was not measured here; where there are none, all but training."""
    others = [curve for curve in series if curve.row.training is None]
    return [
        curve for curve in others if curve.row.study in LADDERS or curve.row.origin != "measured"
    ] or others


def _training(series: Sequence[Series], columns: int) -> list[str]:
    """Return the rows of training runs, and what all have in common."""
    lines = _lines(*training_words.for_terminal(series), columns)
    shared = training_words.common(series, training_words.varied(series))
    return [*lines, *sentence(f"all runs: {shared}", columns)]


def _lines(
    names: Sequence[str], header: Sequence[str], cells: Sequence[Sequence[Sequence[str]]],
    columns: int,
) -> list[str]:  # fmt: skip
    """Return aligned lines, a header first; names stand apart where numbers need the room."""
    rows = [[name, *line] for name, one in zip(names, cells, strict=True) for line in one]
    lines = numbers([["series", *header], *rows])
    return lines if max(map(len, lines)) <= columns else _grouped(header, names, cells, columns)


def verdict(page: Mapping[str, Any]) -> list[str]:
    """Return what a page says first, as lines of 80 columns: each study, and what to do next."""
    lines: list[str] = []
    for one in page["headlines"]:
        lines += ["", *sentence(f"{one['title']}, {one['of']}:", NARROWEST)]
        lines += [part for line in one["lines"] for part in sentence(f"  {line}", NARROWEST)]
        if one["others"]:
            lines.append(f"  {len(one['others'])} more on the page")
    if page["band"]:
        lines += ["", *sentence(page["band"], NARROWEST)]
    return [*lines, "", *sentence(f"next: {page['next']}", NARROWEST)]


def _names(shown: Sequence[Series]) -> list[str]:
    """Return what each series is called, as a target may name it."""
    names = [curve.name for curve in shown]
    return names if len(set(names)) == len(names) else [curve.case for curve in shown]


def _cells(results: Results, shown: Sequence[Series]) -> tuple[list[str], list[list[list[str]]]]:
    """Return the names of the columns of numbers, and each series' lines of them."""
    points = [(curve, point) for curve in shown for point in curve.points]
    columns = {
        "n": [", ".join(filter(None, (str(p.world_size), curve.layout))) for curve, p in points],
        "speed-up": [_relative(curve, p, ratio(p.speedup)) for curve, p in points],
        "efficiency": [
            _relative(curve, p, f"{percent(p.parallel_efficiency)} %") for curve, p in points
        ],
        **_hours(_unit_of_cost(results), [point for _, point in points]),
        "throughput": [_throughput(curve, point) for curve, point in points],
        "step time": [_step(point) for _, point in points],
        "cost": [number(point.cost) for _, point in points],
        "time": [in_words(point.time_s) for _, point in points],
        "weak view": [_weak_view(curve, point) for curve, point in points],
    }
    kept = {name: cells for name, cells in columns.items() if set(cells) != {formats.DASH}}
    lines = iter(zip(*kept.values(), strict=True))
    return list(kept), [[list(next(lines)) for _ in curve.points] for curve in shown]


def _hours(unit: str, points: Sequence[Point]) -> dict[str, list[str]]:
    """Return what points take of the machine, of a run and of so many samples apart."""
    kinds = dict.fromkeys(p.device_hours_per for p in points if p.device_hours_per)
    return {
        (unit if per == "run" else f"{unit}/{per}"): [
            formats.trimmed(p.device_hours if p.device_hours_per == per else None) for p in points
        ]
        for per in kinds
    }


def _unit_of_cost(results: Results) -> str:
    return "rank-hours" if results.on_cpus else "GPU-hours"


def _relative(series: Series, point: Point, text: str) -> str:
    """Return a ratio to the baseline, `baseline` for that, and a dash where there is none."""
    alone = len(series.points) == 1 and series.main is None
    if alone or not series.is_compared:
        return formats.DASH
    return "baseline" if point is series.base else parts.allowed(point, text)


def _throughput(series: Series, point: Point) -> str:
    through = point.throughput_samples_per_s
    if through is None:
        return formats.DASH if point.time_s or point.step_s else parts.absolute(point)
    return f"{number(through)} {series.row.sample_unit}/s"


def _step(point: Point) -> str:
    return formats.DASH if point.step_s is None else f"{number(point.step_s * parts.MILLI)} ms"


def _weak_view(series: Series, point: Point) -> str:
    fixed = series.row.scaling == "fixed-epochs" and point.time_ratio is not None
    return f"{percent(point.time_ratio)} %" if fixed else formats.DASH


def _grouped(
    header: Sequence[str],
    names: Sequence[str],
    cells: Sequence[Sequence[Sequence[str]]],
    columns: int,
) -> list[str]:
    """Return each series' name in a line of its own, its points below."""
    aligned = iter(numbers([["", *header], *(["", *line] for cell in cells for line in cell)]))
    lines = [next(aligned)]
    for name, one in zip(names, cells, strict=True):
        lines += [*sentence(name, columns), *(next(aligned) for _ in one)]
    return lines
