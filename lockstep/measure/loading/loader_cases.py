"""How a DataLoader is measured: batches fetched and moved to the device, nothing computed.

Beside it a training step takes such batches, to say what share of it would wait for the loader.
Epochs follow each other in one endless stream, so that no round contains the start of workers.

Images in a file each, read from the page cache or from what lies below it.

The kernel keeps what was read. `POSIX_FADV_DONTNEED` (posix_fadvise(2)) has it give a file's pages
up, which works for pages that are on the disk already. Caches of other machines, of a disk, or of
the host below a virtual machine stay as they are.
"""

import os
import shutil
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from lockstep import workloads
from lockstep.core import metrics
from lockstep.core.flags import flag
from lockstep.core.record import LOADER_SETTINGS
from lockstep.core.sizes import CACHES
from lockstep.machine import memory, network
from lockstep.measure import timing
from lockstep.measure.batches import Step
from lockstep.measure.harness import Harness
from lockstep.measure.loading import data
from lockstep.measure.step.train_step import StepConfig, TrainStep
from lockstep.ranks.process_group import refuse_in_case

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
        refuse_in_case(harness.world, harness.rank_hosts, _problem(harness.data_root))
    num_images = min(harness.size.loader_samples, MOST_FILES)
    names = [uuid.uuid4().hex]  # that no other case has, equal on all ranks
    if harness.world.world_size > 1:
        distributed.broadcast_object_list(names, device=harness.device)
    folder = harness.data_root / f"image-files-{names[0]}"
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
    kind = network.file_system(folder)
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


# What eats the batches: images of 32 x 32, as the study's are, in ten classes.
EATER = "resnet18"
NUM_CLASSES = 10
FED_ROUNDS = 3
FED_STEPS = 2

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Numbered(Dataset[tuple[torch.Tensor, int]]):
    """A data set whose targets are the indices, so that one can see what was fetched."""

    images: "Dataset[tuple[torch.Tensor, int]]"
    num_images: int

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index][0], index


class EndlessSampler(Sampler[int]):
    """A rank's share of one epoch after another, each in an order of its own.

    An epoch ends where the share does, be it within a batch.
    """

    def __init__(self, share: "DistributedSampler[Any]") -> None:
        self.share = share

    def __iter__(self) -> Iterator[int]:
        for epoch in count():
            self.share.set_epoch(epoch)
            yield from self.share


def measure_loading(harness: Harness, *, dataset: str, local_batch: int, **options: Any) -> None:
    """Measure how many samples a second the loaders of all ranks deliver.

    Args:
        harness: The case's view of the launch.
        dataset: `tensor` for images in memory, `memmap` for images in a mapped file, `files` for
            one file an image, read from a warm page cache or, where the case's factor `cache` is
            cold, from below it.
        local_batch: Samples per rank and batch.
        options: num_workers, pin_memory, persistent_workers and prefetch_factor of DataLoader.

    Raises:
        ValueError: There are more ranks than samples.
        RuntimeError: A sample was delivered twice in an epoch.
    """
    with _images(harness, dataset) as image_dataset:
        images = Numbered(image_dataset, len(image_dataset))
        world_size = harness.world.world_size
        share = _share(len(images), world_size, harness.world.rank, harness.seed)
        ignored = _ignored(options, harness.device)
        loader: DataLoader[Batch] = DataLoader(
            cast("Dataset[Batch]", images),
            local_batch,
            sampler=EndlessSampler(share),
            **{name: value for name, value in options.items() if name not in ignored},
        )
        batches = iter(loader)
        checks = _check(batches, len(share), len(images), harness.device)

        def fetch() -> None:
            for tensor in next(batches):
                tensor.to(harness.device, non_blocking=True)

        round_s = harness.time(fetch)
        harness.case.peak = memory.peak(harness.device)  # what follows is no part of it
        details: dict[str, Any] = {
            "ignored": ignored,
            LOADER_SETTINGS: data.loader_settings(loader),
        }
        if dataset == "files":
            details |= {
                "cache": _cache(harness),
                "file_system": network.file_system(harness.data_root),
                "striping": network.striping(harness.data_root),
            }
        num_workers = harness.world.ranks_per_node * options["num_workers"]
        cores = harness.cores_on_host
        too_many = [flag("loader-oversubscribed", workers=num_workers, cores=cores)]
        harness.record(
            round_s,
            own=_fed(harness, batches, loader.num_workers * (loader.prefetch_factor or 0)),
            conclude=lambda parts: {"details": _idle([part.own for part in parts])},
            workload=dataset,
            scaling=None,
            local_batch=local_batch,
            global_batch=local_batch * world_size,
            sample_unit="images",
            samples_per_step=local_batch * world_size,
            checks=checks,
            details=details,
            flags=too_many if num_workers > cores else [],
        )


