"""The panels of collectives, with the links fitted to them, and of the machine's health."""

import math
from collections.abc import Mapping, Sequence

from lockstep.core import formats, metrics
from lockstep.core.formats import counted, number, percent, span
from lockstep.core.studies import SWEEPS, TITLES
from lockstep.report.compute import links, slow
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import LIMITS, Kind, Reading
from lockstep.report.compute.statistics import Interval, median_rate
from lockstep.report.load.results import Results
from lockstep.report.page import parts
from lockstep.report.page.parts import MAX_CURVES, MICRO, Figure, Panel, Table, table
from lockstep.report.words import ranking_card

Sweep = list[tuple[float, Point]]
Key = tuple[str, int]
# Points of a fitted line, from the smallest message to the largest.
SMOOTH = 24


# (launch, whether its ranks are on several nodes) -> GB/s of the ports of its first node, or of the
# links of one GPU in one direction; unknown rates are left out.
Wires = Mapping[tuple[str, bool], float]


def collective_panel(study: str, series: Sequence[Series], wires: Wires) -> Panel:
    """Return the panel of collectives: their links, tables per size, bandwidth at the largest."""
    ordered = sweeps(series)
    largest = max(world_size for _, world_size in ordered)
    swept = {key: points for key, points in ordered.items() if len(points) > 1}
    drawn = {name: points for (name, size), points in swept.items() if size == largest}
    figure = _bandwidth_figure(drawn, largest, _wire(list(drawn.values()), wires))
    notes = []
    if drawn and len(swept) > min(len(drawn), MAX_CURVES):
        names = formats.listed(list(drawn)[:MAX_CURVES], MAX_CURVES)
        notes = [f"The figure shows {names} at the largest world size, {largest}."]
    lead = (
        "algbw is message size / time. busbw is algbw times the factor that nccl-tests defines, so "
        "that it can be compared with the speed of a link. With one rank no data crosses a link."
    )
    return parts.panel(
        study, TITLES[study], lead=[lead], notes=notes,
        tables=[*_link_tables(ordered, largest, wires), *_operation_tables(ordered)],
        figures=[figure] if figure else [],
    )  # fmt: skip


def sweeps(series: Sequence[Series]) -> dict[Key, Sweep]:
    """Return (collective and layout, world size) -> points in the order of message sizes."""
    groups: dict[Key, Sweep] = {}
    for curve in series:
        for point in curve.points:
            name = ", ".join(filter(None, (curve.row.workload, curve.layout)))
            groups.setdefault((name, point.world_size), []).append((message_bytes(point), point))
    return {key: sorted(groups[key], key=lambda item: item[0]) for key in sorted(groups)}


def _bandwidth_figure(sweeps: Mapping[str, Sweep], ranks: int, wire: float | None) -> Figure | None:
    def value(point: Point, *_: float) -> float:
        return _bandwidths(point)[ranks > 1] or 0.0

    def interval(point: Point) -> Interval | None:
        if not (point.step_interval and point.step_s):
            return None
        low_s, high_s = point.step_interval  # the upper end of a time is the lower rate
        return value(point) * point.step_s / high_s, value(point) * point.step_s / low_s

    curves = []
    for label, points in list(sweeps.items())[:MAX_CURVES]:
        known = [point for _, point in points if value(point)]
        if not known:
            continue
        curve = parts.curve_of(label, known, value, interval, message_bytes)
        curve |= {"dots": [], "nodes": [], "fit": []}
        workload = points[0][1].rows[0].workload
        if (fit := links.fit_points(workload, points)) and len(known) > 1:
            factor = metrics.busbw_factor(workload, ranks) or 1.0
            first, last = math.log(curve["x"][0]), math.log(curve["x"][-1])
            rate = fit.beta_gb_per_s * metrics.GIGA
            for i in range(SMOOTH + 1):
                size = math.exp(first + (last - first) * i / SMOOTH)
                busbw = factor * size / (fit.alpha_s + factor * size / rate) / metrics.GIGA
                curve["fit"].append([size, busbw])
        curves.append(curve)
    if not curves:
        return None
    name = "busbw" if ranks > 1 else "algbw"
    wire_rate = f" The wire carries {number(wire)} GB/s." if wire else ""
    return parts.curve_figure(
        "collective-bandwidth", f"Collectives: {name} on {counted(ranks, 'rank')}",
        f"{name} (GB/s)", curves, ylog=True, lines=[{"y": wire, "label": "wire"}] if wire else [],
        xlabel="Message size", size_ticks=True, fit="fitted: latency + bytes / rate",
        note=f"Bars are 95 % intervals over launches.{wire_rate}",
    )  # fmt: skip


