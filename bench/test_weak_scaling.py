import pytest

from bench.harness import Harness
from bench.step_cases import measure_training


@pytest.mark.cases("weak")
def test_weak_scaling(
    harness: Harness,
    workload: str,
    precision: str,
    local_batch: int,
) -> None:
    """What does each added rank cost when every rank keeps its own batch?"""
    measure_training(
        harness,
        workload=workload,
        precision=precision,
        local_batch=local_batch,
    )
