"""A limit on how long a case may take, kept by a thread that needs neither Python nor the GIL."""

import contextlib
import faulthandler
import os
import signal
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

    def close(self, end_s: float | None = None) -> None:
        """Count no longer, or only until this process has ended, and leave no empty file.

        Args:
            end_s: Within this time from now on the process is to end; None where it goes on.
        """
        if end_s is None:
            self.disarm()
        else:
            _guard_end(end_s)
        if self._file.closed:
            return
        # The disk may be gone, or another rank have tidied up: no reason to end otherwise.
        with contextlib.suppress(OSError):
            own = os.fstat(self._file.fileno())
            self._file.close()
            if self._path is not None and not own.st_size:
                _remove(self._path, own)


def _guard_end(end_s: float) -> None:
    """End this process if it does not end itself: hooks, threads and destructors may wait.

    Its stacks go to standard error, for the file of stacks may be on a disk that is gone. Where
    Python has ended and a library's destructor waits, the kernel's timer is all that is left.
    """
    # A bare descriptor, for a file object that the next guard drops would warn of being unclosed.
    faulthandler.dump_traceback_later(end_s + GRACE_S, exit=True, file=os.dup(2))
    signal.setitimer(signal.ITIMER_REAL, end_s + 2 * GRACE_S)


def _remove(path: Path, own: os.stat_result) -> None:
    """Remove a file unless its name is another's by now, and its folder with the last of them."""
    if os.path.samestat(own, path.stat()):
        path.unlink()
        path.parent.rmdir()
