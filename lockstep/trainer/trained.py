"""A training run as the record that results hold of it."""

from collections.abc import Sequence
from itertools import accumulate

from lockstep.core.record import Checkpoints, Epoch, Training
from lockstep.trainer.plan import EpochRow, TrainConfig

# Fields that a record has of what was asked for, by the same name.
AS_ASKED = ("data", "epochs", "optimizer", "warmup_epochs", "weight_decay", "accumulation",
    "augment", "seed", "target_accuracy")  # fmt: skip


def record_of(
    config: TrainConfig,
    rows: Sequence[EpochRow],
    *,
    samples_per_epoch: int,
    lr: float,
    device_name: str,
    checkpoints: Checkpoints,
    steps_file: str,
) -> Training:
    """Return the record of a run.

    Its lr is that after warm-up, scaled to the global batch; samples are of all ranks, counted
    once.
    """
    accuracies = [row.val_accuracy for row in rows if row.val_accuracy is not None]
    asked = {name: getattr(config, name) for name in AS_ASKED}
    return Training(
        **asked,
        samples_per_epoch=samples_per_epoch,
        lr=lr,
        schedule=config.scheduler,
        device_name=device_name,
        rows=[epoch_of(row) for row in rows],
        best_accuracy=max(accuracies, default=None),
        time_to_target_s=time_to(config.target_accuracy, rows),
        checkpoints=checkpoints,
        steps_file=steps_file,
    )


def epoch_of(row: EpochRow) -> Epoch:
    """Return the record of an epoch."""
    return Epoch(
        epoch=row.epoch,
        steps=row.steps,
        time_s=row.train_s,
        samples_per_s=row.samples_per_s,
        lr=row.lr,
        loss=row.train_loss,
        validation_loss=row.val_loss,
        accuracy=row.val_accuracy,
        train_accuracy=row.train_accuracy,
        validation_s=row.val_s,
        checkpoint_s=row.checkpoint_s,
        peak_memory_bytes=row.peak_memory_bytes,
        is_warmup=row.is_warmup,
        ended=row.timestamp,
    )


def time_to(target: float | None, rows: Sequence[EpochRow]) -> float | None:
    """Return the seconds of training to the end of the first epoch that reached an accuracy.

    Returns:
        None where no target was given, or no epoch reached it.
    """
    if target is None:
        return None
    spent_s = accumulate(row.train_s for row in rows)
    reached = (
        seconds
        for row, seconds in zip(rows, spent_s, strict=True)
        if row.val_accuracy is not None and row.val_accuracy >= target
    )
    return next(reached, None)
