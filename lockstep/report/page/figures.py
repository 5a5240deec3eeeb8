"""Figures on Matplotlib's axes: from a page's descriptions to inline SVG, and to files.

A description has `kind`, `id`, `title`, `desc`, `xlabel`, `ylabel` and perhaps a `note` and the
`basis` of its numbers; the function that draws a kind names its other keys. The same data give the
same bytes.
"""

import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib import artist

# With no docstrings of its artists to write, Matplotlib imports in half the time. After the
# import, `kwdoc` is restored.
_written = artist.kwdoc
artist.kwdoc = lambda _: ""  # type: ignore[assignment]  # the name of its argument
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator  # noqa: E402

artist.kwdoc = _written

from lockstep.core import formats  # noqa: E402
from lockstep.core.files import write_atomically  # noqa: E402
from lockstep.report.page.parts import MIN_JOINED  # noqa: E402

Spec = Mapping[str, Any]
Format = Literal["svg", "pdf", "png"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png")

# Okabe and Ito's palette where it has a contrast of 3 on white, else a darker hue.
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2649a", "#7b4fa3", "#8a6d00")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, FAINT, GRID = "#22282f", "#6e7781", "#dfe3e7"
# A page gives the colours other values in dark mode and in print.
VARIABLES = {colour: f"var(--c{i}, {colour})" for i, colour in enumerate(SERIES_COLOURS)} | {
    INK: f"var(--ink, {INK})",
    FAINT: f"var(--faint, {FAINT})",
    GRID: f"var(--grid, {GRID})",
}
TEXT_PT, LABEL_PT, SMALL_PT = 10.0, 9.0, 7.0
# Dashed lines are ideals and limits, dotted lines models: none was measured.
IDEAL: Any = {"linestyle": (0, (5, 3)), "linewidth": 1.1}
LIMIT: Any = {"linestyle": (0, (2, 2)), "linewidth": 0.9}
MODEL: Any = {"linestyle": (0, (1, 1.6)), "linewidth": 1.3}
DOTS: Any = {"linestyle": "none", "marker": ".", "alpha": 0.45, "markersize": 7}
HOLLOW: Any = {"markersize": 5.5, "markerfacecolor": "none"}
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "lockstep",
    "pdf.fonttype": 42,  # some printers refuse Type 3
    "font.family": "DejaVu Sans", "font.size": TEXT_PT,
    "text.parse_math": False,  # a dollar sign in someone's case name is no formula
    "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.labelcolor": INK,
    "axes.labelsize": LABEL_PT, "xtick.labelsize": LABEL_PT, "ytick.labelsize": LABEL_PT,
    "axes.titlesize": LABEL_PT, "axes.titlelocation": "left", "axes.titlepad": 5,
    "axes.edgecolor": FAINT, "axes.linewidth": 0.8, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID,
    "grid.linewidth": 0.7, "figure.facecolor": "none", "axes.facecolor": "none",
    "legend.frameon": False, "legend.fontsize": LABEL_PT,
}  # fmt: skip

# Width of a column of printed text, and about the width of the plot in it.
WIDTH_IN, PLOT_IN = 5.4, 4.6
CURVE_IN, ROWS_IN = 3.0, 0.75
EDGE_IN = 0.06
# Height of a line of the legend, width of an average character, and both of small print.
LINE_IN, CHARACTER_IN, SMALL_LINE_IN, SMALL_IN = 0.168, 0.075, 0.135, 0.0525
# Most characters of a label in a legend of two columns, of one, of a row's and an axis' name.
HALF, WHOLE, ROW_NAME, AXIS_NAME = 27, 58, 32, 65
# A command line may name a hundred folders.
MAX_SOURCE_LINES = 3
# The margin of a linear axis, as a share of the drawn range.
BESIDE = 0.06
# A launch, or an end of an interval, is drawn up to this multiple of the largest point.
REACH = 1.3


