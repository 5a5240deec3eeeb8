"""The panels of strong and weak scaling: figures, and tables of each series and of its steps."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import (
    DASH,
    capital,
    counted,
    number,
    percent,
    percent_span,
    ratio,
    ratio_span,
)
from lockstep.core.studies import TITLES
from lockstep.measure.causes.bound import NAMES, Cause
from lockstep.report.compute import quantities
from lockstep.report.compute.quantities import CAUSES, Part
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval, ratio_interval
from lockstep.report.load import layout
from lockstep.report.page import parts
from lockstep.report.page.parts import (
    MAX_CURVES,
    MILLI,
    Figure,
    Panel,
    Table,
    allowed,
    curve_figure,
    curve_of,
    ms,
    ms_span,
    point_table,
)
from lockstep.report.page.settings import requested
from lockstep.report.predict.prediction import Curve
from lockstep.report.words import headline

UNDIVIDED = (
    "Where a step's time goes is not known of strategy=fsdp: without communication a rank has no "
    "parameters to compute with."
)
# Each series has four tables.
MAX_SERIES = parts.MAX_TABLES // 4


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
    drawn = parts.drawn(series)
    sound = parts.sound(drawn)
    split, notes = causes(study, sound)
    # What an error of the check forbids is left out.
    ratios = [efficiency(study, sound, threshold, predicted)] if sound else []
    if strong and sound:  # the efficiency is at the top of the page, too
        ratios.insert(0, speedup(study, sound))
    absolute = throughput(drawn) if strong else [step_time(study, drawn)] if drawn else []
    tables = requested(study, series)
    for curve in series[:MAX_SERIES]:
        own = [
            _scaling_table(curve, threshold),
            None if curve.row.program else _cost_table(curve, hours),
            loss_table(curve),
            phase_table(curve),
        ]
        tables += [table for table in own if table]
    has_fsdp = any(curve.row.factors.get("strategy") == "fsdp" for curve in series)
    return parts.panel(
        study, TITLES[study], lead=[lead], tables=tables,
        # A ratio and its causes first; the others are opened.
        figures=[*ratios[:1], *split[:1], *ratios[1:], *absolute, *split[1:]],
        notes=[*parts.left_out(series, drawn, MAX_SERIES), *notes, *[UNDIVIDED] * has_fsdp],
    )  # fmt: skip


# Units of throughput that have a figure of their own; the speed-up has further ones.
MAX_UNITS = 2
IDEAL = "ideal, from the baseline"
# What weak scaling is held to: an efficiency, and a step time over the baseline's.
WEAK_EFFICIENCY, WEAK_LONGER, LONGER_TEXT = 0.9, 1.1, "+10 %"
# An efficiency beyond the larger of these is no scaling: it is named at the edge, and the axis is
# made for the others. The second is times the median of all points.
CAP, CAP_OF_MEDIAN = 1.5, 1.5
MAX_NAMED = 3  # in one sentence


def throughput(series: Sequence[Series]) -> list[Figure]:
    """Return a figure of throughput for each unit, on log axes with the ideal."""
    units = list(dict.fromkeys(curve.row.sample_unit for curve in series))
    made = []
    for index, unit in enumerate(units[:MAX_UNITS]):
        curves = []
        for one in [curve for curve in series if curve.row.sample_unit == unit][:MAX_CURVES]:
            per_rank = one.base.rate / one.base.world_size
            curves.append(
                curve_of(one, lambda p: p.rate, lambda p: p.rate_interval, lambda p: p.rates)
                | {"ideal": [[p.world_size, per_rank * p.world_size] for p in one.points]}
            )
        key = "strong-throughput" + (f"-{index + 1}" if index else "")
        of = f" in {unit}/s" if len(units) > 1 else ""
        made.append(curve_figure(
            key, f"Strong scaling: throughput{of}", f"Throughput ({unit}/s)", curves, ylog=True,
            ideal=IDEAL,
        ))  # fmt: skip
    if len(units) > MAX_UNITS:
        left_out = formats.listed(f"{unit}/s" for unit in units[MAX_UNITS:])
        made[-1]["note"] = f"Not drawn: series in {left_out}; the speed-up has them."
    return made


def speedup(study: str, series: Sequence[Series]) -> Figure:
    """Return speed-up over world sizes on log axes, with the ideal from each baseline."""

    def curve(one: Series) -> dict[str, Any]:
        made = curve_of(
            one, lambda p: p.speedup, lambda p: p.speedup_interval,
            lambda p: [rate / one.base.rate for rate in p.rates],
        )  # fmt: skip
        ideal = [[p.world_size, p.world_size / one.base.world_size] for p in one.points]
        return made | {"ideal": ideal}

    return curve_figure(
        f"{study}-speedup", f"{_title(study)}: speed-up", "Speed-up",
        [curve(one) for one in series[:MAX_CURVES]], ylog=True, binary=True, ideal=IDEAL,
        note=_relative(series),
    )  # fmt: skip


def efficiency(
    study: str, series: Sequence[Series], threshold: float, predicted: Mapping[str, Curve]
) -> Figure:
    """Return parallel efficiency over world sizes, with lines at what it is held to."""

    def curve(one: Series) -> dict[str, Any]:
        per_rank = one.base.rate / one.base.world_size
        made = curve_of(
            one, lambda p: p.parallel_efficiency, lambda p: p.efficiency_interval,
            lambda p: [rate / p.world_size / per_rank for rate in p.rates],
        )  # fmt: skip
        known = predicted.get(one.name)
        if known is None:
            return made | {"model": None}
        last = known.points[-1][0]
        return made | {
            "model": {
                "name": known.model,
                "points": [[size, rate / size / per_rank] for size, rate in known.points],
                "interval": [rate / last / per_rank for rate in known.interval],
            }
        }

    curves = [curve(one) for one in series[:MAX_CURVES]]
    heights = {1.0, threshold, *([WEAK_EFFICIENCY] if study == "weak" else [])}
    return curve_figure(
        f"{study}-efficiency", f"{_title(study)}: parallel efficiency", "Parallel efficiency (%)",
        curves, percent=True,
        cap=max(CAP, CAP_OF_MEDIAN * median(y for one in curves for y in one["y"])),
        lines=[{"y": y, "label": f"{100 * y:.0f} %"} for y in sorted(heights, reverse=True)],
        note=f"{_relative(series)}{_predicted_text(curves)}",
    )  # fmt: skip


def step_time(study: str, series: Sequence[Series]) -> Figure:
    """Return step time over world sizes, each with its baseline's as the ideal and +10 %."""
    curves = []
    for one in series[:MAX_CURVES]:
        curve = curve_of(
            one, parts.step_ms, parts.step_interval_ms,
            lambda p: [row.step_s * MILLI for row in p.rows if row.step_s is not None],
        )  # fmt: skip
        for name, factor in (("ideal", 1.0), ("limit", WEAK_LONGER)):
            curve[name] = [[p.world_size, factor * parts.step_ms(one.base)] for p in one.points]
        curves.append(curve)
    return curve_figure(
        f"{study}-step-time", f"{_title(study)}: step time", "Step time (ms)", curves, ideal=IDEAL,
        limit=LONGER_TEXT,
    )  # fmt: skip


