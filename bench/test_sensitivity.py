import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_training


@pytest.mark.cases("sensitivity")
def test_sensitivity(
    lockstep: Harness,
    workload: str,
    bucket_cap_mb: int,
    local_batch: int,
    precision: str,
) -> None:
    """Which of bucket size, batch and precision matters most, over all 27 settings?"""
    measure_training(
        lockstep,
        workload=workload,
        bucket_cap_mb=bucket_cap_mb,
        local_batch=local_batch,
        precision=precision,
    )