class Mark(NamedTuple):
    """A place of a figure whose value is shown under the pointer."""

    axes: Axes
    x: float
    y: float
    text: str


class Canvas(NamedTuple):
    """A drawn figure: a page shows its upper `shown_in` inches, the rest is its basis."""

    figure: Figure
    shown_in: float
    marks: list[Mark]


# The height of a figure's plots in inches, and its marks.
Drawn = tuple[float, list[Mark]]


def _canvas(spec: Spec, source: str) -> Canvas:
    figure = Figure()
    plots_in, marks = KINDS[spec["kind"]](figure, spec)
    entries = [
        pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)
    ]
    entries.sort(key=lambda pair: isinstance(pair[0], Line2D))  # bars first, as they are stacked
    names = ["\n".join(_lines(label, WHOLE, 2)) or " " for _, label in entries]
    columns = 2 if len(names) > 1 and max(map(len, names)) <= HALF else 1
    num_lines = -(-sum(1 + name.count("\n") for name in names) // columns)
    legend_in = LINE_IN * num_lines + (EDGE_IN if names else 0)
    basis = []
    if source or spec.get("basis"):
        width = int((WIDTH_IN - 2 * EDGE_IN) / SMALL_IN)
        title = f"{spec['title']}. {spec.get('note', '')}"
        has_caption = spec.get("has_caption", False)  # the text around it has title and source
        texts = (*([] if has_caption else [title]), *spec.get("basis", ()))
        basis = [line for text in texts for line in textwrap.wrap(text, width)]
        basis += [] if has_caption else _lines(source, width, MAX_SOURCE_LINES)
    basis_in = SMALL_LINE_IN * len(basis) + 2 * EDGE_IN if basis else 0.0
    height_in = plots_in + legend_in + basis_in
    # Measuring texts is slow: the plots are laid out once, before their figure gets its height.
    figure.set_size_inches(WIDTH_IN, plots_in)
    pad = EDGE_IN * POINTS_PER_IN / TEXT_PT
    figure.tight_layout(pad=pad, h_pad=2 * pad)
    figure.set_layout_engine(None)  # saving would repeat the layout for each file
    below = figure.subplotpars
    figure.subplots_adjust(
        bottom=1 - (1 - below.bottom) * plots_in / height_in,
        top=1 - (1 - below.top) * plots_in / height_in,
    )
    figure.set_size_inches(WIDTH_IN, height_in)
    if names:
        figure.legend(
            [handle for handle, _ in entries], names, loc="upper left", ncols=columns, borderpad=0,
            borderaxespad=0, handlelength=2.2, labelspacing=0.25,
            bbox_to_anchor=(EDGE_IN / WIDTH_IN, 1 - plots_in / height_in),
        )  # fmt: skip
    figure.text(
        EDGE_IN / WIDTH_IN, (basis_in - EDGE_IN) / height_in, "\n".join(basis), color=FAINT,
        fontsize=SMALL_PT, va="top", linespacing=1.25,
    )  # fmt: skip
    return Canvas(figure, plots_in + legend_in, marks)


def _lines(text: str, width: int, most: int = 1) -> list[str]:
    return textwrap.wrap(text, width, max_lines=most, placeholder=" \u2026")


def _title(axes: Axes, text: str) -> None:
    """Write the title of the vertical axis above it, where long text has room."""
    axes.set_title("".join(_lines(text, AXIS_NAME)))


def _side_title(axes: Axes, text: str) -> None:
    """Write a title above the labels on the left, beginning at the figure's edge."""
    axes.annotate(
        text, (EDGE_IN / WIDTH_IN, 1), xycoords=("figure fraction", "axes fraction"),
        xytext=(0, 4), textcoords="offset points", fontsize=LABEL_PT, color=FAINT,
    ).set_in_layout(False)  # fmt: skip


def _round_marks(
    axis: Any, text: Callable[[float], str] = formats.trimmed, integer: bool = False,
    percent: bool = False,
) -> None:  # fmt: skip
    """Put about five round values on a linear axis."""
    text = (lambda value: f"{100 * value:g}") if percent else text
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=integer))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def kept_labels(axes: Axes, places: Sequence[float], names: Sequence[str]) -> list[str]:
    """Return names for places on the axis, without every second or third that would touch.

    The last name is always kept.
    """
    to_axes = axes.transScale + axes.transLimits
    ends = []
    for place, name in zip(places, names, strict=True):
        centre, half = PLOT_IN * to_axes.transform((place, 1))[0], CHARACTER_IN * len(name) / 2
        ends.append((centre - half, centre + half))
    last = len(names) - 1
    for step in range(1, len(names) + 1):
        kept = [i for i in range(len(names)) if (last - i) % step == 0]
        if all(ends[i][1] + CHARACTER_IN <= ends[j][0] for i, j in pairwise(kept)):
            break
    return [name if i in kept else "" for i, name in enumerate(names)]


