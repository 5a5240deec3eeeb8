"""What a case gets from us: timed rounds, agreement between ranks, and a place for its record."""

import gc
import math
import reprlib
import time
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from lockstep.machine import memory, nvml
from lockstep.measure import timing
from lockstep.vocabulary import metrics
from lockstep.vocabulary.flags import Flag, flag
from lockstep.vocabulary.host import hostname
from lockstep.vocabulary.record import KEY, CaseRecord, problem
from lockstep.vocabulary.sizes import Size
from lockstep.world.process_group import World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch


# A precision that is asked for is given up after so many times the fixed rounds.
MAX_BATCHES = 20
# Steps that wait for no other rank, at the least: two halves that each tell of a rank's spread.
LEAST_ALONE = 8
# The untimed run of the first case takes no longer.
WARM_UP_S = 30.0
# A rank that computes so much longer than the others sets the pace of all.
STRAGGLER_RATIO = 1.15


# What a page says of a step that is not the suite's.
OWN_BASIS = {"data, model and optimizer": "those of your own test"}


@dataclass(frozen=True)
class Goal:
    """When a case has enough rounds.

    Attributes:
        margin: Largest relative margin of error of the mean round, such as 0.01.
        confidence: Of that margin, such as 0.95.
    """

    margin: float
    confidence: float


