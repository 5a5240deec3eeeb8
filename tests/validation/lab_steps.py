"""Training steps as repositories have them, each with one thing that makes it what it is."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from lab_runs import Made, Run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOCAL_BATCH, WIDTH = 32, 128
# What a device takes for a batch; a sleep, so that other work on the cores matters little.
DEVICE_S = 0.1
LATER_S, FETCH_S = 0.05, 0.07
MICRO_BATCHES = 8
TINY_OPERATIONS = 12_000


def make(run: Run, rank: int) -> Made:
    """Return the step of a run on a rank."""
    torch.manual_seed(0)
    return STEPS[run["kind"]](rank)


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))


def _batch() -> torch.Tensor:
    return torch.randn(LOCAL_BATCH, WIDTH)


class Slow:
    """A loader whose batches each take a while to come."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Give an epoch of twenty batches."""
        for _ in range(20):
            time.sleep(FETCH_S)
            yield _batch()


def _trained(
    model: Any,
    ddp: Any,
    *,
    device_s: float = DEVICE_S,
    batches: Any = None,
    read: Callable[[Any], torch.Tensor] = lambda batch: batch,
    more: Callable[[torch.Tensor], object] = lambda loss: None,
) -> Made:
    """Return the step that trains a model; `more` is done with the loss of each."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    fixed = _batch()

    def step(batch: Any = None) -> None:
        inputs = fixed if batch is None else read(batch)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        time.sleep(device_s * len(inputs) / LOCAL_BATCH)
        loss.backward()
        more(loss)
        optimizer.step()

    def whole() -> None:
        step()

    return Made(whole if batches is None else step, ddp, batches, LOCAL_BATCH)


def _plain(**more: Any) -> Made:
    ddp = DistributedDataParallel(_net())
    return _trained(ddp, ddp, **more)


def _tiny(_rank: int) -> Made:
    weights = torch.ones(4)

    def tiny(_loss: torch.Tensor) -> None:
        for _ in range(TINY_OPERATIONS):
            weights.add(1.0)

    return _plain(more=tiny, device_s=0.02, batches=[_batch() for _ in range(20)])


def _accumulated(syncs: bool) -> Made:
    ddp = DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    fixed = _batch()

    def step() -> None:
        optimizer.zero_grad()
        for number in range(MICRO_BATCHES):
            is_last = number == MICRO_BATCHES - 1
            with contextlib.nullcontext() if syncs or is_last else ddp.no_sync():
                loss = ddp(fixed).square().mean() / MICRO_BATCHES
                time.sleep(DEVICE_S / MICRO_BATCHES)
                loss.backward()
        optimizer.step()

    return Made(step, ddp, None, MICRO_BATCHES * LOCAL_BATCH)


def _sharded(_rank: int) -> Made:
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(_net())
    return _trained(net, None)


def _compiled(_rank: int) -> Made:
    ddp = DistributedDataParallel(_net())
    return _trained(torch.compile(ddp), ddp, batches=[_batch() for _ in range(20)])


def _of_dict(_rank: int) -> Made:
    batches = [{"x": _batch(), "y": torch.zeros(LOCAL_BATCH)} for _ in range(20)]
    return _plain(batches=batches, read=lambda batch: batch["x"])


STEPS: Mapping[str, Callable[[int], Made]] = {
    "plain": lambda rank: _plain(),
    "slow rank": lambda rank: _plain(device_s=DEVICE_S + LATER_S * (rank == 1)),
    "slow data": lambda rank: _plain(batches=Slow()),
    "tiny operations": _tiny,
    "accumulation, no_sync": lambda rank: _accumulated(syncs=False),
    "accumulation": lambda rank: _accumulated(syncs=True),
    "scales, but slow": lambda rank: _plain(device_s=3 * DEVICE_S),
    "FSDP2": _sharded,
    "compiled": _compiled,
    "dict batch": _of_dict,
    "loss all-reduced": lambda rank: _plain(more=lambda loss: dist.all_reduce(loss.detach())),
}
