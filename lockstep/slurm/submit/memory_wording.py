"""What a plan says of memory, as a table and in sentences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.vocabulary.metrics import GIGA
from lockstep.vocabulary.text.formats import DASH, number

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.campaign.choosing.memory_needed import Need

TEXTS = ("job", "after", "cases of a launch")
HOW = "first send a copy of the campaign with one repeat of its smallest world size"


def empty(*headings: str) -> "Table":
    """Return a table without rows, as a plan has them."""
    from rich.table import Table

    table = Table(box=None, header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in TEXTS else "right", overflow="fold")
    return table


def memory_table(needs: "Sequence[Need]") -> "Table":
    """Return a line for each step: its batch, and the memory that it took where it was measured."""
    every = [one.step.settings for one in needs]
    names = [name for name in every[0] if len({str(one.get(name)) for one in every}) > 1]
    names = [name for name in names if name != "world_size"]  # which the ranks are
    head = (name.replace("_", " ") for name in names)
    table = empty("ranks", *head, "batch a rank", "accumulation", "memory, GB")
    for one in needs:
        table.add_row(
            ", ".join(map(str, one.step.world_sizes)),
            *(str(one.step.settings.get(name, DASH)) for name in names),
            f"{one.step.local_batch:,}",
            str(one.step.accumulation),
            number(one.peak_bytes / GIGA) if one.peak_bytes else DASH,
        )
    return table


def memory_lines(needs: "Sequence[Need]") -> list[str]:
    """Say what the memory is of, and how to find out what is not known of it."""
    if not needs:
        return []
    measured = [one for one in needs if one.peak_bytes]
    if not measured:
        return [f"No result in the folder of --to says whether a batch fits: {HOW}."]
    said = []
    for name, total in dict.fromkeys((one.devices, one.total_bytes) for one in measured):
        has = f", which has {number(total / GIGA)} GB" if total else ""
        said.append(f"Memory is the peak of a rank on {name or 'an unknown device'}{has}.")
    if len(measured) < len(needs):
        said.append(f"Whether a batch fits that was not measured is not known: {HOW}.")
    return said
