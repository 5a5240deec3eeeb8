import pytest

from lockstep.measure.harness import Harness


@pytest.mark.cases("loader")
def test_loader(
    lockstep: Harness,
    dataset: str,
    num_workers: int,
    pin_memory: bool,
    persistent_workers: bool,
    prefetch_factor: int | None,
    local_batch: int,
) -> None:
    """Which DataLoader settings feed the ranks, and where is the knee?"""
    from lockstep.measure.loading.loader_cases import measure_loading

    measure_loading(
        lockstep,
        dataset=dataset,
        num_workers=num_workers,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        prefetch_factor=prefetch_factor,
        local_batch=local_batch,
    )
