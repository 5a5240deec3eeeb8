"""What panels are made of: tables of formatted cells, curves, and the text that names a baseline.

A panel is a dict of id, title, origin, lead sentences, figures, tables and notes. Figures are
descriptions that `lockstep.report.page.figures` draws. Nothing here knows HTML.

What of a section is seen at once: its main table and first figures; a reader opens the rest.

What is folded keeps a line that says what it finds, so that no verdict is hidden.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted, in_words, listed, number
from lockstep.core.studies import LADDERS
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval

Panel = dict[str, Any]
Table = dict[str, Any]
Figure = dict[str, Any]

# What a page can hold and still be read; the rest is in --csv.
MAX_CURVES = 6
MAX_ITEMS = 12
MAX_NAMED = 3  # in one sentence
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
    return {
        "caption": caption,
        "columns": [_column(columns[i], i < texts) for i in kept],
        "rows": [[row[i] for i in kept] for row in rows],
        **more,
    }


def _column(name: str, text: bool) -> dict[str, Any]:
    """Split a column's name from its unit, which follows it in brackets."""
    label, _, unit = name.partition(" (")
    return {"label": label, "unit": unit.rstrip(")"), "text": text, "links": name == FLAGS}


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


def sound(series: Sequence[Series]) -> list[Series]:
    """Return the series whose ratios no error of the check forbids."""
    return [curve for curve in series if not any(point.blocked_by for point in curve.points)]


def baseline_text(series: Series) -> str:
    """Name a series' baseline with its absolute performance."""
    base = series.base
    noun = "rank" if series.row.origin == "measured" else "device"
    return f"{counted(base.world_size, noun)} at {absolute(base)}"


def repeat_text(series: Series) -> str:
    """Say why intervals are missing, and where they are of one job alone."""
    return f"{_missing_text(series)}{_job_text(series)}"


def _job_text(series: Series) -> str:
    """Name the sizes whose repeats ran in one job each."""
    sizes = [point.world_size for point in series.points if point.in_one_job]
    if not sizes:
        return ""
    return (
        f" Intervals at {formats.listed(sizes)} are over launches of one job: another job may get "
        "other nodes and differ by more; repeat in several jobs."
    )


def _missing_text(series: Series) -> str:
    if all(point.num_launches == 1 for point in series.points):
        return " No repeat: no interval."
    if series.base.num_launches == 1:
        return " The baseline has no repeat: no interval of ratios."
    bare = [p for p in series.points if p.num_launches > 1 and p.rate_interval is None]
    if any(len(set(point.rates)) == 1 for point in bare):
        return " No interval where launches are equal to the last digit: no spread is known."
    if bare:
        return " No interval where the launches differ too much for their number: repeat them."
    return ""


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
    sizes = sorted(
        {
            x
            for curve in curves
            for x in (
                *curve["x"],
                *([x for x, _ in curve["model"]["points"]] if curve.get("model") else []),
            )
        }
    )
    described = "; ".join(
        f"{curve['label']}: "
        + ", ".join(
            f"{number(y)} at {x}" for x, y in (list(zip(curve["x"], curve["y"], strict=True)))
        )
        for curve in curves
    )
    across = more.get("xlabel", "Ranks").lower() + (" in bytes" if more.get("size_ticks") else "")
    nodes = {tuple(pair) for curve in curves for pair in curve.get("nodes", ())}
    # Sizes with two numbers of nodes, in two layouts, have no axis of nodes.
    is_axis = len({size for size, _ in nodes}) == len(nodes) and max(nodes, default=(1, 1))[1] > 1
    return {
        "kind": "curve", "id": key, "title": title, "xlabel": "Ranks", "ylabel": ylabel,
        "ylog": False, "ticks": sizes, "series": curves, "lines": [],
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
        for index, one in enumerate(section["tables"], start=1):
            one["key"] = f"{section['id']}-table-{index}"
        seen = list(_seen(section))
        folded = [one for one in section["tables"] if one["folded"]]
        texts, figures = section["lead"], section["figures"]
        later = 1 if section["id"] in READ_LATER else len(texts)
        section["seen"] = {
            "lead": texts[:later], "figures": figures[:MAX_FIGURES], "tables": seen,
        }  # fmt: skip
        section["folds"] = [
            *_of_tables(folded), *_of_figures(figures[MAX_FIGURES:]), *_of_texts(texts[later:]),
        ]  # fmt: skip


def _seen(section: Panel) -> Iterator[Table]:
    """Yield the tables that are seen at once, and mark the others as folded."""
    shown = 0
    for one in section["tables"]:
        long = len(one["rows"]) > FOLDED_ROWS and section["id"] not in LADDERS
        late = shown >= FOLDED_TABLES or section["id"] in FOLDED
        one["folded"] = one.get("folded", False) or long or late
        if not one["folded"]:
            shown += 1
            yield one


def _of_figures(figures: Sequence[Figure]) -> Iterator[Panel]:
    if figures:
        titles = "; ".join(figure["title"] for figure in figures)
        yield _fold(f"{counted(len(figures), 'more figure')}", titles, figures=figures)


def _of_texts(texts: Sequence[str]) -> Iterator[Panel]:
    if texts:
        yield _fold("What each number means", "", prints=True, texts=texts)


def _of_tables(folded: Sequence[Table]) -> Iterator[Panel]:
    """Yield a fold of each table without a group, which has a verdict, then of each group."""
    groups: dict[str, list[Table]] = {}
    for one in folded:
        groups.setdefault(one.get("group") or one["key"], []).append(one)
    for tables in sorted(groups.values(), key=lambda some: bool(some[0].get("group"))):
        first, prints = tables[0], any(one.get("prints") for one in tables)
        rows = counted(sum(len(one["rows"]) for one in tables), "row")
        found = list(dict.fromkeys(one["finding"] for one in tables if one.get("finding")))
        text = "; ".join(found[:MAX_FINDINGS])
        if len(found) > MAX_FINDINGS:
            text += f"; and {len(found) - MAX_FINDINGS} more"
        summary = first.get("group") or first["caption"]
        if len(tables) > 1:
            summary += f" ({counted(len(tables), 'table')})"
        yield _fold(summary, text or rows, prints=prints, tables=tables)


def _fold(summary: str, finding: str, *, prints: bool = False, **held: object) -> Panel:
    empty: Panel = {"texts": [], "figures": [], "tables": []}
    return empty | {"summary": summary, "finding": finding, "prints": prints} | held