def _title(study: str) -> str:
    return (TITLES | parts.ORIGINS).get(study, study)


def _relative(series: Sequence[Series]) -> str:
    bases = dict.fromkeys(parts.baseline_text(curve) for curve in series[:MAX_CURVES])
    return f"Relative to {'; '.join(bases)}."


def _predicted_text(curves: list[dict[str, Any]]) -> str:
    """Say what of a figure is predicted and not measured."""
    texts = []
    for curve in curves:
        if model := curve["model"]:
            size, value = model["points"][-1]
            texts.append(
                f"{curve['label']}, {model['name']}: {percent(value)} % at {size}, "
                f"90 % interval {percent_span(tuple(model['interval']))}"
            )
    if len(texts) > MAX_NAMED:
        texts[MAX_NAMED:] = [f"and {len(texts) - MAX_NAMED} more"]
    legend = "Dotted with a hollow mark: by the rule chosen, predicted and not measured"
    return f" {legend} ({'; '.join(texts)})." if texts else ""


# From the foot of a bar to its top: the work itself, then what is added to it.
STACKED: tuple[Cause, ...] = (
    "own", "ddp", "fixed", "contention", "input", "imbalance", "exposed"
)  # fmt: skip
# Series of a study that have a figure of their causes; tables have the others.
MAX_SPLIT = 2


def causes(study: str, series: Sequence[Series]) -> tuple[list[Figure], list[str]]:
    """Return a figure for each of the first series with timed variants, a note on the others."""
    made: list[Figure] = []
    for curve in series:
        bars = [bar for point in curve.points if (bar := _bar(curve, point))]
        if len(bars) < 2:
            continue
        used = {part["cause"] for bar in bars for part in (*bar["parts"], *bar["lost"])}
        described = "; ".join(
            f"{bar['ranks']} ranks: {number(bar['total'])} ms, "
            + ", ".join(f"{NAMES[part['cause']]} {number(part['ms'])}" for part in bar["parts"])
            for bar in bars
        )
        made.append({
            "kind": "stack", "id": f"{study}-causes-{len(made)}", "bars": bars,
            "names": {cause: capital(NAMES[cause]) for cause in STACKED if cause in used},
            "title": f"{TITLES[curve.row.study]}: where a step's time goes, {curve.label}",
            "xlabel": "Ranks", "ylabel": "Step time (ms)",
            "lost_label": "Longer than the ideal step, by cause (ms)",
            "desc": f"Step time in ms by cause against ranks. {described}.",
            "note": "Below, what a step takes longer than its ideal, which may be nothing.",
        })  # fmt: skip
    if len(made) <= MAX_SPLIT:
        return made, []
    note = f"Where a step's time goes is drawn of {MAX_SPLIT} of {len(made)} series."
    return made[:MAX_SPLIT], [note]


