"""The figure of collectives: bandwidth over message sizes, the fitted link and the wire."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.core import metrics
from lockstep.core.formats import counted, number
from lockstep.core.metrics import GIGA
from lockstep.report.compute import links
from lockstep.report.compute.links import LinkFit
from lockstep.report.compute.scaling import Point
from lockstep.report.page.panels.parts import MAX_CURVES, Figure, curve_figure, ends

Sweep = Sequence[tuple[float, Point]]
# Points of a fitted line, from the smallest message to the largest.
SMOOTH = 24


def bandwidth(
    sweeps: Mapping[str, Sweep],
    world_size: int,
    wire: float | None,
    rate: Callable[[Point], float | None],
) -> Figure | None:
    """Return bandwidth against message size: busbw, or algbw at one rank; None without a sweep.

    The wire, what a node's network carries, is in GB/s as the rates are.
    """
    curves = [_curve(name, points, rate) for name, points in list(sweeps.items())[:MAX_CURVES]]
    curves = [curve for curve in curves if curve["x"]]
    if not curves:
        return None
    name = "busbw" if world_size > 1 else "algbw"
    title = f"Collectives: {name} on {counted(world_size, 'rank')}"
    wires = [{"y": wire, "label": "wire"}] if wire else []
    figure = curve_figure(
        "collective-bandwidth", title, f"{name} (GB/s)", curves, ylog=True, lines=wires,
        xlabel="Message size", size_ticks=True, fit="fitted: latency + bytes / rate",
    )  # fmt: skip
    figure["note"] = "Bars: 95 % intervals of the time, over launches."
    figure["note"] += f" The wire carries {number(wire)} GB/s a node." if wire else ""
    return figure


def _curve(name: str, points: Sweep, rate: Callable[[Point], float | None]) -> dict[str, Any]:
    """Return a collective's measured bandwidths with their intervals, and its fit."""
    row = points[0][1].rows[0]
    known = [(size, point, value) for size, point in points if (value := rate(point))]
    sizes = [size for size, _, _ in known]
    return {
        "label": name, "x": sizes, "y": [value for _, _, value in known],
        "intervals": [_interval(point, value) for _, point, value in known],
        "dots": [], "ideal": [], "nodes": [],
        "fit": _fitted(row.workload, row.world_size, links.fit_points(row.workload, points), sizes),
    }  # fmt: skip


def _interval(point: Point, value: float) -> list[float] | None:
    """Return the bandwidths of the ends of a time's interval, the lower first."""
    if point.step_interval is None or point.step_s is None:
        return None
    low_s, high_s = point.step_interval
    return ends((value * point.step_s / high_s, value * point.step_s / low_s))


def _fitted(
    collective: str, world_size: int, found: LinkFit | None, sizes: Sequence[float]
) -> list[list[float]]:
    """Return the busbw of the fitted link over the sizes measured."""
    if found is None or len(sizes) < 2:
        return []
    factor = metrics.busbw_factor(collective, world_size) or 1.0
    first, last = math.log(sizes[0]), math.log(sizes[-1])
    smooth = [math.exp(first + (last - first) * i / SMOOTH) for i in range(SMOOTH + 1)]
    link = found.beta_gb_per_s * GIGA
    return [[s, factor * s / (found.alpha_s + factor * s / link) / GIGA] for s in smooth]
