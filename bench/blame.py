"""Who is to blame where a case or a launch fails, concluded alike on all ranks from one list."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.watchdog import stacks_file

MAX_BLAMED = 8
# What gloo, NCCL and the store raise on the ranks that a failing one left waiting.
SIGNS_OF_ANOTHERS_FAULT = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "wait timeout",
    "DistBackendError",
    "DistNetworkError",
    "did not answer",
)


def where(rank: int, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return a rank with its host and device, from the provenance of all ranks."""
    return f"rank {rank} on {ranks[rank]['host']} ({ranks[rank]['device']})"


def blame(
    found: Sequence[Mapping[str, Any] | None],
    ranks: Sequence[Mapping[str, Any]],
    journal_path: Path | None,
) -> str:
    """Return what each rank that did not pass says, with its host and device.

    What a rank did itself comes first, what it only suffered from the others last.

    Args:
        found: Outcome and reason of each rank; None where it was silent.
        ranks: The ranks' part of the provenance.
        journal_path: Beside which silent ranks may have left their stacks.
    """
    said: dict[int, list[str]] = {cause: [] for cause in range(3)}
    for rank, end in enumerate(found):
        who = where(rank, ranks)
        if end is None:
            said[1].append(f"{who} did not answer in time{_its_stacks(rank, journal_path)}")
        elif end["outcome"] == "skipped":
            said[1].append(f"{who} skips, but not all ranks do: {end['reason']}")
        elif end["outcome"] == "failed":
            is_consequence = any(sign in end["reason"] for sign in SIGNS_OF_ANOTHERS_FAULT)
            said[2 if is_consequence else 0].append(f"{who}: {end['reason']}")
    texts = [text for cause in said.values() for text in cause]
    more = [f"and {len(texts) - MAX_BLAMED} ranks more"] if len(texts) > MAX_BLAMED else []
    return "\n".join(texts[:MAX_BLAMED] + more)


def _its_stacks(rank: int, journal_path: Path | None) -> str:
    if journal_path is None:
        return ""
    return f"; its stacks, if it could write them: {stacks_file(journal_path, rank)}"
