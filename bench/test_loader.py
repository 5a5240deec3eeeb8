import pytest

from lockstep.measure.harness import Harness


@pytest.mark.cases("loader")
def test_loader(lockstep: Harness) -> None:
    """Which DataLoader settings feed the ranks, and where is the knee?"""
    from lockstep.measure.loading.loader_cases import measure_loading

    measure_loading(lockstep, **lockstep.factors)
