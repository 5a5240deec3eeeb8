"""What must be known of a figure that is saved alone: on what, and on which machine, it rests.

The figure of where a step's time goes: by cause over ranks, and what of it is lost.

The figure of collectives: bandwidth over message sizes, the fitted link and the wire.

The strip of hosts and ranks: who is slow.

The figures of strong and weak scaling: throughput, speed-up, efficiency and step time.

The figures of settings: ratios over all sizes where there are several, else one size's rates.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from lockstep.core import formats, metrics, record
from lockstep.core.formats import capital, counted, number, percent, percent_span, ratio
from lockstep.core.metrics import GIGA
from lockstep.core.studies import TITLES, TRAINING
from lockstep.measure.causes.bound import NAMES, Cause
from lockstep.report.compute import alternatives, links, quantities
from lockstep.report.compute.alternatives import Cases, Grid, Key
from lockstep.report.compute.links import LinkFit
from lockstep.report.compute.quantities import Part
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import Pace, Slowest
from lockstep.report.load.results import Results, Row
from lockstep.report.page.parts import (
    MAX_CURVES,
    MAX_ITEMS,
    MAX_NAMED,
    MILLI,
    ORIGINS,
    Figure,
    baseline_text,
    curve_figure,
    curve_of,
    ends,
    step_interval_ms,
    step_ms,
)
from lockstep.report.predict.prediction import Curve
from lockstep.report.words import method

# Studies that take training steps.
IMPORTED = {
    "cited": "Cited: published or logged by others, not measured by Lockstep.",
    "target": "Targets: expected by their authors, measured by nobody.",
}
# Characters of an image's digest that tell it apart.
DIGEST = 12


def put_basis(
    sections: Sequence[dict[str, Any]], results: Results, series: Sequence[Series]
) -> None:
    """Give each figure of the sections the basis it rests on, as `basis`."""
    for section in sections:
        rows = _rows(section, series)
        imported = IMPORTED.get(section["origin"])
        texts = [imported] if imported else [*basis_sentences(rows), *_machine(results, rows)]
        for figure in section["figures"]:
            figure["basis"] = texts


def _rows(section: Mapping[str, Any], series: Sequence[Series]) -> list[Row]:
    """Return what was measured for a section; for one of no study, all that was."""
    measured = [curve for curve in series if curve.row.origin == "measured"]
    own = [curve for curve in measured if curve.row.study == section["id"]] or measured
    return [row for curve in own for point in curve.points for row in point.rows]


def basis_sentences(rows: Sequence[Row]) -> list[str]:
    """Say on what training steps rest; nothing where none was taken."""
    steps = [row for row in rows if row.study in TRAINING and not row.program]
    bases = [record.basis_of(row.details) for row in steps]
    return [method.basis(bases, [row.precision for row in steps])] if steps else []


def _machine(results: Results, rows: Sequence[Row]) -> list[str]:
    """Name devices, nodes and image, and what is not known of them."""
    known = [launch.provenance for launch in results.launches]
    images = dict.fromkeys(
        str(one["image_sha256"])[:DIGEST] for one in known if one.get("image_sha256")
    )
    image = f"image {formats.listed(images, 2)}" if images else "no image"
    if not known:
        return []
    return [
        f"Machine: {formats.listed(results.device_names, 3) or 'unknown devices'}, "
        f"{method.nodes(rows)}, {image}; whether others shared the nodes is not recorded."
    ]


# From the foot of a bar to its top: the work itself, then what is added to it.
STACKED: tuple[Cause, ...] = (
    "own", "ddp", "fixed", "contention", "input", "imbalance", "exposed"
)  # fmt: skip
# Series of a study that have a figure of their own; tables have the others.
MAX_SPLIT = 2


def causes(study: str, series: Sequence[Series]) -> tuple[list[Figure], list[str]]:
    """Return a figure for each of the first series with timed variants, a note on the others."""
    found = [(curve, bars) for curve in series if len(bars := _bars(curve)) > 1]
    made = [_figure(f"{study}-causes-{i}", *each) for i, each in enumerate(found[:MAX_SPLIT])]
    if len(found) > MAX_SPLIT:
        return made, [f"Where a step's time goes is drawn of {MAX_SPLIT} of {len(found)} series."]
    return made, []


def _figure(key: str, series: Series, bars: list[dict[str, Any]]) -> Figure:
    used = {part["cause"] for bar in bars for part in (*bar["parts"], *bar["lost"])}
    names = {cause: capital(NAMES[cause]) for cause in STACKED if cause in used}
    described = "; ".join(
        f"{bar['ranks']} ranks: {number(bar['total'])} ms, "
        + ", ".join(f"{NAMES[part['cause']]} {number(part['ms'])}" for part in bar["parts"])
        for bar in bars
    )
    return {
        "kind": "stack", "id": key, "bars": bars, "names": names, "xlabel": "Ranks",
        "title": f"{TITLES[series.row.study]}: where a step's time goes, {series.label}",
        "ylabel": "Step time (ms)", "lost_label": "Longer than the ideal step, by cause (ms)",
        "desc": f"Step time in ms by cause against ranks. {described}.",
        "note": "Below, what a step takes longer than its ideal; negative is time gained.",
    }  # fmt: skip


def _bars(series: Series) -> list[dict[str, Any]]:
    """Return each size's step by cause, of the sizes at which it is known."""
    return [bar for point in series.points if (bar := _bar(series, point))]


