"""The configuration of a training run, and the arithmetic of its batches, epochs and rates.

Needs no torch: the command checks a run here before it starts any rank.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lockstep.core.sizes import DATA, LR_SCALES, OPTIMIZERS, SCHEDULERS, local_batch_of

STEP_DECAY = 0.1
# What a run must share with the one it resumes, or its loss would be another's.
TRAJECTORY = (
    "workload", "data", "global_batch", "lr", "lr_scale", "base_batch", "momentum", "weight_decay",
    "scheduler", "precision", "accumulation", "seed", "augment", "num_synthetic", "optimizer",
    "warmup_epochs",
)  # fmt: skip

_CHOICES = {
    "data": DATA, "optimizer": OPTIMIZERS, "scheduler": SCHEDULERS, "lr_scale": LR_SCALES
}  # fmt: skip
_LEAST = {
    "epochs": 1, "global_batch": 1, "local_batch": 1, "base_batch": 1, "max_steps": 1,
    "checkpoint_every": 1, "warmup_epochs": 0,
}  # fmt: skip
_NUMBERS = ("lr", "momentum", "weight_decay", "bucket_cap_mb", "target_accuracy", "timeout_s")


@dataclass(frozen=True)
class TrainConfig:
    """One training run, as read from JSON.

    Attributes:
        workload: The model, as `lockstep.workloads.make` takes it.
        data: One of `sizes.DATA`.
        data_root: Where downloads go, a folder all ranks see.
        num_synthetic: Items of the synthetic data set.
        epochs: How often the training set is gone through.
        global_batch: Samples over all ranks per update; None if `local_batch` is given.
        local_batch: Samples per rank per update; None if `global_batch` is given.
        lr: Learning rate at `base_batch`.
        lr_scale: How the rate follows the global batch, one of `sizes.LR_SCALES`.
        base_batch: The global batch `lr` was chosen for.
        optimizer: One of `sizes.OPTIMIZERS`.
        weight_decay: L2 penalty of SGD and Adam, decoupled from the gradient in AdamW.
        scheduler: How the rate falls over the epochs, one of `sizes.SCHEDULERS`.
        warmup_epochs: Epochs over which the rate first rises to `lr`, a little each update.
        precision: One of `sizes.PRECISIONS`.
        accumulation: Micro-batches per update.
        bucket_cap_mb: DDP's bucket size in MiB; None leaves its default.
        workers: Loader processes per rank; 0 loads in the rank itself.
        seed: Seed of parameters, order and augmentation.
        augment: Whether training images are cropped and mirrored at random.
        max_steps: Stop after so many updates; None runs all epochs. A run that this stopped within
            an epoch is not resumed.
        checkpoint_every: Keep the parameters after every so many epochs; None keeps the last and
            the best alone.
        target_accuracy: The validation accuracy whose time is noted; None for none.
        name: Folder of this run below it.
        repeat: Which of several equal runs this is.
        resume: Go on from this run's checkpoint if there is one.
        threads_per_rank: CPU threads of a rank; None takes its share of the cores.
        device: cpu or cuda; None takes CUDA where there is one.
        timeout_s: How long a rank waits for the others.
    """

    workload: str
    data: str
    data_root: str = "data"
    num_synthetic: int = 1024
    epochs: int = 1
    global_batch: int | None = None
    local_batch: int | None = None
    optimizer: str = "sgd"
    lr: float = 0.01
    lr_scale: str = "none"
    base_batch: int = 256
    momentum: float = 0.9
    weight_decay: float = 0.0
    scheduler: str = "none"
    warmup_epochs: int = 0
    precision: str = "fp32"
    accumulation: int = 1
    bucket_cap_mb: float | None = None
    workers: int = 0
    seed: int = 0
    augment: bool = False
    max_steps: int | None = None
    checkpoint_every: int | None = None
    target_accuracy: float | None = None
    results: str = "results"
    name: str = "run"
    repeat: int = 0
    resume: bool = False
    threads_per_rank: int | None = None
    device: str | None = None
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained.

        Raises:
            ValueError: An option's value is not allowed.
        """
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"no {name} {getattr(self, name)!r}; choose from {', '.join(allowed)}"
                )
        if (self.global_batch is None) == (self.local_batch is None):
            raise ValueError("give either the global batch or the local batch, not both or none")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs} leaves none of {self.epochs} epochs; warm up "
                "over fewer, or train longer"
            )
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name):
            raise ValueError(f"the name {self.name!r} is not made of letters, digits and . _ -")

    @property
    def num_moments(self) -> int:
        """Values that the optimizer keeps of each parameter."""
        return int(self.momentum > 0) if self.optimizer == "sgd" else 2

    @property
    def folder(self) -> Path:
        """Where this run's files go."""
        return Path(self.results) / self.name

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """Return the configuration a JSON object holds.

        Raises:
            ValueError: A key is unknown, missing, or has a value that is not allowed.
        """
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"the training configuration has no key {unknown[0]!r}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"the training configuration is incomplete: {error}") from error


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


