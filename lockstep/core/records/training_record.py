"""What a case that trains a model leaves behind: its options, its epochs, its checkpoints.

A round of such a case is an epoch, so its times are those of `CaseRecord.rank_round_s`, too.
"""

from dataclasses import dataclass, field
from typing import Annotated

from lockstep.core.records.described import LARGEST_NUMBER, About, Amount, Count, Whole

Number = Annotated[float, About(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Fraction = Annotated[float, About(strict=True, ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One time through the training set, and the validation that followed it."""

    epoch: Annotated[Count, About("Which, counted from 1.")]
    steps: Annotated[Count, About("Updates.")]
    time_s: Annotated[
        Amount,
        About("Seconds from the barrier before the first update to the slowest rank's last one."),
    ]
    samples_per_s: Annotated[Amount, About("Samples of all ranks, counted once, over time_s.")]
    lr: Annotated[Amount, About("Learning rate of the last update.")]
    loss: Annotated[Number, About("Mean over updates and ranks, each before its update.")]
    validation_loss: Annotated[Number, About("Mean over the whole validation set.")]
    accuracy: Annotated[
        Fraction | None,
        About("Share of the validation set predicted right; null where there are no classes."),
    ] = None
    train_accuracy: Annotated[
        Fraction | None, About("Share of the epoch's samples predicted right, before each update.")
    ] = None
    validation_s: Annotated[Amount, About("Seconds of validation, slowest rank.")]
    checkpoint_s: Annotated[
        Amount | None, About("Seconds until the checkpoint was on disk; null if unknown.")
    ] = None
    peak_memory_bytes: Annotated[
        Whole | None, About("Of the rank that used most: on its GPU, or resident on a CPU.")
    ] = None
    is_warmup: Annotated[
        bool, About("Whether it is the first epoch of its process, which loads and compiles.")
    ] = False
    ended: Annotated[str, About("When it ended, UTC, ISO 8601.")] = ""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Files of parameters, named from the folder of the launch's journal."""

    last: Annotated[str | None, About("Of the last epoch, which a resumed run goes on from.")] = (
        None
    )
    best: Annotated[str | None, About("Of the epoch with the best accuracy.")] = None
    kept: Annotated[list[str], About("Of every n-th epoch, where they were asked for.")] = field(
        default_factory=list
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run: what was asked of it, and how it went."""

    data: Annotated[str, About("The data set.")]
    samples_per_epoch: Annotated[Count, About("Samples of all ranks in an epoch, counted once.")]
    epochs: Annotated[Count, About("Epochs that were asked for.")]
    optimizer: Annotated[str, About("sgd, adam or adamw; the class of a workload's own.")]
    lr: Annotated[Amount, About("Learning rate after warm-up, scaled to the global batch.")]
    schedule: Annotated[str, About("How the rate falls over the epochs; none where it does not.")]
    warmup_epochs: Annotated[Whole, About("Epochs over which the rate rises to lr.")] = 0
    weight_decay: Annotated[Amount, About("Of the optimizer.")] = 0.0
    accumulation: Annotated[Count, About("Micro-batches of an update.")] = 1
    augment: Annotated[bool, About("Whether training images are cropped and mirrored.")] = False
    seed: Annotated[Whole, About("Of parameters, order and augmentation.")] = 0
    device_name: Annotated[str, About("Device of rank 0.")] = ""
    rows: Annotated[list[Epoch], About("The epochs, oldest first.")] = field(default_factory=list)
    best_accuracy: Annotated[Fraction | None, About("Largest accuracy of an epoch.")] = None
    target_accuracy: Annotated[Fraction | None, About("The accuracy that was asked for.")] = None
    time_to_target_s: Annotated[
        Amount | None,
        About(
            "Seconds of training, validation left aside, to the end of the first epoch that "
            "reached the target; null where none did."
        ),
    ] = None
    checkpoints: Annotated[Checkpoints, About("Where its parameters are.")] = field(
        default_factory=Checkpoints
    )
    steps_file: Annotated[
        str | None,
        About(
            "JSON lines of each step's loss and rate, named from the folder of the launch's "
            "journal."
        ),
    ] = None
