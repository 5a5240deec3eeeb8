import pytest

from bench.harness import Harness
from bench.step_cases import measure_training


@pytest.mark.cases("precision")
def test_precision(
    harness: Harness,
    workload: str,
    precision: str,
    local_batch: int,
) -> None:
    """What does a lower precision gain, and does the step still train?"""
    measure_training(
        harness,
        workload=workload,
        precision=precision,
        local_batch=local_batch,
    )
