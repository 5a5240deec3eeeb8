"""The fixture `lockstep`: it times the rounds of a step, and records them as a case.

A case has a warm-up, then a fixed number of rounds, or batches of them until the mean is precise:
rank 0 decides for all ranks when there are enough. Every rank measures its `Part`; rank 0 makes the
record of the case from all parts.
"""

import contextlib
import gc
import math
import reprlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.core import metrics
from lockstep.core.flags import Flag, flag
from lockstep.core.record import BASIS, KEY, Basis, CaseRecord, problem
from lockstep.core.sizes import Size, case_id
from lockstep.core.studies import WORK_SCALINGS
from lockstep.machine import memory, nvidia, telemetry
from lockstep.machine.memory import Peak, Room
from lockstep.machine.telemetry import Telemetry
from lockstep.measure import timing
from lockstep.measure.causes.division import late_input, slow_rank
from lockstep.measure.step import variants
from lockstep.measure.timing import Step
from lockstep.ranks.process_group import World, refuse_in_case

if TYPE_CHECKING:
    import torch


# A CPU quota that stops ranks for a smaller share of the time changes no median.
QUOTA_SHARE = 0.01
# Units that count the items of a batch; an item may contain many of another unit, such as tokens.
ITEMS = ("samples", "images", "rows", "examples", "sequences")
# Most batches of rounds that a case takes to reach its margin of error.
MAX_BATCHES = 20
# Longest untimed run before a launch's first case.
WARM_UP_S = 30.0


@dataclass(frozen=True)
class Goal:
    """When a case has enough rounds."""

    margin: float  # largest relative margin of error of the mean round, such as 0.01
    confidence: float  # confidence level of that margin, such as 0.95

    def margin_of(self, rank_round_s: list[list[float]]) -> float:
        """Return the relative margin of rounds, shape (num_ranks, num_rounds)."""
        return metrics.relative_margin(metrics.slowest_rank(rank_round_s), self.confidence)


@dataclass(frozen=True)
class Part:
    """One rank's measurement of a case, as it is sent to rank 0."""

    round_s: list[float]  # seconds per round, shape (num_rounds,)
    # Variant of the step -> seconds per step, shape (num_turns,); may be empty.
    variant_s: dict[str, list[float]] = field(default_factory=dict)
    # Why the device had reduced its clocks when the rounds ended.
    slowdowns: list[str] = field(default_factory=list)
    peak_bytes: int | None = None  # peak memory in use; None if the system does not say
    peak_reserved_bytes: int | None = None  # most that a GPU's allocator reserved; None on a CPU
    own: Any = None  # further JSON values of the case for rank 0
    # `Telemetry.facts` of device and host; empty if not sampled.
    telemetry: dict[str, Any] = field(default_factory=dict)
    # Phase of the whole step -> seconds per step, shape (num_turns,).
    phase_s: dict[str, list[float]] = field(default_factory=dict)


# Takes every rank's part; returns further fields of `CaseRecord`, or raises if a result is wrong.
Conclusion = Callable[[Sequence[Part]], Mapping[str, Any]]


@dataclass
class Case:
    """What the launch and the fixture share about the running case, on this rank."""

    room: Room | None = None  # of the rank with the least memory, known once all ranks are set up
    slowdowns: set[str] = field(default_factory=set)
    telemetry: dict[str, Any] = field(default_factory=dict)
    peak: Peak | None = None  # of this rank during the rounds; None if it is read later
    waits: int = 0  # collectives left in a step without gradient synchronisation
    order_seed: int | None = None  # of the order of the turns; drawn anew in each run
    part: Part | None = None  # this rank's measurement; None until the rounds have ended
    measured_by: Any = None  # pytest-benchmark's fixture of the test that measured the case
    # Makes the result from all ranks' parts, on rank 0.
    conclude: Callable[[Sequence[Part]], None] | None = None
    folder: Path | None = None  # for files of the case; None if no files are kept
    telemetry_file: Path | None = None  # for this rank's samples; None if no files are kept
    # Records the progress of a long case and restarts its time limit: every rank calls it with the
    # same JSON values.
    go_on: Callable[[Mapping[str, Any]], None] | None = None
    around: Callable[[Step], Step] | None = None  # wraps the timed step, for a trace


