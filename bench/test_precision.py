import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_training


@pytest.mark.cases("precision")
def test_precision(
    lockstep: Harness,
    workload: str,
    precision: str,
    local_batch: int,
) -> None:
    """What does a lower precision gain, and does the step still train?"""
    measure_training(
        lockstep,
        workload=workload,
        precision=precision,
        local_batch=local_batch,
    )
