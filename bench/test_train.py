import pytest

from lockstep.measure.harness import Harness


@pytest.mark.cases("train")
def test_train(
    lockstep: Harness,
    workload: str,
    data: str,
    precision: str,
    optimizer: str,
    lr: float,
    lr_scale: str,
    weight_decay: float,
    scheduler: str,
    warmup_epochs: int,
    epochs: int,
    augment: bool,
    accumulation: int,
    num_workers: int,
    global_batch: int | None,
    local_batch: int | None,
    checkpoint_every: int | None,
    target_accuracy: float | None,
    seed: int | None,
) -> None:
    """How long does a training take, and how well does the model do afterwards?"""
    from lockstep.trainer.trainer import train

    train(lockstep, **lockstep.factors)  # its arguments, by name
