"""The cases of each study, and the named sizes that scale them from a smoke test to a cluster.

A row of a study is one case; its keys are the arguments of the test and, as `name=value`, its id,
so all rows of a study have the same keys in the same order.
The rows are equal on all ranks, because they rest on the size and the options alone.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

Row = dict[str, Any]
Value = bool | int | float | str
# factor -> the values that take the place of a study's own, hashable as a size is
Factors = tuple[tuple[str, tuple[Value, ...]], ...]
Item = TypeVar("Item")

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
BUCKET_CAPS_MB = (1, 25, 50, 100)
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
DATA = ("digits", "synthetic", "mnist", "cifar10")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULERS = ("none", "cosine", "step", "multistep")
LR_SCALES = ("none", "linear", "sqrt")
STRATEGIES = ("ddp", "fsdp")
# What a step may do otherwise, too: factors of these studies only where a user sets them.
ON_REQUEST = ("strategy", "activation_checkpointing", "accumulation")
WITH_REQUESTS = ("strong", "weak", "precision")
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
        rounds=3,
        warmup_rounds=1,
        steps_per_round=2,
        workload="mlp:width=64,depth=2",
        bucket_workload="mlp:width=64,depth=2",
        sensitivity_workload="mlp:width=16,depth=1",
        global_batch=64,
        local_batch=32,
        message_bytes=(4 * KIB, 64 * KIB),
        collective_steps_per_round=2,
        num_workers=(0, 1),
        loader_samples=256,
        epochs=3,
    ),
    "laptop": Size(
        rounds=10,
        warmup_rounds=2,
        steps_per_round=1,
        workload="resnet18",
        bucket_workload="resnet18",
        sensitivity_workload="mnist_cnn",
        global_batch=64,
        local_batch=32,
        message_bytes=(64 * KIB, 256 * KIB, MIB, 4 * MIB),
        collective_steps_per_round=10,
        num_workers=(0, 1, 2),
        loader_samples=2048,
    ),
    "node": Size(
        rounds=20,
        warmup_rounds=5,
        steps_per_round=20,
        workload="resnet50",
        bucket_workload="resnet50",
        sensitivity_workload="resnet18",
        global_batch=512,
        local_batch=128,
        message_bytes=tuple(4 * KIB * 4**i for i in range(9)),
        collective_steps_per_round=20,
        num_workers=(0, 2, 4, 8),
        loader_samples=50_000,
    ),
    "cluster": Size(
        rounds=30,
        warmup_rounds=10,
        steps_per_round=20,
        workload="resnet50",
        bucket_workload="resnet50",
        sensitivity_workload="resnet18",
        global_batch=4096,
        local_batch=256,
        message_bytes=tuple(4 * KIB * 4**i for i in range(10)),
        collective_steps_per_round=20,
        num_workers=(0, 4, 8, 16),
        loader_samples=50_000,
    ),
}


# What options and campaign files may change of a size.
CHANGES = (
    "workload",
    "precision",
    "global_batch",
    "local_batch",
    "rounds",
    "warmup_rounds",
    "steps_per_round",
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


def rows(study: str, size: Size) -> list[Row]:
    """Return the cases of a study at a size, in the order in which a report lists them.

    Raises:
        ValueError: The factors do not go together.
    """
    found = _ROWS[study](size)
    for name, values in size.factors:
        if name in found[0] or name in on_request(study):
            found = _with_values(found, name, values)
            if not found:
                shown = ",".join(map(str, values))
                raise ValueError(
                    f"no case of the study {study} is left with {name}={shown}; cache needs "
                    "dataset=files, prefetch_factor and persistent_workers need workers"
                )
    return found


def on_request(study: str) -> tuple[str, ...]:
    """Return the factors that a study's cases have only where they are set."""
    if study == "loader":
        return ("cache",)
    return ON_REQUEST if study in WITH_REQUESTS else ()


def _with_values(found: list[Row], name: str, values: Sequence[Value]) -> list[Row]:
    """Return each row with each of the values, once."""
    rows = {case_id(row | {name: value}): row | {name: value} for row in found for value in values}
    return [row for row in rows.values() if _is_possible(row)]


