"""The panels of a report, in the order of the page: from series to plain data.

Here are those of imported tables, cited or targets, which never look like measured ones; of
programs over a factor such as threads; of hosts and ranks; and of tests without a study.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import (
    TIME_UNITS,
    counted,
    number,
    percent,
    percent_span,
    ratio,
    ratio_span,
    span,
)
from lockstep.core.studies import LADDERS, OTHER, TITLES
from lockstep.report.compute import replicates, slow
from lockstep.report.compute.alternatives import FactorLadder, factor_ladders, without_laddered
from lockstep.report.compute.scaling import Series
from lockstep.report.compute.slow import Pace
from lockstep.report.compute.statistics import log_interval
from lockstep.report.load.results import Results, Row
from lockstep.report.page import curves, parts
from lockstep.report.page.collective_tables import collective_panel
from lockstep.report.page.panels.training_panel import training_panel
from lockstep.report.page.parts import MAX_CURVES, MILLI, Panel, Table, allowed, ends, panel, table
from lockstep.report.page.settings import settings_panel
from lockstep.report.predict.prediction import Curve
from lockstep.report.words import headline


def panels(
    results: Results,
    series: Sequence[Series],
    threshold: float,
    hours: str,
    predicted: Mapping[str, Curve] | None = None,
) -> list[Panel]:
    """Return the panels of everything measured and imported, in the order of the page."""
    predicted = predicted or {}
    measured = [curve for curve in series if curve.row.origin == "measured"]
    carried = {launch.name: launch.provenance.get("wire_gb_per_s") for launch in results.launches}
    wires = {name: wire for name, wire in carried.items() if wire}
    own = without_laddered(measured)
    made = []
    for study in dict.fromkeys([*TITLES, *(curve.row.study for curve in measured)]):
        chosen = [curve for curve in own if curve.row.study == study]
        if not chosen:
            continue
        if study in LADDERS:
            made.append(curves.ladder_panel(study, chosen, threshold, hours, predicted))
        elif chosen[0].row.training:
            made.append(training_panel(study, chosen))
        elif study == "collective":
            made.append(collective_panel(chosen, wires))
        elif study == OTHER:
            made.append(_others(chosen))
        else:
            made.append(settings_panel(study, chosen))
    made += programs_panels(measured)
    steps = [curve for curve in measured if not curve.row.program]
    made += _paces([row for curve in steps for point in curve.points for row in point.rows])
    for origin in ("cited", "target"):
        if chosen := [curve for curve in series if curve.row.origin == origin]:
            made.append(imported_panel(results, chosen, origin, threshold, predicted))
    return made


def ladders(series: Sequence[Series]) -> list[Series]:
    """Return the series whose efficiency is drawn."""
    drawn: list[Series] = []
    for study in (*LADDERS, "cited", "target"):
        origin = study if study in ("cited", "target") else "measured"
        chosen = [
            curve
            for curve in series
            if curve.row.origin == origin and study in (curve.row.study, origin)
        ]
        drawn += parts.sound(parts.drawn(chosen, origin))[:MAX_CURVES]
    return drawn


def imported_panel(
    results: Results,
    series: list[Series],
    origin: str,
    threshold: float,
    predicted: Mapping[str, Curve],
) -> Panel:
    """Return the panel of the tables of one origin, cited or target."""
    lead = {
        "cited": "Published or logged by others and not measured by Lockstep; "
        "ratios are computed here from the absolute numbers.",
        "target": "Expected by their authors and measured by nobody: targets, not results.",
    }[origin]
    made = panel(origin, parts.ORIGINS[origin], origin, lead=[lead])
    drawn = parts.drawn(series, origin)
    if sound := parts.sound(drawn):
        figure = curves.efficiency(origin, sound, threshold, predicted)
        made["figures"] = [figure | {"xlabel": "Devices"}]
    if len(drawn) > MAX_CURVES:
        made["lead"].append(
            f"The figure has {MAX_CURVES} of {len(drawn)} tables of three sizes or more."
        )
    made["tables"] = [
        _imported_table(curve, results.tables.get(curve.case, {}), threshold)
        for curve in series[: parts.MAX_TABLES]
    ]
    made["notes"] = parts.left_out(series, drawn)
    return made


SCALING = {
    "strong": "Strong scaling: the total work is fixed.",
    "weak": "Weak scaling: the work of each device is fixed.",
    "fixed-epochs": "Local batch and epochs fixed, so the global batch grows and the steps "
    "fall: neither strong nor weak scaling. Speed-up and efficiency are of the total time.",
}


def _imported_table(series: Series, facts: dict[str, Any], threshold: float) -> Table:
    unit = facts.get("unit", "s") if series.base.time_s is not None else "s"
    per = TIME_UNITS.get(unit, 1.0)
    sample = series.row.sample_unit or "samples"
    cost = "GPU-hours" if series.base.time_s else f"GPU-hours (per 10\u2076 {sample})"
    relative = series.base.throughput_samples_per_s is None and series.base.time_s is None
    columns: dict[str, parts.Cell] = {
        "n": lambda p: str(p.world_size),
        "Global batch": lambda p: parts.shown(p.rows[0].global_batch),
        "Rows": lambda p: str(p.num_launches),
        f"Time ({unit})": lambda p: number(None if p.time_s is None else p.time_s / per),
        "Step time (ms)": lambda p: number(None if p.step_s is None else p.step_s * MILLI),
    }
    if relative:
        name = f"Rate ({facts.get('unit', '')})"
        columns[name] = lambda p: number(p.rate if p.step_s is None else None)
    else:
        columns[f"Throughput ({sample}/s)"] = lambda p: number(p.throughput_samples_per_s)
    columns |= parts.cells("Speed-up", "Efficiency (%)", "95 % interval (%)")
    if series.row.scaling == "fixed-epochs":
        columns["Weak view (%)"] = lambda p: allowed(p, percent(p.time_ratio))
    else:
        columns |= parts.cells("Time ratio")
    columns |= {
        cost: lambda p: formats.trimmed(p.device_hours),
        "Extra GPU-hours (%)": lambda p: allowed(p, percent(p.extra_device_hours)),
        cost.replace("GPU-hours", "Cost"): lambda p: number(p.cost),
        **parts.cells(parts.FLAGS),
    }
    stated = facts.get("scaling_text")
    text = f"Scaling as stated: {stated}." if stated else (
        "Scaling not stated: total work taken as fixed."
    )  # fmt: skip
    if series.row.scaling in SCALING:
        view = " The weak view compares step times." if series.base.time_ratio else ""
        text = SCALING[series.row.scaling] + view
    texts = [text, f"Ratios are relative to {parts.baseline_text(series)}."]
    texts += [parts.repeat_text(series).strip()] if len(series.points) > 1 else []
    texts += [f"Its values are {facts['conversion']}."] if facts.get("conversion") else []
    texts += [f"Source: {facts['source']}."] if facts.get("source") else []
    texts += [f"Note: {note}." for note in (facts.get("notes") or [])[:2]]
    return parts.point_table(
        series.label, columns, series.points, note=" ".join(texts), origin=series.row.origin,
        finding=headline.verdict(series, threshold), prints=True,
    )  # fmt: skip


def programs_panels(series: Sequence[Series]) -> list[Panel]:
    """Return a panel for each factor that programs are laddered over, and one of their metrics."""
    factors: dict[str, list[FactorLadder]] = {}
    for factor_ladder in factor_ladders(series):
        factors.setdefault(factor_ladder.factor, []).append(factor_ladder)
    made = [_over(factor, own) for factor, own in factors.items()]
    if metrics := [of_one for curve in series if (of_one := _metrics(curve))]:
        lead = "What the program printed: of each launch the median over its runs."
        made.append(panel("metrics", "Metrics of programs", lead=[lead], tables=metrics))
    return made


def _over(factor: str, ladders: Sequence[FactorLadder]) -> Panel:
    # It names files, whatever a stranger called the factor.
    key = f"over-{re.sub(r'[^A-Za-z0-9_]+', '-', factor)}"
    made = panel(key, f"Scaling over {factor}", tables=list(map(_table, ladders)))
    sound = [factor_ladder for factor_ladder in ladders if not factor_ladder.is_blocked]
    if sound:
        made["figures"] = [parts.curve_figure(
            f"{key}-speedup", f"Speed-up over {factor}", "Speed-up",
            list(map(_curve, sound[:MAX_CURVES])), ylog=True, xlabel=factor,
            ideal="ideal, from the smallest value", nodes=[],
        )]  # fmt: skip
    if len(sound) > MAX_CURVES:
        made["notes"] = [f"The figure shows the first {MAX_CURVES} of {len(sound)} ladders."]
    return made


def _curve(ladder: FactorLadder) -> dict[str, Any]:
    base, rungs = ladder.base, ladder.rungs
    return {
        "label": f"{ladder.label}, {counted(ladder.world_size, 'rank')}",
        "x": [rung.value for rung in rungs],
        "y": [rung.speedup for rung in rungs],
        "intervals": [ends(rung.speedup_interval) for rung in rungs],
        "dots": [[rung.value, rate / base.point.rate] for rung in rungs
                 if len(rung.point.rates) > 1 for rate in rung.point.rates],
        "ideal": [[rung.value, rung.value / base.value] for rung in rungs],
        "nodes": [],
    }  # fmt: skip


def _table(ladder: FactorLadder) -> Table:
    base = ladder.base
    columns = (
        ladder.factor, "Launches", f"Rate ({ladder.series.row.sample_unit}/s)", "Speed-up",
        "95 % interval", "Efficiency (%)", "95 % interval (%)", parts.FLAGS,
    )  # fmt: skip
    rows = [
        [
            f"{rung.value:g}", str(rung.point.num_launches), number(rung.point.rate),
            *(allowed(rung.point, text, base.point) for text in (
                ratio(rung.speedup), ratio_span(rung.speedup_interval),
                percent(rung.efficiency), percent_span(rung.efficiency_interval),
            )),
            parts.flagged(rung.point),
        ]
        for rung in ladder.rungs
    ]  # fmt: skip
    note = f"Ratios are relative to {ladder.factor}={base.value:g} at {parts.absolute(base.point)}."
    return table(
        f"{ladder.label} on {counted(ladder.world_size, 'rank')}", columns, rows, note=note
    )


def _metrics(series: Series) -> Table | None:
    """Return the table of a program's metrics; None where it is measured by its wall time alone."""
    known: Mapping[str, Any] = series.row.program.get("metrics", {})
    if len(known) < 2:
        return None
    columns = ("Metric", "Ranks", "Launches", "Median", "95 % interval", "Unit", "Better")
    rows = []
    for name, facts in known.items():
        for point in series.points:
            launches = [median(row.program["metrics"][name]["values"]) for row in point.rows]
            units = replicates.independent(point.rows, launches) if min(launches) > 0 else []
            rows.append([
                name, str(point.world_size), str(point.num_launches), number(median(launches)),
                span(log_interval(units)), str(facts.get("unit")), str(facts.get("better")),
            ])  # fmt: skip
    return table(series.label, columns, rows, 1)


