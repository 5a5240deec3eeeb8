"""`lockstep.explain`: why a user's own training step does not scale, asked where it runs.

For about a minute the ranks run variants of the step in turns (`lockstep.measure.causes.division`),
agree on how many through the store, and rank 0 judges them. Whatever the step changes is put back
after every few turns and at the end, so training goes on as if nobody had asked.

Ranks meet through the store of the script's process group, not by a collective: where one rank
alone explains its step, the others are in an all-reduce of their training, which would take the
ranks' messages for gradients.
"""

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.core.files import MIB
from lockstep.core.formats import counted, listed, number
from lockstep.core.processes import hostname
from lockstep.machine.provenance import lockstep_version
from lockstep.measure.causes.bound import Bound, Buckets, Kind, judge
from lockstep.measure.causes.card import MILLI, NEXT_OWN, card
from lockstep.measure.causes.division import LAP
from lockstep.measure.loop_variants import Loop
from lockstep.measure.reach import Reached, Snapshot, reach
from lockstep.measure.step import variants
from lockstep.measure.step.train_step import bucket_bytes
from lockstep.measure.step.variants import RUN, Plan
from lockstep.ranks.control import Control, LostError, refuse_silent
from lockstep.ranks.placement import find_ranks_per_node
from lockstep.ranks.process_group import World, has_group
from lockstep.workloads.trees import seen_items

# A rank may come later than the others by what a checkpoint or a validation takes.
PATIENCE_S = 300.0
# Launcher's variables that say how many ranks there should be.
SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_meetings = count()


def meet(device: torch.device, problem: str) -> tuple[World, tuple[str, ...]]:
    """Wait for all ranks of the script; return them and their hosts.

    `problem` says why this rank cannot measure; empty where it can.

    Raises:
        ValueError: This rank, or another one, cannot.
        RuntimeError: A rank did not come.
    """
    control = _control()
    late, todo = "did not come to lockstep.explain within", "call it on every rank, not on one"
    try:
        ranks = control.exchange("explain", {"host": hostname(), "problem": problem})
    except LostError as error:
        raise RuntimeError(f"rank 0 {late} {3 * PATIENCE_S:g} s; {todo}") from error
    refuse_silent(ranks, f"{late} {PATIENCE_S:g} s; {todo}")
    for rank, each in enumerate(ranks):
        if each["problem"]:
            where = f"rank {rank} on {each['host']}: " if len(ranks) > 1 else ""
            raise ValueError(f"{where}{each['problem']}")
    hosts = tuple(each["host"] for each in ranks)
    on_host = [rank for rank, host in enumerate(hosts) if host == hosts[control.rank]]
    world = World(
        rank=control.rank,
        local_rank=on_host.index(control.rank),
        world_size=control.world_size,
        ranks_per_node=max(hosts.count(host) for host in hosts),
        device=device,
        backend=torch.distributed.get_backend() if has_group() else "none",
        threads_per_rank=torch.get_num_threads(),
        control=control,
        group_timeout_s=PATIENCE_S,
    )
    return world, hosts


def _control() -> Control:
    """Return what the ranks exchange through; a process without a group is alone."""
    from torch import distributed

    if not has_group():
        others = next((os.environ[name] for name in SIZES if name in os.environ), "1")
        if others != "1":
            raise ValueError(
                f"the launcher started {others} ranks, but there is no process group; call "
                "lockstep.explain after init_process_group"
            )
        return Control(distributed.HashStore(), 0, 1, PATIENCE_S)
    # torch has no public name for the store that its ranks have met through.
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    own = distributed.PrefixStore(f"lockstep/explain/{next(_meetings)}", store)
    return Control(own, distributed.get_rank(), distributed.get_world_size(), PATIENCE_S)


SCHEMA = 1
NoteKind = Literal["alone", "drawn", "collectives"]
# Then it is asked again.
NEXT: dict[Kind, str] = NEXT_OWN | {
    "own": "batches=loader, to see its fixed cost and its input as well; or profile one rank",
    "open": "explain(..., seconds=300), and batches=loader to see the input as well",
}


@dataclass(frozen=True)
class Part:
    """What one rank measured; JSON can hold all of it.

    Attributes:
        turns: Seconds of a step in each turn, shape (num_turns,), by variant.
        bucket_lead_s: How long before the end of the backward each bucket is ready.
        bucket_bytes: Of each bucket, in the order in which they are reduced.
        collectives: Of a step that synchronises no gradients, see `variants.waits`.
        num_steps: Taken in all.
        order_seed: Of the order of the turns; drawn anew in each run.
        again: Turns after which the step was put back as it was.
        drawn: Names of iterators that the step may have drawn from.
        samples: In one step, where they are known.
    """

    turns: dict[str, list[float]]
    bucket_lead_s: list[float] = field(default_factory=list)
    bucket_bytes: list[int] = field(default_factory=list)
    collectives: int = 0
    num_steps: int = 0
    order_seed: int = 0
    again: int | None = None
    drawn: list[str] = field(default_factory=list)
    samples: int | None = None


