"""The trainer: whole epochs of data-parallel training, resumable after each.

Rank 0 writes into a folder that all ranks see: `steps.jsonl` (a line per update), and parameters:
`checkpoint.pt` of the last epoch, `best.pt` of the best, and those of every N-th epoch on request.

Runs with the same seed give equal losses on a CPU. On a GPU cuDNN may choose algorithms that
differ in the last digits; `torch.use_deterministic_algorithms` would forbid them and be slower.
"""

import contextlib
import io
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, Subset

from lockstep import workloads
from lockstep.core.errors import RankError
from lockstep.core.files import write_atomically
from lockstep.core.processes import hostname
from lockstep.core.record import (
    BASIS,
    LOADER_SETTINGS,
    Basis,
    Checkpoints,
    Data,
    Epoch,
    Training,
    time_to,
)
from lockstep.core.sizes import case_id, num_moments
from lockstep.machine import memory, nvidia, provenance
from lockstep.measure.harness import Harness
from lockstep.measure.loading import data
from lockstep.measure.loading.data import loader_settings
from lockstep.measure.step.precision import why_unsupported
from lockstep.measure.step.step_cases import facts_of, precision_flags, skip_unless_supported
from lockstep.measure.step.train_step import (
    SETTLED_STEPS,
    StepConfig,
    TrainStep,
    buckets,
    parameter_checksum,
)
from lockstep.measure.step.variants import Marks
from lockstep.measure.timing import synchronise
from lockstep.ranks import process_group as world
from lockstep.trainer.plan import (
    Batch,
    TrainConfig,
    case_folder,
    epoch_steps,
    rate_factor,
    refuse_changed,
    scaled_lr,
    validation_indices,
)
from lockstep.workloads.costs import batch_bytes, model_bytes

T = TypeVar("T")
LAST = "checkpoint.pt"
BEST = "best.pt"
STEPS = "steps.jsonl"
# Options that the record repeats under the same name.
RECORDED_OPTIONS = ("data", "epochs", "optimizer", "warmup_epochs", "weight_decay", "accumulation",
    "augment", "seed", "target_accuracy")  # fmt: skip
# Options that `StepConfig` has under the same name.
OF_STEP = ("precision", "bucket_cap_mb", "accumulation", "optimizer", "momentum", "weight_decay")


class DivergedError(RankError):
    """The loss of a step is not finite on some rank."""


