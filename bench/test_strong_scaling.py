import pytest

from lockstep import workloads
from lockstep.core.sizes import local_batch_of
from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import build_step


@pytest.mark.cases("strong")
def test_strong_scaling(
    lockstep: Harness,
    workload: str,
    precision: str,
    global_batch: int,
) -> None:
    """How much sooner is a step done when more ranks share one global batch?"""
    model = workloads.make(workload)
    local_batch = local_batch_of(global_batch, lockstep.world.world_size)
    with build_step(lockstep, model, local_batch, precision=precision) as step:
        lockstep.measure(
            step, samples=step.samples, ddp=step.ddp, unit=model.sample_unit, scaling="strong"
        )
