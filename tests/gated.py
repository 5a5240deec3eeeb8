"""A workload whose strong case does what files say, so that faults strike a case while it runs.

In the folder that `FAULT_FOLDER` names, `arrived-RANK` appears once a rank is in that case, which
waits there as long as `hold` exists; then `eat-RANK` fills memory.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import torch

from lockstep.workloads import Workload
from lockstep.workloads.mlp import mlp

# Items per rank of the strong case in a campaign of two ranks and a global batch of 16.
GATED_ITEMS = 8


def gated() -> Workload:
    """Return a small perceptron with a gate in its loss."""
    plain = mlp(width=64, depth=2)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(outputs) == GATED_ITEMS:
            _act(Path(os.environ["FAULT_FOLDER"]), os.environ["SLURM_PROCID"])
        return plain.loss(outputs, targets)

    return replace(plain, name="gated", loss=loss)


def _act(folder: Path, rank: str) -> None:
    (folder / f"arrived-{rank}").touch()
    while (folder / "hold").exists():
        time.sleep(0.05)
    if (folder / f"eat-{rank}").exists():
        _eat()


def _eat() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(b"x") * 50_000_000)
        time.sleep(0.05)