@dataclass(frozen=True)
class Harness:
    """One case's view of the launch.

    Attributes:
        world: The ranks and this rank's device.
        size: Rounds, steps and batches.
        case: The case's id.
        factors: The case's parameters, name -> value.
        study: The study the case belongs to.
        cores_on_host: Cores that the ranks of this host may run on together.
        seed: Seed of parameters and data.
        data_root: Folder for data files.
        flags: What is already known against any result of this launch.
        goal: When there are enough rounds; None for the fixed number.
        benchmark: pytest-benchmark's fixture.
        clock: The timer through which pytest-benchmark sees our durations.
        rank_hosts: Host of each rank.
        position: Place of the case in the launch's order.
        source_sha256: Digest of what the case measures, see `CaseRecord.workload_sha256`.
        is_first: Whether it is the first case that this session measures.
        slowed: Flags of devices that held their clocks back at the end of a batch of rounds.
    """

    world: World
    size: Size
    case: str
    factors: dict[str, Any]
    study: str
    cores_on_host: int
    seed: int
    data_root: "Path"
    flags: "tuple[Flag, ...]"
    goal: Goal | None
    benchmark: Any
    clock: timing.ReplayClock
    rank_hosts: tuple[str, ...] = ()
    position: int | None = None
    source_sha256: str | None = None
    is_first: bool = False
    slowed: "list[Flag]" = field(default_factory=list)

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

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Return every rank's value.

        Raises:
            RuntimeError: A rank did not answer.
        """
        return self.world.control.exchange_all(f"{self.case}/{name}", value)

    def time(self, step: "Callable[[], Any]") -> list[list[float]]:
        """Warm up, then time the rounds of a step: a fixed number, or batches until the goal.

        Returns:
            Seconds per round and rank, shape (num_ranks, num_rounds), equal on all ranks.
        """
        if self.is_first and self.measures:
            self._warm_up(step)
        gc.collect()  # what the last case left is not this one's peak
        memory.reset_peak(self.device)
        warmup = self.plan.warmup_rounds
        begun = time.monotonic()
        rank_round_s = self._batch(step, 0, warmup)
        for number in range(1, MAX_BATCHES):
            if not self._wants_more(rank_round_s, time.monotonic() - begun, number):
                break
            begun = time.monotonic()
            more = self._batch(step, number, 0)
            rank_round_s = [old + new for old, new in zip(rank_round_s, more, strict=True)]
        return rank_round_s

    def _warm_up(self, step: "Callable[[], Any]") -> None:
        """Run the launch's first case once for nothing, or it alone would pay for a cold process.

        Its own warm-up rounds follow. Rank 0 decides when it has taken its share of the budget.
        """
        left_s = self.world.control.left_s()
        end = time.monotonic() + min(WARM_UP_S, WARM_UP_S if left_s is None else left_s / 4)
        for number in range(self.plan.warmup_rounds + self.plan.rounds):
            timing.time_rounds(
                self.world, step, rounds=1, steps_per_round=self.plan.steps_per_round
            )
            if not self.exchange(f"warm up {number}", time.monotonic() < end)[0]:
                break

    def _batch(self, step: "Callable[[], Any]", number: int, warmup: int) -> list[list[float]]:
        own = timing.time_rounds(
            self.world,
            step,
            rounds=warmup + self.plan.rounds,
            steps_per_round=self.plan.steps_per_round,
        )
        slowdowns = nvml.slowdowns(self.device)  # before the device cools down
        told = {"rounds": own[warmup:], "slowdowns": slowdowns, "host": hostname()}
        ranks = self.exchange(f"rounds {number}", told)
        self.slowed.extend(_slowdown_flags(ranks))
        return [rank["rounds"] for rank in ranks]

    def _wants_more(self, rank_round_s: list[list[float]], batch_s: float, number: int) -> bool:
        """Return whether another batch is to come; equal on all ranks, for rank 0 decides."""
        if self.goal is None or not self.measures:
            return False
        left_s = self.world.control.left_s()
        has_time = left_s is None or left_s > 2 * batch_s
        wants = has_time and self._margin(rank_round_s) > self.goal.margin
        return bool(self.exchange(f"more {number}", wants)[0])

    def _margin(self, rank_round_s: list[list[float]]) -> float:
        assert self.goal is not None
        return metrics.relative_margin(metrics.slowest_rank(rank_round_s), self.goal.confidence)

    def _goal_flags(self, rank_round_s: list[list[float]]) -> list[Flag]:
        if self.goal is None or not self.measures:
            return []
        rounds = len(rank_round_s[0])
        if rounds < 2:
            return [flag("no-margin", goal=self.goal.margin)]
        margin = self._margin(rank_round_s)
        if margin <= self.goal.margin:
            return []
        return [flag("wide-margin", margin=margin, rounds=rounds, goal=self.goal.margin)]

    def alone(self, step: "Callable[[], Any]") -> tuple[list[list[float]], list[Flag]]:
        """Time a step that waits for no other rank, to find the one that the others wait for.

        Returns:
            Each rank's seconds of each step, shape (num_ranks, num_steps), empty where nothing is
            measured; flags.
        """
        if not self.measures:
            return [], []
        steps = self.plan.steps_per_round  # as the step is timed, or more of its launch would show
        step()  # the first one after synchronised steps allocates anew
        rounds = math.ceil(LEAST_ALONE / steps)
        own = timing.time_steps(self.world, step, rounds=rounds, steps_per_round=steps)
        there = self.exchange("alone", [own, hostname()])
        alone_s = [steps_s for steps_s, _ in there]
        return alone_s, _straggler_flags(list(map(median, alone_s)), [host for _, host in there])

    def step_s(self, rank_round_s: list[list[float]]) -> float:
        """Return the median over rounds of the slowest rank's seconds per step."""
        return median(metrics.slowest_rank(rank_round_s)) / self.plan.steps_per_round

    def measure(
        self,
        step: "Callable[[], Any]",
        *,
        samples: int,
        ddp: Any = None,
        check: "Callable[[], Any] | None" = None,
        scaling: str = "weak",
        unit: str = "samples",
        factors: "Mapping[str, Any] | None" = None,
    ) -> CaseRecord:
        """Measure a step of one's own on every rank, and keep the result.

        Args:
            step: One optimizer update on this rank; it need not wait for its device.
            samples: Samples of this rank in one step, such as `len(batch)`.
            ddp: The model in `DistributedDataParallel`, where it is one: the step is then also
                timed without gradient synchronisation, to say what a step is lost to.
            check: Called after the rounds; the case fails where it raises or returns what is false,
                but for None.
            scaling: weak where the ranks keep their batch at every world size, strong where they
                share a fixed one.
            unit: What a sample is, such as images or tokens.
            factors: What else tells this case from others, name -> value.

        Returns:
            What is kept, of all ranks.

        Raises:
            ValueError: `scaling` is neither weak nor strong, or a count is not 1 or more.
            RuntimeError: The check returned what is false.
        """
        if scaling not in ("weak", "strong"):
            raise ValueError(f"scaling={scaling!r} is not weak or strong")
        batches = self._batches(samples)
        rank_round_s = self.time(step)
        said = None if check is None else check()
        if said is not None and not said:  # NumPy and torch have a False of their own
            raise RuntimeError(f"the check of the measured step returned {said}")
        details, stragglers = self._without_sync(ddp, step)
        own = replace(self, study=scaling, factors=self.factors | dict(factors or {}))
        return own.record(
            rank_round_s,
            workload=self.name,
            scaling=scaling,
            sample_unit=unit,
            samples_per_step=sum(batches),
            local_batch=samples if len(set(batches)) == 1 else None,
            global_batch=sum(batches),
            checks={} if check is None else {"own_check": True},
            details=details | {"basis": OWN_BASIS},
            flags=stragglers,
        )

    def _without_sync(
        self, ddp: Any, step: "Callable[[], Any]"
    ) -> tuple[dict[str, Any], list[Flag]]:
        """Time the step without gradient synchronisation; return details and flags."""
        # A model may be wrapped only where there are other ranks.
        if ddp is None or (self.world.world_size == 1 and not hasattr(ddp, "no_sync")):
            return {}, []
        if not hasattr(ddp, "no_sync"):
            raise ValueError(
                f"ddp={type(ddp).__name__} is no DistributedDataParallel model; wrap it, or leave "
                "ddp out"
            )
        with ddp.no_sync():
            alone_s, stragglers = self.alone(step)
        return _ddp_details(ddp, alone_s), stragglers

    def _batches(self, samples: object) -> list[int]:
        """Return every rank's samples of a step.

        Raises:
            ValueError: A rank's are no whole number of 1 or more.
        """
        is_count = type(samples) is int and samples >= 1
        batches = self.exchange("samples", samples if is_count else reprlib.repr(samples))
        for rank, batch in enumerate(batches):
            if isinstance(batch, str):
                raise ValueError(
                    f"samples is {batch} on rank {rank}, which is no whole number of 1 or more; "
                    "give those of a step on this rank, such as len(batch)"
                )
        return batches

    @property
    def name(self) -> str:
        """The test's name, without its parameters."""
        return self.case.partition("/")[2].partition("[")[0]

    def record(self, rank_round_s: list[list[float]], **facts: Any) -> CaseRecord:
        """Keep the case's result and show its rounds to pytest-benchmark.

        Args:
            rank_round_s: What `time` returned.
            facts: Further fields of `CaseRecord`; flags add to those of the launch.

        Raises:
            ValueError: A count, a unit or a round is none, see `record.problem`.
        """
        flags = [*self.flags, *facts.pop("flags", []), *self._goal_flags(rank_round_s)]
        flags += dict.fromkeys(self.slowed)
        peaks = self.exchange("memory", memory.peak_bytes(self.device) or 0)
        record = CaseRecord(
            study=self.study,
            world_size=self.world.world_size,
            num_nodes=self.world.num_nodes,
            factors=self.factors,
            steps_per_round=self.plan.steps_per_round,
            rank_round_s=rank_round_s,
            peak_memory_bytes=[peak or None for peak in peaks],
            flags=[one.to_dict() for one in flags],
            rank_hosts=list(self.rank_hosts),
            position=self.position,
            workload_sha256=self.source_sha256,
            **facts,
        )
        if wrong := problem(record):
            raise ValueError(f"the result cannot be kept: {wrong}")
        self.benchmark.extra_info[KEY] = record.to_dict()
        self.clock.load(record.round_s)
        self.benchmark.pedantic(_nothing, rounds=len(record.round_s), iterations=1)
        return record


