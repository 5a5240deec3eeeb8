"""Residual networks: torchvision's own, and ResNet-18 with the stem meant for 32 x 32 images.

Architecture: He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385.
"""

from itertools import pairwise

import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock

from lockstep.workloads import Workload
from lockstep.workloads.images import image_workload

CIFAR_CLASSES = 10
IMAGENET_CLASSES = 1000
BLOCKS_PER_STAGE = 2


def resnet18(image: int = 32) -> Workload:
    """Return torchvision's ResNet-18 with ten classes: 11,181,642 parameters at any image size.

    Its stem shrinks an image four times, so 32 x 32 costs little; see `resnet18_cifar`.
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
    stages = [
        _stage(before, after, stride=1 if index == 0 else 2)
        for index, (before, after) in enumerate(pairwise(widths))
    ]
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


def _stage(before: int, after: int, stride: int) -> nn.Module:
    shortcut = None
    if stride != 1 or before != after:
        shortcut = nn.Sequential(
            nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False),
            nn.BatchNorm2d(after),
        )
    rest = [BasicBlock(after, after) for _ in range(BLOCKS_PER_STAGE - 1)]
    return nn.Sequential(BasicBlock(before, after, stride, shortcut), *rest)
