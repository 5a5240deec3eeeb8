"""The variants of a training step that say where its time goes, run in turns.

`lockstep.measure.causes.division` says what each variant is for. A turn is entered by all ranks
together; a block of turns runs each variant as often, in an order drawn anew in every run and equal
on all ranks, so that what slows the machine for a while slows no variant more than the others, and
what comes in every n-th step falls on each.

`Marks` note where the phases of a step end while it runs freely: a reading of the host's clock, on
a GPU an event on the current stream that nobody waits for, so nothing in a step synchronises.
"""

import math
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from lockstep.core.sizes import Size
from lockstep.measure import timing
from lockstep.ranks.process_group import num_collectives

if TYPE_CHECKING:
    import torch

    from lockstep.measure.step.train_step import TrainStep
    from lockstep.ranks.process_group import World

Step = Callable[[], Any]

# What a turn of each costs, at the most about, in whole steps.
COST = {"full": 1.0, "resident": 1.0, "own": 1.0, "half": 0.5, "reduce": 0.5}
# The variants may add so much to the time of the rounds of a case.
SHARE = 0.6
LEAST_BLOCKS, MOST_BLOCKS = 2, 24
# Turns of a variant in a row, of steps that may have something periodic in them; and turns of each,
# unless they take longer than so many seconds: what comes in every tenth step is then seen often
# enough to tell how much it takes.
RUN, LEAST_OWN, LONGEST_S = 5, 40, 60.0
# Steps of a turn, at the most: many short turns tell more than few long ones.
MOST_STEPS = 5
# That are looked at to see when buckets are ready.
LEAD_STEPS = 2


@dataclass(frozen=True)
class Plan:
    """How often the variants run.

    Attributes:
        blocks: Turns of each.
        steps: Of a turn.
        workers: Processes that fetch batches; 0 where a step fetches its own.
        run: Turns of a variant in a row, in a block; `blocks` is a multiple.
    """

    blocks: int
    steps: int
    workers: int = 0
    run: int = 1

    @property
    def full_steps(self) -> int:
        """Steps of a turn of the whole step: whole rounds of the workers, who deliver in bursts."""
        together = max(self.workers, 1)
        return math.ceil(self.steps / together) * together


def plan_turns(
    rounds: Size,
    variants: Iterable[str],
    device: "torch.device",
    workers: int,
    own_s: float | None = None,
) -> Plan:
    """Return turns that add at most `SHARE` to the rounds of a case, but no fewer than needed.

    `own_s` are the seconds of a step of the user's own, which takes its turns in runs.
    """
    # A CPU has nothing in flight between two steps, so its turns need not be longer.
    steps = 1 if device.type == "cpu" else min(rounds.steps_per_round, MOST_STEPS)
    plan = Plan(LEAST_BLOCKS, steps, workers)
    cost = sum(COST[name] for name in variants) * steps + COST["full"] * (plan.full_steps - steps)
    num_steps = (rounds.rounds + rounds.warmup_rounds) * rounds.steps_per_round
    blocks = min(int(SHARE * num_steps / cost - 1 / steps), MOST_BLOCKS)  # each first runs untimed
    if own_s is not None:
        blocks = max(blocks, min(LEAST_OWN, int(LONGEST_S / (cost * own_s))))
    blocks = max(blocks, LEAST_BLOCKS)
    run = RUN if own_s is not None and blocks >= RUN else 1
    return replace(plan, blocks=math.ceil(blocks / run) * run, run=run)


def draw_order(world: "World", of: str) -> int:
    """Return the seed of an order, drawn by rank 0 anew in each run; a collective call."""
    drawn = secrets.randbits(32)  # and not by the generators that a user may have seeded
    return int(world.control.settle_all(f"{of}/order", drawn, lambda given: given[0]))


def time_in_turns(
    world: "World", variants: Mapping[str, Step], plan: Plan, seed: int
) -> dict[str, list[float]]:
    """Return this rank's seconds per step in each turn of each variant.

    Every rank must call it with the same names, plan and seed, which is that of the order: each
    turn begins with a barrier.

    Returns:
        Seconds, shape (plan.blocks,), by name; as `running` those of `own` without waits for a
        core, where these are known.
    """
    for step in variants.values():
        step()  # the first one after another variant allocates again
    order = turns(list(variants), plan.blocks, seed, plan.run)
    timed = timing.time_turns(world, [variants[name] for name in order], plan.steps)
    found: dict[str, list[float]] = {name: [] for name in variants}
    for name, (seconds, running_s) in zip(order, timed, strict=True):
        found[name].append(seconds)
        if name == "own" and running_s is not None:
            found.setdefault("running", []).append(running_s)
    return found


