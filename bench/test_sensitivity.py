import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_step


@pytest.mark.cases("sensitivity")
def test_sensitivity(
    lockstep: Harness, workload: str, bucket_cap_mb: int, local_batch: int, precision: str
) -> None:
    """Which of bucket size, batch and precision matters most, over all 27 settings?"""
    measure_step(lockstep, workload, local_batch, precision=precision, bucket_cap_mb=bucket_cap_mb)
