"""A wide multi-layer perceptron: many gradient bytes for few FLOPs, so communication shows.

Letters: B batch, W width.
"""

import torch
from torch import nn

from lockstep.workloads import Workload

NUM_CLASSES = 10
MAX_DEPTH = 10_000  # making more layers would take minutes


def mlp(width: int = 1024, depth: int = 4) -> Workload:
    """Return `depth` square layers of `width` units and a classifier of ten classes.

    Raises:
        ValueError: The width or the depth is out of range.
    """
    if width < 1 or not 1 <= depth <= MAX_DEPTH:
        raise ValueError(
            f"workload mlp needs a width of 1 or more and a depth from 1 to {MAX_DEPTH}, but got "
            f"width={width} and depth={depth}"
        )

    def build() -> nn.Module:
        hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, NUM_CLASSES))

    def make_batch(
        num_items: int, device: torch.device, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs (B, W) and classes (B,)."""
        inputs = torch.randn(num_items, width, device=device, generator=generator)
        targets = torch.randint(NUM_CLASSES, (num_items,), device=device, generator=generator)
        return inputs, targets

    return Workload(
        "mlp", build, make_batch, nn.functional.cross_entropy, sample_unit="vectors",
        data="synthetic",
    )  # fmt: skip
