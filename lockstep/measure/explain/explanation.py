"""`lockstep.explain`: why a user's own training step does not scale, asked where it runs.

For about a minute the ranks run variants of the step in turns (`lockstep.measure.causes.division`),
agree on how many through the store, and rank 0 judges them. Whatever the step changes is put back
after every few turns and at the end, so training goes on as if nobody had asked.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.core.system.files import MIB
from lockstep.measure.causes.division import LAP
from lockstep.measure.explain.explain_record import Explanation, Part, lines, made
from lockstep.measure.explain.meeting import Met, meet
from lockstep.measure.explain.snapshot import Snapshot
from lockstep.measure.loop_variants import Loop, Step
from lockstep.measure.reach import Reached, reach
from lockstep.measure.step import variants
from lockstep.measure.step.train_step import bucket_bytes
from lockstep.measure.step.variants import RUN, Plan
from lockstep.ranks.placement import find_ranks_per_node
from lockstep.ranks.process_group import World, has_group
from lockstep.workloads.trees import seen_items

OUT = "lockstep-explain.json"
SECONDS = 60.0
# A turn is no shorter, or the barrier before it is felt in it.
LEAST_TURN_S = 0.02
MOST_STEPS = 20
# Steps between two restorations: often enough that weights which drift apart without
# synchronisation stay near those of the training, and enough to see the end of a slow beginning.
CHUNK_STEPS = 200
LEAST_LAPS, LEAST_BLOCKS = 3, 2
# More turns of each variant narrow no interval that matters.
MOST_TURNS = 100


def explain(
    step: Callable[..., Any],
    model: Any = None,
    *,
    batches: Iterable[Any] | None = None,
    seconds: float = SECONDS,
    samples: int | None = None,
    out: str | Path | None = OUT,
) -> dict[str, Any]:
    """Say what a training step of one's own loses its time to, and leave all of it as it was.

    Call it on every rank, under torchrun or srun, after a few steps of training. Rank 0 prints a
    card of about twelve lines and writes a record. Parameters, gradients, optimizers, schedulers,
    scalers, random states and whatever else is reached from the step are put back; learning rates
    stand still meanwhile. What the step prints or writes stays printed and written.

    Args:
        step: One optimizer update on this rank. It takes no argument, or a batch of `batches`.
        model: The model in `DistributedDataParallel`, where the step does not lead to it.
        batches: A DataLoader, or another iterable that can be gone over again, to measure what the
            step waits for its input, too. Without it the step holds a batch of its own.
        seconds: About how long to measure.
        samples: Samples of this rank in one step, such as 32, its local batch, for the throughput.
        out: The record's file, written by rank 0; None for none.

    Returns:
        The record, without the seconds of single turns, equal on all ranks.

    Raises:
        ValueError: What is given cannot be measured; all ranks raise it.
        RuntimeError: A rank did not come.
    """
    reached = reach(step=step, model=model, batches=batches)
    snapshot = Snapshot(reached, find_ranks_per_node(_world_size()))
    models = [each for each in reached.models if isinstance(each, DistributedDataParallel)]
    begun, device = time.monotonic(), _device(models, reached.models)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            loop = Loop(step, models, batches, can_halve=not reached.compiled)
            met = meet(device, _problem(loop, seconds, samples, out) or _too_large(snapshot.left))
            part = _measured(met.world, loop, seconds, lambda: _reset(snapshot, reached))
    finally:
        snapshot.restore()
    part = replace(part, drawn=reached.iterators, samples=samples)
    return _concluded(met, part, time.monotonic() - begun, out)


def _device(in_ddp: Sequence[nn.Module], models: Sequence[nn.Module]) -> torch.device:
    """Return where a step's time is spent: the device of what is trained, or else any GPU."""
    trained, every = ([p.device for m in each for p in m.parameters()] for each in (in_ddp, models))
    gpus = [device for device in every if device.type == "cuda"]
    return next(iter([*trained, *gpus, torch.device("cpu")]))


def _problem(loop: Loop, seconds: Any, samples: Any, out: str | Path | None) -> str:
    """Return what this rank cannot measure, or nothing; draws the first batch."""
    is_time = isinstance(seconds, int | float) and 0 < seconds < math.inf
    is_alone = _world_size() == 1
    if not callable(loop.step):
        return f"step is a {type(loop.step).__name__}; give a function that takes one step"
    if not is_time:
        return f"seconds={seconds!r} is not a time above 0"
    if samples is not None and (type(samples) is not int or samples < 1):
        return f"samples={samples!r} is not a whole number of 1 or more; give the local batch"
    if not is_alone and not loop.models:
        return (
            "no model in DistributedDataParallel is reached from step; give it as model=, or "
            "wrap it: other strategies cannot be explained yet"
        )
    if any(map(_is_unrecorded, loop.models)):
        return "a model with static_graph=True has taken no step; take one before you ask"
    if out is not None and not Path(out).absolute().parent.is_dir():
        return f"out={str(out)!r} lies in no folder that exists; make it, or choose another"
    problem = loop.problem()
    if samples and not problem and (items := seen_items(loop.step, loop.first, samples)):
        problem = f"samples={samples}, but the tensors of a batch hold {items} items each"
    return problem


