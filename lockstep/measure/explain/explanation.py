"""`lockstep.explain`: why a user's own training step does not scale, asked where it runs.

For about a minute the ranks run variants of the step in turns (`lockstep.measure.causes.division`),
agree on how many through the store, and rank 0 judges them. Whatever the step changes is put back
after every few turns and at the end, so training goes on as if nobody had asked.

What `lockstep.explain` found: a record, and the card that rank 0 prints of it.

How the ranks of a user's own script meet: through the store of its process group.

Not by a collective: where one rank alone explains its step, the others are in an all-reduce of
their training, which would take the ranks' messages for gradients.
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
from lockstep.measure.explain.snapshot import Snapshot
from lockstep.measure.loop_variants import Loop, Step
from lockstep.measure.reach import Reached, reach
from lockstep.measure.step import variants
from lockstep.measure.step.train_step import bucket_bytes
from lockstep.measure.step.variants import RUN, Plan
from lockstep.ranks.control import Control, LostError, refuse_silent
from lockstep.ranks.placement import Placement, find_ranks_per_node
from lockstep.ranks.process_group import World, has_group
from lockstep.workloads.trees import seen_items

# A rank may come later than the others by what a checkpoint or a validation takes.
PATIENCE_S = 300.0
# Launcher's variables that say how many ranks there should be.
SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_meetings = count()


@dataclass(frozen=True)
class Met:
    """The ranks of a script."""

    world: World
    hosts: tuple[str, ...]


def meet(device: "torch.device", problem: str) -> Met:
    """Wait for all ranks of the script, and refuse on all of them what one cannot do.

    `problem` says why this rank cannot; empty where it can.

    Raises:
        ValueError: This rank, or another one, cannot.
        RuntimeError: A rank did not come.
    """
    import torch

    control = _control()
    try:
        told = control.exchange("explain", {"host": hostname(), "problem": problem})
    except LostError as error:
        raise RuntimeError(
            f"rank 0 did not come to lockstep.explain within {3 * PATIENCE_S:g} s; call it on "
            "every rank, not on one"
        ) from error
    _refuse(told)
    hosts = tuple(each["host"] for each in told)
    on_host = [rank for rank, host in enumerate(hosts) if host == hosts[control.rank]]
    place = Placement(
        rank=control.rank,
        local_rank=on_host.index(control.rank),
        world_size=control.world_size,
        ranks_per_node=max(hosts.count(host) for host in hosts),
    )
    world = World(
        **vars(place),
        device=device,
        backend=torch.distributed.get_backend() if has_group() else "none",
        threads_per_rank=torch.get_num_threads(),
        control=control,
        group_timeout_s=PATIENCE_S,
    )
    return Met(world, hosts)


def _control() -> Control:
    """Return what tells the ranks apart and each other; a process without a group is alone."""
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


def _refuse(told: list[Any]) -> None:
    """Refuse what one rank cannot do.

    Raises:
        ValueError: A rank has a problem.
        RankError: A rank did not come.
    """
    refuse_silent(
        told,
        f"did not come to lockstep.explain within {PATIENCE_S:g} s; call it on every rank, not on "
        "one",
    )
    for rank, each in enumerate(told):
        if each["problem"]:
            where = f"rank {rank} on {each['host']}: " if len(told) > 1 else ""
            raise ValueError(f"{where}{each['problem']}")


SCHEMA = 1
NoteKind = Literal["alone", "drawn", "collectives"]
LOST = {"drawn"}
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
        found = {"schema": SCHEMA, "lockstep": lockstep_version(), "torch": torch.__version__}
        return found | {name: value for name, value in asdict(self).items() if name != TURNS}

    def to_dict(self) -> dict[str, Any]:
        """Return the whole record."""
        return self.summary() | {TURNS: self.rank_variant_s}


TURNS = "rank_variant_s"


def make_explanation(met: Met, parts: Sequence[Part], seconds: float) -> Explanation:
    """Return what all ranks' parts come to."""
    names = [name for name in parts[0].turns if all(name in part.turns for part in parts)]
    turns = {name: [part.turns[name] for part in parts] for name in names}
    arrays = {name: np.array(each) for name, each in turns.items()}
    bound = judge([arrays], buckets=_bucket_record(parts), again=parts[0].again)
    notes = _notes(parts)
    if any(note.kind == "collectives" for note in notes):
        bound = replace(
            bound, kind="open", compute_s=bound.step_s, shares=(), gains=(), slow=None, late=None,
            exposed_bucket_s=(), rare=None, drift=None,
        )  # fmt: skip
    samples = [part.samples for part in parts if part.samples is not None]
    is_known = len(samples) == len(parts)
    return Explanation(
        bound=bound,
        notes=tuple(notes),
        hosts=met.hosts,
        device=_device_name(met.world.device),
        num_steps=parts[0].num_steps,
        seconds=seconds,
        order_seed=parts[0].order_seed,
        again=parts[0].again,
        samples_per_s=sum(samples) / bound.step_s if is_known else None,
        rank_variant_s=turns,
    )


