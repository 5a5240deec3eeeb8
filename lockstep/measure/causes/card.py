"""The bottleneck of a step in words: the card that a command or a user's own script prints."""

import shlex
from collections.abc import Mapping, Sequence

from lockstep.core.formats import capital, counted, listed, number, percent
from lockstep.core.metrics import NOTABLE
from lockstep.measure.causes.bound import (
    BOUND,
    LITTLE,
    NAMES,
    Bound,
    Change,
    Kind,
    LostCause,
)
from lockstep.measure.causes.division import LateInput

MILLI = 1e3

KINDS: dict[Kind, str] = {
    "communication": "communication",
    "imbalance": "imbalance",
    "input": "input",
    "launch": "a fixed cost",  # to launch kernels, or of an optimizer over a small model
    "contention": "contention",
    "compute": "compute",
    "own": "own work",
}  # fmt: skip
# Change -> its name, and the cause that it reduces; it is modelled only if that cause is shown.
CHANGES: dict[Change, tuple[str, LostCause]] = {
    "even ranks": ("if no rank were slower than the others", "imbalance"),
    "link twice as fast": ("if the links were twice as fast", "exposed"),
    "perfect overlap": ("if all communication were hidden", "exposed"),
    "captured step": ("if the step had no fixed cost (best case of a CUDA graph)", "fixed"),
    "input in time": ("if every batch were ready in time", "input"),
}
# A campaign in another folder, since that of the current campaign refuses other factors.
MORE = "lockstep run --name tuning"
NEXT: dict[Kind, str] = {
    "communication": "lockstep run --name tuning --studies bucket,accumulation  (or try a larger "
    "batch per rank)",
    "imbalance": "lockstep screen  (it names a slow node or device, which sbatch --exclude=NODE "
    "leaves out)",
    "input": "lockstep diagnose loader  (shows how fast the loader is with each number of workers)",
    "launch": "try a larger batch per rank (--local-batch N), torch.compile or a CUDA graph",
    "contention": "use a quiet machine, give each rank its own cores, or use fewer ranks or "
    "threads per node",
    "compute": "lockstep run --name tuning --studies precision  (shows which precision is fastest)",
    "own": "the fixed cost of a step counts as compute here; to see the fixed cost itself, use a "
    "batch that can be halved, or profile one rank",
    "open": "measure again on a quiet machine; if that does not help, in more launches (--repeats)",
}
LATE_NEXT = "the late rank's node, file system and cores, and its share of the data"
# Bottleneck -> advice about a user's own step.
NEXT_OWN: dict[Kind, str] = {
    "communication": "try a larger batch per rank, no_sync() over steps, or another bucket_cap_mb",
    "imbalance": "give all ranks equal work; lockstep screen names a slow node or device",
    "input": "use more workers (num_workers=N, persistent_workers=True) or cheaper decoding",
    "launch": "try a larger batch per rank, torch.compile, or fused=True for the optimizer",
    "contention": "use a quiet machine, because other programs or ranks use the same cores; of "
    "several ranks, try fewer",
    "compute": (
        "the step scales well to more ranks; to compute faster, try autocast in bf16 or "
        "torch.compile"
    ),
    "own": "profile one rank, because the fixed cost of its step was not measured",
    "open": "measure again on a quiet machine; if that does not help, in more rounds (--rounds) or "
    "launches (--repeats)",
}


def next_with(workload: str) -> dict[Kind, str]:
    """Return `NEXT` with the measured workload in its commands."""
    whole = f"{MORE} --workload {shlex.quote(workload)}"
    return {kind: text.replace(MORE, whole) for kind, text in NEXT.items()}


def card(
    bound: Bound,
    hosts: Sequence[str] = (),
    todo: Mapping[Kind, str] = NEXT,
    slowest: str = "",
) -> list[str]:
    """Return the lines of a step's bottleneck, the headline first.

    Args:
        bound: The bottleneck.
        hosts: Host of each rank.
        todo: Kind -> what to do next; empty for no such line.
        slowest: Text on the slow rank of several launches; `bound` has that of one launch.
    """
    if bound.is_unlike:
        return [headline(bound), _row("trust", _trust(bound))]
    lines = [headline(bound), *_table(bound), *_unsteady(bound)]
    if slowest:
        lines.append(_row("slow rank", slowest))
    elif bound.num_launches == 1 and any(share.cause == "exposed" for share in bound.shares):
        unshown = "no rank is shown to compute more slowly than the others"
        lines.append(_row("slow rank", slow_text(bound, hosts) if bound.slow else unshown))
    if late := bound.late:
        lines.append(_row("input", late_text(late, hosts[late.rank] if hosts else "")))
    lines += [*_buckets(bound), *_gains(bound)]
    lines += [_row("next", next_text(bound, todo))] if todo else []
    return [*lines, _row("trust", _trust(bound))]


