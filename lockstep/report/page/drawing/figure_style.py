"""The sheet that a figure is drawn on: margins in inches, legend, and the basis below it.

Margins are computed from the texts, since finding them by drawing would cost each figure twice.
The basis is below the part that a page shows: a figure that is saved alone has it.

Colours, marks and sizes that all figures share.

Where an axis has its marks, and which of them have room for a label.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

# Okabe and Ito's palette where it has a contrast of 3 on white, else a darker hue.
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2649a", "#7b4fa3", "#8a6d00")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#22282f"
FAINT = "#6e7781"
GRID = "#dfe3e7"
# As wide as a column of text, so that a figure is printed without being scaled.
WIDTH_IN = 5.4
# Of the text at its size: a line of the legend, an average character, and one of small print.
LINE_IN = 0.168
CHARACTER_IN = 0.083
SMALL_IN = 0.0525
SMALL_LINE_IN = 0.135
TEXT_PT, LABEL_PT, SMALL_PT = 10.0, 9.0, 7.0
# Two points are a difference, not a trend: they are not joined.
MIN_JOINED = 3
# Dashed is the ideal and a limit, dotted a model: neither was measured.
IDEAL: Any = {"linestyle": (0, (5, 3)), "linewidth": 1.1}
LIMIT: Any = {"linestyle": (0, (2, 2)), "linewidth": 0.9}
MODEL: Any = {"linestyle": (0, (1, 1.6)), "linewidth": 1.3}
DOTS: Any = {"linestyle": "none", "marker": ".", "alpha": 0.45, "markersize": 7}

# A page gives the colours other values in dark mode and in print.
VARIABLES = {colour: f"var(--c{i}, {colour})" for i, colour in enumerate(SERIES_COLOURS)} | {
    INK: f"var(--ink, {INK})",
    FAINT: f"var(--faint, {FAINT})",
    GRID: f"var(--grid, {GRID})",
}

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lockstep",
    # Of printers, some refuse Type 3.
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": TEXT_PT,
    # A dollar sign in someone's case name is no formula.
    "text.parse_math": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": LABEL_PT,
    "ytick.labelsize": LABEL_PT,
    "legend.frameon": False,
    "legend.fontsize": LABEL_PT,
}


# Marks that a logarithmic axis needs at least.
FEWEST = 3
# Of a linear axis, about.
WANTED = 5
# Marks of an axis of powers of two.
MOST = 8
# Between two labels, which are smaller than other text.
GAP_IN, NARROW = 0.07, 0.88


def logarithmic(low: float, high: float) -> list[float]:
    """Return round values from low to high, at least three where there are so many."""
    found: list[float] = []
    for steps in (
        (1,),
        (1, 2, 5),
        (1, 1.5, 2, 3, 4, 5, 6, 8),
        tuple(i / 10 for i in range(10, 100)),
    ):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(found) >= FEWEST:
            break
    return found


def linear(low: float, high: float) -> list[float]:
    """Return about five round values from low to high, 0 among them where it lies between."""
    if not high > low:
        return [low]
    rough = (high - low) / WANTED
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(decade * s for s in (1, 2, 2.5, 5, 10) if decade * s >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


def binary(low: float, high: float) -> list[float]:
    """Return powers of two from low to high, every second or third of many."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = 1 + (last - first) // MOST
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


def with_room(
    values: Sequence[float], names: Sequence[str], place_in: Callable[[float], float]
) -> list[str]:
    """Return the names, each second or third alone where one would lie on its neighbour.

    The last one is always kept; `place_in` gives where on the axis a value lies, in inches.
    """
    last = len(values) - 1
    ends = [
        (place_in(value) - half_in, place_in(value) + half_in)
        for value, name in zip(values, names, strict=True)
        for half_in in [CHARACTER_IN * NARROW * len(name) / 2]
    ]
    for step in range(1, len(values) + 1):
        kept = [i for i in range(len(values)) if (last - i) % step == 0]
        if all(ends[i][1] + GAP_IN <= ends[j][0] for i, j in pairwise(kept)):
            break
    return [name if i in kept else "" for i, name in enumerate(names)]


def widest_in(names: Sequence[str]) -> float:
    """Return the room that the longest name takes, in inches."""
    return CHARACTER_IN * max(map(len, names), default=0)


TOP_IN = 0.34
LEFT_IN = 0.24
RIGHT_IN = 0.22
# Marks and their labels, and the name of the axis below.
BELOW_IN = 0.52
# From the left end to the text of a legend.
HANDLE_IN = 0.5
EDGE_IN = 0.06
MAX_LABEL_LINES = 2
# Longer labels stand one below the other.
HALF = 27
# A command line may name a hundred folders.
MAX_SOURCE_LINES = 3


@dataclass(frozen=True)
class Mark:
    """A place of a figure that says its value to whoever points at it."""

    axes: Axes
    x: float
    y: float
    text: str


@dataclass
class Canvas:
    """A figure that is being drawn.

    Attributes:
        shown_in: Height of what a page shows; the basis is below it.
    """

    figure: Figure
    axes: list[Axes]
    shown_in: float
    marks: list[Mark] = field(default_factory=list)


