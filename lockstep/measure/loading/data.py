"""Data sets for the loader cases and the trainer, made or downloaded once per shared folder.

A data set is a map-style sequence of (image, class). One process fetches missing files, under a
lock in the data root, while those of all other ranks and hosts wait. Letters: N images,
C channels, H height, W width.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lockstep.core.sizes import DATA
from lockstep.measure.loading import download, sample
from lockstep.measure.loading.download import lock_folder
from lockstep.workloads import Workload

STAGING_PREFIX = ".lockstep-staging-"

# 1,797 real handwritten digits: 357 to validate, 1,440 to train, which many batches divide.
# The file is scikit-learn's (BSD-3-Clause) copy of the test set of E. Alpaydin and C. Kaynak,
# Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (CC BY 4.0): each
# line has 8 x 8 grey levels from 0 to 16, and the digit.
DIGITS_FILE = Path(__file__).with_name("digits.csv.gz")
DIGITS_HELD_OUT = 357
_SPLIT_SEED = 0
NUM_CLASSES = 10  # of generated images
# A crop shifts an image of 32 pixels by up to 4 (He et al., arXiv:1512.03385, 4.2, for CIFAR).
_CROP_SHARE = 8
_MEMMAP_CHUNK = 256


def loader_settings(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the settings of a loader, including defaults."""
    names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
    return {name: getattr(loader, name) for name in names}


@dataclass(frozen=True)
class Splits:
    """The training and the validation data set."""

    train: "Dataset[tuple[torch.Tensor, Any]]"
    validation: "Dataset[tuple[torch.Tensor, Any]]"


class ImageDataset(Dataset[tuple[torch.Tensor, int]]):
    """Images of eight bits and their classes, as tensors between -1 and 1.

    Args:
        images: uint8, shape (N, C, H, W): an array, a mapped file, or files behind an index.
        labels: Integers, shape (N,).
        shape: Shape of an item; by default the image's own. (C*H*W,) flattens it; three channels
            repeat a grey image.
        augment: Crop a shifted window from the padded image, and mirror every other image.
    """

    def __init__(
        self,
        images: Any,
        labels: np.ndarray,
        shape: tuple[int, ...] | None = None,
        augment: bool = False,
    ) -> None:
        self.images = images
        self.labels = labels
        self.shape = shape or tuple(images.shape[1:])
        self.augment = augment
        image = tuple(images.shape[1:])
        grey_to_colour = image[0] == 1 and self.shape == (3, *image[1:])
        if not grey_to_colour and np.prod(image) != np.prod(self.shape):
            num_elements = np.prod(image)
            raise ValueError(
                f"images of shape {image} do not fit a model that takes {self.shape}; choose a "
                f"workload that takes images of shape {image}, or of any shape with "
                f"{num_elements} elements"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(np.array(self.images[index]))
        if self.augment:
            image = crop_and_mirror(image)
        if self.shape[0] == 3 * len(image):
            image = image.repeat(3, 1, 1)
        return image.reshape(self.shape) / 127.5 - 1, int(self.labels[index])


def crop_and_mirror(image: torch.Tensor) -> torch.Tensor:
    """Return a random crop of the zero-padded image (C, H, W), mirrored half of the time."""
    _, height, width = image.shape
    padding = max(1, height // _CROP_SHARE)
    padded = torch.nn.functional.pad(image, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2,)).tolist()
    window = padded[:, top : top + height, left : left + width]
    return window.flip(2) if torch.rand(()) < 0.5 else window


class MemmapImages(ImageDataset):
    """Images in a mapped file; each worker maps the file itself and receives no images."""

    def __init__(self, folder: Path, augment: bool = False) -> None:
        self.folder = folder
        images = np.load(folder / "images.npy", mmap_mode="r")
        super().__init__(images, np.load(folder / "labels.npy"), augment=augment)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "augment": self.augment}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def write_memmap(folder: Path, num_images: int, shape: tuple[int, int, int] = (3, 32, 32)) -> Path:
    """Write generated images for `MemmapImages`, once; return the folder."""
    with lock_folder(folder):
        if not (folder / "labels.npy").exists():
            with staging(folder) as stage:
                images = np.lib.format.open_memmap(
                    stage / "images.npy", mode="w+", dtype=np.uint8, shape=(num_images, *shape)
                )
                labels = np.empty(num_images, dtype=np.int64)
                for start in range(0, num_images, _MEMMAP_CHUNK):
                    part = slice(start, min(start + _MEMMAP_CHUNK, num_images))
                    images[part], labels[part] = generate_images(part.stop - start, shape, start)
                images.flush()
                np.save(stage / "labels.npy", labels)
    written, wanted = np.load(folder / "images.npy", mmap_mode="r").shape, (num_images, *shape)
    if written != wanted:
        raise ValueError(
            f"{folder} holds images of shape {written}, not {wanted}; remove this "
            "folder, or choose another --data-root"
        )
    return folder


