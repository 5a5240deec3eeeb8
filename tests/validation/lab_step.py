"""The laboratory's training step: a small convolutional net in DDP into which faults can be put."""

import os
import random
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lab_faults import Delays
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

Seconds = Callable[[], float]

LOCAL_BATCH = 112
PIXELS = 16
# What a device computes, during which its host waits: in forward, and in each half of backward.
DEVICE_S = 0.02
# Of the steps of a device, as a standard deviation over its mean.
JITTER = 0.02


class Slowed(torch.autograd.Function):
    """The identity, which takes its time in forward and in backward."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, forward_s: Seconds, backward_s: Seconds
    ) -> torch.Tensor:
        ctx.backward_s = backward_s
        _sleep(forward_s())
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        _sleep(ctx.backward_s())
        return gradient, None, None


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


class Net(nn.Module):
    """What all nets of the laboratory share: faults in forward and backward, tiny operations."""

    def __init__(self, delays: Delays) -> None:
        super().__init__()
        self.delays = delays
        self.register_buffer("tiny", torch.zeros(1))

    def faulty(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values, after the delays."""
        return Slowed.apply(values, lambda: self.delays.forward_s, lambda: self.delays.backward_s)

    def add_tiny(self) -> None:
        """Do the tiny operations."""
        for _ in range(self.delays.num_tiny):
            self.tiny.add_(1.0)


class OnCpu(Net):
    """Two convolutions and a classifier, computed by this rank's core; 0.5 MB of gradients."""

    shape = (3, PIXELS, PIXELS)

    def __init__(self, delays: Delays) -> None:
        super().__init__(delays)
        self.first = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
        self.last = nn.Sequential(
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 96), nn.ReLU(),
            nn.Linear(96, 10),
        )  # fmt: skip

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the classes of images, (B, 3, 16, 16) to (B, 10)."""
        self.add_tiny()
        return self.last(self.faulty(self.second(self.first(inputs))))


class OnDevice(Net):
    """Three linear layers between which a device computes, in proportion to the batch.

    The host sleeps meanwhile, as it waits for a GPU; 0.6 MB of gradients.
    """

    shape = (64,)

    def __init__(self, delays: Delays) -> None:
        super().__init__(delays)
        self.layers = nn.ModuleList([nn.Linear(64, 512), nn.Linear(512, 240), nn.Linear(240, 10)])
        self.draw = random.Random(int(os.environ["RANK"]))  # noqa: S311

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the classes of vectors, (B, 64) to (B, 10)."""
        self.add_tiny()
        share = len(inputs) / LOCAL_BATCH
        first, second, third = self.layers
        values = Slowed.apply(first(inputs), self._of(share), self._of(share))
        values = Slowed.apply(self.faulty(second(values)), _nothing, self._of(share))
        return third(values)

    def _of(self, share: float) -> Seconds:
        return lambda: share * DEVICE_S * self.draw.gauss(1.0, JITTER)


def _nothing() -> float:
    return 0.0


NETS = {"cpu": OnCpu, "device": OnDevice}


class Step:
    """A step with its variants.

    Args:
        delays: What is put into it.
        computes: Where its net computes, of `NETS`.
        bucket_cap_mb: DDP's own parameter.
    """

    def __init__(self, delays: Delays, computes: str, bucket_cap_mb: float | None = None) -> None:
        torch.manual_seed(0)
        self.delays = delays
        net = NETS[computes](delays)
        cap = {} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}
        self.ddp = DistributedDataParallel(net, broadcast_buffers=False, **cap)
        self.ddp.register_comm_hook(None, self._hook)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)
        self.inputs = torch.randn(LOCAL_BATCH, *net.shape)
        self.targets = torch.randint(0, 10, (LOCAL_BATCH,))

    def resident(self) -> None:
        """Train on the batch that is there."""
        self._train(LOCAL_BATCH)

    def half(self) -> None:
        """Train on half of it, without synchronisation."""
        with self.ddp.no_sync():
            self._train(LOCAL_BATCH // 2)

    def full(self) -> None:
        """Wait for the loader, then train."""
        time.sleep(self.delays.input_s) if self.delays.input_s else None
        self.resident()

    def own(self) -> None:
        """Train without synchronisation."""
        with self.ddp.no_sync():
            self.resident()

    def _train(self, count: int) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        outputs = self.ddp(self.inputs[:count])
        nn.functional.cross_entropy(outputs, self.targets[:count]).backward()
        self.optimizer.step()

    def _hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        time.sleep(self.delays.hook_s) if self.delays.hook_s else None
        return allreduce_hook(state, bucket)
