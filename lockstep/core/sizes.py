"""The named sizes, which scale the cases of each study from a smoke test to a cluster."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

Row = dict[str, Any]
Value = bool | int | float | str
# (factor, values that replace those of a study); hashable, as a size must be
Factors = tuple[tuple[str, tuple[Value, ...]], ...]
Item = TypeVar("Item")

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
DATA = ("digits", "synthetic", "mnist", "cifar10", "tiny_cifar10")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULERS = ("none", "cosine", "step", "multistep")
LR_SCALES = ("none", "linear", "sqrt")
STRATEGIES = ("ddp", "fsdp")
CACHES = ("warm", "cold")
# Least samples at once: batch normalisation cannot train on a single sample.
LEAST_BATCH = 2
KIB, MIB = 1024, 1024**2
# Steps of a launch in all its timed rounds: with fewer, one slow step moves the mean by a tenth.
FEWEST_STEPS = 10
# Most rounds, steps, batches and ranks: a larger number is a typing error.
MAX_COUNT = 1_000_000


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    rounds: int  # timed rounds of each case
    warmup_rounds: int  # untimed rounds before them
    steps_per_round: int
    workload: str  # model of the scaling, precision and accumulation studies
    bucket_workload: str  # model with gradients for several buckets
    sensitivity_workload: str  # model of the 27-point sweep
    global_batch: int  # of the strong study, divided among the ranks
    local_batch: int  # per rank, in all other studies
    message_bytes: tuple[int, ...]
    collective_steps_per_round: int  # more than above, since these steps are short
    num_workers: tuple[int, ...]
    loader_samples: int
    case_s: float = 5.0  # seconds of a case with a small step on two idle cores
    epochs: int = 10
    train_workload: str = "mlp:width=64,depth=2"  # fits the shipped data
    train_batch: int = 96  # over all ranks; divides the shipped data
    precision: str = "fp32"  # of the studies that do not vary it
    factors: Factors = ()  # values that replace a study's own


SIZES = {
    "smoke": Size(
        rounds=3, warmup_rounds=1, steps_per_round=2, workload="mlp:width=64,depth=2",
        bucket_workload="mlp:width=64,depth=2", sensitivity_workload="mlp:width=16,depth=1",
        global_batch=64, local_batch=32, message_bytes=(4 * KIB, 64 * KIB),
        collective_steps_per_round=2, num_workers=(0, 1), loader_samples=256, epochs=3, case_s=1.0,
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


# Fields of a size that options and campaign files may change.
CHANGES = (
    *("workload", "precision", "global_batch", "local_batch"),
    *("rounds", "warmup_rounds", "steps_per_round"),
)


def find(name: str) -> Size:
    if name not in SIZES:
        known = ", ".join(SIZES)
        raise ValueError(f"there is no size {name!r}; choose from {known}")
    return SIZES[name]


def adapt(size: Size, **changes: Any) -> Size:
    """Return a size with the options' changes; None leaves a value as it is."""
    values = {name: value for name, value in changes.items() if value is not None}
    for name, value in values.items():
        least = 0 if name == "warmup_rounds" else 1
        if isinstance(value, int) and value < least:
            raise ValueError(f"{name}={value} must be {least} or more")
        if isinstance(value, int) and value > MAX_COUNT:
            raise ValueError(f"{name}={value} must be {MAX_COUNT} or less")
    if "workload" in values:
        models = ("bucket_workload", "sensitivity_workload", "train_workload")
        values |= dict.fromkeys(models, values["workload"])
    if "global_batch" in values:
        values["train_batch"] = values["global_batch"]
    return replace(size, **values)


def num_moments(optimizer: str, momentum: float) -> int:
    """Return the values that an optimizer keeps for each parameter."""
    return int(momentum > 0) if optimizer == "sgd" else 2


def shuffle(items: Sequence[Item], name_of: Callable[[Item], str], seed: int) -> list[Item]:
    """Return cases in the random order in which a launch runs them, equal for equal seeds.

    Two cases have the same order among any other cases, as in a part or a resumed launch.
    """

    def place(item: Item) -> bytes:
        return hashlib.sha256(f"{seed} {name_of(item)}".encode()).digest()

    return sorted(items, key=place)


def case_id(row: Row) -> str:
    """Return a case's id, `name=value-name=value`."""
    return "-".join(f"{name}={value}" for name, value in row.items())


def case_digest(case: str) -> str:
    """Return the name of a case's folder: its own name may be too long for a file system."""
    return hashlib.sha256(case.encode()).hexdigest()[:12]


def local_batch_of(global_batch: int, world_size: int) -> int:
    """Return the local batch of a strong-scaling case; refuse one that does not divide."""
    if global_batch % world_size:
        lower = global_batch - global_batch % world_size
        nearest = " or ".join(str(n) for n in (lower, lower + world_size) if n)
        raise ValueError(
            f"global_batch={global_batch} is not divisible by world_size={world_size}; choose "
            f"{nearest}, or leave that world size out"
        )
    return global_batch // world_size


def halve_batch(local_batch: int, pieces: int) -> int | None:
    """Return half a batch; None if half does not split into `pieces` that a step can train on."""
    half = local_batch // 2
    fits = local_batch % 2 == 0 and half % pieces == 0 and half // pieces >= LEAST_BATCH
    return half if fits else None
