"""A limit on how long a case may take, kept by a thread that needs neither Python nor the GIL."""

import contextlib
import faulthandler
import os
from pathlib import Path
from typing import IO

from bench import control

# By then rank 0 has named the ranks that did not answer, and these, if it is rank 0, it.
GRACE_S = control.VERDICT_S + 0.5


def stacks_file(journal_path: Path, rank: int) -> Path:
    """Return where a rank that takes too long writes what it was doing."""
    return journal_path.parent / "stacks" / f"{journal_path.stem}-rank-{rank}.txt"


class Watchdog:
    """Writes down the stacks of this process and ends it, once a case takes too long.

    Nothing runs while it waits, so it may guard a timed region.

    Args:
        path: Where the stacks go, in a folder that is there; None for standard error.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        # pytest puts a file of its own in the place of standard error while a case runs
        target = os.dup(2) if path is None else path
        self._file: IO[str] = open(target, "a", encoding="utf-8")  # noqa: PTH123, SIM115

    def arm(self, budget_s: float) -> None:
        """Begin to count, from now on."""
        faulthandler.dump_traceback_later(budget_s + GRACE_S, exit=True, file=self._file)

    def disarm(self) -> None:
        """Count no longer."""
        faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Count no longer, and leave no empty file."""
        self.disarm()
        if self._file.closed:
            return
        self._file.close()
        if self._path is not None and not self._path.stat().st_size:
            self._path.unlink()
            with contextlib.suppress(OSError):  # the last of the ranks finds it empty
                self._path.parent.rmdir()
