"""A step stacked by cause over ranks, and below it what it takes longer than its ideal.

The description has `bars`, each with ranks, parts, lost, total, ideal and net in ms, and
`names`, the causes in the order in which they are stacked.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from lockstep.core import formats
from lockstep.report.page.drawing import figure_style
from lockstep.report.page.drawing.figure_style import (
    FAINT,
    INK,
    LABEL_PT,
    LEFT_IN,
    SERIES_COLOURS,
    SMALL_PT,
    TOP_IN,
    Canvas,
    Mark,
    head,
    sheet,
    width_in,
)

WHOLE_IN, LOST_IN = 1.75, 1.35
BAR = 0.72
# Room for the number above a bar, as a share of the axis.
ABOVE = 1.14
BEYOND = 1.1
# Times the largest sum: a wider interval would leave the bars no room.
FARTHEST = 2.0
COLOURS = {
    "own": SERIES_COLOURS[0], "exposed": SERIES_COLOURS[1], "imbalance": SERIES_COLOURS[2],
    "input": SERIES_COLOURS[3], "fixed": SERIES_COLOURS[4], "contention": SERIES_COLOURS[5],
    "ddp": FAINT,
}  # fmt: skip


def stacks(spec: dict[str, Any], source: str) -> Canvas:
    """Return a figure of two plots that share their ranks."""
    bars = spec["bars"]
    whole = _span(bars, "parts", [max(bar["total"], bar["ideal"]) for bar in bars], ABOVE)
    lost = _span(bars, "lost", _nets_and_ends(bars), BEYOND)
    marks = [figure_style.linear(*whole), figure_style.linear(*lost)]
    names = [[formats.trimmed(mark) for mark in each] for each in marks]
    names[1] = [(text if text == "0" or text.startswith("-") else f"+{text}") for text in names[1]]
    canvas = sheet(
        spec, source, [WHOLE_IN, LOST_IN], legend=_legend(spec), top_in=TOP_IN,
        left_in=LEFT_IN + figure_style.widest_in([name for each in names for name in each]),
    )  # fmt: skip
    for axes, span, at, texts in zip(canvas.axes, (whole, lost), marks, names, strict=True):
        axes.set_ylim(*span)
        axes.set_yticks(at, texts)
        axes.axhline(0, color=FAINT, linewidth=0.8)
        _ranks(axes, bars)
    above, below = canvas.axes
    above.set_xticklabels([])
    head(above, spec["ylabel"])
    head(below, spec["lost_label"])
    below.set_xlabel(spec["xlabel"], fontsize=LABEL_PT)
    canvas.marks += _stack(above, spec, "parts", whole) + _stack(below, spec, "lost", lost)
    _totals(above, bars)
    _nets(below, bars)
    return canvas


def _span(
    bars: Sequence[dict[str, Any]], name: str, others: Sequence[float], above: float
) -> tuple[float, float]:
    """Return the ends of an axis that holds every stack, what is negative below 0."""
    tops = [sum(p["ms"] for p in bar[name] if p["ms"] > 0) for bar in bars]
    feet = [sum(p["ms"] for p in bar[name] if p["ms"] < 0) for bar in bars]
    high, low = max(*tops, *others, 0.0), min(*feet, *others, 0.0)
    return BEYOND * low, above * high or 1.0


def _nets_and_ends(bars: Sequence[dict[str, Any]]) -> list[float]:
    """Return the sums and the ends of their intervals, one that is far beyond all sums cut."""
    nets = [bar["net"] or 0.0 for bar in bars]
    most = FARTHEST * max(map(abs, nets))
    ends = [end for bar in bars for end in bar["net_interval"] or ()]
    return [*nets, *(min(max(end, -most), most) for end in ends)]


def _ranks(axes: Axes, bars: Sequence[dict[str, Any]]) -> None:
    axes.set_xlim(-0.6, len(bars) - 0.4)
    per_in = width_in(axes) / len(bars)
    texts = [str(bar["ranks"]) for bar in bars]
    places = list(range(len(bars)))
    axes.set_xticks(places, figure_style.with_room(places, texts, lambda x: x * per_in))
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")


def _stack(axes: Axes, spec: dict[str, Any], name: str, span: tuple[float, float]) -> list[Mark]:
    """Draw the bars, what is positive above 0 and what is negative below it."""
    found = []
    for x, bar in enumerate(spec["bars"]):
        ends = {True: 0.0, False: 0.0}
        parts = {part["cause"]: part for part in bar[name]}
        for cause, title in spec["names"].items():
            if cause not in parts or parts[cause]["ms"] == 0:
                continue
            value = parts[cause]["ms"]
            foot = ends[value > 0]
            ends[value > 0] += value
            axes.add_patch(Rectangle(
                (x - BAR / 2, foot), BAR, value, facecolor=COLOURS[cause], linewidth=0
            ))  # fmt: skip
            text = f"{bar['ranks']} ranks, {title}: {_ms(value, name == 'lost')}"
            found.append(Mark(axes, x, min(max(foot + value / 2, span[0]), span[1]), text))
    return found


def _ms(value: float, signed: bool) -> str:
    sign = "+" if signed and value > 0 else ""
    return f"{sign}{formats.number(value)} ms"


def _totals(axes: Axes, bars: Sequence[dict[str, Any]]) -> None:
    """Write each step's time above it, and mark the ideal."""
    for x, bar in enumerate(bars):
        axes.plot([x - 0.45, x + 0.45], [bar["ideal"]] * 2, color=INK, linewidth=1.6)
        top = max(sum(part["ms"] for part in bar["parts"] if part["ms"] > 0), bar["ideal"])
        axes.annotate(
            formats.trimmed(bar["total"]), (x, top), xytext=(0, 2), textcoords="offset points",
            ha="center", fontsize=SMALL_PT,
        )  # fmt: skip


def _nets(axes: Axes, bars: Sequence[dict[str, Any]]) -> None:
    """Mark the sum of each bar, with its interval."""
    for x, bar in enumerate(bars):
        if bar["net"] is None:
            continue
        if bar["net_interval"]:
            axes.plot([x, x], bar["net_interval"], color=INK, linewidth=1, marker="_", markersize=5)
        axes.plot([x], [bar["net"]], marker="D", markersize=4.5, color=INK, markerfacecolor="none")


def _legend(spec: dict[str, Any]) -> list[Line2D]:
    entries = [
        Line2D([], [], color=COLOURS[cause], linewidth=6, label=title)
        for cause, title in spec["names"].items()
    ]
    sums: Any = {"marker": "D", "markersize": 4.5, "markerfacecolor": "none", "linestyle": "none"}
    return [
        *entries,
        Line2D([], [], color=INK, linewidth=1.6, label="Ideal, from the baseline"),
        Line2D([], [], color=INK, **sums, label="Sum, with 95 % interval"),
    ]  # fmt: skip
