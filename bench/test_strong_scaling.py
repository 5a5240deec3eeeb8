import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_training


@pytest.mark.cases("strong")
def test_strong_scaling(
    lockstep: Harness,
    workload: str,
    precision: str,
    global_batch: int,
) -> None:
    """How much sooner is a step done when more ranks share one global batch?"""
    measure_training(
        lockstep,
        workload=workload,
        precision=precision,
        global_batch=global_batch,
    )
