"""The panels of a report, in the order of the page: from series to plain data.

The panels of imported tables, cited or targets, which never look like measured ones.

The panels of programs: speed-up over a factor such as threads, and what else they printed.
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
from lockstep.report.compute.alternatives import (
    FactorLadder,
    Rung,
    factor_ladders,
    without_laddered,
)
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import log_interval
from lockstep.report.load.results import Results
from lockstep.report.page import plots
from lockstep.report.page.collective_tables import collective_panel
from lockstep.report.page.curves import ladder_panel
from lockstep.report.page.panels.training_panel import training_panel
from lockstep.report.page.parts import (
    MAX_CURVES,
    MAX_TABLES,
    MILLI,
    ORIGINS,
    Figure,
    Panel,
    Table,
    absolute,
    allowed,
    baseline_text,
    curve_figure,
    drawn,
    ends,
    flagged,
    left_out,
    panel,
    repeat_text,
    shown,
    sound,
    table,
)
from lockstep.report.page.plots import pace
from lockstep.report.page.settings import settings_panel
from lockstep.report.predict.prediction import Curve
from lockstep.report.words import headline


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
    made = panel(origin, ORIGINS[origin], origin, lead=[lead])
    curves = drawn(series, origin)
    if judged := sound(curves):
        figure = plots.efficiency(origin, judged, threshold, predicted)
        made["figures"] = [figure | {"xlabel": "Devices"}]
    if len(curves) > MAX_CURVES:
        made["lead"].append(
            f"The figure has {MAX_CURVES} of {len(curves)} tables of three sizes or more."
        )
    shown = series[:MAX_TABLES]
    made["tables"] = [
        _imported_table(curve, results.tables.get(curve.case, {}), threshold) for curve in shown
    ]
    made["notes"] = left_out(series, curves)
    return made


def _imported_table(series: Series, facts: dict[str, Any], threshold: float) -> Table:
    unit = facts.get("unit", "s") if series.base.time_s is not None else "s"
    per = TIME_UNITS.get(unit, 1.0)
    sample = series.row.sample_unit or "samples"
    fixed = series.row.scaling == "fixed-epochs"
    cost = "GPU-hours" if series.base.time_s else f"GPU-hours (per 10\u2076 {sample})"
    relative = series.base.throughput_samples_per_s is None and series.base.time_s is None
    columns = (
        "n", "Global batch", "Rows", f"Time ({unit})", "Step time (ms)",
        f"Rate ({facts.get('unit', '')})" if relative else f"Throughput ({sample}/s)", "Speed-up",
        "Efficiency (%)", "95 % interval (%)", "Weak view (%)" if fixed else "Time ratio", cost,
        "Extra GPU-hours (%)", cost.replace("GPU-hours", "Cost"), "Flags",
    )  # fmt: skip
    rows = [_imported_row(p, per, fixed, relative) for p in series.points]
    texts = [_scaling_text(series, facts), f"Ratios are relative to {baseline_text(series)}."]
    texts += [repeat_text(series).strip()] if len(series.points) > 1 else []
    texts += [f"Its values are {facts['conversion']}."] if facts.get("conversion") else []
    texts += [f"Source: {facts['source']}."] if facts.get("source") else []
    texts += [f"Note: {note}." for note in (facts.get("notes") or [])[:2]]
    return table(
        series.label, columns, rows, note=" ".join(texts), origin=series.row.origin,
        finding=headline.verdict(series, threshold), prints=True,
    )  # fmt: skip


def _imported_row(point: Point, per: float, fixed: bool, relative: bool) -> list[str]:
    step = None if point.step_s is None else point.step_s * MILLI
    view = percent(point.time_ratio) if fixed else ratio(point.time_ratio)
    steps_only = relative and step is not None
    rate = None if steps_only else point.rate if relative else point.throughput_samples_per_s
    return [
        str(point.world_size), shown(point.rows[0].global_batch), str(point.num_launches),
        number(None if point.time_s is None else point.time_s / per), number(step), number(rate),
        allowed(point, ratio(point.speedup)), allowed(point, percent(point.parallel_efficiency)),
        allowed(point, percent_span(point.efficiency_interval)), allowed(point, view),
        formats.trimmed(point.device_hours),
        allowed(point, percent(point.extra_device_hours)), number(point.cost),
        flagged(point),
    ]  # fmt: skip


def _scaling_text(series: Series, facts: dict[str, Any]) -> str:
    texts = {
        "strong": "Strong scaling: the total work is fixed.",
        "weak": "Weak scaling: the work of each device is fixed.",
        "fixed-epochs": "Local batch and epochs fixed, so the global batch grows and the steps "
        "fall: neither strong nor weak scaling. Speed-up and efficiency are of the total time.",
    }
    if series.row.scaling in texts:
        view = " The weak view compares step times." if series.base.time_ratio else ""
        return texts[series.row.scaling] + view
    said = facts.get("scaling_text")
    return (
        f"Scaling as stated: {said}." if said else "Scaling not stated: total work taken as fixed."
    )


IDEAL = "ideal, from the smallest value"


def programs_panels(series: Sequence[Series]) -> list[Panel]:
    """Return a panel for each factor that programs are laddered over, and one of their metrics."""
    found: dict[str, list[FactorLadder]] = {}
    for factor_ladder in factor_ladders(series):
        found.setdefault(factor_ladder.factor, []).append(factor_ladder)
    made = [_over(factor, own) for factor, own in found.items()]
    metrics = [of_one for curve in series if (of_one := _metrics(curve))]
    if metrics:
        lead = "What the program printed: of each launch the median over its runs."
        made.append(panel("metrics", "Metrics of programs", lead=[lead], tables=metrics))
    return made


def _over(factor: str, ladders: Sequence[FactorLadder]) -> Panel:
    made = panel(_id(factor), f"Scaling over {factor}")
    sound = [factor_ladder for factor_ladder in ladders if not factor_ladder.is_blocked]
    made["figures"] = [_figure(factor, sound[:MAX_CURVES])] if sound else []
    made["tables"] = [_table(factor_ladder) for factor_ladder in ladders]
    if len(sound) > MAX_CURVES:
        made["notes"] = [f"The figure shows the first {MAX_CURVES} of {len(sound)} ladders."]
    return made


def _id(factor: str) -> str:
    """Return what names a factor's panel and files, whatever a stranger called the factor."""
    return f"over-{re.sub(r'[^A-Za-z0-9_]+', '-', factor)}"


