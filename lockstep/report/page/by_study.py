"""The panels of all studies in the order of the page, and the panels without a study.

Panels without a study are of imported tables, of programs over a factor such as threads, of hosts
and ranks, and of tests of one process.
"""

import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from statistics import fmean, median
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import TIME_UNITS, capital, counted, number, percent
from lockstep.core.studies import LADDERS, OTHER, SWEEPS, TITLES
from lockstep.report.check.curve_rules import rates_of_times, tables_apart
from lockstep.report.check.evidence import Evidence
from lockstep.report.compute import slow
from lockstep.report.compute.alternatives import FactorLadder, drop_laddered, factor_ladders
from lockstep.report.compute.replicates import independent
from lockstep.report.compute.scaling import Series
from lockstep.report.compute.statistics import linear_interval, log_interval
from lockstep.report.load.results import Results, Row
from lockstep.report.page import curves, parts
from lockstep.report.page.collective_tables import collective_panel
from lockstep.report.page.parts import (
    MAX_CURVES,
    MILLI,
    Panel,
    Table,
    ends,
    panel,
    ratio_cell,
    table,
)
from lockstep.report.page.settings import settings_panel
from lockstep.report.page.training_panel import training_panel
from lockstep.report.predict.prediction import Prediction
from lockstep.report.words import headline


def panels(
    results: Results, series: Sequence[Series], threshold: float,
    predicted: Mapping[str, Prediction],
) -> list[Panel]:  # fmt: skip
    """Return the panels of everything measured and imported, in the order of the page."""
    measured = [curve for curve in series if curve.row.origin == "measured"]
    wires = {
        (launch.name, is_between): rate
        for launch in results.launches
        for is_between, key in ((True, "wire_gb_per_s"), (False, "gpu_link_gb_per_s"))
        if (rate := launch.provenance.get(key))
    }
    own: dict[str, list[Series]] = {study: [] for study in TITLES}
    for curve in drop_laddered(measured):
        own.setdefault(curve.row.study, []).append(curve)
    made = []
    for study, chosen in own.items():
        if not chosen:
            continue
        if study in LADDERS:
            made.append(curves.ladder_panel(study, chosen, threshold, results.hours, predicted))
        elif chosen[0].row.training:
            made.append(training_panel(study, chosen))
        elif study in SWEEPS:
            made.append(collective_panel(study, chosen, wires))
        elif study == OTHER:
            made.append(_others(chosen))
        else:
            made.append(settings_panel(study, chosen))
    made += programs_panels(measured)
    made += _paces([row for curve in measured if not curve.row.program
                    for point in curve.points for row in point.rows])  # fmt: skip
    for origin in ("cited", "target"):
        if chosen := [curve for curve in series if curve.row.origin == origin]:
            made.append(imported_panel(results, chosen, origin, threshold, predicted))
    return made


def ladders(series: Sequence[Series]) -> list[Series]:
    """Return the series whose efficiency is drawn."""
    drawn: list[Series] = []
    for study in (*LADDERS, *parts.ORIGINS):
        origin = study if study in parts.ORIGINS else "measured"
        chosen = [curve for curve in series
                  if curve.row.origin == origin and study in (curve.row.study, origin)]  # fmt: skip
        drawn += parts.sound(parts.drawn(chosen, origin))[:MAX_CURVES]
    return drawn


def imported_panel(
    results: Results, series: list[Series], origin: str, threshold: float,
    predicted: Mapping[str, Prediction],
) -> Panel:  # fmt: skip
    """Return the panel of the tables of one origin, cited or target."""
    lead = {
        "cited": "These numbers were published or logged by others and not measured by Lockstep. "
        "Ratios are computed here from the absolute numbers.",
        "target": "These numbers are expected by their authors and were measured by nobody. They "
        "are targets, not results.",
    }[origin]
    evidence = Evidence(results, series)
    beside, apart = rates_of_times(evidence), tables_apart(evidence)
    drawn, figures = parts.drawn(apart, origin), []
    if sound := parts.sound(drawn):
        figure = curves.efficiency(origin, sound, threshold, predicted)
        figures = [figure | {"xlabel": f"{capital(sound[0].noun)}s"}]
    num_drawn = len(drawn)
    note = f"The figure shows {MAX_CURVES} of the {num_drawn} tables with three sizes or more."
    return panel(
        origin, parts.ORIGINS[origin], origin, figures=figures,
        lead=[lead, *[note] * (num_drawn > MAX_CURVES)], notes=parts.left_out(apart, drawn),
        tables=[
            _imported_table(curve, results.tables.get(curve.case, {}), threshold,
                            beside.get(curve.case))
            for curve in apart[: parts.MAX_TABLES]
        ],
    )  # fmt: skip


