"""Ratios of settings over sizes as a table of tinted cells, which reads without its colours.

The description has `rows`, `columns` and `cells`, each None or ratio, interval and is_shown.
"""

import math
from typing import Any

from matplotlib.patches import Rectangle

from lockstep.core import formats
from lockstep.report.page.drawing import figure_style as canvases
from lockstep.report.page.drawing.figure_style import INK, LABEL_PT, SERIES_COLOURS, Canvas, Mark

ROW_IN = 0.29
BETTER, WORSE = SERIES_COLOURS[0], SERIES_COLOURS[1]
# A ratio of two, or of a half, has the full tint; text on it keeps a contrast of 4.5.
FULL, STRONGEST = math.log(2), 0.5
STEPS = 8


def grid(spec: dict[str, Any], source: str) -> Canvas:
    """Return a figure of one cell for each setting and size."""
    canvas = canvases.rows(spec, source, spec["rows"], ROW_IN)
    (axes,) = canvas.axes
    size_pt = LABEL_PT if len(spec["columns"]) <= 8 else LABEL_PT - 1.5
    for y, row in enumerate(spec["cells"]):
        for x, cell in enumerate(row):
            if cell is None:
                continue
            axes.add_patch(_tinted(x, y, cell["ratio"]))
            axes.text(
                x, y, formats.ratio(cell["ratio"]), ha="center", va="center", fontsize=size_pt,
                fontweight="bold" if cell["is_shown"] else "normal",
                color=INK,
            )  # fmt: skip
            canvas.marks.append(Mark(axes, x, y, _text(spec, x, y, cell)))
    axes.set_xlim(-0.5, len(spec["columns"]) - 0.5)
    axes.set_xticks(range(len(spec["columns"])), spec["columns"])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    return canvas


def _tinted(x: float, y: float, value: float) -> Rectangle:
    """Return a cell: the farther the ratio is from 1, the stronger."""
    strength = min(abs(math.log(value)) / FULL, 1.0)
    alpha = STRONGEST * round(strength * STEPS) / STEPS
    colour = BETTER if value >= 1 else WORSE
    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, alpha=alpha, linewidth=0)


def _text(spec: dict[str, Any], x: int, y: int, cell: dict[str, Any]) -> str:
    ends = f" ({formats.ratio_span(tuple(cell['interval']))})" if cell["interval"] else ""
    return f"{spec['rows'][y]} on {spec['columns'][x]} ranks: {formats.ratio(cell['ratio'])}{ends}"
