"""Long measurements whose parts stand alone, and the lines of the tables that they print."""

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

Found = TypeVar("Found")


def attempt(name: str, measure: Callable[[], Found]) -> Found | None:
    """Return what a part finds; where it fails, say on standard error why, and return None."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001, whatever ends one part
        said = str(error).strip().splitlines() or [type(error).__name__]
        causes = [line for line in said if line.startswith("E  ")][:2]
        shown = [f"{name}: not measured: {said[0]}", *(causes or said[1:][-8:])]
        sys.stderr.write("\n  ".join(shown) + "\n")
        return None


def line(cells: Iterable[str], widths: Iterable[str]) -> str:
    """Return a line of a table; a width is a format such as `<62`, to the left, or `>8`."""
    shown = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=False))
    return "  ".join(shown).rstrip()
