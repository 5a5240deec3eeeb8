"""What bounds a step, in words: the card that a command or a user's own script ends with."""

import shlex
from collections.abc import Mapping, Sequence

from lockstep.core.formats import counted, listed, number, percent
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
WIDTH = 80

KINDS: dict[Kind, str] = {
    "communication": "communication",
    "imbalance": "imbalance",
    "input": "input",
    "launch": "a fixed cost",  # of launching kernels, and of an optimizer over a small model
    "contention": "contention",
    "compute": "compute",
    "own": "own work",
}  # fmt: skip
# What each change is called, and the cause that it takes away, all or a part; modelled only where
# that cause is shown.
CHANGES: dict[Change, tuple[str, LostCause]] = {
    "even ranks": ("no rank slower than the others", "imbalance"),
    "link twice as fast": ("links twice as fast", "exposed"),
    "perfect overlap": ("communication wholly hidden", "exposed"),
    "captured step": ("no fixed cost (a captured step, at best)", "fixed"),
    "input in time": ("every batch there in time", "input"),
}
# Another campaign: in the folder of this one, other factors would be refused.
MORE = "lockstep run --name tuning"
NEXT: dict[Kind, str] = {
    "communication": f"{MORE} --studies bucket,accumulation  (or a larger batch a rank)",
    "imbalance": "lockstep screen  (names a slow node or device; then sbatch --exclude=NODE)",
    "input": "lockstep diagnose loader  (what the loader delivers, and with how many workers)",
    "launch": "a larger batch per rank (lockstep run --local-batch N), torch.compile, a CUDA graph",
    "contention": "bind each rank to cores of its own; fewer ranks a node, or fewer threads a rank",
    "compute": f"{MORE} --studies precision  (a lower precision is quicker)",
    "own": "what of it is a fixed cost is not measured: give a half batch, or profile one rank",
    "open": "measure in more launches: the same command with a larger --repeats",
}
LATE_NEXT = "that rank's node, its file system and cores, and its share of the data"
# Of a step of the user's own, what the user can change in it.
NEXT_OWN: dict[Kind, str] = {
    "communication": "a larger batch a rank, no_sync over several, or another bucket_cap_mb in DDP",
    "imbalance": "equal work for all ranks; lockstep screen names a slow node or device",
    "input": "more workers: DataLoader(num_workers=N, persistent_workers=True); cheaper decoding",
    "launch": "a larger batch a rank, torch.compile, fused=True for the optimizer",
    "contention": "cores of its own for each rank; or the step does more work on more ranks",
    "compute": "autocast in bf16, torch.compile; more ranks will scale",
    "own": "what of it is a fixed cost is not measured: profile one rank",
    "open": "more rounds (--rounds), or more launches (--repeats)",
}


def next_with(workload: str) -> dict[Kind, str]:
    """Return what to do next about a step of the suite's, with the model that was measured."""
    whole = f"{MORE} --workload {shlex.quote(workload)}"
    return {kind: text.replace(MORE, whole) for kind, text in NEXT.items()}


def card(
    bound: Bound,
    hosts: Sequence[str] = (),
    todo: Mapping[Kind, str] = NEXT,
    slowest: str = "",
    latest: str = "",
) -> list[str]:
    """Return the lines of what bounds a step, the headline first; with no `todo`, no next step.

    Of several launches give who is slowest in them, and whose input is late; of one launch the
    bound knows both.
    """
    if bound.late:
        latest = late_text(bound.late, hosts[bound.late.rank] if hosts else "")
    lines = [headline(bound), *_table(bound), *_unsteady(bound)]
    if slowest:
        lines.append(_row("slow rank", slowest))
    elif bound.num_launches == 1 and any(share.cause == "exposed" for share in bound.shares):
        lines.append(_row("slow rank", slow_text(bound, hosts) if bound.slow else "none is shown"))
    lines += [_row("input", latest)] if latest else []
    lines += [*_buckets(bound), *_gains(bound)]
    lines += [_row("next", next_text(bound.kind, todo, latest))] if todo else []
    return [*lines, _row("trust", _trust(bound))]


def next_text(kind: Kind, todo: Mapping[Kind, str], latest: str) -> str:
    """Return what to do next; `latest` names whose input is late, if any is."""
    return f"look at {LATE_NEXT}" if latest and kind == "input" else todo[kind]