@dataclass(frozen=True)
class Note:
    """What a reader should know beside what bounds the step.

    Attributes:
        kind: `alone`: there is one rank, which communicates with nobody. `drawn`: the step may have
            drawn from iterators, which cannot be put back. `collectives`: ranks wait for each other
            also in a step that synchronises no gradients, so no causes are told.
        names: Of variables.
        count: Of collectives.
    """

    kind: NoteKind
    names: tuple[str, ...] = ()
    count: int = 0


@dataclass(frozen=True)
class Explanation:
    """What was found.

    Attributes:
        device: Name of rank 0's device.
        seconds: That it took.
        order_seed: Of the order of the turns, drawn anew in each run; and `again`, after how many
            turns the step was put back as it was.
        samples_per_s: Of all ranks in the whole step, where the samples are known.
        rank_variant_s: Seconds of a step in each turn, shape (num_ranks, num_turns), by variant.
    """

    bound: Bound
    notes: tuple[Note, ...]
    hosts: tuple[str, ...]
    device: str
    num_steps: int
    seconds: float
    order_seed: int
    again: int | None
    samples_per_s: float | None
    rank_variant_s: dict[str, list[list[float]]]

    def summary(self) -> dict[str, Any]:
        """Return the record without the seconds of single turns."""
        record = self.to_dict()
        del record["rank_variant_s"]
        return record

    def to_dict(self) -> dict[str, Any]:
        """Return the whole record."""
        versions = {"lockstep": lockstep_version(), "torch": torch.__version__}
        return {"schema": SCHEMA, **versions, **asdict(self)}


def make_explanation(
    world: World, hosts: tuple[str, ...], parts: Sequence[Part], seconds: float
) -> Explanation:
    """Return what all ranks' parts come to."""
    names = [name for name in parts[0].turns if all(name in part.turns for part in parts)]
    turns = {name: [part.turns[name] for part in parts] for name in names}
    buckets = None
    if parts[0].bucket_lead_s and len(parts) > 1:
        # Each is as late as on the rank where it is latest: the others wait.
        lead_s = [min(leads) for leads in zip(*(part.bucket_lead_s for part in parts), strict=True)]
        buckets = Buckets(parts[0].bucket_bytes, lead_s)
    arrays = {name: np.array(each) for name, each in turns.items()}
    bound = judge([arrays], buckets=buckets, again=parts[0].again)
    notes = []
    if len(parts) == 1:
        notes.append(Note("alone"))
    if drawn := sorted({name for part in parts for name in part.drawn}):
        notes.append(Note("drawn", tuple(drawn)))
    collectives = max(part.collectives for part in parts)
    if collectives and len(parts) > 1:
        notes.append(Note("collectives", count=collectives))
        bound = replace(
            bound, kind="open", compute_s=bound.step_s, shares=(), gains=(), slow=None, late=None,
            exposed_bucket_s=(), rare=None, drift=None,
        )  # fmt: skip
    samples = [part.samples for part in parts if part.samples is not None]
    device = world.device
    return Explanation(
        bound=bound,
        notes=tuple(notes),
        hosts=hosts,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        num_steps=parts[0].num_steps,
        seconds=seconds,
        order_seed=parts[0].order_seed,
        again=parts[0].again,
        samples_per_s=sum(samples) / bound.step_s if len(samples) == len(parts) else None,
        rank_variant_s=turns,
    )