def _share(num_images: int, world_size: int, rank: int, seed: int) -> "DistributedSampler[Any]":
    if num_images < world_size:
        raise ValueError(
            f"{num_images} samples do not reach {world_size} ranks; choose a larger --size or "
            "fewer ranks"
        )
    return DistributedSampler(range(num_images), world_size, rank, seed=seed, drop_last=True)  # type: ignore[arg-type]


@contextmanager
def _images(harness: Harness, dataset: str) -> Iterator[data.ImageDataset]:
    num_images = harness.size.loader_samples
    if dataset == "files":
        with image_files(harness, _cache(harness)) as images:
            yield images
    elif dataset == "memmap":
        folder = harness.data_root / f"generated-{num_images}"
        yield data.MemmapImages(data.write_memmap(folder, num_images), augment=True)
    else:
        yield data.ImageDataset(*data.generated(num_images), augment=True)


def _cache(harness: Harness) -> str:
    return str(harness.factors.get("cache", CACHES[0]))


def _ignored(options: dict[str, Any], device: torch.device) -> dict[str, str]:
    """Return the options that cannot have an effect here, each with the reason."""
    ignored = {"persistent_workers": "the epochs never end, so no workers stop between them"}
    if options["num_workers"] == 0:
        for name in ("persistent_workers", "prefetch_factor"):
            ignored[name] = "there are no workers"
    if device.type != "cuda":
        ignored["pin_memory"] = "there is no GPU to copy to"
    return {name: why for name, why in ignored.items() if options[name]}


def _check(
    batches: Iterator[Batch], share: int, num_images: int, device: torch.device
) -> dict[str, Any]:
    """Go through the first epoch and count how often each sample came, over all ranks."""
    epoch = islice(chain.from_iterable(indices.tolist() for _, indices in batches), share)
    times = torch.bincount(torch.tensor(list(epoch)), minlength=num_images).to(device)
    distributed.all_reduce(times)
    if int(times.max()) > 1:
        raise RuntimeError(
            f"sample {int(times.argmax())} came {int(times.max())} times in one epoch instead of "
            "once; the ranks do not share the data set, so do not use this case"
        )
    return {"each_sample_once": True}


def _fed(harness: Harness, batches: Iterator[Batch], ahead: int) -> list[list[float]]:
    """Return this rank's seconds of a training step on batches of the loader, and on one that lies.

    Shape (2, num_rounds). Waits for a device that works show in neither, so their difference is
    what the loader holds the step up by. The rounds of each follow each other, and the first
    `ahead` batches are dropped: workers fetched them while no step asked for one.
    """
    if not harness.measures:
        return []
    step = TrainStep(
        workloads.make(EATER).build().to(harness.device),
        cross_entropy,
        StepConfig(),
        harness.device,
    )
    lying = _of_classes(harness.device, next(batches))
    held = islice(batches, ahead)

    def resident() -> None:
        step.run(*lying)

    def fed() -> None:
        step.run(*_of_classes(harness.device, next(batches)))

    def untimed() -> None:
        deque(held, maxlen=0)  # once, in a round, lest workers fetch again before the next one
        fed()

    resident()
    turns: list[Step] = [untimed, *[fed] * FED_ROUNDS, *[resident] * FED_ROUNDS]
    steps = max(FED_STEPS, harness.plan.steps_per_round)
    _, *found = (taken_s for taken_s, _ in timing.time_turns(harness.world, turns, steps))
    return [found[:FED_ROUNDS], found[FED_ROUNDS:]]


def _of_classes(device: torch.device, batch: Batch) -> Batch:
    """Return a batch on a device, its numbers made classes."""
    images, numbers = batch
    targets = numbers % NUM_CLASSES
    return images.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def _idle(ranks: list[list[list[float]]]) -> dict[str, float]:
    """Return the share of a step that waits for the loader, from what `_fed` gave of each rank."""
    if not all(ranks):
        return {}
    fed_s, lying_s = (median(metrics.slowest_rank([rank[i] for rank in ranks])) for i in (0, 1))
    return {"loader_idle": max(0.0, 1 - lying_s / fed_s)}
