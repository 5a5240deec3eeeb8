"""A small data set in the Python format of CIFAR-10, made from a seed for tests without a download.

Letters: N images. Each class is a pattern under noise, which a model can learn to distinguish.
"""

import hashlib
import pickle
import random
from pathlib import Path

import numpy as np

from lockstep.core.files import write_atomically
from lockstep.measure.loading.download import lock_folder

NAME = "tiny_cifar10"
FOLDER = "cifar-10-sample-py"
BATCHES = {"data_batch_1": slice(0, 80), "test_batch": slice(80, 100)}  # training, validation
META = "batches.meta"
SEED, NUM_CLASSES, NUM_IMAGES, IMAGE_BYTES = 0, 10, 100, 3 * 32 * 32
# Of all images and classes in their order. The bytes of a file differ by numpy's version.
SHA256 = "bb681a874636e9f0c812286bbd3a567c63c4fd466483ad74cd8131602a8fb168"


def write(root: Path) -> Path:
    """Write the data set once, and return its folder.

    https://www.cs.toronto.edu/~kriz/cifar.html describes the files.
    """
    draw = random.Random(SEED)  # noqa: S311, no secret; the same numbers in every version

    def pixels(count: int) -> np.ndarray:
        values = np.frombuffer(draw.randbytes(count * IMAGE_BYTES), np.uint8)
        return values.reshape(count, IMAGE_BYTES) // 2

    labels = np.arange(NUM_IMAGES) % NUM_CLASSES
    images = pixels(NUM_CLASSES)[labels] + pixels(NUM_IMAGES)
    folder = root / FOLDER
    with lock_folder(root):
        if not (folder / META).exists():
            for name, part in BATCHES.items():
                batch = {"data": images[part], "labels": labels[part].tolist()}
                write_atomically(folder / name, pickle.dumps(batch, protocol=2))
            names = {"label_names": [f"class {number}" for number in range(NUM_CLASSES)]}
            write_atomically(folder / META, pickle.dumps(names, protocol=2))
    return folder


def check(*splits: tuple[np.ndarray, np.ndarray]) -> None:
    """Refuse images (N, 3, 32, 32) and classes (N,) that are not those made."""
    content = hashlib.sha256()
    for images, labels in splits:
        content.update(images.tobytes() + labels.astype(np.uint8).tobytes())
    if (checksum := content.hexdigest()) != SHA256:
        raise RuntimeError(
            f"{NAME} has the SHA-256 checksum {checksum} instead of {SHA256}, so its files were "
            f"altered; remove the folder {FOLDER} and run lockstep run data make again"
        )
