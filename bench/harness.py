"""What a case gets from us: timed rounds, agreement between ranks, and a place for its record."""

import gc
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import memory, metrics, timing
from bench.record import KEY, CaseRecord
from bench.sizes import Size
from bench.world import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch


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
        benchmark: pytest-benchmark's fixture.
        clock: The timer through which pytest-benchmark sees our durations.
    """

    world: World
    size: Size
    case: str
    factors: dict[str, Any]
    study: str
    cores_on_host: int
    seed: int
    data_root: "Path"
    flags: tuple[str, ...]
    benchmark: Any
    clock: timing.ReplayClock

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
        values = self.world.control.exchange(f"{self.case}/{name}", value)
        silent = [rank for rank, given in enumerate(values) if given is None]
        if silent:
            raise RuntimeError(f"rank {silent[0]} did not answer in {name!r} of {self.case}")
        return values

    def time(self, step: "Callable[[], Any]") -> list[list[float]]:
        """Warm up, then time the rounds of a step.

        Returns:
            Seconds per round and rank, shape (num_ranks, num_rounds), equal on all ranks.
        """
        gc.collect()  # what the last case left is not this one's peak
        memory.reset_peak(self.device)
        warmup = self.plan.warmup_rounds
        own = timing.time_rounds(
            self.world,
            step,
            rounds=warmup + self.plan.rounds,
            steps_per_round=self.plan.steps_per_round,
        )
        return self.exchange("rounds", own[warmup:])

    def step_s(self, rank_round_s: list[list[float]]) -> float:
        """Return the median over rounds of the slowest rank's seconds per step."""
        return median(metrics.slowest_rank(rank_round_s)) / self.plan.steps_per_round

    def record(self, rank_round_s: list[list[float]], **facts: Any) -> CaseRecord:
        """Keep the case's result and show its rounds to pytest-benchmark.

        Args:
            rank_round_s: What `time` returned.
            facts: Further fields of `CaseRecord`; flags add to those of the launch.
        """
        flags = [*self.flags, *facts.pop("flags", [])]
        peaks = self.exchange("memory", {"peak_bytes": memory.peak_bytes(self.device)})
        record = CaseRecord(
            study=self.study,
            world_size=self.world.world_size,
            num_nodes=self.world.num_nodes,
            factors=self.factors,
            steps_per_round=self.plan.steps_per_round,
            rank_round_s=rank_round_s,
            peak_memory_bytes=[rank["peak_bytes"] for rank in peaks],
            flags=flags,
            **facts,
        )
        self.benchmark.extra_info[KEY] = record.to_dict()
        self.clock.load(record.round_s)
        self.benchmark.pedantic(_nothing, rounds=len(record.round_s), iterations=1)
        return record


def _nothing() -> None:
    """Take no time: the replayed clock already knows how long the round took."""
