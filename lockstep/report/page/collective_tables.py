"""The panel of collectives: time and bandwidth against message size, and the link fitted to them.

Also the section on whether devices, loader and network were as busy as they should be.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.core import formats, metrics
from lockstep.core.formats import counted, number, percent, span
from lockstep.core.studies import TITLES
from lockstep.report.compute import links, slow
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import LIMITS, Kind, Reading
from lockstep.report.compute.statistics import median_rate
from lockstep.report.load.results import Results
from lockstep.report.page import parts
from lockstep.report.page.parts import MAX_CURVES, MICRO, Figure, Panel, Table, table
from lockstep.report.words import loader_card

Sweep = list[tuple[float, Point]]
Key = tuple[str, int]
# Points of a fitted line, from the smallest message to the largest.
SMOOTH = 24


def collective_panel(series: Sequence[Series], wires: Mapping[str, float]) -> Panel:
    """Return the panel of collectives: their links, tables per size, bandwidth at the largest.

    `wires` has what the network of a launch's first node carries, in GB/s, where it is known.
    """
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
        "algbw is message size over time; busbw multiplies it by the factor nccl-tests defines, "
        "so that it compares with the speed of a link. At one rank nothing crosses a bus."
    )
    return parts.panel(
        "collective", TITLES["collective"], lead=[lead], notes=notes,
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
    """Return bandwidth against message size: busbw, or algbw at one rank; None without a sweep."""
    curves = []
    for label, points in list(sweeps.items())[:MAX_CURVES]:
        curve: dict[str, Any] = {
            "label": label, "x": [], "y": [], "intervals": [], "dots": [], "ideal": [],
            "nodes": [], "fit": [],
        }  # fmt: skip
        for size, point in points:
            if not (value := _bandwidths(point)[ranks > 1]):
                continue
            curve["x"].append(size)
            curve["y"].append(value)
            # The bandwidths of the ends of the time's interval, the lower first.
            low_s, high_s = point.step_interval or (0.0, 0.0)
            both = [value * point.step_s / end_s for end_s in (high_s, low_s)] if (
                point.step_interval and point.step_s
            ) else None  # fmt: skip
            curve["intervals"].append(both)
        fit = links.fit_points(points[0][1].rows[0].workload, points)
        if fit and len(curve["x"]) > 1:
            factor = metrics.busbw_factor(points[0][1].rows[0].workload, ranks) or 1.0
            first, last = math.log(curve["x"][0]), math.log(curve["x"][-1])
            rate = fit.beta_gb_per_s * metrics.GIGA
            for i in range(SMOOTH + 1):
                size = math.exp(first + (last - first) * i / SMOOTH)
                busbw = factor * size / (fit.alpha_s + factor * size / rate) / metrics.GIGA
                curve["fit"].append([size, busbw])
        curves += [curve] if curve["x"] else []
    if not curves:
        return None
    name = "busbw" if ranks > 1 else "algbw"
    carried = f" The wire carries {number(wire)} GB/s a node." if wire else ""
    return parts.curve_figure(
        "collective-bandwidth", f"Collectives: {name} on {counted(ranks, 'rank')}",
        f"{name} (GB/s)", curves, ylog=True, lines=[{"y": wire, "label": "wire"}] if wire else [],
        xlabel="Message size", size_ticks=True, fit="fitted: latency + bytes / rate",
        note=f"Bars: 95 % intervals of the time, over launches.{carried}",
    )  # fmt: skip


def _link_tables(
    ordered: Mapping[Key, Sweep], largest: int, wires: Mapping[str, float]
) -> list[Table]:
    """Return each sweep with enough sizes as a latency and a rate, those on fewer ranks folded."""
    columns = (
        "Collective", "Ranks", "Nodes", "Sizes", "Latency (\u00b5s)", "95 % interval (\u00b5s)",
        "Rate (GB/s)", "95 % interval (GB/s)", "Error of the fit (%)", "Share of the wire (%)",
    )  # fmt: skip
    note = (
        "Fitted to all sizes of a sweep: time = latency + bytes on the link / rate. The rate is "
        "the busbw of endless messages. The wire is what the network ports that the first node "
        "uses carry together, and is compared with ranks of several nodes alone. A large error "
        "of the fit: the library changes its algorithm with the size."
    )
    rows: dict[bool, list[list[str]]] = {True: [], False: []}
    for (name, world_size), points in ordered.items():
        row = points[0][1].rows[0]
        if fit := links.fit_points(row.workload, points):
            wire = _wire([points], wires)
            rows[world_size == largest].append([
                name, str(world_size), parts.shown(row.num_nodes), str(fit.num_sizes),
                number(fit.alpha_s * MICRO), span(fit.alpha_interval, MICRO),
                number(fit.beta_gb_per_s), span(fit.beta_interval), percent(fit.error),
                percent(fit.beta_gb_per_s / wire if wire else None),
            ])  # fmt: skip
    where = f"Latency and rate of the links on {counted(largest, 'rank')}"
    captions = {True: where, False: "The same on fewer ranks"}
    return [
        table(captions[at_largest], columns, own, 1, note=note, folded=not at_largest)
        for at_largest, own in rows.items() if own
    ]  # fmt: skip


def _wire(groups: Sequence[Sweep], wires: Mapping[str, float]) -> float | None:
    """Return the rate of the wire, where all ranks of several nodes meet on a known one."""
    rows = [row for points in groups for _, point in points for row in point.rows]
    known = {wires.get(row.launch) for row in rows}
    is_between = all((row.num_nodes or 1) > 1 for row in rows)
    return known.pop() if len(known) == 1 and is_between else None


def message_bytes(point: Point) -> float:
    """Return the size of a point's message; 0 where nothing tells it."""
    row = point.rows[0]
    given = row.details.get("message_bytes", row.factors.get("message_bytes"))
    return float(given or row.samples_per_step or 0)


