"""The variants of a training step that show where its time goes, run in turns.

`lockstep.measure.causes.division` says what each variant is for. All ranks enter a turn together. A
block of turns contains each variant equally often, in a random order that is equal on all ranks. So
a temporary slowdown hits all variants alike, as do events of every n-th step.

`Marks` record where the phases of a step end while it runs freely: the host's clock, or on a GPU an
event on the current stream that nobody waits for, so nothing in a step synchronises.
"""

import math
import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from lockstep.core.sizes import Size
from lockstep.measure import timing
from lockstep.measure.timing import Step
from lockstep.ranks.process_group import World, num_collectives

if TYPE_CHECKING:
    import torch

    from lockstep.measure.step.train_step import TrainStep

# About the largest cost of a turn of each variant, in whole steps.
COST = {"full": 1.0, "resident": 1.0, "own": 1.0, "half": 0.5, "reduce": 0.5}
# Share of the time of a case's rounds that the variants may add.
SHARE = 0.6
LEAST_BLOCKS, MOST_BLOCKS = 2, 24
# For a user's own step, which may have events in every tenth step: turns of a variant in a row,
# least turns of a variant, and the seconds that these least turns may take.
RUN, LEAST_OWN, LONGEST_S = 5, 40, 60.0
# Most steps of a turn: many short turns give narrower intervals than few long ones.
MOST_STEPS = 5
# Number of steps in which the readiness of buckets is observed.
LEAD_STEPS = 2


@dataclass(frozen=True)
class Plan:
    """How often the variants run."""

    blocks: int  # turns of each variant
    steps: int  # of a turn
    workers: int = 0  # processes that fetch batches; 0 if a step fetches its own
    run: int = 1  # turns of a variant in a row; `blocks` is a multiple of it

    @property
    def full_steps(self) -> int:
        """Steps of a turn of the whole step: a multiple of the workers, which deliver together."""
        together = max(self.workers, 1)
        return math.ceil(self.steps / together) * together


def plan_turns(
    rounds: Size,
    variants: Iterable[str],
    device: "torch.device",
    workers: int,
    own_s: float | None = None,
) -> Plan:
    """Return a plan that adds at most `SHARE` to the time of a case's rounds, if that is enough.

    `own_s` are the seconds of a user's own step, whose turns come in runs.
    """
    # A CPU has no work in flight between two steps, so a turn of one step is enough.
    steps = 1 if device.type == "cpu" else min(rounds.steps_per_round, MOST_STEPS)
    plan = Plan(LEAST_BLOCKS, steps, workers)
    cost = sum(COST[name] for name in variants) * steps + COST["full"] * (plan.full_steps - steps)
    num_steps = (rounds.rounds + rounds.warmup_rounds) * rounds.steps_per_round
    blocks = min(int(SHARE * num_steps / cost - 1 / steps), MOST_BLOCKS)  # less untimed steps
    if own_s is not None:
        blocks = max(blocks, min(LEAST_OWN, int(LONGEST_S / (cost * own_s))))
    blocks = max(blocks, LEAST_BLOCKS)
    run = RUN if own_s is not None and blocks >= RUN else 1
    return replace(plan, blocks=math.ceil(blocks / run) * run, run=run)


def draw_order(world: World, case: str) -> int:
    """Return the seed of an order, drawn anew in each run by rank 0; a collective call."""
    seed = secrets.randbits(32)  # not from generators that a user may have seeded
    return int(world.control.settle_all(f"{case}/order", seed, lambda seeds: seeds[0]))


def time_in_turns(
    world: World, variants: Mapping[str, Step], plan: Plan, seed: int
) -> dict[str, list[float]]:
    """Return this rank's seconds per step in each turn of each variant; a collective call.

    Names, plan and seed (of the order) are equal on all ranks, as each turn begins with a barrier.
    `running` is `own` without waits for a core, if these are known.
    """
    for step in variants.values():
        step()  # the first step after another variant allocates memory
    order = turns(list(variants), plan.blocks, seed, plan.run)
    timed = timing.time_turns(world, [variants[name] for name in order], plan.steps)
    turn_s: dict[str, list[float]] = {name: [] for name in variants}
    for name, (seconds, running_s) in zip(order, timed, strict=True):
        turn_s[name].append(seconds)
        if name == "own" and running_s is not None:
            turn_s.setdefault("running", []).append(running_s)
    return turn_s


