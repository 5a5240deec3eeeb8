import pytest

from lockstep import workloads
from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import build_step


@pytest.mark.cases("sensitivity")
def test_sensitivity(
    lockstep: Harness,
    workload: str,
    bucket_cap_mb: int,
    local_batch: int,
    precision: str,
) -> None:
    """Which of bucket size, batch and precision matters most, over all 27 settings?"""
    model = workloads.make(workload)
    with build_step(
        lockstep, model, local_batch, precision=precision, bucket_cap_mb=bucket_cap_mb
    ) as step:
        lockstep.measure(step, samples=step.samples, ddp=step.ddp, unit=model.sample_unit)
