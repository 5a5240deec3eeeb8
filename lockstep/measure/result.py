"""What one rank measured, and the result that rank 0 makes of all ranks'."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.core import metrics
from lockstep.core.flags import Flag, flag
from lockstep.core.record import CaseRecord, problem
from lockstep.machine import memory, telemetry
from lockstep.machine.memory import Peak, Room
from lockstep.measure.batches import Goal, Step
from lockstep.measure.causes.stragglers import late_input, slow_rank

if TYPE_CHECKING:
    import torch

    from lockstep.measure.harness import Harness

# Of the time; a quota that is hardly ever reached changes no median.
QUOTA_SHARE = 0.01


@dataclass(frozen=True)
class Part:
    """What one rank measured of a case, as it goes to rank 0.

    Attributes:
        round_s: Seconds per round, shape (num_rounds,).
        variant_s: Seconds per step of each variant of the step, by name, shape (num_turns,); empty
            where none was timed.
        slowdowns: Why the device held its clocks back when the rounds ended.
        peak_bytes: Peak memory in use; None where the system does not say.
        peak_reserved_bytes: Most that the allocator of a GPU held; None on a CPU.
        own: What else the case tells rank 0 of this rank, as JSON can hold it.
        telemetry: What device and host did meanwhile, `Telemetry.facts`; empty where not sampled.
        phase_s: Seconds per step of each phase of the whole step, by name, shape (num_turns,).
    """

    round_s: list[float]
    variant_s: dict[str, list[float]] = field(default_factory=dict)
    slowdowns: list[str] = field(default_factory=list)
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    own: Any = None
    telemetry: dict[str, Any] = field(default_factory=dict)
    phase_s: dict[str, list[float]] = field(default_factory=dict)


# Takes every rank's part; returns further fields of `CaseRecord`, or raises where they are wrong.
Conclusion = Callable[[Sequence[Part]], Mapping[str, Any]]


@dataclass
class Case:
    """The case that runs on this rank, between the launch and what the case measures with.

    Attributes:
        room: What every rank may still take of memory, known once all are set up.
        peak: This rank's peak memory of the rounds, where more followed them.
        waits: Collectives in which ranks wait for each other in a step without synchronisation.
        order_seed: Of the order of the turns; drawn anew in each run.
        part: What this rank measured; None until then.
        measured_by: pytest-benchmark's fixture of the test that measured it.
        conclude: Makes the result of all ranks' parts, on rank 0.
        folder: Where it may keep files of its own; None where nothing is kept.
        telemetry_file: Where this rank's samples go; None where nothing is kept.
        go_on: Notes how far a long case has come, and gives it its time again: every rank calls it
            with the same, as JSON can hold it.
        around: Makes of a step what is timed, which a trace marks.
    """

    room: Room | None = None
    slowdowns: set[str] = field(default_factory=set)
    telemetry: dict[str, Any] = field(default_factory=dict)
    peak: Peak | None = None
    waits: int = 0
    order_seed: int | None = None
    part: Part | None = None
    measured_by: Any = None
    conclude: Callable[[Sequence[Part]], None] | None = None
    folder: Path | None = None
    telemetry_file: Path | None = None
    go_on: Callable[[Mapping[str, Any]], None] | None = None
    around: Callable[[Step], Step] | None = None

    def hand_over(self, device: "torch.device", **measured: Any) -> None:
        """Take what this rank measured, and what was seen of it while it did: fields of `Part`."""
        peak = self.peak or memory.peak(device)
        self.part = Part(
            slowdowns=sorted(self.slowdowns),
            peak_bytes=peak.used_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            telemetry=self.telemetry,
            **measured,
        )


def make(
    harness: "Harness", parts: Sequence[Part], said: Mapping[str, Any], found: Mapping[str, Any]
) -> CaseRecord:
    """Return the record of a case, on rank 0.

    Args:
        harness: What the launch knows of the case.
        parts: What every rank measured.
        said: Further fields of `CaseRecord`; flags add to those of the launch.
        found: Those that were concluded from all parts.

    Raises:
        ValueError: A count, a unit or a round is wrong, see `record.problem`.
    """
    details = said.get("details", {}) | found.get("details", {}) | _timed(parts)
    if "rank_variant_s" in details:
        details["order_seed"] = harness.case.order_seed
    against = [*harness.flags, *said.get("flags", []), *_seen(parts, harness)]
    known = {**said, **found, **(harness.facts or {})}
    made = CaseRecord(
        **known
        | {
            "study": harness.study,
            "world_size": harness.world.world_size,
            "num_nodes": harness.world.num_nodes,
            "factors": harness.factors,
            "steps_per_round": harness.plan.steps_per_round,
            "rank_round_s": [part.round_s for part in parts],
            "peak_memory_bytes": [part.peak_bytes for part in parts],
            "peak_reserved_bytes": [part.peak_reserved_bytes for part in parts],
            "rank_hosts": list(harness.rank_hosts),
            "flags": [each.to_dict() for each in against],
            "details": details,
        }
    )
    if wrong := problem(made):
        raise ValueError(f"the result cannot be kept: {wrong}")
    return made


def _timed(parts: Sequence[Part]) -> dict[str, Any]:
    """Return what the parts hold beside their rounds."""
    timed = {
        "rank_variant_s": of_all([part.variant_s for part in parts]),
        "rank_phase_s": of_all([part.phase_s for part in parts]),
        "telemetry": telemetry.columns([part.telemetry for part in parts]),
    }
    return {name: known for name, known in timed.items() if known}


def _seen(parts: Sequence[Part], harness: "Harness") -> Iterator[Flag]:
    hosts = harness.rank_hosts
    if harness.case.waits:
        yield flag("own-waits", collectives=harness.case.waits)
    variant_s = of_all([part.variant_s for part in parts])
    yield from straggler_flags(variant_s.get("own", []), hosts)
    yield from late_input_flags(variant_s, hosts)
    if harness.measures:
        yield from goal_flags([part.round_s for part in parts], harness.goal)
    yield from slowdown_flags(parts, hosts)
    yield from quota_flags(parts, hosts)


def of_all(ranks: Sequence[Mapping[str, list[float]]]) -> dict[str, list[list[float]]]:
    """Return the turns, shape (num_ranks, num_turns), of what every rank timed, by name."""
    names = [name for name in ranks[0] if all(name in rank for rank in ranks)]
    return {name: [rank[name] for rank in ranks] for name in names}


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


def quota_flags(parts: Sequence[Part], hosts: Sequence[str]) -> list[Flag]:
    """Name the ranks whose group a CPU quota held back while their rounds were timed."""
    found = []
    for rank, part in enumerate(parts):
        held_s, elapsed_s = (part.telemetry.get(n, 0.0) for n in ("throttled_s", "elapsed_s"))
        if held_s > QUOTA_SHARE * elapsed_s:
            found.append(flag("cpu-quota", rank=rank, host=hosts[rank], held_s=held_s))
    return found


def straggler_flags(own_s: Sequence[Sequence[float]], hosts: Sequence[str]) -> list[Flag]:
    """Name the rank whose own steps, shape (num_ranks, num_turns), the other ranks wait for."""
    slow = slow_rank(own_s)
    return (
        [flag("straggler", rank=slow.rank, host=hosts[slow.rank], ratio=slow.ratio)] if slow else []
    )


def late_input_flags(
    variant_s: Mapping[str, list[list[float]]], hosts: Sequence[str]
) -> list[Flag]:
    """Name the rank whose batches alone come late, by the turns of `divide`."""
    late = late_input(variant_s)
    return [flag("late-input", host=hosts[late.rank], **asdict(late))] if late else []


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
