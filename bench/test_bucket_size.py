import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_step


@pytest.mark.cases("bucket")
def test_bucket_size(lockstep: Harness) -> None:
    """Which gradient bucket size hides the most of the all-reduce?"""
    if lockstep.world.world_size == 1:
        pytest.skip("a bucket size needs two ranks; one exchanges no gradients")
    measure_step(lockstep, **lockstep.factors)