def make_record(
    harness: "Harness", parts: Sequence[Part], own: Mapping[str, Any], concluded: Mapping[str, Any]
) -> CaseRecord:
    """Return the record of a case, on rank 0; refuse one that `record.problem` finds wrong.

    `own` has further fields of `CaseRecord` that this rank knows, whose flags add to those of the
    launch, and `concluded` has those that follow from all parts.
    """
    measured = {
        "rank_variant_s": join_ranks([part.variant_s for part in parts]),
        "rank_phase_s": join_ranks([part.phase_s for part in parts]),
        "telemetry": telemetry.columns([part.telemetry for part in parts]),
    }
    details = {
        **own.get("details", {}),
        **concluded.get("details", {}),
        **{name: value for name, value in measured.items() if value},
    }
    if measured["rank_variant_s"]:
        details["order_seed"] = harness.case.order_seed
    flags = [*harness.flags, *own.get("flags", [])]
    if harness.case.waits:
        flags.append(flag("own-waits", collectives=harness.case.waits))
    flags += find_flags(parts, harness.rank_hosts, harness.goal if harness.measures else None)
    case_record = CaseRecord(
        **{**own, **concluded, **(harness.facts or {})}
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
            "flags": [flag_.to_dict() for flag_ in flags],
            "details": details,
        }
    )
    if reason := problem(case_record):
        raise ValueError(f"the result cannot be kept: {reason}")
    return case_record


def join_ranks(ranks: Sequence[Mapping[str, list[float]]]) -> dict[str, list[list[float]]]:
    """Return name -> seconds, shape (num_ranks, num_turns), for each name that all ranks timed."""
    names = [name for name in ranks[0] if all(name in rank for rank in ranks)]
    return {name: [rank[name] for rank in ranks] for name in names}


def step_s(parts: Sequence[Part], steps_per_round: int) -> float:
    """Return the median over rounds of the slowest rank's seconds per step."""
    return median(metrics.slowest_rank([part.round_s for part in parts])) / steps_per_round