# Fewer hosts, or ranks of one host, are compared in the tables.
LEAST_HOSTS, LEAST_RANKS = 2, 3
# Lines of the figure; of more hosts or ranks, the slowest.
MAX_LINES = 12


def _paces(rows: Sequence[Row]) -> list[Panel]:
    """Return the figure of hosts, or ranks of one host, where there are enough to compare."""
    paces = slow.paces(rows)
    is_hosts = bool(paces) and paces[0].rank is None
    if len(paces) < (LEAST_HOSTS if is_hosts else LEAST_RANKS):
        return []
    noun = "host" if is_hosts else "rank"
    slowest = slow.slowest(rows)
    far = (slowest.host, slowest.rank) if slowest else None
    items = [_pace(one) | {"is_far": (one.host, one.rank) == far} for one in paces[:MAX_LINES]]
    title = f"Who is slow: the own work of each {noun} beside the others'"
    if len(paces) > MAX_LINES:
        title += f" (the {MAX_LINES} slowest of {counted(len(paces), noun)})"
    described = "; ".join(f"{item['label']}: {item['value']:+.2f} %" for item in items)
    figure = {
        "kind": "category", "id": "pace-strip", "title": title, "items": items,
        "xlabel": "Longer than the others (%)", "ylabel": noun.capitalize(),
        "line": 0.0, "is_relative": True, "desc": f"Pace by {noun}. {described}.",
        "note": "Time of a step without gradient synchronisation over that of the median of the "
        f"others, the slowest {noun} first: the geometric mean over launches, with its 95 % "
        f"interval. Faint dots: each {'rank of the host' if is_hosts else 'launch'}.",
    }  # fmt: skip
    return [panel("pace", "Hosts and ranks", figures=[figure])]


