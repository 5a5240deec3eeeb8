"""Who is to blame where a case or a launch fails, concluded alike on all ranks from one list."""

import errno
import os
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.core.records.errors import OtherRankError
from lockstep.core.records.launch_block import CauseKind, FailureCause
from lockstep.ranks.control import LostError
from lockstep.ranks.watchdog import stacks_file

EXIT_LOST = 70
EXIT_OUT_OF_STEP = 76
MAX_BLAMED = 8
# kind of a cause -> its place among those that a failure names
ORDER: dict[CauseKind, int] = {"fault": 0, "skip": 1, "silence": 1, "consequence": 2}
# What gloo, NCCL and the store raise on the ranks that a failing one left waiting. gloo names
# its source file: a pipe of the user's own, or of a loader's worker, breaks in the same words.
SIGNS_OF_ANOTHERS_FAULT = ("gloo/", "wait timeout", "DistBackendError", "DistNetworkError")
# What this rank's own kernel refuses, whatever library says so.
SIGNS_OF_OWN_FAULT = tuple(map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM)))


def is_consequence(error: BaseException) -> bool:
    """Return whether an error is only that another rank was lost, or refused first."""
    if isinstance(error, BaseExceptionGroup):  # of several fixtures, as they are torn down
        return all(map(is_consequence, error.exceptions))
    if isinstance(error, (LostError, OtherRankError)):
        return True
    text = "".join(traceback.format_exception_only(error))
    if any(sign in text for sign in SIGNS_OF_OWN_FAULT):
        return False
    return any(sign in text for sign in SIGNS_OF_ANOTHERS_FAULT)


def causes(
    ends: Sequence[Mapping[str, Any] | None], ranks: Sequence[Mapping[str, Any]]
) -> tuple[FailureCause, ...]:
    """Return what each rank that did not pass met.

    What a rank did itself comes first, what it only suffered from the others last. An end is None
    where the rank was silent.
    """
    met = [
        FailureCause(rank, ranks[rank]["host"], ranks[rank]["device"], *_met(end))
        for rank, end in enumerate(ends)
        if end is None or end["outcome"] != "passed"
    ]
    return tuple(sorted(met, key=lambda cause: ORDER[cause.kind]))


def _met(end: Mapping[str, Any] | None) -> tuple[CauseKind, str]:
    if end is None:
        return "silence", ""
    if end["outcome"] == "skipped":
        return "skip", end["reason"]
    return "consequence" if end["is_consequence"] else "fault", end["error"]


def where(rank: int, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return a rank with its host and device, from the provenance of all ranks."""
    return f"rank {rank} on {ranks[rank]['host']} ({ranks[rank]['device']})"


def blame(
    ends: Sequence[Mapping[str, Any] | None],
    ranks: Sequence[Mapping[str, Any]],
    journal_path: Path | None,
) -> str:
    """Return what each rank that did not pass says, in the order of `causes`.

    An end is None where the rank was silent; its stacks may lie beside the journal.
    """
    met = causes(ends, ranks)
    texts = [_text(cause, ends[cause.rank], journal_path) for cause in met[:MAX_BLAMED]]
    more = [f"and {len(met) - MAX_BLAMED} ranks more"] if len(met) > MAX_BLAMED else []
    return "\n".join(texts + more)


def _text(cause: FailureCause, end: Mapping[str, Any] | None, journal_path: Path | None) -> str:
    if end is None:
        return f"{cause.who} did not answer in time{_its_stacks(cause.rank, journal_path)}"
    if cause.kind == "skip":
        return f"{cause.who} skips, but not all ranks do: {end['reason']}"
    return f"{cause.who}: {end['reason']}"


def late(
    silent: Sequence[int],
    ranks: Sequence[Mapping[str, Any]],
    case: str,
    budget_s: float,
    journal_path: Path | None,
) -> str:
    """Return which ranks took longer for a case than it may take.

    The first silent rank is named in full; their stacks may lie beside the journal.
    """
    more = f" and {len(silent) - 1} ranks more" if len(silent) > 1 else ""
    return (
        f"{where(silent[0], ranks)}{more} did not end {case} within its budget of {budget_s:g} s; "
        f"raise --case-budget if it needs longer{_its_stacks(silent[0], journal_path)}"
    )


def uneven(found: Sequence[Mapping[str, Any] | None], ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return which rank called other collectives than rank 0; empty where all agree.

    A collective whose result no rank waits for does not fail where it is called: the next case
    would meet it in place of its own. gloo counts sends and receives alike. What is found of a rank
    has "collectives", and is None where the rank was silent.
    """
    counts = {rank: end["collectives"] for rank, end in enumerate(found) if end is not None}
    odd = next((rank for rank, count in counts.items() if count != counts[min(counts)]), None)
    if odd is None:
        return ""
    return (
        f"{where(odd, ranks)} has called {counts[odd]} collectives since the ranks last joined, "
        f"{where(min(counts), ranks)} {counts[min(counts)]}; every rank must call the same ones "
        "(gloo counts sends and receives, too, but in a group of their own from new_group)"
    )


def astray(cases: Sequence[str | None], ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return which rank is about to run another case than the first; empty where all agree.

    The case of a rank that was silent is None.
    """
    first = next(rank for rank, case in enumerate(cases) if case is not None)
    for rank, case in enumerate(cases):
        if case not in (None, cases[first]):
            return (
                f"{where(rank, ranks)} is at {case} while rank {first} is at {cases[first]}; "
                "nothing measured from here on could be trusted"
            )
    return ""


def absent(
    cases: Sequence[str | None], ranks: Sequence[Mapping[str, Any]], timeout_s: float
) -> str:
    """Return which ranks did not come to a case, whose case is None; empty where all did."""
    silent = [rank for rank, case in enumerate(cases) if case is None]
    if not silent:
        return ""
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    case = next(case for case in cases if case is not None)
    return (
        f"{where(silent[0], ranks)}{more}, awaited at {case}, did not come within "
        f"{timeout_s:g} s; see its log"
    )


def _its_stacks(rank: int, journal_path: Path | None) -> str:
    if journal_path is None:
        return ""
    return f"; its stacks, if it could write them: {stacks_file(journal_path, rank)}"
