"""The panel of collectives: time and bandwidth against message size.

Whether devices, loader and network were as busy as they should be, as a section of the page.
"""

from collections.abc import Mapping, Sequence

from lockstep.core import formats, metrics
from lockstep.core.formats import counted, number, percent, span
from lockstep.core.studies import TITLES
from lockstep.report.compute import links, slow
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import LIMITS, Kind, Reading
from lockstep.report.compute.statistics import median_rate
from lockstep.report.load.results import Results
from lockstep.report.page import plots
from lockstep.report.page.parts import (
    FLAGS,
    MAX_CURVES,
    MICRO,
    Panel,
    Table,
    flagged,
    panel,
    shown,
    table,
)
from lockstep.report.words import loader_card

Sweep = list[tuple[float, Point]]
Key = tuple[str, int]


def collective_panel(series: Sequence[Series], wires: Mapping[str, float]) -> Panel:
    """Return the panel of collectives: their links, tables per size, bandwidth at the largest.

    `wires` has what the network of a launch's first node carries, in GB/s, where it is known.
    """
    made = panel("collective", TITLES["collective"])
    made["lead"] = [
        "algbw is message size over time; busbw multiplies it by the factor nccl-tests defines, "
        "so that it compares with the speed of a link. At one rank nothing crosses a bus."
    ]
    ordered = sweeps(series)
    largest = max(world_size for _, world_size in ordered)
    made["tables"] = [*_link_tables(ordered, largest, wires), *_operation_tables(ordered)]
    swept = {key: points for key, points in ordered.items() if len(points) > 1}
    drawn = {key: points for key, points in swept.items() if key[1] == largest}
    named = {name: points for (name, _), points in drawn.items()}
    figure = plots.bandwidth(
        named,
        largest,
        _wire(list(drawn.values()), wires),
        lambda point: _bandwidths(point)[largest > 1],
    )
    made["figures"] = [figure] if figure else []
    if drawn and len(swept) > min(len(drawn), MAX_CURVES):
        names = formats.listed((workload for workload, _ in list(drawn)[:MAX_CURVES]), MAX_CURVES)
        made["notes"] = [f"The figure shows {names} at the largest world size, {largest}."]
    return made


def sweeps(series: Sequence[Series]) -> dict[Key, Sweep]:
    """Return (collective and layout, world size) -> points in the order of message sizes."""
    groups: dict[Key, Sweep] = {}
    for curve in series:
        for point in curve.points:
            size = message_bytes(point)
            name = ", ".join(filter(None, (curve.row.workload, curve.layout)))
            groups.setdefault((name, point.world_size), []).append((size, point))
    return {key: sorted(groups[key], key=lambda item: item[0]) for key in sorted(groups)}


def _link_tables(
    ordered: Mapping[Key, Sweep], largest: int, wires: Mapping[str, float]
) -> list[Table]:
    """Return the largest world size's sweeps as latency and rate, and the others', folded."""
    first = {key: points for key, points in ordered.items() if key[1] == largest}
    others = {key: points for key, points in ordered.items() if key[1] < largest}
    where = f"Latency and rate of the links on {counted(largest, 'rank')}"
    made = [_link_table(first, wires, where), _link_table(others, wires, "The same on fewer ranks")]
    return [one | {"folded": bool(i)} for i, one in enumerate(made) if one]


def _link_table(
    groups: Mapping[Key, Sweep], wires: Mapping[str, float], caption: str
) -> Table | None:
    """Return each sweep as a latency and a rate, None where no sweep has enough sizes."""
    columns = (
        "Collective", "Ranks", "Nodes", "Sizes", "Latency (\u00b5s)", "95 % interval (\u00b5s)",
        "Rate (GB/s)", "95 % interval (GB/s)", "Error of the fit (%)", "Share of the wire (%)",
    )  # fmt: skip
    rows = []
    for (name, world_size), points in groups.items():
        link_fit = links.fit_points(points[0][1].rows[0].workload, points)
        if link_fit is None:
            continue
        wire = _wire([points], wires)
        rows.append([
            name, str(world_size), shown(points[0][1].rows[0].num_nodes), str(link_fit.num_sizes),
            number(link_fit.alpha_s * MICRO), span(link_fit.alpha_interval, MICRO),
            number(link_fit.beta_gb_per_s), span(link_fit.beta_interval),
            percent(link_fit.error),
            percent(link_fit.beta_gb_per_s / wire if wire else None),
        ])  # fmt: skip
    note = (
        "Fitted to all sizes of a sweep: time = latency + bytes on the link / rate. The rate is "
        "the busbw of endless messages. The wire is what the network ports that the first node "
        "uses carry together, and is compared with ranks of several nodes alone. A large error "
        "of the fit: the library changes its algorithm with the size."
    )
    return table(caption, columns, rows, 1, note=note) if rows else None


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
        made += [_bandwidth_table(name, sized), _message_table(name, sized)]
    return made


