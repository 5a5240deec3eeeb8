"""`lockstep.explain`: why a user's own training step does not scale, asked inside their script.

For about a minute the ranks run variants of the step in turns (`lockstep.measure.causes.division`),
and rank 0 judges them. Everything that the step changes is restored after every few turns and at
the end, so that training continues as before.

Ranks exchange messages through the store of the script's process group, not by collectives: if one
rank alone calls `explain`, the others are in an all-reduce of their training, which would take the
messages for gradients.
"""

import json
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lockstep.core.files import MIB
from lockstep.core.formats import about, counted, listed, number
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

# Ranks wait so long for each other, since one may still validate or write a checkpoint.
PATIENCE_S = 300.0
# Launchers' variables with the number of ranks.
SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_meetings = count()


def meet(device: torch.device, problem: str) -> tuple[World, tuple[str, ...]]:
    """Wait for all ranks of the script; return them and their hosts.

    `problem` says why this rank cannot measure; empty if it can.
    """
    control = _control()

    def describe(late: str, patience_s: float) -> str:
        return (
            f"{late} did not call lockstep.explain within {patience_s:g} s; call lockstep.explain "
            "on every rank"
        )

    try:
        ranks = control.exchange("explain", {"host": hostname(), "problem": problem})
    except LostError as error:
        raise RuntimeError(describe("rank 0", 3 * PATIENCE_S)) from error
    refuse_silent(ranks, lambda late: describe(late, PATIENCE_S))
    for rank, answer in enumerate(ranks):
        if answer["problem"]:
            where = f"rank {rank} on {answer['host']}: " if len(ranks) > 1 else ""
            raise ValueError(f"{where}{answer['problem']}")
    hosts = tuple(answer["host"] for answer in ranks)
    on_host = [rank for rank, host in enumerate(hosts) if host == hosts[control.rank]]
    world = World(
        rank=control.rank, local_rank=on_host.index(control.rank), world_size=control.world_size,
        ranks_per_node=max(hosts.count(host) for host in hosts), device=device,
        backend=torch.distributed.get_backend() if has_group() else "none",
        threads_per_rank=torch.get_num_threads(), control=control, group_timeout_s=PATIENCE_S,
    )  # fmt: skip
    return world, hosts


def _control() -> Control:
    """Return the control plane of the script's ranks: of one rank without a process group."""
    from torch import distributed

    if not has_group():
        others = next((os.environ[name] for name in SIZES if name in os.environ), "1")
        if others != "1":
            raise ValueError(
                f"the launcher started {others} ranks, but there is no process group; call "
                "lockstep.explain after init_process_group"
            )
        return Control(distributed.HashStore(), 0, 1, PATIENCE_S)
    # torch has no public name for the store of the default process group.
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    own = distributed.PrefixStore(f"lockstep/explain/{next(_meetings)}", store)
    return Control(own, distributed.get_rank(), distributed.get_world_size(), PATIENCE_S)


SCHEMA = 1
NEXT: dict[Kind, str] = NEXT_OWN | {
    "own": "pass batches=loader to lockstep.explain to also see the step's fixed cost and waits "
    "for input, or profile one rank",
    "open": (
        "call lockstep.explain(..., seconds=300) to measure longer; pass batches=loader as well to "
        "see waits for input"
    ),
}


@dataclass(frozen=True)
class Part:
    """What one rank measured, in JSON values."""

    turns: dict[str, list[float]]  # variant -> seconds of a step in each turn, shape (num_turns,)
    # How long before the end of the backward each bucket is ready, and its bytes, in the order in
    # which buckets are reduced.
    bucket_lead_s: list[float] = field(default_factory=list)
    bucket_bytes: list[int] = field(default_factory=list)
    collectives: int = 0  # in a step without gradient synchronisation, see `variants.waits`
    num_steps: int = 0  # steps run in all
    order_seed: int = 0  # of the order of the turns; drawn anew in each run
    again: int | None = None  # turns from one restoration of the step's state to the next
    drawn: list[str] = field(default_factory=list)  # iterators that the step may have advanced
    samples: int | None = None  # of one step, if known


