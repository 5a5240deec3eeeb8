"""The checkpoint of a training run, and which runs may go on from it."""

from dataclasses import fields
from typing import Any

import torch

from lockstep.ranks.process_group import World
from lockstep.trainer.plan import TRAJECTORY, Batch, TrainConfig
from lockstep.trainer.run_files import LAST


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
