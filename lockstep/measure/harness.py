"""What a test measures with: timed rounds, and a place for what they gave."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.core.flags import Flag
from lockstep.core.record import KEY
from lockstep.core.sizes import Size, case_id
from lockstep.machine import memory, telemetry
from lockstep.measure import own_step, result, timing
from lockstep.measure.batches import Goal, Rounds, Step
from lockstep.measure.own_step import OwnStep
from lockstep.measure.result import Case, Conclusion, Part
from lockstep.measure.step.variants import draw_order, plan_turns, time_in_turns, waits
from lockstep.ranks.process_group import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import torch

    from lockstep.machine.telemetry import Telemetry
    from lockstep.measure.loop_variants import Loop


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
        return own_step.measure(self, own)

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
        made = result.make(self, parts, facts, conclude(parts) if conclude else {})
        self.benchmark.extra_info[KEY] = made.to_dict()
        self.clock.show(made.round_s, self.benchmark)