def _reference_line(axes: Axes, line: Mapping[str, Any]) -> None:
    axes.axhline(line["y"], color=FAINT, **LIMIT)
    axes.annotate(
        line["label"], (1, line["y"]), xycoords=("axes fraction", "data"), xytext=(3, 0),
        textcoords="offset points", va="center", fontsize=LABEL_PT, color=FAINT,
    )  # fmt: skip


def _value(spec: Spec, y: float, ends: Sequence[float] | None) -> str:
    written, unit = (formats.percent, " %") if spec.get("percent") else (formats.number, "")
    return written(y) + unit + (f" ({written(ends[0])} to {written(ends[1])})" if ends else "")


def curves(figure: Figure, spec: Spec) -> Drawn:
    """Draw curves over world sizes or message sizes.

    The description has `series`, each with label, x, y, intervals and dots, and perhaps an `ideal`,
    a `limit`, a `model` with its interval or a `fit`; `lines` at one height; `nodes`, pairs of
    world size and nodes; `ticks`, the sizes; `cap`, the largest value that the axis has to hold.
    """
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.margins(x=0.08)
    axes.grid(visible=False, axis="x")
    high = math.inf
    if spec["ylog"]:
        axes.set_yscale("log")
    else:
        high = _top(spec)
        axes.set_ylim(0, high)
    _title(axes, spec["ylabel"] + ", log scale" * spec["ylog"])
    # Ideals that lie on one line are drawn once, at the greatest length.
    ideals = sorted((curve["ideal"] for curve in spec["series"] if curve["ideal"]), key=len)
    slopes = {round(y / x, 9) if spec["ylog"] else y for ideal in ideals for x, y in ideal}
    shared = ideals[-1] if len(ideals) > 1 and len(slopes) == 1 else []
    if shared:
        axes.plot(*zip(*shared, strict=True), **IDEAL, color=INK)
    marks = []
    for index, series in enumerate(spec["series"]):
        draw_curve(axes, series | ({"ideal": []} if shared else {}), index, high)
        for x, y, ends in zip(series["x"], series["y"], series["intervals"], strict=True):
            size = formats.size_of(x) if spec.get("size_ticks") else f"{x:g} {spec['xlabel']}"
            text = f"{series['label']}, {size.lower()}: {_value(spec, y, ends)}"
            marks.append(Mark(axes, x, min(y, high), text))
    _not_measured(axes, spec, high)
    for line in spec["lines"]:
        _reference_line(axes, line)
    _round_marks(axes.yaxis, percent=spec.get("percent", False))
    low, high = axes.get_ylim()
    if spec.get("binary"):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        subs = (1, 1.5) if high < 8 * low else (1,)
        axes.yaxis.set_major_locator(LogLocator(base=2, subs=subs, numticks=9))
    elif spec["ylog"] and high > 10 * low:  # the axis shows three values or more
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 500 * low else (1, 2, 5)))
    axes.minorticks_off()
    _sizes(axes, spec)
    return CURVE_IN, marks


