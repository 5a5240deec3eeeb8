"""Tables as lines for a terminal of 100 columns that may know no more than ASCII."""

import re
import textwrap
from collections.abc import Sequence

from lockstep.core import formats
from lockstep.report.words import escapes

WIDTH = 100
# What is left of a line for its last cell, at the least.
LEAST = 30
ASCII = str.maketrans({formats.DASH: "-", formats.THIN: "", "\u00d7": "x", "\u2192": "->"})


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows, the header first, as aligned lines; the last cell goes on below itself."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        head = "".join(f"{cell}  " for cell in cells)
        lines += _hung(head, row[-1])
    return lines


def numbers(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows, the header first, as aligned lines: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        plain("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])).rstrip()
        for row in rows
    ]


def _hung(head: str, text: str) -> list[str]:
    """Return a text after its head, its further lines below its first."""
    wide = max(WIDTH - len(head), LEAST)
    first, *others = textwrap.wrap(plain(text), wide, break_on_hyphens=False) or [""]
    return [plain(head + first).rstrip(), *(" " * len(head) + line for line in others)]


def sentence(text: str, width: int = WIDTH) -> list[str]:
    """Return a sentence in lines, those after the first set in further than it."""
    first = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(plain(text), width, subsequent_indent=f"{first}  ", break_on_hyphens=False)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows, the header first, as a Markdown table that shows each cell as it is."""
    head, *body = [[escapes.markdown(cell) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return [f"| {' | '.join(line)} |" for line in lines]


def plain(text: str) -> str:
    """Return a text with a report's dash, thin space, arrow and sign of times in ASCII."""
    return text.translate(ASCII)


def signs(text: str) -> str:
    """Return a line of a card with the signs that a page has: an arrow and a sign of times."""
    return re.sub(r"(?<=\d)x$", "\u00d7", text.replace("->", "\u2192"))