SCALING = {
    "strong": "Strong scaling: the total work is fixed.",
    "weak": "Weak scaling: the work of each device is fixed.",
    "fixed-epochs": "Local batch and epochs are fixed, so the global batch grows and the number of "
    "steps falls. This is neither strong nor weak scaling. Speed-up and efficiency refer to "
    "the total time.",
}


def _imported_table(
    series: Series, facts: dict[str, Any], threshold: float, twin: Series | None
) -> Table:
    """Return a table of one series; `twin` is a table of throughput of the same runs."""
    unit = facts.get("unit", "s") if series.base.time_s is not None else "s"
    per = TIME_UNITS.get(unit, 1.0)
    timed = "Epoch" if facts.get("metric") == "epoch_time" else "Time"
    sample = (twin or series).row.sample_unit or "samples"
    rates = {p.world_size: p.throughput_samples_per_s for p in (twin or series).points}
    hours = {p.world_size: p.device_hours for p in twin.points} if twin else {}
    cost = "GPU-hours" if series.base.time_s else f"GPU-hours (per 10\u2076 {sample})"
    rate: tuple[str, parts.Cell] = (
        f"Throughput ({sample}/s)", lambda p: number(rates.get(p.world_size))
    )  # fmt: skip
    if series.base.throughput_samples_per_s is None and series.base.time_s is None:
        rate = f"Rate ({facts.get('unit', '')})", lambda p: number(p.rate if not p.step_s else None)
    ratio: str | tuple[str, parts.Cell] = parts.TIME_RATIO
    if series.row.scaling == "fixed-epochs":
        ratio = "Weak view (%)", lambda p: ratio_cell(p, percent(p.time_ratio))
    columns: parts.Columns = (
        ("n", parts.CELLS["Ranks"]), "Nodes", "Global batch", ("Rows", parts.CELLS["Launches"]),
        (f"{timed} ({unit})", lambda p: number(None if p.time_s is None else p.time_s / per)),
        "Step time (ms)", rate, "Speed-up", "Efficiency (%)", "95 % interval (%)",
        ratio, (cost, lambda p: formats.trimmed(p.device_hours)),
        (f"GPU-hours per 10\u2076 {sample}", lambda p: formats.trimmed(hours.get(p.world_size))),
        ("Extra GPU-hours (%)", lambda p: ratio_cell(p, percent(p.extra_device_hours))),
        (cost.replace("GPU-hours", "Cost"), lambda p: number(p.cost)), parts.FLAGS,
    )  # fmt: skip
    text = "The scaling is not stated, so the total work is taken as fixed."
    if stated := facts.get("scaling_text"):
        text = f"Scaling as stated: {stated}."
    if series.row.scaling in SCALING:
        text = SCALING[series.row.scaling]
    texts = [text, f"Ratios are relative to {parts.baseline_text(series)}."]
    if twin:
        texts.append(f"The throughput is that of {twin.label}. Ratios are computed from the times.")
    if len(series.points) > 1:
        texts.append(parts.repeat_text(series).strip())
    if conversion := facts.get("conversion"):
        texts.append(f"The throughput is computed as {conversion}.")
    if source := facts.get("source"):
        texts.append(f"Source: {source}.")
    texts += [f"Note: {note}." for note in (facts.get("notes") or [])[:2]]
    return parts.point_table(
        series.label, columns, series.points, note=" ".join(texts), prints=True,
        finding=headline.verdict(series, threshold),
    )  # fmt: skip


