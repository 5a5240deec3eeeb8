"""The configuration of a training run, and the arithmetic of its batches, epochs and rates.

This needs no torch: the command checks a run here before it starts any rank.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from lockstep.core.files import default_folder
from lockstep.core.sizes import case_digest, local_batch_of

STEP_DECAY = 0.1
# Options that must equal those of a resumed run, since its loss would differ otherwise.
TRAJECTORY = (
    "workload", "data", "global_batch", "lr", "lr_scale", "base_batch", "momentum", "weight_decay",
    "scheduler", "precision", "accumulation", "seed", "augment", "num_synthetic", "optimizer",
    "warmup_epochs",
)  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """One training run; all but the two folders and the seed are factors of the study `train`.

    The texts are the help of `lockstep run train`.
    """

    workload: Annotated[str, "Model to train, such as `resnet18` or `mlp:width=64`."]
    data: Annotated[str, "Data set: digits, synthetic, mnist, cifar10 or tiny_cifar10."]
    num_synthetic: Annotated[int, "Number of synthetic samples."] = 1024
    epochs: Annotated[int, "Number of passes over the training set."] = 1
    global_batch: Annotated[
        int | None, "Global batch: samples per optimizer update over all ranks."
    ] = None
    local_batch: Annotated[
        int | None, "Local batch: samples per optimizer update on each rank."
    ] = None
    optimizer: str = "sgd"
    lr: Annotated[float, "Learning rate at --base-batch."] = 0.01
    lr_scale: Annotated[str, "Rule by which the learning rate grows with the global batch."] = (
        "none"
    )
    base_batch: Annotated[int, "Global batch to which --lr refers."] = 256
    momentum: Annotated[float, "Momentum of SGD."] = 0.9
    weight_decay: Annotated[
        float, "Weight decay: an L2 penalty, which AdamW applies apart from the gradient."
    ] = 0.0
    scheduler: Annotated[str, "Schedule by which the learning rate falls over the epochs."] = "none"
    warmup_epochs: Annotated[
        int, "Number of epochs at the start in which the learning rate rises to its full value."
    ] = 0
    precision: str = "fp32"
    accumulation: Annotated[int, "Number of micro-batches per optimizer update."] = 1
    bucket_cap_mb: Annotated[float | None, "DDP's bucket size in MiB."] = None
    num_workers: Annotated[int, "Number of loader processes on each rank."] = 0
    seed: Annotated[int, "Random seed of parameters, order of samples and augmentation."] = 0
    augment: Annotated[bool, "Crop and mirror training images at random."] = False
    max_steps: Annotated[
        int | None,
        "Stop after this many updates; a run that stops within an epoch cannot be resumed.",
    ] = None
    checkpoint_every: Annotated[int | None, "Also keep the parameters of every N-th epoch."] = None
    target_accuracy: Annotated[
        float | None, "Validation accuracy to reach; the time until the run reaches it is recorded."
    ] = None
    data_root: Annotated[str, "Folder of downloaded data sets."] = str(default_folder("data"))
    folder: str = "results"

    def __post_init__(self) -> None:
        """Refuse contradictory values; `core.factors` checks each value by itself."""
        if (self.global_batch is None) == (self.local_batch is None):
            raise ValueError("give either a global batch or a local batch, but not both")
        if 0 < self.epochs <= self.warmup_epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs} must be lower than epochs={self.epochs}; "
                "lower warmup_epochs, or raise epochs"
            )


@dataclass(frozen=True)
class Batch:
    """Samples of one update; `scaling` says which of the two numbers stays fixed."""

    local_batch: int
    global_batch: int
    scaling: str

    @classmethod
    def of(cls, config: TrainConfig, world_size: int) -> "Batch":
        """Return the batch of a run at a world size; refuse one that does not divide."""
        if config.global_batch is None:
            local, scaling = int(config.local_batch or 0), "fixed-epochs"
        else:
            local, scaling = local_batch_of(config.global_batch, world_size), "strong"
        if local % config.accumulation:
            raise ValueError(
                f"a local batch of {local} does not split into {config.accumulation} equal "
                f"micro-batches; choose an accumulation that divides {local}"
            )
        return cls(local, local * world_size, scaling)


def epoch_steps(num_samples: int, world_size: int, local_batch: int) -> int:
    """Return the updates of an epoch without the last, incomplete batch."""
    steps = num_samples // world_size // local_batch
    if not steps:
        raise ValueError(
            f"{num_samples} samples do not fill one global batch of {local_batch * world_size}; "
            "choose a smaller batch or fewer ranks"
        )
    return steps


def scaled_lr(lr: float, rule: str, global_batch: int, base_batch: int) -> float:
    """Return the learning rate at a global batch, given the one at `base_batch`.

    linear is Goyal et al., arXiv:1706.02677; sqrt is Krizhevsky, arXiv:1404.5997, section 5.
    """
    ratio = global_batch / base_batch
    return lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]


def rate_factor(config: TrainConfig, epoch: int, step: int, num_steps: int) -> float:
    """Return the factor of the learning rate at an update (both counted from 0).

    During warm-up it rises by the same amount each update (Goyal et al., arXiv:1706.02677, 2.2);
    the schedule spans the epochs after that.
    """
    warmup = config.warmup_epochs
    if epoch < warmup:
        return (epoch * num_steps + step + 1) / (warmup * num_steps)
    return lr_factor(config.scheduler, epoch - warmup, config.epochs - warmup)


def lr_factor(scheduler: str, epoch: int, epochs: int) -> float:
    """Return the factor of the learning rate in an epoch (counted from 0).

    cosine falls to zero after the last epoch; step falls tenfold after each third of the epochs;
    multistep after a half and after three quarters.
    """
    if scheduler == "cosine":
        return (1 + math.cos(math.pi * epoch / epochs)) / 2
    falls = {"none": (), "step": (1 / 3, 2 / 3), "multistep": (1 / 2, 3 / 4)}[scheduler]
    return float(STEP_DECAY ** sum(epoch >= math.ceil(share * epochs) for share in falls))


def validation_indices(num_samples: int, rank: int, world_size: int) -> range:
    """Return a rank's validation samples; each sample is of one rank, without padding."""
    return range(rank, num_samples, world_size)


def case_folder(case: str) -> Path:
    """Return the folder of a case's training, below the folder of its launch."""
    return Path("train") / case_digest(case)


def refuse_changed(where: Path, config: TrainConfig, before: Mapping[str, Any], **now: Any) -> None:
    """Refuse to resume a run with options that change its loss or its times.

    `before` are the options and facts with which the run at `where`, its checkpoint or folder, was
    trained; `now` are facts that must be equal, too, such as the world size.
    """
    # In a longer run the schedule would lower the learning rate more slowly.
    scheduled = () if config.scheduler == "none" else ("epochs",)
    now = {name: getattr(config, name) for name in (*TRAJECTORY, *scheduled)} | now
    # Options that an older checkpoint lacks had their defaults; such facts count as equal.
    before = now | {field.name: field.default for field in fields(TrainConfig)} | dict(before)
    for name, value in now.items():
        if before[name] != value:
            raise ValueError(
                f"{where} was trained with {name}={before[name]}, but {name} is now {value}; "
                "resume with the same options, or choose another --name"
            )
