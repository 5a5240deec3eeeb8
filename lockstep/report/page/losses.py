"""What a report says of the time of a step: its causes and phases, and what a point loses."""

from collections.abc import Mapping

from lockstep.core import formats
from lockstep.core.formats import capital, counted, number, percent, percent_span
from lockstep.core.metrics import NOTABLE
from lockstep.measure.causes.bound import NAMES, Cause
from lockstep.measure.causes.card import LATE_NEXT, late_text
from lockstep.measure.causes.division import LateInput
from lockstep.report.compute import quantities
from lockstep.report.compute.quantities import CAUSES, Loss, Part, Reason
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import Slowest, latest, slowest
from lockstep.report.compute.statistics import Interval
from lockstep.report.page.parts import MILLI, Table, table

# Tables that a reader opens together.
GROUP = "Where a step's time goes"
ADVICE: dict[Cause, str] = {
    "exposed": "try a larger batch per rank, and the bucket sizes",
    "imbalance": "look at its device, its clocks, and what else runs on its host",
    "input": "try more loader workers, pinned memory and prefetching",
    "fixed": "it does not shrink with the batch: try a larger batch per rank, torch.compile or a "
    "CUDA graph",
    "contention": "ranks wait for cores, or compute longer than a rank of the baseline does: they "
    "share cores, caches, memory bandwidth or power with each other or with other processes",
    "own": "each rank computes longer than its share of the baseline: its batch is too small to "
    "fill the device, or ranks share cores and memory bandwidth",
    "ddp": "it takes as long at every size: try a larger batch per rank",
}

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
    rows = [row for point in series.points for row in _point_rows(series, point)]
    columns = (
        "Ranks", "Of a step", "Time (ms)", "95 % interval (ms)", "Lost to the baseline (ms)",
        "95 % interval (ms)",
    )  # fmt: skip
    note = (
        "The whole step is the step time of every table, a median of timed rounds. Its causes are "
        "means over turns of the step, of the same without gradient synchronisation and of that on "
        "half of the batch, interleaved after those rounds, and scaled to it. Own work is what a "
        "rank takes that need not wait, imbalance what the slowest rank of a turn takes longer, "
        "exposed communication what the whole step takes beyond that. A loss is the time less its "
        "share of the baseline's. DDP's own work is known of one rank, which communicates with "
        "nobody; the fixed cost of a step from half batches; contention is waits for a core "
        "and what own work takes beyond both."
    )
    caption = f"{GROUP}: {series.label}"
    if not rows:
        return None
    return table(
        caption, columns, rows, 2, note=note, folded=True, group=GROUP, finding=_finding(series)
    )


def _finding(series: Series) -> str:
    """Say to what most of a step goes at the largest size; empty where nothing is known of it."""
    point = series.points[-1]
    why = quantities.reason(series, point)
    if why is None:
        return ""
    where = f"on {counted(point.world_size, 'rank')}"
    if why.kind != "named":
        return f"{where} {'little is lost' if why.kind == 'little' else 'no cause is shown'}"
    first, step_ms = why.named[0], number(why.loss.step_s * MILLI)
    text = f"{_ms(first.seconds, signed=False)} of {step_ms} ms go to {NAMES[first.cause]}"
    return f"{series.label} {where} {text}"


def _point_rows(series: Series, point: Point) -> list[list[str]]:
    parts, lost = quantities.parts(point), quantities.loss(series, point)
    if parts is None:
        return []
    losses = {part.cause: part for part in lost.parts} if lost else {}
    times = {part.cause: part for part in parts}
    rows = [
        [str(point.world_size), capital(NAMES[cause]), *_cells(times.get(cause)),
         *_cells(losses.get(cause), signed=True)]
        for cause in CAUSES if cause in times or cause in losses
    ]  # fmt: skip
    whole = sum(part.seconds for part in parts)
    total = [str(point.world_size), "Whole step", number(whole * MILLI), formats.DASH]
    return [*rows, [*total, *_ends(lost.seconds, lost.interval, True)] if lost else
            [*total, formats.DASH, formats.DASH]]  # fmt: skip


def _cells(part: Part | None, signed: bool = False) -> list[str]:
    if part is None:
        return [formats.DASH, formats.DASH]
    return _ends(part.seconds, part.interval, signed)


def _ends(seconds: float, interval: Interval | None, signed: bool) -> list[str]:
    return [_ms(seconds, signed), _span(interval, signed)]


def _ms(seconds: float, signed: bool = True) -> str:
    """Return milliseconds, with their sign where they are a difference."""
    value = seconds * MILLI
    sign = "-" if value < 0 else "+" if signed else ""
    return sign + number(abs(value))


def _span(interval: Interval | None, signed: bool = True) -> str:
    if interval is None:
        return formats.DASH
    return f"{_ms(interval[0], signed)} to {_ms(interval[1], signed)}"


