"""Training runs as `lockstep run train` leaves them, with times and accuracies chosen by hand."""

import json
from pathlib import Path
from typing import Any

from data.report_samples import record

from lockstep.core.record import Epoch, Training

CONFIG = {
    "workload": "mlp", "data": "digits", "num_synthetic": 1024, "epochs": 3, "global_batch": 64,
    "local_batch": None, "lr": 0.1, "lr_scale": "none", "base_batch": 256, "momentum": 0.9,
    "weight_decay": 0.0, "scheduler": "none", "precision": "fp32", "accumulation": 1,
    "bucket_cap_mb": None, "workers": 0, "seed": 0, "augment": False, "max_steps": None,
    "device": None, "threads_per_rank": None,
}  # fmt: skip
STEPS, SAMPLES = 10, 640


def run(
    folder: Path,
    accuracies: tuple[float, ...] = (0.5, 0.7, 0.8),
    epoch_s: float = 1.0,
    world_size: int = 1,
    device: str = "H100",
    **config: Any,
) -> Path:
    """Write the summary of a run whose epochs take `epoch_s`, but the first, which takes twice."""
    asked = CONFIG | {"epochs": len(accuracies)} | config
    whole = asked["global_batch"] or asked["local_batch"] * world_size
    same = {
        "workload": asked["workload"], "data": asked["data"], "precision": asked["precision"],
        "scaling": "strong" if asked["global_batch"] else "fixed-epochs", "world_size": world_size,
        "num_nodes": 1, "local_batch": whole // world_size, "global_batch": whole, "job_id": None,
        "peak_memory_bytes": 10**9,
    }  # fmt: skip
    epochs = [
        same | {
            "epoch": number, "samples": SAMPLES, "train_s": epoch_s * (2 if number == 1 else 1),
            "samples_per_s": SAMPLES / epoch_s, "val_s": 0.5, "checkpoint_s": 0.25, "lr": 0.1,
            "train_loss": 2.0 / number, "val_loss": 1.0 / number, "train_accuracy": accuracy,
            "val_accuracy": accuracy, "is_warmup": number == 1, "timestamp": "2026-11-20T12:00:00",
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]  # fmt: skip
    content = {
        "schema": 1, "config": asked, "device": device, "sample_unit": "images",
        "epoch_plan": {"steps": STEPS},
        "lr_rule": {"scaled_lr": asked["lr"]}, "parameter_checksums": ["a"] * world_size,
        "final": epochs[-1], "epochs": epochs, "step_losses": [1.0] * (STEPS * len(epochs)),
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(content))
    return folder


def seeds(
    folder: Path, finals: tuple[float, ...] = (0.74, 0.75, 0.76), epoch_s: float = 1.0, **more: Any
) -> Path:
    """Write a run for each final accuracy, each of its own seed, with `epoch_s` as the median."""
    for seed, final in enumerate(finals):
        own_s = epoch_s * (1.0, 1.001, 0.999)[seed]
        run(folder / f"s{seed}", (0.5, 0.7, final), seed=seed, epoch_s=own_s, **more)
    return folder


def trained(seed, world_size=1, device="H100", accuracy=0.8, **factors):
    """Return the case of a campaign that trains as `run` does."""
    rows = [
        Epoch(epoch=n, steps=10, time_s=1.0, samples_per_s=640.0, lr=0.1, loss=1.0,
              validation_loss=1.0, accuracy=accuracy, validation_s=0.5)
        for n in (1, 2, 3)
    ]  # fmt: skip
    training = Training(
        data="digits", samples_per_epoch=640, epochs=3, optimizer="sgd", lr=0.1, schedule="none",
        seed=seed, device_name=device, rows=rows,
    )  # fmt: skip
    factors = {"workload": "mlp", "data": "digits", "precision": "fp32", "lr": 0.1, "epochs": 3,
               "global_batch": 64, "local_batch": None, "seed": seed} | factors  # fmt: skip
    return record(study="train", scaling="strong", world_size=world_size, factors=factors,
                  samples_per_step=64, global_batch=64, local_batch=64 // world_size,
                  steps_per_round=10, rank_round_s=[[1.0, 1.0]], training=training)  # fmt: skip
