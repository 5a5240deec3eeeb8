"""The files of a training run, which rank 0 alone writes: checkpoints, steps and epochs.

The checkpoint of a training run, and which runs may go on from it.
"""

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from lockstep.core.files import write_atomically
from lockstep.core.record import Checkpoints
from lockstep.ranks.process_group import World
from lockstep.trainer.plan import TRAJECTORY, Batch, EpochRow, TrainConfig, best_row, to_csv

LAST = "checkpoint.pt"
BEST = "best.pt"
STEPS = "steps.jsonl"
# Of the checkpoint: how long STEPS was then; what follows is of an epoch that did not end.
STEP_BYTES = "step_bytes"


@dataclass(frozen=True)
class RunFiles:
    """Where a run keeps what it has come to.

    Attributes:
        every: Keep the parameters after every so many epochs; None for none but last and best.
    """

    folder: Path
    every: int | None = None

    def save(
        self, state: Mapping[str, Any], rows: Sequence[EpochRow], steps: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write what the last epoch came to; the checkpoint comes last, for it makes that count."""
        row = rows[-1]
        weights = {"model": state["model"], "epoch": row.epoch, "accuracy": row.val_accuracy}
        if best_row(rows) is row:
            self._write(BEST, weights)
        if self.every and row.epoch % self.every == 0:
            self._write(f"epoch-{row.epoch:04}.pt", weights)
        self._write(LAST, {**state, STEP_BYTES: self._append(steps)})

    def cut_steps(self, size_bytes: int) -> None:
        """Cut off the updates that the checkpoint does not hold."""
        path = self.folder / STEPS
        if path.exists() and path.stat().st_size > size_bytes:
            os.truncate(path, size_bytes)

    def write_rows(self, rows: Sequence[EpochRow]) -> None:
        """Write a line of CSV for each epoch."""
        write_atomically(self.folder / "epochs.csv", to_csv([asdict(row) for row in rows]))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the run in one line of CSV, and all of it as JSON."""
        write_atomically(self.folder / "final.csv", to_csv([summary["final"]]))
        text = json.dumps(summary, indent=1) + "\n"
        write_atomically(self.folder / "summary.json", text.encode())

    def checkpoints(self, base: Path) -> Checkpoints:
        """Return the files of parameters that are there, named from a folder above them."""
        names = [str(path.relative_to(base)) for path in sorted(self.folder.glob("*.pt"))]
        found = {Path(name).name: name for name in names}
        last, best = found.pop(LAST, None), found.pop(BEST, None)
        return Checkpoints(last=last, best=best, kept=list(found.values()))

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(dict(content), buffer)
        write_atomically(self.folder / name, buffer.getvalue())

    def _append(self, steps: Sequence[Mapping[str, Any]]) -> int:
        """Add a line for each update, and return how long the file is then."""
        with (self.folder / STEPS).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(step) + "\n" for step in steps)
            file.flush()
            return os.fstat(file.fileno()).st_size


def trajectory(config: TrainConfig, batch: Batch, joined: World) -> dict[str, Any]:
    """Return what a run must share with the one it resumes, for its loss and times to be alike."""
    facts = {name: getattr(config, name) for name in TRAJECTORY}
    # A rate that falls with the share of epochs done would not be the same in a longer run.
    epochs = None if config.scheduler == "none" else config.epochs
    return facts | {
        "global_batch": batch.global_batch,
        "epochs": epochs,
        "world_size": joined.world_size,
        "num_nodes": joined.num_nodes,
        "device_type": joined.device.type,
    }


def read_checkpoint(config: TrainConfig, batch: Batch, joined: World) -> dict[str, Any] | None:
    """Return the checkpoint to go on from; None for a run from the start.

    Raises:
        ValueError: There is a run already, and it is not to be resumed or had other options.
    """
    path = config.folder / LAST
    if not path.exists():
        return None
    if not config.resume:
        raise ValueError(f"{config.folder} already holds a run; pass --resume or another --name")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    wanted = trajectory(config, batch, joined)
    usual = {one.name: one.default for one in fields(TrainConfig)}  # of options that came later
    known = usual | state["rows"][-1] | state["trajectory"]
    for name, wants in wanted.items():
        value = known.get(name, wants)
        if wants != value:
            raise ValueError(
                f"{path} was trained with {name}={value}, not {wants}; "
                "resume with the same options, or choose another --name"
            )
    return state
