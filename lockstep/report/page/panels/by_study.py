"""The panels of a report, in the order of the page: from series to plain data."""

from collections.abc import Mapping, Sequence

from lockstep.core.formats import number
from lockstep.core.studies import LADDERS, OTHER, TITLES
from lockstep.report.compute.alternatives.factor_ladders import without_laddered
from lockstep.report.compute.lost_time import slow
from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Results
from lockstep.report.page.panels.cited import imported_panel
from lockstep.report.page.panels.collective_tables import collective_panel
from lockstep.report.page.panels.curves import ladder_panel
from lockstep.report.page.panels.parts import (
    MAX_CURVES,
    MILLI,
    Panel,
    drawn,
    flagged,
    panel,
    sound,
    table,
)
from lockstep.report.page.panels.programs_panel import programs_panels
from lockstep.report.page.panels.settings import settings_panel
from lockstep.report.page.panels.training_panel import training_panel
from lockstep.report.page.plots.pace_figures import pace
from lockstep.report.predict.prediction import Curve

# Fewer hosts, or ranks of one host, are compared in the tables.
LEAST_HOSTS, LEAST_RANKS = 2, 3


def panels(
    results: Results,
    series: Sequence[Series],
    threshold: float,
    hours: str,
    predicted: Mapping[str, Curve] | None = None,
) -> list[Panel]:
    """Return the panels of everything measured and imported, in the order of the page."""
    measured = [one for one in series if one.row.origin == "measured"]
    studies = list(dict.fromkeys([*TITLES, *(one.row.study for one in measured)]))
    carried = {one.name: one.provenance.get("wire_gb_per_s") for one in results.launches}
    wires = {name: wire for name, wire in carried.items() if wire}
    told = without_laddered(measured)
    made = [
        _panel(study, chosen, threshold, hours, wires, predicted or {})
        for study in studies
        if (chosen := [one for one in told if one.row.study == study])
    ]
    made += programs_panels(measured)
    made += _pace([one for one in measured if not one.row.program])
    for origin in ("cited", "target"):
        chosen = [one for one in series if one.row.origin == origin]
        if chosen:
            made.append(imported_panel(results, chosen, origin, threshold, predicted or {}))
    return made


def ladders(series: Sequence[Series]) -> list[Series]:
    """Return the series whose efficiency is drawn."""
    found: list[Series] = []
    for study in (*LADDERS, "cited", "target"):
        origin = study if study in ("cited", "target") else "measured"
        chosen = [
            one for one in series if one.row.origin == origin and study in (one.row.study, origin)
        ]
        found += sound(drawn(chosen, origin))[:MAX_CURVES]
    return found


def _pace(series: Sequence[Series]) -> list[Panel]:
    """Return the strip of hosts and ranks, where there are enough of them to compare."""
    rows = [row for one in series for point in one.points for row in point.rows]
    found = slow.paces(rows)
    if len(found) < (LEAST_RANKS if found and found[0].rank is not None else LEAST_HOSTS):
        return []
    return [panel("pace", "Hosts and ranks", figures=[pace(found, slow.slowest(rows))])]


def _panel(
    study: str,
    series: list[Series],
    threshold: float,
    hours: str,
    wires: Mapping[str, float],
    predicted: Mapping[str, Curve],
) -> Panel:
    if study in LADDERS:
        return ladder_panel(study, series, threshold, hours, predicted)
    if series[0].row.training:
        return training_panel(study, series)
    if study == "collective":
        return collective_panel(series, wires)
    if study == OTHER:
        return _others(series)
    return settings_panel(study, series)


def _others(series: list[Series]) -> Panel:
    columns = ("Benchmark", "Launches", "Rounds", "Median (ms)", "Mean (ms)", "Min (ms)",
               "Max (ms)", "Flags")  # fmt: skip
    rows = []
    for one in series:
        point = one.points[0]
        times = (point.step_s, *(point.pooled[f"{n}_step_s"] for n in ("mean", "min", "max")))
        rows.append([
            one.case, str(point.num_launches), str(sum(r.rounds or 0 for r in point.rows)),
            *(number(time_s, scale=MILLI) for time_s in times),
            flagged(point),
        ])  # fmt: skip
    return panel(OTHER, TITLES[OTHER], tables=[table("Times of one process", columns, rows, 1)])
