"""What a test measures with: timed rounds, and the one way in which a step becomes a case.

`Harness` is the fixture `lockstep`; `Measurement` is how any step is measured by it; `make_record`
makes the result of a case, on rank 0, from what every rank measured.
"""

import contextlib
import math
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
from lockstep.measure.step import variants
from lockstep.ranks.process_group import World, refuse_in_case

if TYPE_CHECKING:
    import torch

    from lockstep.machine.telemetry import Telemetry


# Of the time; a quota that is hardly ever reached changes no median.
QUOTA_SHARE = 0.01
# Units of which a batch's tensors hold one an item; it may have many tokens.
ITEMS = ("samples", "images", "rows", "examples", "sequences")


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


def make_record(
    harness: "Harness", parts: Sequence[Part], given: Mapping[str, Any], found: Mapping[str, Any]
) -> CaseRecord:
    """Return the record of a case, on rank 0.

    Args:
        harness: What the launch knows of the case.
        parts: What every rank measured.
        given: Further fields of `CaseRecord`; flags add to those of the launch.
        found: Those that were concluded from all parts.

    Raises:
        ValueError: A count, a unit or a round is wrong, see `record.problem`.
    """
    measured = {
        "rank_variant_s": of_all([part.variant_s for part in parts]),
        "rank_phase_s": of_all([part.phase_s for part in parts]),
        "telemetry": telemetry.columns([part.telemetry for part in parts]),
    }
    details = {
        **given.get("details", {}),
        **found.get("details", {}),
        **{name: value for name, value in measured.items() if value},
    }
    if measured["rank_variant_s"]:
        details["order_seed"] = harness.case.order_seed
    flags = [*harness.flags, *given.get("flags", [])]
    if harness.case.waits:
        flags.append(flag("own-waits", collectives=harness.case.waits))
    flags += find_flags(parts, harness.rank_hosts, harness.goal if harness.measures else None)
    case_record = CaseRecord(
        **{**given, **found, **(harness.facts or {})}
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
            "flags": [each.to_dict() for each in flags],
            "details": details,
        }
    )
    if wrong := problem(case_record):
        raise ValueError(f"the result cannot be kept: {wrong}")
    return case_record


def of_all(ranks: Sequence[Mapping[str, list[float]]]) -> dict[str, list[list[float]]]:
    """Return the turns, shape (num_ranks, num_turns), of what every rank timed, by name."""
    names = [name for name in ranks[0] if all(name in rank for rank in ranks)]
    return {name: [rank[name] for rank in ranks] for name in names}


def step_s(parts: Sequence[Part], steps_per_round: int) -> float:
    """Return the median over rounds of the slowest rank's seconds per step."""
    return median(metrics.slowest_rank([part.round_s for part in parts])) / steps_per_round


def find_flags(
    parts: Sequence[Part], hosts: Sequence[str], goal: Goal | None = None
) -> Iterator[Flag]:
    """Yield what all ranks' parts show against a result, with the ranks and hosts at fault."""
    variant_s = of_all([part.variant_s for part in parts])
    if slow := slow_rank(variant_s.get("own", [])):
        yield flag("straggler", rank=slow.rank, host=hosts[slow.rank], ratio=slow.ratio)
    if late := late_input(variant_s):
        yield flag("late-input", host=hosts[late.rank], **asdict(late))
    if goal is not None:
        rounds = len(parts[0].round_s)
        if rounds < 2:
            yield flag("no-margin", goal=goal.margin)
        else:
            margin = goal.margin_of([part.round_s for part in parts])
            if margin > goal.margin:
                yield flag("wide-margin", margin=margin, rounds=rounds, goal=goal.margin)
    for rank, part in enumerate(parts):
        if part.slowdowns:
            yield flag("throttled", rank=rank, host=hosts[rank], reasons=list(part.slowdowns))
    for rank, part in enumerate(parts):
        held_s, elapsed_s = (part.telemetry.get(n, 0.0) for n in ("throttled_s", "elapsed_s"))
        if held_s > QUOTA_SHARE * elapsed_s:
            yield flag("cpu-quota", rank=rank, host=hosts[rank], held_s=held_s)


