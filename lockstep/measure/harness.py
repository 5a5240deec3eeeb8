"""What a test measures with: timed rounds, and a place for what they gave.

What one rank measured, and the result that rank 0 makes of all ranks'.

How a user's own step is measured: `lockstep.measure(step, ...)` in a test of theirs.
"""

import contextlib
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.core import metrics
from lockstep.core.flags import Flag, flag
from lockstep.core.record import BASIS, KEY, Basis, CaseRecord, problem
from lockstep.core.sizes import Size, case_id
from lockstep.machine import memory, telemetry
from lockstep.machine.memory import Peak, Room
from lockstep.measure import timing
from lockstep.measure.batches import Goal, Rounds, Step
from lockstep.measure.causes.division import late_input, slow_rank
from lockstep.measure.step.variants import draw_order, plan_turns, time_in_turns, waits
from lockstep.ranks.process_group import World, refuse_in_case

if TYPE_CHECKING:
    import torch

    from lockstep.machine.telemetry import Telemetry
    from lockstep.measure.loop_variants import Loop


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


def make_record(
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
    case_record = CaseRecord(
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
    if wrong := problem(case_record):
        raise ValueError(f"the result cannot be kept: {wrong}")
    return case_record


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


# Units of which a batch's tensors hold one an item; it may have many tokens.
ITEMS = ("samples", "images", "rows", "examples", "sequences")


@dataclass(frozen=True)
class OwnStep:
    """What a user gives to be measured: the arguments of `Harness.measure`."""

    step: Callable[..., Any]
    samples: int
    batches: Iterable[Any] | None
    ddp: Any
    check: Callable[[], Any] | None
    scaling: str
    unit: str
    factors: Mapping[str, Any]

    def loop(self) -> "Loop":
        """Return the step with what it draws batches of."""
        from lockstep.measure.loop_variants import Loop
        from lockstep.measure.reach import reach

        models = [self.ddp] if _is_ddp(self.ddp) else []
        compiled = reach(step=self.step, model=self.ddp, batches=self.batches).compiled
        return Loop(self.step, models, self.batches, can_halve=not compiled)

    def problem(self, world_size: int) -> str:
        """Return what cannot be measured of it; empty where all can."""
        if self.scaling not in ("weak", "strong"):
            return f"scaling={self.scaling!r} is not weak or strong"
        if type(self.samples) is not int or self.samples < 1:
            return (
                f"samples is {reprlib.repr(self.samples)}, which is no whole number of 1 or more; "
                "give those of a step on this rank, such as 32, its local batch"
            )
        # A model may be wrapped only where there are other ranks.
        if self.ddp is not None and world_size > 1 and not _is_ddp(self.ddp):
            return (
                f"ddp={type(self.ddp).__name__} is no DistributedDataParallel model; wrap it, or "
                "leave ddp out"
            )
        return ""

    def contradiction(self, loop: "Loop") -> list[Flag]:
        """Return a flag where a batch that is seen holds another number of items than is said."""
        from lockstep.workloads.trees import seen_items

        items = seen_items(self.step, loop.first, self.samples, one_each=self.unit in ITEMS)
        return [flag("other-samples", samples=self.samples, items=items)] if items else []


def measure_own_step(harness: "Harness", own: OwnStep) -> list[float]:
    """Measure a step on every rank, and keep the result; see `Harness.measure`."""
    loop = own.loop()
    problem = own.problem(harness.world.world_size)
    problem = problem or loop.problem()
    refuse_in_case(harness.world, harness.rank_hosts, problem)
    if own.batches is not None:
        harness = _in_bursts(harness, loop)
    round_s = harness.time(own.step if own.batches is None else loop.drawing())
    _check(own)
    step_s = median(round_s) / harness.plan.steps_per_round
    variant_s = _time_own_variants(harness, own, loop, step_s)
    factors = harness.factors | dict(own.factors)
    replace(harness, study=own.scaling, factors=factors).record(
        round_s,
        variant_s=variant_s,
        own=own.samples,
        conclude=_batches,
        workload=harness.name,
        scaling=own.scaling,
        sample_unit=own.unit,
        flags=own.contradiction(loop),
        checks={} if own.check is None else {"own_check": True},
        details={BASIS: Basis().to_dict(), **_buckets(own.ddp), **loop.settings},
    )
    return round_s


def _in_bursts(harness: "Harness", loop: "Loop") -> "Harness":
    """Return it with rounds of whole bursts: workers deliver together, then a step waits for them.

    Rounds of single steps would be quick and slow in turn, and their median one of the two.
    """
    together = max(1, loop.most_workers(harness.world, str(harness.number)))
    steps = -(-harness.size.steps_per_round // together) * together
    return replace(harness, size=replace(harness.size, steps_per_round=steps))


def _check(own: OwnStep) -> None:
    answer = None if own.check is None else own.check()
    if answer is not None and not answer:  # NumPy and torch have a False of their own
        raise RuntimeError(f"the check of the measured step returned {answer}")


def _time_own_variants(
    harness: "Harness", own: OwnStep, loop: "Loop", step_s: float
) -> dict[str, list[float]]:
    """Time the variants that are known: without DDP those of one rank at most."""
    is_known = _is_ddp(own.ddp) or harness.world.world_size == 1
    if not (harness.measures and harness.causes and is_known):
        return {}
    return harness.time_variants(loop.variants(), loop, step_s)


def _is_ddp(ddp: Any) -> bool:
    """Tell DDP, compiled too, from another wrapper that has a `no_sync` and no buckets: FSDP."""
    return hasattr(ddp, "_get_ddp_logging_data")


def _buckets(ddp: Any) -> dict[str, Any]:
    if not _is_ddp(ddp):
        return {}
    from lockstep.measure.step.train_step import buckets

    return buckets(ddp)


def _batches(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the batches of a user's own step, which need not be equal on all ranks."""
    batches = [part.own for part in parts]
    return {
        "samples_per_step": sum(batches),
        "local_batch": batches[0] if len(set(batches)) == 1 else None,
        "global_batch": sum(batches),
    }


@dataclass(frozen=True)
class Harness:
    """One case's view of the launch.

    Attributes:
        world: The ranks and this rank's device.
        name: The test's name, without its parameters.
        number: Of the case in this session, from 1.
        data_root: Folder for data files.
        clock: The timer through which pytest-benchmark sees our durations.
        case: What the launch and the case tell each other.
        cores_on_host: Cores that the ranks of this host may run on together.
        flags: What is already known against any result of this launch.
        goal: When there are enough rounds; None for the fixed number.
        unsupported: Precision -> why a rank of this launch cannot measure it.
        causes: Whether the variants of a step are timed, which say where its time goes.
        halves: Whether a step that a rank has no memory for is measured with half the batch.
        facts: Further fields of `CaseRecord`, which the launch knows.
        watches: Whether device and host are sampled while rounds are timed.
    """

    world: World
    size: Size
    name: str
    number: int
    factors: dict[str, Any]
    study: str
    seed: int
    data_root: "Path"
    benchmark: Any
    clock: timing.ReplayClock
    case: Case
    cores_on_host: int = 1
    flags: Sequence[Flag] = ()
    goal: Goal | None = None
    rank_hosts: Sequence[str] = ()
    unsupported: Mapping[str, str] | None = None
    causes: bool = True
    halves: bool = False
    facts: Mapping[str, Any] | None = None
    watches: bool = False

    @property
    def device(self) -> "torch.device":
        """This rank's device."""
        return self.world.device

    @property
    def measures(self) -> bool:
        """False under --benchmark-disable, where each case runs one step."""
        return not self.benchmark.disabled

    @property
    def plan(self) -> Size:
        """Rounds and steps of this case."""
        if self.measures:
            return self.size
        return replace(self.size, rounds=1, warmup_rounds=0, steps_per_round=1)

    @property
    def rounds(self) -> Rounds:
        """What times the rounds of this case."""
        is_first = self.number == 1 and self.measures
        goal = self.goal if self.measures else None
        return Rounds(self.world, str(self.number), self.plan, goal, is_first, self.case.slowdowns)

    def time(self, step: Step) -> list[float]:
        """Warm up, then time the rounds of a step: a fixed number, or batches until the goal.

        Returns:
            This rank's seconds per round, shape (num_rounds,); every rank has as many rounds.
        """
        around = self.case.around
        with self.watched() as watch:
            return replace(self.rounds, watch=watch).time(around(step) if around else step)

    @contextlib.contextmanager
    def watched(self) -> "Iterator[Telemetry]":
        """Give what samples device and host while it is entered, and keep what it saw."""
        with telemetry.of(self.device, self.watches and self.measures) as watch:
            try:
                yield watch
            finally:
                self.case.telemetry = watch.facts()
                if self.case.telemetry_file:
                    name = f"{self.name}[{case_id(self.factors)}]"
                    watch.timeline.append_to(self.case.telemetry_file, name)

    def time_variants(
        self,
        variants: Mapping[str, Step],
        loop: "Loop | None" = None,
        own_s: float | None = None,
    ) -> dict[str, list[float]]:
        """Time the variants of a step in turns, after its rounds, to say where its time goes.

        Args:
            variants: Those of `lockstep.measure.causes.division`, by name; equal on all ranks.
            loop: What they are variants of, where the step is the user's own.
            own_s: Seconds of a step of the user's own on this rank.

        Returns:
            This rank's seconds per step, shape (num_turns,), by name; empty where nothing is
            measured, no causes are asked for, or ranks wait for each other in their own steps.
        """
        if not (self.measures and self.causes):
            return {}
        self.case.peak = memory.peak(self.device)  # what follows is no part of the case
        # Every rank calls equally many collectives, or the case fails: so all agree on this.
        self.case.waits = waits(variants["own"]) if self.world.world_size > 1 else 0
        if self.case.waits:
            return {}
        case, ways = str(self.number), dict(variants)
        self.case.order_seed = draw_order(self.world, case)
        if loop is None:
            plan = plan_turns(self.plan, ways, self.device, 0)
            return time_in_turns(self.world, ways, plan, self.case.order_seed)
        loop.keep_what_works(self.world, ways, case)
        workers = loop.most_workers(self.world, case)
        slowest_s = self.world.control.settle_all(f"{case}/step", own_s, max)
        plan = plan_turns(self.plan, ways, self.device, workers, slowest_s)
        return loop.time_in_turns(self.world, ways, plan, self.case.order_seed)

    def measure(
        self,
        step: "Callable[..., Any]",
        *,
        samples: int,
        batches: "Iterable[Any] | None" = None,
        ddp: Any = None,
        check: "Callable[[], Any] | None" = None,
        scaling: str = "weak",
        unit: str = "samples",
        factors: Mapping[str, Any] | None = None,
    ) -> list[float]:
        """Measure a step of one's own on every rank, and keep the result.

        Args:
            step: One optimizer update on this rank; it need not wait for its device. It takes no
                argument, or a batch of `batches`.
            samples: Samples of this rank in one step, such as 32, its local batch. That the
                tensors of its batch hold another number, where it is seen, is a flag.
            batches: A DataLoader, or another iterable that can be gone over again: what the step
                waits for its input is then measured, too.
            ddp: The model in `DistributedDataParallel`, where it is one: the step is then also
                timed without gradient synchronisation, to say what a step is lost to.
            check: Called after the rounds; the case fails where it raises or returns what is false,
                but for None.
            scaling: weak where the ranks keep their batch at every world size, strong where they
                share a fixed one.
            unit: What a sample is, such as images or tokens.
            factors: What else tells this case from others, name -> value.

        Returns:
            This rank's seconds per round, shape (num_rounds,).

        Raises:
            ValueError: `scaling` is neither weak nor strong, or a count is not 1 or more.
            RuntimeError: The check returned what is false, or another rank refuses its arguments.
        """
        own = OwnStep(step, samples, batches, ddp, check, scaling, unit, factors or {})
        return measure_own_step(self, own)

    def record(
        self,
        round_s: list[float],
        *,
        variant_s: Mapping[str, list[float]] | None = None,
        phase_s: Mapping[str, list[float]] | None = None,
        own: Any = None,
        conclude: Conclusion | None = None,
        **facts: Any,
    ) -> None:
        """Hand over what this rank measured; once the case has ended, rank 0 keeps all ranks'.

        Args:
            round_s: What `time` returned.
            variant_s: What `time_variants` returned.
            phase_s: Seconds of each phase in the turns of the whole step, where they are known.
            own: What else `conclude` is to know of this rank, as JSON can hold it.
            conclude: Called on rank 0 with what every rank has handed over.
            facts: Further fields of `CaseRecord`; flags add to those of the launch.

        Raises:
            ValueError: The case has handed over a measurement already.
        """
        if self.case.measured_by is self.benchmark:
            raise ValueError(
                f"{self.name} has measured already, and a case has one result; measure once a "
                "test, and parametrize it"
            )
        # A launch that ends makes no case for the tests that still run.
        self.case.measured_by = self.benchmark
        self.case.hand_over(
            self.device,
            round_s=round_s,
            variant_s=dict(variant_s or {}),
            phase_s=dict(phase_s or {}),
            own=own,
        )
        self.case.conclude = lambda parts: self._conclude(parts, conclude, facts)
        if self.world.rank > 0:  # or pytest-benchmark would warn that its fixture was not used
            self.clock.show(round_s, self.benchmark)

    def _conclude(
        self, parts: Sequence[Part], conclude: Conclusion | None, facts: Mapping[str, Any]
    ) -> None:
        """Make the record of all ranks' parts, and show its rounds to pytest-benchmark."""
        case_record = make_record(self, parts, facts, conclude(parts) if conclude else {})
        self.benchmark.extra_info[KEY] = case_record.to_dict()
        self.clock.show(case_record.round_s, self.benchmark)
