"""Text as lines for a terminal that may know only ASCII, and for LaTeX, Markdown and spreadsheets.

Strangers' text is escaped, so that nothing of it is run. A page's script reads the same tables.
"""

import json
import re
import textwrap
import unicodedata
from collections.abc import Sequence

from lockstep.core import formats

WIDTH = 100
# Least width of the last cell of a line.
LEAST = 30
ASCII = str.maketrans({formats.DASH: "-", formats.THIN: "", "\u00d7": "x", "\u2192": "->"})


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows, the header first, as aligned lines; the last cell is wrapped below itself."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        head = "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        wide = max(WIDTH - len(head), LEAST)
        first, *others = _wrap(plain(row[-1]), wide) or [""]
        lines += [plain(head + first).rstrip(), *(" " * len(head) + line for line in others)]
    return lines


def numbers(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows, the header first, as aligned lines: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        plain("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])).rstrip()
        for row in rows
    ]


def sentence(text: str, width: int = WIDTH) -> list[str]:
    """Return a sentence as lines, those after the first indented."""
    first = text[: len(text) - len(text.lstrip())]
    return _wrap(plain(text), width, f"{first}  ")


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a text; a name, such as that of a case, stays whole unless no line could hold it."""
    breaks = any(len(word) > WIDTH for word in text.split())
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=breaks
    )


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows, the header first, as a Markdown table that shows each cell as it is."""
    head, *body = [[markdown(cell) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return [f"| {' | '.join(line)} |" for line in lines]


def plain(text: str) -> str:
    """Return a text with a report's dash, thin space, arrow and sign of times in ASCII."""
    return text if text.isascii() else text.translate(ASCII)


def signs(text: str) -> str:
    """Return a line of a card with a page's signs: an arrow and a sign of times."""
    return re.sub(r"(?<=\d)x$", "\u00d7", text.replace("->", "\u2192"))


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    formats.DASH: "--", formats.THIN: r"\,", "\u2014": "---", "\u2019": "'", "\u00a0": "~",
    "\u00d7": r"$\times$", "\u00b5": r"$\mu$", "\u03bc": r"$\mu$", "\u00b1": r"$\pm$",
    "\u00df": r"\ss{}", "\u00f8": r"\o{}", "\u00d8": r"\O{}", "\u00e6": r"\ae{}",
    "\u0142": r"\l{}", "\u0141": r"\L{}", "\n": "\n", "'": "'", "`": r"\textasciigrave{}",
    "\u00b2": "$^2$", "\u00b3": "$^3$", "\u2076": "$^6$", "\u2079": "$^9$",
    "\u25a0": r"\rule{5pt}{5pt}", "\u2713": r"$\surd$", "\u2717": r"$\times$",
}  # fmt: skip
# A combining mark -> LaTeX's command, which puts it over the letter.
_MARKS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r",
    "\u0327": "c", "\u030c": "v", "\u0306": "u", "\u030b": "H", "\u0307": ".", "\u0328": "k",
}  # fmt: skip
UNKNOWN = "?"
_MARKDOWN = frozenset("\\`*_{}[]#|$~")
# A spreadsheet runs text that begins with one of these.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def tex(text: str) -> str:
    """Return text that LaTeX prints as it is; a letter that its fonts lack becomes a ?."""
    return "".join(map(_letter, str(text)))


def _letter(letter: str) -> str:
    if known := _TEX.get(letter):
        return known
    if letter.isascii():
        return letter if letter.isprintable() else " "
    parts = unicodedata.normalize("NFD", letter)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _MARKS:
        return f"\\{_MARKS[parts[1]]}{{{parts[0]}}}"
    return UNKNOWN


def markdown(text: str) -> str:
    """Return text that Markdown shows as it is, in a paragraph or a cell of a table.

    A zero-width space after the @ of a name keeps sites from notifying the user of that name.
    """
    escaped = "".join(f"\\{sign}" if sign in _MARKDOWN else sign for sign in str(text))
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"@(?=\w)", "@&#8203;", escaped)


def csv_text(text: str) -> str:
    """Return text that no spreadsheet runs as a formula, and no reader splits into two lines."""
    # csv's writer does not quote a lone carriage return, at which readers end the line.
    return (f"'{text}" if text.startswith(FORMULA) else text).replace("\r", " ")


def tables() -> str:
    """Return the tables as JSON, for the script of a page."""
    return json.dumps({"tex": _TEX, "formula": "".join(FORMULA)})