def _bar(series: Series, point: Point) -> dict[str, Any] | None:
    parts = quantities.parts(point)
    if parts is None:
        return None
    total = sum(part.seconds for part in parts) * MILLI
    bar: dict[str, Any] = {
        "ranks": point.world_size, "total": total, "ideal": total, "parts": list(map(_part, parts)),
        "lost": [], "net": None, "net_interval": None,
    }  # fmt: skip
    lost = quantities.loss(series, point)
    if lost is None:
        return bar
    return bar | {
        "ideal": (lost.step_s - lost.seconds) * MILLI,
        "lost": list(map(_part, lost.parts)),
        "net": lost.seconds * MILLI,
        "net_interval": lost.interval and [end * MILLI for end in lost.interval],
    }


def _part(part: Part) -> dict[str, Any]:
    return {"cause": part.cause, "ms": part.seconds * MILLI}


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
    collective: str, world_size: int, link_fit: LinkFit | None, sizes: Sequence[float]
) -> list[list[float]]:
    """Return the busbw of the fitted link over the sizes measured."""
    if link_fit is None or len(sizes) < 2:
        return []
    factor = metrics.busbw_factor(collective, world_size) or 1.0
    first, last = math.log(sizes[0]), math.log(sizes[-1])
    smooth = [math.exp(first + (last - first) * i / SMOOTH) for i in range(SMOOTH + 1)]
    link = link_fit.beta_gb_per_s * GIGA
    return [[s, factor * s / (link_fit.alpha_s + factor * s / link) / GIGA] for s in smooth]


# Lines of the figure; of more hosts or ranks, the slowest.
MAX_LINES = 12


def pace(paces: Sequence[Pace], slowest: Slowest | None) -> Figure:
    """Return each host, or each rank of a single host, with its time over the others'."""
    is_hosts = paces[0].rank is None
    noun = "host" if is_hosts else "rank"
    items = [_item(one, slowest) for one in paces[:MAX_LINES]]
    title = f"Who is slow: the own work of each {noun} beside the others'"
    note = (
        "Time of a step without gradient synchronisation over that of the median of the others, "
        f"the slowest {noun} first: the geometric mean over launches, with its 95 % interval."
    )
    note += " Faint dots: each rank of the host." if is_hosts else " Faint dots: each launch."
    if len(paces) > MAX_LINES:
        title += f" (the {MAX_LINES} slowest of {counted(len(paces), noun)})"
    described = "; ".join(f"{item['label']}: {item['value']:+.2f} %" for item in items)
    return {
        "kind": "category", "id": "pace-strip", "title": title, "items": items, "note": note,
        "xlabel": "Longer than the others (%)", "ylabel": noun.capitalize(),
        "line": 0.0, "is_relative": True, "desc": f"Pace by {noun}. {described}.",
    }  # fmt: skip


def _item(one: Pace, slowest: Slowest | None) -> dict[str, Any]:
    name = one.host if one.rank is None else f"{one.rank}"
    is_far = slowest is not None and (slowest.host, slowest.rank) == (one.host, one.rank)
    return {
        "label": name or "unknown", "value": _percent(one.ratio),
        "interval": [*map(_percent, one.interval)] if one.interval else None,
        "dots": [*map(_percent, one.spread)], "is_far": is_far,
    }  # fmt: skip


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


# Units of throughput that have a figure of their own; of further ones the speed-up tells.
MAX_UNITS = 2
IDEAL = "ideal, from the baseline"
# What weak scaling is held to: an efficiency, and a step time over the baseline's.
WEAK_EFFICIENCY, WEAK_LONGER, LONGER_TEXT = 0.9, 1.1, "+10 %"
# An efficiency beyond the larger of these is no scaling: it is named at the edge, and the axis is
# made for the others. The second is times the median of all points.
CAP, CAP_OF_MEDIAN = 1.5, 1.5


