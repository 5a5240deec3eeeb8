"""What `lockstep gate` prints: a row a verdict, and the notes below the table."""

from collections import Counter
from collections.abc import Sequence

from lockstep.core.formats import counted, listed
from lockstep.report.check import terminal
from lockstep.report.check.checker import FLAGGED, Finding
from lockstep.report.gate.verdicts import Verdict, reason, shown


def row(verdict: Verdict) -> list[str]:
    """Return a verdict as a row of the terminal's table: verdict, target, and all else."""
    about = (f"{_wanted(verdict)}{_value(verdict)}", verdict.where, reason(verdict))
    return [verdict.verdict, verdict.target, "; ".join(filter(None, about))]


def _wanted(verdict: Verdict) -> str:
    least, most, unit = verdict.least, verdict.most, verdict.unit
    if least is not None and most is not None:
        return f"{shown(least, unit)} to {shown(most, unit)} wanted"
    if most == 0 and unit == "problems":
        return "no problem wanted"
    if least is not None and least < 0:
        return f">= {shown(least, unit)} wanted, at most {shown(-least, unit)} less"
    sign, limit = (">=", least) if most is None else ("<=", most)
    return f"{sign} {shown(limit, unit)} wanted"


def _value(verdict: Verdict) -> str:
    """Return the value, and its interval in brackets."""
    if verdict.value is None:
        return ""
    # A long unit is written once, after the value.
    unit = verdict.unit if verdict.unit == "%" else "x"
    ends = [shown(end, unit) for end in (verdict.low, verdict.high) if end is not None]
    interval = f" ({' to '.join(ends)})" if ends else ""
    return f": {shown(verdict.value, verdict.unit)}{interval}"


def notes(verdicts: Sequence[Verdict], warnings: Sequence[Finding] = ()) -> list[str]:
    """Return the flags of the points, check's warnings of them, and the summary.

    The summary is the last; before it comes what the intervals of one job leave out.
    """
    flags = dict.fromkeys(flag for one in verdicts for flag in one.flags)
    alone = sum(one.in_one_job for one in verdicts)
    job = (
        f"{counted(alone, 'interval')} over launches of one job: another job may get other nodes "
        "and differ by more; repeat in several jobs, or say is_machine = true under [jobs]"
    )
    groups = terminal.grouped(one for one in warnings if one.rule != FLAGGED)
    told = (
        f"check warns, {one.rule}: {one.where()}: {one.message(terminal.MAX_FACTS)}"
        for one in groups
    )
    return [*(f"flag: {flag}" for flag in flags), *told, *[job] * bool(alone), *_apart(verdicts),
            summary(verdicts)]  # fmt: skip


def _apart(verdicts: Sequence[Verdict]) -> list[str]:
    """Say why a target on training runs has several verdicts."""
    groups = Counter((one.target, one.apart) for one in verdicts if one.apart)
    return [
        f"{target}: {counted(number, 'group')} of training runs, each judged alone: they differ in "
        f"{listed(names)}, and runs that differ are not averaged"
        for (target, names), number in groups.items()
    ]


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return in a sentence whether the gate is passed, and which targets fail it."""
    failing = {
        kind: list(dict.fromkeys(one.target for one in verdicts if one.verdict == kind))
        for kind in ("blocked", "missed", "not-shown")
    }
    texts = [f"{kind}: {listed(targets)}" for kind, targets in failing.items() if targets]
    return "; ".join(texts) or f"all met: {counted(len(verdicts), 'verdict')}"
