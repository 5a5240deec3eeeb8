"""Curves of training over epochs or time: the mean over runs, and its interval as a band.

The description has `series`, each with label, x, y and `band`, pairs of the interval's ends or None
where none is known; `lines` at one height, such as an accuracy to reach; `percent`.
"""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lockstep.core import formats
from lockstep.report.page.drawing import figure_style
from lockstep.report.page.drawing.figure_style import (
    LABEL_PT,
    LEFT_IN,
    MARKERS,
    RIGHT_IN,
    SERIES_COLOURS,
    Canvas,
    head,
    sheet,
)
from lockstep.report.page.drawing.traces import PLOT_IN, name_of, reference_line, values

# Of more epochs, marks would be a thick line.
MOST_MARKS = 20
BESIDE = 0.05
# As faint as the launches' dots of other figures.
SHADE = 0.18


def bands(spec: dict[str, Any], source: str) -> Canvas:
    """Return a figure of curves with bands."""
    low, high = _ends(spec)
    marks = figure_style.linear(low, high)
    names = [name_of(spec, value) for value in marks]
    beside = [line["label"] for line in spec["lines"]]
    canvas = sheet(
        spec, source, [PLOT_IN],
        left_in=LEFT_IN + figure_style.widest_in(names),
        right_in=max(RIGHT_IN, 0.1 + figure_style.widest_in(beside)),
        legend=[_entry(index, one["label"]) for index, one in enumerate(spec["series"])],
    )  # fmt: skip
    (axes,) = canvas.axes
    axes.set_ylim(low, high)
    axes.set_yticks(marks, names)
    _places(axes, spec)
    head(axes, spec["ylabel"])
    for line in spec["lines"]:
        reference_line(axes, line["y"], line["label"])
    for index, one in enumerate(spec["series"]):
        _curve(axes, one, index)
        canvas.marks += values(axes, spec, one, one["band"], _place)
    return canvas


def _entry(index: int, label: str) -> Line2D:
    colour, marker = SERIES_COLOURS[index], MARKERS[index]
    return Line2D(
        [], [], color=colour, marker=marker, markersize=4.5, linewidth=1.6, label=label
    )  # fmt: skip


def _curve(axes: Axes, one: dict[str, Any], index: int) -> None:
    colour = SERIES_COLOURS[index]
    low, high = zip(*(ends or (math.nan, math.nan) for ends in one["band"]), strict=True)
    axes.fill_between(one["x"], low, high, color=colour, alpha=SHADE, linewidth=0)
    marker = MARKERS[index] if len(one["x"]) <= MOST_MARKS else None
    axes.plot(one["x"], one["y"], color=colour, marker=marker, markersize=4.5, linewidth=1.6)


def _ends(spec: dict[str, Any]) -> tuple[float, float]:
    """Return the ends of the vertical axis, around the curves and their bands."""
    values = [line["y"] for line in spec["lines"]]
    for one in spec["series"]:
        values += one["y"]
        values += [end for ends in one["band"] if ends for end in ends]
    low, high = min(values), max(values)
    beside = BESIDE * (high - low or abs(high) or 1.0)
    return low - beside, high + beside


def _places(axes: Axes, spec: dict[str, Any]) -> None:
    """Write epochs, which are whole, or seconds below the axis."""
    places = [x for one in spec["series"] for x in one["x"]]
    low, high = min(0.0, *places), max(places) * (1 + BESIDE) or 1.0
    axes.set_xlim(low, high)
    marks = [
        mark for mark in figure_style.linear(low, high) if mark == int(mark) or not spec["whole"]
    ]
    axes.set_xticks(marks, [formats.trimmed(mark) for mark in marks])
    axes.set_xlabel(spec["xlabel"], fontsize=LABEL_PT)


def _place(spec: dict[str, Any], x: float) -> str:
    return f"epoch {x:g}" if spec["whole"] else f"{formats.number(x)} s"