def _is_possible(row: Row) -> bool:
    """Return whether a case's factors go together."""
    if "cache" in row and row["dataset"] != "files":  # the others' pages are mapped, or no file's
        return False
    # DataLoader refuses these two without workers.
    has_workers = row.get("num_workers") != 0
    return has_workers or not (row.get("persistent_workers") or row.get("prefetch_factor"))


def shuffled(items: Sequence[Item], name_of: Callable[[Item], str], seed: int) -> list[Item]:
    """Return the cases in the order in which a launch runs them: random, and equal for equal seeds.

    Two cases keep their order whichever others are there, so a part of a launch, or one that is
    resumed with fewer cases, runs them as the whole would.
    """

    def place(item: Item) -> bytes:
        return hashlib.sha256(f"{seed} {name_of(item)}".encode()).digest()

    return sorted(items, key=place)


def _strong(size: Size) -> list[Row]:
    return [_model(size, size.workload) | {"global_batch": size.global_batch}]


def _weak(size: Size) -> list[Row]:
    return [_model(size, size.workload) | {"local_batch": size.local_batch}]


def _model(size: Size, workload: str) -> Row:
    return {"workload": workload, "precision": size.precision}


def _precision(size: Size) -> list[Row]:
    return [
        {"workload": size.workload, "precision": p, "local_batch": size.local_batch}
        for p in PRECISIONS
    ]


def _bucket(size: Size) -> list[Row]:
    return [
        _model(size, size.bucket_workload) | {"bucket_cap_mb": cap, "local_batch": size.local_batch}
        for cap in BUCKET_CAPS_MB
    ]


def _sensitivity(size: Size) -> list[Row]:
    sweep = product((25, 50, 100), (64, 128, 256), ("fp32", "fp16", "bf16"))
    return [
        {
            "workload": size.sensitivity_workload,
            "bucket_cap_mb": cap,
            "local_batch": batch,
            "precision": precision,
        }
        for cap, batch, precision in sweep
    ]


def _accumulation(size: Size) -> list[Row]:
    settings = ((1, True), (4, True), (4, False))
    return [
        _model(size, size.workload)
        | {"accumulation": accumulation, "no_sync": no_sync, "local_batch": size.local_batch}
        for accumulation, no_sync in settings
    ]


def _loader(size: Size) -> list[Row]:
    plain: Row = {"pin_memory": False, "persistent_workers": False, "prefetch_factor": None}
    piped: Row = {"pin_memory": True, "persistent_workers": True, "prefetch_factor": 4}
    most = max(size.num_workers)
    settings = [("tensor", n, plain) for n in size.num_workers]
    settings += [("tensor", most, piped), ("memmap", 0, plain), ("memmap", most, piped)]
    if "cache" in dict(size.factors):  # which matters to files alone
        settings = [("files", n, plain) for n in size.num_workers]
    return [
        {"dataset": dataset, "num_workers": n, **options, "local_batch": size.local_batch}
        for dataset, n, options in settings
    ]


def _collective(size: Size) -> list[Row]:
    return [
        {"collective": collective, "message_bytes": message_bytes}
        for collective, message_bytes in product(COLLECTIVES, size.message_bytes)
    ]


def _train(size: Size) -> list[Row]:
    given = dict(size.factors)  # whose values take the place of None
    is_local = "local_batch" in given
    if is_local and "global_batch" in given:
        raise ValueError("the study train takes global_batch or local_batch as a factor, not both")
    return [
        {
            "workload": size.train_workload,
            "data": "digits",
            "precision": size.precision,
            "optimizer": "sgd",
            "lr": 0.1,
            "lr_scale": "none",
            "weight_decay": 0.0,
            "scheduler": "none",
            "warmup_epochs": 0,
            "epochs": size.epochs,
            "augment": False,
            "accumulation": 1,
            "num_workers": 0,
            "global_batch": None if is_local else size.train_batch,
            "local_batch": None,
            "checkpoint_every": None,
            "target_accuracy": None,
            "seed": None,
        }
    ]


_ROWS: dict[str, Callable[[Size], list[Row]]] = {
    "strong": _strong,
    "weak": _weak,
    "precision": _precision,
    "bucket": _bucket,
    "sensitivity": _sensitivity,
    "accumulation": _accumulation,
    "loader": _loader,
    "collective": _collective,
    "train": _train,
}
STUDIES = tuple(_ROWS)


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