def throughput(series: Sequence[Series]) -> list[Figure]:
    """Return a figure of throughput for each unit, on log axes with the ideal."""
    units = list(dict.fromkeys(curve.row.sample_unit for curve in series))
    made = []
    for index, unit in enumerate(units[:MAX_UNITS]):
        chosen = [curve for curve in series if curve.row.sample_unit == unit][:MAX_CURVES]
        curves = list(map(_throughput_curve, chosen))
        key = "strong-throughput" + (f"-{index + 1}" if index else "")
        of = f" in {unit}/s" if len(units) > 1 else ""
        made.append(curve_figure(
            key, f"Strong scaling: throughput{of}", f"Throughput ({unit}/s)", curves, ylog=True,
            ideal=IDEAL,
        ))  # fmt: skip
    if len(units) > MAX_UNITS:
        left_out = formats.listed(f"{unit}/s" for unit in units[MAX_UNITS:])
        made[-1]["note"] = f"Not drawn: series in {left_out}; the speed-up has them."
    return made


def _throughput_curve(one: Series) -> dict[str, Any]:
    curve = curve_of(one, lambda p: p.rate, lambda p: p.rate_interval, lambda p: p.rates)
    per_rank = one.base.rate / one.base.world_size
    return curve | {"ideal": [[p.world_size, per_rank * p.world_size] for p in one.points]}


def speedup(study: str, series: Sequence[Series]) -> Figure:
    """Return speed-up over world sizes on log axes, with the ideal from each baseline."""
    curves = []
    for one in series[:MAX_CURVES]:
        base = one.base

        def repeats(point: Point, base: Point = base) -> list[float]:
            return [rate / base.rate for rate in point.rates]

        curve = curve_of(one, lambda p: p.speedup, lambda p: p.speedup_interval, repeats)
        curve["ideal"] = [[p.world_size, p.world_size / base.world_size] for p in one.points]
        curves.append(curve)
    return curve_figure(
        f"{study}-speedup", f"{_title(study)}: speed-up", "Speed-up", curves, ylog=True,
        binary=True, ideal=IDEAL, note=_relative(series),
    )  # fmt: skip


def efficiency(
    study: str, series: Sequence[Series], threshold: float, predicted: Mapping[str, Curve]
) -> Figure:
    """Return parallel efficiency over world sizes, with lines at what it is held to."""
    curves = []
    for one in series[:MAX_CURVES]:
        base = one.base.rate / one.base.world_size

        def repeats(point: Point, base: float = base) -> list[float]:
            return [rate / point.world_size / base for rate in point.rates]

        curves.append(
            curve_of(one, lambda p: p.parallel_efficiency, lambda p: p.efficiency_interval, repeats)
        )
        curves[-1]["model"] = _model(predicted.get(one.name), base)
    values = [y for curve in curves for y in curve["y"]]
    return curve_figure(
        f"{study}-efficiency", f"{_title(study)}: parallel efficiency", "Parallel efficiency (%)",
        curves, percent=True, cap=max(CAP, CAP_OF_MEDIAN * median(values)),
        lines=_efficiency_lines(study, threshold),
        note=f"{_relative(series)}{_modelled_text(curves)}",
    )  # fmt: skip


def _efficiency_lines(study: str, threshold: float) -> list[dict[str, Any]]:
    heights = {1.0, threshold, *([WEAK_EFFICIENCY] if study == "weak" else [])}
    return [{"y": y, "label": f"{100 * y:.0f} %"} for y in sorted(heights, reverse=True)]


def step_time(study: str, series: Sequence[Series]) -> Figure:
    """Return step time over world sizes, each with its baseline's as the ideal and +10 %."""
    curves = []
    for one in series[:MAX_CURVES]:
        curve = curve_of(one, step_ms, step_interval_ms, _steps_ms)
        for name, factor in (("ideal", 1.0), ("limit", WEAK_LONGER)):
            curve[name] = [[p.world_size, factor * step_ms(one.base)] for p in one.points]
        curves.append(curve)
    return curve_figure(
        f"{study}-step-time", f"{_title(study)}: step time", "Step time (ms)", curves, ideal=IDEAL,
        limit=LONGER_TEXT,
    )  # fmt: skip


def _steps_ms(point: Point) -> list[float]:
    return [row.step_s * MILLI for row in point.rows if row.step_s is not None]


def _title(study: str) -> str:
    return (TITLES | ORIGINS).get(study, study)


def _relative(series: Sequence[Series]) -> str:
    bases = dict.fromkeys(baseline_text(curve) for curve in series[:MAX_CURVES])
    return f"Relative to {'; '.join(bases)}."


def _model(curve: Curve | None, ideal: float) -> dict[str, Any] | None:
    """Return a predicted curve as efficiency, the last point with its interval."""
    if curve is None:
        return None
    last = curve.points[-1][0]
    return {
        "name": curve.model,
        "points": [[size, rate / size / ideal] for size, rate in curve.points],
        "interval": [rate / last / ideal for rate in curve.interval],
    }


