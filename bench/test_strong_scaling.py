import pytest

from lockstep.core.sizes import local_batch_of
from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_step


@pytest.mark.cases("strong")
def test_strong_scaling(
    lockstep: Harness, workload: str, precision: str, global_batch: int
) -> None:
    """How much sooner is a step done when more ranks share one global batch?"""
    local_batch = local_batch_of(global_batch, lockstep.world.world_size)
    measure_step(lockstep, workload, local_batch, scaling="strong", precision=precision)
