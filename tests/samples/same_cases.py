"""One training case four times over in a launch, with and without the warm-up before the first."""

import pytest

from lockstep.measure.batches import Rounds
from lockstep.measure.step.step_cases import measure_training

pytestmark = [pytest.mark.cases("weak"), pytest.mark.parametrize("turn", range(4))]


def test_warmed(lockstep, workload, precision, local_batch, turn):
    measure_training(lockstep, workload=workload, precision=precision, local_batch=local_batch)


def test_cold(monkeypatch, lockstep, workload, precision, local_batch, turn):
    monkeypatch.setattr(Rounds, "warm_up", lambda self, step: None)
    measure_training(lockstep, workload=workload, precision=precision, local_batch=local_batch)