def _bandwidths(point: Point) -> tuple[float | None, float | None]:
    """Return (algbw, busbw) in GB/s: those of the median time of what the launches recorded."""
    found = []
    for name in ("algbw_gb_per_s", "busbw_gb_per_s"):
        given = [row.details.get(name) for row in point.rows]
        known = [value for value in given if isinstance(value, int | float) and value > 0]
        found.append(median_rate(known) if known else None)
    algbw, busbw = found
    if algbw is None and point.step_s:
        algbw = metrics.algbw_gb_per_s(int(message_bytes(point)), point.step_s)
    return algbw, busbw


def _operation_tables(ordered: Mapping[Key, Sweep]) -> list[Table]:
    """Return for each operation its bandwidth by ranks and message size, and all else folded."""
    operations: dict[str, dict[int, Sweep]] = {}
    for (name, world_size), points in ordered.items():
        operations.setdefault(name, {})[world_size] = points
    made = []
    for name, sized in operations.items():
        quantity = max(sized) > 1
        rates = {
            world_size: {size: _bandwidths(point)[quantity] for size, point in points}
            for world_size, points in sized.items()
        }
        sizes = sorted({size for own in rates.values() for size in own})
        best = max(filter(None, rates[max(sized)].values()), default=None)
        made.append(table(
            f"{name}: {'busbw' if quantity else 'algbw'} in GB/s by message size",
            ("Ranks", *map(formats.size_of, sizes)),
            [[str(ranks), *(number(own.get(s)) for s in sizes)] for ranks, own in rates.items()],
            group="Bandwidth by message size", finding=f"{name} to {number(best)} GB/s",
        ))  # fmt: skip
        columns: dict[str, parts.Cell] = {
            **parts.cells("Ranks"),
            "Message": lambda p: formats.size_of(message_bytes(p)),
            **parts.cells("Launches"),
            "Time (\u00b5s)": lambda p: number(p.step_s, scale=MICRO),
            "95 % interval (\u00b5s)": lambda p: span(p.step_interval, MICRO),
            "algbw (GB/s)": lambda p: number(_bandwidths(p)[0]),
            "busbw (GB/s)": lambda p: number(_bandwidths(p)[1]),
            **parts.cells(parts.FLAGS),
        }
        every = [point for points in sized.values() for _, point in points]
        made.append(parts.point_table(
            f"{name}: every message", columns, every, folded=True, group="Every message"
        ))  # fmt: skip
    return made


HEALTH: dict[Kind, str] = {
    "use": "GPU in use",
    "memory": "GPU memory in use, of what there is",
    "power": "power, of the board's limit",
    "loader": "step that waits for the best loader setting",
    "network": "all_reduce between nodes, busbw",
}
LEAD = (
    "A training that fills its devices passes all of these. A warning is no reason against the "
    "numbers: it says where speed is left, and a small model leaves memory and power unused."
)


def panel_of(results: Results, series: Sequence[Series]) -> Panel | None:
    """Return the section on devices, loader and network.

    It is None on CPUs, and where nothing of it was measured.
    """
    readings = list(slow.readings(series))
    measured = [curve for curve in series if curve.row.origin == "measured"]
    if loading := loader_card.judge(measured):
        best, is_shown = loading.settings[0], loading.kind != "open"
        readings.append(Reading("loader", best.idle, "loader", best.num_ranks, is_shown))
    # The fitted rate of all_reduce on the most ranks of several nodes.
    own = [curve for curve in measured if curve.row.study == "collective"]
    known = {
        world_size: points
        for (_, world_size), points in sweeps(own).items()
        if points[0][1].rows[0].workload == "all_reduce"
        if (points[0][1].rows[0].num_nodes or 1) > 1
    }
    if known and (fit := links.fit_points("all_reduce", known[max(known)])):
        readings.append(Reading("network", fit.beta_gb_per_s, "all_reduce", max(known)))
    if results.on_cpus or not readings:
        return None
    good = sum(reading.is_good and reading.is_shown for reading in readings)
    columns = ("What", "Verdict", "Case", "Expected", "Measured", "Ranks")
    checked = table(
        "Devices, loader and network at the largest size of each ladder", columns,
        list(map(_cells, readings)), 4, "",
        finding=f"{good} of {counted(len(readings), 'check')} passed",
    )  # fmt: skip
    return parts.panel("health", "Health", lead=[LEAD], tables=[checked])


def _cells(reading: Reading) -> list[str]:
    limit, verdict = LIMITS[reading.kind], "pass" if reading.is_good else "warn"
    verdict = verdict if reading.is_shown else "not shown"
    if reading.kind == "network":
        expected, value = f"from {number(limit)} GB/s", f"{number(reading.value)} GB/s"
    else:
        bound = "below" if reading.kind == "loader" else "from"
        expected, value = f"{bound} {percent(limit)} %", f"{percent(reading.value)} %"
    return [HEALTH[reading.kind], verdict, reading.case, expected, value, str(reading.world_size)]