def turns(names: Sequence[str], blocks: int, seed: int, run: int = 1) -> list[str]:
    """Return the names in the order of their turns, each `run` times in a row."""
    draw = random.Random(seed)  # noqa: S311, it must only be equal on all ranks
    order = [name for _ in range(blocks // run) for name in draw.sample(names, len(names))]
    return [name for name in order for _ in range(run)]


def own_step(ddp: Any, step: Step) -> Step:
    """Return the step without gradient synchronisation; if `waits` is 0, no rank waits in it."""

    def own() -> None:
        # Else the first such step after a whole step would still send buffers, as of batch norm.
        ddp.require_forward_param_sync = False
        with ddp.no_sync():
            step()

    return own


def waits(own: Step) -> int:
    """Return the number of collectives in a step without gradient synchronisation.

    Ranks wait for each other in these: SyncBatchNorm, an all-reduce of the loss, or DDP's
    own if the step itself sets `require_backward_grad_sync`.
    """
    own()  # in the first step DDP may still announce new buckets
    before = num_collectives()
    own()
    return num_collectives() - before


def whole_step(ddp: Any, step: Step) -> Step:
    """Return the whole step, which resets the flag that a step without synchronisation leaves."""

    def full() -> None:
        ddp.require_forward_param_sync = True
        step()

    return full


def ddp_variants(ddp: Any, step: Step) -> dict[str, Step]:
    """Return the variants that any step of a DDP model has, by name."""
    ways = {"full": whole_step(ddp, step), "own": own_step(ddp, step)}
    return ways | ({"reduce": reduce_buckets(ddp)} if sends_buckets(ddp) else {})


def sends_buckets(ddp: Any) -> bool:
    """Return whether a model sends exactly its buckets; False with a user's hook."""
    from torch import distributed

    has_hook = bool(getattr(ddp, "_comm_hooks", None))
    return distributed.get_world_size(ddp.process_group) > 1 and not has_hook


def reduce_buckets(ddp: Any) -> Step:
    """Return an all-reduce of as many bytes as DDP's buckets, all of them in flight at once."""
    import torch
    from torch import distributed

    from lockstep.measure.step.train_step import bucket_bytes

    trained = next(parameter for parameter in ddp.parameters() if parameter.requires_grad)
    buffers = [
        torch.zeros(size // trained.element_size(), dtype=trained.dtype, device=trained.device)
        for size in bucket_bytes(ddp)
    ]

    def reduce() -> None:
        works = [
            distributed.all_reduce(buffer, group=ddp.process_group, async_op=True)
            for buffer in buffers
        ]
        for work in works:
            work.wait()

    return reduce


def bucket_leads(ddp: Any, own: Step) -> list[float]:
    """Return how long before the end of the backward each bucket has all of its gradients.

    The seconds, medians of steps, come in the order in which buckets are reduced. DDP settles on
    its buckets in its first three steps; `own`, without gradient synchronisation, has run before.
    """
    from lockstep.measure.step.train_step import bucket_bytes

    trained = [p for p in ddp.parameters() if p.requires_grad]
    sizes = [p.numel() * p.element_size() for p in trained]
    buckets = bucket_bytes(ddp)
    bucket_leads_s = []
    for _ in range(LEAD_STEPS):
        ready = _ready_s(trained, own)
        last = max(ready, default=0.0)
        leads = sorted(((last - when, size) for when, size in zip(ready, sizes, strict=True)),
                       reverse=True)  # fmt: skip
        bucket_leads_s.append(_fill(leads, buckets))
    return [median(lead_s) for lead_s in zip(*bucket_leads_s, strict=True)]


def _ready_s(parameters: Sequence["torch.Tensor"], own: Step) -> list[float]:
    """Return when each parameter's gradient was ready, in seconds from the beginning of a step.

    An unused parameter counts as ready with the first gradient.
    """
    device, marks = parameters[0].device, {}

    def note(parameter: "torch.Tensor") -> None:
        marks[id(parameter)] = timing.mark(device)

    hooks = [p.register_post_accumulate_grad_hook(note) for p in parameters]
    begun = timing.mark(device)
    try:
        own()
    finally:
        for hook in hooks:
            hook.remove()
    timing.synchronise(device)
    ready = {key: timing.elapsed_s(device, begun, when) for key, when in marks.items()}
    first = min(ready.values(), default=0.0)
    return [ready.get(id(parameter), first) for parameter in parameters]


def _fill(leads: Sequence[tuple[float, int]], buckets: Sequence[int]) -> list[float]:
    """Return the lead of each bucket: the lead of its last gradient.

    Buckets and (lead, bytes) of gradients come in the order in which gradients are ready.
    """
    bucket_leads_s, waiting = [], list(leads)
    for size in buckets:
        held, lead = 0, 0.0
        while waiting and (held < size or not held):
            lead, more = waiting.pop(0)
            held += more
        bucket_leads_s.append(lead)
    return bucket_leads_s


@dataclass
class Marks:
    """The marks of each step on a device: its beginning, then (phase, end) in order."""

    device: "torch.device"
    of_steps: list[list[tuple[str, Any]]] = field(default_factory=list)

    def mark_phases(self, step: "TrainStep", whole: Step) -> Step:
        def marked() -> None:
            self.begin()
            before, step.on_phase = step.on_phase, self.end
            try:
                whole()
            finally:
                step.on_phase = before

        return marked

    def begin(self) -> None:
        self.of_steps.append([("", timing.mark(self.device))])

    def end(self, phase: str) -> None:
        self.of_steps[-1].append((phase, timing.mark(self.device)))

    def last_s(self, phase: str) -> list[float]:
        """Return the seconds of a phase's last occurrence in each step that has it.

        The device must be synchronised before.
        """
        steps = [dict(self._seconds(marks)) for marks in self.of_steps]
        return [step[phase] for step in steps if phase in step]

    def turn_seconds(self, num_turns: int) -> dict[str, list[float]]:
        """Return phase -> seconds per step, shape (num_turns,); the device must be synchronised.

        The first steps, fewer than there are turns, ran before the turns and are left out.
        """
        if num_turns == 0:
            return {}
        steps = []
        for marks in self.of_steps[len(self.of_steps) % num_turns :]:
            seconds: dict[str, float] = {}
            for phase, taken_s in self._seconds(marks):  # a repeated phase adds up
                seconds[phase] = seconds.get(phase, 0.0) + taken_s
            steps.append(seconds)
        size = len(steps) // num_turns
        turns = [steps[first : first + size] for first in range(0, len(steps), size)]
        return {name: [fmean(step[name] for step in turn) for turn in turns] for name in steps[0]}

    def _seconds(self, marks: list[tuple[str, Any]]) -> list[tuple[str, float]]:
        return [
            (phase, timing.elapsed_s(self.device, before, end))
            for (_, before), (phase, end) in pairwise(marks)
        ]
