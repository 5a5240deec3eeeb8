"""Training runs as `lockstep run train` leaves them, with times and accuracies chosen by hand."""

from pathlib import Path
from typing import Any

from data.report_samples import document, provenance, record, write

from lockstep.core.record import Epoch, Training


def run(
    folder: Path,
    accuracies: tuple[float | None, ...] = (0.5, 0.7, 0.8),
    epoch_s: float = 1.0,
    world_size: int = 1,
    device: str = "H100",
    threads_per_rank: int | None = None,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Write the launch `folder` of a run whose epochs take `epoch_s`, the first of them twice."""
    config = {"momentum": 0.9, "scheduler": "none"} | config
    case = trained(seed, world_size, device, accuracies, epoch_s, **config)
    known = provenance(world_size, device_names=[device], threads_per_rank=threads_per_rank)
    name = f"test_train[seed={seed}]"
    facts = {"campaign": str(folder.parent), "provenance": known}
    root = folder.parent
    path = write(root, document(folder.name, world_size, {name: case}, **facts))
    (root / "campaign.json").write_text('{"schema": 1, "studies": ["train"]}')
    return path


def seeds(
    folder: Path, finals: tuple[float, ...] = (0.74, 0.75, 0.76), epoch_s: float = 1.0, **more: Any
) -> Path:
    """Write a run for each final accuracy, each of its own seed, with `epoch_s` as the median."""
    for seed, final in enumerate(finals):
        own_s = epoch_s * (1.0, 1.001, 0.999)[seed]
        run(folder / f"s{seed}", (0.5, 0.7, final), seed=seed, epoch_s=own_s, **more)
    return folder


def trained(seed, world_size=1, device="H100", accuracies=(0.8,) * 3, epoch_s=1.0, **factors):
    """Return the case of a campaign that trains as `run` does."""
    factors = {"workload": "mlp", "data": "digits", "precision": "fp32", "lr": 0.1,
               "global_batch": 64, "local_batch": None, "epochs": len(accuracies),
               "seed": seed} | factors  # fmt: skip
    rows = [
        Epoch(epoch=n, steps=10, time_s=epoch_s * (2 if n == 1 else 1), is_warmup=n == 1,
              samples_per_s=640 / epoch_s, lr=0.1, loss=2.0 / n, validation_loss=1.0 / n,
              accuracy=accuracy, train_accuracy=accuracy, validation_s=0.5,
              ended="2026-11-20T12:00:00+00:00")
        for n, accuracy in enumerate(accuracies, start=1)
    ]  # fmt: skip
    training = Training(
        data=factors["data"], samples_per_epoch=640, epochs=factors["epochs"], optimizer="sgd",
        lr=factors["lr"], schedule="none", seed=seed, device_name=device, rows=rows,
    )  # fmt: skip
    whole = factors["global_batch"] or factors["local_batch"] * world_size
    return record(study="train", scaling="strong" if factors["global_batch"] else "fixed-epochs",
                  world_size=world_size, factors=factors, workload=factors["workload"],
                  precision=factors["precision"], samples_per_step=64, global_batch=whole,
                  local_batch=whole // world_size, steps_per_round=10,
                  training=training,
                  rank_round_s=[[epoch_s] * (len(rows) - 1)] * world_size)  # fmt: skip
