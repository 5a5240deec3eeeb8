"""One rank of the laboratory, `lab_rank.py PLAN.json OUT.jsonl`, started by `figures_lab.py`.

A plan is a list of runs. In a run the turns of the step's variants with faults and without them are
interleaved, so the truth, what the whole step takes longer with the faults, is measured beside what
is to find it, in turns of its own. Rank 0 writes one line a run.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch.distributed as dist
from lab_faults import Faults
from lab_step import Step

from lockstep.measure import timing
from lockstep.measure.step import variants
from lockstep.measure.step.train_step import bucket_bytes
from lockstep.ranks.process_group import World, join

WARM_UP = 6
TRACED_STEPS = 2
PRIORITY = 10
COMMUNICATION = ("gloo:", "c10d::")

Turn = tuple[str, str]


def main() -> None:
    """Run the plan."""
    plan, out = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    os.sched_setaffinity(0, {int(os.environ["RANK"])})
    world = join(device="cpu", threads_per_rank=1)
    faults = Faults(world.rank)
    steps: dict[Any, Step] = {}
    gc.disable()
    try:
        for number, run in enumerate(plan):
            kind = run["computes"], run.get("bucket_cap_mb")
            if kind not in steps:
                steps[kind] = _ready(Step(faults.delays, *kind))
            step = steps[kind]
            prefer(run["computes"] == "device")
            found = _gathered(world, measure(world, step, faults, run, number))
            if world.rank == 0:
                with out.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(run | _joined(found)) + "\n")
            gc.collect()
    finally:
        faults.close()
    dist.barrier()
    dist.destroy_process_group()


def prefer(over_all: bool) -> None:
    """Let the threads of this rank run before whatever else the machine does, or as others do.

    A rank whose device computes needs little of its core, and that at once; one that computes
    itself must leave room for a neighbour.
    """
    policy, priority = (os.SCHED_FIFO, PRIORITY) if over_all else (os.SCHED_OTHER, 0)
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def _ready(step: Step) -> Step:
    for _ in range(WARM_UP):
        step.full()
    return step


def measure(
    world: World, step: Step, faults: Faults, run: dict[str, Any], number: int
) -> dict[str, Any]:
    """Return this rank's seconds by state and variant, and what a trace says."""
    each = actions(step, run["states"])
    states = run["faults"]
    seconds: dict[str, dict[str, list[float]]] = {state: {} for state in run["states"]}
    order = variants.turns(list(each), run["blocks"], seed=number)
    for turn in [*each, *order]:
        state, name = turn
        faults.set(states.get(state, {}))
        # A turn of `timing.time_turns`, without the collection of garbage that comes before many.
        taken_s, running_s = timing.time_turn(world, each[turn], 1)
        seconds[state].setdefault(name, []).append(taken_s)
        if name == "own":
            seconds[state].setdefault("running", []).append(running_s)
    timed = {  # the first turn of each is to warm up
        state: {name: values[1:] for name, values in found.items()}
        for state, found in seconds.items()
    }
    faults.set(states.get("fault", {}))
    leads = variants.bucket_leads(step.ddp, step.own)
    traced = trace(step) if run.get("trace") else {}
    faults.set({})
    return {"seconds": timed, "lead_s": leads, "bytes": bucket_bytes(step.ddp), "trace": traced}


def actions(step: Step, states: dict[str, list[str]]) -> dict[Turn, Callable[[], object]]:
    """Return what each turn runs, by state and variant."""
    known = variants.of_ddp(step.ddp, step.full) | {
        "resident": step.resident,
        "half": step.half,
        "own": step.own,
        "reduce": variants.reduce_buckets(step.ddp),
    }
    return {(state, name): known[name] for state, names in states.items() for name in names}


def trace(step: Step) -> dict[str, float]:
    """Return the shares of a few steps that formulas over a profiler's trace give.

    communication: time in collectives during which nothing is computed, over the step.
    idle: time in which neither runs.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(TRACED_STEPS):
            with record_function("lab:step"):
                step.full()
    events = [
        (event.name, event.time_range.start, event.time_range.end) for event in profiler.events()
    ]
    wholes = [(start, end) for name, start, end in events if name == "lab:step"]
    found = []
    for start, end in wholes:
        inside = [one for one in events if one[1] < end and one[2] > start]
        reduce = [one[1:] for one in inside if one[0].startswith(COMMUNICATION)]
        compute = [one[1:] for one in inside if one[0].startswith("aten::")]
        busy, both = _covered(compute, start, end), _covered([*compute, *reduce], start, end)
        found.append(((both - busy) / (end - start), 1 - both / (end - start)))
    return {"communication": fmean(a for a, _ in found), "idle": fmean(b for _, b in found)}


def _covered(spans: list[Any], start: float, end: float) -> float:
    """Return how much of a window the union of spans covers."""
    covered, at = 0.0, start
    for low, high in sorted(spans):
        low, high = max(low, at), min(high, end)
        if high > low:
            covered, at = covered + high - low, high
    return covered


def _gathered(world: World, own: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[Any] = [None] * world.world_size
    dist.all_gather_object(found, own)
    return found


def _joined(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all ranks found: seconds by state and variant, shape (num_ranks, num_turns)."""
    seconds = {
        state: {name: [rank["seconds"][state][name] for rank in ranks] for name in names}
        for state, names in ranks[0]["seconds"].items()
    }
    traced = {name: fmean(rank["trace"][name] for rank in ranks) for name in ranks[0]["trace"]}
    return {"seconds": seconds, "lead_s": ranks[0]["lead_s"], "bytes": ranks[0]["bytes"],
            "shares_of_trace": traced}  # fmt: skip


if __name__ == "__main__":
    main()
