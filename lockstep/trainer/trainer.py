"""The trainer: whole epochs of data-parallel training whose result can be trusted.

`python -m lockstep.trainer.trainer CONFIG.json` is one rank, started by torchrun, srun, or alone.
Rank 0 writes below RESULTS/NAME, a folder all ranks see: `epochs.csv` (one row per epoch),
`final.csv` (one row for the run), `summary.json` (both, the configuration and the loss of every
update) and `checkpoint.pt`.

Runs with the same seed give equal losses on a CPU. On a GPU cuDNN may choose algorithms that
differ in the last digits; `torch.use_deterministic_algorithms` would forbid them, at their speed.
"""

import contextlib
import csv
import io
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, Subset

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
from lockstep.trainer.epoch_progress import counted
from lockstep.trainer.failures import DivergedError, Failure
from lockstep.trainer.plan import (
    TRAJECTORY,
    Batch,
    EpochRow,
    TrainConfig,
    final_row,
    lr_factor,
    plan_epoch,
    scaled_lr,
    validation_indices,
)
from lockstep.vocabulary import locks
from lockstep.vocabulary.errors import RankError
from lockstep.vocabulary.journal import write_atomically
from lockstep.workloads import Workload
from lockstep.workloads.costs import batch_bytes, model_bytes
from lockstep.world import process_group as world
from lockstep.world.control import Control

SUMMARY_SCHEMA = 1
T = TypeVar("T")


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
    place = world.placement()
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
            if not _is_taken(lock):
                problem = f"{locks.in_use(folder)}, or choose another --name"
        if problem := control.exchange_all("folder", [problem])[0][0]:
            raise ValueError(problem)
        yield


def _is_taken(lock: IO[str]) -> bool:
    try:
        is_taken = locks.take(lock)
    except locks.NoLocksError:  # other runs cannot be kept out
        return True
    if is_taken:
        locks.sign(lock)
    return is_taken


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
        state = _read_checkpoint(config, self.batch)
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
        self.score = Score(self.workload)
        self.step = self._make_step()
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
        exchange = self.world.control.exchange_all
        memory.refuse_beyond(exchange, needed, device, self.world.ranks_per_node)

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

    def _make_step(self) -> TrainStep:
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
        return TrainStep(model, self.score, step_config, self.device)

    def _remaining_steps(self) -> int:
        limit = self.config.max_steps
        return self.plan.steps if limit is None else max(0, limit - len(self.step_losses))

    def _epoch(self, epoch: int, is_warmup: bool) -> EpochRow:
        lr = self.lr * lr_factor(self.config.scheduler, epoch, self.config.epochs)
        for group in self.step.optimizer.param_groups:
            group["lr"] = lr
        memory.reset_peak(self.device)
        num_steps = min(self.plan.steps, self._remaining_steps())
        (losses, train_accuracy), train_s = self._timed(lambda: self._train(epoch, num_steps))
        (val_loss, val_accuracy), val_s = self._timed(self._validate)
        self.step_losses += losses
        samples = num_steps * self._samples_per_step()
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
            peak_memory_bytes=self._largest(memory.peak_bytes(self.device)),
            is_warmup=is_warmup,
        )

    def _facts(self) -> dict[str, Any]:
        """Return the columns that are the same in every epoch."""
        asked = ("workload", "data", "precision", "seed", "repeat", "epochs")
        return {name: getattr(self.config, name) for name in asked} | {
            "job_id": os.environ.get("SLURM_JOB_ID"),
            "git_commit": self.git_commit,
            "scaling": self.batch.scaling,
            "world_size": self.world.world_size,
            "num_nodes": self.world.num_nodes,
            "local_batch": self.batch.local_batch,
            "global_batch": self.batch.global_batch,
        }

    def _timed(self, work: Callable[[], T]) -> tuple[T, float]:
        """Return what the work returns, and the slowest rank's seconds for it."""
        distributed.barrier()
        start = time.perf_counter()
        result = work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elapsed = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=self.device)
        distributed.all_reduce(elapsed, distributed.ReduceOp.MAX)
        return result, elapsed.item()

    def _train(self, epoch: int, num_steps: int) -> tuple[list[float], float | None]:
        """Take the epoch's steps; return each step's loss over all ranks, and the accuracy."""
        self.step.ddp.train()
        self.score.reset()
        batches = iter(self._train_loader(epoch))
        own = torch.stack(
            [self.step.run(*self._to_device(next(batches))) for _ in self._steps(epoch, num_steps)]
        ).double()
        losses = own.clone()
        distributed.all_reduce(losses)
        if not losses.isfinite().all():
            self._refuse_divergence(epoch, own)
        correct, judged = self._sums(self.score.correct, self.score.judged)
        return (losses / self.world.world_size).tolist(), _share(correct, judged)

    def _refuse_divergence(self, epoch: int, own: torch.Tensor) -> NoReturn:
        """End a run whose losses, of shape (num_steps,) on each rank, are not all finite."""
        found = failures.first_step(own.tolist(), own.isfinite().tolist())
        raise failures.diverged(epoch + 1, self.world.control.exchange_all("diverged", found))

    def _steps(self, epoch: int, num_steps: int) -> Iterable[int]:
        """Return the steps to take, on rank 0 at a terminal with a line that counts samples."""
        if self.world.rank or not sys.stdout.isatty():
            return range(num_steps)
        label = f"epoch {epoch + 1}/{self.config.epochs}"
        return counted(num_steps, self._samples_per_step(), label)

    def _samples_per_step(self) -> int:
        return self.batch.global_batch * self.workload.samples_per_item

    def _train_loader(self, epoch: int) -> DataLoader[Any]:
        config, place = self.config, self.world
        seed = seed_everything(config.seed, epoch + 1, place.rank)
        sampler = epoch_sampler(self.splits.train, place.rank, place.world_size, config.seed, epoch)
        return self._loader(
            self.splits.train, sampler=sampler, drop_last=True, generator=_generator(seed)
        )

    def _loader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_size=self.batch.local_batch,
            num_workers=self.config.workers,
            pin_memory=self.device.type == "cuda",
            **options,
        )

    def _to_device(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        return inputs, targets

    @torch.no_grad()
    def _validate(self) -> tuple[float, float | None]:
        """Return loss and accuracy over the whole validation set, each item counted once."""
        model = self.step.ddp.module.eval()
        # Running statistics differ between ranks after a step; every rank judges rank 0's model.
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)
        num_items = len(self.splits.validation)  # type: ignore[arg-type]
        own = validation_indices(num_items, self.world.rank, self.world.world_size)
        self.score.reset()
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in self._loader(Subset(self.splits.validation, own)):
            inputs, targets = self._to_device(batch)
            with self.step.autocast():
                loss += self.score(model(inputs), targets).double() * len(inputs)
        total, correct, judged = self._sums(loss, self.score.correct, self.score.judged)
        return total / num_items, _share(correct, judged)

    def _sums(self, *values: torch.Tensor | float) -> list[float]:
        """Return values summed over all ranks."""
        own = [torch.as_tensor(value, device=self.device).double() for value in values]
        totals = torch.stack(own)
        distributed.all_reduce(totals)
        return [float(total) for total in totals.tolist()]

    def _largest(self, value: int | None) -> int | None:
        """Return the largest value of all ranks, None if no rank knows its own."""
        own = torch.tensor(value or 0, device=self.device)
        distributed.all_reduce(own, distributed.ReduceOp.MAX)
        return int(own.item()) or None

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
            "trajectory": _trajectory(self.config, self.batch),
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

    def _device_name(self) -> str:
        """Return the name of this rank's device: of its GPU, or of the processor."""
        facts = provenance.rank_facts(self.world.rank, self.world.local_rank, self.world.device)
        return str(facts["device_name"])

    def _summary(self, final: dict[str, Any], checksums: list[str]) -> dict[str, Any]:
        config = self.config
        lr_rule = {name: getattr(config, name) for name in ("lr", "lr_scale", "base_batch")}
        return {
            "schema": SUMMARY_SCHEMA,
            "config": asdict(config),
            "device": self._device_name(),
            "num_parameters": sum(p.numel() for p in self.step.ddp.parameters()),
            "epoch_plan": asdict(self.plan),
            "lr_rule": lr_rule | {"scaled_lr": self.lr},
            "parameter_checksums": checksums,
            "final": final,
            "epochs": [asdict(row) for row in self.rows],
            "step_losses": self.step_losses,
        }


