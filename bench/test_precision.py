import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_step


@pytest.mark.cases("precision")
def test_precision(lockstep: Harness, workload: str, precision: str, local_batch: int) -> None:
    """What does a lower precision gain, and does the step still train?"""
    measure_step(lockstep, workload, local_batch, precision=precision)
