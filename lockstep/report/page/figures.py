"""From a figure's description to inline SVG.

Drawn with Matplotlib's figure objects alone (no pyplot, no display). Text stays text, ids hang on
a fixed salt and no date is written, so the same data give the same bytes. Colours become CSS
variables, which lets the page recolour its figures in dark mode and in print.
"""

import io
import math
import re
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from lockstep.vocabulary.text import formats

# Okabe and Ito's palette without the yellow, which is unreadable on white.
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#22282f"
FAINT = "#8a939c"
GRID = "#dfe3e7"
WIDTH_IN = 5.4
HEIGHT_IN = 3.1
TOP_IN = 0.12
# Of the text at its size: a line of the legend, and an average character.
LINE_IN = 0.2
CHARACTER_IN = 0.08
# Two points are a difference, not a trend: they are not joined.
MIN_JOINED = 3
# What was not measured.
DASHED: Any = {"linestyle": (0, (5, 3)), "linewidth": 1.0, "alpha": 0.75}
HOLLOW: Any = {"marker": "o", "markersize": 5.5, "markerfacecolor": "none"}
MAX_TICKS = 10

VARIABLES = {colour: f"var(--c{i}, {colour})" for i, colour in enumerate(SERIES_COLOURS)} | {
    INK: f"var(--ink, {INK})",
    FAINT: f"var(--faint, {FAINT})",
    GRID: f"var(--grid, {GRID})",
}

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lockstep",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    # A dollar sign in someone's case name is no formula.
    "text.parse_math": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


def draw(spec: dict[str, Any], source: str = "") -> str:
    """Return a figure as an SVG element with a title and a description.

    Args:
        spec: A description as `panels.parts` makes it, of kind curve or category.
        source: What the numbers are and which command drew them, kept as the figure's metadata.
    """
    with mpl.rc_context(STYLE):
        figure = _curves(spec) if spec["kind"] == "curve" else _categories(spec)
        return _svg(figure, spec, source)


def _figure(
    height_in: float, *, left_in: float, right_in: float, bottom_in: float
) -> tuple[Figure, Axes]:
    """Return a figure with margins in inches; finding them by drawing would cost each one twice."""
    figure = Figure(figsize=(WIDTH_IN, height_in))
    FigureCanvasSVG(figure)
    figure.subplots_adjust(
        left=left_in / WIDTH_IN,
        right=1 - right_in / WIDTH_IN,
        bottom=bottom_in / height_in,
        top=1 - TOP_IN / height_in,
    )
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    return figure, axes


def _curves(spec: dict[str, Any]) -> Figure:
    modelled = any(series.get("model") for series in spec["series"])
    legend_in = LINE_IN * (len(spec["series"]) + modelled)
    figure, axes = _figure(
        HEIGHT_IN + legend_in,
        left_in=0.95,
        right_in=0.62 if spec["lines"] else 0.2,
        bottom_in=0.68 + legend_in,
    )
    axes.set_xscale("log", base=2)
    if spec["ylog"]:
        axes.set_yscale("log")
    for index, series in enumerate(spec["series"]):
        _one_curve(axes, series, index)
    if modelled:
        axes.plot([], [], **DASHED, color=INK, **HOLLOW, label="by the rule, predicted")
    _limits(axes, spec)
    for line in spec["lines"]:
        _reference_line(axes, line["y"], line["label"])
    _axes_text(axes, spec)
    figure.legend(loc="lower left", ncols=1, handlelength=2.4)
    return figure


def _one_curve(axes: Axes, series: dict[str, Any], index: int) -> None:
    colour, marker = SERIES_COLOURS[index], MARKERS[index]
    if series["ideal"]:
        xs, ys = zip(*series["ideal"], strict=True)
        axes.plot(xs, ys, **DASHED, color=colour)
    if series["dots"]:
        xs, ys = zip(*series["dots"], strict=True)
        axes.plot(xs, ys, linestyle="none", marker=".", color=colour, alpha=0.45, markersize=8)
    for x, interval in zip(series["x"], series["intervals"], strict=True):
        if interval:
            # From end to end: the median may lie outside the interval of a mean.
            axes.plot([x, x], interval, color=colour, marker="_", markersize=6, linewidth=1.0)
    if series.get("model"):
        _modelled(axes, series["model"], colour, marker)
    joined = "-" if len(series["x"]) >= MIN_JOINED else "none"
    axes.plot(
        series["x"], series["y"], linestyle=joined, marker=marker, color=colour, linewidth=1.6,
        markersize=5.5, label=series["label"],
    )  # fmt: skip


