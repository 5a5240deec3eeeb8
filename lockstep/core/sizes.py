"""The named sizes, which scale the cases of each study from a smoke test to a cluster."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

Row = dict[str, Any]
Value = bool | int | float | str
# factor -> the values that take the place of a study's own, hashable as a size is
Factors = tuple[tuple[str, tuple[Value, ...]], ...]
Item = TypeVar("Item")

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
DATA = ("digits", "synthetic", "mnist", "cifar10")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULERS = ("none", "cosine", "step", "multistep")
LR_SCALES = ("none", "linear", "sqrt")
STRATEGIES = ("ddp", "fsdp")
CACHES = ("warm", "cold")
# Of samples at once: batch normalisation cannot train on one.
LEAST_BATCH = 2
KIB, MIB = 1024, 1024**2
# Most rounds, steps, batches and ranks: a larger number is a typing error.
MAX_COUNT = 1_000_000


@dataclass(frozen=True)
class Size:
    """How much to measure.

    Attributes:
        rounds: Timed rounds of each case.
        warmup_rounds: Untimed rounds before them.
        steps_per_round: Steps in a round.
        workload: The model of the scaling, precision and accumulation studies.
        bucket_workload: The model of the bucket study: enough gradient bytes to share out.
        sensitivity_workload: The model of the 27-point sweep.
        global_batch: Batch of the strong study; per rank it is this over the world size.
        local_batch: Batch per rank everywhere else.
        collective_steps_per_round: Steps in a round of that study, whose steps are short.
        epochs: Epochs of the training study.
        train_workload: The model of the training study, which fits the data that ship.
        train_batch: Batch over all ranks of the training study, which divides its data.
        precision: Of the studies that do not ask about it.
        factors: Values that take the place of a study's own, see `factors`.
    """

    rounds: int
    warmup_rounds: int
    steps_per_round: int
    workload: str
    bucket_workload: str
    sensitivity_workload: str
    global_batch: int
    local_batch: int
    message_bytes: tuple[int, ...]
    collective_steps_per_round: int
    num_workers: tuple[int, ...]
    loader_samples: int
    epochs: int = 10
    train_workload: str = "mlp:width=64,depth=2"
    train_batch: int = 96
    precision: str = "fp32"
    factors: Factors = ()


SIZES = {
    "smoke": Size(
        rounds=3, warmup_rounds=1, steps_per_round=2, workload="mlp:width=64,depth=2",
        bucket_workload="mlp:width=64,depth=2", sensitivity_workload="mlp:width=16,depth=1",
        global_batch=64, local_batch=32, message_bytes=(4 * KIB, 64 * KIB),
        collective_steps_per_round=2, num_workers=(0, 1), loader_samples=256, epochs=3,
    ),
    "laptop": Size(
        rounds=10, warmup_rounds=2, steps_per_round=1, workload="resnet18",
        bucket_workload="resnet18", sensitivity_workload="mnist_cnn",
        global_batch=64, local_batch=32, message_bytes=(64 * KIB, 256 * KIB, MIB, 4 * MIB),
        collective_steps_per_round=10, num_workers=(0, 1, 2), loader_samples=2048,
    ),
    "node": Size(
        rounds=20, warmup_rounds=5, steps_per_round=20, workload="resnet50",
        bucket_workload="resnet50", sensitivity_workload="resnet18",
        global_batch=512, local_batch=128, message_bytes=tuple(4 * KIB * 4**i for i in range(9)),
        collective_steps_per_round=20, num_workers=(0, 2, 4, 8), loader_samples=50_000,
    ),
    "cluster": Size(
        rounds=30, warmup_rounds=10, steps_per_round=20, workload="resnet50",
        bucket_workload="resnet50", sensitivity_workload="resnet18",
        global_batch=4096, local_batch=256, message_bytes=tuple(4 * KIB * 4**i for i in range(10)),
        collective_steps_per_round=20, num_workers=(0, 4, 8, 16), loader_samples=50_000,
    ),
}  # fmt: skip


# What options and campaign files may change of a size.
CHANGES = (
    *("workload", "precision", "global_batch", "local_batch"),
    *("rounds", "warmup_rounds", "steps_per_round"),
)


def find(name: str) -> Size:
    """Return a size by its name.

    Raises:
        ValueError: There is no such size.
    """
    if name not in SIZES:
        raise ValueError(f"no size {name!r}; choose from {', '.join(SIZES)}")
    return SIZES[name]


def adapt(size: Size, **changes: Any) -> Size:
    """Return a size with the options' changes; None leaves a value as it is.

    Raises:
        ValueError: A count is not positive, or larger than any measurement.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        least = 0 if name == "warmup_rounds" else 1
        if isinstance(value, int) and value < least:
            raise ValueError(f"{name}={value} is not {least} or more")
        if isinstance(value, int) and value > MAX_COUNT:
            raise ValueError(f"{name}={value} is not {MAX_COUNT} or less")
    if "workload" in given:
        models = ("bucket_workload", "sensitivity_workload", "train_workload")
        given |= dict.fromkeys(models, given["workload"])
    if "global_batch" in given:
        given["train_batch"] = given["global_batch"]
    return replace(size, **given)


def shuffled(items: Sequence[Item], name_of: Callable[[Item], str], seed: int) -> list[Item]:
    """Return the cases in the order in which a launch runs them: random, and equal for equal seeds.

    Two cases keep their order whichever others are there, so a part of a launch, or one that is
    resumed with fewer cases, runs them as the whole would.
    """

    def place(item: Item) -> bytes:
        return hashlib.sha256(f"{seed} {name_of(item)}".encode()).digest()

    return sorted(items, key=place)


def case_id(row: Row) -> str:
    """Return a case's id, `name=value-name=value`."""
    return "-".join(f"{name}={value}" for name, value in row.items())


def case_digest(case: str) -> str:
    """Return a name for a case's folder, for its own may be too long for a file system."""
    return hashlib.sha256(case.encode()).hexdigest()[:12]


def local_batch_of(global_batch: int, world_size: int) -> int:
    """Return the local batch of a strong-scaling case.

    Raises:
        ValueError: The global batch does not divide; it is never truncated.
    """
    if global_batch % world_size:
        lower = global_batch - global_batch % world_size
        nearest = [n for n in (lower, lower + world_size) if n]
        raise ValueError(
            f"global_batch={global_batch} does not divide by world_size={world_size}; choose "
            f"{' or '.join(map(str, nearest))}, or leave that world size out"
        )
    return global_batch // world_size


def halve_batch(local_batch: int, pieces: int) -> int | None:
    """Return half a batch, None where it does not split into so many pieces to train on."""
    half = local_batch // 2
    fits = local_batch % 2 == 0 and half % pieces == 0 and half // pieces >= LEAST_BATCH
    return half if fits else None