def make_record(
    world: World, hosts: tuple[str, ...], parts: Sequence[Part], seconds: float
) -> tuple[Bound, dict[str, Any]]:
    """Return the bottleneck that follows from all ranks' parts, and the record of the answer.

    `samples_per_s` counts the samples of all ranks in the whole step; None if unknown.
    `rank_variant_s` is variant -> seconds of a step in each turn, shape (num_ranks, num_turns).
    """
    names = [name for name in parts[0].turns if all(name in part.turns for part in parts)]
    turns = {name: [part.turns[name] for part in parts] for name in names}
    buckets = None
    if parts[0].bucket_lead_s and len(parts) > 1:
        # A bucket starts when the last rank has it ready: the others wait.
        lead_s = [min(leads) for leads in zip(*(part.bucket_lead_s for part in parts), strict=True)]
        buckets = Buckets(parts[0].bucket_bytes, lead_s)
    arrays = {name: np.array(seconds_) for name, seconds_ in turns.items()}
    bound = judge([arrays], buckets=buckets, again=parts[0].again)
    notes: list[dict[str, Any]] = []
    if len(parts) == 1:
        notes.append({"kind": "alone", "names": [], "count": 0})
    if drawn := sorted({name for part in parts for name in part.drawn}):
        notes.append({"kind": "drawn", "names": drawn, "count": 0})
    collectives = max(part.collectives for part in parts)
    if collectives and len(parts) > 1:
        notes.append({"kind": "collectives", "names": [], "count": collectives})
        bound = bound.without_causes()
    samples = [part.samples for part in parts if part.samples is not None]
    device = world.device
    return bound, {
        "schema": SCHEMA, "lockstep": lockstep_version(), "torch": torch.__version__,
        "bound": asdict(bound), "notes": notes, "hosts": hosts,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "num_steps": parts[0].num_steps, "seconds": seconds, "order_seed": parts[0].order_seed,
        "again": parts[0].again,
        "samples_per_s": sum(samples) / bound.step_s if len(samples) == len(parts) else None,
        "rank_variant_s": turns,
    }  # fmt: skip


def lines(bound: Bound, record: Mapping[str, Any], kept: str) -> list[str]:
    """Return the card as lines; `kept` names the record's file, or says why there is none."""
    hosts = counted(len(set(record["hosts"])), "host")
    ranks = counted(len(record["hosts"]), "rank")
    rate, kinds = record["samples_per_s"], {note["kind"] for note in record["notes"]}
    speed = "" if rate is None else f", {number(rate)} samples/s"
    exception = "; iterators were not restored (see the note below)" if "drawn" in kinds else ""
    steps = counted(record["num_steps"], "step")
    text = [
        f"lockstep: {ranks} on {hosts} ({record['device']}){speed}; ran {steps} in "
        f"{number(record['seconds'])} s and restored the training state{exception}"
    ]
    if "collectives" in kinds:
        text.append(
            "No cause is shown, because ranks wait for each other even in steps without gradient "
            f"synchronisation. A step takes {number(bound.step_s * MILLI)} ms."
        )
    else:
        text += card(bound, record["hosts"], NEXT)
    for note in record["notes"]:
        collectives = counted(note["count"], "collective")
        sentence = {
            "alone": (
                "the script ran as one rank, which does not communicate; start more ranks with "
                "torchrun or srun to measure communication"
            ),
            "drawn": f"the step may have advanced the iterator(s) {listed(note['names'])}, which "
            "cannot be restored; use a step that always takes the same batch, or pass "
            "batches=loader",
            "collectives": f"each step calls {collectives} that do not "
            "reduce its gradients, for example in SyncBatchNorm or to all-reduce "
            "the loss; pass a step without such collectives to lockstep.explain, "
            "and use no_sync() instead of setting require_backward_grad_sync",
        }[note["kind"]]
        text.append(f"note      {sentence}")
    return text + ([f"record    {kept}"] if kept else [])