def next_text(bound: Bound, todo: Mapping[Kind, str]) -> str:
    """Return what to do next."""
    return f"look at {LATE_NEXT}; then measure again" if first_late(bound) else todo[bound.kind]


def first_late(bound: Bound) -> LateInput | None:
    """Return the rank whose late input comes first; None if another cause is shown to be larger.

    The other ranks wait for it, and this wait may hide the input's own share of the step.
    """
    late = None if bound.is_unlike else bound.late
    largest = bound.named[0] if bound.named else None
    if late and largest and largest.cause != "input" and largest.interval:
        return None if largest.interval[0] > late.wait_s - late.others_s else late
    return late


def headline(bound: Bound) -> str:
    """Return the bottleneck of a step in a sentence; the table has the shares, with intervals.

    A second sentence says that ranks waited long for cores, if the first does not.
    """
    if bound.kind == "contention" or not bound.is_busy:
        return _bottleneck(bound)
    waited, todo = busy(bound)
    return f"{_bottleneck(bound)} The machine was busy: {waited}. {capital(todo)}."


def busy(bound: Bound) -> tuple[str, str]:
    """Return how long ranks waited on a busy machine, and what to do, as clauses."""
    who, fewer = ("the rank", "") if bound.num_ranks == 1 else ("ranks", "ranks or ")
    return (
        f"{who} waited {_ms(bound.queued_s)} ms per step for cores",
        f"measure again on a quiet machine, or with fewer {fewer}threads",
    )


def _bottleneck(bound: Bound) -> str:
    step, named = f"a step takes {_ms(bound.step_s)} ms", bound.named
    if bound.round_s:
        step = f"{step} on average ({_ms(bound.round_s)} ms in the median round)"
    if bound.is_unlike:
        is_longer = bound.beyond_rounds > 0
        change, longer = ("was busy", "longer") if is_longer else ("changed", "less")
        return (
            f"The machine {change}: {step} in the rounds, but {percent(abs(bound.beyond_rounds))} "
            f"% {longer} when causes were measured. Measure again on a quiet machine."
        )
    if (late := first_late(bound)) and bound.kind != "input":
        return (
            f"The input of rank {late.rank} is late: {step}, and rank {late.rank} waits "
            f"{_ms(late.wait_s)} ms per step for its batch. Mend this first."
        )
    if bound.kind == "open":
        least, why = percent(NOTABLE), ""
        if bound.queued >= NOTABLE:
            least, why = percent(LITTLE), f", the limit while ranks wait for cores (else {least} %)"
        return (
            f"Not enough evidence: {step}, and no cause is shown to take {least} % of the step or "
            f"more{why}."
        )
    if bound.lost_s < LITTLE * bound.step_s or not named:
        return f"Little time is lost: {step}, and a rank's own work takes nearly all of this time."
    name = KINDS[bound.kind]
    bound_by = "Bound by a fixed cost" if bound.kind == "launch" else f"{name.capitalize()}-bound"
    start = bound_by if named[0].seconds >= BOUND * bound.step_s else f"Most time is lost to {name}"
    advice = f"{step}; reduce {NAMES[named[0].cause]} first"
    if larger := bound.larger_unshown:
        other_cause = NAMES[larger.cause]
        return (
            f"Time is lost to {name}: {advice}. Perhaps more time is lost to {other_cause}, "
            "but this is not shown."
        )
    return f"{start}: {advice}."


def _unsteady(bound: Bound) -> list[str]:
    """Return lines on work that only some steps do, and on a change of the step."""
    lines = []
    if rare := bound.rare:
        share, event_ms = percent(rare.seconds / bound.step_s), _ms(rare.seconds * rare.every)
        text = (
            f"in one of {number(rare.every)} steps, all ranks work {event_ms} ms longer; this "
            f"extra time is {share} % of the mean step and makes no rank wait"
        )
        lines.append(_row("in some", text))
    if drift := bound.drift:
        step = "a rank's own step (without waits)" if drift.is_own else "the step"
        if bound.num_launches > 1:
            step = f"in the first launch with a change, {step}"
        text = (
            f"{step} changed from {_ms(drift.from_s)} to {_ms(drift.to_s)} ms after "
            f"{percent(drift.share)} % of the turns; only the turns {drift.judged} the change "
            "were used to compute the causes"
        )
        lines.append(_row("drift", text))
    return lines


