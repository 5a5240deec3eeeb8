"""Cases that misbehave as a plan says: tests/chaos/fuzz_ranks.py names it in FAULT_PLAN.

Every phase of a case sums a tensor made of case, phase and rank over the ranks. A rank writes what
it got and fails where that is wrong, as the suite's own cases check their results.
"""

import atexit
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from fuzz_ranks_plan import END_S, PHASES, expected_number, own_number
from torch import distributed

from lockstep.launch import session

PLAN = json.loads(Path(os.environ["FAULT_PLAN"]).read_text(encoding="utf-8"))
FOREVER_S = 600.0
session.MIN_PATIENCE_S = END_S * PLAN["patience"]

if int(os.environ["RANK"]) in PLAN["stuck"]:
    atexit.register(time.sleep, FOREVER_S)


def _reduce(number):
    tensor = torch.full((4,), float(number))
    distributed.all_reduce(tensor)
    return tensor


def _reduce_twice(number):
    tensor = _reduce(number)
    _reduce(number)
    return tensor


def _broadcast(number):
    tensor = torch.full((4,), float(number))
    distributed.broadcast(tensor, src=0)
    return tensor


def _reduce_another_shape(number):
    tensor = torch.full((8,), float(number))
    distributed.all_reduce(tensor)
    return tensor


# What a rank does instead of its part, and what of it brings no number.
OTHER_PARTS = {
    "many": _reduce_twice,
    "few": lambda number: None,
    "broadcast": _broadcast,
    "shape": _reduce_another_shape,
}


def _raise():
    raise OSError("a fault of this rank alone")


def _interrupt():
    raise KeyboardInterrupt


def _signal(number):
    os.kill(os.getpid(), number)


DEEDS = {
    "raise": _raise,
    "skip": lambda: pytest.skip("this rank has no bf16"),
    "sleep": lambda: time.sleep(FOREVER_S),
    "exit-0": lambda: os._exit(0),
    "exit-3": lambda: os._exit(3),
    "sys-exit": lambda: sys.exit(0),
    "kill": lambda: _signal(signal.SIGKILL),
    "stop": lambda: _signal(signal.SIGSTOP),
    "interrupt": _interrupt,
    "store": lambda: os.kill(int(os.environ["FAULT_STORE_PID"]), signal.SIGKILL),
}


def _phase(case, name, world):
    """Do this rank's part of one phase of a case, or what the plan says instead."""
    here = [f["kind"] for f in PLAN["cases"][case] if (f["rank"], f["phase"]) == (world.rank, name)]
    part = _reduce
    for kind in here:
        if kind in DEEDS:
            DEEDS[kind]()
        part = OTHER_PARTS.get(kind, part)
    found = part(own_number(case, name, world.rank))
    if found is not None:
        _check(case, name, world, float(found[0]))


def _check(case, name, world, found):
    with Path(f"numbers-{world.rank}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"case": case, "phase": name, "number": found}) + "\n")
    expected = expected_number(case, name, world.world_size)
    if found != expected:
        raise RuntimeError(f"wrong number {found:g} in {name}, expected {expected:g}")


@pytest.fixture
def part(request, lockstep):
    """The phases of one case on this rank, of which set-up and teardown are its own."""
    case = int(request.node.originalname.removeprefix("test_"))
    _phase(case, PHASES[0], lockstep.world)
    yield lambda name: _phase(case, name, lockstep.world)
    _phase(case, PHASES[-1], lockstep.world)


def _measure(part, lockstep, workload, precision, local_batch):
    part("before")
    rank_round_s = lockstep.time(lambda: None)
    part("after")
    lockstep.record(
        rank_round_s, workload="none", scaling=None, sample_unit="samples", samples_per_step=1
    )


def _case(number):
    @pytest.mark.cases("weak")
    def case(part, lockstep, workload, precision, local_batch):
        _measure(part, lockstep, workload, precision, local_batch)

    return case


globals().update({f"test_{number}": _case(number) for number in range(len(PLAN["cases"]))})