def find_flags(
    parts: Sequence[Part], hosts: Sequence[str], goal: Goal | None = None
) -> Iterator[Flag]:
    """Yield the flags that follow from all ranks' parts, with the ranks and hosts at fault."""
    variant_s = join_ranks([part.variant_s for part in parts])
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
    """Turns a step into a case; the fields are the arguments of `Harness.measure`."""

    step: Callable[..., Any]
    samples: int
    batches: Iterable[Any] | None = None
    ddp: Any = None
    check: Callable[[], Any] | None = None
    scaling: str = "weak"
    unit: str = "samples"
    factors: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look for a DDP model and compiled code in the step."""
        from lockstep.measure.loop_variants import Loop
        from lockstep.measure.reach import reach

        compiled = reach(step=self.step, model=self.ddp, batches=self.batches).compiled
        models = [self.ddp] if _is_ddp(self.ddp) else []
        self.loop = Loop(self.step, models, self.batches, can_halve=not compiled)

    def measure(self, harness: "Harness") -> list[float]:
        """Measure the step on every rank, record the result, and return this rank's rounds."""
        world = harness.world
        refuse_in_case(world, harness.rank_hosts, self.problem(world.world_size))
        if self.batches is not None:
            # Workers deliver their batches together, then a step waits. So the steps of a round are
            # a multiple of the workers: shorter rounds would be fast and slow in turn.
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
            round_s, variant_s=variant_s, phase_s=phase_s, conclude=self.conclude,
            own={"samples": self.samples, "check": checked},
            scaling=self.scaling, sample_unit=self.unit, **facts,
        )  # fmt: skip
        return round_s

    def problem(self, world_size: int) -> str:
        """Return why this rank cannot measure the step; empty if it can."""
        if self.scaling not in WORK_SCALINGS:
            allowed = " or ".join(map(repr, WORK_SCALINGS))
            return f"scaling is {self.scaling!r}, but must be {allowed}"
        if type(self.samples) is not int or self.samples < 1:
            given = reprlib.repr(self.samples)
            return (
                f"samples={given} is not a whole number of 1 or more; give "
                "this rank's samples in one step (its local batch), such as 32"
            )
        # On one rank a model need not be wrapped.
        if self.ddp is not None and world_size > 1 and not _is_ddp(self.ddp):
            return (
                f"ddp={type(self.ddp).__name__} is not a DistributedDataParallel model; wrap the "
                "model, or leave ddp out"
            )
        return self.loop.problem()

    def timed_step(self) -> Step:
        return self.step if self.batches is None else self.loop.drawing_step()

    def run_check(self) -> Any:
        """Check the step after its rounds; return values for rank 0."""
        answer = None if self.check is None else self.check()
        if answer is not None and not answer:  # NumPy and torch have a False of their own
            raise RuntimeError(
                "the check of the measured step failed, because the check function returned "
                f"{answer}"
            )

    def time_variants(
        self, harness: "Harness", step_s: float
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Time the variants of the step in turns, to divide its time into causes.

        Returns:
            This rank's seconds per step of each variant, and of each known phase of the whole step,
            shape (num_turns,). Both are empty if nothing is measured, causes are switched off, or
            ranks wait for each other in a step without gradient synchronisation.
        """
        world, case = harness.world, str(harness.number)
        # Without DDP the step of several ranks has no known variants.
        if not (harness.times_causes and (_is_ddp(self.ddp) or world.world_size == 1)):
            return {}, {}
        harness.case.peak = memory.peak(harness.device)  # before the variants allocate more
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
        """Return whether ranks wait for each other in a step without gradient synchronisation.

        All ranks agree on this: they call equally many collectives, or the case fails.
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
        """Return a flag if a batch's tensors hold another number of items than `samples`."""
        from lockstep.workloads.trees import seen_items

        one_each = self.unit in ITEMS
        items = seen_items(self.step, self.loop.first, self.samples, one_each=one_each)
        return [flag("other-samples", samples=self.samples, items=items)] if items else []

    def conclude(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the fields that follow from all ranks, on rank 0; their batches may differ."""
        batches = [part.own["samples"] for part in parts]
        return {
            "samples_per_step": sum(batches),
            "local_batch": batches[0] if len(set(batches)) == 1 else None,
            "global_batch": sum(batches),
        }


def _is_ddp(ddp: Any) -> bool:
    """Return whether a model is in DDP, compiled or not; FSDP has `no_sync`, but no buckets."""
    return hasattr(ddp, "_get_ddp_logging_data")


@dataclass(frozen=True)
class Harness:
    """One case's view of the launch."""

    world: World  # the ranks and this rank's device
    size: Size
    name: str  # of the test, without its parameters
    number: int  # of the case in this session, from 1
    factors: dict[str, Any]
    study: str
    seed: int
    data_root: Path  # folder for data files
    benchmark: Any
    clock: timing.ReplayClock  # through which pytest-benchmark sees our durations
    case: Case  # state that the launch and the case share
    cores_on_host: int = 1  # cores that the ranks of this host may run on together
    flags: Sequence[Flag] = ()  # of every result of this launch
    goal: Goal | None = None  # when there are enough rounds; None for the fixed number
    rank_hosts: Sequence[str] = ()
    unsupported: Mapping[str, str] | None = None  # precision -> why a rank cannot measure it
    causes: bool = True  # whether the variants of a step are timed, to divide its time into causes
    halves: bool = False  # whether a step without memory for it is measured with half the batch
    facts: Mapping[str, Any] | None = None  # further fields of `CaseRecord` that the launch knows
    watches: bool = False  # whether device and host are sampled while rounds are timed

    @property
    def device(self) -> "torch.device":
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
        timed = self.case.around(step) if self.case.around else step
        with self.sample_machine() as watch:
            if self.number == 1 and self.measures:
                self.warm_up(timed)
            gc.collect()  # else the peak memory of this case contains memory of the last case
            memory.reset_peak(self.device)
            begun = time.monotonic()
            if self.plan.warmup_rounds:
                self._run(timed, self.plan.warmup_rounds)
            own_round_s = batch = self._time_batch(timed, watch)
            if self.goal is None or not self.measures:
                return own_round_s
            goal, left_s = self.goal, self.world.control.left_s
            seen = [[] for _ in range(self.world.world_size)]  # type: list[list[float]]
            for number in range(1, MAX_BATCHES):
                batch_s = time.monotonic() - begun

                def wants_more(batches: list[list[float]], batch_s: float = batch_s) -> bool:
                    """Return, on rank 0, whether the rounds miss the goal and time is left."""
                    for rounds, more in zip(seen, batches, strict=True):
                        rounds.extend(more)
                    rest_s = left_s()
                    has_time = rest_s is None or rest_s > 2 * batch_s
                    return has_time and goal.margin_of(seen) > goal.margin

                if not self._settle(f"more {number}", batch, wants_more):
                    break
                begun = time.monotonic()
                batch = self._time_batch(timed, watch)
                own_round_s = own_round_s + batch
            return own_round_s

    def warm_up(self, step: Step) -> None:
        """Run the launch's first case untimed, since a process is slow at first.

        Rank 0 decides how many rounds fit the case's time limit.
        """
        left_s = self.world.control.left_s()
        limit_s = WARM_UP_S if left_s is None else min(WARM_UP_S, left_s / 4)
        begun = time.monotonic()
        self._run(step, 1)
        first_s = time.monotonic() - begun
        wanted = self.plan.warmup_rounds + self.plan.rounds
        more = min(wanted, int(limit_s / max(first_s, 1e-9))) - 1
        self._run(step, self._settle("warm up", more, lambda counts: counts[0]))

    def _run(self, step: Step, rounds: int) -> list[float]:
        steps = self.plan.steps_per_round
        return timing.time_rounds(self.world, step, rounds=rounds, steps_per_round=steps)

    def _time_batch(self, step: Step, watch: Telemetry) -> list[float]:
        with watch:
            round_s = self._run(step, self.plan.rounds)
            # Read this before the device cools down.
            self.case.slowdowns.update(nvidia.slowdowns(self.device))
        return round_s

    def _settle(self, name: str, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        return self.world.control.settle_all(f"{self.number}/{name}", value, judge)

    @contextlib.contextmanager
    def sample_machine(self) -> Iterator[Telemetry]:
        """Give the sampler of device and host, and keep its samples."""
        with telemetry.sampling(self.device, self.watches and self.measures) as watch:
            try:
                yield watch
            finally:
                self.case.telemetry = watch.facts()
                if self.case.telemetry_file:
                    name = f"{self.name}[{case_id(self.factors)}]"
                    watch.timeline.append_to(self.case.telemetry_file, name)

    def measure(
        self,
        step: Callable[..., Any],
        *,
        samples: int,
        batches: Iterable[Any] | None = None,
        ddp: Any = None,
        check: Callable[[], Any] | None = None,
        scaling: str = "weak",
        unit: str = "samples",
        factors: Mapping[str, Any] | None = None,
    ) -> list[float]:
        """Measure a step of your own on every rank, and keep the result.

        Args:
            step: One optimizer update on this rank; it need not wait for its device. It takes no
                argument, or a batch of `batches`.
            samples: Samples of this rank in one step, such as 32, its local batch. The case is
                flagged if the tensors of its batch visibly hold another number.
            batches: A DataLoader, or another iterable that can be repeated: the time that the step
                waits for its input is then measured, too.
            ddp: The model in `DistributedDataParallel`, if there is one: the step is then also
                timed without gradient synchronisation, to divide its time into causes.
            check: Called after the rounds; the case fails if it raises or returns a false value
                other than None.
            scaling: weak if each rank keeps its batch at every world size, strong if the ranks
                share a fixed one.
            unit: What a sample is, such as images or tokens.
            factors: Name -> value that distinguishes this case from others.

        Returns:
            This rank's seconds per round, shape (num_rounds,).

        Raises:
            ValueError: `scaling` is neither weak nor strong, or a count is not 1 or more.
            RuntimeError: The check returned a false value, or another rank refuses its arguments.
        """
        kind = getattr(step, "lockstep_measurement", Measurement)
        measurement = kind(step, samples, batches, ddp, check, scaling, unit, factors or {})
        round_s: list[float] = measurement.measure(self)
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
        """Hand over this rank's measurement; rank 0 records the case once all ranks have ended it.

        Args:
            round_s: Seconds per round, as `time` returned them.
            variant_s: Variant -> seconds per step, shape (num_turns,).
            phase_s: Phase -> seconds per step in the turns of the whole step, if known.
            own: Further JSON values of this rank for `conclude`.
            conclude: Called on rank 0 with the parts of all ranks.
            facts: Further fields of `CaseRecord`; flags add to those of the launch.
        """
        if self.case.measured_by is self.benchmark:
            raise ValueError(
                f"{self.name} has already measured a step, but each test can measure only one; "
                "parametrize the test to measure more"
            )
        case = self.case  # self.case is replaced if the launch ends meanwhile
        case.measured_by = self.benchmark
        peak = case.peak or memory.peak(self.device)
        case.part = Part(
            round_s=round_s, variant_s=dict(variant_s or {}), phase_s=dict(phase_s or {}),
            slowdowns=sorted(case.slowdowns), peak_bytes=peak.used_bytes,
            peak_reserved_bytes=peak.reserved_bytes, own=own, telemetry=case.telemetry,
        )  # fmt: skip

        def make_result(parts: Sequence[Part]) -> None:
            case_record = make_record(self, parts, facts, conclude(parts) if conclude else {})
            self.benchmark.extra_info[KEY] = case_record.to_dict()
            self.clock.show(case_record.round_s, self.benchmark)

        case.conclude = make_result
        if self.world.rank > 0:  # else pytest-benchmark warns that its fixture was not used
            self.clock.show(round_s, self.benchmark)