def sheet(
    spec: dict[str, Any],
    source: str,
    plots_in: Sequence[float],
    *,
    left_in: float,
    right_in: float = RIGHT_IN,
    top_in: float = TOP_IN,
    legend: Sequence[Line2D] = (),
) -> Canvas:
    """Return an empty figure: plots from the top down, a legend, title and basis below."""
    basis = _basis(spec, source)
    texts = [
        wrapped(str(line2d.get_label()), (int((WIDTH_IN - HANDLE_IN - EDGE_IN) / CHARACTER_IN)))
        for line2d in legend
    ]
    columns = 2 if len(texts) > 1 and max(map(len, texts)) <= HALF else 1
    lines = -(-sum(1 + text.count("\n") for text in texts) // columns)
    below = BELOW_IN + LINE_IN * lines + (EDGE_IN if lines else 0)
    shown_in = sum(plots_in) + top_in * len(plots_in) + below
    basis_in = SMALL_LINE_IN * len(basis) + 2 * EDGE_IN if basis else 0.0
    height_in = shown_in + basis_in
    figure, bottom_in = _empty(height_in), height_in
    canvas = Canvas(figure, [], shown_in)
    for plot_in in plots_in:
        bottom_in -= top_in + plot_in
        box = (left_in, bottom_in, WIDTH_IN - left_in - right_in, plot_in)
        canvas.axes.append(_plot(figure, box, height_in))
    if legend:
        at = (EDGE_IN / WIDTH_IN, (bottom_in - BELOW_IN) / height_in)
        figure.legend(
            list(legend), texts, loc="upper left", ncols=columns, handlelength=2.2, borderpad=0,
            borderaxespad=0, labelspacing=0.25, bbox_to_anchor=at,
        )  # fmt: skip
    _write_basis(figure, basis, (basis_in - EDGE_IN) / height_in)
    return canvas


def _empty(height_in: float) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, height_in))
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    return figure


def _write_basis(figure: Figure, basis: Sequence[str], top: float) -> None:
    figure.text(
        EDGE_IN / WIDTH_IN, top, "\n".join(basis), color=FAINT,
        fontsize=SMALL_PT, va="top", linespacing=1.25,
    )  # fmt: skip


def rows(
    spec: dict[str, Any],
    source: str,
    names: Sequence[str],
    row_in: float,
    legend: Sequence[Line2D] = (),
) -> Canvas:
    """Return an empty figure with a line for each name, from the top down.

    A name is cut where it would take more than half of the width.
    """
    room = int(WIDTH_IN / 2 / CHARACTER_IN)
    shown = [wrapped(name, room).partition("\n")[0] for name in names]
    left_in = 0.2 + widest_in(shown)
    top_in = LINE_IN + EDGE_IN
    plots_in = [row_in * len(shown)]
    canvas = sheet(spec, source, plots_in, left_in=left_in, top_in=top_in, legend=legend)
    (axes,) = canvas.axes
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_yticks(range(len(shown)), shown)
    axes.set_xlabel(spec["xlabel"], fontsize=LABEL_PT)
    axes.grid(visible=False, axis="y")
    side_head(axes, spec["ylabel"])
    return canvas


def _plot(figure: Figure, box_in: tuple[float, float, float, float], height_in: float) -> Axes:
    left, bottom, width, height = box_in
    axes = figure.add_axes(
        (left / WIDTH_IN, bottom / height_in, width / WIDTH_IN, height / height_in)
    )
    axes.patch.set_alpha(0)
    return axes


def _basis(spec: dict[str, Any], source: str) -> list[str]:
    """Return what is said of a figure that is saved alone, line by line."""
    if not (source or spec.get("basis")):
        return []
    width = int((WIDTH_IN - 2 * EDGE_IN) / SMALL_IN)
    lines = textwrap.wrap(f"{spec['title']}. {spec.get('note', '')}", width)
    for sentence in spec.get("basis", ()):
        lines += textwrap.wrap(sentence, width)
    return lines + _short(source, width, MAX_SOURCE_LINES)


def wrapped(text: str, width: int) -> str:
    """Return a label on at most two lines, what is beyond them left out."""
    return "\n".join(_short(text, width, MAX_LABEL_LINES)) or " "


def _short(text: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(text, width, max_lines=most, placeholder=" \u2026")


def head(axes: Axes, text: str, raised: bool = False) -> None:
    """Write what the vertical axis measures above it, where no length of text is cut.

    It is raised where another line is between.
    """
    axes.annotate(
        wrapped(text, int(WIDTH_IN / CHARACTER_IN)).partition("\n")[0], (0, 1),
        xycoords="axes fraction", xytext=(-2, 18 if raised else 6), textcoords="offset points",
        ha="left", va="bottom", fontsize=LABEL_PT,
    )  # fmt: skip


def side_head(axes: Axes, text: str) -> None:
    """Write above the labels on the left what they are, from the edge on, so that it is not cut."""
    axes.annotate(
        text, (EDGE_IN / WIDTH_IN, 1), xycoords=("figure fraction", "axes fraction"),
        xytext=(0, 4), textcoords="offset points", ha="left", va="bottom", fontsize=LABEL_PT,
        color=FAINT,
    )  # fmt: skip


def width_in(axes: Axes) -> float:
    """Return the width of a plot in inches."""
    return float(axes.get_position().width * WIDTH_IN)
