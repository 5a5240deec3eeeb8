"""What panels are made of: tables of formatted cells, curves, and the text that names a baseline.

A panel is a dict of id, title, origin, lead sentences, figures, tables and notes. Figures are
descriptions that `lockstep.report.page.figures` draws. Nothing here knows HTML.

A section shows its main table and first figures; a reader opens the others, each of which has a
line with its finding, so that no verdict is hidden.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import (
    counted,
    in_words,
    listed,
    number,
    percent,
    percent_span,
    ratio,
    span,
)
from lockstep.core.studies import LADDERS
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval
from lockstep.report.load.results import Row

Panel = dict[str, Any]
Table = dict[str, Any]
Figure = dict[str, Any]
Cell = Callable[[Point], str]

# What a page can hold and still be read; the rest is in --csv.
MAX_CURVES = 6
MAX_TABLES = 80
MAX_ROWS = 200

# Name of the column whose cells are numbers of flags, each a link to what it says.
FLAGS = "Flags"

MILLI = 1e3
KILO = 1e3
MICRO = 1e6
GIGA = 1e9
MEGA = 1e6

# Of what nobody measured here, by its origin.
ORIGINS = {"cited": "Cited numbers", "target": "Targets"}


def panel(study: str, title: str, origin: str = "measured", **parts: Any) -> Panel:
    """Return a panel with the parts given and empty lists for the others."""
    empty: Panel = {"lead": [], "figures": [], "tables": [], "notes": []}
    return {"id": study, "title": title, "origin": origin} | empty | parts


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0,
    prints_all: str = "--csv", **more: Any,
) -> Table:  # fmt: skip
    """Return a table; its first `texts` columns are text, the others numbers.

    Columns in which every cell is unknown are left out, and rows beyond `MAX_ROWS`, which
    `prints_all` prints where it is not empty. `more` may hold a `note`; `folded`, true of a table
    that a reader opens, with the `finding` that its line says, the `group` of tables it opens with,
    and whether it `prints`; and `row_ids`, a name for each row that links lead to: it has them all.
    """
    if len(rows) > MAX_ROWS and "row_ids" not in more:
        rest = f"; {prints_all} prints all" if prints_all else ""
        text = f"The first {MAX_ROWS} of {len(rows)} rows{rest}."
        rows, more["note"] = rows[:MAX_ROWS], " ".join(filter(None, (more.get("note"), text)))
    kept = [i for i in range(len(columns)) if any(row[i] not in ("", formats.DASH) for row in rows)]
    heads = []
    for i in kept:
        label, _, unit = columns[i].partition(" (")
        heads.append({"label": label, "unit": unit.rstrip(")"), "text": i < texts,
                      "links": columns[i] == FLAGS})  # fmt: skip
    cells = [[row[i] for i in kept] for row in rows]
    return {"caption": caption, "columns": heads, "rows": cells, **more}


def point_table(
    caption: str, columns: Mapping[str, Cell], points: Iterable[Point], texts: int = 0, **more: Any
) -> Table:
    """Return a table with a row for each point, see `table`."""
    rows = [[cell(point) for cell in columns.values()] for point in points]
    return table(caption, list(columns), rows, texts, **more)


def shown(value: object) -> str:
    """Return a value as a cell: a dash where it is unknown."""
    return formats.DASH if value is None else str(value)


def cost_note(hours: str, points: Iterable[Point]) -> str:
    """Say at which step a cost is, whose table has another beside it, and which are unsure."""
    long = [p for p in points if any(flag.kind == "long-round" for flag in p.flags)]
    places = listed(list(dict.fromkeys(f"{p.rows[0].case} at {p.world_size}" for p in long)), 3)
    unsure = f" Those of {places} rest on a long round: measure again." if long else ""
    return f"{hours} are at the mean step, since a cost adds up; step times are medians.{unsure}"


def flagged(point: Point) -> str:
    """Return a point's flags as a cell: their numbers in the page's table of flags."""
    return " ".join(map(str, point.flag_numbers))


def allowed(point: Point, text: str, base: Point | None = None) -> str:
    """Return a ratio as a cell: a dash where an error of the check forbids it.

    It is to `base`, if that is another point than the baseline of its series.
    """
    return formats.DASH if point.blocked_by or (base and base.blocked_by) else text


def share(rows: Sequence[Row], name: str) -> str:
    """Return what `quantities` has of rows as a cell in per cent."""
    values = quantities.values(rows, name)
    return percent(quantities.centre(values, name) if values else None)


def memory(point: Point) -> str:
    """Return the peak memory of a point in GB."""
    peak = point.peak_memory_bytes
    return number(peak / GIGA if peak else None)


# The columns that tables of points share, by their headings.
CELLS: dict[str, Cell] = {
    "Ranks": lambda p: str(p.world_size),
    "Nodes": lambda p: shown(p.rows[0].num_nodes),
    "Launches": lambda p: str(p.num_launches),
    "Step time (ms)": lambda p: number(p.step_s, scale=MILLI),
    "95 % interval (ms)": lambda p: span(p.step_interval, MILLI),
    "Speed-up": lambda p: allowed(p, ratio(p.speedup)),
    "Efficiency (%)": lambda p: allowed(p, percent(p.parallel_efficiency)),
    "95 % interval (%)": lambda p: allowed(p, percent_span(p.efficiency_interval)),
    "Time ratio": lambda p: allowed(p, ratio(p.time_ratio)),
    "Memory (GB)": memory,
    FLAGS: flagged,
}


def cells(*headings: str) -> dict[str, Cell]:
    """Return the shared columns of these headings."""
    return {heading: CELLS[heading] for heading in headings}


def ms(seconds: float) -> str:
    """Return milliseconds that a step takes or loses, of which there are none below 0."""
    return number(max(seconds, 0.0) * MILLI)


def ms_span(interval: Interval | None) -> str:
    """Return an interval in milliseconds; a dash for None."""
    return f"{ms(interval[0])} to {ms(interval[1])}" if interval else formats.DASH


def sound(series: Sequence[Series]) -> list[Series]:
    """Return the series whose ratios no error of the check forbids."""
    return [curve for curve in series if not any(point.blocked_by for point in curve.points)]


def baseline_text(series: Series) -> str:
    """Name a series' baseline with its absolute performance."""
    base = series.base
    noun = "rank" if series.row.origin == "measured" else "device"
    return f"{counted(base.world_size, noun)} at {absolute(base)}"


