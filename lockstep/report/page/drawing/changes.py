"""Changes against a base, one point below the other: each with its interval, around a line at 0.

The description has `rows`, the names of points; `series`, each with label and items, one for each
row: None, or value, interval and kind; `margin`, the ends within which a change is none. Values are
fractions, drawn in per cent. The shape tells the kind without the colour.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lockstep.report.page.drawing import figure_style
from lockstep.report.page.drawing import figure_style as canvases
from lockstep.report.page.drawing.figure_style import FAINT, GRID, INK, SERIES_COLOURS, Canvas, Mark

# Of a lone point, and of each of several in a row.
ROW_IN, SERIES_IN, BETWEEN_IN = 0.31, 0.17, 0.16
BESIDE = 1.06
# Less is noise, and shall not look like more.
LEAST_SPAN = 0.01
# An end of an interval that shows nothing is drawn up to so many times all else.
REACH = 1.5
SHAPES = {"slower": "<", "faster": ">", "same": "s", "open": "o"}
COLOURS = {
    "slower": SERIES_COLOURS[1], "faster": SERIES_COLOURS[0], "same": SERIES_COLOURS[2],
    "open": FAINT,
}  # fmt: skip


def changes(spec: dict[str, Any], source: str) -> Canvas:
    """Return a figure of one row for each point, and in it a line for each series."""
    series = spec["series"]
    several = len(series) > 1
    # The base has the first colour, in this figure and in those of its curves.
    legend = [
        Line2D([], [], color=SERIES_COLOURS[i], marker="s", linewidth=1.2, label=one["label"])
        for i, one in enumerate(series, start=1)
        if several
    ]
    row_in = BETWEEN_IN + SERIES_IN * len(series) if several else ROW_IN
    canvas = canvases.rows(spec, source, spec["rows"], row_in, legend)
    (axes,) = canvas.axes
    low, high = _ends(spec)
    axes.set_xlim(low, high)
    axes.axvspan(*spec["margin"], color=GRID, alpha=0.6, linewidth=0)
    axes.axvline(0.0, color=INK, linewidth=0.9)
    marks = figure_style.linear(100 * low, 100 * high)
    axes.set_xticks(
        [mark / 100 for mark in marks], [f"{mark:+g}" if mark else "0" for mark in marks]
    )
    for index, one in enumerate(series):
        shift = (index - (len(series) - 1) / 2) * SERIES_IN / row_in
        for row, item in enumerate(one["items"]):
            if item:
                colour = SERIES_COLOURS[index + 1] if several else COLOURS[item["kind"]]
                _one(axes, row + shift, item, colour)
                canvas.marks.append(Mark(axes, item["value"], row + shift, item["text"]))
    return canvas


def _one(axes: Axes, y: float, item: dict[str, Any], colour: str) -> None:
    """Draw a change; an end of its interval beyond the axis is an arrow at the edge."""
    low, high = axes.get_xlim()
    for end, edge, arrow in zip(item["interval"] or (), (low, high), "<>", strict=False):
        is_beyond = not low <= end <= high
        axes.plot(
            [item["value"], edge if is_beyond else end], [y, y], color=colour, linewidth=1.2,
            marker=arrow if is_beyond else "|", markevery=[1], markersize=5, clip_on=False,
        )  # fmt: skip
    axes.plot(
        [item["value"]], [y], marker=SHAPES[item["kind"]], color=colour, markersize=6,
        markerfacecolor="none" if item["kind"] == "open" else colour, linestyle="none",
    )  # fmt: skip


def _ends(spec: dict[str, Any]) -> tuple[float, float]:
    """Return the ends of the axis: around all that is shown, and part of what is not."""
    items = [item for one in spec["series"] for item in one["items"] if item]
    values = [*spec["margin"], *(item["value"] for item in items)]
    values += [
        end for item in items if item["kind"] != "open" for end in item["interval"] or ()
    ]  # fmt: skip
    most = REACH * max(LEAST_SPAN, *map(abs, values))
    loose = [
        min(max(end, -most), most)
        for item in items if item["kind"] == "open" for end in item["interval"] or ()
    ]  # fmt: skip
    low, high = min(*values, *loose, -LEAST_SPAN), max(*values, *loose, LEAST_SPAN)
    beside = (BESIDE - 1) * (high - low)
    return low - beside, high + beside
