"""How many rounds a case has: a warm-up, a fixed number, or batches until they are precise enough.

The ranks agree here on what only one of them can know: rank 0's clock and the rounds of all.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lockstep.core import metrics
from lockstep.core.sizes import Size
from lockstep.machine import memory, nvidia
from lockstep.machine.telemetry import Telemetry
from lockstep.measure import timing
from lockstep.ranks.process_group import World

# The margin of error asked for is given up after so many times the fixed rounds.
MAX_BATCHES = 20
# The untimed run of the first case takes no longer.
WARM_UP_S = 30.0

Step = Callable[[], Any]


@dataclass(frozen=True)
class Goal:
    """When a case has enough rounds.

    Attributes:
        margin: Largest relative margin of error of the mean round, such as 0.01.
        confidence: Of that margin, such as 0.95.
    """

    margin: float
    confidence: float

    def margin_of(self, rank_round_s: list[list[float]]) -> float:
        """Return the relative margin of rounds, shape (num_ranks, num_rounds)."""
        return metrics.relative_margin(metrics.slowest_rank(rank_round_s), self.confidence)


@dataclass(frozen=True)
class Rounds:
    """Times the rounds of one case on this rank.

    Attributes:
        world: The ranks and this rank's device.
        goal: When there are enough rounds; None for the fixed number.
        is_first: Whether the case is to be run once for nothing before.
        slowdowns: Why the device held its clocks back; each batch adds to it as it ends.
        watch: Is entered while rounds that count are timed.
    """

    world: World
    case: str
    plan: Size
    goal: Goal | None
    is_first: bool
    slowdowns: set[str]
    watch: Telemetry = field(default_factory=lambda: Telemetry([]))

    def time(self, step: Step) -> list[float]:
        """Warm up, then return this rank's seconds per round, shape (num_rounds,)."""
        if self.is_first:
            self.warm_up(step)
        gc.collect()  # what the last case left is not this one's peak
        memory.reset_peak(self.world.device)
        begun = time.monotonic()
        if self.plan.warmup_rounds:
            self._run(step, self.plan.warmup_rounds)
        batch = self._batch(step)
        own_round_s = batch
        if self.goal is None:
            return own_round_s
        goal, left_s = self.goal, self.world.control.left_s
        seen = [[] for _ in range(self.world.world_size)]  # type: list[list[float]]
        for number in range(1, MAX_BATCHES):
            batch_s = time.monotonic() - begun

            def wants_more(batches: list[list[float]], batch_s: float = batch_s) -> bool:
                """Decide on rank 0, which knows all ranks' rounds."""
                for rounds, more in zip(seen, batches, strict=True):
                    rounds.extend(more)
                rest_s = left_s()
                has_time = rest_s is None or rest_s > 2 * batch_s
                return has_time and goal.margin_of(seen) > goal.margin

            if not self._settle(f"more {number}", batch, wants_more):
                break
            begun = time.monotonic()
            batch = self._batch(step)
            own_round_s = own_round_s + batch
        return own_round_s

    def warm_up(self, step: Step) -> None:
        """Run the launch's first case once for nothing, or it alone would pay for a cold process.

        Its own warm-up rounds follow. Rank 0 decides how much of it has room in the case's budget.
        """
        left_s = self.world.control.left_s()
        limit_s = WARM_UP_S if left_s is None else min(WARM_UP_S, left_s / 4)
        begun = time.monotonic()
        self._run(step, 1)
        first_s = time.monotonic() - begun
        wanted = self.plan.warmup_rounds + self.plan.rounds
        more = min(wanted, int(limit_s / max(first_s, 1e-9))) - 1
        self._run(step, self._settle("warm up", more, lambda given: given[0]))

    def _run(self, step: Step, rounds: int) -> list[float]:
        steps = self.plan.steps_per_round
        return timing.time_rounds(self.world, step, rounds=rounds, steps_per_round=steps)

    def _batch(self, step: Step) -> list[float]:
        with self.watch:
            round_s = self._run(step, self.plan.rounds)
            # Before the device cools down.
            self.slowdowns.update(nvidia.slowdowns(self.world.device))
        return round_s

    def _settle(self, name: str, value: Any, judge: Callable[[list[Any]], Any]) -> Any:
        return self.world.control.settle_all(f"{self.case}/{name}", value, judge)