def _top(spec: Spec) -> float:
    series, cap = spec["series"], spec.get("cap", math.inf)
    points = [y for curve in series for y in curve["y"]]
    points += [line["y"] for line in spec["lines"]]
    for name in ("ideal", "limit"):
        points += [y for curve in series for _, y in curve.get(name, ())]
    points += [y for curve in series if curve.get("model") for _, y in curve["model"]["points"]]
    spread = [y for curve in series for _, y in curve["dots"]]
    spread += [end for curve in series for ends in curve["intervals"] if ends for end in ends]
    most = max((value for value in points if value <= cap), default=cap)
    return float((1 + BESIDE) * max(most, min(max(spread, default=0.0), REACH * most)))


def draw_curve(axes: Axes, series: Mapping[str, Any], index: int, high: float = math.inf) -> None:
    """Draw a series; what lies above the axis is a mark at its upper end, a point has its value."""
    colour, marker = SERIES_COLOURS[index], MARKERS[index]
    for name, style in (("ideal", IDEAL), ("limit", LIMIT), ("fit", MODEL)):
        if series.get(name):
            axes.plot(*zip(*series[name], strict=True), **style, color=colour)
    if series["dots"]:
        axes.plot(*zip(*series["dots"], strict=True), **DOTS, color=colour)
    # A bar joins the ends, since the median may lie outside the interval.
    bars = [(x, end) for x, ends in zip(series["x"], series["intervals"], strict=True) if ends
            for end in (*ends, math.nan)]  # fmt: skip
    caps: Any = {"color": colour, "marker": "_", "markersize": 6, "linewidth": 1.0}
    if bars:
        axes.plot(*zip(*bars, strict=True), **caps)
    if model := series.get("model"):
        xs, ys = zip(*model["points"], strict=True)
        axes.plot(xs, ys, **MODEL, color=colour)
        axes.plot([xs[-1]] * 2, model["interval"], **caps | MODEL)
        axes.plot(xs[-1], ys[-1], color=colour, marker=marker, **HOLLOW)
    axes.plot(
        series["x"], series["y"], linestyle="-" if len(series["x"]) >= MIN_JOINED else "none",
        marker=marker, color=colour, linewidth=1.6, markersize=5.5, label=series["label"],
    )  # fmt: skip
    above = [(x, y) for x, y in zip(series["x"], series["y"], strict=True) if y > high]
    bars = [(x, y) for x, y in bars if y > high]
    sizes = sorted({x for x, y in (*series["dots"], *above, *bars) if y > high})
    if sizes:
        axes.plot(sizes, [high] * len(sizes), linestyle="none", marker="^", color=colour,
                  markersize=7, clip_on=False)  # fmt: skip
    for x, y in above:
        axes.annotate(
            f"{100 * y:.0f} %", (x, high), xytext=(6, -2), textcoords="offset points",
            color=colour, fontsize=LABEL_PT, va="center",
        )  # fmt: skip


def _not_measured(axes: Axes, spec: Spec, high: float) -> None:
    """Name in the legend each kind of line that was not measured, and what is above the axis."""
    colour = INK if len(spec["series"]) > 1 else SERIES_COLOURS[0]
    styles: dict[str, Any] = {
        "ideal": IDEAL, "limit": LIMIT, "fit": MODEL, "model": MODEL | HOLLOW | {"marker": "o"},
    }  # fmt: skip
    names = {"ideal": "ideal", "model": "predicted by the rule", **spec}
    for name, style in styles.items():
        if any(series.get(name) for series in spec["series"]):
            axes.plot([], [], color=colour, **style, label=names[name])
    most = max(
        y for curve in spec["series"]
        for y in (*curve["y"], *(d[1] for d in curve["dots"]),
                  *(end for ends in curve["intervals"] if ends for end in ends))
    )  # fmt: skip
    if most > high:
        highest = _value(spec, most, None)
        label = f"above the axis, up to {highest}"
        axes.plot([], [], color=colour, linestyle="none", marker="^", label=label)


