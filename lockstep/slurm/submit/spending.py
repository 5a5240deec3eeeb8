"""What may be spent, and in which unit a centre grants it."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["node-hours", "GPU-hours"]
UNITS: dict[str, Unit] = {"nh": "node-hours", "gh": "GPU-hours"}


@dataclass(frozen=True)
class Budget:
    """Hours to stay within.

    Attributes:
        hours: So many.
        unit: Of what; None for GPU-hours where the site has GPUs, else node-hours.
    """

    hours: float
    unit: Unit | None = None

    def __str__(self) -> str:
        """Return it as the option takes it."""
        suffix = next((name for name, unit in UNITS.items() if unit == self.unit), "")
        return f"{self.hours:g}{suffix}"
