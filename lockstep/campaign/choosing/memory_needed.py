"""Whether the steps that a campaign plans fit into a rank's memory, by what was measured.

Parameters, gradients and the optimizer's state take the same memory at every batch, and activations
as much again for each sample that is computed at once: the peaks of two batches or more lie on a
line. Where a batch was not measured and there is no line, no more than a larger one's is claimed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING, Any, Literal

from lockstep.campaign.campaign import Campaign
from lockstep.vocabulary import sizes

if TYPE_CHECKING:
    from lockstep.report.load.results import Launch, Row

# Studies that take the suite's own step, by a batch.
STUDIES = ("strong", "weak", "precision", "bucket", "sensitivity", "accumulation")
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

    @property
    def at_once(self) -> float:
        """Samples that are computed at once."""
        return self.local_batch / self.accumulation


@dataclass(frozen=True)
class Held:
    """What a measured step held, on the rank that held most.

    Attributes:
        step: What was measured.
        held_bytes: What PyTorch's allocator held of a GPU; on a CPU what was resident.
        used_bytes: What tensors took of it.
        outside_bytes: What was in use of the GPU beside that; None where nobody says.
        total_bytes: What the GPU has; None likewise, and on a CPU.
        on_gpu: Whether it was of a GPU. A host's memory ranks share: none is known to fit there.
        is_halved: Whether twice the batch was tried before, in vain.
        alike: Devices, optimizer and source of the workload: equal where cases are compared.
        started: When its launch began.
    """

    step: Step
    held_bytes: int
    used_bytes: int
    outside_bytes: int | None = None
    total_bytes: int | None = None
    on_gpu: bool = True
    is_halved: bool = False
    alike: tuple[str | None, ...] = (None,)
    started: str = ""


@dataclass(frozen=True)
class Need:
    """What is known of the memory of a planned step.

    Attributes:
        step: What is planned.
        by: What says so: `measured` at this batch; `estimate`, the line; `bound`, the peak of a
            larger batch; `refused`, there was no memory for this batch or a smaller one.
        batches: Samples, at once or of the refused batch, that it rests on.
        peak_bytes: Of the rank that needs most; None of what was refused.
        fits: Whether it fits; None where that is not known.
        fitting_accumulation: Where it does not, the least accumulation that would.
        devices: What it was measured on; None where nobody says.
        total_bytes: What such a device has; None likewise.
    """

    step: Step
    by: Literal["measured", "estimate", "bound", "refused"] | None = None
    batches: tuple[float, ...] = ()
    peak_bytes: int | None = None
    fits: bool | None = None
    fitting_accumulation: int | None = None
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
    for study in (one for one in campaign.studies if one in STUDIES):
        for row in sizes.rows(study, campaign.measured_size()):
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
    """Return what a step needs, by those results that are like the newest of its settings."""
    same = [one for one in known if one.step.settings == step.settings]
    if not same:
        return Need(step)
    alike = max(same, key=lambda one: one.started).alike
    same = [one for one in same if one.alike == alike]
    found = _claim(step, same)
    totals = [one.total_bytes for one in same if one.total_bytes is not None]
    parts = _fitting_accumulation(step, same) if found.fits is False else None
    return replace(
        found, devices=alike[0], total_bytes=min(totals, default=None), fitting_accumulation=parts
    )


def _fitting_accumulation(step: Step, known: Sequence[Held]) -> int | None:
    for parts in range(step.accumulation + 1, step.local_batch // sizes.LEAST_BATCH + 1):
        if step.local_batch % parts == 0 and _claim(replace(step, accumulation=parts), known).fits:
            return parts
    return None


def _claim(step: Step, known: Sequence[Held]) -> Need:
    """Return what results of steps that differ in the batch alone say of a step."""
    whole = [one for one in known if not one.is_halved]
    larger = [one for one in whole if _is_within(step, one.step)]
    has_run = True if any(one.on_gpu for one in larger) else None
    if same := [one for one in larger if _is_within(one.step, step)]:
        peak_bytes = max(one.held_bytes for one in same)
        return Need(step, "measured", (step.at_once,), peak_bytes, has_run)
    halved = [one.step for one in known if one.is_halved]
    refused = [2 * one.local_batch for one in halved if one.accumulation == step.accumulation]
    if refused and min(refused) <= step.local_batch:
        return Need(step, "refused", (min(refused),), fits=False)
    if found := _estimate(step, [one for one in whole if one.step.accumulation == 1]):
        return replace(found, fits=has_run or found.fits)
    if larger:
        least = min((one.step for one in larger), key=lambda one: one.at_once)
        peak_bytes = max(one.held_bytes for one in whole if _is_within(one.step, least))
        return Need(step, "bound", (least.at_once,), peak_bytes, has_run)
    return Need(step)


def _is_within(small: Step, large: Step) -> bool:
    return small.local_batch <= large.local_batch and small.at_once <= large.at_once


def _estimate(step: Step, known: Sequence[Held]) -> Need | None:
    """Return what the line says; None where the peaks lie on none."""
    held = on_line([(one.step.at_once, one.held_bytes) for one in known], step.at_once)
    used = on_line([(one.step.at_once, one.used_bytes) for one in known], step.at_once)
    if held is None:
        return None
    batches = tuple(sorted({one.step.at_once for one in known}))
    totals = [one.total_bytes for one in known if one.total_bytes is not None]
    outside = [one.outside_bytes for one in known if one.outside_bytes is not None]
    fits = None
    if totals and outside:
        left = min(totals) - max(outside)
        # What the allocator holds unused it gives back before it fails: only tensors show a lack.
        fits = True if held <= left else False if used is not None and used > left else None
    return Need(step, "estimate", batches, held, fits)


def on_line(peaks: Sequence[tuple[float, int]], batch: float) -> int | None:
    """Return the bytes at a batch, on the line of least squares through each batch's largest peak.

    None for peaks of fewer than two batches, and where memory does not grow with the batch, or
    would be less than nothing at none.
    """
    largest: dict[float, int] = {}
    for at_once, peak in peaks:
        largest[at_once] = max(peak, largest.get(at_once, 0))
    if len(largest) < 2:
        return None
    slope, constant = linear_regression(list(largest), list(largest.values()))
    return round(constant + slope * batch) if slope > 0 <= constant else None


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
    from lockstep.report.compute.lost_time.quantities import of_ranks
    from lockstep.vocabulary.records import step_basis

    on_gpu = launch is not None and any(one.startswith("cuda") for one in launch.devices)
    held = row.peak_reserved_bytes if on_gpu else row.peak_memory_bytes
    if launch is None or row.study not in STUDIES or not row.local_batch or held is None:
        return
    basis = step_basis.of(row.details)
    devices = ", ".join(launch.provenance.get("device_names") or [])
    in_use = of_ranks(row, "gpu_memory_bytes", "most")
    totals = of_ranks(row, "gpu_memory_total_bytes", "least")
    yield Held(
        step_of(row.factors, row.world_size, row.local_batch),
        held,
        row.peak_memory_bytes or held,
        outside_bytes=max(0, int(max(in_use)) - held) if in_use else None,
        total_bytes=int(min(totals)) if totals else None,
        on_gpu=on_gpu,
        is_halved=row.has_smaller_batch,
        alike=(devices or None, basis.optimizer if basis else None, row.workload_sha256),
        started=row.started,
    )
