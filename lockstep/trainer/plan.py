"""The configuration of a training run, and the arithmetic of its batches, epochs and rates.

Needs no torch: the command checks a run here before it starts any rank.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lockstep.core.sizes import case_digest, local_batch_of

STEP_DECAY = 0.1
# What a run must share with the one it resumes, or its loss would be another's.
TRAJECTORY = (
    "workload", "data", "global_batch", "lr", "lr_scale", "base_batch", "momentum", "weight_decay",
    "scheduler", "precision", "accumulation", "seed", "augment", "num_synthetic", "optimizer",
    "warmup_epochs",
)  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """One training run; all but the two folders and the seed are factors of the study `train`.

    What a field is, is what the help of `lockstep run train` says of it.
    """

    workload: Annotated[str, "Model, as in `resnet18` or `mlp:width=64`."]
    data: Annotated[str, "digits, synthetic, mnist or cifar10."]
    num_synthetic: Annotated[int, "Synthetic items."] = 1024
    epochs: Annotated[int, "How often the training set is gone through."] = 1
    global_batch: Annotated[int | None, "Samples per update over all ranks."] = None
    local_batch: Annotated[int | None, "Samples per update and rank."] = None
    optimizer: str = "sgd"
    lr: Annotated[float, "Learning rate at --base-batch."] = 0.01
    lr_scale: Annotated[str, "How the rate follows the global batch."] = "none"
    base_batch: Annotated[int, "Global batch --lr is for."] = 256
    momentum: Annotated[float, "Of SGD."] = 0.9
    weight_decay: Annotated[float, "L2 penalty; decoupled from the gradient in AdamW."] = 0.0
    scheduler: Annotated[str, "How the rate falls over the epochs."] = "none"
    warmup_epochs: Annotated[int, "Epochs over which the rate first rises."] = 0
    precision: str = "fp32"
    accumulation: Annotated[int, "Micro-batches per update."] = 1
    bucket_cap_mb: Annotated[float | None, "DDP's bucket size in MiB."] = None
    num_workers: Annotated[int, "Loader processes per rank."] = 0
    seed: Annotated[int, "Of parameters, order and augmentation."] = 0
    augment: Annotated[bool, "Crop and mirror training images at random."] = False
    max_steps: Annotated[
        int | None, "Stop after so many updates; resumable where an epoch ends."
    ] = None
    checkpoint_every: Annotated[int | None, "Keep the parameters of every N-th epoch, too."] = None
    target_accuracy: Annotated[float | None, "Note when the validation reaches this."] = None
    data_root: Annotated[str, "Where downloads go."] = "data"
    folder: str = "results"

    def __post_init__(self) -> None:
        """Refuse values that do not go together; `core.factors` says which each may have.

        Raises:
            ValueError: Both batches are given, or none; or no epoch follows the warm-up.
        """
        if (self.global_batch is None) == (self.local_batch is None):
            raise ValueError("give either the global batch or the local batch, not both or none")
        if 0 < self.epochs <= self.warmup_epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs} leaves none of {self.epochs} epochs; warm up "
                "over fewer, or train longer"
            )

    @property
    def num_moments(self) -> int:
        """Values that the optimizer keeps of each parameter."""
        return int(self.momentum > 0) if self.optimizer == "sgd" else 2


@dataclass(frozen=True)
class Batch:
    """How many samples one update takes; `scaling` says which of the two stays fixed."""

    local_batch: int
    global_batch: int
    scaling: str

    @classmethod
    def of(cls, config: TrainConfig, world_size: int) -> "Batch":
        """Return the batch of a run at a world size.

        Raises:
            ValueError: The global batch does not divide over the ranks, or the local batch over
                the micro-batches.
        """
        if config.global_batch is None:
            local, scaling = int(config.local_batch or 0), "fixed-epochs"
        else:
            local, scaling = local_batch_of(config.global_batch, world_size), "strong"
        if local % config.accumulation:
            raise ValueError(
                f"a local batch of {local} does not split into {config.accumulation} equal "
                "micro-batches; choose an accumulation that divides it"
            )
        return cls(local, local * world_size, scaling)


def epoch_steps(num_samples: int, world_size: int, local_batch: int) -> int:
    """Return the updates of an epoch in which the last, incomplete batch is dropped.

    Raises:
        ValueError: The data set does not fill one global batch.
    """
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
    """Return what the learning rate is multiplied by at an update (both counted from 0).

    Over the warm-up it rises by the same amount each update (Goyal et al., arXiv:1706.02677, 2.2);
    the schedule spans the epochs after that.
    """
    warmup = config.warmup_epochs
    if epoch < warmup:
        return (epoch * num_steps + step + 1) / (warmup * num_steps)
    return lr_factor(config.scheduler, epoch - warmup, config.epochs - warmup)


def lr_factor(scheduler: str, epoch: int, epochs: int) -> float:
    """Return what the learning rate is multiplied by in an epoch (counted from 0).

    cosine falls to zero after the last epoch; step falls tenfold after each third of the epochs;
    multistep after a half and after three quarters.
    """
    if scheduler == "cosine":
        return (1 + math.cos(math.pi * epoch / epochs)) / 2
    falls = {"none": (), "step": (1 / 3, 2 / 3), "multistep": (1 / 2, 3 / 4)}[scheduler]
    return float(STEP_DECAY ** sum(epoch >= math.ceil(share * epochs) for share in falls))


def validation_indices(num_samples: int, rank: int, world_size: int) -> range:
    """Return the samples a rank validates on: every sample once over all ranks, without padding."""
    return range(rank, num_samples, world_size)


def case_folder(case: str) -> Path:
    """Return where a case trains, below the folder of its launch."""
    return Path("train") / case_digest(case)