def _link_tables(ordered: Mapping[Key, Sweep], largest: int, wires: Wires) -> list[Table]:
    columns = (
        "Collective", "Ranks", "Nodes", "Sizes", "Latency (\u00b5s)", "95 % interval (\u00b5s)",
        "Rate (GB/s)", "95 % interval (GB/s)", "Error of the fit (%)",
        "Share of the wire's rate (%)",
    )  # fmt: skip
    notes = {
        "Latency (\u00b5s)": "Latency and rate are fitted to all sizes of a sweep: time = latency "
        "+ bytes on the link / rate.",
        "Rate (GB/s)": "The rate is the busbw of infinitely long messages.",
        "Error of the fit (%)": "A large error of the fit means that the library changes its "
        "algorithm with the message size.",
        "Share of the wire's rate (%)": "The wire's rate is the sum over all network ports that "
        "the first node uses. On one node, it is the rate of NVLink or PCIe in one direction in "
        "the GPU's data sheet.",
    }
    fewer = "fewer ranks"
    rows: dict[str, list[list[str]]] = {counted(largest, "rank"): [], fewer: []}
    for (name, world_size), points in ordered.items():
        row = points[0][1].rows[0]
        if fit := links.fit_points(row.workload, points):
            wire = _wire([points], wires)
            rows[counted(largest, "rank") if world_size == largest else fewer].append([
                name, str(world_size), parts.shown(row.num_nodes), str(fit.num_sizes),
                number(fit.alpha_s * MICRO), span(fit.alpha_interval, MICRO),
                number(fit.beta_gb_per_s), span(fit.beta_interval), percent(fit.error),
                percent(fit.beta_gb_per_s / wire if wire else None),
            ])  # fmt: skip

    return [
        table(f"Latency and rate of the links on {where}", columns, own, 1, note=notes,
              folded=where == fewer)
        for where, own in rows.items() if own
    ]  # fmt: skip


def _wire(groups: Sequence[Sweep], wires: Wires) -> float | None:
    """Return the rate of the links between all ranks; None if unknown or of several rates."""
    rows = [row for points in groups for _, point in points for row in point.rows]
    known = {wires.get((row.launch, row.num_nodes > 1)) if row.num_nodes else None for row in rows}
    return known.pop() if len(known) == 1 else None


def message_bytes(point: Point) -> float:
    """Return the size of a point's message; 0 if it is unknown."""
    row = point.rows[0]
    size = row.details.get("message_bytes", row.factors.get("message_bytes"))
    return float(size or row.samples_per_step or 0)


def _bandwidths(point: Point) -> tuple[float | None, float | None]:
    """Return (algbw, busbw) in GB/s, at the median time of the launches."""
    recorded = (
        [value for row in point.rows
         if isinstance(value := row.details.get(name), int | float) and value > 0]
        for name in ("algbw_gb_per_s", "busbw_gb_per_s")
    )  # fmt: skip
    algbw, busbw = (median_rate(values) if values else None for values in recorded)
    if algbw is None and point.step_s:
        algbw = metrics.algbw_gb_per_s(int(message_bytes(point)), point.step_s)
    return algbw, busbw


