"""One epoch on one rank: its training steps, its validation, and the slowest rank's time."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, Subset

from lockstep.core.errors import RankError
from lockstep.core.processes import hostname
from lockstep.measure.loading.data import Splits, loader_settings
from lockstep.measure.step.train_step import TrainStep
from lockstep.ranks.process_group import World
from lockstep.trainer.plan import Batch, TrainConfig, validation_indices
from lockstep.workloads import Workload

T = TypeVar("T")


class DivergedError(RankError):
    """The loss of a step is not finite on some rank."""


class Score:
    """A workload's loss that also counts right predictions, on the device, without waiting.

    Attributes:
        correct: Right predictions since the last reset.
        judged: Predictions since the last reset; 0 where targets are not classes.

    Raises:
        ValueError: The workload has no loss.
    """

    def __init__(self, workload: Workload) -> None:
        if workload.loss is None:
            raise ValueError(
                f"workload {workload.name} has a step and no loss, which training runs need"
            )
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


@dataclass(frozen=True)
class EpochRunner:
    """Trains and validates, an epoch at a time.

    Attributes:
        batch: Samples of an update.
        step: An update.
        score: The loss of `step`, which also counts right predictions.
        rate: Takes an epoch and an update of it, from 0, and returns the learning rate.
    """

    config: TrainConfig
    world: World
    batch: Batch
    workload: Workload
    splits: Splits
    step: TrainStep
    score: Score
    rate: Callable[[int, int], float]

    @property
    def loader_settings(self) -> dict[str, Any]:
        """Settings of the loaders in force."""
        return loader_settings(self._loader(self.splits.train))

    @property
    def samples_per_step(self) -> int:
        """Samples of one update, over all ranks."""
        return self.batch.global_batch * self.workload.samples_per_item

    def timed(self, work: Callable[[], T]) -> tuple[T, list[float]]:
        """Return what the work returns, and each rank's seconds for it."""
        distributed.barrier()
        start = time.perf_counter()
        result = work()
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        elapsed_s = time.perf_counter() - start
        of_ranks = torch.zeros(self.world.world_size, dtype=torch.float64)
        of_ranks[self.world.rank] = elapsed_s
        of_ranks = of_ranks.to(self.world.device)
        distributed.all_reduce(of_ranks)
        return result, of_ranks.tolist()

    def train(self, epoch: int, num_steps: int) -> tuple[list[float], float | None]:
        """Take the epoch's steps; return each step's loss over all ranks, and the accuracy."""
        self.step.ddp.train()
        self.score.reset()
        batches = iter(self._train_loader(epoch))
        own = torch.stack(
            [self._update(epoch, step, next(batches)) for step in range(num_steps)]
        ).double()
        losses = own.clone()
        distributed.all_reduce(losses)
        if not losses.isfinite().all():
            self._refuse_divergence(epoch, own)
        correct, judged = self._sums(self.score.correct, self.score.judged)
        return (losses / self.world.world_size).tolist(), _share(correct, judged)

    def _update(self, epoch: int, step: int, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        for group in self.step.optimizer.param_groups:
            group["lr"] = self.rate(epoch, step)
        return self.step.run(*self._to_device(batch)).detach()

    def _refuse_divergence(self, epoch: int, own: torch.Tensor) -> NoReturn:
        """End a run whose losses, of shape (num_steps,) on each rank, are not all finite.

        Raises:
            DivergedError: Always; it names the ranks whose loss was the first.
        """
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

    def _train_loader(self, epoch: int) -> DataLoader[Any]:
        config, place = self.config, self.world
        seed = seed_everything(config.seed, epoch + 1, place.rank)
        sampler = epoch_sampler(self.splits.train, place.rank, place.world_size, config.seed, epoch)
        return self._loader(
            self.splits.train,
            sampler=sampler,
            drop_last=True,
            generator=torch.Generator().manual_seed(seed),
        )

    def _loader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_size=self.batch.local_batch,
            num_workers=self.config.num_workers,
            pin_memory=self.world.device.type == "cuda",
            **options,
        )

    def _to_device(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = (part.to(self.world.device, non_blocking=True) for part in batch)
        return inputs, targets

    @torch.no_grad()
    def validate(self) -> tuple[float, float | None]:
        """Return loss and accuracy over the whole validation set, each item counted once.

        Raises:
            DivergedError: The loss is not finite.
        """
        model = self.step.ddp.module.eval()
        # Running statistics differ between ranks after a step; every rank judges rank 0's model.
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
        if not math.isfinite(total):  # on all ranks alike
            raise DivergedError(f"the validation loss is {total:g}; lower --lr")
        return total / num_items, _share(correct, judged)

    def _sums(self, *values: torch.Tensor | float) -> list[float]:
        """Return values summed over all ranks."""
        own = [torch.as_tensor(value, device=self.world.device).double() for value in values]
        totals = torch.stack(own)
        distributed.all_reduce(totals)
        return [float(total) for total in totals.tolist()]

    def largest(self, value: int | None) -> int | None:
        """Return the largest value of all ranks, None if no rank knows its own."""
        own = torch.tensor(value or 0, device=self.world.device)
        distributed.all_reduce(own, distributed.ReduceOp.MAX)
        return int(own.item()) or None
