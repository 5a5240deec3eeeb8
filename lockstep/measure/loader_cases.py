"""How a DataLoader is measured: batches fetched and moved to the device, nothing computed.

Epochs follow each other in one endless stream, so that no round contains the start of workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any, cast

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from lockstep.measure import data
from lockstep.measure.harness import Harness
from lockstep.vocabulary.records.flags import Flag, flag

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

    Args:
        share: What the rank takes of an epoch.
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
        dataset: `tensor` for images in memory, `memmap` for images in a mapped file.
        local_batch: Samples per rank and batch.
        options: num_workers, pin_memory, persistent_workers and prefetch_factor of DataLoader.

    Raises:
        ValueError: There are more ranks than samples.
        RuntimeError: A sample was delivered twice in an epoch.
    """
    images = Numbered(_images(harness, dataset), harness.size.loader_samples)
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
    round_s = harness.time(lambda: _to(harness.device, next(batches)))
    harness.record(
        round_s,
        workload=dataset,
        scaling=None,
        local_batch=local_batch,
        global_batch=local_batch * world_size,
        sample_unit="images",
        samples_per_step=local_batch * world_size,
        checks=checks,
        details={"ignored": ignored},
        flags=_flags(harness, options["num_workers"]),
    )


def _share(num_images: int, world_size: int, rank: int, seed: int) -> "DistributedSampler[Any]":
    if num_images < world_size:
        raise ValueError(
            f"{num_images} samples do not reach {world_size} ranks; choose a larger --size or "
            "fewer ranks"
        )
    return DistributedSampler(range(num_images), world_size, rank, seed=seed, drop_last=True)  # type: ignore[arg-type]


def _images(harness: Harness, dataset: str) -> data.ImageDataset:
    num_images = harness.size.loader_samples
    if dataset == "memmap":
        folder = harness.data_root / f"generated-{num_images}"
        return data.MemmapImages(data.write_memmap(folder, num_images), augment=True)
    return data.ImageDataset(*data.generated(num_images), augment=True)


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
    """Go through the first epoch and count how often each sample came, over all ranks.

    Args:
        batches: The endless stream, from its beginning.
        share: Samples of one rank in an epoch.
        num_images: Samples of the data set.
        device: The rank's device.
    """
    epoch = islice(chain.from_iterable(indices.tolist() for _, indices in batches), share)
    times = torch.bincount(torch.tensor(list(epoch)), minlength=num_images).to(device)
    distributed.all_reduce(times)
    if int(times.max()) > 1:
        raise RuntimeError(
            f"sample {int(times.argmax())} came {int(times.max())} times in one epoch instead of "
            "once; the ranks do not share the data set, so do not use this case"
        )
    return {"each_sample_once": True}


def _to(device: torch.device, batch: Batch) -> None:
    for tensor in batch:
        tensor.to(device, non_blocking=True)


def _flags(harness: Harness, num_workers: int) -> list[Flag]:
    on_host = harness.world.ranks_per_node * num_workers
    if on_host <= harness.cores_on_host:
        return []
    return [flag("loader-oversubscribed", workers=on_host, cores=harness.cores_on_host)]
