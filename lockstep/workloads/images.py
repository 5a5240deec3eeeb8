"""What the image workloads share: synthetic batches made on the device itself.

Letters: B batch, C channels, H height, W width.
"""

from collections.abc import Callable

import torch
from torch import nn

from lockstep.workloads import Workload


def image_workload(
    name: str,
    build: Callable[[], nn.Module],
    channels: int,
    image: int,
    num_classes: int,
) -> Workload:
    """Return a classifier fed with noise images and random classes, cross entropy as its loss.

    Raises:
        ValueError: The image has no pixel, or there is no class.
    """
    if image < 1 or num_classes < 1:
        raise ValueError(f"{name} needs image >= 1 and classes >= 1, got {image} and {num_classes}")

    def make_batch(
        num_items: int, device: torch.device, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images (B, C, H, W) and classes (B,)."""
        shape = (num_items, channels, image, image)
        inputs = torch.randn(shape, device=device, generator=generator)
        targets = torch.randint(num_classes, (num_items,), device=device, generator=generator)
        return inputs, targets

    return Workload(name, build, make_batch, nn.functional.cross_entropy, data="synthetic")