def _modelled_text(curves: list[dict[str, Any]]) -> str:
    """Say what of a figure is modelled, and what it predicts."""
    texts = []
    for curve in curves:
        if model := curve["model"]:
            (size, value), interval = model["points"][-1], model["interval"]
            texts.append(
                f"{curve['label']}, {model['name']}: {percent(value)} % at {size}, "
                f"90 % interval {percent_span(tuple(interval))}"
            )
    if len(texts) > MAX_NAMED:
        texts[MAX_NAMED:] = [f"and {len(texts) - MAX_NAMED} more"]
    legend = "Dotted with a hollow mark: by the rule chosen, predicted and not measured"
    return f" {legend} ({'; '.join(texts)})." if texts else ""


# Sizes from which on a study has a grid; of fewer, each has a figure with intervals.
GRID_FROM = 3
MAX_FIGURES = 2
MAX_GRID_ROWS, MAX_GRID_COLUMNS = 16, 12


def settings(study: str, groups: Sequence[tuple[Key, Cases]]) -> tuple[list[Figure], list[str]]:
    """Return the figures of a study's settings, and a note on what is not drawn."""
    compare = [(key, cases) for key, cases in groups if len(cases) > 1]
    if len({size for (_, size, _), _ in compare}) >= GRID_FROM:
        grids = alternatives.grids(study, compare)
        made = [_grid(study, index, grid) for index, grid in enumerate(grids[:MAX_FIGURES])]
        return made, _note(len(grids))
    # The largest size first: it is what a campaign was made for.
    compare.sort(key=lambda item: -item[0][1])
    made = [_rates(study, i, key[1], c) for i, (key, c) in enumerate(compare[:MAX_FIGURES])]
    return made, _note(len(compare))


def _note(count: int) -> list[str]:
    if count <= MAX_FIGURES:
        return []
    return [f"Figures show the first {MAX_FIGURES} of {count} groups of settings."]


def _grid(study: str, index: int, grid: Grid) -> Figure:
    curve = grid.series
    beside = f", {curve.layout}" if curve.layout else ""
    rows = list(grid.cells)[:MAX_GRID_ROWS]
    sizes = grid.sizes[-MAX_GRID_COLUMNS:]
    cells = [[grid.cells[row].get(size) for size in sizes] for row in rows]
    reference = ", ".join(
        f"{name}={value}" for name, value in zip(grid.names, grid.reference, strict=False)
    )
    described = "; ".join(
        f"{', '.join(row)}: "
        + ", ".join(f"{ratio(c.ratio)} at {s}" for c, s in zip(each, sizes, strict=True) if c)
        for row, each in zip(rows, cells, strict=True)
    )
    left_out = len(grid.cells) - len(rows), len(grid.sizes) - len(sizes)
    note = (
        f"Throughput over that of {reference} at the same size. Bold: its 95 % interval leaves "
        "out 1. Blue: quicker, orange: slower."
    )
    if any(left_out):
        note += f" Not drawn: {left_out[0]} settings, {left_out[1]} smaller sizes."
    return {
        "kind": "grid", "id": f"{study}-{index}", "note": note,
        "title": f"{TITLES.get(study, study)}: {curve.row.workload}{beside}, all sizes",
        "rows": [", ".join(row) for row in rows], "columns": [str(size) for size in sizes],
        "cells": [[None if c is None else {"ratio": c.ratio, "interval": ends(c.interval),
                                           "is_shown": c.is_shown} for c in each]
                  for each in cells],
        "xlabel": "Ranks", "ylabel": ", ".join(grid.names),
        "desc": f"Throughput by {', '.join(grid.names)} over that of {reference}. {described}.",
    }  # fmt: skip


def _rates(study: str, index: int, world_size: int, cases: Cases) -> Figure:
    """Return the throughput of the settings of one size, with intervals."""
    names = alternatives.independent(alternatives.varied(cases), cases)
    first = cases[0][0]
    items = [
        {
            "label": ", ".join(str(curve.row.factors.get(name)) for name in names) or curve.label,
            "value": point.rate,
            "interval": ends(point.rate_interval),
            "dots": point.rates if len(point.rates) > 1 else [],
        }
        for curve, point in cases[:MAX_ITEMS]
    ]
    beside = f", {first.layout}" if first.layout else ""
    title = f"{TITLES.get(study, study)}: {first.row.workload} on {counted(world_size, 'rank')}"
    title += beside
    if len(cases) > MAX_ITEMS:
        title += f" (first {MAX_ITEMS} of {len(cases)} settings)"
    described = "; ".join(f"{item['label']}: {number(point.rate)}"
                          for item, (_, point) in zip(items, cases, strict=False))  # fmt: skip
    return {
        "kind": "category", "id": f"{study}-{index}", "title": title, "items": items,
        "xlabel": f"Throughput ({first.row.sample_unit}/s)", "ylabel": ", ".join(names),
        "desc": f"Throughput by {', '.join(names)}. {described}.",
    }  # fmt: skip