class Score:
    """A workload's loss that also counts right predictions, on the device, without waiting.

    Attributes:
        correct: Right predictions since the last reset.
        judged: Predictions since the last reset; none where targets are not classes.
    """

    def __init__(self, workload: Workload) -> None:
        self._loss = workload.loss
        self.reset()

    def reset(self) -> None:
        """Count from zero again."""
        self.correct: torch.Tensor | int = 0
        self.judged = 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of outputs (..., K) for classes (...) or for targets of their shape."""
        if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
            self.correct = self.correct + (outputs.detach().argmax(dim=-1) == targets).sum()
            self.judged += targets.numel()
        return self._loss(outputs, targets)


def _share(correct: float, judged: float) -> float | None:
    return correct / judged if judged else None


def seed_everything(seed: int, epoch: int = 0, rank: int = 0) -> int:
    """Seed python, numpy and torch for an epoch of a rank (epoch 0: the model); return the seed."""
    mixed = int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002 - what a user's own workload may draw from
    torch.manual_seed(mixed)
    return mixed


def epoch_sampler(
    dataset: Any, rank: int, world_size: int, seed: int, epoch: int
) -> "DistributedSampler[Any]":
    """Return a rank's share of an epoch.

    Rank r takes every world_size-th sample of one order that depends on seed and epoch alone, so
    the union of all ranks' k-th batches is the same at every world size.
    """
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=world_size, rank=rank, seed=seed, drop_last=True
    )
    sampler.set_epoch(epoch)
    return sampler


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _trajectory(config: TrainConfig, batch: Batch) -> dict[str, Any]:
    facts = {name: getattr(config, name) for name in TRAJECTORY}
    # A rate that falls with the share of epochs done would not be the same in a longer run.
    epochs = None if config.scheduler == "none" else config.epochs
    return facts | {"global_batch": batch.global_batch, "epochs": epochs}


def _read_checkpoint(config: TrainConfig, batch: Batch) -> dict[str, Any] | None:
    """Return the checkpoint to go on from, None to start anew; asked by every rank alike."""
    path = config.folder / "checkpoint.pt"
    if not path.exists():
        return None
    if not config.resume:
        raise ValueError(f"{config.folder} already holds a run; pass --resume or another --name")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    wanted = _trajectory(config, batch)
    for name, value in state["trajectory"].items():
        if wanted.get(name) != value:
            raise ValueError(
                f"{path} was trained with {name}={value}, not {wanted.get(name)}; "
                "resume with the same options, or choose another --name"
            )
    return state


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


def to_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as CSV with a header; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


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