def _bar(series: Series, point: Point) -> dict[str, Any] | None:
    """Return a size's step by cause in ms; None where no variants of it were timed."""

    def by_cause(found: Sequence[Part]) -> list[dict[str, Any]]:
        return [{"cause": part.cause, "ms": part.seconds * MILLI} for part in found]

    known = quantities.parts(point)
    if known is None:
        return None
    total = sum(part.seconds for part in known) * MILLI
    bar: dict[str, Any] = {"ranks": point.world_size, "total": total, "parts": by_cause(known)}
    lost = quantities.loss(series, point)
    if lost is None:
        return bar | {"ideal": total, "lost": [], "net": None, "net_interval": None}
    return bar | {
        "ideal": (lost.step_s - lost.seconds) * MILLI,
        "lost": by_cause(lost.parts),
        "net": max(lost.seconds, 0.0) * MILLI,
        "net_interval": lost.interval and [max(end, 0.0) * MILLI for end in lost.interval],
    }


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
    on_one = {row.num_nodes for point in series.points for row in point.rows} == {1}
    columns: dict[str, parts.Cell] = {
        **parts.cells("Ranks", *([] if on_one else ["Nodes"]), "Launches", "Step time (ms)"),
        **parts.cells("95 % interval (ms)"),
        f"Throughput ({series.row.sample_unit}/s)": lambda p: number(p.throughput_samples_per_s),
        **parts.cells("Speed-up", "Efficiency (%)", "95 % interval (%)", parts.FLAGS),
    }
    note = f"Ratios are relative to {parts.baseline_text(series)}."
    return point_table(
        _caption(series), columns, series.points, prints=True,
        note=f"{note}{parts.repeat_text(series)}{_beside(series)}",
        finding=headline.verdict(series, threshold),
    )  # fmt: skip


def _beside(series: Series) -> str:
    """Compare another layout with the main one, at each size."""
    if series.main is None:
        return ""
    main = {point.world_size: point for point in series.main.points}
    text = ""
    for point in series.points:
        other = main.get(point.world_size)
        if other is None or point.blocked_by or other.blocked_by:
            continue
        names = layout.differing([*other.rows, *point.rows])
        placed = layout.suffix(*(layout.layout(one.rows[0], names) for one in (other, point)))
        between = ratio_interval(point.units, other.units)
        text += (
            f" On {counted(point.world_size, 'rank')}, {series.layout}: "
            f"{ratio(point.rate / other.rate)} times the throughput of {placed}"
            + (f" ({ratio_span(between)})." if between else " (no interval).")
        )
    return text


def _cost_table(series: Series, hours: str) -> Table:
    """Return what each point takes of the machine: batch, device-hours, memory."""
    unit, strong = series.row.sample_unit, series.row.study == "strong"
    extra = hours if hours.startswith("GPU") else hours.lower()

    def batch(point: Point) -> str:
        row = point.rows[0]
        return parts.shown(row.local_batch if strong else row.global_batch)

    def mfu(point: Point) -> str:
        known = [row.mfu for row in point.rows if row.mfu is not None]
        return percent(median(known) if known else None)

    def energy(point: Point) -> str:
        known = [joules for row in point.rows if (joules := quantities.joules_per_sample(row))]
        return number(median(known) * parts.KILO if known else None)

    columns: dict[str, parts.Cell] = {
        **parts.cells("Ranks"),
        "Local batch" if strong else "Global batch": batch,
        **parts.cells("Time ratio"),
        f"{hours} (per 10\u2076 {unit})": lambda p: formats.trimmed(p.device_hours),
        f"Extra {extra} (%)": lambda p: allowed(p, percent(p.extra_device_hours)),
        f"Cost (per 10\u2076 {unit})": lambda p: number(p.cost),
        "MFU (%)": mfu,
        "GPU in use (%)": lambda p: parts.share(p.rows, "gpu_utilisation"),
        f"Energy (J per 10\u00b3 {unit})": energy,
        **parts.cells("Memory (GB)"),
    }
    least, most = (formats.trimmed(series.points[i].device_hours) for i in (0, -1))
    return point_table(
        f"What it takes: {_caption(series)}", columns, series.points, folded=True,
        note=parts.cost_note(hours, series.points),
        finding=f"{series.label} {least} to {most} {extra} per 10\u2076 {unit}",
        group="What each point takes: batch, hours, memory",
    )  # fmt: skip