class Score:
    """A workload's loss that also counts right predictions, on the device, without waiting."""

    def __init__(self, workload: workloads.Workload) -> None:
        if workload.loss is None:
            raise ValueError(
                f"workload {workload.name} has no loss, which a training run needs; give the "
                "workload a loss"
            )
        self._loss = workload.loss
        self.reset()

    def reset(self) -> None:
        self.correct: torch.Tensor | int = 0  # right predictions since the last reset
        self.judged = 0  # predictions since then; 0 if targets are not classes

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of outputs (..., K) for classes (...) or for targets of their shape."""
        if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
            self.correct = self.correct + (outputs.detach().argmax(dim=-1) == targets).sum()
            self.judged += targets.numel()
        return self._loss(outputs, targets)


def seed_everything(seed: int, epoch: int = 0, rank: int = 0) -> int:
    """Seed Python, numpy and torch for an epoch of a rank (0 for the model); return the seed."""
    mixed = int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002 - a user's own workload may draw from it
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


class Trainer:
    """One rank of a training run; `on_epoch` gets each epoch that was saved, on every rank."""

    def __init__(
        self, config: TrainConfig, joined: world.World, on_epoch: Callable[[Epoch], None]
    ) -> None:
        self.config = config
        self.on_epoch = on_epoch
        self.folder = Path(config.folder)
        self.world = joined
        self.device = joined.device
        self.batch = Batch.of(config, joined.world_size)
        state = self._read_checkpoint()
        seed_everything(config.seed)
        self.workload = workloads.make(config.workload)
        _check_memory(config, self.workload, self.batch.local_batch, joined)
        source = config.data, Path(config.data_root)
        self.splits = data.load(*source, self.workload, config.augment, config.num_synthetic)
        num_samples = len(self.splits.train)  # type: ignore[arg-type]
        # Updates of an epoch.
        self.num_steps = epoch_steps(num_samples, joined.world_size, self.batch.local_batch)
        self.lr = scaled_lr(config.lr, config.lr_scale, self.batch.global_batch, config.base_batch)
        # The device of another rank may be older.
        lacks = why_unsupported(config.precision, joined.device) or ""
        if reason := next(filter(None, joined.control.exchange_all("precision", lacks)), None):
            raise RuntimeError(reason)
        self.score = Score(self.workload)
        seed_everything(config.seed)  # the model is equal on all ranks
        settings = {name: getattr(config, name) for name in OF_STEP}
        # The run's optimizer, schedule and step replace those of the workload.
        own = replace(self.workload, optimizer=None, scheduler=None, step=None)
        model = self.workload.build().to(self.device)
        self.step = TrainStep(
            model, self.score, StepConfig(**settings, lr=self.lr), self.device, own
        )
        if self.device.type == "cpu":  # on a GPU DDP would wait for the device to read its clock
            self.step.ddp._set_ddp_runtime_logging_sample_rate(1)  # noqa: SLF001, no public name
        # Samples of one update, over all ranks.
        self.samples_per_step = self.batch.global_batch * self.workload.samples_per_item
        self.rows: list[Epoch] = []  # the epochs so far
        self.rank_s: list[list[float]] = []  # seconds of their updates, (num_epochs, num_ranks)
        self.step_losses: list[float] = []  # mean over all ranks, of every update
        # Buckets and settings of DDP and of the loader, as results record them.
        self.in_force: dict[str, Any] = {}
        self.checksums: list[str] = []  # of the parameters of each rank, after the training
        self._step_bytes = 0
        if state is not None:
            self._restore(state)
        self._num_restored = len(self.step_losses)

    def train(self) -> None:
        first = len(self.rows)
        if self.world.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / STEPS
            if path.exists() and path.stat().st_size > self._step_bytes:
                os.truncate(path, self._step_bytes)  # remove updates of an unfinished epoch
        for epoch in range(first, self.config.epochs):
            if self._remaining_steps() == 0:
                break
            with _advising(self.device, self.config.accumulation, self.batch.local_batch):
                self.rows.append(self._epoch(epoch, is_warmup=epoch == first))
            if self.world.rank == 0:
                self._save()
            distributed.barrier()
            self.on_epoch(self.rows[-1])
        own = parameter_checksum(self.step.ddp)
        self.checksums = self.world.control.exchange_all("checksums", own)
        check_equal_parameters(self.checksums)

    def rate(self, epoch: int, step: int) -> float:
        """Return the learning rate of an update, epoch and update counted from 0."""
        return self.lr * rate_factor(self.config, epoch, step, self.num_steps)

    def _remaining_steps(self) -> int:
        limit = self.config.max_steps
        return self.num_steps if limit is None else max(0, limit - len(self.step_losses))

    def _epoch(self, epoch: int, is_warmup: bool) -> Epoch:
        memory.reset_peak(self.device)
        num_steps = min(self.num_steps, self._remaining_steps())
        marks, sent_before = Marks(self.device), self._communication()
        (losses, train_accuracy), rank_s = self._timed(
            lambda: self._train_epoch(epoch, num_steps, marks)
        )
        phases = self._phases(marks, num_steps, sent_before)
        (val_loss, val_accuracy), val_s = self._timed(self._validate)
        self.step_losses += losses
        in_force = buckets(self.step.ddp) | {
            LOADER_SETTINGS: loader_settings(self._loader(self.splits.train))
        }
        if len(self.step_losses) - self._num_restored < SETTLED_STEPS:
            del in_force["bucket_bytes"]  # DDP has not yet rebuilt its buckets
        self.in_force |= in_force
        self.rank_s.append(rank_s)
        train_s = max(rank_s)
        return Epoch(
            epoch=epoch + 1, steps=num_steps, time_s=train_s,
            samples_per_s=num_steps * self.samples_per_step / train_s,
            lr=self.rate(epoch, num_steps - 1), loss=sum(losses) / len(losses),
            validation_loss=val_loss, accuracy=val_accuracy, train_accuracy=train_accuracy,
            validation_s=max(val_s), is_warmup=is_warmup,
            peak_memory_bytes=self._largest(memory.peak(self.device).used_bytes), **phases,
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip

    def _phases(
        self, marks: Marks, num_steps: int, sent_before: tuple[int, float]
    ) -> dict[str, float]:
        """Return the seconds of an epoch's phases, means over ranks, by field of `Epoch`."""
        means = {name: own[0] for name, own in marks.turn_seconds(1).items()}
        own = [num_steps * means[name] for name in ("data", "forward", "backward")]
        names = ["data_s", "forward_s", "backward_s"]
        now = self._communication()
        steps, seconds = now[0] - sent_before[0], now[1] - sent_before[1]
        if steps:  # the last step of an epoch is counted at the next one's first
            names.append("communication_s")
            own.append(seconds / steps * num_steps)
        totals = self._sums(*own)
        return {
            name: total / self.world.world_size for name, total in zip(names, totals, strict=True)
        }

    def _communication(self) -> tuple[int, float]:
        """Return the steps that DDP has timed, and the seconds that their all-reduces took."""
        if self.device.type != "cpu":
            return 0, 0.0
        facts = self.step.ddp._get_ddp_logging_data()  # noqa: SLF001, as above
        steps = int(facts.get("iteration", 0))
        return steps, steps * facts.get("avg_backward_comm_time", 0) / 1e9

    def _save(self) -> None:
        """Write the last epoch's files, on rank 0; the checkpoint comes last."""
        start, row = time.perf_counter(), self.rows[-1]
        model = self.step.ddp.module.state_dict()
        weights = {"model": model, "epoch": row.epoch, "accuracy": row.accuracy}
        # The highest accuracy is best; without accuracies, the lowest loss.
        *before, last = [
            (-math.inf if epoch.accuracy is None else epoch.accuracy, -epoch.validation_loss)
            for epoch in self.rows
        ]
        if not before or last > max(before):
            self._write(BEST, weights)
        every = self.config.checkpoint_every
        if every and row.epoch % every == 0:
            self._write(f"epoch-{row.epoch:04}.pt", weights)
        state = {
            "model": model,
            "optimizer": self.step.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "epochs": [asdict(row) for row in self.rows],
            "rank_s": self.rank_s,
            "step_losses": self.step_losses,
            "in_force": self.in_force,
            "trajectory": vars(self.config) | self._trajectory_facts(),
            "step_bytes": self._append_steps(),
        }
        self._write(LAST, state)
        self.rows[-1] = replace(row, checkpoint_s=time.perf_counter() - start)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(dict(content), buffer)
        write_atomically(self.folder / name, buffer.getvalue())

    def _append_steps(self) -> int:
        """Append a line for each update of the last epoch; return the new size in bytes."""
        row = self.rows[-1]
        first = len(self.step_losses) - row.steps
        with (self.folder / STEPS).open("a", encoding="utf-8") as file:
            for number, loss in enumerate(self.step_losses[first:]):
                lr = self.rate(row.epoch - 1, number)
                step = {"kind": "step", "epoch": row.epoch, "step": first + number + 1}
                file.write(json.dumps(step | {"loss": loss, "lr": lr}) + "\n")
            file.flush()
            return os.fstat(file.fileno()).st_size

    def _trajectory_facts(self) -> dict[str, Any]:
        """Return the facts, beside options, that must equal those of a resumed run."""
        return {
            "global_batch": self.batch.global_batch, "world_size": self.world.world_size,
            "num_nodes": self.world.num_nodes, "device_type": self.device.type,
        }  # fmt: skip

    def _read_checkpoint(self) -> dict[str, Any] | None:
        path = self.folder / LAST
        if not path.exists():
            return None
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        refuse_changed(path, self.config, state["trajectory"], **self._trajectory_facts())
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.step.ddp.module.load_state_dict(state["model"])
        self.step.optimizer.load_state_dict(state["optimizer"])
        self.step.scaler.load_state_dict(state["scaler"])
        self.rows = [Epoch(**row) for row in state["epochs"]]
        self.step_losses = list(state["step_losses"])
        self.rank_s, self.in_force = state["rank_s"], state["in_force"]
        self._step_bytes = int(state["step_bytes"])
        done = len(self.step_losses)
        if self._remaining_steps() and done % self.num_steps:
            raise ValueError(
                f"the run in {self.folder} stopped after {done} updates, within an epoch of "
                f"{self.num_steps} updates, so it cannot be resumed; choose another --name, or "
                f"pass --max-steps {done} to keep the run as it is"
            )

    def _timed(self, work: Callable[[], T]) -> tuple[T, list[float]]:
        """Return the result of the work, and each rank's seconds for it."""
        distributed.barrier()
        start = time.perf_counter()
        result = work()
        synchronise(self.device)
        elapsed_s = time.perf_counter() - start
        of_ranks = torch.zeros(self.world.world_size, dtype=torch.float64)
        of_ranks[self.world.rank] = elapsed_s
        of_ranks = of_ranks.to(self.world.device)
        distributed.all_reduce(of_ranks)
        return result, of_ranks.tolist()

    def _train_epoch(
        self, epoch: int, num_steps: int, marks: Marks
    ) -> tuple[list[float], float | None]:
        """Run the epoch's steps; return each step's mean loss over all ranks, and the accuracy."""
        self.step.ddp.train()
        self.score.reset()
        config, place = self.config, self.world
        seed = seed_everything(config.seed, epoch + 1, place.rank)
        sampler = epoch_sampler(self.splits.train, place.rank, place.world_size, config.seed, epoch)
        generator = torch.Generator().manual_seed(seed)
        loader = self._loader(
            self.splits.train, sampler=sampler, drop_last=True, generator=generator
        )
        losses_here = []
        self.step.on_phase = marks.end
        batches = chain(loader)  # starts the workers with the first batch
        for step in range(num_steps):
            for group in self.step.optimizer.param_groups:
                group["lr"] = self.rate(epoch, step)
            marks.begin()
            batch = self._to_device(next(batches))
            marks.end("data")
            losses_here.append(self.step.run(*batch).detach())
        own = torch.stack(losses_here).double()
        losses = own.clone()
        distributed.all_reduce(losses)
        if not losses.isfinite().all():
            self._refuse_divergence(epoch, own)
        correct, judged = self._sums(self.score.correct, self.score.judged)
        accuracy = correct / judged if judged else None
        return (losses / self.world.world_size).tolist(), accuracy

    def _refuse_divergence(self, epoch: int, own: torch.Tensor) -> NoReturn:
        """Raise DivergedError; losses (num_steps,) of a rank are not all finite."""
        bad = (~own.isfinite()).nonzero().flatten().tolist()
        first = {"step": bad[0] if bad else None, "loss": f"{own[bad[0]]:g}" if bad else ""}
        ends = self.world.control.exchange_all("diverged", first | {"host": hostname()})
        step = min(end["step"] for end in ends if end["step"] is not None)
        ranks = [rank for rank, end in enumerate(ends) if end["step"] == step]
        who = f"rank {ranks[0]} on {ends[ranks[0]]['host']}"
        if len(ranks) == len(ends) > 1:
            hosts = ", ".join(dict.fromkeys(end["host"] for end in ends))
            who = f"all {len(ends)} ranks on {hosts}"
        raise DivergedError(
            f"{who}: the loss is {ends[ranks[0]]['loss']} in step {step + 1} of epoch {epoch + 1}; "
            "lower --lr, or look at the data of that step",
            *ranks,
        )

    def _loader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(
            dataset, batch_size=self.batch.local_batch, num_workers=self.config.num_workers,
            pin_memory=self.world.device.type == "cuda", **options,
        )  # fmt: skip

    def _to_device(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = (part.to(self.world.device, non_blocking=True) for part in batch)
        return inputs, targets

    @torch.no_grad()
    def _validate(self) -> tuple[float, float | None]:
        """Return loss and accuracy over the whole validation set, each item counted once."""
        model = self.step.ddp.module.eval()
        # Running statistics differ between ranks after a step; every rank validates rank 0's model.
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)
        num_items = len(self.splits.validation)  # type: ignore[arg-type]
        own = validation_indices(num_items, self.world.rank, self.world.world_size)
        self.score.reset()
        loss = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for batch in self._loader(Subset(self.splits.validation, own)):
            inputs, targets = self._to_device(batch)
            with self.step.autocast():
                loss += self.score(model(inputs), targets).double() * len(inputs)
        total, correct, judged = self._sums(loss, self.score.correct, self.score.judged)
        if not math.isfinite(total):  # equal on all ranks
            raise DivergedError(f"the validation loss is {total:g}; lower the learning rate (--lr)")
        return total / num_items, correct / judged if judged else None

    def _sums(self, *values: torch.Tensor | float) -> list[float]:
        own = [torch.as_tensor(value, device=self.world.device).double() for value in values]
        totals = torch.stack(own)
        distributed.all_reduce(totals)
        return [float(total) for total in totals.tolist()]

    def _largest(self, value: int | None) -> int | None:
        """Return the largest value of all ranks; None if no rank has one."""
        own = torch.tensor(value or 0, device=self.world.device)
        distributed.all_reduce(own, distributed.ReduceOp.MAX)
        return int(own.item()) or None

    def record(self, base: Path) -> Training:
        """Return the run's record, with paths of its files relative to `base`."""
        config, place = self.config, (self.world.rank, self.world.local_rank, self.device)
        accuracies = [row.accuracy for row in self.rows if row.accuracy is not None]
        names = [str(path.relative_to(base)) for path in sorted(self.folder.glob("*.pt"))]
        files = {Path(name).name: name for name in names}
        last, best = files.pop(LAST, None), files.pop(BEST, None)
        return Training(
            **{name: getattr(config, name) for name in RECORDED_OPTIONS},
            samples_per_epoch=self.num_steps * self.samples_per_step,
            lr=self.lr,
            schedule=config.scheduler,
            device_name=str(provenance.rank_facts(*place)["device_name"]),
            rows=self.rows,
            best_accuracy=max(accuracies, default=None),
            time_to_target_s=time_to(config.target_accuracy, self.rows),
            checkpoints=Checkpoints(last=last, best=best, kept=list(files.values())),
            steps_file=str((self.folder / STEPS).relative_to(base)),
        )


