"""What was seen after a fault was put into a running measurement."""

from dataclasses import dataclass


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
