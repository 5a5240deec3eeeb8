"""One fault that is put into a running measurement, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Seen:
    """What was seen after a fault.

    Attributes:
        text: What happened, in the words of a reader who saw only the outcome.
        holds: Whether that is what was expected.
        detected_s: Seconds from the fault to the first sign that names it; None where no clock ran.
    """

    text: str
    holds: bool
    detected_s: float | None = None


@dataclass(frozen=True)
class Fault:
    """A row of the table of faults.

    Attributes:
        number: Its number there.
        name: What breaks.
        injected: How it was broken.
        expected: What should become of it.
        inject: Breaks it, in an empty folder of its own, and returns what was seen.
    """

    number: int
    name: str
    injected: str
    expected: str
    inject: Callable[[Path], Seen]
