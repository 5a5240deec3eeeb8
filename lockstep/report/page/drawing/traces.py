"""Curves over world sizes or message sizes: points, intervals, launches, what is ideal or modelled.

The description has `series`, each with label, x, y, intervals and dots, and perhaps an `ideal`, a
`limit`, a `model` with its interval or a `fit`; `lines` at one height; `nodes`, pairs of world size
and nodes; `cap`, the largest value that the axis is made for.
"""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from lockstep.core import formats
from lockstep.report.page.drawing import figure_style
from lockstep.report.page.drawing.figure_style import (
    DOTS,
    FAINT,
    IDEAL,
    INK,
    LABEL_PT,
    LEFT_IN,
    LIMIT,
    MARKERS,
    MIN_JOINED,
    MODEL,
    RIGHT_IN,
    SERIES_COLOURS,
    TOP_IN,
    Canvas,
    Mark,
    head,
    sheet,
    side_head,
    width_in,
)

PLOT_IN = 2.4
NODES_IN = 0.17
# The axes end this far from the first and the last point.
BESIDE = 1.25
ABOVE = 1.08
# A launch, or an end of an interval, is drawn up to so many times the largest point.
REACH = 1.3
CAPS: Any = {"marker": "_", "markersize": 6, "linewidth": 1.0}


def curves(spec: dict[str, Any], source: str) -> Canvas:
    """Return a figure of curves."""
    low, high = _ends(spec)
    find = figure_style.binary if spec.get("binary") else figure_style.logarithmic
    marks = find(low, high) if spec["ylog"] else figure_style.linear(low, high)
    names = [name_of(spec, value) for value in marks]
    beside = [line["label"] for line in spec["lines"]]
    nodes = dict(spec.get("nodes", ()))
    canvas = sheet(
        spec, source, [PLOT_IN],
        left_in=LEFT_IN + figure_style.widest_in(names),
        right_in=max(RIGHT_IN, 0.1 + figure_style.widest_in(beside)),
        top_in=TOP_IN + (NODES_IN if nodes else 0),
        legend=_legend(spec, high),
    )  # fmt: skip
    (axes,) = canvas.axes
    _scale(axes, spec, low, high)
    axes.set_yticks(marks, names)
    axes.yaxis.set_minor_locator(NullLocator())
    _sizes(axes, spec, nodes)
    head(axes, spec["ylabel"], raised=bool(nodes))
    for line in spec["lines"]:
        reference_line(axes, line["y"], line["label"])
    shared = _shared_ideal(spec)
    if shared:
        axes.plot(*zip(*shared, strict=True), **IDEAL, color=INK)
    for index, series in enumerate(spec["series"]):
        one_curve(axes, series | ({"ideal": []} if shared else {}), index, high)
        canvas.marks += values(axes, spec, series, series["intervals"], _place, high)
    return canvas


def one_curve(axes: Axes, series: dict[str, Any], index: int, high: float = math.inf) -> None:
    """Draw a series; what lies above the axis is a mark at its upper end, with its value."""
    colour, marker = SERIES_COLOURS[index], MARKERS[index]
    for name, style in (("ideal", IDEAL), ("limit", LIMIT), ("fit", MODEL)):
        if series.get(name):
            axes.plot(*zip(*series[name], strict=True), **style, color=colour)
    if series["dots"]:
        axes.plot(*zip(*series["dots"], strict=True), **DOTS, color=colour)
    # From end to end: the median may lie outside the interval of a mean.
    bars = [
        ([x, x, math.nan], [*interval, math.nan])
        for x, interval in zip(series["x"], series["intervals"], strict=True)
        if interval
    ]
    if bars:
        xs, ys = (list(chain.from_iterable(part)) for part in zip(*bars, strict=True))
        axes.plot(xs, ys, color=colour, **CAPS)
    if series.get("model"):
        _modelled(axes, series["model"], colour, marker)
    joined = "-" if len(series["x"]) >= MIN_JOINED else "none"
    axes.plot(
        series["x"], series["y"], linestyle=joined, marker=marker, color=colour, linewidth=1.6,
        markersize=5.5,
    )  # fmt: skip
    _beyond(axes, series, colour, high)


def _beyond(axes: Axes, series: dict[str, Any], colour: str, high: float) -> None:
    """Mark at the upper end what lies above it: points with their values, launches without."""
    points = [(x, y) for x, y in zip(series["x"], series["y"], strict=True) if y > high]
    sizes = sorted({x for x, y in (*series["dots"], *points) if y > high})
    if sizes:
        axes.plot(sizes, [high] * len(sizes), linestyle="none", marker="^", color=colour,
                  markersize=7, clip_on=False)  # fmt: skip
    for x, y in points:
        axes.annotate(
            f"{100 * y:.0f} %", (x, high), xytext=(6, -2), textcoords="offset points", color=colour,
            fontsize=LABEL_PT, va="center", ha="left",
        )  # fmt: skip


def _modelled(axes: Axes, model: dict[str, Any], colour: str, marker: str) -> None:
    """Draw a model dotted, and the size it predicts hollow."""
    xs, ys = zip(*model["points"], strict=True)
    axes.plot(xs, ys, **MODEL, color=colour)
    axes.plot([xs[-1], xs[-1]], model["interval"], **CAPS | MODEL, color=colour)
    axes.plot(xs[-1], ys[-1], color=colour, marker=marker, markersize=5.5, markerfacecolor="none")