@dataclass(frozen=True)
class EpochPlan:
    """What an epoch takes, and what does not fill a last batch.

    Attributes:
        steps: Updates per epoch.
        samples: Samples trained on per epoch, over all ranks.
        dropped: Samples of the data set that no rank takes.
    """

    steps: int
    samples: int
    dropped: int


def plan_epoch(num_samples: int, world_size: int, local_batch: int) -> EpochPlan:
    """Return the plan of an epoch in which the last, incomplete batch is dropped.

    Raises:
        ValueError: The data set does not fill one global batch.
    """
    steps = num_samples // world_size // local_batch
    if not steps:
        raise ValueError(
            f"{num_samples} samples do not fill one global batch of {local_batch * world_size}; "
            "choose a smaller batch or fewer ranks"
        )
    samples = steps * local_batch * world_size
    return EpochPlan(steps, samples, num_samples - samples)


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


@dataclass(frozen=True)
class EpochRow:
    """One row of `epochs.csv`; an empty cell is unknown.

    Attributes:
        job_id: The scheduler's job.
        git_commit: Commit of the suite.
        timestamp: End of the epoch, UTC, ISO 8601.
        precision: One of `sizes.PRECISIONS`.
        scaling: `strong` if the global batch was given, `fixed-epochs` if the local one was.
        epoch: Counted from 1.
        local_batch: Samples per rank per update.
        global_batch: Samples over all ranks per update.
        lr: Learning rate of this epoch's updates.
        train_loss: Mean over the epoch's updates and ranks, each before its update.
        train_accuracy: Share of the epoch's targets predicted right, before each update.
        val_loss: Mean over the whole validation set.
        val_accuracy: Share of the whole validation set's targets predicted right.
        samples: Samples trained on, of all ranks, counted once.
        samples_per_s: `samples / train_s`.
        train_s: Seconds from the barrier before the first update to the slowest rank's last one.
        val_s: Seconds of validation, slowest rank.
        checkpoint_s: Seconds until the checkpoint was on disk; unknown for the last epoch before
            an interruption.
        peak_memory_bytes: Of the rank that used most: on its GPU, or resident on a CPU.
        is_warmup: Whether this is the first epoch of its process.
        steps: Updates of the epoch; 0 in rows of older runs.
    """

    job_id: str | None
    git_commit: str | None
    timestamp: str
    workload: str
    data: str
    precision: str
    scaling: str
    seed: int
    repeat: int
    epoch: int
    epochs: int
    world_size: int
    num_nodes: int
    local_batch: int
    global_batch: int
    lr: float
    train_loss: float
    train_accuracy: float | None
    val_loss: float
    val_accuracy: float | None
    samples: int
    samples_per_s: float
    train_s: float
    val_s: float
    checkpoint_s: float | None
    peak_memory_bytes: int | None
    is_warmup: bool
    steps: int = 0


def best_row(rows: Sequence[EpochRow]) -> EpochRow:
    """Return the epoch of the best accuracy, without accuracies that of the lowest loss."""

    def merit(row: EpochRow) -> tuple[float, float]:
        return (-math.inf if row.val_accuracy is None else row.val_accuracy, -row.val_loss)

    return max(rows, key=merit)


def final_row(rows: Sequence[EpochRow]) -> dict[str, Any]:
    """Return the run in one row: the last epoch's losses, the sums of those after the warm-up.

    A run of nothing but warm-up is summed as it is, and says so in `is_warmup`.
    """
    counted = [row for row in rows if not row.is_warmup] or list(rows)
    accuracies = [row.val_accuracy for row in rows if row.val_accuracy is not None]
    samples, train_s = sum(row.samples for row in counted), sum(row.train_s for row in counted)
    return asdict(rows[-1]) | {
        "samples": samples,
        "train_s": train_s,
        "samples_per_s": samples / train_s,
        "val_s": sum(row.val_s for row in counted),
        "checkpoint_s": sum(row.checkpoint_s or 0.0 for row in counted),
        "best_val_accuracy": max(accuracies, default=None),
        "counted_epochs": len(counted),
        "is_warmup": counted[-1].is_warmup,
    }


def to_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as CSV with a header; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
