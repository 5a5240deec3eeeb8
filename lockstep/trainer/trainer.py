"""The trainer: whole epochs of data-parallel training whose result can be trusted.

`python -m lockstep.trainer.trainer CONFIG.json` is one rank, started by torchrun, srun, or alone.
Rank 0 writes below RESULTS/NAME, a folder all ranks see: `epochs.csv` (one row per epoch),
`final.csv` (one row for the run), `summary.json` (both, the configuration and the loss of every
update) and `checkpoint.pt`.

Runs with the same seed give equal losses on a CPU. On a GPU cuDNN may choose algorithms that
differ in the last digits; `torch.use_deterministic_algorithms` would forbid them, at their speed.
"""

import contextlib
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import distributed

from lockstep import content, workloads
from lockstep.machine import memory, provenance
from lockstep.measure import data
from lockstep.measure.train_step import (
    StepConfig,
    TrainStep,
    parameter_checksum,
    unsupported_anywhere,
)
from lockstep.trainer import failures
from lockstep.trainer.checkpoint import read_checkpoint, trajectory
from lockstep.trainer.epochs import EpochRunner, Score, seed_everything
from lockstep.trainer.failures import DivergedError, Failure
from lockstep.trainer.plan import (
    Batch,
    EpochRow,
    TrainConfig,
    final_row,
    lr_factor,
    plan_epoch,
    scaled_lr,
    to_csv,
)
from lockstep.vocabulary.records.errors import RankError
from lockstep.vocabulary.records.journal import write_atomically
from lockstep.vocabulary.system import locks
from lockstep.vocabulary.system.host import hostname
from lockstep.workloads.costs import batch_bytes, model_bytes
from lockstep.world import process_group as world
from lockstep.world.control import Control
from lockstep.world.placement import placement

SUMMARY_SCHEMA = 1


def run(config: TrainConfig, error_file: Path | None = None) -> dict[str, Any]:
    """Train as one rank of the launch this process belongs to; return the summary.

    Args:
        config: What to train.
        error_file: Where the first rank to fail says why, for the process that started the ranks.

    Raises:
        ValueError: The configuration cannot be trained at this world size.
        DivergedError: The loss of a step is not finite.
        RuntimeError: A device, the data, the storage or the other ranks failed.
    """
    place = placement()
    try:
        with _system_errors():
            joined = world.join(
                config.timeout_s, device=config.device, threads_per_rank=config.threads_per_rank
            )
            trainer = Trainer(config, joined)
            with _only_run(config.folder, joined.control):
                return trainer.train()
    except Exception as error:
        # Before this rank leaves, which the others will then report as an error of their own.
        if error_file is not None:
            failures.report(error_file, Failure.of(place.rank, error))
        raise
    finally:
        world.leave()