# Tables that a reader opens together.
GROUP = "Where a step's time goes"
LOSS_NOTE = (
    "The whole step is the step time of every table, a median of timed rounds. Its causes are "
    "means over turns of the step, of the same without gradient synchronisation and of that on "
    "half of the batch, interleaved after those rounds, and scaled to it. Own work is what a "
    "rank takes that need not wait, imbalance what the slowest rank of a turn takes longer, "
    "exposed communication what the whole step takes beyond that. A loss is the time less its "
    "share of the baseline's, and 0 where it is less. DDP's own work is known of one rank, which "
    "communicates with nobody; the fixed cost of a step from half batches; contention is waits for "
    "a core and what own work takes beyond both."
)
PHASE_COLUMNS = (
    "Ranks", "Data (ms)", "Forward (ms)", "Backward (ms)", "Optimizer (ms)",
    "All-reduce alone (ms)", "Exposed (ms)", "Overlap (%)", "95 % interval (%)",
)  # fmt: skip
PHASE_NOTE = (
    "Forward, backward and optimizer are of the turns of the whole step: means over ranks, medians "
    "over turns and launches. Data is what the slowest rank waits for its batch, a mean. "
    "Backward holds the communication that it does not hide. Overlap is 1 less the exposed "
    "communication over the all-reduce of the gradients alone, with nothing beside it: 100 % where "
    "the backward hides all of it. Exposed communication holds DDP's own copies and hooks, too, so "
    "no less than that is hidden."
)


def loss_table(series: Series) -> Table | None:
    """Return where each point's step goes and what is lost, or None without steps alone."""
    rows = [row for point in series.points for row in _loss_rows(series, point)]
    columns = (
        "Ranks", "Of a step", "Time (ms)", "95 % interval (ms)", "Lost to the baseline (ms)",
        "95 % interval (ms)",
    )  # fmt: skip
    if not rows:
        return None
    point = series.points[-1]
    where, finding = f"on {counted(point.world_size, 'rank')}", ""
    if why := quantities.reason(series, point):
        finding = f"{where} {'little is lost' if why.kind == 'little' else 'no cause is shown'}"
    if why and why.kind == "named":
        first, step_ms = why.named[0], number(why.loss.step_s * MILLI)
        finding = (
            f"{series.label} {where} {ms(first.seconds)} of {step_ms} ms go to {NAMES[first.cause]}"
        )
    return parts.table(
        f"{GROUP}: {series.label}", columns, rows, 2, note=LOSS_NOTE, folded=True, group=GROUP,
        finding=finding,
    )  # fmt: skip


def _loss_rows(series: Series, point: Point) -> list[list[str]]:
    known, lost = quantities.parts(point), quantities.loss(series, point)
    if known is None:
        return []

    def both(seconds: float, interval: Interval | None) -> list[str]:
        return [ms(seconds), ms_span(interval)]

    unknown = [DASH, DASH]
    times = {part.cause: both(part.seconds, part.interval) for part in known}
    losses = {p.cause: both(p.seconds, p.interval) for p in (lost.parts if lost else ())}
    size = str(point.world_size)
    whole = number(sum(part.seconds for part in known) * MILLI)
    return [
        *([size, capital(NAMES[cause]), *times.get(cause, unknown), *losses.get(cause, unknown)]
          for cause in CAUSES if cause in times or cause in losses),
        [size, "Whole step", whole, DASH,
         *(both(lost.seconds, lost.interval) if lost else unknown)],
    ]  # fmt: skip


def phase_table(series: Series) -> Table | None:
    """Return the phases of each point's step and what they hide; None where nothing is known."""
    rows = []
    for point in series.points:
        own = [] if point.blocked_by else point.rows
        alone = (quantities.pooled(point, name)[0] for name in ("reduce", "exposed"))
        cells = [
            *(number(time_s, scale=MILLI) for time_s in quantities.phases(point).values()),
            *(number(time_s, scale=MILLI) for time_s in alone),
            parts.share(own, "overlap"),
            percent_span(quantities.interval(own, "overlap")),
        ]
        if set(cells) != {DASH}:
            rows.append([str(point.world_size), *cells])
    if not rows:
        return None
    caption = f"Phases of a step: {series.label}"
    return parts.table(caption, PHASE_COLUMNS, rows, note=PHASE_NOTE, folded=True, group=GROUP)