def lines(explanation: Explanation, kept: str) -> list[str]:
    """Return the card; `kept` says where the record is, or why nowhere, if one was asked for."""
    hosts = counted(len(set(explanation.hosts)), "host")
    ranks = counted(len(explanation.hosts), "rank")
    rate, kinds = explanation.samples_per_s, {note.kind for note in explanation.notes}
    speed = "" if rate is None else f", {number(rate)} samples/s"
    exception = " but for what the notes say" if "drawn" in kinds else ""
    text = [
        f"lockstep: {ranks} on {hosts} ({explanation.device}){speed}; "
        f"{counted(explanation.num_steps, 'step')} in {number(explanation.seconds)} s, put "
        f"back{exception}"
    ]
    if "collectives" in kinds:
        text.append(
            "No cause is shown: ranks wait for each other even where no gradient is synchronised. "
            f"A step takes {number(explanation.bound.step_s * MILLI)} ms."
        )
    else:
        text += card(explanation.bound, explanation.hosts, NEXT)
    for note in explanation.notes:
        sentence = {
            "alone": "one rank communicates with nobody; run it again under torchrun or srun "
            "with more ranks",
            "drawn": f"the step may have drawn from {listed(note.names)}, which cannot be put "
            "back; give a step that holds one batch, or batches=loader",
            "collectives": f"a step has {counted(note.count, 'collective')} beside its "
            "gradients', as SyncBatchNorm or an all_reduce of the loss: take them out to ask; and "
            "use no_sync() where the step sets require_backward_grad_sync",
        }[note.kind]
        text.append(f"note      {sentence}")
    return text + ([f"record    {kept}"] if kept else [])


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
            problem = _problem(loop, seconds, samples, out) or _too_large(snapshot.left)
            world, hosts = meet(device, problem)
            part = _measure(world, loop, seconds, lambda: _reset(snapshot, reached))
    finally:
        snapshot.restore()
    part = replace(part, drawn=reached.iterators, samples=samples)
    took_s, shown = time.monotonic() - begun, list[Explanation]()

    def judge_parts(parts: list[dict[str, Any]]) -> dict[str, Any]:  # on rank 0
        shown.append(make_explanation(world, hosts, [Part(**each) for each in parts], took_s))
        return shown[0].summary()

    summary = world.control.settle_all("turns", vars(part), judge_parts)
    for explanation in shown:
        kept = ""
        if out is not None:
            try:
                text = json.dumps(explanation.to_dict(), indent=1)
                Path(out).write_text(f"{text}\n", encoding="utf-8")
                kept = str(out)
            except OSError as error:  # a full disk must not end a training
                kept = f"not kept: {error}"
        print("\n".join(lines(explanation, kept)), flush=True)  # noqa: T201, what it is called for
    world.control.part()
    return dict(json.loads(json.dumps(summary)))  # as other ranks have it, also where there is none


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
    # DDP has yet to record its static graph, which no snapshot can take back.
    if any(
        ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued  # noqa: SLF001
        for ddp in loop.models
    ):
        return "a model with static_graph=True has taken no step; take one before you ask"
    if out is not None and not Path(out).absolute().parent.is_dir():
        return f"out={str(out)!r} lies in no folder that exists; make it, or choose another"
    problem = loop.problem()
    if samples and not problem and (items := seen_items(loop.step, loop.first, samples)):
        problem = f"samples={samples}, but the tensors of a batch hold {items} items each"
    return problem


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


def _measure(world: World, loop: Loop, seconds: float, reset: Callable[[], None]) -> Part:
    """Run the variants of a loop in turns for a while; all ranks as often."""
    begun = time.monotonic()
    reset()
    ways = loop.variants()
    inner = variants.waits(ways["own"])
    if inner:  # a rank would wait in a half for one that fails there
        ways.pop("half", None)
    loop.keep_what_works(world, ways, "explain", reset)
    leads, sizes = list[float](), list[int]()
    if len(loop.models) == 1:
        ddp = loop.models[0]
        leads, sizes = variants.bucket_leads(ddp, ways["own"]), bucket_bytes(ddp)
    # The steps of a turn, and the turns between two restorations, follow from one of each.
    workers = loop.most_workers(world, "explain")
    found = loop.time_in_turns(world, ways, Plan(1, 1, workers), seed=0)
    once = {name: found[name][0] for name in ways}
    plan = Plan(**world.control.settle_all("plan", once, partial(_plan, seconds, workers)))
    steps = sum(plan.full_steps if name == "full" else plan.steps for name in {*ways} - {"reduce"})
    laps = max(round(CHUNK_STEPS / (plan.blocks * steps)), 1)
    order = variants.draw_order(world, "explain")
    turns: dict[str, list[float]] = defaultdict(list)
    for lap in count(1):
        now = time.monotonic()
        if lap % laps == 1 or laps == 1:
            reset()
        for name, taken_s in loop.time_in_turns(world, ways, plan, seed=order + lap).items():
            turns[name] += taken_s
        took_s = time.monotonic() - now
        has_time = time.monotonic() + took_s - begun < seconds and len(turns["own"]) < MOST_TURNS
        goes_on = has_time or lap < LEAST_LAPS
        if not world.control.settle_all("more", goes_on, lambda of_ranks: of_ranks[0]):
            break
    return Part(dict(turns), leads, sizes, inner, loop.num_steps, order, laps * plan.blocks)


def _plan(seconds: float, workers: int, of_ranks: list[dict[str, float]]) -> dict[str, int]:
    slowest = {name: max(each[name] for each in of_ranks) for name in of_ranks[0]}
    steps = min(max(round(LEAST_TURN_S / slowest["full"]), 1), MOST_STEPS)
    full_steps = Plan(1, steps, workers).full_steps
    block_s = steps * sum(slowest.values()) + (full_steps - steps) * slowest["full"]
    fitting = int(seconds / (LEAST_LAPS * block_s))
    blocks = next((each for each in (LAP, RUN) if each <= fitting), LEAST_BLOCKS)
    run = RUN if blocks > LEAST_BLOCKS else 1
    return {"blocks": blocks, "steps": steps, "workers": workers, "run": run}
