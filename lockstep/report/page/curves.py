"""The panels of strong and weak scaling: figures, and tables of each series and of its steps."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import DASH, capital, counted, number, percent
from lockstep.core.studies import TITLES
from lockstep.measure.causes.bound import NAMES, Cause
from lockstep.report.compute import quantities
from lockstep.report.compute.quantities import CAUSES, Loss, Part
from lockstep.report.compute.scaling import Point, Series, no_interval
from lockstep.report.compute.statistics import ratio_interval
from lockstep.report.load import layout
from lockstep.report.page import parts
from lockstep.report.page.parts import (
    MAX_CURVES,
    MILLI,
    Figure,
    Panel,
    curve_figure,
    curve_of,
)
from lockstep.report.page.settings import requested_tables
from lockstep.report.predict.prediction import Prediction
from lockstep.report.words import headline

UNDIVIDED = (
    "A step with strategy=fsdp cannot be divided by cause, because a rank without communication "
    "has no parameters to compute with."
)
# Each series has five tables.
MAX_SERIES = parts.MAX_TABLES // 5


def ladder_panel(
    study: str,
    series: list[Series],
    threshold: float,
    hours: str,
    predicted: Mapping[str, Prediction],
) -> Panel:
    """Return the panel of a ladder study, strong or weak."""
    strong = series[0].row.scaling == "strong"
    lead = (
        "The global batch is fixed, so each rank's share of it shrinks as ranks are added."
        if strong
        else "The local batch is fixed: ideally a step takes as long on many ranks as on one."
    )
    if all(curve.row.program for curve in series):
        lead = "The work of a run is fixed." if strong else "The work of each rank is fixed."
    drawn = parts.drawn(series)
    sound = parts.sound(drawn)
    split, notes = _causes(study, sound)
    # Figures of ratios leave out series that an error of the check touches.
    ratios = [efficiency(study, sound, threshold, predicted)] if sound else []
    if strong and sound:  # the efficiency is at the top of the page, too
        ratios.insert(0, _speedup(study, sound))
    absolute = _throughput(drawn) if strong else [_step_time(study, drawn)] if drawn else []
    tables = requested_tables(study, series)
    for curve in series[:MAX_SERIES]:
        tables.append(_scaling_table(curve, threshold))
        tables += [] if curve.row.program else [_cost_table(curve, hours)]
        further = (_loss_table(curve), phase_table(curve), _choice_table(curve, threshold))
        tables += filter(None, further)
    has_fsdp = any(curve.row.factors.get("strategy") == "fsdp" for curve in series)
    return parts.panel(
        study, TITLES[study], lead=[lead], tables=tables,
        # The page shows the first two and folds the others.
        figures=[*ratios[:1], *split[:1], *ratios[1:], *absolute, *split[1:]],
        notes=[*parts.left_out(series, drawn, MAX_SERIES), *notes, *[UNDIVIDED] * has_fsdp],
    )  # fmt: skip


# Most units of throughput with a figure; the figure of speed-up has series in all units.
MAX_UNITS = 2
IDEAL = "ideal, from the baseline"
# Limits drawn for weak scaling: an efficiency, and a step time over the baseline's.
WEAK_EFFICIENCY, WEAK_LONGER, LONGER_TEXT = 0.9, 1.1, "+10 %"
# The efficiency axis ends at this multiple of the median of all points, at least of 1. A point
# above the axis is drawn at its edge, with its value.
CAP = 1.5
MAX_NAMED = 3  # predictions in one sentence


def _throughput(series: Sequence[Series]) -> list[Figure]:
    units = list(dict.fromkeys(curve.row.sample_unit for curve in series))
    made = []
    for index, unit in enumerate(units[:MAX_UNITS]):
        own = [curve for curve in series if curve.row.sample_unit == unit][:MAX_CURVES]
        curves = [
            curve_of(ladder.label, ladder.points, lambda _, rate: rate, lambda p: p.rate_interval)
            | {"ideal": [[p.world_size, ladder.base.rate / ladder.baseline * p.world_size]
                         for p in ladder.points]}
            for ladder in own
        ]  # fmt: skip
        key = "strong-throughput" + (f"-{index + 1}" if index else "")
        title = "Strong scaling: throughput" + (f" in {unit}/s" if len(units) > 1 else "")
        label = f"Throughput ({unit}/s)"
        made.append(curve_figure(key, title, label, curves, ylog=True, ideal=IDEAL))
    if len(units) > MAX_UNITS:
        others = formats.listed(f"{unit}/s" for unit in units[MAX_UNITS:])
        made[-1]["note"] = f"Series in {others} are drawn only in the figure of speed-up."
    return made


def _speedup(study: str, series: Sequence[Series]) -> Figure:
    def curve(ladder: Series) -> dict[str, Any]:
        base = ladder.base
        made = curve_of(
            ladder.label, ladder.points, lambda _, rate: rate / base.rate,
            lambda p: p.speedup_interval,
        )  # fmt: skip
        return made | {"ideal": [[size, size / base.world_size] for size in made["x"]]}

    return curve_figure(
        f"{study}-speedup", f"{_title(study)}: speed-up", "Speed-up",
        [curve(ladder) for ladder in series[:MAX_CURVES]], ylog=True, binary=True, ideal=IDEAL,
        note=_relative(series),
    )  # fmt: skip


def efficiency(
    study: str, series: Sequence[Series], threshold: float, predicted: Mapping[str, Prediction]
) -> Figure:
    """Return parallel efficiency over world sizes, with lines at its limits."""

    def curve(ladder: Series) -> dict[str, Any]:
        base = ladder.base
        per_rank = base.rate / base.world_size
        made = curve_of(
            ladder.label, ladder.points,
            lambda p, rate: rate / base.rate / (p.world_size / base.world_size),
            lambda p: p.efficiency_interval,
        )  # fmt: skip
        model = None
        if known := predicted.get(ladder.name):
            rates = (rate for rate in (known.value, known.low, known.high) if rate)
            value, *interval = (rate / known.at / per_rank for rate in rates)
            last = [ladder.points[-1].world_size, made["y"][-1]]
            model = {"name": known.model, "points": [last, [known.at, value]], "interval": interval}
        return made | {"model": model}

    curves = [curve(ladder) for ladder in series[:MAX_CURVES]]
    heights, lines = {1.0, threshold}, f"the line at {100 * threshold:.0f} % is the threshold"
    if series[0].row.scaling == "weak" and WEAK_EFFICIENCY not in heights:
        heights.add(WEAK_EFFICIENCY)
        lines += f", that at {100 * WEAK_EFFICIENCY:.0f} % a usual limit of weak scaling"
    return curve_figure(
        f"{study}-efficiency", f"{_title(study)}: parallel efficiency", "Parallel efficiency (%)",
        curves, percent=True,
        cap=CAP * max(1.0, median(y for made in curves for y in made["y"])),
        lines=[{"y": y, "label": f"{100 * y:.0f} %"} for y in sorted(heights, reverse=True)],
        note=f"{_relative(series)} {formats.capital(lines)}.{_predicted_text(curves)}",
    )  # fmt: skip


def _step_time(study: str, series: Sequence[Series]) -> Figure:
    curves = []
    for curve in series[:MAX_CURVES]:
        made = curve_of(
            curve.label, curve.points, lambda p, _: (p.step_s or 0.0) * MILLI,
            lambda p: p.step_interval and (p.step_interval[0] * MILLI, p.step_interval[1] * MILLI),
        )  # fmt: skip
        made["dots"] = [[p.world_size, row.step_s * MILLI] for p in curve.points for row in p.rows
                        if row.step_s is not None and len(p.rows) > 1]  # fmt: skip
        for name, factor in (("ideal", 1.0), ("limit", WEAK_LONGER)):
            height = factor * ((curve.base.step_s or 0.0) * MILLI)
            made[name] = [[p.world_size, height] for p in curve.points]
        curves.append(made)
    return curve_figure(
        f"{study}-step-time", f"{_title(study)}: step time", "Step time (ms)", curves, ideal=IDEAL,
        limit=LONGER_TEXT,
        note=f"The line {LONGER_TEXT} is a step that takes 10 % longer than the baseline's.",
    )  # fmt: skip


def _title(study: str) -> str:
    return (TITLES | parts.ORIGINS).get(study, study)


def _relative(series: Sequence[Series]) -> str:
    bases = [parts.baseline_text(curve) for curve in series[:MAX_CURVES]]
    if len(set(bases)) > 1:
        bases = [f"{text} ({curve.label})" for text, curve in zip(bases, series, strict=False)]
    return f"Relative to {'; '.join(dict.fromkeys(bases))}."


def _predicted_text(curves: list[dict[str, Any]]) -> str:
    texts = []
    for curve in curves:
        if model := curve["model"]:
            size, value = model["points"][-1]
            texts.append(
                f"{curve['label']}, {model['name']}: {percent(value)} % at {size}, "
                f"90 % interval {formats.percent_span(tuple(model['interval']))}"
            )
    if len(texts) > MAX_NAMED:
        texts[MAX_NAMED:] = [f"and {len(texts) - MAX_NAMED} more"]
    legend = "Dotted lines with hollow marks are not measured, but predicted by the chosen rule"
    return f" {legend} ({'; '.join(texts)})." if texts else ""


# The parts of a step, as a card has them.
PARTS: dict[Cause, str] = NAMES | {"own": "compute"}
# From the foot of a bar to its top: the work itself, then what is added to it.
STACKED: tuple[Cause, ...] = (
    "own", "ddp", "fixed", "contention", "input", "imbalance", "exposed"
)  # fmt: skip
# Most series of a study with a figure of their causes; all have a table.
MAX_SPLIT = 2


def _causes(study: str, series: Sequence[Series]) -> tuple[list[Figure], list[str]]:
    made: list[Figure] = []
    divided = [curve for curve in series if sum(map(quantities.is_divided, curve.points)) > 1]
    for curve in divided[:MAX_SPLIT]:
        bars = [bar for point in curve.points if (bar := _bar(curve, point))]
        if len(bars) < 2:  # the turns of the others are unlike their rounds
            continue
        used = {part["cause"] for bar in bars for part in (*bar["parts"], *bar["lost"])}
        described = "; ".join(
            f"{bar['ranks']} ranks: {number(bar['total'])} ms, "
            + ", ".join(f"{PARTS[part['cause']]} {number(part['ms'])}" for part in bar["parts"])
            for bar in bars
        )
        title = TITLES[curve.row.study]
        made.append({
            "kind": "stack", "id": f"{study}-causes-{len(made)}", "bars": bars,
            "names": {cause: capital(PARTS[cause]) for cause in STACKED if cause in used},
            "title": f"{title}: where a step's time goes, {curve.label}",
            "xlabel": "Ranks", "ylabel": "Step time (ms)",
            "lost_label": "Time beyond the ideal step, by cause (ms)",
            "desc": f"Step time in ms by cause, for each number of ranks. {described}.",
            "note": "The lower part shows how much longer a step takes than the ideal step. A part "
            "that takes less time than in the ideal step counts as 0, so the bars may be higher "
            "than the sum. An arrow marks an interval that is wider than the axis.",
        })  # fmt: skip
    num_series = len(divided)
    note = f"The figures show where a step's time goes for {MAX_SPLIT} of {num_series} series."
    return made, [note] * (num_series > MAX_SPLIT)


def _bar(series: Series, point: Point) -> dict[str, Any] | None:
    def by_cause(parts: Sequence[Part]) -> list[dict[str, Any]]:
        return [{"cause": p.cause, "ms": p.seconds * MILLI} for p in parts if p.seconds]

    known, lost = quantities.parts_and_loss(series, point)
    if not known:
        return None
    total = sum(part.seconds for part in known) * MILLI
    bar: dict[str, Any] = {"ranks": point.world_size, "total": total, "parts": by_cause(known)}
    if lost is None:
        return bar | {"ideal": total, "lost": [], "net": None, "net_interval": None}
    return bar | {
        "ideal": (lost.step_s - lost.seconds) * MILLI,
        "lost": by_cause(lost.parts),
        "net": max(lost.seconds, 0.0) * MILLI,
        "net_interval": lost.interval and [max(end, 0.0) * MILLI for end in lost.interval],
    }


def _caption(series: Series) -> str:
    row = series.row
    name = "global_batch" if row.scaling == "strong" else "local_batch"
    batch = "" if name in row.factors else getattr(row, name)
    texts = [
        "" if "precision" in row.factors or row.program else row.precision,
        f"{name}={batch}" if batch else "",
    ]
    text = ", ".join(filter(None, texts))
    return f"{series.label} ({text})" if text else series.label


def _scaling_table(series: Series, threshold: float) -> parts.Table:
    on_one = {row.num_nodes for point in series.points for row in point.rows} == {1}
    has_epoch = quantities.epoch(series.base)[0] is not None
    unit, note = series.row.sample_unit, f"Ratios are relative to {parts.baseline_text(series)}."
    columns: parts.Columns = (
        "Ranks", *([] if on_one else ["Nodes"]), "Launches", "Step time (ms)", "95 % interval (ms)",
        (f"Throughput ({unit}/s)", lambda p: number(p.throughput_samples_per_s)),
        *([("Epoch (min)", lambda p: number(quantities.epoch(p)[0], scale=1 / 60))] * has_epoch),
        "Speed-up", "Efficiency (%)", "95 % interval (%)", parts.FLAGS,
    )  # fmt: skip
    return parts.point_table(
        _caption(series), columns, series.points, prints=True,
        note=f"{note}{parts.repeat_text(series)}{_beside(series)}",
        finding=headline.verdict(series, threshold),
    )  # fmt: skip


def _choice_table(series: Series, threshold: float) -> parts.Table | None:
    choices = headline.choices(series, threshold)
    if not any(choice.world_size for choice in choices):
        return None
    rows = [
        [capital(choice.purpose), str(choice.world_size or choice.lacking), choice.why]
        for choice in choices
    ]
    caption = f"{_caption(series)}: the best size for each purpose"
    return parts.table(caption, ("Purpose", "Ranks", "Why"), rows, 3)


def _beside(series: Series) -> str:
    """Return sentences that compare another layout with the main one, at each size."""
    if series.main is None:
        return ""
    main = {point.world_size: point for point in series.main.points}
    text = ""
    for point in series.points:
        other = main.get(point.world_size)
        if other is None or point.blocked_by or other.blocked_by:
            continue
        names = layout.list_differing([*other.rows, *point.rows])
        main_layout = layout.suffix(*(layout.layout(p.rows[0], names) for p in (other, point)))
        between = ratio_interval(point.units, other.units)
        span = formats.ratio_span(between) if between else no_interval(point, other)
        ranks, gain = counted(point.world_size, "rank"), formats.ratio(point.rate / other.rate)
        text += (
            f" On {ranks}, {series.layout} gives {gain} times the throughput of {main_layout} "
            f"({span})."
        )
    return text


def _cost_table(series: Series, hours: str) -> parts.Table:
    unit, strong = series.row.sample_unit, series.row.scaling == "strong"

    columns: parts.Columns = (
        "Ranks", "Local batch" if strong else "Global batch", parts.TIME_RATIO,
        (f"{capital(hours)} (per 10\u2076 {unit})", lambda p: formats.trimmed(p.device_hours)),
        (f"Extra {hours} (%)", lambda p: parts.ratio_cell(p, percent(p.extra_device_hours))),
        (f"Cost (per 10\u2076 {unit})", lambda p: number(p.cost)),
        ("MFU (%)", lambda p: percent(p.mfu)),
        ("GPU in use (%)", lambda p: parts.share(p.rows, "gpu_utilisation")),
        (
            f"Energy (J per 10\u00b3 {unit})",
            lambda p: number(quantities.median_joules(p.rows), scale=1e3),
        ),
        "Memory (GB)",
    )  # fmt: skip
    least, most = (formats.trimmed(series.points[i].device_hours) for i in (0, -1))
    return parts.point_table(
        f"Batch, hours and memory: {_caption(series)}", columns, series.points, folded=True,
        note=parts.cost_note(capital(hours), series.points),
        finding=f"{series.label} {least} to {most} {hours} per 10\u2076 {unit}",
        group="Batch, hours and memory of each point",
    )  # fmt: skip


# Tables that a reader opens together.
GROUP = "Where a step's time goes"
LOSS_NOTE = (
    "The whole step is the step time of all tables, which is a median of timed rounds. Its parts "
    "are means over turns of three kinds, scaled to this median: the "
    "step, the step without gradient synchronisation, and that step on half of the batch. Compute "
    "is the time of a rank that never waits, minus the other parts. The loss of a part is its time "
    "minus its time in the ideal step, and at least 0, so the losses may add up to more than that "
    "of the whole step. The ideal step is the baseline's step; in "
    "strong scaling, it is divided by the growth of the world size. A baseline of one rank "
    "separates DDP's own work from communication. DDP's own work and the fixed cost count as long "
    "as at the baseline, and are a loss only as far as more ranks do not share them. Of these two, "
    "and of sharing cores and memory, the card has only the loss, and counts the rest as compute."
)
PHASE_COLUMNS = (
    "Ranks", "Data (ms)", "Forward (ms)", "Backward (ms)", "Optimizer (ms)",
    "All-reduce alone (ms)", "Exposed communication, with DDP's work (ms)", "Overlap (%)",
    "95 % interval (%)",
)  # fmt: skip
PHASE_NOTE = {
    "Data (ms)": "Data is the mean time that the slowest rank waits for its batch.",
    "Forward (ms)": "Forward, backward and optimizer are means over ranks, then medians over "
    "turns of the whole step, then medians over launches.",
    "Backward (ms)": "Backward includes the communication that the backward pass does not hide.",
    "Overlap (%)": "Overlap is 1 - exposed communication / the time of the all-reduce alone: 100 % "
    "if the backward pass hides all communication. The true overlap is at least this "
    "value, because exposed communication includes DDP's own copies and hooks.",
}


def _loss_table(series: Series) -> parts.Table | None:
    rows = [row for point in series.points for row in _loss_rows(series, point)]
    if not rows:
        return None
    columns = (
        "Ranks", "Of a step", "Time (ms)", "95 % interval (ms)",
        "Time lost against the baseline (ms)", "95 % interval (ms)",
    )  # fmt: skip
    point = series.points[-1]
    where, finding = f"on {counted(point.world_size, 'rank')}", ""
    if why := quantities.reason(series, point):
        finding = f"{where}, little time is lost"
        if why.kind != "little":
            finding = f"{where}, no cause of the lost time is shown"
    if why and why.kind == "named":
        cause = why.named[0]
        lost_ms, step_ms = parts.ms(cause.seconds), number(why.loss.step_s * MILLI)
        finding = (
            f"{series.label} {where} loses {lost_ms} ms of a {step_ms} ms step to "
            f"{NAMES[cause.cause]}"
        )
    return parts.table(
        f"{GROUP}: {series.label}", columns, rows, 2, note=LOSS_NOTE, folded=True, group=GROUP,
        finding=finding,
    )  # fmt: skip


def _loss_rows(series: Series, point: Point) -> list[list[str]]:
    known, lost = quantities.parts_and_loss(series, point)
    if not known:
        return []

    def cells(time: Part | Loss | None) -> list[str]:
        return [parts.ms(time.seconds), parts.ms_span(time.interval)] if time else [DASH, DASH]

    times = {part.cause: part for part in known if part.seconds}
    losses = {part.cause: part for part in (lost.parts if lost else ()) if part.cause in times}
    size = str(point.world_size)
    whole = number(sum(part.seconds for part in known) * MILLI)
    return [
        *([size, capital(PARTS[cause]), *cells(times[cause]), *cells(losses.get(cause))]
          for cause in CAUSES if cause in times),
        [size, "Whole step", whole, DASH, *cells(lost)],
    ]  # fmt: skip


def phase_table(series: Series) -> parts.Table | None:
    """Return the phases of each point's step and their overlap; None if unknown."""
    rows = []
    for point in series.points:
        share, interval = quantities.pool([] if point.blocked_by else point.rows, "overlap")
        known = quantities.pool_parts(point)
        data_s, *others_s = (
            known.get(name, quantities.UNKNOWN)[0] for name in ("input", "reduce", "exposed")
        )
        phases_s = (quantities.phase_s(point, phase) for phase in quantities.PHASES)
        cells = [
            *(number(time_s, scale=MILLI) for time_s in (data_s, *phases_s, *others_s)),
            formats.percent(share),
            formats.percent_span(interval),
        ]
        if set(cells) != {DASH}:
            rows.append([str(point.world_size), *cells])
    if not rows:
        return None
    caption = f"Phases of a step: {series.label}"
    return parts.table(caption, PHASE_COLUMNS, rows, note=PHASE_NOTE, folded=True, group=GROUP)
