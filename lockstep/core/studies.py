"""The studies: one record each, whose cases are rows of the arguments of its test."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from lockstep.core.sizes import COLLECTIVES, PRECISIONS, Row, Size, Value, case_id

BUCKET_CAPS_MB = (1, 25, 50, 100)
# Factors of a step that cases have only where a user sets them.
ON_REQUEST = ("strategy", "activation_checkpointing", "accumulation", "optimizer", "fused")
OTHER = "other"  # results that are not Lockstep's own
IMPORTED = "imported"  # published tables
# What stays the same as ranks are added: all work, or that of each rank.
WorkScaling = Literal["strong", "weak"]
WORK_SCALINGS: tuple[WorkScaling, ...] = get_args(WorkScaling)


@dataclass(frozen=True)
class Study:
    """One study: what it measures and how its results are shown."""

    title: str  # heading on a page
    cases: Callable[[Size], list[Row]]
    is_ladder: bool = False  # its points are a curve over world sizes, of steps
    is_training: bool = False  # its cases are whole trainings
    is_sweep: bool = False  # its cases are messages of several sizes; their links are fitted
    is_loader: bool = False  # its cases read batches and take no step
    is_crossed: bool = False  # its cases combine all values, so factors have main effects
    is_step: bool = False  # its cases time the suite's step at a batch, which may be halved
    trains: bool = False  # its cases take training steps, so that samples have a cost
    # Whether rates at two world sizes are compared: not for a collective, which moves other bytes
    # there, nor for a loader, which works for one rank.
    has_ratio: bool = True
    is_ranked: bool = True  # a report ranks its settings
    compared_with: tuple[str, Value | None] | None = (
        None  # its factor, and the value to compare with
    )
    varies_one: bool = False  # its cases differ in that factor alone
    sets_buckets: bool = False  # its cases set DDP's bucket size, so a report shows the buckets
    on_request: tuple[str, ...] = ()  # factors that its cases have only where a user sets them
    is_usual: bool = False  # `lockstep init` puts it into a campaign
    min_ranks: int = 1  # at fewer ranks its cases are skipped


def _model(size: Size, workload: str = "") -> Row:
    return {"workload": workload or size.workload, "precision": size.precision}


def _bucket_cases(size: Size) -> list[Row]:
    return [
        _model(size, size.bucket_workload) | {"bucket_cap_mb": cap, "local_batch": size.local_batch}
        for cap in BUCKET_CAPS_MB
    ]


def _sensitivity_cases(size: Size) -> list[Row]:
    names = ("bucket_cap_mb", "local_batch", "precision")
    sweep = product((25, 50, 100), (64, 128, 256), ("fp32", "fp16", "bf16"))
    return [
        {"workload": size.sensitivity_workload, **dict(zip(names, values, strict=True))}
        for values in sweep
    ]


def _accumulation_cases(size: Size) -> list[Row]:
    settings = ((1, True), (4, True), (4, False))
    return [
        _model(size)
        | {"accumulation": accumulation, "no_sync": no_sync, "local_batch": size.local_batch}
        for accumulation, no_sync in settings
    ]


def _loader_cases(size: Size) -> list[Row]:
    plain: Row = {"pin_memory": False, "persistent_workers": False, "prefetch_factor": None}
    piped: Row = {"pin_memory": True, "persistent_workers": True, "prefetch_factor": 4}
    most = max(size.num_workers)
    settings = [("tensor", n, plain) for n in size.num_workers]
    settings += [("tensor", most, piped), ("memmap", 0, plain), ("memmap", most, piped)]
    if "cache" in dict(size.factors):  # only the data set `files` has a cold cache
        settings = [("files", n, plain) for n in size.num_workers]
    return [
        {"dataset": dataset, "num_workers": n, **options, "local_batch": size.local_batch}
        for dataset, n, options in settings
    ]


def _train_cases(size: Size) -> list[Row]:
    names = dict(size.factors)  # their values replace the values of the row below
    is_local = "local_batch" in names
    if is_local and "global_batch" in names:
        raise ValueError(
            "the study train cannot have both factors global_batch and local_batch; "
            "remove one of them"
        )
    row = {
        "workload": size.train_workload, "data": "digits", "precision": size.precision,
        "optimizer": "sgd", "lr": 0.1, "lr_scale": "none", "weight_decay": 0.0,
        "scheduler": "none", "warmup_epochs": 0, "epochs": size.epochs, "augment": False,
        "accumulation": 1, "num_workers": 0,
        "global_batch": None if is_local else size.train_batch, "local_batch": None,
        "checkpoint_every": None, "target_accuracy": None, "seed": None,
    }  # fmt: skip
    return [row]


STUDIES = {
    "strong": Study(
        "Strong scaling", lambda size: [_model(size) | {"global_batch": size.global_batch}],
        is_ladder=True, is_step=True, trains=True,
        on_request=ON_REQUEST, is_usual=True,
    ),
    "weak": Study(
        "Weak scaling", lambda size: [_model(size) | {"local_batch": size.local_batch}],
        is_ladder=True, is_step=True, trains=True,
        on_request=ON_REQUEST, is_usual=True,
    ),
    "train": Study(
        "Training", _train_cases, is_training=True, trains=True, is_ranked=False,
        on_request=("momentum", "base_batch", "num_synthetic", "bucket_cap_mb", "max_steps"),
    ),
    "precision": Study(
        "Precision",
        lambda size: [
            {"workload": size.workload, "precision": precision, "local_batch": size.local_batch}
            for precision in PRECISIONS
        ],
        is_step=True, trains=True,
        compared_with=("precision", "fp32"), varies_one=True, on_request=ON_REQUEST, is_usual=True,
    ),
    "bucket": Study(
        "DDP bucket size", _bucket_cases, is_step=True, trains=True,
        compared_with=("bucket_cap_mb", 25), varies_one=True, sets_buckets=True, is_usual=True,
        min_ranks=2,
    ),
    "sensitivity": Study(
        "Sensitivity to settings", _sensitivity_cases, is_crossed=True, is_step=True, trains=True
    ),
    "accumulation": Study(
        "Gradient accumulation", _accumulation_cases, is_step=True, trains=True,
        compared_with=("accumulation", 1),
    ),
    "loader": Study(
        "Data loader", _loader_cases, is_loader=True, has_ratio=False,
        compared_with=("num_workers", 0), on_request=("cache",),
    ),
    "collective": Study(
        "Collectives",
        lambda size: [
            {"collective": collective, "message_bytes": message_bytes}
            for collective, message_bytes in product(COLLECTIVES, size.message_bytes)
        ],
        is_sweep=True, has_ratio=False, is_ranked=False, is_usual=True, min_ranks=2,
    ),
}  # fmt: skip
NAMES = tuple(STUDIES)
TITLES = {name: study.title for name, study in STUDIES.items()} | {OTHER: "Other benchmarks"}
# A curve over world sizes: of steps, or of whole trainings.
CURVES = tuple(name for name, study in STUDIES.items() if study.is_ladder or study.is_training)
LADDERS = tuple(name for name, study in STUDIES.items() if study.is_ladder)
SWEEPS = tuple(name for name, study in STUDIES.items() if study.is_sweep)
LOADERS = tuple(name for name, study in STUDIES.items() if study.is_loader)
CROSSED = tuple(name for name, study in STUDIES.items() if study.is_crossed)
BUCKETS = tuple(name for name, study in STUDIES.items() if study.sets_buckets)
TRAININGS = tuple(name for name, study in STUDIES.items() if study.is_training)
STEPS = tuple(name for name, study in STUDIES.items() if study.is_step)
TRAINING = tuple(name for name, study in STUDIES.items() if study.trains)
WITHOUT_RANKING = tuple(name for name, study in STUDIES.items() if not study.is_ranked)
WITHOUT_RATIO = tuple(name for name, study in STUDIES.items() if not study.has_ratio)
# A user's own tests, programs and tables are not here: they have a cost if they count samples.
WITHOUT_COST = (*(name for name, study in STUDIES.items() if not study.trains), OTHER)


def rows(study: str, size: Size) -> list[Row]:
    """Return the cases of a study at a size, in the order of a report."""
    cases = STUDIES[study].cases(size)
    for name, values in size.factors:
        if name in cases[0] or name in STUDIES[study].on_request:
            each = [row | {name: value} for row in cases for value in values]
            cases = [row for row in {case_id(row): row for row in each}.values() if _fits(row)]
            if not cases:
                shown = ",".join(map(str, values))
                raise ValueError(
                    f"no case of the study {study} allows {name}={shown}; the factor cache "
                    "needs dataset=files, and the factors prefetch_factor and "
                    "persistent_workers need num_workers of 1 or more"
                )
    return cases


def _fits(row: Row) -> bool:
    if "cache" in row and row["dataset"] != "files":
        return False
    # DataLoader refuses these two without workers.
    has_workers = row.get("num_workers") != 0
    return has_workers or not (row.get("persistent_workers") or row.get("prefetch_factor"))