def _figure(factor: str, ladders: Sequence[FactorLadder]) -> Figure:
    curves = [_curve(factor_ladder) for factor_ladder in ladders]
    return curve_figure(
        f"{_id(factor)}-speedup", f"Speed-up over {factor}", "Speed-up", curves, ylog=True,
        xlabel=factor, ideal=IDEAL, nodes=[],
    )  # fmt: skip


def _curve(ladder: FactorLadder) -> dict[str, Any]:
    base, rungs = ladder.base, ladder.rungs
    dots = [
        [rung.value, rate / base.point.rate]
        for rung in rungs for rate in rung.point.rates if len(rung.point.rates) > 1
    ]  # fmt: skip
    return {
        "label": f"{ladder.label}, {counted(ladder.world_size, 'rank')}",
        "x": [rung.value for rung in rungs],
        "y": [rung.speedup for rung in rungs],
        "intervals": [ends(rung.speedup_interval) for rung in rungs],
        "dots": dots,
        "ideal": [[rung.value, rung.value / base.value] for rung in rungs],
        "nodes": [],
    }


def _table(ladder: FactorLadder) -> Table:
    unit = ladder.series.row.sample_unit
    columns = (
        ladder.factor, "Launches", f"Rate ({unit}/s)", "Speed-up", "95 % interval",
        "Efficiency (%)", "95 % interval (%)", "Flags",
    )  # fmt: skip
    base = ladder.base
    note = f"Ratios are relative to {ladder.factor}={base.value:g} at {absolute(base.point)}."
    caption = f"{ladder.label} on {counted(ladder.world_size, 'rank')}"
    return table(caption, columns, [_row(rung, base) for rung in ladder.rungs], note=note)


