"""What memory the steps that a campaign plans took, where they were measured at this batch."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.campaign.campaign import Campaign
from lockstep.core import sizes, studies

if TYPE_CHECKING:
    from lockstep.report.load.results import Launch, Row


# What a step's memory depends on beside its batch, and what holds where a case does not say.
USUAL: dict[str, Any] = {
    "workload": None,
    "precision": None,
    "strategy": "ddp",
    "activation_checkpointing": False,
}


@dataclass(frozen=True)
class Step:
    """A step that a campaign plans, or that was measured.

    Attributes:
        settings: What its memory depends on beside the batch.
        world_sizes: Where it is taken.
        local_batch: Samples of a rank and an update.
        accumulation: Parts that they are computed in, one after another.
    """

    settings: Mapping[str, Any]
    world_sizes: tuple[int, ...]
    local_batch: int
    accumulation: int = 1


@dataclass(frozen=True)
class Held:
    """What a measured step held, on the rank that held most.

    Attributes:
        step: What was measured.
        held_bytes: What PyTorch's allocator held of a GPU; on a CPU what was resident.
        total_bytes: What the GPU has; None where nobody says, and on a CPU.
        on_gpu: Whether it was of a GPU.
        alike: Devices, optimizer and source of the workload: equal where cases are compared.
        started: When its launch began.
    """

    step: Step
    held_bytes: int
    total_bytes: int | None = None
    on_gpu: bool = True
    alike: tuple[str | None, ...] = (None,)
    started: str = ""


@dataclass(frozen=True)
class Need:
    """What is known of the memory of a planned step.

    Attributes:
        step: What is planned.
        peak_bytes: Of the rank that held most at this batch; None where it was not measured.
        devices: What it was measured on; None where nobody says.
        total_bytes: What such a device has; None likewise.
    """

    step: Step
    peak_bytes: int | None = None
    devices: str | None = None
    total_bytes: int | None = None


def needs(campaign: Campaign, root: Path, *, is_gpu: bool) -> list[Need]:
    """Return what the steps of a campaign need, by the results of all campaigns in a folder.

    Args:
        campaign: What is planned.
        root: Where campaigns have their folders.
        is_gpu: Whether ranks are to have GPUs.
    """
    steps = planned(campaign)
    known = [one for one in _measured(root) if one.on_gpu == is_gpu] if steps else []
    return [need(step, known) for step in steps]


def planned(campaign: Campaign) -> list[Step]:
    """Return the steps of a campaign's studies, alike ones once, with their world sizes."""
    found: list[Step] = []
    for study in (one for one in campaign.studies if one in studies.STEPS):
        for row in studies.rows(study, campaign.measured_size()):
            for world_size in sorted(campaign.world_sizes):
                _add(found, step_of(row, world_size))
    return found


def _add(found: list[Step], step: Step) -> None:
    for index, one in enumerate(found):
        both = tuple(sorted({*one.world_sizes, *step.world_sizes}))
        if replace(one, world_sizes=both) == replace(step, world_sizes=both):
            found[index] = replace(one, world_sizes=both)
            return
    found.append(step)


def step_of(factors: Mapping[str, Any], world_size: int, local_batch: int | None = None) -> Step:
    """Return the step of a case; give the local batch that it was measured at."""
    batch = local_batch or factors.get("local_batch")
    batch = batch or sizes.local_batch_of(factors["global_batch"], world_size)
    settings = {name: factors.get(name, usual) for name, usual in USUAL.items()}
    if settings["strategy"] == "fsdp":  # its ranks share parameters and the optimizer's state
        settings["world_size"] = world_size
    return Step(settings, (world_size,), batch, int(factors.get("accumulation") or 1))


def need(step: Step, known: Iterable[Held]) -> Need:
    """Return what a step took, by the newest results of it and those that are like them."""
    same = [
        one for one in known if replace(one.step, world_sizes=()) == replace(step, world_sizes=())
    ]
    if not same:
        return Need(step)
    alike = max(same, key=lambda one: one.started).alike
    same = [one for one in same if one.alike == alike]
    totals = [one.total_bytes for one in same if one.total_bytes is not None]
    peak_bytes = max(one.held_bytes for one in same)
    return Need(step, peak_bytes, alike[0], min(totals, default=None))


def _measured(root: Path) -> Iterator[Held]:
    from lockstep.report.load.reading import gather

    for file in sorted(root.glob("*/campaign.json")):
        # What is wrong with another campaign is no reason not to plan this one.
        with suppress(ValueError, OSError):
            results = gather([file.parent])
            launches = {one.name: one for one in results.launches}
            for row in results.rows:
                yield from _held(row, launches.get(row.launch))


def _held(row: "Row", launch: "Launch | None") -> Iterator[Held]:
    """Yield what a row knows of its memory, where it is of a step."""
    from lockstep.core import record
    from lockstep.report.compute.lost_time.quantities import of_ranks

    on_gpu = launch is not None and any(one.startswith("cuda") for one in launch.devices)
    held = row.peak_reserved_bytes if on_gpu else row.peak_memory_bytes
    if launch is None or row.study not in studies.STEPS or not row.local_batch or held is None:
        return
    basis = record.basis_of(row.details)
    devices = ", ".join(launch.provenance.get("device_names") or [])
    totals = of_ranks(row, "gpu_memory_total_bytes", "least")
    yield Held(
        step_of(row.factors, row.world_size, row.local_batch),
        held,
        total_bytes=int(min(totals)) if totals else None,
        on_gpu=on_gpu,
        alike=(devices or None, basis.optimizer if basis else None, row.workload_sha256),
        started=row.started,
    )
