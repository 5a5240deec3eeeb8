"""Which training runs are repeats: device and factors agree, seed and target may differ."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from lockstep.report.load.results import Row

# Usual values of factors, which a case's name leaves out.
USUAL: Mapping[str, Any] = {
    "optimizer": "sgd", "lr_scale": "none", "base_batch": 256, "momentum": 0.9, "weight_decay": 0.0,
    "scheduler": "none", "warmup_epochs": 0, "accumulation": 1, "augment": False,
    "num_workers": 0,
}  # fmt: skip
# Factors in the order in which a report names them.
FACTORS = (
    "workload", "data", "num_synthetic", "precision", "epochs", "max_steps", "global_batch",
    "local_batch", "lr", *USUAL, "bucket_cap_mb",
)  # fmt: skip
# Factors in which repeats may differ.
OF_A_RUN = ("seed", "target_accuracy", "checkpoint_every")


def map_repeats(rows: Iterable[Row]) -> dict[str, str]:
    """Return a mapping from recorded names without the seed to the name that repeats share."""
    return {drop_seed(row.recorded_case): row.case for row in rows if row.training}


def drop_seed(case: str) -> str:
    """Return the recorded name of a training without its seed."""
    return re.sub(r"-seed=\w+", "", case)


def name_alike(row: Row) -> None:
    """Give a training run the name and factors that it shares with its repeats."""
    if row.training is None:
        return
    known = {name: value for name, value in row.factors.items() if value is not None}
    known = {**USUAL, **known, "device": row.training.device_name or None}
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
    row.case = f"{row.study}[{'-'.join(texts)}]"
