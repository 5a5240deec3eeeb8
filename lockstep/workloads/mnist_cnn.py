"""The small convolutional network of the MNIST tutorials: two convolutions, two dense layers.

Without the tutorials' dropout, so that its loss is a function of weights and batch alone.
"""

from torch import nn

from lockstep.workloads import Workload
from lockstep.workloads.images import image_workload

IMAGE = 28
NUM_CLASSES = 10
# Two unpadded 3 x 3 convolutions and one 2 x 2 pooling: (28 - 4) / 2 = 12.
POOLED = 12


def mnist_cnn() -> Workload:
    """Return the network of 1,199,882 parameters for images (B, 1, 28, 28).

    Cross entropy on its outputs is the tutorials' log-softmax and negative log-likelihood.
    """
    return image_workload("mnist_cnn", _network, 1, IMAGE, NUM_CLASSES)


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * POOLED**2, 128),
        nn.ReLU(),
        nn.Linear(128, NUM_CLASSES),
    )