def _modelled(axes: Axes, model: dict[str, Any], colour: str, marker: str) -> None:
    """Draw a model dashed, and the size it predicts hollow with a dotted interval."""
    xs, ys = zip(*model["points"], strict=True)
    axes.plot(xs, ys, **DASHED, color=colour)
    axes.plot(
        [xs[-1], xs[-1]], model["interval"], linestyle=(0, (1, 2)), color=colour, marker="_",
        markersize=6, linewidth=1.0,
    )  # fmt: skip
    axes.plot(xs[-1], ys[-1], color=colour, **{**HOLLOW, "marker": marker})


def _limits(axes: Axes, spec: dict[str, Any]) -> None:
    """Keep every size inside the axis, and linear scales down to zero."""
    models = [series["model"] for series in spec["series"] if series.get("model")]
    xs = [x for series in spec["series"] for x in series["x"]]
    xs += [model["points"][-1][0] for model in models]
    axes.set_xlim(min(xs) / 1.25, max(xs) * 1.25)
    if spec["ylog"]:
        ticks = _log_ticks(*axes.get_ylim())
        axes.set_yticks(ticks, [formats.trimmed(tick) for tick in ticks])
        return
    tops = [y for s in spec["series"] for y in (*s["y"], *(d[1] for d in s["dots"]))]
    tops += [interval[1] for s in spec["series"] for interval in s["intervals"] if interval]
    tops += [y for m in models for y in (m["interval"][1], *(point[1] for point in m["points"]))]
    tops += [line["y"] for line in spec["lines"]]
    axes.set_ylim(0, 1.08 * max(tops))


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round values inside a logarithmic axis, at least three where there are so many."""
    ticks: list[float] = []
    for steps in (
        (1,),
        (1, 2, 5),
        (1, 1.5, 2, 3, 4, 5, 6, 8),
        tuple(i / 10 for i in range(10, 100)),
    ):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(ticks) >= MIN_JOINED:
            break
    return ticks


def _reference_line(axes: Axes, y: float, label: str) -> None:
    axes.axhline(y, color=FAINT, linewidth=0.9, linestyle=(0, (2, 2)))
    # Beside the axes, where no point can lie under it.
    axes.annotate(
        label, (1, y), xycoords=("axes fraction", "data"), xytext=(3, 0), fontsize=9,
        textcoords="offset points", ha="left", va="center", color=FAINT,
    )  # fmt: skip


def _axes_text(axes: Axes, spec: dict[str, Any]) -> None:
    axes.set_xlabel(spec["xlabel"])
    axes.set_ylabel(spec["ylabel"])
    ticks = spec["ticks"][:: math.ceil(len(spec["ticks"]) / MAX_TICKS)]
    name = formats.size_of if spec.get("size_ticks") else str
    axes.set_xticks(ticks, [name(size) for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    if spec.get("percent"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    elif not spec["ylog"]:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.trimmed(value)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=False, axis="x")


def _categories(spec: dict[str, Any]) -> Figure:
    items = spec["items"]
    longest = max(len(item["label"]) for item in items)
    left_in = min(0.45 + CHARACTER_IN * longest, WIDTH_IN / 2)
    figure, axes = _figure(1.0 + 0.34 * len(items), left_in=left_in, right_in=0.2, bottom_in=0.55)
    for y, item in enumerate(items):
        colour = SERIES_COLOURS[0]
        for dot in item["dots"]:
            axes.plot([dot], [y], marker=".", color=colour, alpha=0.45, markersize=9)
        if item["interval"]:
            axes.plot(item["interval"], [y, y], color=colour, linewidth=1.2, marker="|")
        axes.plot([item["value"]], [y], marker="o", color=colour, markersize=6)
    tops = [max([item["value"], *item["dots"], *(item["interval"] or [])]) for item in items]
    axes.set_xlim(0, 1.08 * max(tops))
    axes.set_ylim(len(items) - 0.4, -0.6)
    axes.set_yticks(range(len(items)), [item["label"] for item in items])
    axes.set_xlabel(spec["xlabel"])
    axes.set_ylabel(spec["ylabel"])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.trimmed(value)))
    axes.grid(visible=False, axis="y")
    return figure


def _svg(figure: Figure, spec: dict[str, Any], source: str) -> str:
    """Return the figure as an element for HTML: no declarations, no addresses, its own names."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # Matplotlib's own metadata is a list of addresses.
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Inside HTML the parser knows the namespaces; group ids would repeat between figures.
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    return _named(svg, spec, source)


def _named(svg: str, spec: dict[str, Any], source: str) -> str:
    key = escape(spec["id"], quote=True)
    box = re.search(r'viewBox="[^"]*"', svg)
    body = svg[svg.index(">") + 1 :]
    head = (
        f'<svg role="img" aria-labelledby="{key}-title {key}-desc" {box.group(0) if box else ""} '
        f'preserveAspectRatio="xMidYMid meet">\n<title id="{key}-title">{escape(spec["title"])}'
        f'</title>\n<desc id="{key}-desc">{escape(spec["desc"])}</desc>'
    )
    return head + (f"\n<metadata>{escape(source)}</metadata>" if source else "") + body