def headline(bound: Bound) -> str:
    """Return what bounds a step in a sentence, with its figures."""
    step, named = f"a step of {_ms(bound.step_s)} ms", bound.named
    if bound.round_s:
        step += f" on average ({_ms(bound.round_s)} ms in the median round)"
    if bound.kind == "open":
        return f"Not enough evidence: no cause is shown to take {percent(NOTABLE)} % of {step}."
    if bound.lost_s < LITTLE * bound.step_s or not named:
        kept = f"{percent(bound.compute_s / bound.step_s)} % of {step} is a rank's own work"
        most = [
            f"{NAMES[one.cause]} takes {percent(one.seconds / bound.step_s)} %" for one in named
        ]
        return f"Little is lost: {', '.join([kept, *most[:1]])}."
    share = named[0].seconds / bound.step_s
    name = KINDS[bound.kind]
    bound_by = "Bound by a fixed cost" if bound.kind == "launch" else f"{name.capitalize()}-bound"
    start = bound_by if share >= BOUND else f"Loses most to {name}"
    text = f"{percent(share)} % of {step} is {NAMES[named[0].cause]}"
    if larger := bound.larger_unshown:
        return f"Loses to {name}: {text}; {NAMES[larger.cause]} may be more, which is not shown."
    return f"{start}: {text}."


def _unsteady(bound: Bound) -> list[str]:
    """Say what of the own work comes in some steps alone, and how the step changed meanwhile."""
    lines = []
    if rare := bound.rare:
        share, each = percent(rare.seconds / bound.step_s), _ms(rare.seconds * rare.every)
        text = f"{share} % of the step comes in one of {number(rare.every)} steps, {each} ms each "
        lines.append(_row("in some", f"{text}time, on all ranks at once: nobody waits for it"))
    if drift := bound.drift:
        text = f"a step went from {_ms(drift.from_s)} to {_ms(drift.to_s)} ms after "
        text += f"{percent(drift.share)} % of the turns; causes are of those {drift.told} that"
        lines.append(_row("drift", text))
    return lines


def _table(bound: Bound) -> list[str]:
    """Return what the step is the sum of; nothing where too few turns give no interval."""
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
    """Name the slow rank with how much slower it is; where one is shown."""
    assert bound.slow
    slow = bound.slow
    where = f" on {hosts[slow.rank]}" if hosts else ""
    low, high = (percent(end - 1) for end in slow.interval)
    return f"rank {slow.rank}{where} takes {percent(slow.ratio - 1)} % longer ({low} to {high} %)"


def late_text(late: LateInput, host: str) -> str:
    """Name the rank whose batches come late, with how long it waits."""
    where = f" on {host}" if host else ""
    wait, others = _ms(late.wait_s), _ms(late.others_s)
    return (
        f"rank {late.rank}{where} waits {wait} ms a step for its batch, the median rank {others} ms"
    )


def _buckets(bound: Bound) -> list[str]:
    """Say which gradient buckets are not hidden, where communication is shown to cost a step."""
    exposed = bound.exposed_bucket_s
    if not exposed or "exposed" not in {share.cause for share in bound.named}:
        return []
    behind = [number for number, seconds in enumerate(exposed, 1) if seconds > 0]
    which = listed(behind, 4)
    text = f"{counted(len(behind), 'bucket')} of {len(exposed)} not hidden ({which}), by the model"
    return [_row("buckets", text)]


def _gains(bound: Bound) -> list[str]:
    """Return what changes would gain, the largest first, where that is worth a word.

    Where a loader may set the pace, nothing else is shown to make a step shorter.
    """
    shown = {share.cause for share in bound.named}
    for share in bound.shares:
        # It is not shown that a step hardly waits for its input.
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
    """Return what the card rests on, and what of it did not fit the step by itself."""
    turns = counted(bound.num_turns, "turn")
    texts = [f"{turns} of each variant in {counted(bound.num_launches, 'launch')}"]
    if bound.num_launches == 1:
        texts = [f"{turns} of each variant in one launch"]
        texts += [] if _has_interval(bound) else ["too few for intervals"]
    if abs(bound.beyond_rounds) >= NOTABLE:
        than = "longer" if bound.beyond_rounds > 0 else "shorter"
        texts.append(f"turns took {percent(abs(bound.beyond_rounds))} % {than} than the rounds")
    if bound.shares_cores:
        waited = f"ranks waited {percent(bound.queued)} % of the step for cores in use"
        texts.append(f"{waited}, so no other cause below {percent(LITTLE)} % is named")
    if bound.excess >= NOTABLE:
        texts.append(f"the parts took {percent(bound.excess)} % more than the step")
    scaled = ", and are scaled to it" if bound.excess >= NOTABLE else ""
    return "; ".join(texts) + scaled


def _row(name: str, text: str) -> str:
    return f"{name:<10}{text}"


def _ms(seconds: float) -> str:
    return number(seconds, scale=MILLI)