def _is_unrecorded(ddp: DistributedDataParallel) -> bool:
    """Tell whether DDP has yet to record its static graph, which no snapshot can take back."""
    return ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued  # noqa: SLF001


def _world_size() -> int:
    return torch.distributed.get_world_size() if has_group() else 1


def _too_large(left: Mapping[str, int]) -> str:
    """Return why a step that may change data too large to keep a copy of cannot be measured."""
    named = ", ".join(f"{name} ({size / MIB:.0f} MiB)" for name, size in left.items())
    if not left:
        return ""
    return (
        f"the step reaches {named}, too large to keep a copy of; take the batch outside of step, "
        "and give what draws it as batches="
    )


def _reset(snapshot: Snapshot, reached: Reached) -> None:
    """Put all back, and let schedules stand still: many steps would lead beyond their end."""
    snapshot.restore()
    for schedule in reached.schedules:
        vars(schedule)["step"] = _stand_still  # an attribute like others, put back with them


def _stand_still(*_: Any, **__: Any) -> None:
    pass


def _measured(world: World, loop: Loop, seconds: float, reset: Callable[[], None]) -> Part:
    """Run the variants of a loop in turns for a while; all ranks as often."""
    begun = time.monotonic()
    reset()
    ways = loop.variants()
    inner = variants.waits(ways["own"])
    if inner:  # a rank would wait in a half for one that fails there
        ways.pop("half", None)
    loop.keep_what_works(world, ways, "explain", reset)
    leads, sizes = _buckets(loop, ways["own"])
    plan = _plan(world, loop, ways, seconds)
    laps = _laps(plan, ways)
    order = variants.draw_order(world, "explain")
    turns: dict[str, list[float]] = defaultdict(list)
    for number in count(1):
        now = time.monotonic()
        if number % laps == 1 or laps == 1:
            reset()
        found = loop.time_in_turns(world, ways, plan, seed=order + number)
        for name, taken_s in found.items():
            turns[name] += taken_s
        took = time.monotonic() - now
        has_time = time.monotonic() + took - begun < seconds and len(turns["own"]) < MOST_TURNS
        if not world.control.settle_all("more", has_time or number < LEAST_LAPS, _first):
            break
    return Part(dict(turns), leads, sizes, inner, loop.num_steps, order, laps * plan.blocks)


def _laps(plan: Plan, ways: Mapping[str, Step]) -> int:
    """Return how many laps come between two restorations."""
    steps = sum(plan.full_steps if name == "full" else plan.steps for name in {*ways} - {"reduce"})
    return max(round(CHUNK_STEPS / (plan.blocks * steps)), 1)


def _buckets(loop: Loop, own: Step) -> tuple[list[float], list[int]]:
    """Return when each bucket is ready, and its bytes; nothing where several models have some."""
    if len(loop.models) != 1:
        return [], []
    return variants.bucket_leads(loop.models[0], own), bucket_bytes(loop.models[0])


def _first(of_ranks: list[Any]) -> Any:
    """Return rank 0's value, whose clock counts."""
    return of_ranks[0]


def _plan(world: World, loop: Loop, ways: Mapping[str, Step], seconds: float) -> Plan:
    """Agree on the steps of a turn, and on the turns between two restorations."""
    workers = loop.most_workers(world, "explain")
    found = loop.time_in_turns(world, ways, Plan(1, 1, workers), seed=0)  # one of each
    once = {name: found[name][0] for name in ways}
    return Plan(**world.control.settle_all("plan", once, partial(_planned, seconds, workers)))


def _planned(seconds: float, workers: int, of_ranks: list[dict[str, float]]) -> dict[str, int]:
    slowest = {name: max(each[name] for each in of_ranks) for name in of_ranks[0]}
    steps = min(max(round(LEAST_TURN_S / slowest["full"]), 1), MOST_STEPS)
    full_steps = Plan(1, steps, workers).full_steps
    block_s = steps * sum(slowest.values()) + (full_steps - steps) * slowest["full"]
    fitting = int(seconds / (LEAST_LAPS * block_s))
    blocks = next((each for each in (LAP, RUN) if each <= fitting), LEAST_BLOCKS)
    return {
        "blocks": blocks, "steps": steps, "workers": workers,
        "run": RUN if blocks > LEAST_BLOCKS else 1,
    }  # fmt: skip


def _concluded(met: Met, part: Part, took_s: float, out: str | Path | None) -> dict[str, Any]:
    """Judge on rank 0 what all ranks measured, show it there, and return it everywhere."""
    shown: list[Explanation] = []

    def judge(parts: list[dict[str, Any]]) -> dict[str, Any]:
        shown.append(made(met, [Part(**each) for each in parts], took_s))
        return shown[0].summary()

    control = met.world.control
    summary = control.settle_all("turns", vars(part), judge)
    for explanation in shown:
        text = "\n".join(lines(explanation, _keep(explanation, out)))
        print(text, flush=True)  # noqa: T201, what it is called for
    control.part()
    return dict(json.loads(json.dumps(summary)))  # as other ranks have it, also where there is none


def _keep(explanation: Explanation, out: str | Path | None) -> str:
    """Write the record and return where it is; a full disk must not end a training."""
    if out is None:
        return ""
    try:
        Path(out).write_text(json.dumps(explanation.to_dict(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        return f"not kept: {error}"
    return str(out)
