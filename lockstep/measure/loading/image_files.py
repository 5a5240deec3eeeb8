"""Images in a file each, read from the page cache or from what lies below it.

The kernel keeps what was read. `POSIX_FADV_DONTNEED` (posix_fadvise(2)) has it give a file's pages
up, which works for pages that are on the disk already. Caches of other machines, of a disk, or of
the host below a virtual machine stay as they are.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import distributed

from lockstep.machine import storage
from lockstep.measure import timing
from lockstep.measure.harness import Harness
from lockstep.measure.loading import data
from lockstep.ranks import refusing

SHAPE = (3, 32, 32)
# Their creation is no part of the measurement, and takes minutes where there are many.
MOST_FILES = 2048

IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class ImageFiles:
    """Images that lie in a file each; `images[index]` reads one.

    Attributes:
        is_cold: Whether a file's pages are given up once it is read, so that every read is cold.
    """

    folder: Path
    num_images: int
    is_cold: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all of them, (N, C, H, W)."""
        return (self.num_images, *SHAPE)

    def __getitem__(self, index: int) -> np.ndarray:
        with _path(self.folder, index).open("rb", buffering=0) as file:
            content = file.read()
            if self.is_cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return np.frombuffer(content, dtype=np.uint8).reshape(SHAPE)


@contextmanager
def image_files(harness: Harness, cache: str) -> Iterator[data.ImageDataset]:
    """Write images under the data root, and remove them at the end; every rank must call it.

    Raises:
        ValueError: They would lie in memory, where no read is cold.
    """
    if cache == "cold":
        refusing.in_case(harness.world, harness.rank_hosts, _problem(harness.data_root))
    num_images = min(harness.size.loader_samples, MOST_FILES)
    folder = harness.data_root / f"image-files-{_agreed(harness)}"
    images, labels = data.generated(num_images, SHAPE)
    with data.locked(folder):  # one rank of those that see the folder writes
        if not _path(folder, num_images - 1).exists():
            _write(folder, images)
    found = ImageFiles(folder, num_images, cache == "cold")
    for index in range(num_images):  # fills this node's cache, or gives up what the writing left
        found[index]
    yield data.ImageDataset(found, labels, augment=True)
    # Others may still read; where this rank fails, they fail by that, and the few MB stay.
    timing.meet(harness.world)
    shutil.rmtree(folder, ignore_errors=True)


def _problem(folder: Path) -> str:
    """Return why no read below a folder can be cold; nothing where it can."""
    kind = storage.file_system(folder)
    if kind not in IN_MEMORY:
        return ""
    return f"{folder} is on {kind}, which is memory: no read is cold; give --data-root a disk"


def _write(folder: Path, images: np.ndarray) -> None:
    for index, image in enumerate(images):
        _path(folder, index).write_bytes(image.tobytes())
    for index in range(len(images)):
        with _path(folder, index).open("rb") as file:
            os.fsync(file.fileno())  # a page that is not on the disk yet could not be given up


def _path(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.raw"


def _agreed(harness: Harness) -> str:
    """Return a name that no other case has, equal on all ranks."""
    names = [uuid.uuid4().hex]
    if harness.world.world_size > 1:
        distributed.broadcast_object_list(names, device=harness.device)
    return names[0]
