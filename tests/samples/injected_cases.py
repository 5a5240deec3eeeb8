"""Six cases of one model whose own compute is a sleep; at two ranks five take 20 ms longer.

Each case says in its name where the time goes, so that what a report says of it can be judged. At
one rank nothing is put in: that is the baseline.
"""

import os
import time
from dataclasses import replace
from itertools import count

import pytest
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from lockstep.measure import train_step
from lockstep.measure.step_cases import measure_training
from lockstep.workloads import Workload
from lockstep.workloads.mlp import mlp

OWN_S, INJECTED_S = 0.04, 0.02
RANK = int(os.environ.get("RANK", "0"))
IS_ALONE = os.environ.get("WORLD_SIZE", "1") == "1"


def injected(scenario: str) -> Workload:
    """Return a small perceptron whose loss takes its time, and longer as the scenario says."""
    plain, steps = mlp(width=64, depth=2), count()

    def loss(outputs, targets):
        time.sleep(OWN_S + _extra_s(scenario, next(steps)))
        return plain.loss(outputs, targets)

    return replace(plain, name=scenario, loss=loss)


def _extra_s(scenario: str, step: int) -> float:
    slow = {"straggler": RANK == 1, "in_turn": step % 2 == RANK, "compute": True}
    return INJECTED_S if slow.get(scenario) and not IS_ALONE else 0.0


def _communicate_slowly(monkeypatch, ranks):
    """Let the gradients of some ranks leave later; a step without synchronisation sends none."""

    def hook(state, bucket):
        time.sleep(INJECTED_S)
        return allreduce_hook(state, bucket)

    def wrapped(model, **options):
        ddp = DistributedDataParallel(model, **options)
        if RANK in ranks and not IS_ALONE:
            ddp.register_comm_hook(None, hook)
        return ddp

    monkeypatch.setattr(train_step, "DistributedDataParallel", wrapped)


def _measure(lockstep, scenario, precision, local_batch):
    workload = f"injected_cases:injected:scenario={scenario}"
    measure_training(lockstep, workload=workload, precision=precision, local_batch=local_batch)


@pytest.mark.cases("weak")
def test_nothing(lockstep, workload, precision, local_batch):
    _measure(lockstep, "nothing", precision, local_batch)


@pytest.mark.cases("weak")
def test_straggler(lockstep, workload, precision, local_batch):
    _measure(lockstep, "straggler", precision, local_batch)


@pytest.mark.cases("weak")
def test_in_turn(lockstep, workload, precision, local_batch):
    _measure(lockstep, "in_turn", precision, local_batch)


@pytest.mark.cases("weak")
def test_hook_on_all(monkeypatch, lockstep, workload, precision, local_batch):
    _communicate_slowly(monkeypatch, (0, 1))
    _measure(lockstep, "hook_on_all", precision, local_batch)


@pytest.mark.cases("weak")
def test_hook_on_one(monkeypatch, lockstep, workload, precision, local_batch):
    _communicate_slowly(monkeypatch, (1,))
    _measure(lockstep, "hook_on_one", precision, local_batch)


@pytest.mark.cases("weak")
def test_compute(lockstep, workload, precision, local_batch):
    _measure(lockstep, "compute", precision, local_batch)
