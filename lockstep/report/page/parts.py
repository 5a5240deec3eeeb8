"""Parts of panels: tables of formatted cells, figures of curves, and shared sentences.

A panel is a dict of id, title, origin, lead sentences, figures, tables and notes. Figures are
descriptions that `lockstep.report.page.figures` draws. Nothing here knows HTML.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted, in_words, listed, number, percent, percent_span, ratio
from lockstep.core.metrics import GIGA
from lockstep.core.studies import LADDERS
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval
from lockstep.report.load.results import Row

Panel = dict[str, Any]
Table = dict[str, Any]
Figure = dict[str, Any]
Cell = Callable[[Point], str]
# A heading of `CELLS`, or a heading with its own cell.
Columns = Sequence[str | tuple[str, Cell]]

# Limits of a readable page; --csv has the rest.
MAX_CURVES = 6
MAX_TABLES = 80
MAX_ROWS = 200

# How curves mark launches and intervals: below them on the page, and in a pack's captions.
MARKS = (
    "A marker is the median over launches, and its bar is the 95 % interval of their geometric "
    "mean. Faint dots are single launches. A line joins three sizes or more; two are a difference, "
    "not a trend."
)

# Two points are a difference, not a trend: a line joins three or more.
MIN_JOINED = 3

# A step's time as a ratio: above 1 if it is shorter than the baseline's.
TIME_RATIO = "Baseline's step / step"
# The column whose cells are numbers of flags, each a link to its text.
FLAGS = "Flags"

MILLI = 1e3
MICRO = 1e6

# Origin of numbers not measured here -> title.
ORIGINS = {"cited": "Cited numbers", "target": "Targets"}


def panel(study: str, title: str, origin: str = "measured", **parts: Any) -> Panel:
    """Return a panel with these parts and empty lists for all others."""
    empty: Panel = {"lead": [], "figures": [], "tables": [], "notes": []}
    return {"id": study, "title": title, "origin": origin} | empty | parts


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0,
    prints_all: str = "--csv", **more: Any,
) -> Table:  # fmt: skip
    """Return a table; its first `texts` columns are text, the others numbers.

    Columns whose cells are all unknown are left out, and rows beyond `MAX_ROWS`, with a note that
    `prints_all` prints them. `more` may hold a `note`, or a note by heading, for columns that stay;
    a `text` below the table, shown as it is;
    `folded`, whether the reader opens the table, with the `finding` in the line that is clicked,
    the `group` of tables that open together, and whether paper `prints` it; and `row_ids`, a link
    target for each row, all of which are kept.
    """
    text = ""
    if len(rows) > MAX_ROWS and "row_ids" not in more:
        rest = f"; {prints_all} prints all" if prints_all else ""
        text = f"The first {MAX_ROWS} of {len(rows)} rows{rest}."
        rows = rows[:MAX_ROWS]
    kept = [i for i in range(len(columns)) if any(row[i] not in ("", formats.DASH) for row in rows)]
    if isinstance(note := more.get("note"), dict):
        note = " ".join(note[columns[i]] for i in kept if columns[i] in note)
    if note or text:
        more["note"] = " ".join(filter(None, (note, text)))
    heads = []
    for i in kept:
        label, _, unit = columns[i].partition(" (")
        heads.append({"label": label, "unit": unit.rstrip(")"), "text": i < texts,
                      "links": columns[i] == FLAGS})  # fmt: skip
    cells = [[row[i] for i in kept] for row in rows]
    return {"caption": caption, "columns": heads, "rows": cells, **more}


def point_table(
    caption: str, columns: Columns, points: Iterable[Point], texts: int = 0, **more: Any
) -> Table:
    """Return a table with a row for each point, see `table`."""
    pairs = [(each, CELLS[each]) if isinstance(each, str) else each for each in columns]
    rows = [[cell(point) for _, cell in pairs] for point in points]
    return table(caption, [heading for heading, _ in pairs], rows, texts, **more)


def shown(value: object) -> str:
    """Return a value as a cell: a dash if unknown."""
    return formats.DASH if value is None else str(value)


def ratio_cell(point: Point, text: str) -> str:
    """Return a ratio as a cell: a dash if an error of the check blocks it."""
    return formats.DASH if point.blocked_by else text


def efficiency_cell(point: Point) -> str:
    """Return a measured efficiency with its interval, or with a dash; an imported one as it is."""
    text, interval = f"{percent(point.parallel_efficiency)} %", point.efficiency_interval
    is_bare = interval is None and point.rows[0].origin != "measured"
    return text if is_bare else f"{text} ({percent_span(interval)})"


def share(rows: Sequence[Row], name: str) -> str:
    """Return a quantity of `lockstep.report.compute.quantities` as a cell in per cent."""
    return percent(quantities.pool(rows, name)[0])


# Heading -> cell of the columns that tables of points share.
CELLS: dict[str, Cell] = {
    "Ranks": lambda p: str(p.world_size),
    "Nodes": lambda p: shown(p.rows[0].num_nodes),
    "Global batch": lambda p: shown(p.rows[0].global_batch),
    "Local batch": lambda p: shown(p.rows[0].local_batch),
    "Launches": lambda p: str(p.num_launches),
    "Step time (ms)": lambda p: number(p.step_s, scale=MILLI),
    "95 % interval (ms)": lambda p: formats.span(p.step_interval, MILLI),
    "Speed-up": lambda p: ratio_cell(p, ratio(p.speedup)),
    "Efficiency (%)": lambda p: ratio_cell(p, percent(p.parallel_efficiency)),
    "95 % interval (%)": lambda p: ratio_cell(p, percent_span(p.efficiency_interval)),
    TIME_RATIO: lambda p: ratio_cell(p, ratio(p.time_ratio)),
    "Memory (GB)": lambda p: number(p.peak_memory_bytes or None, scale=1 / GIGA),
    FLAGS: lambda p: " ".join(map(str, p.flag_numbers)),
}


def cost_note(hours: str, points: Sequence[Point]) -> str:
    """Return a note that costs use the mean step, and which points' mean is unsure."""
    long = [p for p in points if any(flag.kind == "long-round" for flag in p.flags)]
    places = listed(list(dict.fromkeys(f"{p.rows[0].case} at {p.world_size}" for p in long)), 3)
    warning = f" A long round dominates the hours of {places}; measure these points again."
    unsure = warning if long else ""
    medians = " Step times are medians." if any(p.rows[0].rounds for p in points) else ""
    return f"{hours} use the mean step time, since costs add up.{medians}{unsure}"