def phase_table(series: Series) -> Table | None:
    """Return the phases of each point's step and what they hide; None where nothing is known."""
    cells = [_phase_cells(point) for point in series.points]
    rows = [row for row in cells if set(row[1:]) != {formats.DASH}]
    if not rows:
        return None
    caption = f"Phases of a step: {series.label}"
    return table(caption, PHASE_COLUMNS, rows, note=PHASE_NOTE, folded=True, group=GROUP)


def _phase_cells(point: Point) -> list[str]:
    rows = [] if point.blocked_by else point.rows
    alone = (quantities.pooled(point, name)[0] for name in ("reduce", "exposed"))
    times_s = [*quantities.phases(point).values(), *alone]
    hidden = quantities.values(rows, "overlap")
    return [
        str(point.world_size),
        *(number(seconds, scale=MILLI) for seconds in times_s),
        percent(quantities.centre(hidden, "overlap") if hidden else None),
        percent_span(quantities.interval(rows, "overlap")),
    ]


def sentence(series: Series, point: Point, why: Reason | None) -> str | None:
    """Return in a sentence why a point falls short, and what to do; None where little is lost."""
    if why is None or why.kind == "little":
        return None
    lost = why.loss
    ideal = (lost.step_s - lost.seconds) * MILLI
    start = (
        f"{series.label} on {counted(point.world_size, 'rank')}: a step takes "
        f"{number(lost.step_s * MILLI)} ms where {number(ideal)} ms are ideal, "
        f"{_ms(lost.seconds)} ms{_brackets(lost.interval)}"
    )
    who = whose(slowest(point.rows), latest(point.rows))
    return f"{start}; {_cause(why, who)}."


def _cause(why: Reason, who: Mapping[Cause, str]) -> str:
    if why.kind == "open":
        return _open(why.loss)
    lost = {part.cause: part for part in why.loss.parts}
    first, *others = (_share(part, lost.get(part.cause, part), who) for part in why.named)
    beside = f"; beside it {' and '.join(others)}" if others else ""
    cause = why.named[0].cause
    advice = f"look at {LATE_NEXT}" if cause == "input" and cause in who else ADVICE[cause]
    return f"{first}: {advice}{beside}"


def _share(part: Part, lost: Part, who: Mapping[Cause, str]) -> str:
    """Say how much of a loss goes to a cause, and to which rank where one is slow.

    What of the cause's time is no loss, since the baseline has it, too, is named apart.
    """
    named = f"to {NAMES[part.cause]}{who.get(part.cause, '')}"
    if _ms(part.seconds) == _ms(lost.seconds):
        return f"{_ms(part.seconds)} ms{_brackets(part.interval)} {named}"
    whole = f"{_ms(part.seconds, signed=False)} ms{_brackets(part.interval, signed=False)}"
    return f"{_ms(lost.seconds)} ms{_brackets(lost.interval)} {named}, which takes {whole} in all"


def _open(lost: Loss) -> str:
    """Say that no cause is shown, with what the data leave open."""
    if lost.seconds < NOTABLE * lost.step_s:
        return "not enough evidence that anything is lost: measure more launches"
    start = "not enough evidence for a cause"
    if not any(part.interval for part in lost.parts):
        return f"{start}: no interval is known of any; measure each size in 3 launches or more"
    each = ", ".join(
        f"{NAMES[part.cause]} {_ms(part.seconds)} ms{_brackets(part.interval)}"
        for part in lost.parts
    )
    return f"{start} ({each}): measure more launches"


def _brackets(interval: Interval | None, signed: bool = True) -> str:
    return f" ({_span(interval, signed)})" if interval else " (no interval)"


def whose(slow: Slowest | None, late: tuple[LateInput, str] | None) -> dict[Cause, str]:
    """Return by cause whom the others wait for, in brackets, where that is shown."""
    found: dict[Cause, str] = {"imbalance": f" ({slow_text(slow)})"} if slow else {}
    return found | ({"input": f" ({late_text(*late)})"} if late else {})


def slow_text(slow: Slowest) -> str:
    """Name the host or rank that is slowest in most launches, with how much slower it is."""
    who = slow.host if slow.rank is None else f"rank {slow.rank}"
    who += f" on {slow.host}" if slow.rank is not None and slow.host else ""
    low, high = (percent(end - 1) for end in slow.interval)
    return (
        f"{who} is the slowest in {slow.num_seen} of {slow.num_launches} launches, by "
        f"{percent(slow.ratio - 1)} % ({low} to {high} %)"
    )


def slow_advice(slow: Slowest) -> str:
    """Say what to do about a slow host or rank."""
    away = (
        f"measure again without it (sbatch --exclude={slow.host}), and have it looked at"
        if slow.is_elsewhere and slow.host
        else ADVICE["imbalance"]
    )
    return f"{slow_text(slow)}: {away}."