def repeat_text(series: Series) -> str:
    """Say why intervals are missing, and at which sizes they are of one job alone."""
    text = ""
    bare = [p for p in series.points if p.num_launches > 1 and p.rate_interval is None]
    if all(point.num_launches == 1 for point in series.points):
        text = " No repeat: no interval."
    elif series.base.num_launches == 1:
        text = " The baseline has no repeat: no interval of ratios."
    elif any(len(set(point.rates)) == 1 for point in bare):
        text = " No interval where launches are equal to the last digit: no spread is known."
    elif bare:
        text = " No interval where the launches differ too much for their number: repeat them."
    if sizes := [point.world_size for point in series.points if point.in_one_job]:
        text += (
            f" Intervals at {formats.listed(sizes)} are over launches of one job: another job may "
            "get other nodes and differ by more; repeat in several jobs."
        )
    return text


def absolute(point: Point) -> str:
    """Return a point's performance with its unit, as the reader needs beside a ratio."""
    row = point.rows[0]
    if point.time_s is not None:
        return f"{in_words(point.time_s)} a run"
    if point.throughput_samples_per_s is not None:
        return f"{number(point.throughput_samples_per_s)} {row.sample_unit}/s"
    if point.step_s is not None:
        return f"{number(point.step_s * MILLI)} ms a step"
    return f"{number(point.rate)} {row.sample_unit} (no unit of time)"


def left_out(series: list[Series], drawn: list[Series], max_tables: int = MAX_TABLES) -> list[str]:
    """Say which series have no curve or no table."""
    notes = []
    if len(drawn) > MAX_CURVES:
        names = formats.listed((curve.label for curve in drawn[MAX_CURVES:]), 6)
        notes.append(f"The figures show the first {MAX_CURVES} series; left out: {names}.")
    if len(series) > max_tables:
        notes.append(
            f"{len(series) - max_tables} further series have no table here; --csv prints them."
        )
    return notes


def curve_of(
    series: Series,
    value: Callable[[Point], float],
    interval: Callable[[Point], Interval | None],
    dots: Callable[[Point], list[float]],
) -> dict[str, Any]:
    """Return one series for a figure: its points, their intervals and every repeat."""
    return {
        "label": series.label,
        "x": [p.world_size for p in series.points],
        "y": [value(p) for p in series.points],
        "intervals": [ends(interval(p)) for p in series.points],
        "dots": [[p.world_size, y] for p in series.points for y in dots(p) if len(p.rates) > 1],
        "ideal": [],
        "nodes": [[p.world_size, n] for p in series.points if (n := p.rows[0].num_nodes)],
    }


def drawn(series: Sequence[Series], origin: str = "measured") -> list[Series]:
    """Return the series of a ladder that have a curve, if there is room for it.

    Of an imported table two sizes are no curve.
    """
    least = 1 if origin == "measured" else 2
    return [curve for curve in series if len(curve.points) > least]


def ends(interval: Interval | None) -> list[float] | None:
    """Return an interval as JSON holds it."""
    return None if interval is None else list(interval)


