"""The panels of strong and weak scaling: one table per series, throughput, time and efficiency."""

from collections.abc import Mapping
from statistics import median

from lockstep.core import formats
from lockstep.core.formats import counted, number, percent, percent_span, ratio, ratio_span, span
from lockstep.core.studies import TITLES
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import ratio_interval
from lockstep.report.load import layout
from lockstep.report.page import plots
from lockstep.report.page.losses import loss_table, phase_table
from lockstep.report.page.parts import (
    GIGA,
    KILO,
    MAX_TABLES,
    MILLI,
    Figure,
    Panel,
    Table,
    allowed,
    baseline_text,
    cost_note,
    drawn,
    flagged,
    left_out,
    panel,
    repeat_text,
    shown,
    sound,
    table,
)
from lockstep.report.page.settings import requested
from lockstep.report.predict.prediction import Curve
from lockstep.report.words import headline

UNDIVIDED = (
    "Where a step's time goes is not known of strategy=fsdp: without communication a rank has no "
    "parameters to compute with."
)
# Each has four tables.
MAX_SERIES = MAX_TABLES // 4


def ladder_panel(
    study: str,
    series: list[Series],
    threshold: float,
    hours: str,
    predicted: Mapping[str, Curve],
) -> Panel:
    """Return the panel of a ladder study, strong or weak."""
    strong = study == "strong"
    lead = (
        "The global batch is fixed, so each rank's share of it shrinks as ranks are added."
        if strong
        else "The local batch is fixed: ideally a step takes as long on many ranks as on one."
    )
    if all(curve.row.program for curve in series):
        lead = f"The work of a run is fixed{'' if strong else ' for each rank'}."
    made = panel(study, TITLES[study], lead=[lead])
    made["figures"], notes = _figures(study, drawn(series), threshold, predicted)
    made["tables"] = requested(study, series) + [
        made_of
        for curve in series[:MAX_SERIES]
        for made_of in (
            _scaling_table(curve, threshold),
            None if curve.row.program else _cost_table(curve, hours),
            loss_table(curve),
            phase_table(curve),
        )
        if made_of
    ]
    made["notes"] = [*left_out(series, drawn(series), MAX_SERIES), *notes]
    if any(curve.row.factors.get("strategy") == "fsdp" for curve in series):
        made["notes"].append(UNDIVIDED)
    return made


def _figures(
    study: str, series: list[Series], threshold: float, predicted: Mapping[str, Curve]
) -> tuple[list[Figure], list[str]]:
    """Return what is drawn of a ladder, what an error of the check forbids left out; and notes."""
    if not series:
        return [], []
    judged, strong = sound(series), study == "strong"
    split, notes = plots.causes(study, judged)
    ratios = [plots.efficiency(study, judged, threshold, predicted)] if judged else []
    if strong and judged:  # the efficiency is at the top of the page, too
        ratios.insert(0, plots.speedup(study, judged))
    absolute = (
        plots.throughput(series) if strong
        else [plots.step_time(study, series)]
    )  # fmt: skip
    # A ratio and its causes first; what is left opens.
    return [*ratios[:1], *split[:1], *ratios[1:], *absolute, *split[1:]], notes


def _caption(series: Series) -> str:
    """Return a series' label with the precision and batch that the label does not tell."""
    row = series.row
    name = "global_batch" if row.scaling == "strong" else "local_batch"
    known = "precision" in row.factors or row.program
    texts = [row.precision] if row.precision and not known else []
    if name not in row.factors and getattr(row, name):
        texts.append(f"{name}={getattr(row, name)}")
    return f"{series.label} ({', '.join(texts)})" if texts else series.label