def _operation_tables(ordered: Mapping[Key, Sweep]) -> list[Table]:
    operations: dict[str, dict[int, Sweep]] = {}
    for (name, world_size), points in ordered.items():
        operations.setdefault(name, {})[world_size] = points
    made = []
    for name, sized in operations.items():
        quantity = max(sized) > 1
        rate = "busbw" if quantity else "algbw"
        rates = {
            world_size: {size: _bandwidths(point)[quantity] for size, point in points}
            for world_size, points in sized.items()
        }
        sizes = sorted({size for own in rates.values() for size in own})
        best = max(filter(None, rates[max(sized)].values()), default=None)
        made.append(table(
            f"{name}: {rate} in GB/s by message size",
            ("Ranks", *map(formats.size_of, sizes)),
            [[str(ranks), *(number(own.get(s)) for s in sizes)] for ranks, own in rates.items()],
            group="Bandwidth by message size", finding=f"{name} to {number(best)} GB/s",
        ))  # fmt: skip
        made.append(parts.point_table(
            f"{name}: every message", EVERY, (p for points in sized.values() for _, p in points),
            folded=True, group="Every message",
        ))  # fmt: skip
    return made


# The columns of the tables of all messages.
EVERY: parts.Columns = (
    "Ranks",
    ("Message", lambda p: formats.size_of(message_bytes(p))),
    "Launches",
    ("Time (\u00b5s)", lambda p: number(p.step_s, scale=MICRO)),
    ("95 % interval (\u00b5s)", lambda p: span(p.step_interval, MICRO)),
    ("algbw (GB/s)", lambda p: number(_bandwidths(p)[0])),
    ("busbw (GB/s)", lambda p: number(_bandwidths(p)[1])),
    parts.FLAGS,
)
HEALTH: dict[Kind, str] = {
    "use": "GPU in use",
    "memory": "GPU memory in use, as a share of all GPU memory",
    "power": "power, as a share of the board's limit",
    "loader": "share of a step spent waiting for the loader with its best setting",
    "network": "all_reduce between nodes, busbw",
}
LEAD = (
    "A training that uses its devices fully passes all of these checks. A warning does not mean "
    "that a number is wrong. It shows where speed may be gained. A small model uses little memory "
    "and power."
)


def panel_of(results: Results, series: Sequence[Series]) -> Panel | None:
    """Return whether devices, loader and network were busy; None on CPUs and without readings."""
    if results.on_cpus:
        return None
    readings = list(slow.readings(series))
    measured = [curve for curve in series if curve.row.origin == "measured"]
    if loading := ranking_card.judge_loader(measured):
        kind, (best, *_) = loading
        size = best.point.world_size
        readings.append(Reading("loader", best.idle, "loader", size, kind != "open"))
    # all_reduce over several nodes is judged at the largest number of ranks.
    own = [curve for curve in measured if curve.row.study in SWEEPS]
    known = {
        world_size: points
        for (_, world_size), points in sweeps(own).items()
        if points[0][1].rows[0].workload == "all_reduce"
        if (points[0][1].rows[0].num_nodes or 1) > 1
    }
    if known and (fit := links.fit_points("all_reduce", known[max(known)])):
        readings.append(Reading("network", fit.beta_gb_per_s, "all_reduce", max(known)))
    if not readings:
        return None
    good = sum(reading.is_good and reading.is_shown for reading in readings)
    checked = table(
        "Devices, loader and network at the largest size of each ladder",
        ("What", "Verdict", "Case", "Expected", "Measured", "Ranks"),
        list(map(_cells, readings)), 4, "",
        finding=f"{good} of {counted(len(readings), 'check')} passed",
    )  # fmt: skip
    return parts.panel("health", "Health", lead=[LEAD], tables=[checked])


def _cells(reading: Reading) -> list[str]:
    verdict = ("pass" if reading.is_good else "warn") if reading.is_shown else "not shown"
    unit, text = ("GB/s", number) if reading.kind == "network" else ("%", percent)
    bound = "below" if reading.kind == "loader" else "from"
    return [
        HEALTH[reading.kind], verdict, reading.case, f"{bound} {text(LIMITS[reading.kind])} {unit}",
        f"{text(reading.value)} {unit}", str(reading.world_size),
    ]  # fmt: skip