def _table(bound: Bound) -> list[str]:
    """Return the parts of a step as a table; empty if the turns are too few for intervals."""
    if not _has_interval(bound):
        return []
    times = [("compute", bound.compute_s, "")]
    for share in bound.shares:
        text = "no interval"
        if share.interval:
            low, high = (max(end, 0.0) for end in share.interval)
            shown = "" if share.is_shown or low > 0 else ", not shown"
            shown = ", most of it in one turn" if share.in_one_turn else shown
            text = f"{_ms(low)} to {_ms(high)} ms{shown}"
        times.append((NAMES[share.cause], share.seconds, text))
    return [
        f"  {name:<26}{_ms(seconds):>9} ms {percent(seconds / bound.step_s):>6} %   {more}".rstrip()
        for name, seconds, more in times
        if seconds > 0
    ]


def _has_interval(bound: Bound) -> bool:
    return any(share.interval for share in bound.shares)


def slow_text(bound: Bound, hosts: Sequence[str]) -> str:
    """Name the slow rank, and how much slower it is."""
    assert bound.slow
    slow = bound.slow
    where = f" on {hosts[slow.rank]}" if hosts else ""
    low, high = (percent(end - 1) for end in slow.interval)
    return (
        f"rank {slow.rank}{where} takes {percent(slow.ratio - 1)} % longer than the other ranks "
        f"({low} to {high} %)"
    )


def late_text(late: LateInput, host: str) -> str:
    """Name the rank whose batches come late, and how long it waits."""
    where = f" on {host}" if host else ""
    wait, others = _ms(late.wait_s), _ms(late.others_s)
    other = f"rank {1 - late.rank}" if late.num_ranks == 2 else "the median rank"
    return (
        f"rank {late.rank}{where} waits {wait} ms per step for its batch, but {other} waits "
        f"{others} ms"
    )


def _buckets(bound: Bound) -> list[str]:
    """Return which gradient buckets are exposed, if exposed communication is shown."""
    exposed = bound.exposed_bucket_s
    is_shown = "exposed" in {share.cause for share in bound.named}
    if not exposed or not is_shown or first_late(bound):
        return []
    behind = [number for number, seconds in enumerate(exposed, 1) if seconds > 0]
    which = listed(behind, 4)
    buckets = f"{counted(len(behind), 'bucket')} of {len(exposed)} (number {which}; modelled)"
    return [_row("buckets", f"the backward pass does not hide the all-reduce of {buckets}")]


def _gains(bound: Bound) -> list[str]:
    """Return the three changes that gain most, if their causes are shown.

    If the input may take `NOTABLE` of a step, no other change is shown to shorten the step.
    """
    shown = {share.cause for share in bound.named}
    for share in bound.shares:
        most = share.interval[1] if share.interval else share.seconds
        if share.cause == "input" and most >= NOTABLE * bound.step_s:
            shown &= {"input"}
    worth = sorted(
        (gain for gain in bound.gains if CHANGES[gain.change][1] in shown and gain.step_s > 0),
        key=lambda gain: gain.step_s,
    )
    rows = []
    for gain in worth[:3]:
        span = f" ({_ms(gain.interval[0])} to {_ms(gain.interval[1])})" if gain.interval else ""
        now, then = _ms(bound.step_s), _ms(gain.step_s)
        times = number(bound.step_s / gain.step_s)
        text = f"{CHANGES[gain.change][0]}: {now} -> {then} ms{span}, {times}x"
        rows.append(_row("modelled", text))
    return rows


def _trust(bound: Bound) -> str:
    """Return the number of turns and launches, and reasons to doubt the shares."""
    turns = counted(bound.num_turns, "turn")
    is_single = bound.num_launches == 1
    launches = "one launch" if is_single else counted(bound.num_launches, "launch")
    texts = [f"each variant of the step was timed in {turns} over {launches}"]
    if is_single and not _has_interval(bound):
        texts.append("there are too few turns to compute intervals")
    if abs(bound.beyond_rounds) >= NOTABLE and not bound.is_unlike:
        longer = "longer" if bound.beyond_rounds > 0 else "shorter"
        texts.append(
            f"steps took {percent(abs(bound.beyond_rounds))} % {longer} in the turns than "
            "in the rounds"
        )
    if bound.queued >= NOTABLE:
        cause = "no other cause" if bound.named else "no cause"
        cause += "" if bound.is_unlike else f" below {percent(LITTLE)} %"
        has_table = bound.kind != "open" and _has_interval(bound)  # of losses to the baseline
        counted_only = " (the table counts only what exceeds the baseline)"
        counted_only *= bound.has_base and has_table
        texts.append(
            f"ranks waited {_ms(bound.queued_s)} ms per step for busy cores{counted_only}, so "
            f"{cause} is named"
        )
    if bound.excess >= NOTABLE:
        more = percent(bound.excess)
        texts.append(
            f"the parts took {more} % more time than the step, so the parts are scaled down "
            "to add up to the step"
        )
    return "; ".join(texts)


def _row(name: str, text: str) -> str:
    return f"{name:<10}{text}"


def _ms(seconds: float) -> str:
    return number(seconds, scale=MILLI)
