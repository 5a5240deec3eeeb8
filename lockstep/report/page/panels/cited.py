"""The panels of imported tables, cited or targets, which never look like measured ones."""

from collections.abc import Mapping
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import TIME_UNITS, number, percent, percent_span, ratio
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.load.results import Results
from lockstep.report.page.panels.parts import (
    MAX_CURVES,
    MAX_TABLES,
    MILLI,
    ORIGINS,
    Panel,
    Table,
    allowed,
    baseline_text,
    drawn,
    flagged,
    left_out,
    panel,
    repeat_text,
    shown,
    sound,
    table,
)
from lockstep.report.page.plots import scaling_figures
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
        figure = scaling_figures.efficiency(origin, judged, threshold, predicted)
        made["figures"] = [figure | {"xlabel": "Devices"}]
    if len(curves) > MAX_CURVES:
        made["lead"].append(
            f"The figure has {MAX_CURVES} of {len(curves)} tables of three sizes or more."
        )
    shown = series[:MAX_TABLES]
    made["tables"] = [
        _imported_table(one, results.tables.get(one.case, {}), threshold) for one in shown
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
    said = [_scaling_text(series, facts), f"Ratios are relative to {baseline_text(series)}."]
    said += [repeat_text(series).strip()] if len(series.points) > 1 else []
    said += [f"Its values are {facts['conversion']}."] if facts.get("conversion") else []
    said += [f"Source: {facts['source']}."] if facts.get("source") else []
    said += [f"Note: {note}." for note in (facts.get("notes") or [])[:2]]
    return table(
        series.label, columns, rows, note=" ".join(said), origin=series.row.origin,
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
