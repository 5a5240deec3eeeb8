"""Errors that name ranks, and how a rank says why it ends: on standard error and in a file."""

import contextlib
import sys
from pathlib import Path

# Exit codes of a session, besides pytest's own: a rank or the store is lost; files cannot be
# written; the stop file ended the session; ranks are out of step; the machine cannot measure.
EXIT_LOST, EXIT_IO, EXIT_STOPPED, EXIT_OUT_OF_STEP, EXIT_CANNOT_MEASURE = 70, 74, 75, 76, 78
# Of a command: the machine failed.
EXIT_MACHINE = 3


class _NamesRanksError(Exception):
    """An error with the ranks that its message names as the cause."""

    def __init__(self, message: str, *ranks: int) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankError(_NamesRanksError, RuntimeError):
    """A fault of the ranks that the message names."""


class OtherRankError(RankError):
    """A failure of this rank that the ranks in the message have caused."""


class AgreedError(_NamesRanksError, ValueError):
    """A refusal that is raised on all ranks alike, so rank 0 alone prints it."""


_files: list[Path] = []  # this rank's file; removed from the list once a reason is written


def keep_in(folder: Path, rank: int) -> None:
    """Set the folder of the launch, where `note` writes why this rank ends."""
    _files[:] = [folder / f"rank-{rank}.reason"]


def note(words: str) -> None:
    """Write why this rank ends into its file; later reasons are not written."""
    while _files:
        with contextlib.suppress(OSError):  # a lost disk is reported elsewhere
            _files.pop().write_text(words, encoding="utf-8", errors="backslashreplace")


def say(words: str) -> None:
    """Print on standard error why this rank ends, and write it into its file."""
    note(words)
    sys.stderr.write(f"lockstep: {words}\n")
    sys.stderr.flush()


def take(folder: Path, since_s: int) -> str:
    """Return the first reason that a rank wrote since a time, and delete all reasons."""
    paths = sorted(folder.glob("rank-*.reason"), key=lambda path: path.stat().st_mtime_ns)
    words = ""
    for path in paths:
        if not words and path.stat().st_mtime >= since_s:
            words = path.read_text(encoding="utf-8", errors="replace")
        path.unlink()
    return words
