import pytest

from lockstep import workloads
from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import build_step


@pytest.mark.cases("weak")
def test_weak_scaling(
    lockstep: Harness,
    workload: str,
    precision: str,
    local_batch: int,
) -> None:
    """What does each added rank cost when every rank keeps its own batch?"""
    model = workloads.make(workload)
    with build_step(lockstep, model, local_batch, precision=precision) as step:
        lockstep.measure(step, samples=step.samples, ddp=step.ddp, unit=model.sample_unit)
