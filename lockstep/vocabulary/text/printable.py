"""Texts of others, such as error messages and names of files, made fit to print."""

import re

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def one_line(text: str) -> str:
    r"""Return a text as one line that cannot act on a terminal.

    A line end becomes a blank, any other control character its escape, such as `\x1b`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def last_line(text: str) -> str:
    """Return the last line that is not empty, as `one_line` does but without colours."""
    lines = COLOUR.sub("", text).strip().splitlines()
    return one_line(lines[-1].strip()) if lines else ""
