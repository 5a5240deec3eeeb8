"""What one rank measured, and the result that rank 0 makes of all ranks'."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from lockstep.machine import telemetry
from lockstep.machine.memory import Room
from lockstep.measure.batches import Goal
from lockstep.vocabulary import metrics
from lockstep.vocabulary.records.flags import Flag, flag
from lockstep.vocabulary.records.record import CaseRecord, problem

# A rank that computes so much longer than the others sets the pace of all.
STRAGGLER_RATIO = 1.15


@dataclass(frozen=True)
class Part:
    """What one rank measured of a case, as it goes to rank 0.

    Attributes:
        round_s: Seconds per round, shape (num_rounds,).
        alone_s: Seconds of each step that waits for no other rank, shape (num_steps,); empty where
            no such step was timed.
        slowdowns: Why the device held its clocks back when the rounds ended.
        peak_bytes: Peak memory; None where the system does not say.
        own: What else the case tells rank 0 of this rank, as JSON can hold it.
        telemetry: What device and host did meanwhile, `Telemetry.facts`; empty where not sampled.
    """

    round_s: list[float]
    alone_s: list[float] = field(default_factory=list)
    slowdowns: list[str] = field(default_factory=list)
    peak_bytes: int | None = None
    own: Any = None
    telemetry: dict[str, Any] = field(default_factory=dict)


# Takes every rank's part; returns further fields of `CaseRecord`, or raises where they are wrong.
Conclusion = Callable[[Sequence[Part]], Mapping[str, Any]]


@dataclass
class Case:
    """The case that runs on this rank, between the launch and what the case measures with.

    Attributes:
        room: What every rank may still take of memory, known once all are set up.
        slowdowns: Why this rank's device held its clocks back while it was timed.
        telemetry: What device and host did while it was timed.
        part: What this rank measured; None until then.
        conclude: Makes the result of all ranks' parts, on rank 0.
    """

    room: Room | None = None
    slowdowns: set[str] = field(default_factory=set)
    telemetry: dict[str, Any] = field(default_factory=dict)
    part: Part | None = None
    conclude: Callable[[Sequence[Part]], None] | None = None


def make(
    parts: Sequence[Part],
    hosts: Sequence[str],
    goal: Goal | None,
    *,
    flags: Sequence[Flag],
    details: Mapping[str, Any],
    **facts: Any,
) -> CaseRecord:
    """Return the record of a case.

    Args:
        parts: What each rank measured, in the order of ranks.
        hosts: Host of each rank.
        goal: How precise the rounds were to be.
        flags: What is known against the result already.
        details: What the study adds.
        facts: Further fields of `CaseRecord`.

    Raises:
        ValueError: A count, a unit or a round is wrong, see `record.problem`.
    """
    rank_round_s = [part.round_s for part in parts]
    alone_s = [part.alone_s for part in parts if part.alone_s]
    medians = [median(steps_s) for steps_s in alone_s]
    alone = {"alone_step_s": medians, "rank_alone_s": alone_s} if alone_s else {}
    seen = telemetry.columns([part.telemetry for part in parts])
    against = [
        *flags,
        *straggler_flags(medians, hosts),
        *goal_flags(rank_round_s, goal),
        *slowdown_flags(parts, hosts),
    ]
    made = CaseRecord(
        rank_round_s=rank_round_s,
        peak_memory_bytes=[part.peak_bytes for part in parts],
        rank_hosts=list(hosts),
        flags=[each.to_dict() for each in against],
        details={**details, **alone, **({"telemetry": seen} if seen else {})},
        **facts,
    )
    if wrong := problem(made):
        raise ValueError(f"the result cannot be kept: {wrong}")
    return made


def step_s(parts: Sequence[Part], steps_per_round: int) -> float:
    """Return the median over rounds of the slowest rank's seconds per step."""
    return median(metrics.slowest_rank([part.round_s for part in parts])) / steps_per_round


def slowdown_flags(parts: Sequence[Part], hosts: Sequence[str]) -> list[Flag]:
    """Name the devices whose clocks were held back when the rounds ended."""
    return [
        flag("throttled", rank=rank, host=hosts[rank], reasons=list(part.slowdowns))
        for rank, part in enumerate(parts)
        if part.slowdowns
    ]


def straggler_flags(alone_s: Sequence[float], hosts: Sequence[str]) -> list[Flag]:
    """Name the rank whose own step takes so much longer than the others' that they wait for it."""
    if len(alone_s) < 2:
        return []
    slowest = max(range(len(alone_s)), key=alone_s.__getitem__)
    ratio = alone_s[slowest] / median([*alone_s[:slowest], *alone_s[slowest + 1 :]])
    if ratio <= STRAGGLER_RATIO:
        return []
    return [flag("straggler", rank=slowest, host=hosts[slowest], ratio=ratio)]


def goal_flags(rank_round_s: list[list[float]], goal: Goal | None) -> list[Flag]:
    """Flag rounds that are less precise than asked for; shape (num_ranks, num_rounds)."""
    if goal is None:
        return []
    rounds = len(rank_round_s[0])
    if rounds < 2:
        return [flag("no-margin", goal=goal.margin)]
    margin = goal.margin_of(rank_round_s)
    if margin <= goal.margin:
        return []
    return [flag("wide-margin", margin=margin, rounds=rounds, goal=goal.margin)]
