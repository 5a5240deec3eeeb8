import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_training


@pytest.mark.cases("bucket")
def test_bucket_size(
    lockstep: Harness,
    workload: str,
    precision: str,
    bucket_cap_mb: int,
    local_batch: int,
) -> None:
    """Which gradient bucket size hides the most of the all-reduce?"""
    measure_training(
        lockstep,
        workload=workload,
        precision=precision,
        bucket_cap_mb=bucket_cap_mb,
        local_batch=local_batch,
    )
