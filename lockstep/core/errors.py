"""Errors that name ranks.

Why a rank ends its session: on standard error, and in a file that no case prints into.
"""

import contextlib
import sys
from pathlib import Path

# How a session ends, beside pytest's own codes: a rank or the store is lost, its files cannot be
# written, it ended in order for the stop file, ranks are out of step, the machine cannot measure.
EXIT_LOST, EXIT_IO, EXIT_STOPPED, EXIT_OUT_OF_STEP, EXIT_MACHINE = 70, 74, 75, 76, 78


class RankError(RuntimeError):
    """What went wrong on some ranks, which the message names as the cause."""

    def __init__(self, message: str, *ranks: int) -> None:
        super().__init__(message)
        self.ranks = ranks


class OtherRankError(RankError):
    """What this rank meets only because of others, which the message names."""


class AgreedError(ValueError):
    """What all ranks refuse alike once they have met: each knows that rank 0 says it.

    It has the ranks that the message names as the cause, if it is not about all.
    """

    def __init__(self, message: str, *ranks: int) -> None:
        super().__init__(message)
        self.ranks = ranks


_files: list[Path] = []  # that of this rank, until it has said why


def keep_in(folder: Path, rank: int) -> None:
    """Let what this rank says first, once cases run, be kept in the folder of its launch."""
    _files[:] = [folder / f"rank-{rank}.said"]


def note(words: str) -> None:
    """Keep why this rank ends, unless it has said so; a disk that is gone is said elsewhere."""
    while _files:
        with contextlib.suppress(OSError):
            _files.pop().write_text(words, encoding="utf-8", errors="backslashreplace")


def say(words: str) -> None:
    """Say on standard error why this rank ends, and keep it."""
    note(words)
    sys.stderr.write(f"lockstep: {words}\n")
    sys.stderr.flush()


def take(folder: Path, since_s: int) -> str:
    """Return what the ranks of a launch have said first since a time, and forget all they said."""
    paths = sorted(folder.glob("rank-*.said"), key=lambda path: path.stat().st_mtime_ns)
    words = ""
    for path in paths:
        if not words and path.stat().st_mtime >= since_s:
            words = path.read_text(encoding="utf-8", errors="replace")
        path.unlink()
    return words