def programs_panels(series: Sequence[Series]) -> list[Panel]:
    """Return a panel for each factor that programs are laddered over, and one of their metrics."""
    factors: dict[str, list[FactorLadder]] = {}
    for ladder in factor_ladders(series):
        factors.setdefault(ladder.factor, []).append(ladder)
    made = [_over(factor, own) for factor, own in factors.items()]
    if metrics := _metrics(series):
        lead = "The program printed these values. A launch's value is the median over its runs."
        made.append(panel(
            "metrics", "Metrics of programs", lead=[lead], tables=metrics, figures=_curves(series)
        ))  # fmt: skip
    return made


def _over(factor: str, ladders: Sequence[FactorLadder]) -> Panel:
    key = f"over-{_safe(factor)}"
    sound = [ladder for ladder in ladders if not ladder.is_blocked]
    figure = [parts.curve_figure(
        f"{key}-speedup", f"Speed-up over {factor}", "Speed-up",
        list(map(_curve, sound[:MAX_CURVES])), ylog=True, xlabel=factor,
        ideal="ideal, from the baseline", nodes=[],
    )] if sound else []  # fmt: skip
    num_ladders = len(sound)
    note = f"The figure shows the first {MAX_CURVES} of {num_ladders} ladders."
    return panel(
        key, f"Scaling over {factor}", tables=list(map(_table, ladders)), figures=figure,
        notes=[note] * (num_ladders > MAX_CURVES),
    )  # fmt: skip


