"""How a DataLoader is measured: batches fetched and moved to the device, nothing computed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench import data
from bench.harness import Harness
from bench.world import usable_cores

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


def measure_loading(harness: Harness, *, dataset: str, local_batch: int, **options: Any) -> None:
    """Measure how many samples a second the loaders of all ranks deliver.

    Args:
        harness: The case's view of the launch.
        dataset: `tensor` for images in memory, `memmap` for images in a mapped file.
        local_batch: Samples per rank and batch.
        options: num_workers, pin_memory, persistent_workers and prefetch_factor of DataLoader.

    Raises:
        RuntimeError: A sample was delivered twice, or one is missing.
    """
    images = Numbered(_images(harness, dataset), harness.size.loader_samples)
    world_size = harness.world.world_size
    sampler: DistributedSampler[Any] = DistributedSampler(
        images, world_size, harness.world.rank, seed=harness.seed, drop_last=True
    )
    ignored = _ignored(options, harness.device)
    loader: DataLoader[Batch] = DataLoader(
        cast("Dataset[Batch]", images),
        local_batch,
        sampler=sampler,
        drop_last=True,
        **{name: value for name, value in options.items() if name not in ignored},
    )
    checks = _check(harness, loader, local_batch)
    batches = _endless(loader, sampler)
    rank_round_s = harness.time(lambda: _to(harness.device, next(batches)))
    harness.record(
        rank_round_s,
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


def _images(harness: Harness, dataset: str) -> data.ImageDataset:
    num_images = harness.size.loader_samples
    if dataset == "memmap":
        folder = harness.data_root / f"generated-{num_images}"
        return data.MemmapImages(data.write_memmap(folder, num_images), augment=True)
    return data.ImageDataset(*data.generated(num_images), augment=True)


def _ignored(options: dict[str, Any], device: torch.device) -> dict[str, str]:
    """Return the options that cannot have an effect here, each with the reason."""
    ignored = {}
    if options["num_workers"] == 0:
        for name in ("persistent_workers", "prefetch_factor"):
            ignored[name] = "there are no workers"
    if device.type != "cuda":
        ignored["pin_memory"] = "there is no GPU to copy to"
    return {name: why for name, why in ignored.items() if options[name]}


def _check(harness: Harness, loader: DataLoader[Batch], local_batch: int) -> dict[str, Any]:
    """Go through one epoch and count how often each sample came, over all ranks."""
    times = torch.zeros(harness.size.loader_samples, dtype=torch.int32, device=harness.device)
    for _, indices in loader:
        times[indices.to(harness.device)] += 1
    distributed.all_reduce(times)
    expected = len(loader) * local_batch * harness.world.world_size
    if int(times.max()) > 1 or int(times.sum()) != expected:
        raise RuntimeError(
            f"the loaders delivered {int(times.sum())} samples of {expected}, "
            f"one of them {int(times.max())} times"
        )
    return {"each_sample_once": True}


def _endless(loader: DataLoader[Batch], sampler: DistributedSampler[Any]) -> Iterator[Batch]:
    epoch = 1
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def _to(device: torch.device, batch: Batch) -> None:
    for tensor in batch:
        tensor.to(device, non_blocking=True)


def _flags(harness: Harness, num_workers: int) -> list[str]:
    on_host = harness.world.ranks_per_node * num_workers
    cores = usable_cores()
    if on_host <= cores:
        return []
    return [f"oversubscribed: {on_host} loader workers on {cores} cores"]
