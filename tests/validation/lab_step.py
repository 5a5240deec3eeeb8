"""The laboratory's training step: a small convolutional net in DDP into which faults can be put."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lab_faults import Delays
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

LOCAL_BATCH = 112
PIXELS = 16


class Slowed(torch.autograd.Function):
    """The identity, which sleeps where the step's delays say so."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, delays: Delays) -> torch.Tensor:
        ctx.delays = delays
        time.sleep(delays.forward_s) if delays.forward_s else None
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.delays.backward_s) if ctx.delays.backward_s else None
        return gradient, None


class Net(nn.Module):
    """Two convolutions and a classifier; half a megabyte of gradients."""

    def __init__(self, delays: Delays) -> None:
        super().__init__()
        self.delays = delays
        self.first = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())
        self.last = nn.Sequential(
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 96), nn.ReLU(),
            nn.Linear(96, 10),
        )  # fmt: skip
        self.register_buffer("tiny", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the classes of images, (B, 3, 16, 16) to (B, 10)."""
        for _ in range(self.delays.num_tiny):
            self.tiny.add_(1.0)
        return self.last(Slowed.apply(self.second(self.first(inputs)), self.delays))


class Step:
    """A step with its variants.

    Args:
        delays: What is put into it.
        bucket_cap_mb: DDP's own parameter.
    """

    def __init__(self, delays: Delays, bucket_cap_mb: float | None = None) -> None:
        torch.manual_seed(0)
        self.delays = delays
        cap = {} if bucket_cap_mb is None else {"bucket_cap_mb": bucket_cap_mb}
        self.ddp = DistributedDataParallel(Net(delays), broadcast_buffers=False, **cap)
        self.ddp.register_comm_hook(None, self._hook)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)
        self.inputs = torch.randn(LOCAL_BATCH, 3, PIXELS, PIXELS)
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


Variants = dict[str, Callable[[], object]]