OUT = "lockstep-explain.json"
SECONDS = 60.0
# In a shorter turn the barrier before it takes a visible share.
LEAST_TURN_S = 0.02
MOST_STEPS = 20
# Steps between two restorations: more would let the unsynchronised weights drift away from those
# of the training, fewer would not show the end of a slow beginning.
CHUNK_STEPS = 200
LEAST_LAPS, LEAST_BLOCKS = 3, 2
# More turns of each variant do not narrow intervals noticeably.
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
    """Print where the time of your own training step goes, and leave the training as it was.

    Call it on every rank, under torchrun or srun, after a few steps of training. Rank 0 prints a
    card of about twelve lines and writes a record. Parameters, gradients, optimizers, schedulers,
    scalers, random states and whatever else is reached from the step are restored; learning rates
    stay constant meanwhile. What the step prints or writes stays printed and written.

    Args:
        step: One optimizer update on this rank. It takes no argument, or a batch of `batches`.
        model: The model in `DistributedDataParallel`, if it is not reached from the step.
        batches: A DataLoader, or another iterable that can be repeated, to measure also how long
            the step waits for its input. Without it the step uses a batch of its own.
        seconds: About how long to measure.
        samples: This rank's samples in one step (its local batch), for the throughput.
        out: The record's file, written by rank 0; None for no file.

    Returns:
        The record, without the seconds of single turns, equal on all ranks.

    Raises:
        ValueError: The arguments cannot be measured; all ranks raise it.
        RuntimeError: A rank did not call it.
    """
    reached = reach(step=step, model=model, batches=batches)
    snapshot = Snapshot(reached, find_ranks_per_node(_world_size()))
    models = [model for model in reached.models if isinstance(model, DistributedDataParallel)]
    begun, device = time.monotonic(), _device(models, reached.models)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            loop = Loop(step, models, batches, can_halve=not reached.compiled)
            problem = _problem(loop, seconds, samples, out)
            if snapshot.left and not problem:
                objects = ", ".join(
                    f"{name} ({size / MIB:.0f} MiB)" for name, size in snapshot.left.items()
                )
                problem = (
                    "these objects, to which the step refers, are too large to copy and restore: "
                    f"{objects}; draw batches outside of step, and pass the loader as batches="
                )
            world, hosts = meet(device, problem)
            part = _measure(world, loop, seconds, lambda: _reset(snapshot, reached))
    finally:
        snapshot.restore()
    part = replace(part, drawn=reached.iterators, samples=samples)
    took_s = time.monotonic() - begun

    def show(parts: list[dict[str, Any]]) -> dict[str, Any]:  # on rank 0
        bound, record = make_record(world, hosts, [Part(**part) for part in parts], took_s)
        kept = ""
        if out is not None:
            try:
                Path(out).write_text(f"{json.dumps(record, indent=1)}\n", encoding="utf-8")
                kept = str(out)
            except OSError as error:  # a full disk must not end a training
                kept = f"not kept: {error}"
        print("\n".join(lines(bound, record, kept)), flush=True)  # noqa: T201, the output asked for
        return {name: value for name, value in record.items() if name != "rank_variant_s"}

    summary = world.control.settle_all("turns", vars(part), show)
    world.control.leave_together()
    return dict(json.loads(json.dumps(summary)))  # JSON values, as the other ranks receive


def _device(in_ddp: Sequence[nn.Module], models: Sequence[nn.Module]) -> torch.device:
    """Return the device of the trained model, or else any GPU that a model uses."""
    trained, every = ([p.device for m in ms for p in m.parameters()] for ms in (in_ddp, models))
    gpus = [device for device in every if device.type == "cuda"]
    return next(iter([*trained, *gpus, torch.device("cpu")]))


