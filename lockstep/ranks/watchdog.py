"""A limit on how long a case may take, kept by a thread that needs neither Python nor the GIL."""

import contextlib
import faulthandler
import os
import signal
import threading
from pathlib import Path
from typing import IO

from lockstep.core import errors
from lockstep.ranks import control

# A rank is killed so long after its deadline. Before that, within VERDICT_S, rank 0 names silent
# ranks, or other ranks name rank 0.
GRACE_S = control.VERDICT_S + 0.5
# A process prints so long after its deadline that it is late: after rank 0 would name it, and
# before other ranks give up on rank 0.
SPEAK_S = 0.75 * control.VERDICT_S


def stacks_file(journal_path: Path, rank: int) -> Path:
    """Return the file for the stacks of a rank that takes too long."""
    return journal_path.parent / "stacks" / f"{journal_path.stem}-rank-{rank}.txt"


class Watchdog:
    """Writes the stacks of this process and ends it, once a case takes too long.

    It runs nothing while it waits, so it may guard a timed region. Where a case takes the timer
    of faulthandler itself, the kernel's timer ends the process without its stacks.

    Args:
        path: The file for the stacks, in a folder that exists; None for standard error.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        # pytest puts a file of its own in the place of standard error while a case runs
        target = os.dup(2) if path is None else path
        self._file: IO[str] = open(target, "a", encoding="utf-8")  # noqa: PTH123, SIM115
        self._stderr = os.dup(2)
        self._speaker: threading.Timer | None = None

    def arm(self, budget_s: float, words: str = "") -> None:
        """Begin to count down `budget_s`; once it is over, print `words` on standard error."""
        faulthandler.dump_traceback_later(budget_s + GRACE_S, exit=True, file=self._file)
        _count_in_kernel(budget_s + 2 * GRACE_S)
        self._speak_in(budget_s + SPEAK_S, words)

    def _speak_in(self, after_s: float, words: str) -> None:
        """Print `words` after a time; cancel words that were to be printed before."""
        if self._speaker:
            self._speaker.cancel()
            self._speaker = None
        if not words:
            return

        def speak() -> None:
            os.write(self._stderr, f"\nlockstep: {words}\n".encode(errors="replace"))
            errors.note(words)

        self._speaker = threading.Timer(after_s, speak)
        self._speaker.name, self._speaker.daemon = "lockstep-watchdog", True
        self._speaker.start()

    def disarm(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        _count_in_kernel(0)
        self._speak_in(0, "")

    def close(self, end_s: float | None = None, words: str = "") -> None:
        """Stop counting and remove an empty file; with `end_s`, guard the end of this process.

        `words` are printed if this process has not ended within `end_s`.
        """
        if end_s is None:
            self.disarm()
        else:
            _guard_end(end_s)
            self._speak_in(end_s + SPEAK_S, words)
        if self._file.closed:
            return
        # Ignore a lost disk, and a folder that another rank has removed.
        with contextlib.suppress(OSError):
            if not self._speaker:
                os.close(self._stderr)
            own = os.fstat(self._file.fileno())
            self._file.close()
            if self._path is None or own.st_size:
                return
            if os.path.samestat(own, self._path.stat()):  # another file may have its name by now
                self._path.unlink()
                self._path.parent.rmdir()  # fails, and is ignored, unless it is empty


def _guard_end(end_s: float) -> None:
    """End this process if it does not end itself, with its stacks on standard error.

    After Python has ended, only the kernel's timer is left for a library's destructor.
    """
    # A bare descriptor: a file object would warn that it is unclosed when the next guard drops it.
    try:
        stderr = os.dup(2)
    except OSError:  # the process has no descriptor left
        stderr = 2
    faulthandler.dump_traceback_later(end_s + GRACE_S, exit=True, file=stderr)
    signal.setitimer(signal.ITIMER_REAL, end_s + 2 * GRACE_S)


def _count_in_kernel(after_s: float) -> None:
    """Let the kernel end this process later, or not for 0, unless it uses SIGALRM itself."""
    if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
        signal.setitimer(signal.ITIMER_REAL, after_s)
