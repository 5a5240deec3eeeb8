"""The runs of `lockstep train` in a folder, as rows: they hold the accuracy of the training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.report.load import reading
from lockstep.report.load.reading import TRAINING_RUN
from lockstep.report.load.results import Results, Row
from lockstep.report.load.sources import CAMPAIGN, IMPORTED, LAUNCHES, read_json

SUMMARY = "summary.json"
# What two runs must agree in to be repeats, in addition to their ranks: what changes the learning.
FACTORS = (
    "data", "num_synthetic", "precision", "epochs", "local_batch", "global_batch", "lr", "lr_scale",
    "base_batch", "momentum", "weight_decay", "scheduler", "accumulation", "augment", "max_steps",
    "device",
)  # fmt: skip


def gather(path: Path) -> Results:
    """Read what `lockstep.report.load.reading.gather` reads, and the training runs in the folder.

    Args:
        path: A folder or file of results, a training run's folder, or a folder of such.

    Raises:
        ValueError: There is neither, or a file is broken.
    """
    found = list(rows(path)) if path.is_dir() else []
    others = any((path / name).exists() for name in (CAMPAIGN, IMPORTED, LAUNCHES))
    results = Results() if found and not others else reading.gather([path])
    results.rows += found
    return results


def rows(folder: Path) -> Iterator[Row]:
    """Yield one row for each training run in a folder or right below it.

    Raises:
        ValueError: A summary is broken.
    """
    for path in sorted({*folder.glob(SUMMARY), *folder.glob(f"*/{SUMMARY}")}):
        document = read_json(path)
        if isinstance(document, dict) and document.keys() >= TRAINING_RUN:
            yield _row(path, document)


def _row(path: Path, document: dict[str, Any]) -> Row:
    """Return a run's row from its configuration and the last line of its epochs."""
    final: Any = document.get("final")
    try:
        workload, data = str(final["workload"]), str(final["data"])
        world_size, rate = int(final["world_size"]), float(final["samples_per_s"])
        local_batch, global_batch = int(final["local_batch"]), int(final["global_batch"])
        accuracy = final["val_accuracy"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: no summary of a training run: {error}; train again") from None
    if world_size < 1 or not 0 < rate < float("inf"):
        raise ValueError(f"{path}: {world_size} ranks at {rate} samples/s is no run; train again")
    factors = {"workload": workload} | _factors(document, final, data)
    named = "-".join(f"{name}={value}" for name, value in factors.items())
    return Row(
        launch=str(path.parent), case=f"train[{named}]", study="train", factors=factors,
        precision=factors.get("precision"), workload=workload, world_size=world_size,
        rate=rate, local_batch=local_batch,
        global_batch=global_batch, throughput_samples_per_s=rate,
        details={"validation_accuracy": accuracy},
    )  # fmt: skip


def _factors(document: dict[str, Any], final: dict[str, Any], data: str) -> dict[str, Any]:
    """Return what runs must agree in to be repeats: as they were asked for, what is unset left out.

    The device is the one that was used, which older summaries do not hold.
    """
    config = document.get("config")
    asked = config if isinstance(config, dict) else {}
    known = {
        name: asked.get(name, final.get(name)) for name in FACTORS if name in {**asked, **final}
    }
    if document.get("device"):
        known["device"] = document["device"]
    if data != "synthetic":
        known.pop("num_synthetic", None)
    return {name: str(value) for name, value in known.items() if value is not None}