@dataclass
class Measurement:
    """How a step becomes a case; the fields are the arguments of `Harness.measure`."""

    step: Callable[..., Any]
    samples: int
    batches: Iterable[Any] | None = None
    ddp: Any = None
    check: Callable[[], Any] | None = None
    scaling: str = "weak"
    unit: str = "samples"
    factors: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find out what the step reaches."""
        from lockstep.measure.loop_variants import Loop
        from lockstep.measure.reach import reach

        compiled = reach(step=self.step, model=self.ddp, batches=self.batches).compiled
        models = [self.ddp] if _is_ddp(self.ddp) else []
        self.loop = Loop(self.step, models, self.batches, can_halve=not compiled)

    def measure(self, harness: "Harness") -> list[float]:
        """Measure the step on every rank, keep the result, and return this rank's rounds."""
        world = harness.world
        refuse_in_case(world, harness.rank_hosts, self.problem(world.world_size))
        if self.batches is not None:
            # Workers deliver a batch each, and then a step waits for them: rounds of single steps
            # would be quick and slow in turn, and their median one of the two.
            workers = max(1, self.loop.most_workers(world, str(harness.number)))
            steps = math.ceil(harness.size.steps_per_round / workers) * workers
            harness = replace(harness, size=replace(harness.size, steps_per_round=steps))
        round_s = harness.time(self.timed_step())
        checked = self.run_check()
        step_s = median(round_s) / harness.plan.steps_per_round
        variant_s, phase_s = self.time_variants(harness, step_s)
        facts = self.facts(harness)
        study, factors = facts.pop("study", harness.study), harness.factors | dict(self.factors)
        replace(harness, study=study, factors=factors).record(
            round_s,
            variant_s=variant_s,
            phase_s=phase_s,
            own={"samples": self.samples, "check": checked},
            conclude=self.conclude,
            scaling=self.scaling,
            sample_unit=self.unit,
            **facts,
        )
        return round_s

    def problem(self, world_size: int) -> str:
        """Return why this rank cannot measure it; empty where it can."""
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
        return self.loop.problem()

    def timed_step(self) -> Step:
        """Return what the rounds are made of."""
        return self.step if self.batches is None else self.loop.drawing()

    def run_check(self) -> Any:
        """Check the step once its rounds are timed; return what rank 0 is to know of this rank."""
        answer = None if self.check is None else self.check()
        if answer is not None and not answer:  # NumPy and torch have a False of their own
            raise RuntimeError(f"the check of the measured step returned {answer}")

    def time_variants(
        self, harness: "Harness", step_s: float
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Time the variants of the step in turns, to say where its time goes.

        Returns:
            This rank's seconds per step of each variant, shape (num_turns,), by name; and those of
            each phase of the whole step, where they are known. Both are empty where nothing is
            measured, no causes are asked for, or ranks wait for each other in their own steps.
        """
        world, case = harness.world, str(harness.number)
        # Without DDP the variants of one rank are known at most.
        if not (harness.times_causes and (_is_ddp(self.ddp) or world.world_size == 1)):
            return {}, {}
        harness.case.peak = memory.peak(harness.device)  # what follows is no part of the case
        ways = self.loop.variants()
        if self.waits_for_others(harness, ways["own"]):
            return {}, {}
        harness.case.order_seed = variants.draw_order(world, case)
        self.loop.keep_what_works(world, ways, case)
        workers = self.loop.most_workers(world, case)
        slowest_s = world.control.settle_all(f"{case}/step", step_s, max)
        plan = variants.plan_turns(harness.plan, ways, harness.device, workers, slowest_s)
        return self.loop.time_in_turns(world, ways, plan, harness.case.order_seed), {}

    def waits_for_others(self, harness: "Harness", own: Step) -> bool:
        """Note whether ranks wait for each other in a step without gradient synchronisation.

        Every rank calls equally many collectives, or the case fails: so all ranks agree on this.
        """
        harness.case.waits = variants.waits(own) if harness.world.world_size > 1 else 0
        return harness.case.waits > 0

    def facts(self, harness: "Harness") -> dict[str, Any]:
        """Return further fields of `CaseRecord`."""
        from lockstep.measure.step.train_step import buckets

        details: dict[str, Any] = {BASIS: Basis().to_dict()}
        if _is_ddp(self.ddp):
            details |= buckets(self.ddp)
        details |= self.loop.settings
        return {
            "study": self.scaling,
            "workload": harness.name,
            "flags": self.contradiction(),
            "checks": {} if self.check is None else {"own_check": True},
            "details": details,
        }

    def contradiction(self) -> list[Flag]:
        """Return a flag where the tensors of a batch hold another number of items than given."""
        from lockstep.workloads.trees import seen_items

        one_each = self.unit in ITEMS
        items = seen_items(self.step, self.loop.first, self.samples, one_each=one_each)
        return [flag("other-samples", samples=self.samples, items=items)] if items else []

    def conclude(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return on rank 0 the fields that follow from all ranks, or raise where they are wrong.

        The batches of a user's step need not be equal on all ranks.
        """
        batches = [part.own["samples"] for part in parts]
        return {
            "samples_per_step": sum(batches),
            "local_batch": batches[0] if len(set(batches)) == 1 else None,
            "global_batch": sum(batches),
        }


def _is_ddp(ddp: Any) -> bool:
    """Tell DDP, compiled too, from another wrapper that has a `no_sync` and no buckets: FSDP."""
    return hasattr(ddp, "_get_ddp_logging_data")


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
    def times_causes(self) -> bool:
        """Whether the variants of a step are timed, after its rounds."""
        return self.measures and self.causes

    @property
    def plan(self) -> Size:
        """Rounds and steps of this case."""
        if self.measures:
            return self.size
        return replace(self.size, rounds=1, warmup_rounds=0, steps_per_round=1)

    def time(self, step: Step) -> list[float]:
        """Warm up, then time the rounds of a step: a fixed number, or batches until the goal.

        Returns:
            This rank's seconds per round, shape (num_rounds,); every rank has as many rounds.
        """
        around, slowdowns = self.case.around, self.case.slowdowns
        is_first = self.number == 1 and self.measures
        goal = self.goal if self.measures else None
        with self.watched() as watch:
            rounds = Rounds(
                self.world, str(self.number), self.plan, goal, is_first, slowdowns, watch
            )
            return rounds.time(around(step) if around else step)

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
        kind = getattr(step, "lockstep_measurement", Measurement)
        given = kind(step, samples, batches, ddp, check, scaling, unit, factors or {})
        round_s: list[float] = given.measure(self)
        return round_s

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
            variant_s: Seconds per step of each variant, shape (num_turns,), by name.
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
        case = self.case
        case.measured_by = self.benchmark
        peak = case.peak or memory.peak(self.device)
        case.part = Part(
            round_s=round_s,
            variant_s=dict(variant_s or {}),
            phase_s=dict(phase_s or {}),
            slowdowns=sorted(case.slowdowns),
            peak_bytes=peak.used_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            own=own,
            telemetry=case.telemetry,
        )

        def make_result(parts: Sequence[Part]) -> None:
            """Make the record of all ranks' parts, and show its rounds to pytest-benchmark."""
            case_record = make_record(self, parts, facts, conclude(parts) if conclude else {})
            self.benchmark.extra_info[KEY] = case_record.to_dict()
            self.clock.show(case_record.round_s, self.benchmark)

        case.conclude = make_result
        if self.world.rank > 0:  # or pytest-benchmark would warn that its fixture was not used
            self.clock.show(round_s, self.benchmark)
