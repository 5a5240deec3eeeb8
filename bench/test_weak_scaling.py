import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_step


@pytest.mark.cases("weak")
def test_weak_scaling(lockstep: Harness, workload: str, precision: str, local_batch: int) -> None:
    """What does each added rank cost when every rank keeps its own batch?"""
    measure_step(lockstep, workload, local_batch, precision=precision)