def _row(rung: Rung, base: Rung) -> list[str]:
    point = rung.point
    ratios = [
        ratio(rung.speedup), ratio_span(rung.speedup_interval),
        percent(rung.efficiency), percent_span(rung.efficiency_interval),
    ]  # fmt: skip
    return [
        f"{rung.value:g}", str(point.num_launches), number(point.rate),
        *(allowed(point, text, base.point) for text in ratios), flagged(point),
    ]  # fmt: skip


def _metrics(series: Series) -> Table | None:
    """Return the table of a program's metrics; None where it is measured by its wall time alone."""
    known = series.row.program.get("metrics", {})
    if len(known) < 2:
        return None
    columns = ("Metric", "Ranks", "Launches", "Median", "95 % interval", "Unit", "Better")
    rows = [
        _metric_row(name, facts, point) for name, facts in known.items() for point in series.points
    ]
    return table(series.label, columns, rows, 1)


def _metric_row(name: str, facts: Mapping[str, Any], point: Point) -> list[str]:
    launches = [median(row.program["metrics"][name]["values"]) for row in point.rows]
    units = replicates.independent(point.rows, launches) if min(launches) > 0 else []
    interval = log_interval(units)
    return [
        name, str(point.world_size), str(point.num_launches), number(median(launches)),
        span(interval), str(facts.get("unit")), str(facts.get("better")),
    ]  # fmt: skip


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
    measured = [curve for curve in series if curve.row.origin == "measured"]
    studies = list(dict.fromkeys([*TITLES, *(curve.row.study for curve in measured)]))
    carried = {launch.name: launch.provenance.get("wire_gb_per_s") for launch in results.launches}
    wires = {name: wire for name, wire in carried.items() if wire}
    curves = without_laddered(measured)
    made = [
        _panel(study, chosen, threshold, hours, wires, predicted or {})
        for study in studies
        if (chosen := [curve for curve in curves if curve.row.study == study])
    ]
    made += programs_panels(measured)
    made += _pace([curve for curve in measured if not curve.row.program])
    for origin in ("cited", "target"):
        chosen = [curve for curve in series if curve.row.origin == origin]
        if chosen:
            made.append(imported_panel(results, chosen, origin, threshold, predicted or {}))
    return made


def ladders(series: Sequence[Series]) -> list[Series]:
    """Return the series whose efficiency is drawn."""
    curves: list[Series] = []
    for study in (*LADDERS, "cited", "target"):
        origin = study if study in ("cited", "target") else "measured"
        chosen = [
            curve
            for curve in series
            if curve.row.origin == origin and study in (curve.row.study, origin)
        ]
        curves += sound(drawn(chosen, origin))[:MAX_CURVES]
    return curves


def _pace(series: Sequence[Series]) -> list[Panel]:
    """Return the strip of hosts and ranks, where there are enough of them to compare."""
    rows = [row for curve in series for point in curve.points for row in point.rows]
    paces = slow.paces(rows)
    if len(paces) < (LEAST_RANKS if paces and paces[0].rank is not None else LEAST_HOSTS):
        return []
    return [panel("pace", "Hosts and ranks", figures=[pace(paces, slow.slowest(rows))])]


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
    for curve in series:
        point = curve.points[0]
        times = (point.step_s, *(point.pooled[f"{n}_step_s"] for n in ("mean", "min", "max")))
        rows.append([
            curve.case, str(point.num_launches), str(sum(r.rounds or 0 for r in point.rows)),
            *(number(time_s, scale=MILLI) for time_s in times),
            flagged(point),
        ])  # fmt: skip
    return panel(OTHER, TITLES[OTHER], tables=[table("Times of one process", columns, rows, 1)])