def ms(seconds: float) -> str:
    """Return milliseconds that a step takes or loses; a negative time is shown as 0."""
    return number(max(seconds, 0.0) * MILLI)


def ms_span(interval: Interval | None) -> str:
    """Return an interval in milliseconds; a dash for None."""
    return f"{ms(interval[0])} to {ms(interval[1])}" if interval else formats.DASH


def sound(series: Sequence[Series]) -> list[Series]:
    """Return the series whose ratios no error of the check blocks."""
    return [curve for curve in series if not any(point.blocked_by for point in curve.points)]


def baseline_text(series: Series) -> str:
    """Return a series' baseline with its absolute performance, as text."""
    return f"{counted(series.baseline, series.noun)} at {absolute(series.base)}"


def repeat_text(series: Series) -> str:
    """Return why intervals are missing, and at which sizes they are over one job."""
    text = ""
    bare = [p for p in series.points if p.num_launches > 1 and p.rate_interval is None]
    if all(point.num_launches == 1 for point in series.points):
        text = " There is no interval, because each size has one launch."
    elif series.base.num_launches == 1:
        text = " Ratios have no interval, because the baseline has one launch."
    elif any(len(set(point.rates)) == 1 for point in bare):
        text = " There is no interval where all launches gave exactly the same value."
    elif bare:
        text = " There is no interval where few launches differ widely; measure more launches."
    if sizes := [point.world_size for point in series.points if point.in_one_job]:
        text += (
            f" Intervals at {listed(sizes)} are over launches of one job. Another job may get "
            "other nodes and differ by more, so repeat the launches in several jobs."
        )
    return text


def absolute(point: Point) -> str:
    """Return a point's absolute performance with its unit, to print beside a ratio."""
    row = point.rows[0]
    if point.time_s is not None:
        return f"{in_words(point.time_s)} a run"
    if point.throughput_samples_per_s is not None:
        return f"{number(point.throughput_samples_per_s)} {row.sample_unit}/s"
    if point.step_s is not None:
        return f"{number(point.step_s * MILLI)} ms a step"
    return f"{number(point.rate)} {row.sample_unit} (unknown unit of time)"


def rate_text(point: Point, ranks: str) -> str:
    """Return the rate that a speed-up multiplies: `the 387 items/s of 1 rank`."""
    if point.time_s is None and point.throughput_samples_per_s is not None:
        return f"the {absolute(point)} of {ranks}"
    return f"the rate of {ranks} at {absolute(point)}"