def _problem(loop: Loop, seconds: Any, samples: Any, out: str | Path | None) -> str:
    """Draw the first batch; return why this rank cannot measure, or an empty text."""
    is_time = isinstance(seconds, int | float) and 0 < seconds < math.inf
    is_alone = _world_size() == 1
    if not callable(loop.step):
        return (
            f"step is of type {type(loop.step).__name__}, but must be a function that runs one "
            "training step"
        )
    if not is_time:
        return f"seconds={seconds!r} is not a number above 0; give the number of seconds to measure"
    if samples is not None and (type(samples) is not int or samples < 1):
        return (
            f"samples={samples!r} is not a whole number of 1 or more; give this rank's samples "
            "in one step"
        )
    if not is_alone and not loop.models:
        return (
            "lockstep.explain finds no DistributedDataParallel model in step; pass the model as "
            "model=, or wrap it in DistributedDataParallel, because other strategies cannot be "
            "explained yet"
        )
    # The first step with static_graph=True records the graph, which no snapshot can undo.
    if any(
        ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued  # noqa: SLF001
        for ddp in loop.models
    ):
        return (
            "the model with static_graph=True has not run a step yet; run one step before you call "
            "lockstep.explain"
        )
    if out is not None and not Path(out).absolute().parent.is_dir():
        return f"the folder of out={str(out)!r} does not exist; create it, or choose another file"
    problem = loop.problem()
    if samples and not problem and (items := seen_items(loop.step, loop.first, samples)):
        problem = (
            f"samples={samples}, but each tensor of a batch holds {items} items; set samples to "
            "the number of samples in a batch"
        )
    return problem


def _world_size() -> int:
    return torch.distributed.get_world_size() if has_group() else 1


def _reset(snapshot: Snapshot, reached: Reached) -> None:
    """Restore everything, and stop learning-rate schedules, which would run past their end."""
    snapshot.restore()
    for schedule in reached.schedules:
        vars(schedule)["step"] = lambda *_, **__: None  # restored like other attributes


def _measure(world: World, loop: Loop, seconds: float, reset: Callable[[], None]) -> Part:
    """Run the variants of a loop in turns for about `seconds`, equally often on all ranks."""
    begun = time.monotonic()
    reset()
    ways = loop.variants()
    inner = variants.waits(ways["own"])
    if inner:  # ranks would wait in these collectives for a rank whose half batch fails
        ways.pop("half", None)
    loop.keep_what_works(world, ways, "explain", reset)
    leads, sizes = list[float](), list[int]()
    if len(loop.models) == 1:
        ddp = loop.models[0]
        leads, sizes = variants.bucket_leads(ddp, ways["own"]), bucket_bytes(ddp)
    # One turn of each variant determines the steps of a turn and the turns between restorations.
    workers = loop.most_workers(world, "explain")
    first = loop.time_in_turns(world, ways, Plan(1, 1, workers), seed=0)
    once = {name: first[name][0] for name in ways}

    def make_plan(of_ranks: list[dict[str, float]]) -> dict[str, int]:  # on rank 0
        plan, expected_s = _plan(seconds, workers, of_ranks)
        duration = about(expected_s)
        text = f"lockstep: explain measures the step for {duration}"
        print(text, file=sys.stderr, flush=True)  # noqa: T201, else silence
        return plan

    plan = Plan(**world.control.settle_all("plan", once, make_plan))
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


def _plan(
    seconds: float, workers: int, of_ranks: list[dict[str, float]]
) -> tuple[dict[str, int], float]:
    """Return the turns of a lap, and the seconds that all laps will take."""
    slowest = {name: max(rank[name] for rank in of_ranks) for name in of_ranks[0]}
    steps = min(max(round(LEAST_TURN_S / slowest["full"]), 1), MOST_STEPS)
    full_steps = Plan(1, steps, workers).full_steps
    block_s = steps * sum(slowest.values()) + (full_steps - steps) * slowest["full"]
    fitting = int(seconds / (LEAST_LAPS * block_s))
    blocks = next((least for least in (LAP, RUN) if least <= fitting), LEAST_BLOCKS)
    run = RUN if blocks > LEAST_BLOCKS else 1
    expected_s = max(seconds, LEAST_LAPS * blocks * block_s)
    return {"blocks": blocks, "steps": steps, "workers": workers, "run": run}, expected_s
