import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_step


@pytest.mark.cases("bucket")
def test_bucket_size(
    lockstep: Harness, workload: str, precision: str, bucket_cap_mb: int, local_batch: int
) -> None:
    """Which gradient bucket size hides the most of the all-reduce?"""
    if lockstep.world.world_size == 1:
        pytest.skip("a bucket size needs two ranks; one exchanges no gradients")
    measure_step(lockstep, workload, local_batch, precision=precision, bucket_cap_mb=bucket_cap_mb)
