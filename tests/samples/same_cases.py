"""One training case four times over in a launch, with and without the warm-up before the first."""

import pytest

from lockstep import workloads
from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import build_step

pytestmark = [pytest.mark.cases("weak"), pytest.mark.parametrize("turn", range(4))]


def test_warmed(lockstep, workload, precision, local_batch, turn):
    with build_step(lockstep, workloads.make(workload), local_batch, precision=precision) as step:
        lockstep.measure(step, samples=step.samples, ddp=step.ddp)


def test_cold(monkeypatch, lockstep, workload, precision, local_batch, turn):
    monkeypatch.setattr(Harness, "warm_up", lambda self, step: None)
    with build_step(lockstep, workloads.make(workload), local_batch, precision=precision) as step:
        lockstep.measure(step, samples=step.samples, ddp=step.ddp)
