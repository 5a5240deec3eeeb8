"""The trainer: whole epochs of data-parallel training whose result can be trusted.

Rank 0 writes below RESULTS/NAME, a folder all ranks see: `epochs.csv` (a row per epoch),
`steps.jsonl` (a line per update), and parameters: `checkpoint.pt` of the last epoch, `best.pt` of
the best, and those that were asked for.

Runs with the same seed give equal losses on a CPU. On a GPU cuDNN may choose algorithms that
differ in the last digits; `torch.use_deterministic_algorithms` would forbid them, at their speed.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from lockstep import content, workloads
from lockstep.core.errors import RankError
from lockstep.core.processes import hostname
from lockstep.core.record import LOADER_SETTINGS, Training
from lockstep.machine import memory, provenance
from lockstep.measure.loading import data
from lockstep.measure.step.train_step import (
    SETTLED_STEPS,
    StepConfig,
    TrainStep,
    buckets,
    parameter_checksum,
    unsupported,
)
from lockstep.ranks import process_group as world
from lockstep.trainer import trained
from lockstep.trainer.epochs import EpochRunner, Score, seed_everything
from lockstep.trainer.plan import (
    Batch,
    EpochRow,
    TrainConfig,
    final_row,
    plan_epoch,
    rate_factor,
    scaled_lr,
)
from lockstep.trainer.run_files import STEP_BYTES, STEPS, RunFiles, read_checkpoint, trajectory
from lockstep.workloads.costs import batch_bytes, model_bytes

SUMMARY_SCHEMA = 1


class Trainer:
    """One rank of a training run.

    Args:
        config: What to train.
        joined: The process group this rank is in.
        on_epoch: Called on every rank with each epoch that is safe on disk.

    Attributes:
        rows: The epochs so far.
        rank_s: Seconds of each epoch's updates on each rank, shape (num_epochs, num_ranks).
        step_losses: Of all updates, the mean of all ranks.
        in_force: Buckets and settings of DDP and of the loader, as a result holds them.

    Raises:
        ValueError: The configuration cannot be trained, or the run exists and is not resumed, or
            it stopped within an epoch.
        RuntimeError: The hardware lacks the precision, or the data is not to be had.
    """

    def __init__(
        self, config: TrainConfig, joined: world.World, on_epoch: Callable[[EpochRow], None]
    ) -> None:
        self.config = config
        self.on_epoch = on_epoch
        self.files = RunFiles(config.folder, config.checkpoint_every)
        self.world = joined
        self.device = joined.device
        self.batch = Batch.of(config, joined.world_size)
        state = read_checkpoint(config, self.batch, joined)
        seed_everything(config.seed)
        self.workload = workloads.make(config.workload)
        _check_memory(config, self.workload, self.batch.local_batch, joined)
        source = config.data, Path(config.data_root)
        self.splits = data.load(*source, self.workload, config.augment, config.num_synthetic)
        self.plan = plan_epoch(
            len(self.splits.train),  # type: ignore[arg-type]
            joined.world_size,
            self.batch.local_batch,
        )
        self.lr = scaled_lr(config.lr, config.lr_scale, self.batch.global_batch, config.base_batch)
        _refuse_unsupported(config.precision, joined)
        score = Score(self.workload)
        self.step = _make_step(config, self.workload, self.device, self.lr, score)
        self.epochs = EpochRunner(
            config, joined, self.batch, self.workload, self.splits, self.step, score, self.rate
        )
        self.rows: list[EpochRow] = []
        self.rank_s: list[list[float]] = []
        self.step_losses: list[float] = []
        self.in_force: dict[str, Any] = {}
        self._step_bytes = 0
        self._facts = _facts(config, self.batch, joined)
        if state is not None:
            self._restore(state)
        self._num_restored = len(self.step_losses)

    def train(self) -> dict[str, Any]:
        """Train the epochs that are missing, and return the summary."""
        first = len(self.rows)
        if self.world.rank == 0:
            self.files.cut_steps(self._step_bytes)
        for epoch in range(first, self.config.epochs):
            if self._remaining_steps() == 0:
                break
            with _advising(self.device, self.config.accumulation, self.batch.local_batch):
                self.rows.append(self._epoch(epoch, is_warmup=epoch == first))
            if self.world.rank == 0:
                self._save()
            distributed.barrier()
            self.on_epoch(self.rows[-1])
        return self._finish()

    def rate(self, epoch: int, step: int) -> float:
        """Return the learning rate of an update, epoch and update counted from 0."""
        return self.lr * rate_factor(self.config, epoch, step, self.plan.steps)

    def _remaining_steps(self) -> int:
        limit = self.config.max_steps
        return self.plan.steps if limit is None else max(0, limit - len(self.step_losses))

    def _epoch(self, epoch: int, is_warmup: bool) -> EpochRow:
        memory.reset_peak(self.device)
        num_steps = min(self.plan.steps, self._remaining_steps())
        work = partial(self.epochs.train, epoch, num_steps)
        (losses, train_accuracy), rank_s = self.epochs.timed(work)
        (val_loss, val_accuracy), val_s = self.epochs.timed(self.epochs.validate)
        self.step_losses += losses
        taken = len(self.step_losses) - self._num_restored
        self.in_force |= _in_force(self.step, self.epochs, taken)
        self.rank_s.append(rank_s)
        train_s = max(rank_s)
        samples = num_steps * self.epochs.samples_per_step
        return EpochRow(
            **self._facts,
            timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
            epoch=epoch + 1,
            lr=self.rate(epoch, num_steps - 1),
            train_loss=sum(losses) / len(losses),
            train_accuracy=train_accuracy,
            val_loss=val_loss,
            val_accuracy=val_accuracy,
            samples=samples,
            samples_per_s=samples / train_s,
            train_s=train_s,
            val_s=max(val_s),
            checkpoint_s=None,
            peak_memory_bytes=self.epochs.largest(memory.peak(self.device).used_bytes),
            is_warmup=is_warmup,
            steps=num_steps,
        )

    def _save(self) -> None:
        """Write the checkpoint, then the rows: rank 0 only."""
        start, row = time.perf_counter(), self.rows[-1]
        first = len(self.step_losses) - row.steps
        steps = [
            {
                "kind": "step",
                "epoch": row.epoch,
                "step": first + number + 1,
                "loss": loss,
                "lr": self.rate(row.epoch - 1, number),
            }
            for number, loss in enumerate(self.step_losses[first:])
        ]
        self.files.save(self._state(), self.rows, steps)
        self.rows[-1] = replace(row, checkpoint_s=time.perf_counter() - start)
        self.files.write_rows(self.rows)

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.step.ddp.module.state_dict(),
            "optimizer": self.step.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "rows": [asdict(row) for row in self.rows],
            "rank_s": self.rank_s,
            "step_losses": self.step_losses,
            "in_force": self.in_force,
            "trajectory": trajectory(self.config, self.batch, self.world),
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.step.ddp.module.load_state_dict(state["model"])
        self.step.optimizer.load_state_dict(state["optimizer"])
        self.step.scaler.load_state_dict(state["scaler"])
        self.rows = [EpochRow(**row) for row in state["rows"]]
        self.step_losses = list(state["step_losses"])
        alike = [[row.train_s] * self.world.world_size for row in self.rows]  # of older runs
        self.rank_s = state.get("rank_s", alike)
        self.in_force = state.get("in_force", {})
        self._step_bytes = int(state.get(STEP_BYTES, 0))
        done = len(self.step_losses)
        if self._remaining_steps():
            _refuse_part_of_epoch(self.config.folder, done, self.plan.steps)

    def _finish(self) -> dict[str, Any]:
        """Return the summary, which all ranks make together."""
        own = parameter_checksum(self.step.ddp)
        checksums: list[str] = self.world.control.exchange_all("checksums", own)
        config = self.config
        lr_rule = {name: getattr(config, name) for name in ("lr", "lr_scale", "base_batch")}
        return {
            "schema": SUMMARY_SCHEMA,
            "config": asdict(config),
            "device": self.device_name,
            "device_type": self.device.type,
            "sample_unit": self.workload.sample_unit,
            "num_parameters": sum(p.numel() for p in self.step.ddp.parameters()),
            "epoch_plan": asdict(self.plan),
            "lr_rule": lr_rule | {"scaled_lr": self.lr},
            "parameter_checksums": checksums,
            "final": final_row(self.rows),
            "epochs": [asdict(row) for row in self.rows],
            "training": asdict(self.record(config.folder)),
            "step_losses": self.step_losses,
            **self.in_force,
        }

    @property
    def device_name(self) -> str:
        """Name of this rank's device."""
        place = self.world.rank, self.world.local_rank, self.device
        return str(provenance.rank_facts(*place)["device_name"])

    def record(self, base: Path) -> Training:
        """Return the run as results hold it, its files named from a folder above them."""
        return trained.record_of(
            self.config,
            self.rows,
            samples_per_epoch=self.plan.samples * self.workload.samples_per_item,
            lr=self.lr,
            device_name=self.device_name,
            checkpoints=self.files.checkpoints(base),
            steps_file=str((self.config.folder / STEPS).relative_to(base)),
        )