def _check_memory(
    config: TrainConfig, workload: workloads.Workload, local_batch: int, joined: world.World
) -> None:
    """Refuse a model, a batch or synthetic data that does not fit a rank's device or host."""
    kept = num_moments(config.optimizer, config.momentum)
    on_device = {
        f"the model {config.workload}": model_bytes(workload, kept),
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


@contextlib.contextmanager
def _advising(device: torch.device, pieces: int, local_batch: int) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"{device} has not enough memory for {local_batch // pieces} samples at once; set "
            f"accumulation to {2 * pieces}, which keeps the local batch of {local_batch}, or "
            "choose a smaller batch"
        ) from error


def check_equal_parameters(checksums: Sequence[str]) -> None:
    odd = [rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if odd:
        raise RankError(
            f"rank {odd[0]} ended with other parameters than rank 0, so the gradients were not "
            "synchronised; do not use this run",
            *odd,
        )


def train(harness: Harness, *, seed: int | None = None, **options: Any) -> None:
    """Train a model on the ranks of this launch, and record each epoch as a round.

    The run's files lie beside the launch's journal. An interrupted case continues after the last
    epoch saved, and ends as it would have without the interruption. The time limit of a case starts
    anew with each epoch.

    `seed` is by default the launch's, and `options` are fields of `TrainConfig`.
    """
    skip_unless_supported(harness, options.get("precision", "fp32"))
    with contextlib.ExitStack() as stack:
        if harness.case.folder is None:  # this launch keeps no files
            temporary = tempfile.TemporaryDirectory(prefix="lockstep-train-")
            base = Path(stack.enter_context(temporary))
        else:
            base = harness.case.folder
        least = {} if harness.measures else {"epochs": 1, "max_steps": 1, "warmup_epochs": 0}
        config = TrainConfig(
            **options | least,
            seed=harness.seed if seed is None else seed,
            data_root=str(harness.data_root),
            folder=str(base / case_folder(f"{harness.name}[{case_id(harness.factors)}]")),
        )

        def note(row: Epoch) -> None:
            if harness.case.go_on:
                harness.case.go_on({"kind": "epoch", "row": asdict(row)})

        trainer = Trainer(config, harness.world, note)
        with harness.sample_machine() as watch:
            with watch:
                trainer.train()
            harness.case.slowdowns.update(nvidia.slowdowns(harness.device))
        # The first epoch of each process warms up; it is a round only if there is no other.
        numbers = range(len(trainer.rows))
        counted = [number for number in numbers if not trainer.rows[number].is_warmup] or numbers
        optimizer = type(trainer.step.optimizer).__name__
        source: Data = "synthetic" if config.data == "synthetic" else "real"
        basis = Basis(source, times_input=True, optimizer=optimizer)
        size = replace(harness.size, steps_per_round=trainer.num_steps)
        replace(harness, size=size, goal=None).record(
            [trainer.rank_s[number][harness.world.rank] for number in counted],
            scaling=trainer.batch.scaling,
            sample_unit=trainer.workload.sample_unit,
            samples_per_step=trainer.samples_per_step,
            training=trainer.record(base),
            checks={"parameters_equal": True},
            details=trainer.in_force | {BASIS: basis.to_dict()},
            flags=precision_flags(harness.device, config.precision),
            **facts_of(harness, trainer.workload, config.precision, trainer.batch.local_batch),
        )
