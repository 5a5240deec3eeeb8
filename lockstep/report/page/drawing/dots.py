"""Settings, or hosts, one below the other: each with a value, an interval and its launches.

The description has `items` with label, value, interval and dots; `line`, a value that all are
compared with; `is_relative`, where values are differences in per cent and not from zero on.
"""

from typing import Any

from lockstep.core import formats
from lockstep.report.page.drawing import figure_style
from lockstep.report.page.drawing import figure_style as canvases
from lockstep.report.page.drawing.figure_style import INK, SERIES_COLOURS, Canvas, Mark

ROW_IN = 0.31
BESIDE = 1.06
# A difference in per cent: less is noise, and shall not look like more.
LEAST_SPAN = 1.0


def rows(spec: dict[str, Any], source: str) -> Canvas:
    """Return a figure of one line for each item."""
    items = spec["items"]
    canvas = canvases.rows(spec, source, [item["label"] for item in items], ROW_IN)
    (axes,) = canvas.axes
    for y, item in enumerate(items):
        colour = SERIES_COLOURS[1 if item.get("is_far") else 0]
        dots = item["dots"]
        if dots:
            axes.plot(dots, [y] * len(dots), linestyle="none", marker=".", color=colour, alpha=0.45,
                      markersize=8)  # fmt: skip
        if item["interval"]:
            axes.plot(item["interval"], [y, y], color=colour, linewidth=1.2, marker="|")
        axes.plot([item["value"]], [y], marker="o", color=colour, markersize=6)
        canvas.marks.append(Mark(axes, item["value"], y, _text(item)))
    low, high = _ends(spec)
    axes.set_xlim(low, high)
    marks = figure_style.linear(low, high)
    axes.set_xticks(marks, [formats.trimmed(mark) for mark in marks])
    if "line" in spec:
        axes.axvline(spec["line"], color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
    return canvas


def _ends(spec: dict[str, Any]) -> tuple[float, float]:
    values = [
        value for item in spec["items"]
        for value in (item["value"], *item["dots"], *(item["interval"] or ()))
    ]  # fmt: skip
    if not spec.get("is_relative"):
        return 0.0, BESIDE * max(values)
    low, high = min(*values, -LEAST_SPAN), max(*values, LEAST_SPAN)
    beside = (BESIDE - 1) * (high - low)
    return low - beside, high + beside


def _text(item: dict[str, Any]) -> str:
    ends = f" ({formats.span(tuple(item['interval']))})" if item["interval"] else ""
    return f"{item['label']}: {formats.number(item['value'])}{ends}"
