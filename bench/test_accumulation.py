import pytest

from lockstep.measure.harness import Harness
from lockstep.measure.step.step_cases import measure_step


@pytest.mark.cases("accumulation")
def test_accumulation(lockstep: Harness) -> None:
    """What does accumulation save, and what does forgetting no_sync() cost?"""
    measure_step(lockstep, **lockstep.factors)