def turns(names: Sequence[str], blocks: int, seed: int, run: int = 1) -> list[str]:
    """Return the names in the order of their turns, each so often in a row and in a block."""
    draw = random.Random(seed)  # noqa: S311, equal on all ranks is what matters
    order = [name for _ in range(blocks // run) for name in draw.sample(names, len(names))]
    return [name for name in order for _ in range(run)]


def without_sync(ddp: Any, step: Step) -> Step:
    """Return the step without gradient synchronisation: each rank's own, as far as `waits` is 0."""

    def own() -> None:
        # Or the first one after a whole step would still send the buffers, such as batch norm's.
        ddp.require_forward_param_sync = False
        with ddp.no_sync():
            step()

    return own


def waits(own: Step) -> int:
    """Return how many collectives a step has left without gradient synchronisation.

    Where there are any, as SyncBatchNorm's, an all-reduce of the loss, or DDP's own where the step
    sets `require_backward_grad_sync` itself, ranks wait for each other in it.
    """
    own()  # DDP may tell the ranks of new buckets in the first
    before = num_collectives()
    own()
    return num_collectives() - before


def with_sync(ddp: Any, step: Step) -> Step:
    """Return the step as it is after another whole one, whichever variant ran before it."""

    def full() -> None:
        ddp.require_forward_param_sync = True
        step()

    return full


def of_ddp(ddp: Any, step: Step) -> dict[str, Step]:
    """Return the variants that any step of a DDP model has, by name."""
    found = {"full": with_sync(ddp, step), "own": without_sync(ddp, step)}
    if sends_buckets(ddp):
        found["reduce"] = reduce_buckets(ddp)
    return found


def sends_buckets(ddp: Any) -> bool:
    """Tell whether a model's buckets are all that it sends; of a user's hook that is not known."""
    from torch import distributed

    has_hook = bool(getattr(ddp, "_comm_hooks", None))
    return distributed.get_world_size(ddp.process_group) > 1 and not has_hook


def reduce_buckets(ddp: Any) -> Step:
    """Return the all-reduce of as many bytes as DDP's gradients have, bucket by bucket.

    All buckets are in flight at once, as in a backward that has computed everything already.
    """
    import torch
    from torch import distributed

    from lockstep.measure.step.train_step import bucket_bytes

    trained = next(each for each in ddp.parameters() if each.requires_grad)
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

    Args:
        ddp: The model; its buckets are in use after three steps.
        own: The step without gradient synchronisation, which has run before.

    Returns:
        Seconds, shape (num_buckets,), in the order in which the buckets are reduced; the median
        over steps.
    """
    from lockstep.measure.step.train_step import bucket_bytes

    trained = [each for each in ddp.parameters() if each.requires_grad]
    sizes = [each.numel() * each.element_size() for each in trained]
    buckets = bucket_bytes(ddp)
    found = []
    for _ in range(LEAD_STEPS):
        ready = _ready_s(trained, own)
        last = max(ready, default=0.0)
        leads = sorted(((last - when, size) for when, size in zip(ready, sizes, strict=True)),
                       reverse=True)  # fmt: skip
        found.append(_fill(leads, buckets))
    return [median(each) for each in zip(*found, strict=True)]


def _ready_s(parameters: Sequence["torch.Tensor"], own: Step) -> list[float]:
    """Return when each parameter's gradient was ready, in seconds from the beginning of a step.

    One that the step does not use is ready with the first.
    """
    device, marks = parameters[0].device, {}

    def note(parameter: "torch.Tensor") -> None:
        marks[id(parameter)] = timing.mark(device)

    hooks = [each.register_post_accumulate_grad_hook(note) for each in parameters]
    begun = timing.mark(device)
    try:
        own()
    finally:
        for hook in hooks:
            hook.remove()
    timing.synchronise(device)
    ready = {key: timing.between_s(device, begun, when) for key, when in marks.items()}
    first = min(ready.values(), default=0.0)
    return [ready.get(id(each), first) for each in parameters]


def _fill(leads: Sequence[tuple[float, int]], buckets: Sequence[int]) -> list[float]:
    """Return the lead of each bucket: that of the last gradient which it takes.

    Both are in the order in which gradients are ready; a lead comes with its gradient's bytes.
    """
    found, waiting = [], list(leads)
    for size in buckets:
        held, lead = 0, 0.0
        while waiting and (held < size or not held):
            lead, more = waiting.pop(0)
            held += more
        found.append(lead)
    return found


@dataclass
class Marks:
    """When the phases of steps ended.

    Attributes:
        device: On whose clock.
        of_steps: The marks of each step, behind that of its beginning.
    """

    device: "torch.device"
    of_steps: list[list[tuple[str, Any]]] = field(default_factory=list)

    def marking(self, step: "TrainStep", whole: Step) -> Step:
        """Return a step that marks its phases."""

        def marked() -> None:
            self.begin()
            before, step.on_phase = step.on_phase, self.end
            try:
                whole()
            finally:
                step.on_phase = before

        return marked

    def begin(self) -> None:
        """Note that a step begins."""
        self.of_steps.append([("", timing.mark(self.device))])

    def end(self, phase: str) -> None:
        """Note that a phase ends."""
        self.of_steps[-1].append((phase, timing.mark(self.device)))

    def last_s(self, phase: str) -> list[float]:
        """Return the seconds of a phase in each step that has it; where it comes again, the last.

        The device must be synchronised before.
        """
        found = [dict(self._seconds(marks)) for marks in self.of_steps]
        return [step[phase] for step in found if phase in step]

    def in_turns(self, num_turns: int) -> dict[str, list[float]]:
        """Return the seconds a step of each phase, shape (num_turns,), by its name.

        What ran before the turns, a step fewer than there are turns, is left out. The device must
        be synchronised before.
        """
        if num_turns == 0:
            return {}
        steps = []
        for marks in self.of_steps[len(self.of_steps) % num_turns :]:
            seconds: dict[str, float] = {}
            for phase, taken_s in self._seconds(marks):  # one that comes again adds up
                seconds[phase] = seconds.get(phase, 0.0) + taken_s
            steps.append(seconds)
        size = len(steps) // num_turns
        turns = [steps[first : first + size] for first in range(0, len(steps), size)]
        return {name: [fmean(step[name] for step in turn) for turn in turns] for name in steps[0]}

    def _seconds(self, marks: list[tuple[str, Any]]) -> list[tuple[str, float]]:
        return [
            (phase, timing.between_s(self.device, before, end))
            for (_, before), (phase, end) in pairwise(marks)
        ]