def _pace(pace: Pace) -> dict[str, Any]:
    def over(value: float) -> float:
        return 100 * (value - 1)

    return {
        "label": (pace.host if pace.rank is None else f"{pace.rank}") or "unknown",
        "value": over(pace.ratio),
        "interval": [*map(over, pace.interval)] if pace.interval else None,
        "dots": [*map(over, pace.spread)],
    }


def _others(series: list[Series]) -> Panel:
    """Return the panel of benchmarks of one process, which have no study."""
    columns: dict[str, parts.Cell] = {
        "Benchmark": lambda p: p.rows[0].case,
        **parts.cells("Launches"),
        "Rounds": lambda p: str(sum(row.rounds or 0 for row in p.rows)),
        "Median (ms)": lambda p: number(p.step_s, scale=MILLI),
        "Mean (ms)": lambda p: number(p.pooled["mean_step_s"], scale=MILLI),
        "Min (ms)": lambda p: number(p.pooled["min_step_s"], scale=MILLI),
        "Max (ms)": lambda p: number(p.pooled["max_step_s"], scale=MILLI),
        **parts.cells(parts.FLAGS),
    }
    times = parts.point_table(
        "Times of one process", columns, [curve.points[0] for curve in series], 1
    )
    return panel(OTHER, TITLES[OTHER], tables=[times])
