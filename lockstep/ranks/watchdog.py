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

# A rank is ended so long after its time is over. Within VERDICT_S rank 0 says who did not answer,
# or the others say that rank 0 did not; the rest is a margin, so that this is out before.
GRACE_S = control.VERDICT_S + 0.5
# A process says that it is late so long after its time is over: after rank 0 has named it, and
# before the other ranks give up on a rank 0 that is late itself.
SPEAK_S = 0.75 * control.VERDICT_S


def stacks_file(journal_path: Path, rank: int) -> Path:
    """Return where a rank that takes too long writes what it was doing."""
    return journal_path.parent / "stacks" / f"{journal_path.stem}-rank-{rank}.txt"


class Watchdog:
    """Writes down the stacks of this process and ends it, once a case takes too long.

    Nothing runs while it waits, so it may guard a timed region. A case may take the one timer of
    faulthandler for itself: the kernel's then ends the process, without its stacks.

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
        self._stderr = os.dup(2)
        self._speaker: threading.Timer | None = None

    def arm(self, budget_s: float, words: str = "") -> None:
        """Begin to count, from now on.

        Args:
            budget_s: Seconds until this process is late.
            words: What standard error is to hold once it is, if anything.
        """
        faulthandler.dump_traceback_later(budget_s + GRACE_S, exit=True, file=self._file)
        _count_in_kernel(budget_s + 2 * GRACE_S)
        self._speak_in(budget_s + SPEAK_S, words)

    def _speak_in(self, after_s: float, words: str) -> None:
        """Say something later, in the place of what was to be said before."""
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
        """Count no longer."""
        faulthandler.cancel_dump_traceback_later()
        _count_in_kernel(0)
        self._speak_in(0, "")

    def close(self, end_s: float | None = None, words: str = "") -> None:
        """Count no longer, or only until this process has ended, and leave no empty file.

        Args:
            end_s: Within this time from now on the process is to end; None where it goes on.
            words: What standard error is to hold once it is late, if anything.
        """
        if end_s is None:
            self.disarm()
        else:
            _guard_end(end_s)
            self._speak_in(end_s + SPEAK_S, words)
        if self._file.closed:
            return
        # The disk may be gone, or another rank have tidied up: no reason to end otherwise.
        with contextlib.suppress(OSError):
            if not self._speaker:
                os.close(self._stderr)
            own = os.fstat(self._file.fileno())
            self._file.close()
            if self._path is None or own.st_size:
                return
            if os.path.samestat(own, self._path.stat()):  # its name may be another's by now
                self._path.unlink()
                self._path.parent.rmdir()  # with the last of them


def _guard_end(end_s: float) -> None:
    """End this process if it does not end itself: hooks, threads and destructors may wait.

    Its stacks go to standard error, for the file of stacks may be on a disk that is gone. Where
    Python has ended and a library's destructor waits, the kernel's timer is all that is left.
    """
    # A bare descriptor, for a file object that the next guard drops would warn of being unclosed.
    try:
        stderr = os.dup(2)
    except OSError:  # the process has no descriptor left
        stderr = 2
    faulthandler.dump_traceback_later(end_s + GRACE_S, exit=True, file=stderr)
    signal.setitimer(signal.ITIMER_REAL, end_s + 2 * GRACE_S)


def _count_in_kernel(after_s: float) -> None:
    """Let the kernel end this process later, or not where 0, unless it uses SIGALRM itself."""
    if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
        signal.setitimer(signal.ITIMER_REAL, after_s)
