"""What a rank sampled while its rounds ran, as rows in the order of time, and the file of them."""

import contextlib
import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "telemetry"
EVERY_S = 1.0
# Of one case: an hour of them is 400 kB. A longer case keeps every second row, then every fourth.
MOST_ROWS = 3600
# Of a number: telemetry is not more exact.
DIGITS = 4
FIRST_COLUMNS = ("time_s", "case")


def file_of(journal_path: Path, rank: int) -> Path:
    """Return where a rank keeps what it sampled, beside its launch's journal."""
    return journal_path.parent / FOLDER / f"{journal_path.stem}-rank-{rank}.csv"


@dataclass
class Timeline:
    """Samples that are a second or more apart, the first one included.

    Attributes:
        gauges: Names of what is sampled, which are the file's columns.
        rows: (seconds since 1970, name -> value) of each.
        every_s: Least time between two rows.
    """

    gauges: Sequence[str]
    rows: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)
    every_s: float = EVERY_S

    def add(self, time_s: float, found: Mapping[str, float]) -> None:
        """Take a sample, unless the row before it is too young."""
        if self.rows and time_s - self.rows[-1][0] < self.every_s:
            return
        self.rows.append((time_s, found))
        if len(self.rows) > MOST_ROWS:
            del self.rows[1::2]
            self.every_s *= 2

    def append_to(self, path: Path, case: str) -> None:
        """Add the rows to a file, with the columns' names where it is new.

        A file that cannot be written is left as it is: no result depends on it.
        """
        if not self.rows:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if not os.fstat(file.fileno()).st_size:
                    writer.writerow([*FIRST_COLUMNS, *self.gauges])
                writer.writerows(self._cells(case))

    def _cells(self, case: str) -> list[list[str]]:
        return [
            [f"{time_s:.3f}", case, *(_cell(found.get(name)) for name in self.gauges)]
            for time_s, found in self.rows
        ]


def rounded(value: float) -> float:
    """Return a number with the digits that telemetry has."""
    return float(f"{value:.{DIGITS}g}")


def _cell(value: float | None) -> str:
    return "" if value is None else f"{rounded(value):.12g}"
