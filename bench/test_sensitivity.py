import pytest

from bench.harness import Harness
from bench.step_cases import measure_training


@pytest.mark.cases("sensitivity")
def test_sensitivity(
    harness: Harness,
    workload: str,
    bucket_cap_mb: int,
    local_batch: int,
    precision: str,
) -> None:
    """Which of bucket size, batch and precision matters most, over all 27 settings?"""
    measure_training(
        harness,
        workload=workload,
        bucket_cap_mb=bucket_cap_mb,
        local_batch=local_batch,
        precision=precision,
    )
