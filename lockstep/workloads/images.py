"""The image workloads: networks of tutorials and torchvision, on batches made on the device.

Any torchvision classification model goes by its own name: `resnet152`, `vit_b_16:image=384`.
Letters: B batch, C channels, H height, W width.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock

from lockstep.workloads import Builder, Workload, unknown

CIFAR_CLASSES = 10
IMAGENET_CLASSES = 1000
# Training images of the data set that batches of a shape, (image, classes), stand for: MNIST (LeCun
# et al. 1998), CIFAR-10 (Krizhevsky 2009), ImageNet-1k (Russakovsky et al. 2015).
EPOCH_SAMPLES = {(28, 10): 60_000, (32, 10): 50_000, (224, 1000): 1_281_167}


def image_workload(
    name: str, build: Callable[[], nn.Module], channels: int, image: int, num_classes: int
) -> Workload:
    """Return a classifier fed with noise images and random classes, cross entropy as its loss.

    Raises:
        ValueError: The image has no pixel, or there is no class.
    """
    if image < 1 or num_classes < 1:
        raise ValueError(
            f"workload {name} needs image and num_classes of 1 or more, but got image={image} and "
            f"num_classes={num_classes}"
        )

    def make_batch(
        num_items: int, device: torch.device, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images (B, C, H, W) and classes (B,)."""
        shape = (num_items, channels, image, image)
        inputs = torch.randn(shape, device=device, generator=generator)
        targets = torch.randint(num_classes, (num_items,), device=device, generator=generator)
        return inputs, targets

    return Workload(
        name, build, make_batch, nn.functional.cross_entropy, data="synthetic",
        epoch_samples=EPOCH_SAMPLES.get((image, num_classes)),
    )  # fmt: skip


def mnist_cnn() -> Workload:
    """Return the MNIST tutorials' network of 1,199,882 parameters, for images (B, 1, 28, 28).

    It has no dropout, unlike theirs, so that its loss depends on weights and batch alone. Cross
    entropy on its outputs is the tutorials' log-softmax and negative log-likelihood.
    """

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            # Two unpadded 3 x 3 convolutions and one 2 x 2 pooling: (28 - 4) / 2 = 12.
            nn.Linear(64 * 12**2, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    return image_workload("mnist_cnn", build, 1, 28, 10)


def resnet18(image: int = 32) -> Workload:
    """Return torchvision's ResNet-18 with ten classes: 11,181,642 parameters at any image size.

    The stem shrinks an image four times, so 32 x 32 costs little; see `resnet18_cifar`.
    """

    def build() -> nn.Module:
        return torchvision.models.resnet18(num_classes=CIFAR_CLASSES)  # type: ignore[no-any-return]

    return image_workload("resnet18", build, 3, image, CIFAR_CLASSES)


def resnet18_cifar(width: int = 64, image: int = 32) -> Workload:
    """Return ResNet-18 with a 3 x 3 stem of stride 1 and no pooling: 11,173,962 parameters.

    Args:
        width: Channels of the first stage; the later ones have 2, 4 and 8 times as many.
        image: Height and width of an image.

    Raises:
        ValueError: The width is not positive.
    """
    if width < 1:
        raise ValueError(f"resnet18_cifar needs width >= 1, got {width}")
    return image_workload("resnet18_cifar", lambda: _cifar_network(width), 3, image, CIFAR_CLASSES)


def resnet50(image: int = 224) -> Workload:
    """Return torchvision's ResNet-50 with 1,000 classes: 25,557,032 parameters."""

    def build() -> nn.Module:
        return torchvision.models.resnet50(num_classes=IMAGENET_CLASSES)  # type: ignore[no-any-return]

    return image_workload("resnet50", build, 3, image, IMAGENET_CLASSES)


def _cifar_network(width: int) -> nn.Module:
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages: list[nn.Module] = []
    for before, after in pairwise(widths):
        # The first stage of two blocks keeps the image's size, each later one halves it.
        stride, shortcut = 1, None
        if stages:
            stride = 2
            shortcut = nn.Sequential(
                nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(after),
            )
        block = BasicBlock(before, after, stride, shortcut)
        stages.append(nn.Sequential(block, BasicBlock(after, after)))
    network = nn.Sequential(
        nn.Conv2d(3, width, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], CIFAR_CLASSES),
    )
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def builder(name: str) -> Builder:
    """Return the builder of a torchvision classification model.

    Raises:
        ValueError: torchvision has no such model.
    """
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise unknown(name, names)

    def make(image: int = 224, classes: int = 1000) -> Workload:
        def build() -> nn.Module:
            arguments: dict[str, Any] = {}
            if name in ("googlenet", "inception_v3"):
                # A plain loss does not take the extra outputs of auxiliary logits.
                arguments = {"aux_logits": False, "init_weights": True}
            elif name.startswith("vit_"):
                arguments = {"image_size": image}
            elif name.startswith("maxvit_"):
                arguments = {"input_size": (image, image)}
            return torchvision.models.get_model(  # type: ignore[no-any-return]
                name, weights=None, num_classes=classes, **arguments
            )

        return image_workload(name, build, 3, image, classes)

    return make
