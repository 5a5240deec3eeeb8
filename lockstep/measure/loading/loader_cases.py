"""How a DataLoader is measured: batches are fetched and moved to the device, nothing is computed.

Then a training step takes such batches, to show which share of a step waits for the loader. Epochs
follow each other in one endless stream, so that no round contains the start of workers.

Image files are read warm or cold. `POSIX_FADV_DONTNEED` (posix_fadvise(2)) makes the kernel drop a
file's pages that are already on the disk; caches of other machines, of a disk, or of a virtual
machine's host are not affected.
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
from lockstep.measure.harness import Harness
from lockstep.measure.loading import data, download
from lockstep.measure.step.train_step import StepConfig, TrainStep
from lockstep.measure.timing import Step
from lockstep.ranks.process_group import refuse_in_case

SHAPE = (3, 32, 32)
# Creating more files would take minutes.
MOST_FILES = 2048
IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class ImageFiles:
    """One file per image; `images[index]` reads an image, and drops its pages if `is_cold`."""

    folder: Path
    num_images: int
    is_cold: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all images, (N, C, H, W)."""
        return (self.num_images, *SHAPE)

    def __getitem__(self, index: int) -> np.ndarray:
        with _path(self.folder, index).open("rb", buffering=0) as file:
            content = file.read()
            if self.is_cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return np.frombuffer(content, dtype=np.uint8).reshape(SHAPE)


@contextmanager
def image_files(harness: Harness, cache: str) -> Iterator[data.ImageDataset]:
    """Write images under the data root, and remove them at the end; a collective call."""
    if cache == "cold":
        refuse_in_case(harness.world, harness.rank_hosts, _problem(harness.data_root))
    num_images = min(harness.size.loader_samples, MOST_FILES)
    names = [uuid.uuid4().hex]  # a unique name, equal on all ranks
    if harness.world.world_size > 1:
        distributed.broadcast_object_list(names, device=harness.device)
    folder = harness.data_root / f"image-files-{names[0]}"
    images, labels = data.generate_images(num_images, SHAPE)
    with download.lock_folder(folder):  # one rank writes for all that see the folder
        if not _path(folder, num_images - 1).exists():
            _write(folder, images)
    files = ImageFiles(folder, num_images, cache == "cold")
    for index in range(num_images):  # fills this node's cache, or drops the pages just written
        files[index]
    yield data.ImageDataset(files, labels, augment=True)
    # Other ranks may still read. If one fails, all fail in this barrier, and the files stay.
    timing.meet(harness.world)
    shutil.rmtree(folder, ignore_errors=True)


def _problem(folder: Path) -> str:
    """Return why no read below a folder can be cold; empty if it can."""
    kind = network.file_system(folder)
    text = (
        f"{folder} is on the file system {kind}, which keeps its files in memory, so cold reads "
        "cannot be measured; set --data-root to a folder on a disk"
    )
    return text if kind in IN_MEMORY else ""


def _write(folder: Path, images: np.ndarray) -> None:
    for index, image in enumerate(images):
        _path(folder, index).write_bytes(image.tobytes())
    for index in range(len(images)):
        with _path(folder, index).open("rb") as file:
            os.fsync(file.fileno())  # a page that is not yet on the disk cannot be dropped


def _path(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.raw"


# The model that uses the batches: images of 32 x 32 in ten classes.
MODEL = "resnet18"
NUM_CLASSES = 10
FED_ROUNDS = 3
FED_STEPS = 2

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Numbered(Dataset[tuple[torch.Tensor, int]]):
    """A data set whose targets are the indices, which show which samples were fetched."""

    images: "Dataset[tuple[torch.Tensor, int]]"
    num_images: int

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index][0], index


class EndlessSampler(Sampler[int]):
    """A rank's share of one epoch after another, each in another order; batches span epochs."""

    def __init__(self, share: "DistributedSampler[Any]") -> None:
        self.share = share

    def __iter__(self) -> Iterator[int]:
        for epoch in count():
            self.share.set_epoch(epoch)
            yield from self.share


def measure_loading(
    harness: Harness, *, dataset: str, local_batch: int, cache: str = CACHES[0], **options: Any
) -> None:
    """Measure how many samples per second the loaders of all ranks deliver.

    Args:
        harness: The case's view of the launch.
        dataset: `tensor` for images in memory, `memmap` for images in a mapped file, `files` for
            one file per image.
        local_batch: Samples per rank and batch.
        cache: Where `files` are read from: `warm` for the page cache, `cold` for the disk.
        options: num_workers, pin_memory, persistent_workers and prefetch_factor of DataLoader.

    Raises:
        ValueError: There are more ranks than samples.
        RuntimeError: A sample was delivered twice in an epoch.
    """
    with _images(harness, dataset, cache) as image_dataset:
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
        harness.case.peak = memory.peak(harness.device)  # before the training step allocates more
        details: dict[str, Any] = {
            "ignored": ignored,
            LOADER_SETTINGS: data.loader_settings(loader),
        }
        if dataset == "files":
            root = harness.data_root
            kind = {"file_system": network.file_system(root), "striping": network.striping(root)}
            details |= {"cache": cache} | kind
        num_workers = harness.world.ranks_per_node * options["num_workers"]
        cores = harness.cores_on_host
        too_many = [flag("loader-oversubscribed", workers=num_workers, cores=cores)]
        harness.record(
            round_s,
            own=_time_fed(harness, batches, loader.num_workers * (loader.prefetch_factor or 0)),
            conclude=lambda parts: {"details": _idle([part.own for part in parts])},
            workload=dataset, scaling=None, sample_unit="images", local_batch=local_batch,
            global_batch=local_batch * world_size, samples_per_step=local_batch * world_size,
            checks=checks, details=details, flags=too_many if num_workers > cores else [],
        )  # fmt: skip