def _legend(spec: dict[str, Any], high: float) -> list[Line2D]:
    """Return an entry for each series, and for each kind of line that was not measured."""
    entries = [
        Line2D(
            [], [], color=SERIES_COLOURS[i], marker=MARKERS[i], markersize=5.5, linewidth=1.6,
            linestyle="-" if len(one["x"]) >= MIN_JOINED else "none", label=one["label"],
        )
        for i, one in enumerate(spec["series"])
    ]  # fmt: skip
    if any(one["ideal"] for one in spec["series"]):
        entries.append(Line2D([], [], color=INK, **IDEAL, label=spec.get("ideal", "ideal")))
    if any(one.get("limit") for one in spec["series"]):
        entries.append(Line2D([], [], color=INK, **LIMIT, label=spec["limit"]))
    if any(one.get("fit") for one in spec["series"]):
        entries.append(Line2D([], [], color=INK, **MODEL, label=spec["fit"]))
    if any(one.get("model") for one in spec["series"]):
        entries.append(Line2D(
            [], [], color=INK, **MODEL, marker="o", markersize=5.5, markerfacecolor="none",
            label="by the rule, predicted",
        ))  # fmt: skip
    beyond = [y for one in spec["series"] for y in (*one["y"], *(d[1] for d in one["dots"]))]
    if max(beyond) > high:
        most = value_text(spec, max(beyond), None)
        label = f"beyond the axis, up to {most}"
        entries.append(Line2D([], [], color=INK, linestyle="none", marker="^", label=label))
    return entries


def _shared_ideal(spec: dict[str, Any]) -> list[Any]:
    """Return the ideal of all series where it is one line, at its longest."""
    ideals = sorted((one["ideal"] for one in spec["series"] if one["ideal"]), key=len)
    slopes = {round(y / x, 9) if spec["ylog"] else y for ideal in ideals for x, y in ideal}
    return list(ideals[-1]) if len(ideals) > 1 and len(slopes) == 1 else []


def _ends(spec: dict[str, Any]) -> tuple[float, float]:
    """Return the ends of the vertical axis: 0 and above the points, or around all there is."""
    series = spec["series"]
    points = [y for curve in series for y in curve["y"]]
    points += [y for curve in series if curve.get("model") for _, y in curve["model"]["points"]]
    points += [line["y"] for line in spec["lines"]]
    points += [y for curve in series for _, y in curve.get("limit", ())]
    spread = [y for curve in series for _, y in curve["dots"]]
    spread += [end for curve in series for ends in curve["intervals"] if ends for end in ends]
    ideal = [y for curve in series for _, y in curve["ideal"]]
    if spec["ylog"]:
        values = [value for value in (*points, *spread, *ideal) if value > 0]
        return min(values) / BESIDE, max(values) * BESIDE
    cap = spec.get("cap", math.inf)
    inside = [value for value in (*points, *ideal) if value <= cap]
    most = max(inside, default=cap)
    return 0.0, ABOVE * max(most, min(max(spread, default=0.0), REACH * most))


def _scale(axes: Axes, spec: dict[str, Any], low: float, high: float) -> None:
    xs = [x for series in spec["series"] for x in series["x"]]
    xs += [one["model"]["points"][-1][0] for one in spec["series"] if one.get("model")]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(xs) / BESIDE, max(xs) * BESIDE)
    if spec["ylog"]:
        axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.grid(visible=False, axis="x")


def _sizes(axes: Axes, spec: dict[str, Any], nodes: dict[int, int]) -> None:
    """Write the sizes below the axis, as many as have room, and their nodes above it."""
    low, high = (math.log2(end) for end in axes.get_xlim())
    per_in = width_in(axes) / (high - low)
    sizes = spec["ticks"]
    own = [formats.size_of(size) if spec.get("size_ticks") else str(size) for size in sizes]
    names = figure_style.with_room(sizes, own, lambda size: (math.log2(size) - low) * per_in)
    axes.set_xticks(sizes, names)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(spec["xlabel"], fontsize=LABEL_PT)
    for size, name in zip(sizes, names, strict=True):
        if name and size in nodes:
            axes.annotate(
                str(nodes[size]), (size, 1), xycoords=("data", "axes fraction"), xytext=(0, 5),
                textcoords="offset points", ha="center", fontsize=LABEL_PT, color=FAINT,
            )  # fmt: skip
    if nodes:
        side_head(axes, "Nodes")


def name_of(spec: dict[str, Any], value: float) -> str:
    """Return a mark of the vertical axis as it is written."""
    return f"{100 * value:g}" if spec.get("percent") else formats.trimmed(value)


def reference_line(axes: Axes, y: float, label: str) -> None:
    """Draw a height that values are compared with."""
    axes.axhline(y, color=FAINT, **LIMIT)
    # Beside the axes, where no point can lie under it.
    axes.annotate(
        label, (1, y), xycoords=("axes fraction", "data"), xytext=(3, 0), fontsize=LABEL_PT,
        textcoords="offset points", ha="left", va="center", color=FAINT,
    )  # fmt: skip


def values(
    axes: Axes,
    spec: dict[str, Any],
    one: dict[str, Any],
    ends: Sequence[list[float] | None],
    place: Callable[[dict[str, Any], float], str],
    high: float = math.inf,
) -> list[Mark]:
    """Return each point of a series with what it says; one above `high` is drawn there."""
    return [
        Mark(axes, x, min(y, high), f"{one['label']}, {place(spec, x)}: {value_text(spec, y, of)}")
        for x, y, of in zip(one["x"], one["y"], ends, strict=True)
    ]


def _place(spec: dict[str, Any], x: float) -> str:
    return formats.size_of(x) if spec.get("size_ticks") else f"{x:g} {spec['xlabel'].lower()}"


def value_text(spec: dict[str, Any], y: float, ends: list[float] | None) -> str:
    """Return what a place says: its value, and the ends of its interval."""
    written = formats.percent if spec.get("percent") else formats.number
    value = f"{written(y)} %" if spec.get("percent") else f"{written(y)}"
    return f"{value} ({written(ends[0])} to {written(ends[1])})" if ends else value