def _bucket_record(parts: Sequence[Part]) -> Buckets | None:
    """Return the buckets, each as late as on the rank where it is latest: the others wait."""
    if not parts[0].bucket_lead_s or len(parts) == 1:
        return None
    lead_s = [min(leads) for leads in zip(*(part.bucket_lead_s for part in parts), strict=True)]
    return Buckets(parts[0].bucket_bytes, lead_s)


def _notes(parts: Sequence[Part]) -> list[Note]:
    drawn = sorted({name for part in parts for name in part.drawn})
    most = max(part.collectives for part in parts)
    notes = {
        Note("alone"): len(parts) == 1,
        Note("drawn", tuple(drawn)): drawn,
        Note("collectives", count=most): most and len(parts) > 1,
    }
    return [note for note, holds in notes.items() if holds]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def lines(explanation: Explanation, kept: str) -> list[str]:
    """Return the card; `kept` says where the record is, or why nowhere, if one was asked for."""
    found = [_describe_measured(explanation), *_causes(explanation)]
    found += [f"note      {_note_text(note)}" for note in explanation.notes]
    return found + ([f"record    {kept}"] if kept else [])


def _causes(explanation: Explanation) -> list[str]:
    if any(note.kind == "collectives" for note in explanation.notes):
        step = f"{number(explanation.bound.step_s * MILLI)} ms"
        return [
            "No cause is told: ranks wait for each other even where no gradients are synchronised. "
            f"A step takes {step}."
        ]
    return card(explanation.bound, explanation.hosts, NEXT)


def _describe_measured(explanation: Explanation) -> str:
    hosts = counted(len(set(explanation.hosts)), "host")
    ranks = counted(len(explanation.hosts), "rank")
    steps = counted(explanation.num_steps, "step")
    rate = explanation.samples_per_s
    speed = "" if rate is None else f", {number(rate)} samples/s"
    return (
        f"lockstep: {ranks} on {hosts} ({explanation.device}){speed}; {steps} in "
        f"{number(explanation.seconds)} s, put back{_but(explanation.notes)}"
    )


def _but(notes: Sequence[Note]) -> str:
    return " but for what the notes say" if {note.kind for note in notes} & LOST else ""


def _note_text(note: Note) -> str:
    """Return a note as a sentence."""
    names = listed(note.names)
    return {
        "alone": "one rank communicates with nobody; ask again under torchrun or srun with more",
        "drawn": f"the step may have drawn from {names}, which cannot be put back; give a step "
        "that holds one batch, or batches=loader",
        "collectives": f"a step has {counted(note.count, 'collective')} beside its gradients', as "
        "SyncBatchNorm or an all_reduce of the loss: take them out to ask; and use no_sync() "
        "where the step sets require_backward_grad_sync",
    }[note.kind]


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
    for lap in count(1):
        now = time.monotonic()
        if lap % laps == 1 or laps == 1:
            reset()
        found = loop.time_in_turns(world, ways, plan, seed=order + lap)
        for name, taken_s in found.items():
            turns[name] += taken_s
        took = time.monotonic() - now
        has_time = time.monotonic() + took - begun < seconds and len(turns["own"]) < MOST_TURNS
        if not world.control.settle_all("more", has_time or lap < LEAST_LAPS, _first):
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
        shown.append(make_explanation(met, [Part(**each) for each in parts], took_s))
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
