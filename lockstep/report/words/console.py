"""The points of a report as lines for a terminal of 80 to 120 columns."""

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted, in_words, number, percent, ratio
from lockstep.core.studies import LADDERS
from lockstep.report.check.curve_rules import rates_of_times, tables_apart
from lockstep.report.check.evidence import Evidence
from lockstep.report.compute.scaling import Point, Series, launches_to_show, no_interval
from lockstep.report.load.results import Results
from lockstep.report.page import parts
from lockstep.report.words import ranking_card, training_words
from lockstep.report.words.lines import numbers, sentence
from lockstep.report.words.names import name_of

NARROWEST, WIDEST = 80, 120
MAX_LINES = 60


def console_table(
    results: Results, series: Sequence[Series], width: int | None = None
) -> list[str]:
    """Return the points of the scaling series as aligned lines, a header first.

    A long name of a series has a line of its own. The width is the terminal's, from 80 to 120.
    """
    columns = width or min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
    lines = []
    if shown := _shown(tables_apart(Evidence(results, list(series)))):
        names = [name_of(curve) for curve in shown]
        if len(set(names)) < len(names):
            names = [curve.case for curve in shown]
        lines = _lines(names, *_cells(results, series, shown), columns)
    if trained := training_words.ordered(series):
        shared = training_words.common(trained, training_words.varied(trained))
        lines += [*[""] * bool(lines), *_lines(*training_words.for_terminal(trained), columns)]
        lines += sentence(f"all runs: {shared}", columns)
    return lines


def point_lines(results: Results, series: Sequence[Series]) -> list[str]:
    """Return the table, as far as a terminal has room for it, and the notes below it."""
    lines = console_table(results, series)
    if more := lines[MAX_LINES + 1 :]:
        lines[MAX_LINES + 1 :] = [f"... {len(more)} further lines: use --csv"]
    whys = dict.fromkeys(
        f"{no_interval(point, curve.base)}; measure "
        + launches_to_show(curve.base, {point: point.world_size / curve.baseline}, or_tied=True)
        for curve in _shown(series) for point in curve.points
        if curve.row.origin == "measured" and curve.is_compared and point is not curve.base
        and point.efficiency_interval is None and not point.blocked_by
    )  # fmt: skip
    for why in whys:
        lines += sentence(f"efficiency ({formats.DASH}): {why}.", NARROWEST)
    # Hours for a number of samples use the mean step; a note says so.
    points = [point for curve in _shown(series) for point in curve.points if point.step_s]
    if works := sorted({point.device_hours_per or "run" for point in points} - {"run"}):
        hours = f"{formats.capital(results.hours)} per {formats.listed(works)}"
        lines += sentence(parts.cost_note(hours, points), NARROWEST)
    return [*lines, *ranking_card.rate_lines(series), *ranking_card.own_cards(series)]


def verdict(page: Mapping[str, Any]) -> list[str]:
    """Return the headlines of a page and what to do next, as lines of 80 columns."""
    texts: list[str] = []
    for each in page["headlines"]:
        title = ", ".join(filter(None, (each["title"], each["of"])))
        texts += ["", f"{title}:", *(f"  {line}" for line in each["lines"])]
        if each["others"]:
            texts.append(f"  {counted(len(each['others']), 'more headline')} on the page")
    texts += ["", page["band"]] if page["band"] else []
    texts += ["", f"next: {page['next']}"]
    return [line for text in texts for line in sentence(text, NARROWEST) or [""]]


def _shown(series: Sequence[Series]) -> list[Series]:
    others = [curve for curve in series if curve.row.training is None]
    return [
        curve for curve in others if curve.row.study in LADDERS or curve.row.origin != "measured"
    ] or others


def _lines(
    names: Sequence[str], header: Sequence[str], cells: Sequence[Sequence[Sequence[str]]],
    columns: int,
) -> list[str]:  # fmt: skip
    """Return aligned lines, a header first; long names are lines of their own."""
    rows = [[name, *line] for name, own in zip(names, cells, strict=True) for line in own]
    lines = numbers([["series", *header], *rows])
    if max(map(len, lines)) <= columns:
        return lines
    first, *aligned = numbers([["", *header], *(["", *row[1:]] for row in rows)])
    lines = [first]
    for name, own in zip(names, cells, strict=True):
        lines += [*sentence(name, columns), *aligned[: len(own)]]
        del aligned[: len(own)]
    return lines


def _cells(
    results: Results, series: Sequence[Series], shown: Sequence[Series]
) -> tuple[list[str], list[list[list[str]]]]:
    points = [(curve, point) for curve in shown for point in curve.points]
    # A throughput of the same runs stands in the row of their time.
    beside = {
        (case, point.world_size): (rate, point)
        for case, rate in rates_of_times(Evidence(results, list(series))).items()
        for point in rate.points
    }  # fmt: skip
    pairs = [beside.get((curve.case, p.world_size), (curve, p)) for curve, p in points]
    timed, rated = [p for _, p in points], [p for _, p in pairs]
    # Hours per run and hours per million samples have separate columns.
    hours = {
        name: [
            formats.trimmed(p.device_hours if (p.device_hours_per == "run") == is_run else None)
            for p in (timed if is_run else rated)
        ]
        for name, is_run in ((results.hours, True), (f"{results.hours[:-4]}/1e6", False))
    }
    columns = {
        "n": [", ".join(filter(None, (str(p.world_size), curve.layout))) for curve, p in points],
        "speed-up": [_relative(curve, p, ratio(p.speedup)) for curve, p in points],
        "efficiency": [
            _relative(curve, p, parts.efficiency_cell(p)) for curve, p in points
        ],
        **hours,
        "throughput": [_throughput(*pair) for pair in pairs],
        "step time": [
            formats.DASH if p.step_s is None else f"{number(p.step_s * parts.MILLI)} ms"
            for _, p in points
        ],
        "cost": [number(point.cost) for _, point in points],
        "time": [in_words(point.time_s) for _, point in points],
        "weak view": [
            f"{percent(p.time_ratio)} %"
            if curve.row.scaling == "fixed-epochs" and p.time_ratio is not None else formats.DASH
            for curve, p in points
        ],
    }  # fmt: skip
    kept = {name: cells for name, cells in columns.items() if set(cells) != {formats.DASH}}
    lines = iter(zip(*kept.values(), strict=True))
    return list(kept), [[list(next(lines)) for _ in curve.points] for curve in shown]


def _relative(series: Series, point: Point, text: str) -> str:
    """Return a ratio to the baseline, `baseline` for the baseline itself, a dash if unknown."""
    is_alone = len(series.points) == 1 and series.main is None
    if is_alone or not series.is_compared:
        return formats.DASH
    return "baseline" if point is series.base else parts.ratio_cell(point, text)


def _throughput(series: Series, point: Point) -> str:
    through = point.throughput_samples_per_s
    if through is None:
        return formats.DASH if point.time_s or point.step_s else parts.absolute(point)
    return f"{number(through)} {series.row.sample_unit}/s"