def _share(num_images: int, world_size: int, rank: int, seed: int) -> "DistributedSampler[Any]":
    if num_images < world_size:
        raise ValueError(
            f"the data set has {num_images} samples, fewer than the {world_size} ranks; choose a "
            "larger --size or fewer ranks"
        )
    return DistributedSampler(range(num_images), world_size, rank, seed=seed, drop_last=True)  # type: ignore[arg-type]


@contextmanager
def _images(harness: Harness, dataset: str, cache: str) -> Iterator[data.ImageDataset]:
    num_images = harness.size.loader_samples
    if dataset == "files":
        with image_files(harness, cache) as images:
            yield images
    elif dataset == "memmap":
        folder = harness.data_root / f"generated-{num_images}"
        yield data.MemmapImages(data.write_memmap(folder, num_images), augment=True)
    else:
        yield data.ImageDataset(*data.generate_images(num_images), augment=True)


def _ignored(options: dict[str, Any], device: torch.device) -> dict[str, str]:
    """Return option -> why it has no effect here."""
    ignored = {
        "persistent_workers": "the measurement reads one endless epoch, so workers never stop"
    }
    if options["num_workers"] == 0:
        for name in ("persistent_workers", "prefetch_factor"):
            ignored[name] = "num_workers is 0, so there are no loader workers"
    if device.type != "cuda":
        ignored["pin_memory"] = "the ranks run on CPUs, so no batch is copied to a GPU"
    return {name: why for name, why in ignored.items() if options[name]}


def _check(
    batches: Iterator[Batch], share: int, num_images: int, device: torch.device
) -> dict[str, Any]:
    """Fetch the first epoch, and count how often each sample occurs over all ranks."""
    epoch = islice(chain.from_iterable(indices.tolist() for _, indices in batches), share)
    times = torch.bincount(torch.tensor(list(epoch)), minlength=num_images).to(device)
    distributed.all_reduce(times)
    if int(times.max()) > 1:
        sample, num_times = times.argmax(), times.max()
        raise RuntimeError(
            f"sample {sample} came {num_times} times in one epoch instead of once; the "
            "ranks do not divide the data set correctly, so do not use this result"
        )
    return {"each_sample_once": True}


def _time_fed(harness: Harness, batches: Iterator[Batch], ahead: int) -> list[list[float]]:
    """Return this rank's seconds of a training step on the loader's batches, and on one kept batch.

    The shape is (2, num_rounds); the difference is the wait for the loader. The first `ahead`
    batches are dropped: workers fetched them while no step took one.
    """
    if not harness.measures:
        return []
    model = workloads.make(MODEL).build().to(harness.device)
    step = TrainStep(model, cross_entropy, StepConfig(), harness.device)
    kept = _replace_indices(harness.device, next(batches))
    stale = islice(batches, ahead)

    def resident() -> None:
        step.run(*kept)

    def fed() -> None:
        step.run(*_replace_indices(harness.device, next(batches)))

    def untimed() -> None:
        deque(stale, maxlen=0)  # within a round, so that workers do not fetch ahead again
        fed()

    resident()
    turns: list[Step] = [untimed, *[fed] * FED_ROUNDS, *[resident] * FED_ROUNDS]
    steps = max(FED_STEPS, harness.plan.steps_per_round)
    _, *turn_s = (taken_s for taken_s, _ in timing.time_turns(harness.world, turns, steps))
    return [turn_s[:FED_ROUNDS], turn_s[FED_ROUNDS:]]


def _replace_indices(device: torch.device, batch: Batch) -> Batch:
    """Return a batch on a device, with classes in place of its indices."""
    images, numbers = batch
    targets = numbers % NUM_CLASSES
    return images.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def _idle(ranks: list[list[list[float]]]) -> dict[str, float]:
    """Return the share of a step that waits for the loader, from each rank's `_time_fed`."""
    if not all(ranks):
        return {}
    fed_s, resident_s = (median(metrics.slowest_rank([rank[i] for rank in ranks])) for i in (0, 1))
    return {"loader_idle": max(0.0, 1 - resident_s / fed_s)}