def _scaling_table(series: Series, threshold: float) -> Table:
    unit = series.row.sample_unit
    columns = (
        "Ranks", "Nodes", "Launches", "Step time (ms)", "95 % interval (ms)",
        f"Throughput ({unit}/s)", "Speed-up", "Efficiency (%)", "95 % interval (%)", "Flags",
    )  # fmt: skip
    note = f"Ratios are relative to {baseline_text(series)}.{repeat_text(series)}{_beside(series)}"
    rows = list(map(_scaling_row, series.points))
    if {row.num_nodes for point in series.points for row in point.rows} == {1}:
        rows = [[row[0], "", *row[2:]] for row in rows]
    text = headline.verdict(series, threshold)
    return table(_caption(series), columns, rows, note=note, finding=text, prints=True)


def _beside(series: Series) -> str:
    """Compare another layout with the main one, at each size."""
    if series.main is None:
        return ""
    main = {point.world_size: point for point in series.main.points}
    return "".join(
        f" On {counted(point.world_size, 'rank')}, {series.layout}: "
        f"{ratio(point.rate / beside.rate)} times the throughput of {_layout(beside, point)}"
        + (f" ({ratio_span(between)})." if between else " (no interval).")
        for point in series.points
        for beside in filter(None, [main.get(point.world_size)])
        if not point.blocked_by and not beside.blocked_by
        for between in [ratio_interval(point.units, beside.units)]
    )


def _layout(point: Point, other: Point) -> str:
    """Return what tells a point's layout from that of another point of its size."""
    names = layout.differing([*point.rows, *other.rows])
    return layout.suffix(*(layout.layout(one.rows[0], names) for one in (point, other)))


def _scaling_row(point: Point) -> list[str]:
    scale = MILLI if point.step_s is not None else 1.0
    return [
        str(point.world_size), shown(point.rows[0].num_nodes), str(point.num_launches),
        number(point.step_s, scale=MILLI),
        span(point.step_interval, scale), number(point.throughput_samples_per_s),
        allowed(point, ratio(point.speedup)), allowed(point, percent(point.parallel_efficiency)),
        allowed(point, percent_span(point.efficiency_interval)),
        flagged(point),
    ]  # fmt: skip


def _cost_table(series: Series, hours: str) -> Table:
    """Return what each point takes of the machine: batch, device-hours, memory."""
    unit, strong = series.row.sample_unit, series.row.study == "strong"
    extra = hours if hours.startswith("GPU") else hours.lower()
    columns = (
        "Ranks", "Local batch" if strong else "Global batch", "Time ratio",
        f"{hours} (per 10\u2076 {unit})", f"Extra {extra} (%)", f"Cost (per 10\u2076 {unit})",
        "MFU (%)", "GPU in use (%)", f"Energy (J per 10\u00b3 {unit})", "Memory (GB)",
    )  # fmt: skip
    rows = [_cost_row(point, strong) for point in series.points]
    least, most = (formats.trimmed(series.points[i].device_hours) for i in (0, -1))
    text = f"{series.label} {least} to {most} {extra} per 10\u2076 {unit}"
    return table(
        f"What it takes: {_caption(series)}", columns, rows, folded=True,
        note=cost_note(hours, series.points), finding=text,
        group="What each point takes: batch, hours, memory",
    )  # fmt: skip


def _cost_row(point: Point, strong: bool) -> list[str]:
    row = point.rows[0]
    memory = point.peak_memory_bytes
    mfus = [r.mfu for r in point.rows if r.mfu is not None]
    energy = [one for r in point.rows if (one := quantities.joules_per_sample(r))]
    busy = quantities.values(point.rows, "gpu_utilisation")
    return [
        str(point.world_size), shown(row.local_batch if strong else row.global_batch),
        allowed(point, ratio(point.time_ratio)), formats.trimmed(point.device_hours),
        allowed(point, percent(point.extra_device_hours)), number(point.cost),
        percent(median(mfus) if mfus else None),
        percent(quantities.centre(busy, "gpu_utilisation") if busy else None),
        number(median(energy) * KILO if energy else None),
        number(memory / GIGA if memory else None),
    ]  # fmt: skip
