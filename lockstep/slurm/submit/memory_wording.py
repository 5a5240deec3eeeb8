"""What a plan says of memory, as a table and in sentences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.vocabulary.metrics import GIGA
from lockstep.vocabulary.text.formats import DASH, listed, number

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.campaign.choosing.memory_needed import Need

TEXTS = ("job", "after", "cases of a launch", "measured at", "fits")
HOW = "first send a copy of the campaign with one repeat of its smallest world size"
# by what -> the peak
PEAKS = {
    "measured": "{}",
    "estimate": "about {}",
    "bound": "at most {}",
    "refused": "too much",
    None: DASH,
}


def empty(*headings: str) -> "Table":
    """Return a table without rows, as a plan has them."""
    from rich.table import Table

    table = Table(box=None, header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in TEXTS else "right", overflow="fold")
    return table


def memory_table(needs: "Sequence[Need]") -> "Table":
    """Return a line for each step: its batch, the memory that it needs, and whether it fits."""
    every = [one.step.settings for one in needs]
    names = [name for name in every[0] if len({str(one.get(name)) for one in every}) > 1]
    names = [name for name in names if name != "world_size"]  # which the ranks are
    head = (name.replace("_", " ") for name in names)
    table = empty(
        "ranks", *head, "batch a rank", "accumulation", "memory, GB", "measured at", "fits"
    )
    for one in needs:
        peak = number(one.peak_bytes / GIGA) if one.peak_bytes else DASH
        table.add_row(
            ", ".join(map(str, one.step.world_sizes)),
            *(str(one.step.settings.get(name, DASH)) for name in names),
            f"{one.step.local_batch:,}",
            str(one.step.accumulation),
            PEAKS[one.by].format(peak),
            listed(f"{batch:g}" for batch in one.batches) or DASH,
            _verdict(one),
        )
    return table


def _verdict(need: "Need") -> str:
    if need.fits is None:
        return "not known"
    if need.fits:
        return "yes"
    parts = need.fitting_accumulation
    return f"no; {parts} parts would" if parts else "no"


def memory_lines(needs: "Sequence[Need]") -> list[str]:
    """Say what the memory is of, and how to find out what is not known of it."""
    if not needs:
        return []
    if not any(one.by for one in needs):
        return [f"No result in the folder of --to says whether a batch fits: {HOW}."]
    said = []
    for devices in dict.fromkeys((one.devices, one.total_bytes) for one in needs if one.by):
        name, total = devices
        has = f", which has {number(total / GIGA)} GB" if total else ""
        said.append(f"Memory is the peak of a rank on {name or 'an unknown device'}{has}.")
    if any(one.by == "estimate" for one in needs):
        said.append("About is an estimate: a line through the peaks at the batches beside it.")
    if parts := sorted({one.fitting_accumulation for one in needs if one.fitting_accumulation}):
        said.append(f"A batch in parts is [factors] accumulation = {parts} in the campaign.")
    if any(one.fits is None and one.by != "measured" for one in needs):
        said.append(f"Where it is not known whether a batch fits, {HOW}.")
    return said