def _in_force(step: TrainStep, runner: EpochRunner, num_taken: int) -> dict[str, Any]:
    """Return what the loader and DDP do, with its buckets once it settled on them."""
    found = buckets(step.ddp) | {LOADER_SETTINGS: runner.loader_settings}
    if num_taken < SETTLED_STEPS:
        del found["bucket_bytes"]
    return found


def _refuse_part_of_epoch(folder: Path, done: int, steps: int) -> None:
    """Refuse to go on after an epoch that --max-steps cut short: its rest would be missing."""
    if done % steps:
        raise ValueError(
            f"{folder} stopped after {done} updates, within an epoch of {steps}, and only whole "
            f"epochs can be gone on from; choose another --name, or --max-steps {done} to keep it "
            "as it is"
        )


def _facts(config: TrainConfig, batch: Batch, joined: world.World) -> dict[str, Any]:
    """Return the columns that are the same in every epoch."""
    names = ("workload", "data", "precision", "seed", "repeat", "epochs")
    return {name: getattr(config, name) for name in names} | {
        "job_id": os.environ.get("SLURM_JOB_ID"),
        "git_commit": provenance.git_facts(content.IMPORTABLE_FROM)["git_commit"],
        "scaling": batch.scaling,
        "world_size": joined.world_size,
        "num_nodes": joined.num_nodes,
        "local_batch": batch.local_batch,
        "global_batch": batch.global_batch,
    }


