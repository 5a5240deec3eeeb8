"""Three cases, of which the middle one breaks on one rank as the environment says.

`FAULT` names the deed, `FAULT_PHASE` when it is done, `FAULT_RANK` the rank that does it, or `all`.
The file `injected` appears just before it. Every case sums its own number over the ranks before
and after the timed rounds, and fails where that is wrong.
"""

import faulthandler
import os
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

FAULT = os.environ["FAULT"]
PHASE = os.environ.get("FAULT_PHASE", "before")
RANK = os.environ.get("RANK", "0")
IS_FAULTY = os.environ.get("FAULT_RANK", "1") in (RANK, "all")
FOREVER_S = 600.0


def _sum(number, numel=4):
    tensor = torch.full((numel,), float(number))
    distributed.all_reduce(tensor)
    return float(tensor[0])


def _more():
    for _ in range(2):
        _sum(1)


def _raise():
    raise OSError("the disk of this rank is full")


def _deaf():
    """Take away both timers that end a case that hangs, and hang."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    _take_timer()


def _take_timer():
    """Take the one timer of faulthandler for another use, and hang."""
    faulthandler.dump_traceback_later(FOREVER_S)
    time.sleep(FOREVER_S)


def _no_descriptors():
    """Leave this process unable to open a connection, and fail."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    _raise()


def _fill():
    """Leave no byte on the file system of the results."""
    with Path(os.environ["FAULT_FILL"]).open("wb", buffering=0) as file:
        for size in (65536, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


DEEDS = {
    "deaf": _deaf,
    "descriptors": _no_descriptors,
    "fill": _fill,
    "more": _more,
    "exit": lambda: pytest.exit("no licence here"),
    "raise": _raise,
    "shape": lambda: _sum(1, numel=8),
    "timer": _take_timer,
    "sleep": lambda: time.sleep(FOREVER_S),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "store": lambda: os.kill(int(os.environ["FAULT_STORE"]), signal.SIGKILL),
}


def _break(phase):
    if IS_FAULTY and phase == PHASE and FAULT in DEEDS:
        Path("injected").touch()
        DEEDS[FAULT]()


def _agree(number, world_size):
    assert _sum(number) == number * world_size, f"ranks of other cases answer to {number}"


def _measure(lockstep, number):
    _agree(number, lockstep.world.world_size)
    rank_round_s = lockstep.time(lambda: _sum(number))
    lockstep.record(
        rank_round_s, workload="none", scaling=None, sample_unit="none", samples_per_step=1
    )
    _agree(number + 1, lockstep.world.world_size)


@pytest.fixture
def breaks():
    _break("setup")
    yield
    _break("teardown")


@pytest.mark.cases("weak")
def test_a_before(lockstep, workload, precision, local_batch):
    _measure(lockstep, 10)


@pytest.mark.cases("weak")
def test_b_breaks(breaks, lockstep, workload, precision, local_batch):
    _break("before")
    # The fault stands in the place of a rank's part in a sum, which no other rank would meet.
    if not (IS_FAULTY and FAULT == "shape"):
        _agree(20, lockstep.world.world_size)
    _measure(lockstep, 30)
    _break("after")


@pytest.mark.cases("weak")
def test_c_after(lockstep, workload, precision, local_batch):
    _measure(lockstep, 40)
