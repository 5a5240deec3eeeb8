import pytest

from lockstep import workloads
from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import build_step


@pytest.mark.cases("precision")
def test_precision(
    lockstep: Harness,
    workload: str,
    precision: str,
    local_batch: int,
) -> None:
    """What does a lower precision gain, and does the step still train?"""
    model = workloads.make(workload)
    with build_step(lockstep, model, local_batch, precision=precision) as step:
        lockstep.measure(step, samples=step.samples, ddp=step.ddp, unit=model.sample_unit)