def generate_images(
    num_images: int, shape: tuple[int, ...] = (3, 32, 32), start: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, C, H, W) in uint8 and classes (N,) that a model can learn to distinguish.

    Each class is a pattern under noise. Labels alternate; noise depends on the first index,
    `start`, so that a large set can be made in pieces.
    """
    patterns = np.random.default_rng(0).integers(0, 128, (NUM_CLASSES, *shape), np.uint8)
    noise = np.random.default_rng((0, start)).integers(0, 128, (num_images, *shape), np.uint8)
    labels = (np.arange(num_images) + start) % NUM_CLASSES
    return patterns[labels] + noise, labels


def load(name: str, root: Path, workload: Workload, augment: bool, num_synthetic: int) -> Splits:
    """Return a data set for a workload, and download it first if it is missing.

    Args:
        name: One of `sizes.DATA`; `synthetic` is made by the workload itself.
        root: Folder of downloads, which all ranks see.
        workload: Its batches give the shape of an input.
        augment: Whether training images are augmented.
        num_synthetic: Items of the synthetic training set; a quarter of that many validate.

    Raises:
        ValueError: The data set is unknown, or its images do not fit the workload.
        RuntimeError: It is missing and cannot be downloaded, or its checksum is wrong.
    """
    if name not in DATA:
        known = ", ".join(DATA)
        raise ValueError(f"there is no data set {name!r}; choose from {known}")
    if name == "synthetic":
        return _synthetic(workload, num_synthetic)
    inputs, _ = workload.make_batch(1, torch.device("cpu"), None)
    shape = tuple(inputs.shape[1:])
    train, validation = _digits() if name == "digits" else torchvision_arrays(name, root)
    return Splits(ImageDataset(*train, shape, augment), ImageDataset(*validation, shape))


Arrays = tuple[np.ndarray, np.ndarray]


def _synthetic(workload: Workload, num_items: int) -> Splits:
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    cpu = torch.device("cpu")
    if not all(isinstance(part, torch.Tensor) for part in workload.make_batch(1, cpu, None)):
        raise ValueError(
            f"workload {workload.name} makes batches that are not tensors, but training takes "
            "tensors; return inputs and targets as one tensor each"
        )
    train, validation = (
        TensorDataset(*workload.make_batch(number, cpu, generator))
        for number in synthetic_sizes(num_items)
    )
    return Splits(train, validation)  # type: ignore[arg-type]


def synthetic_sizes(num_items: int) -> tuple[int, int]:
    """Return the numbers of synthetic items for training and validation."""
    return num_items, max(1, num_items // 4)


def _digits() -> tuple[Arrays, Arrays]:
    rows = np.loadtxt(DIGITS_FILE, delimiter=",")
    images = (rows[:, :-1] * 15).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = rows[:, -1].astype(int)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(images))
    held_out, rest = order[:DIGITS_HELD_OUT], order[DIGITS_HELD_OUT:]
    return (images[rest], labels[rest]), (images[held_out], labels[held_out])


def torchvision_arrays(name: str, root: Path) -> tuple[Arrays, Arrays]:
    """Return training and validation arrays of a data set, downloaded or made if missing."""
    from torchvision.datasets import CIFAR10, MNIST

    dataset: Callable[..., Any] = CIFAR10 if name == "cifar10" else MNIST
    if name == sample.NAME:
        train, validation = ([[batch, None]] for batch in sample.BATCHES)
        meta = {"filename": sample.META, "key": "label_names", "md5": None}
        dataset = type("Sample", (CIFAR10,), {
            "base_folder": sample.FOLDER, "train_list": train, "test_list": validation,
            "meta": meta,
        })  # fmt: skip

    def is_complete() -> bool:
        try:
            dataset(root, train=False, download=False)
        except RuntimeError:
            return False
        return True

    def read(*, train: bool) -> Arrays:
        split = dataset(root, train=train, download=False)
        images = np.asarray(split.data)
        planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        return planes, np.asarray(split.targets)

    if name == sample.NAME:
        sample.write(root)
        splits = read(train=True), read(train=False)
        sample.check(*splits)
        return splits
    if not is_complete():
        archives = download.SOURCES[name]
        download.fetch(archives, root)
        with lock_folder(root):
            if not is_complete():
                with staging(root) as stage:
                    for archive in archives:
                        (stage / archive.path).parent.mkdir(parents=True, exist_ok=True)
                        (stage / archive.path).symlink_to((root / archive.path).resolve())
                    dataset(stage, train=False, download=True)
    return read(train=True), read(train=False)


@contextlib.contextmanager
def staging(root: Path) -> Iterator[Path]:
    """Give a folder; if the `with` block succeeds, move its files below `root`, each atomically.

    The caller holds the lock of `root`, so older staging folders belong to dead processes.
    """
    for leftover in root.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(leftover)
    stage = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=root))
    try:
        yield stage
        for file in sorted(path for path in stage.rglob("*") if path.is_file()):
            if not file.is_symlink():
                target = root / file.relative_to(stage)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
    finally:
        shutil.rmtree(stage)
