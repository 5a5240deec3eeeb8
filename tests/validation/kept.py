"""Long measurements whose parts stand alone: one that fails is named, and the others go on."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Part:
    """Whether a part of a measurement could not be measured."""

    is_lost: bool = False


@contextmanager
def going(name: str) -> Iterator[Part]:
    """Go on after a part that fails, and say on standard error which, and why."""
    part = Part()
    try:
        yield part
    except Exception as error:  # noqa: BLE001, whatever ends one part
        part.is_lost = True
        said = str(error).strip().splitlines() or [type(error).__name__]
        sys.stderr.write(f"{name}: not measured: {said[0]}\n")
        causes = [line for line in said if line.startswith("E  ")][:2]
        sys.stderr.writelines(f"  {line}\n" for line in causes or said[1:][-8:])
        sys.stderr.flush()