def _ddp_details(ddp: Any, alone_s: list[list[float]]) -> dict[str, Any]:
    from lockstep.measure.train_step import bucket_bytes, gradient_bytes

    return {
        "bucket_bytes": bucket_bytes(ddp),
        "gradient_bytes": gradient_bytes(ddp),
        "alone_step_s": list(map(median, alone_s)),
        "rank_alone_s": alone_s,
    }


def _nothing() -> None:
    """Take no time: the replayed clock already knows how long the round took."""


def _slowdown_flags(ranks: list[dict[str, Any]]) -> list[Flag]:
    """Name the devices whose clocks were held back when the rounds ended."""
    return [
        flag("throttled", rank=number, host=rank["host"], reasons=list(rank["slowdowns"]))
        for number, rank in enumerate(ranks)
        if rank["slowdowns"]
    ]


def _straggler_flags(alone_s: list[float], hosts: list[str]) -> list[Flag]:
    if len(alone_s) < 2:
        return []
    slowest = max(range(len(alone_s)), key=alone_s.__getitem__)
    ratio = alone_s[slowest] / median(alone_s[:slowest] + alone_s[slowest + 1 :])
    if ratio <= STRAGGLER_RATIO:
        return []
    return [flag("straggler", rank=slowest, host=hosts[slowest], ratio=ratio)]
