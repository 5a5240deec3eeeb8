import pytest

from lockstep import workloads
from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import build_step


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
    model = workloads.make(workload)
    with build_step(
        lockstep,
        model,
        local_batch,
        precision=precision,
        accumulation=accumulation,
        no_sync=no_sync,
    ) as step:
        lockstep.measure(step, samples=step.samples, ddp=step.ddp, unit=model.sample_unit)