def left_out(
    series: Sequence[Series], drawn: Sequence[Series], max_tables: int = MAX_TABLES
) -> list[str]:
    """Return notes on series without a curve or a table."""
    notes = []
    if len(drawn) > MAX_CURVES:
        names = listed((curve.label for curve in drawn[MAX_CURVES:]), 6)
        notes.append(f"The figures show the first {MAX_CURVES} series. They leave out {names}.")
    if (more := len(series) - max_tables) > 0:
        notes.append(f"{more} further series have no table; lockstep report --csv prints them.")
    return notes


def curve_of(
    label: str, points: Sequence[Point], value: Callable[[Point, float], float],
    interval: Callable[[Point], Interval | None],
    size: Callable[[Point], float] = attrgetter("world_size"),
) -> dict[str, Any]:  # fmt: skip
    """Return one curve for a figure: its points, their intervals and every repeat.

    `value` returns the height of a point at its rate, or at that of one of its launches.
    """
    return {
        "label": label,
        "x": [size(p) for p in points],
        "y": [value(p, p.rate) for p in points],
        "intervals": [ends(interval(p)) for p in points],
        "dots": [[size(p), value(p, r)] for p in points for r in p.rates if len(p.rates) > 1],
        "ideal": [],
        "nodes": [[p.world_size, n] for p in points if (n := p.rows[0].num_nodes)],
    }


def drawn(series: Sequence[Series], origin: str = "measured") -> list[Series]:
    """Return the series that have a curve: 2 sizes or more, of an imported table 3 or more."""
    least = 1 if origin == "measured" else 2
    return [curve for curve in series if len(curve.points) > least]


def ends(interval: Interval | None) -> list[float] | None:
    """Return an interval as a list, for JSON."""
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


# Longer tables are folded, except those of ladders.
FOLDED_ROWS = 15
FOLDED_TABLES, MAX_FIGURES = 1, 2
# Most findings in the line of a fold.
MAX_FINDINGS = 2
# Sections with all tables folded, and the section that shows only its first sentence.
FOLDED, READ_LATER = ("twelve-rules", "provenance"), "method"


def fold(sections: Sequence[Panel]) -> None:
    """Divide each section into `seen` and `folds`, and give each table a `key` that links lead to.

    A fold has a `summary`, a `finding`, whether it `prints`, and `texts`, `figures` and `tables`.
    """
    for section in sections:
        seen: list[Table] = []
        groups: dict[str, list[Table]] = {}
        for index, each in enumerate(section["tables"], start=1):
            each["key"] = f"{section['id']}-table-{index}"
            long = len(each["rows"]) > FOLDED_ROWS and section["id"] not in LADDERS
            late = len(seen) >= FOLDED_TABLES or section["id"] in FOLDED
            each["folded"] = each.get("folded", False) or long or late
            if each["folded"]:
                groups.setdefault(each.get("group") or each["key"], []).append(each)
            else:
                seen.append(each)
        texts, figures = section["lead"], section["figures"]
        read = 1 if section["id"] == READ_LATER else len(texts)
        section["seen"] = {"lead": texts[:read], "figures": figures[:MAX_FIGURES], "tables": seen}
        # Tables without a group come first.
        ordered = sorted(groups.values(), key=lambda tables: bool(tables[0].get("group")))
        section["folds"] = list(map(_fold_tables, ordered))
        if more := figures[MAX_FIGURES:]:
            titles = "; ".join(figure["title"] for figure in more)
            section["folds"].append(_fold(counted(len(more), "more figure"), titles, figures=more))
        if texts[read:]:
            summary = "What each number means"
            section["folds"].append(_fold(summary, "", prints=True, texts=texts[read:]))


def _fold_tables(tables: Sequence[Table]) -> Panel:
    findings = list(dict.fromkeys(each["finding"] for each in tables if each.get("finding")))
    text = "; ".join(findings[:MAX_FINDINGS])
    if (more := len(findings) - MAX_FINDINGS) > 0:
        text += f"; and {more} more"
    summary = tables[0].get("group") or tables[0]["caption"]
    summary += f" ({counted(len(tables), 'table')})" if len(tables) > 1 else ""
    rows = counted(sum(len(each["rows"]) for each in tables), "row")
    prints = any(each.get("prints") for each in tables)
    return _fold(summary, text or rows, prints=prints, tables=tables)


def _fold(summary: str, finding: str, *, prints: bool = False, **content: object) -> Panel:
    empty: Panel = {"texts": [], "figures": [], "tables": []}
    return empty | {"summary": summary, "finding": finding, "prints": prints} | content