def _safe(name: str) -> str:
    """Return the letters of a user's name that a file may have, since figures become files."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", name)


def _curve(ladder: FactorLadder) -> dict[str, Any]:
    made = parts.curve_of(
        f"{ladder.label}, {counted(ladder.world_size, 'rank')}", ladder.points,
        lambda _, rate: rate / ladder.base.rate, lambda p: p.speedup_interval, ladder.value,
    )  # fmt: skip
    return made | {"ideal": [[value, value / made["x"][0]] for value in made["x"]], "nodes": []}


def _table(ladder: FactorLadder) -> Table:
    columns: parts.Columns = (
        (ladder.factor, lambda p: f"{ladder.value(p):g}"), "Launches",
        (f"Rate ({ladder.series.row.sample_unit}/s)", lambda p: number(p.rate)), "Speed-up",
        ("95 % interval", lambda p: ratio_cell(p, formats.ratio_span(p.speedup_interval))),
        "Efficiency (%)", "95 % interval (%)", parts.FLAGS,
    )  # fmt: skip
    base = f"{ladder.factor}={ladder.value(ladder.base):g} at {parts.absolute(ladder.base)}"
    return parts.point_table(
        f"{ladder.label} on {counted(ladder.world_size, 'rank')}", columns, ladder.points,
        note=f"Ratios are relative to {base}.",
    )  # fmt: skip


def _metrics(series: Sequence[Series]) -> list[Table]:
    rows: dict[tuple[str, str, str], list[tuple[float, list[str]]]] = {}
    for curve in series:
        known: Mapping[str, Any] = curve.row.program.get("metrics", {})
        for name, facts in known.items() if len(known) > 1 else ():
            for point in curve.points:
                launches = [median(row.program["metrics"][name]["values"]) for row in point.rows]
                units = independent(point.rows, launches) if min(launches) > 0 else []
                better = str(facts.get("better"))
                cells = [
                    curve.label, str(point.world_size), str(point.num_launches),
                    number(median(launches)), formats.span(log_interval(units)),
                ]  # fmt: skip
                place = median(launches) * (-1 if better == "higher" else 1)
                key = (name, str(facts.get("unit")), better)
                rows.setdefault(key, []).append((place, cells))
    columns = ("Case", "Ranks", "Launches", "Median", "95 % interval")
    return [
        table(
            f"{name} ({unit}), the {best} first",
            columns, [cells for _, cells in sorted(own, key=itemgetter(0))], 1,
        )
        for (name, unit, better), own in rows.items()
        for best in ("highest" if better == "higher" else "lowest",)
    ]  # fmt: skip


def _curves(series: Sequence[Series]) -> list[dict[str, Any]]:
    drawn: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for curve in series:
        for name, facts in curve.row.program.get("metrics", {}).items():
            for point in curve.points:
                runs = [row.program["metrics"][name].get("curves") or [[]] for row in point.rows]
                length = min(len(values) for row in runs for values in row)
                if length < 2:
                    continue
                means = [[fmean(run[i] for run in row) for row in runs] for i in range(length)]
                drawn.setdefault((name, str(facts["unit"])), []).append({
                    "label": f"{curve.label}, {counted(point.world_size, 'rank')}",
                    "x": list(range(1, length + 1)),
                    "y": [fmean(values) for values in means],
                    "band": [
                        ends(linear_interval([(1.0, independent(point.rows, values, fmean))]))
                        for values in means
                    ],
                })  # fmt: skip
    return [
        {
            "kind": "band", "id": f"curve-{index}-{_safe(name)}", "title": f"{name} over a run",
            "xlabel": "Position of the value in the run", "ylabel": f"{name} ({unit})",
            "whole": True, "percent": False, "lines": [], "series": own[:MAX_CURVES],
            "note": "The line is the mean over launches, and the band is its 95 % interval."
            + (f" First {MAX_CURVES} of {len(own)}." if len(own) > MAX_CURVES else ""),
            "desc": f"{name} in {unit} over a run. "
            + "; ".join(f"{each['label']}: {number(each['y'][-1])} at last" for each in own),
        }
        for index, ((name, unit), own) in enumerate(drawn.items(), start=1)
    ]  # fmt: skip


# Fewest hosts, and fewest ranks of one host, of a figure; most lines, the slowest first.
LEAST_HOSTS, LEAST_RANKS, MAX_LINES = 2, 3, 12


def _paces(rows: Sequence[Row]) -> list[Panel]:
    paces = slow.paces(rows)
    is_hosts = bool(paces) and paces[0].rank is None
    if len(paces) < (LEAST_HOSTS if is_hosts else LEAST_RANKS):
        return []
    noun = "host" if is_hosts else "rank"
    slowest = slow.slowest(rows)
    far = (slowest.host, slowest.rank) if slowest else None
    items = [
        {
            "label": (pace.host if is_hosts else str(pace.rank)) or "unknown",
            "value": _longer(pace.ratio),
            "interval": [*map(_longer, pace.interval)] if pace.interval else None,
            "dots": [*map(_longer, pace.spread)],
            "is_far": (pace.host, pace.rank) == far,
        }
        for pace in paces[:MAX_LINES]
    ]
    title = f"Time of each {noun}'s own work, compared with the others"
    if len(paces) > MAX_LINES:
        title += f" (the {MAX_LINES} slowest of {counted(len(paces), noun)})"
    described = "; ".join(f"{item['label']}: {item['value']:+.2f} %" for item in items)
    dot = "rank" if is_hosts else "launch"
    figure = {
        "kind": "category", "id": "pace-strip", "title": title, "items": items,
        "xlabel": "Extra time compared with the others (%)", "ylabel": noun.capitalize(),
        "line": 0.0, "is_relative": True, "desc": f"Step time by {noun}. {described}.",
        "note": f"A mark is the step time of a {noun} without gradient synchronisation, divided by "
        f"the median of the other {noun}s. It is a geometric mean over launches, with its 95 % "
        f"interval. The slowest {noun} is first. A faint dot is one {dot}.",
    }  # fmt: skip
    return [panel("pace", "Hosts and ranks", figures=[figure])]


def _longer(ratio: float) -> float:
    return 100 * (ratio - 1)


def _others(series: list[Series]) -> Panel:
    columns: parts.Columns = (
        ("Benchmark", lambda p: p.rows[0].case), "Launches",
        ("Rounds", lambda p: str(sum(row.rounds or 0 for row in p.rows))),
        ("Median (ms)", parts.CELLS["Step time (ms)"]),
        ("Mean (ms)", lambda p: number(p.mean_step_s, scale=MILLI)),
        ("Min (ms)", lambda p: number(p.min_step_s, scale=MILLI)),
        ("Max (ms)", lambda p: number(p.max_step_s, scale=MILLI)), parts.FLAGS,
    )  # fmt: skip
    points = [curve.points[0] for curve in series]
    times = parts.point_table("Step times of one process", columns, points, 1)
    return panel(OTHER, TITLES[OTHER], tables=[times])