def _sizes(axes: Axes, spec: Spec) -> None:
    sizes, nodes = spec["ticks"], dict(spec.get("nodes", ()))
    names = [formats.size_of(size) if spec.get("size_ticks") else str(size) for size in sizes]
    shown = kept_labels(axes, sizes, names)
    axes.set_xticks(sizes, shown)
    axes.set_xlabel(spec["xlabel"])
    if nodes:
        top = axes.secondary_xaxis("top")
        top.set_xticks(sizes, [str(nodes.get(s, "")) if name else ""
                               for s, name in zip(sizes, shown, strict=True)])  # fmt: skip
        top.tick_params(length=0, labelcolor=FAINT)
        top.spines["top"].set_visible(False)
        top.minorticks_off()
        _side_title(axes, "Nodes")
    axes.minorticks_off()


def bands(figure: Figure, spec: Spec) -> Drawn:
    """Draw training over epochs or time: the mean over runs, and its interval as a band.

    The description has `series`, each with label, x, y and `band`, pairs of the interval's ends or
    None; `lines` at one height, such as an accuracy to reach; `whole`, if x is epochs, not seconds.
    """
    axes = figure.subplots()
    axes.margins(BESIDE)
    _title(axes, spec["ylabel"])
    marks = []
    for index, series in enumerate(spec["series"]):
        colour = SERIES_COLOURS[index]
        unknown = (math.nan, math.nan)
        low, high = zip(*(ends or unknown for ends in series["band"]), strict=True)
        axes.fill_between(series["x"], low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            series["x"], series["y"], color=colour, linewidth=1.6, label=series["label"],
            # At most 20 marks, since more would look like a thick line.
            marker=MARKERS[index], markersize=4.5, markevery=max(1, len(series["x"]) // 20),
        )  # fmt: skip
        for x, y, ends in zip(series["x"], series["y"], series["band"], strict=True):
            place = f"epoch {x:g}" if spec["whole"] else f"{formats.number(x)} s"
            marks.append(Mark(axes, x, y, f"{series['label']}, {place}: {_value(spec, y, ends)}"))
    for line in spec["lines"]:
        _reference_line(axes, line)
    axes.set_xlim(left=0)
    axes.set_xlabel(spec["xlabel"])
    _round_marks(axes.yaxis, percent=spec["percent"])
    _round_marks(axes.xaxis, integer=spec["whole"])
    return CURVE_IN, marks


def _rows(figure: Figure, spec: Spec, names: Sequence[str]) -> Axes:
    """Return a plot with a line for each name, from the top down; a long name is cut."""
    axes = figure.subplots()
    axes.set_title(" ")  # keeps room for the title on the left
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), ["".join(_lines(name, ROW_NAME)) for name in names])
    axes.set_xlabel(spec["xlabel"])
    axes.grid(visible=False, axis="y")
    axes.margins(x=BESIDE)
    _side_title(axes, spec["ylabel"])
    return axes


