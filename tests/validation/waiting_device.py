"""A model on a stand-in for an accelerator: its layers wait as long as a device would compute.

While a rank waits its core is free, as it is beside a GPU, so more ranks than cores keep the time
that each would have alone. Parameters, gradients, DDP and its all-reduce are real.
"""

import time
from collections.abc import Callable

import torch
from torch import nn

from lockstep.workloads import Workload

# A backward pass computes twice what a forward pass does.
FORWARD_SHARE = 1 / 3


Seconds = Callable[[], float]


class Slowed(torch.autograd.Function):
    """The identity, which takes its time in forward and in backward."""

    @staticmethod
    def forward(ctx, values: torch.Tensor, forward_s: Seconds, backward_s: Seconds):
        ctx.backward_s = backward_s
        sleep(forward_s())
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        sleep(ctx.backward_s())
        return gradient, None, None


def sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


class Waiting(nn.Module):
    """A linear layer that takes a known time for each item."""

    def __init__(self, width, seconds_per_item):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds_per_item = seconds_per_item

    def forward(self, values):
        """Return the layer's output, shape (B, width), after the time of a batch."""
        seconds = 0.0 if values.is_meta else len(values) * self.seconds_per_item
        forward_s, backward_s = seconds * FORWARD_SHARE, seconds * (1 - FORWARD_SHARE)
        return Slowed.apply(self.linear(values), lambda: forward_s, lambda: backward_s)


def model(width: int = 512, depth: int = 8, us_per_item: int = 1000) -> Workload:
    """Return layers that together wait `us_per_item` microseconds for each item of a batch."""
    seconds = us_per_item / 1e6 / depth

    def make_batch(num_items, device, generator):
        values = torch.randn(num_items, width, device=device, generator=generator)
        return values, values.flip(1)

    return Workload(
        name="waiting",
        build=lambda: nn.Sequential(*(Waiting(width, seconds) for _ in range(depth))),
        make_batch=make_batch,
        loss=nn.functional.mse_loss,
        sample_unit="items",
    )
