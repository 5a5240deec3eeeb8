"""Whether devices, loader and network were as busy as they should be, as a section of the page."""

from collections.abc import Sequence

from lockstep.core.formats import counted, number, percent
from lockstep.report.compute import links
from lockstep.report.compute.lost_time import health
from lockstep.report.compute.lost_time.health import LIMITS, Kind, Reading
from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Results
from lockstep.report.page.panels.collective_tables import sweeps
from lockstep.report.page.panels.parts import Panel, panel, table
from lockstep.report.words import loader_card

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
    found = [*health.readings(series), *_loader(series), *_network(series)]
    if not found:
        return None
    good = sum(one.is_good and one.is_shown for one in found)
    columns = ("What", "Verdict", "Case", "Expected", "Measured", "Ranks")
    made = panel("health", "Health", lead=[LEAD])
    made["tables"] = [
        table(
            "Devices, loader and network at the largest size of each ladder", columns,
            [_cells(one) for one in found], 4, "",
            finding=f"{good} of {counted(len(found), 'check')} passed",
        )
    ]  # fmt: skip
    return made


def _loader(series: Sequence[Series]) -> list[Reading]:
    """Return the setting that leaves a step waiting least, where any was fed to one."""
    found = loader_card.judge([one for one in series if one.row.origin == "measured"])
    if found is None:
        return []
    best = found.settings[0]
    return [Reading("loader", best.idle, "loader", best.num_ranks, found.kind != "open")]


def _network(series: Sequence[Series]) -> list[Reading]:
    """Return the fitted rate of all_reduce on the most ranks, where they are on several nodes."""
    own = [one for one in series if one.row.study == "collective" and one.row.origin == "measured"]
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


def _cells(one: Reading) -> list[str]:
    limit, verdict = LIMITS[one.kind], "pass" if one.is_good else "warn"
    verdict = verdict if one.is_shown else "not shown"
    if one.kind == "network":
        expected, value = f"from {number(limit)} GB/s", f"{number(one.value)} GB/s"
    else:
        bound = "below" if one.kind == "loader" else "from"
        expected, value = f"{bound} {percent(limit)} %", f"{percent(one.value)} %"
    return [NAMES[one.kind], verdict, one.case, expected, value, str(one.world_size)]