def dots(figure: Figure, spec: Spec) -> Drawn:
    """Draw settings, or hosts, one below the other: each with a value, an interval, its launches.

    The description has `items` with label, value, interval and dots; `line`, a value that all are
    compared with; `is_relative`, if values are differences in per cent.
    """
    axes = _rows(figure, spec, [item["label"] for item in spec["items"]])
    marks = []
    for y, item in enumerate(spec["items"]):
        colour = SERIES_COLOURS[1 if item.get("is_far") else 0]
        if item["dots"]:
            axes.plot(item["dots"], [y] * len(item["dots"]), **DOTS, color=colour)
        if item["interval"]:
            axes.plot(item["interval"], [y, y], color=colour, linewidth=1.2, marker="|")
        axes.plot([item["value"]], [y], marker="o", color=colour, markersize=6)
        ends = f" ({formats.span(tuple(item['interval']))})" if item["interval"] else ""
        text = f"{item['label']}: {formats.number(item['value'])}{ends}"
        marks.append(Mark(axes, item["value"], y, text))
    if spec.get("is_relative"):  # at least 1 % on each side, so that noise does not look large
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -1), max(high, 1))
    else:
        axes.set_xlim(left=0)
    if "line" in spec:
        axes.axvline(spec["line"], color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
    _round_marks(axes.xaxis)
    return ROWS_IN + 0.31 * len(spec["items"]), marks


# Each kind of change has its own shape, for readers who see no colour.
SHAPES = {"slower": "<", "faster": ">", "same": "s", "open": "o"}
COLOURS = {
    "slower": SERIES_COLOURS[1], "faster": SERIES_COLOURS[0], "same": SERIES_COLOURS[2],
    "open": FAINT,
}  # fmt: skip


def changes(figure: Figure, spec: Spec) -> Drawn:
    """Draw changes against a base, one point below the other, around a line at 0.

    The description has `rows`, the names of points; `items`, one for each row, with value, interval
    and kind; `margin`, within which a change counts as none. Values are fractions, drawn in per
    cent.
    """
    axes, items = _rows(figure, spec, spec["rows"]), spec["items"]
    # The axis has at least 1 % on each side, so that noise does not look large.
    values = [*spec["margin"], -0.01, 0.01, *(item["value"] for item in items)]
    ends = [(end, item["kind"]) for item in items for end in item["interval"] or ()]
    values += [end for end, kind in ends if kind != "open"]
    # Intervals may widen the axis by half at most.
    most = 1.5 * max(map(abs, values))
    values += [min(max(end, -most), most) for end, kind in ends if kind == "open"]
    beside = BESIDE * (max(values) - min(values))
    axes.set_xlim(min(values) - beside, max(values) + beside)
    axes.axvspan(*spec["margin"], color=GRID, alpha=0.6, linewidth=0)
    axes.axvline(0.0, color=INK, linewidth=0.9)
    marks = []
    low, high = axes.get_xlim()
    for y, item in enumerate(items):
        colour = COLOURS[item["kind"]]
        for end, arrow in zip(item["interval"] or (), "<>", strict=False):
            inside = min(max(end, low), high)
            axes.plot(
                [item["value"], inside], [y, y], color=colour, linewidth=1.2, markevery=[1],
                marker="|" if inside == end else arrow, markersize=5, clip_on=False,
            )  # fmt: skip
        axes.plot(
            [item["value"]], [y], marker=SHAPES[item["kind"]], color=colour, markersize=6,
            markerfacecolor="none" if item["kind"] == "open" else colour,
        )  # fmt: skip
        marks.append(Mark(axes, item["value"], y, item["text"]))
    _round_marks(axes.xaxis, lambda value: f"{100 * value:+.3g}" if value else "0")
    return ROWS_IN + 0.31 * len(items), marks


# From the foot of a bar to its top.
OF_CAUSES = {
    "own": SERIES_COLOURS[0], "exposed": SERIES_COLOURS[1], "imbalance": SERIES_COLOURS[2],
    "input": SERIES_COLOURS[3], "fixed": SERIES_COLOURS[4], "contention": SERIES_COLOURS[5],
    "ddp": FAINT,
}  # fmt: skip


def stacks(figure: Figure, spec: Spec) -> Drawn:
    """Draw a step stacked by cause over ranks, and below how much longer it takes than its ideal.

    The description has `bars`, each with ranks, parts, lost, total, ideal and net in ms, and
    `names`, the causes in the order in which they are stacked.
    """
    above, below = figure.subplots(2, sharex=True, height_ratios=(1.75, 1.35))
    bars, places = spec["bars"], range(len(spec["bars"]))
    diamond: Any = {"color": INK, "marker": "D", "markersize": 4.5, "markerfacecolor": "none"}
    # An interval that is wider than twice the highest bar or sum would leave the bars no room.
    highest = (sum(part["ms"] for part in bar["lost"] if part["ms"] > 0) for bar in bars)
    most = 2.0 * max(*highest, *(bar["net"] or 0.0 for bar in bars)) or math.inf
    _title(above, spec["ylabel"])
    _title(below, spec["lost_label"])
    for cause, title in spec["names"].items():
        above.bar(0, 0, color=OF_CAUSES[cause], label=title)
    marks = _stack(above, spec, "parts") + _stack(below, spec, "lost")
    for x, bar in enumerate(bars):
        above.plot([x - 0.45, x + 0.45], [bar["ideal"]] * 2, color=INK, linewidth=1.6)
        top = max(sum(part["ms"] for part in bar["parts"] if part["ms"] > 0), bar["ideal"])
        above.annotate(
            formats.trimmed(bar["total"]), (x, top), xytext=(0, 2), textcoords="offset points",
            ha="center", fontsize=SMALL_PT,
        )  # fmt: skip
        if bar["net"] is not None:
            ends = [min(end, most) for end in bar["net_interval"] or ()]
            below.plot([x] * len(ends), ends, color=INK, linewidth=1, marker="_", markersize=5)
            if ends and ends[1] < bar["net_interval"][1]:
                below.plot([x], [most], color=INK, marker="^", markersize=5)
            below.plot([x], [bar["net"]], **diamond)
    above.plot([], [], color=INK, linewidth=1.6, label="Ideal, from the baseline")
    below.plot([], [], **diamond, linestyle="none", label="Sum, with 95 % interval")
    for axes in (above, below):
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.margins(y=0.12)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        _round_marks(axes.yaxis)
    below.set_xlim(-0.6, len(bars) - 0.4)
    names = [str(bar["ranks"]) for bar in bars]
    below.set_xticks(places, kept_labels(below, places, names))
    below.set_xlabel(spec["xlabel"])
    return 4.1, marks


def _stack(axes: Axes, spec: Spec, name: str) -> list[Mark]:
    marks = []
    for x, bar in enumerate(spec["bars"]):
        foot = 0.0
        parts = {part["cause"]: part["ms"] for part in bar[name]}
        for cause, title in spec["names"].items():
            if (value := parts.get(cause, 0.0)) > 0:
                axes.bar(x, value, 0.72, foot, color=OF_CAUSES[cause], linewidth=0)
                text = f"{bar['ranks']} ranks, {title}: {formats.number(value)} ms"
                marks.append(Mark(axes, x, foot + value / 2, text))
                foot += value
    return marks


def roofline(figure: Figure, spec: Spec) -> Drawn:
    """Draw `points` of kernels (label, precision, x in FLOP per byte, y in TFLOP/s) under peaks.

    The description also has `peaks`, precision -> TFLOP/s, and `tb_per_s` of the memory.
    """
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    peaks, slope = spec["peaks"], spec["tb_per_s"]
    bends = [peak / slope for peak in peaks.values()]
    places = [*bends, *(point["x"] for point in spec["points"])]
    low, high = min(places) / 4, max(places) * 4
    colours = dict(zip(peaks, SERIES_COLOURS, strict=False))
    for (precision, peak), bend in zip(peaks.items(), bends, strict=True):
        roof: Any = LIMIT | {"color": colours[precision]}
        label = f"{precision}, at most {formats.number(peak)} TFLOP/s"
        axes.plot([low, bend, high], [low * slope, peak, peak], **roof, label=label)
    marks = []
    for number, point in enumerate(spec["points"], start=1):
        x, y = point["x"], point["y"]
        axes.plot([x], [y], marker="o", markersize=5.5, color=colours[point["precision"]])
        axes.annotate(f"  {number}", (x, y), fontsize=SMALL_PT, va="top")
        rate = f"{formats.number(y)} TFLOP/s at {formats.number(x)} FLOP per byte"
        marks.append(Mark(axes, x, y, f"{number}, {point['label']}: {rate}"))
    _title(axes, spec["ylabel"])
    axes.set_xlabel(spec["xlabel"])
    axes.minorticks_off()
    return CURVE_IN, marks


KINDS: dict[str, Callable[[Figure, Spec], Drawn]] = {
    "curve": curves, "band": bands, "category": dots, "change": changes, "stack": stacks,
    "roofline": roofline,
}  # fmt: skip


DOTS_PER_IN, POINTS_PER_IN = 200, 72
# Radius in which a place reacts to the pointer.
REACH_PT = 7


def draw(spec: Spec, source: str = "") -> str:
    """Return a figure as an SVG element for HTML, with a title and a description.

    Its basis lies below the view box; `data-saved` is the view box that holds both.
    """
    with mpl.rc_context(STYLE):
        canvas = _canvas(spec, source)
        svg = _svg(canvas)
    # HTML needs no namespaces, and group ids would repeat between figures.
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    key = escape(spec["id"], quote=True)
    width = WIDTH_IN * POINTS_PER_IN
    height = canvas.figure.get_figheight() * POINTS_PER_IN
    parts = [
        f'<svg role="img" aria-labelledby="{key}-title {key}-desc" '
        f'viewBox="0 0 {width:g} {canvas.shown_in * POINTS_PER_IN:g}" '
        f'data-saved="0 0 {width:g} {height:g}" preserveAspectRatio="xMidYMid meet">',
        f'<title id="{key}-title">{escape(spec["title"])}</title>',
        f'<desc id="{key}-desc">{escape(spec["desc"])}</desc>',
        f"<metadata>{escape(source)}</metadata>" if source else "",
        svg[svg.index(">") + 1 : svg.rindex("</svg>")],
        "<g>",
    ]
    # Invisible places show their value under the pointer, without a script.
    for mark in canvas.marks:
        x, y = mark.axes.transData.transform((mark.x, mark.y))
        scale = POINTS_PER_IN / canvas.figure.get_dpi()
        parts.append(
            f'<circle cx="{x * scale:.1f}" cy="{height - y * scale:.1f}" r="{REACH_PT}" '
            f'fill="none" pointer-events="all"><title>{escape(mark.text)}</title></circle>'
        )
    return "\n".join([*filter(None, parts), "</g></svg>\n"])


def save(spec: Spec, source: str, kind: Format) -> bytes:
    """Return a figure as the bytes of a file, its basis below it."""
    with mpl.rc_context(STYLE):
        canvas = _canvas(spec, source)
        canvas.figure.set_facecolor("#ffffff")
        if kind == "svg":
            start, _, body = _svg(canvas).partition(">")
            text = f"<title>{escape(spec['title'])}</title>\n<desc>{escape(spec['desc'])}</desc>\n"
            text += f"<metadata>{escape(source)}</metadata>"
            return f"{start}>\n{text}{body}".encode("utf-8", "backslashreplace")
        file = io.BytesIO()
        facts: dict[str, dict[str, Any]] = {
            "pdf": {"CreationDate": None, "Creator": None, "Producer": None,
                    "Title": spec["title"], "Subject": source},
            "png": {"Software": None, "Title": spec["title"], "Description": source},
        }  # fmt: skip
        canvas.figure.savefig(file, format=kind, dpi=DOTS_PER_IN, metadata=facts[kind])
        return file.getvalue()


def write(page: Mapping[str, Any], folder: Path, formats: Sequence[Format] = FORMATS) -> list[Path]:
    """Write every figure of a page as files named by its id; return them, in the page's order."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for spec in (figure for section in page["sections"] for figure in section["figures"]):
        for kind in formats:
            made.append(folder / f"{spec['id']}.{kind}")
            write_atomically(made[-1], save(spec, page["source"], kind))
    return made


def _svg(canvas: Canvas) -> str:
    text = io.StringIO()
    canvas.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
