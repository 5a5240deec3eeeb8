"""What panels are made of: tables of formatted cells, curves, and the text that names a baseline.

A panel is a dict of id, title, origin, lead sentences, figures, tables and notes. Figures are
descriptions that `lockstep.report.page.figures` draws. Nothing here knows HTML.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted, in_words, listed, number
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
        said = f"The first {MAX_ROWS} of {len(rows)} rows{rest}."
        rows, more["note"] = rows[:MAX_ROWS], " ".join(filter(None, (more.get("note"), said)))
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
    return [one for one in series if not any(point.blocked_by for point in one.points)]


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
        names = formats.listed((one.label for one in drawn[MAX_CURVES:]), 6)
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
    return [one for one in series if len(one.points) > least]


def ends(interval: Interval | None) -> list[float] | None:
    """Return an interval as JSON holds it."""
    return None if interval is None else list(interval)


def _pairs(curve: dict[str, Any]) -> list[tuple[float, float]]:
    return list(zip(curve["x"], curve["y"], strict=True))


def _modelled_sizes(curve: dict[str, Any]) -> list[int]:
    return [x for x, _ in curve["model"]["points"]] if curve.get("model") else []


def curve_figure(
    key: str, title: str, ylabel: str, curves: list[dict[str, Any]], **more: Any
) -> Figure:
    """Return the description of a figure of curves over world sizes."""
    sizes = sorted({x for curve in curves for x in (*curve["x"], *_modelled_sizes(curve))})
    described = "; ".join(
        f"{curve['label']}: " + ", ".join(f"{number(y)} at {x}" for x, y in _pairs(curve))
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
