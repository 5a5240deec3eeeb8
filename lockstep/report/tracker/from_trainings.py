"""From the folder of one `lockstep run train` to its run."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lockstep.core import files, locks
from lockstep.report.load.sources import EPOCHS, SUMMARY
from lockstep.report.tracker.tracked import (
    Artifact,
    EmptyError,
    Found,
    Metric,
    Run,
    milliseconds,
    texts,
)

STEPS = "steps.jsonl"
ARTIFACTS = (SUMMARY, EPOCHS, "final.csv")
EXPERIMENT = "train"
# column of epochs.csv -> the metric's name
COLUMNS = {
    "train_loss": "train_loss",
    "train_accuracy": "train_accuracy",
    "val_loss": "validation_loss",
    "val_accuracy": "validation_accuracy",
    "lr": "lr",
    "train_s": "epoch_s",
    "samples_per_s": "throughput_samples_per_s",
    "val_s": "validation_s",
    "checkpoint_s": "checkpoint_s",
    "peak_memory_bytes": "peak_memory_bytes",
}
SHARED = ("workload", "data", "precision", "scaling", "repeat", "epochs", "world_size",
    "num_nodes", "local_batch", "global_batch")  # fmt: skip


def is_training(folder: Path) -> bool:
    """Tell whether a folder is that of a training run, not of a campaign."""
    return (folder / EPOCHS).is_file()


def of_training(folder: Path) -> Found:
    """Return the run of a folder that `lockstep run train` wrote.

    Raises:
        EmptyError: There is no row yet.
        ValueError: Its rows cannot be read.
    """
    rows = list(csv.DictReader(io.StringIO(files.text(folder / EPOCHS))))
    path = folder / SUMMARY
    summary = files.parse(files.content(path)) if path.is_file() else {}
    if not rows:
        raise EmptyError(f"{folder}: no epoch of this training run has ended yet")
    try:
        return Found((_run(folder, rows, summary),))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder}: {EPOCHS} and {SUMMARY} are not those of a training run ({error!r})"
        ) from error


def of_trainings(folders: Iterable[Path]) -> Found:
    """Return the runs of several such folders, and why some gave none."""
    runs: list[Run] = []
    unread = []
    for folder in folders:
        try:
            runs += of_training(folder).runs
        except ValueError as error:
            unread.append(str(error))
    return Found(tuple(runs), tuple(unread))


def _run(folder: Path, rows: Sequence[Mapping[str, str]], summary: Mapping[str, Any]) -> Run:
    first = rows[0]
    began = datetime.fromisoformat(first["timestamp"]) - timedelta(
        seconds=float(first["train_s"]) + float(first["val_s"])
    )
    is_over = len(summary.get("epochs") or ()) == len(rows)
    is_running = not is_over and locks.is_held(folder / ".lock")
    config = summary.get("config") or {}
    known = {name: first.get(name) for name in SHARED}
    facts = {
        "slurm_job_id": first.get("job_id"),
        "git_commit": first.get("git_commit"),
        "seed": first["seed"],
        "device": summary.get("device"),
        "launch": folder.name,
    }
    return Run(
        key=f"{EXPERIMENT}/{folder.name}/{first['timestamp']}",
        experiment=EXPERIMENT,
        name=folder.name,
        kind="training",
        status="RUNNING" if is_running else "FINISHED" if is_over else "KILLED",
        started_ms=round(began.timestamp() * 1000),
        ended_ms=None if is_running else milliseconds(rows[-1]["timestamp"]),
        params=texts(known | config),
        facts=texts(facts),
        metrics=(*epoch_metrics(rows, COLUMNS, "timestamp"), *updates(folder / STEPS, _ends(rows))),
        artifacts=() if is_running else _artifacts(folder),
    )


def epoch_metrics(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], ended: str
) -> list[Metric]:
    """Return what is known of each epoch, by its column: its name. `ended` is that of its end."""
    return [
        Metric(name, float(row[column]), int(row["epoch"]), milliseconds(row[ended]))
        for column, name in columns.items()
        for row in rows
        if row.get(column) not in (None, "")
    ]


def _ends(rows: Sequence[Mapping[str, str]]) -> dict[int, int]:
    return {int(row["epoch"]): milliseconds(row["timestamp"]) for row in rows}


def updates(path: Path, ends_ms: Mapping[int, int]) -> list[Metric]:
    """Return the loss and rate of each update, which are known when its epoch has ended.

    Args:
        path: A run's record of its updates, a JSON line each; it may be missing.
        ends_ms: Epoch -> when it ended, in milliseconds since the epoch of the clock.
    """
    lines = files.text(path).splitlines() if path.is_file() else []
    steps = {step["step"]: step for step in map(json.loads, lines) if step["epoch"] in ends_ms}
    return [
        Metric(f"update_{name}", float(step[name]), number, ends_ms[step["epoch"]])
        for name in ("loss", "lr")
        for number, step in sorted(steps.items())
    ]


def _artifacts(folder: Path) -> tuple[Artifact, ...]:
    paths = (folder / name for name in ARTIFACTS)
    return tuple(Artifact.of(path) for path in paths if path.is_file())