def curve_figure(
    key: str, title: str, ylabel: str, curves: list[dict[str, Any]], **more: Any
) -> Figure:
    """Return the description of a figure of curves over world sizes."""
    sizes = {x for curve in curves for x in curve["x"]}
    sizes |= {x for curve in curves if curve.get("model") for x, _ in curve["model"]["points"]}
    described = "; ".join(
        f"{curve['label']}: "
        + ", ".join(f"{number(y)} at {x}" for x, y in zip(curve["x"], curve["y"], strict=True))
        for curve in curves
    )
    across = more.get("xlabel", "Ranks").lower() + (" in bytes" if more.get("size_ticks") else "")
    nodes = {tuple(pair) for curve in curves for pair in curve.get("nodes", ())}
    # Sizes with two numbers of nodes, in two layouts, have no axis of nodes.
    is_axis = len({size for size, _ in nodes}) == len(nodes) and max(nodes, default=(1, 1))[1] > 1
    return {
        "kind": "curve", "id": key, "title": title, "xlabel": "Ranks", "ylabel": ylabel,
        "ylog": False, "ticks": sorted(sizes), "series": curves, "lines": [],
        "nodes": sorted(map(list, nodes)) if is_axis else [],
        "desc": f"{ylabel} against {across}. {described}.",
    } | more  # fmt: skip


def step_ms(point: Point) -> float:
    """Return a point's step time in milliseconds; 0 where it is unknown."""
    return (point.step_s or 0.0) * MILLI


def step_interval_ms(point: Point) -> Interval | None:
    """Return the interval of a point's step time in milliseconds."""
    if point.step_interval is None:
        return None
    return point.step_interval[0] * MILLI, point.step_interval[1] * MILLI


# A longer table is folded, but for that of a ladder, which is read as a whole.
FOLDED_ROWS = 15
FOLDED_TABLES, MAX_FIGURES = 1, 2
# Findings of one group that its line holds.
MAX_FINDINGS = 2
# Sections of records, which are looked up and not read.
FOLDED = ("twelve-rules", "provenance")
# Of their sentences the first is read.
READ_LATER = ("method",)


def fold(sections: Sequence[Panel]) -> None:
    """Part each section into `seen` and `folds`, and give each table a `key` that links lead to.

    A fold has a `summary`, a `finding`, whether it `prints`, and `texts`, `figures` and `tables`.
    """
    for section in sections:
        seen: list[Table] = []
        for index, one in enumerate(section["tables"], start=1):
            one["key"] = f"{section['id']}-table-{index}"
            long = len(one["rows"]) > FOLDED_ROWS and section["id"] not in LADDERS
            late = len(seen) >= FOLDED_TABLES or section["id"] in FOLDED
            one["folded"] = one.get("folded", False) or long or late
            seen += [] if one["folded"] else [one]
        texts, figures = section["lead"], section["figures"]
        read = 1 if section["id"] in READ_LATER else len(texts)
        section["seen"] = {"lead": texts[:read], "figures": figures[:MAX_FIGURES], "tables": seen}
        section["folds"] = list(_folds([one for one in section["tables"] if one["folded"]]))
        if more := figures[MAX_FIGURES:]:
            titles = "; ".join(figure["title"] for figure in more)
            section["folds"].append(_fold(counted(len(more), "more figure"), titles, figures=more))
        if texts[read:]:
            summary = "What each number means"
            section["folds"].append(_fold(summary, "", prints=True, texts=texts[read:]))


def _folds(folded: Sequence[Table]) -> Iterator[Panel]:
    """Yield a fold of each table without a group, which has a verdict, then of each group."""
    groups: dict[str, list[Table]] = {}
    for one in folded:
        groups.setdefault(one.get("group") or one["key"], []).append(one)
    for tables in sorted(groups.values(), key=lambda some: bool(some[0].get("group"))):
        findings = list(dict.fromkeys(one["finding"] for one in tables if one.get("finding")))
        text = "; ".join(findings[:MAX_FINDINGS])
        if len(findings) > MAX_FINDINGS:
            text += f"; and {len(findings) - MAX_FINDINGS} more"
        summary = tables[0].get("group") or tables[0]["caption"]
        if len(tables) > 1:
            summary += f" ({counted(len(tables), 'table')})"
        rows = counted(sum(len(one["rows"]) for one in tables), "row")
        prints = any(one.get("prints") for one in tables)
        yield _fold(summary, text or rows, prints=prints, tables=tables)


def _fold(summary: str, finding: str, *, prints: bool = False, **held: object) -> Panel:
    empty: Panel = {"texts": [], "figures": [], "tables": []}
    return empty | {"summary": summary, "finding": finding, "prints": prints} | held