def _check_memory(
    config: TrainConfig, workload: workloads.Workload, local_batch: int, joined: world.World
) -> None:
    """Refuse a model, a batch or synthetic data that a rank's device or host cannot hold."""
    on_device = {
        f"the model {config.workload}": model_bytes(workload, config.num_moments),
        f"a batch of {local_batch}": batch_bytes(workload, local_batch),
    }
    on_host = {}
    if config.data == "synthetic":
        num_items = sum(data.synthetic_sizes(config.num_synthetic))
        on_host[f"{num_items} synthetic items"] = batch_bytes(workload, num_items)
    cpu = torch.device("cpu")
    if joined.device == cpu:
        _refuse_beyond(cpu, on_host | on_device, joined)
    else:
        _refuse_beyond(cpu, on_host, joined)
        _refuse_beyond(joined.device, on_device, joined)


def _refuse_beyond(device: torch.device, needed: Mapping[str, int], joined: world.World) -> None:
    free_bytes = memory.free_bytes(device, joined.ranks_per_node)
    there = joined.control.exchange_all("room", [free_bytes, hostname()])
    room = memory.least_room([free for free, _ in there], [host for _, host in there])
    memory.refuse_beyond(room, needed, device)


def _refuse_unsupported(precision: str, joined: world.World) -> None:
    """Refuse what a rank's hardware cannot compute: in a mixed cluster one may be older."""
    own = unsupported(precision, joined.device) or ""
    if reason := next(filter(None, joined.control.exchange_all("precision", own)), None):
        raise RuntimeError(reason)


def _make_step(
    config: TrainConfig,
    workload: workloads.Workload,
    device: torch.device,
    lr: float,
    score: Score,
) -> TrainStep:
    """Return the update that a run takes, of a model that is alike on all ranks."""
    seed_everything(config.seed)
    step_config = StepConfig(
        precision=config.precision,
        bucket_cap_mb=config.bucket_cap_mb,
        accumulation=config.accumulation,
        optimizer=config.optimizer,
        lr=lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    # How it is trained is the run's to say, how it is wrapped the workload's own.
    own = replace(workload, optimizer=None, scheduler=None, step=None)
    return TrainStep(workload.build().to(device), score, step_config, device, own)


@contextlib.contextmanager
def _advising(device: torch.device, pieces: int, local_batch: int) -> Iterator[None]:
    """Say what helps where a device has no room for an update."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"{device} has no room for {local_batch // pieces} samples at once; "
            f"accumulate over {2 * pieces} micro-batches, which leaves the batch of "
            f"{local_batch} a rank as it is, or choose a smaller batch"
        ) from error


def check_equal_parameters(checksums: Sequence[str]) -> None:
    """Refuse a run whose ranks drifted apart.

    Raises:
        RuntimeError: The checksums of the ranks' parameters differ.
    """
    odd = [rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if odd:
        raise RankError(
            f"rank {odd[0]} ended with other parameters than rank 0; gradients were not "
            "synchronised, so do not use this run",
            *odd,
        )
