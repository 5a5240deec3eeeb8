"""Colours, marks and sizes that all figures share."""

from typing import Any

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
