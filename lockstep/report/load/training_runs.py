"""Training runs: what `lockstep train` once left as the record of a case, and repeats.

Runs repeat one another where they agree in all that changes what is learned, or how fast: all
factors but the seed and the accuracy to reach, the device, and, as everywhere, the ranks and how
they are placed. Such rows get one name; a campaign's case keeps its own beside it.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lockstep.core import files
from lockstep.core.record import BASIS, DDP_SETTINGS, LOADER_SETTINGS, Basis, CaseRecord, Data
from lockstep.report.load.contents import checked
from lockstep.report.load.results import Row

# What the summary of a training run holds, and no other file.
KEYS = {"config", "epoch_plan", "step_losses"}
STUDY = "train"
# What a summary holds of DDP and the loader as a result does, in its details.
OF_DETAILS = ("bucket_bytes", "gradient_bytes", DDP_SETTINGS, LOADER_SETTINGS)
# As training is where nobody says otherwise; what a record does not name was so.
USUAL: Mapping[str, Any] = {
    "optimizer": "sgd", "lr_scale": "none", "base_batch": 256, "momentum": 0.9, "weight_decay": 0.0,
    "scheduler": "none", "warmup_epochs": 0, "accumulation": 1, "augment": False, "workers": 0,
}  # fmt: skip
# In the order in which a report names them.
FACTORS = (
    "workload", "data", "num_synthetic", "precision", "epochs", "max_steps", "global_batch",
    "local_batch", "lr", *USUAL, "bucket_cap_mb",
)  # fmt: skip
# As a campaign's cases call a factor.
OF_A_CASE = {"num_workers": "workers"}
# Of a run, not of what it learns.
OF_A_RUN = ("seed", "target_accuracy", "checkpoint_every")


def is_summary(document: Any) -> bool:
    """Tell whether a file holds the summary of a training run."""
    return isinstance(document, dict) and document.keys() >= KEYS


def world_size(path: Path) -> int | None:
    """Return the number of ranks that a run's epochs name; None where they name none."""
    first = next(csv.DictReader(io.StringIO(files.text(path))), {})
    size = str(first.get("world_size"))
    return int(size) if size.isdecimal() else None


def read(path: Path, document: Mapping[str, Any]) -> CaseRecord:
    """Return a run of `lockstep run train` as the record of a case.

    Its rounds are the epochs of whole length, those that warmed up left aside where there are
    others, of the slowest rank.

    Raises:
        ValueError: The summary is incomplete, or holds what is no measured value.
    """
    where = f"{path}: training run"
    try:
        return checked(CaseRecord, _block(document), where)
    except (KeyError, TypeError, ZeroDivisionError, IndexError) as error:
        raise ValueError(f"{where} without {error}; train again") from None


def given(document: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """Return the Slurm job of a run, and what its ranks were given beside nodes."""
    job, threads = document["final"].get("job_id"), document["config"].get("threads_per_rank")
    settings = {"threads_per_rank": str(threads)} if threads else {}
    return None if job is None else str(job), settings


def _block(document: Mapping[str, Any]) -> dict[str, Any]:
    config, epochs, final = document["config"], document["epochs"], document["final"]
    if not epochs:
        raise IndexError("rows of them")
    # Samples of an item may be many, so that the batch does not tell.
    per_step = sum(epoch["samples"] for epoch in epochs) // len(document["step_losses"])
    most = max(epoch["samples"] for epoch in epochs)
    whole = [epoch for epoch in epochs if epoch["samples"] == most]
    data: Data = "synthetic" if config["data"] == "synthetic" else "real"
    basis = Basis(data, times_input=True, optimizer=config.get("optimizer") or USUAL["optimizer"])
    kind = document.get("device_type") or config.get("device")
    timed = [one for one in whole if not one["is_warmup"]] or whole
    names = ("workload", "precision", "scaling", "world_size", "num_nodes", "local_batch",
             "global_batch")  # fmt: skip
    return {name: final[name] for name in names} | {
        "study": STUDY,
        "factors": {name: config.get(name) for name in FACTORS},
        "sample_unit": document.get("sample_unit") or "samples",
        "samples_per_step": per_step,
        "steps_per_round": most // per_step,
        "rank_round_s": [[one["train_s"] for one in timed]],
        "peak_memory_bytes": [final.get("peak_memory_bytes")],
        "checks": {"parameters_equal": len(set(document["parameter_checksums"])) == 1},
        "details": {BASIS: basis.to_dict()}
        | ({"device_type": kind} if kind else {})
        | {name: document[name] for name in OF_DETAILS if name in document},
        "training": document.get("training") or _training(document, most, per_step),
    }


def _training(document: Mapping[str, Any], samples: int, per_step: int) -> dict[str, Any]:
    """Return how a run went whose summary does not have it as results do."""
    config, epochs = document["config"], document["epochs"]
    same = ("epoch", "samples_per_s", "lr", "train_accuracy", "checkpoint_s", "peak_memory_bytes",
            "is_warmup")  # fmt: skip
    others = {
        "time_s": "train_s", "validation_s": "val_s", "loss": "train_loss",
        "validation_loss": "val_loss", "accuracy": "val_accuracy", "ended": "timestamp",
    }  # fmt: skip
    return {
        "data": config["data"],
        "samples_per_epoch": samples,
        "epochs": config["epochs"],
        "optimizer": config.get("optimizer") or USUAL["optimizer"],
        "lr": document["lr_rule"]["scaled_lr"],
        "schedule": config["scheduler"],
        "seed": config["seed"],
        "device_name": document["device"],
        "target_accuracy": config.get("target_accuracy"),
        "rows": [
            {name: epoch[name] for name in same}
            | {name: epoch[own] for name, own in others.items()}
            | {"steps": epoch["samples"] // per_step}
            for epoch in epochs
        ],
    }


def pooled(rows: Iterable[Row]) -> dict[str, str]:
    """Return the recorded name of trainings, without its seed -> the name that repeats share."""
    return {without_seed(row.recorded_case): row.case for row in rows if row.training}


def without_seed(case: str) -> str:
    """Return the recorded name of a training without what tells it from its repeats."""
    return re.sub(r"-seed=\w+", "", case)


def name_alike(row: Row) -> None:
    """Give a training run the name and factors that it shares with its repeats."""
    if row.training is None:
        return
    factors = ((OF_A_CASE.get(name, name), value) for name, value in row.factors.items())
    given = {name: value for name, value in factors if value is not None}
    known = {**USUAL, **given, "device": row.training.device_name or None}
    if known["optimizer"] != USUAL["optimizer"]:
        del known["momentum"]
    if known["lr_scale"] == USUAL["lr_scale"]:
        del known["base_batch"]
    if known.get("data") != "synthetic":
        known.pop("num_synthetic", None)
    names = [name for name in (*FACTORS, *known) if name not in OF_A_RUN]
    row.own_case = row.case
    row.factors = {name: known[name] for name in names if known.get(name) is not None}
    texts = [f"{name}={value}" for name, value in row.factors.items() if USUAL.get(name) != value]
    row.case = f"{STUDY}[{'-'.join(texts)}]"
