import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_training


@pytest.mark.cases("accumulation")
def test_accumulation(
    lockstep: Harness,
    workload: str,
    precision: str,
    accumulation: int,
    no_sync: bool,
    local_batch: int,
) -> None:
    """What does accumulation save, and what does forgetting no_sync() cost?"""
    measure_training(
        lockstep,
        workload=workload,
        precision=precision,
        accumulation=accumulation,
        no_sync=no_sync,
        local_batch=local_batch,
    )