@contextlib.contextmanager
def _system_errors() -> Iterator[None]:
    """Raise what the system refused, as a full disk, as the machine's failure."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(f"{error}; mend this and go on with --resume") from error


@contextlib.contextmanager
def _only_run(folder: Path, control: Control) -> Iterator[None]:
    """Keep other runs out of a folder while this one writes there.

    Raises:
        ValueError: Another run is in it; on all ranks alike.
    """
    with contextlib.ExitStack() as held:
        problem = ""
        if control.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((folder / ".lock").open("a", encoding="utf-8"))
            if not _take(lock):
                problem = f"{locks.in_use(folder)}, or choose another --name"
        if problem := control.exchange_all("folder", [problem])[0][0]:
            raise ValueError(problem)
        yield


def _take(lock: IO[str]) -> bool:
    """Take a lock and sign it; return whether it was free, or the file system has none."""
    try:
        is_free = locks.take(lock)
    except locks.NoLocksError:  # other runs cannot be kept out
        return True
    if is_free:
        locks.sign(lock)
    return is_free


class Trainer:
    """One rank of a training run.

    Args:
        config: What to train.
        joined: The process group this rank is in.

    Raises:
        ValueError: The configuration cannot be trained, or the run exists and is not resumed, or
            it stopped within an epoch.
        RuntimeError: The hardware lacks the precision, or the data is not to be had.
    """

    def __init__(self, config: TrainConfig, joined: world.World) -> None:
        self.config = config
        self.world = joined
        self.device = joined.device
        self.batch = Batch.of(config, joined.world_size)
        state = read_checkpoint(config, self.batch)
        seed_everything(config.seed)
        self.workload = workloads.make(config.workload)
        self._check_memory()
        self.splits = data.load(
            config.data,
            Path(config.data_root),
            self.workload,
            config.augment,
            config.num_synthetic,
        )
        self.plan = plan_epoch(
            len(self.splits.train),  # type: ignore[arg-type]
            joined.world_size,
            self.batch.local_batch,
        )
        self.lr = scaled_lr(config.lr, config.lr_scale, self.batch.global_batch, config.base_batch)
        score = Score(self.workload)
        self.step = self._make_step(score)
        self.epochs = EpochRunner(
            config, joined, self.batch, self.workload, self.splits, self.step, score
        )
        self.rows: list[EpochRow] = []
        self.step_losses: list[float] = []
        self.git_commit = provenance.git_facts(content.IMPORTABLE_FROM)["git_commit"]
        if state is not None:
            self._restore(state)

    def _check_memory(self) -> None:
        """Refuse a model, a batch or synthetic data that a rank's device or host cannot hold."""
        workload, local_batch = self.workload, self.batch.local_batch
        model = model_bytes(workload, self.config.momentum > 0)
        on_device = {
            f"the model {self.config.workload}": model,
            f"a batch of {local_batch}": batch_bytes(workload, local_batch),
        }
        on_host = {}
        if self.config.data == "synthetic":
            num_items = sum(data.synthetic_sizes(self.config.num_synthetic))
            on_host[f"{num_items} synthetic items"] = batch_bytes(workload, num_items)
        cpu = torch.device("cpu")
        if self.device == cpu:
            self._refuse_beyond(cpu, on_host | on_device)
        else:
            self._refuse_beyond(cpu, on_host)
            self._refuse_beyond(self.device, on_device)

    def _refuse_beyond(self, device: torch.device, needed: Mapping[str, int]) -> None:
        free_bytes = memory.free_bytes(device, self.world.ranks_per_node)
        there = self.world.control.exchange_all("room", [free_bytes, hostname()])
        room = memory.least_room([free for free, _ in there], [host for _, host in there])
        memory.refuse_beyond(room, needed, device)

    def train(self) -> dict[str, Any]:
        """Train the epochs that are missing, write the results, return the summary."""
        first = len(self.rows)
        for epoch in range(first, self.config.epochs):
            if self._remaining_steps() == 0:
                break
            row = self._epoch(epoch, is_warmup=epoch == first)
            self.rows.append(row)
            if self.world.rank == 0:
                self._save()
                _report(self.rows[-1])
            distributed.barrier()
        return self._finish()

    def _make_step(self, score: Score) -> TrainStep:
        config = self.config
        if reason := unsupported_anywhere(config.precision, self.device):
            raise RuntimeError(reason)
        seed_everything(config.seed)
        model = self.workload.build().to(self.device)
        step_config = StepConfig(
            precision=config.precision,
            bucket_cap_mb=config.bucket_cap_mb,
            accumulation=config.accumulation,
            lr=self.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        return TrainStep(model, score, step_config, self.device)

    def _remaining_steps(self) -> int:
        limit = self.config.max_steps
        return self.plan.steps if limit is None else max(0, limit - len(self.step_losses))

    def _epoch(self, epoch: int, is_warmup: bool) -> EpochRow:
        lr = self.lr * lr_factor(self.config.scheduler, epoch, self.config.epochs)
        for group in self.step.optimizer.param_groups:
            group["lr"] = lr
        memory.reset_peak(self.device)
        num_steps = min(self.plan.steps, self._remaining_steps())
        work = partial(self.epochs.train, epoch, num_steps)
        (losses, train_accuracy), train_s = self.epochs.timed(work)
        (val_loss, val_accuracy), val_s = self.epochs.timed(self.epochs.validate)
        self.step_losses += losses
        samples = num_steps * self.epochs.samples_per_step
        return EpochRow(
            **self._facts(),
            timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
            epoch=epoch + 1,
            lr=lr,
            train_loss=sum(losses) / len(losses),
            train_accuracy=train_accuracy,
            val_loss=val_loss,
            val_accuracy=val_accuracy,
            samples=samples,
            samples_per_s=samples / train_s,
            train_s=train_s,
            val_s=val_s,
            checkpoint_s=None,
            peak_memory_bytes=self.epochs.largest(memory.peak_bytes(self.device)),
            is_warmup=is_warmup,
        )

    def _facts(self) -> dict[str, Any]:
        """Return the columns that are the same in every epoch."""
        names = ("workload", "data", "precision", "seed", "repeat", "epochs")
        return {name: getattr(self.config, name) for name in names} | {
            "job_id": os.environ.get("SLURM_JOB_ID"),
            "git_commit": self.git_commit,
            "scaling": self.batch.scaling,
            "world_size": self.world.world_size,
            "num_nodes": self.world.num_nodes,
            "local_batch": self.batch.local_batch,
            "global_batch": self.batch.global_batch,
        }

    def _save(self) -> None:
        """Write the checkpoint, then the rows: rank 0 only."""
        start = time.perf_counter()
        content = io.BytesIO()
        torch.save(self._state(), content)
        write_atomically(self.config.folder / "checkpoint.pt", content.getvalue())
        self.rows[-1] = replace(self.rows[-1], checkpoint_s=time.perf_counter() - start)
        rows = [asdict(row) for row in self.rows]
        write_atomically(self.config.folder / "epochs.csv", to_csv(rows))

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.step.ddp.module.state_dict(),
            "optimizer": self.step.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "rows": [asdict(row) for row in self.rows],
            "step_losses": self.step_losses,
            "trajectory": trajectory(self.config, self.batch),
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.step.ddp.module.load_state_dict(state["model"])
        self.step.optimizer.load_state_dict(state["optimizer"])
        self.step.scaler.load_state_dict(state["scaler"])
        self.rows = [EpochRow(**row) for row in state["rows"]]
        self.step_losses = list(state["step_losses"])
        self._check_whole_epochs()

    def _check_whole_epochs(self) -> None:
        """Refuse to go on after an epoch that --max-steps cut short: its rest would be missing."""
        done = len(self.step_losses)
        if done % self.plan.steps and self._remaining_steps():
            raise ValueError(
                f"{self.config.folder} stopped after {done} updates, within an epoch of "
                f"{self.plan.steps}, and only whole epochs can be gone on from; choose another "
                f"--name, or --max-steps {done} to keep it as it is"
            )

    def _finish(self) -> dict[str, Any]:
        own = parameter_checksum(self.step.ddp)
        checksums: list[str] = self.world.control.exchange_all("checksums", own)
        final = final_row(self.rows)
        summary = self._summary(final, checksums)
        if self.world.rank == 0:
            write_atomically(self.config.folder / "final.csv", to_csv([final]))
            text = json.dumps(summary, indent=1) + "\n"
            write_atomically(self.config.folder / "summary.json", text.encode())
        distributed.barrier()
        return summary

    def _summary(self, final: dict[str, Any], checksums: list[str]) -> dict[str, Any]:
        config, place = self.config, (self.world.rank, self.world.local_rank, self.device)
        lr_rule = {name: getattr(config, name) for name in ("lr", "lr_scale", "base_batch")}
        return {
            "schema": SUMMARY_SCHEMA,
            "config": asdict(config),
            "device": provenance.rank_facts(*place)["device_name"],
            "num_parameters": sum(p.numel() for p in self.step.ddp.parameters()),
            "epoch_plan": asdict(self.plan),
            "lr_rule": lr_rule | {"scaled_lr": self.lr},
            "parameter_checksums": checksums,
            "final": final,
            "epochs": [asdict(row) for row in self.rows],
            "step_losses": self.step_losses,
        }


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


def _report(row: EpochRow) -> None:
    accuracy = "-" if row.val_accuracy is None else f"{row.val_accuracy:.4f}"
    sys.stdout.write(
        f"epoch {row.epoch}/{row.epochs}  train loss {row.train_loss:.4f}  "
        f"validation loss {row.val_loss:.4f}  accuracy {accuracy}  "
        f"{row.samples_per_s:,.0f} samples/s\n"
    )
    sys.stdout.flush()


def _read_config(path: Path) -> TrainConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); give the JSON file of a training run"
        ) from error
    return TrainConfig.from_dict(json.loads(text))


def main(arguments: Sequence[str]) -> int:
    """Train as one rank; what failed first also goes to CONFIG.error."""
    path = Path(arguments[0])
    try:
        config = _read_config(path)
        check_equal_parameters(run(config, path.with_suffix(".error"))["parameter_checksums"])
    except ValueError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except DivergedError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    except RuntimeError:
        traceback.print_exc()
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