def _bandwidth_table(name: str, sized: Mapping[int, Sweep]) -> Table:
    index, quantity = (1, "busbw") if max(sized) > 1 else (0, "algbw")
    sizes = sorted({size for points in sized.values() for size, _ in points})
    rows = []
    for world_size, points in sized.items():
        found = {size: number(_bandwidths(point)[index]) for size, point in points}
        rows.append([str(world_size), *(found.get(size, formats.DASH) for size in sizes)])
    columns = ("Ranks", *map(formats.size_of, sizes))
    best = max(
        (rate for p in sized[max(sized)] if (rate := _bandwidths(p[1])[index])), default=None
    )
    return table(
        f"{name}: {quantity} in GB/s by message size", columns, rows,
        group="Bandwidth by message size", finding=f"{name} to {number(best)} GB/s",
    )  # fmt: skip


def _message_table(name: str, sized: Mapping[int, Sweep]) -> Table:
    columns = (
        "Ranks", "Message", "Launches", "Time (\u00b5s)", "95 % interval (\u00b5s)",
        "algbw (GB/s)", "busbw (GB/s)", FLAGS,
    )  # fmt: skip
    rows = [
        [
            str(world_size), formats.size_of(size), str(point.num_launches),
            number(point.step_s, scale=MICRO),
            span(point.step_interval, MICRO), *map(number, _bandwidths(point)), flagged(point),
        ]
        for world_size, points in sized.items()
        for size, point in points
    ]  # fmt: skip
    return table(f"{name}: every message", columns, rows, folded=True, group="Every message")


NAMES: dict[Kind, str] = {
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
    """Return the section; None on CPUs, and where nothing of it was measured."""
    if results.on_cpus:
        return None
    readings = [*slow.readings(series), *_loader(series), *_network(series)]
    if not readings:
        return None
    good = sum(reading.is_good and reading.is_shown for reading in readings)
    columns = ("What", "Verdict", "Case", "Expected", "Measured", "Ranks")
    made = panel("health", "Health", lead=[LEAD])
    made["tables"] = [
        table(
            "Devices, loader and network at the largest size of each ladder", columns,
            [_cells(reading) for reading in readings], 4, "",
            finding=f"{good} of {counted(len(readings), 'check')} passed",
        )
    ]  # fmt: skip
    return made


def _loader(series: Sequence[Series]) -> list[Reading]:
    """Return the setting that leaves a step waiting least, where any was fed to one."""
    loading = loader_card.judge([curve for curve in series if curve.row.origin == "measured"])
    if loading is None:
        return []
    best = loading.settings[0]
    return [Reading("loader", best.idle, "loader", best.num_ranks, loading.kind != "open")]


def _network(series: Sequence[Series]) -> list[Reading]:
    """Return the fitted rate of all_reduce on the most ranks, where they are on several nodes."""
    own = [
        curve
        for curve in series
        if curve.row.study == "collective" and curve.row.origin == "measured"
    ]
    known = {
        world_size: points
        for (_, world_size), points in sweeps(own).items()
        if points[0][1].rows[0].workload == "all_reduce"
        if (points[0][1].rows[0].num_nodes or 1) > 1
    }
    if not known:
        return []
    fit = links.fit_points("all_reduce", known[max(known)])
    return [Reading("network", fit.beta_gb_per_s, "all_reduce", max(known))] if fit else []


def _cells(reading: Reading) -> list[str]:
    limit, verdict = LIMITS[reading.kind], "pass" if reading.is_good else "warn"
    verdict = verdict if reading.is_shown else "not shown"
    if reading.kind == "network":
        expected, value = f"from {number(limit)} GB/s", f"{number(reading.value)} GB/s"
    else:
        bound = "below" if reading.kind == "loader" else "from"
        expected, value = f"{bound} {percent(limit)} %", f"{percent(reading.value)} %"
    return [NAMES[reading.kind], verdict, reading.case, expected, value, str(reading.world_size)]
