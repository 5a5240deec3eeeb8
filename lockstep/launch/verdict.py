"""What holds on all ranks after a phase of a case, concluded from what every rank gave.

Who is to blame where a case or a launch fails, concluded alike on all ranks from one list.
"""

import errno
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lockstep.core.errors import OtherRankError
from lockstep.core.record import CauseKind, FailureCause
from lockstep.machine.memory import Room, least_room
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


def find_causes(
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


def describe_rank(rank: int, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return a rank with its host and device, from the provenance of all ranks."""
    return f"rank {rank} on {ranks[rank]['host']} ({ranks[rank]['device']})"


def describe_failure(
    ends: Sequence[Mapping[str, Any] | None],
    ranks: Sequence[Mapping[str, Any]],
    journal_path: Path | None,
) -> str:
    """Return what each rank that did not pass says, in the order of `causes`.

    An end is None where the rank was silent; its stacks may lie beside the journal.
    """
    met = find_causes(ends, ranks)
    texts = []
    for cause in met[:MAX_BLAMED]:
        end = ends[cause.rank]
        stacks = _its_stacks(cause.rank, journal_path)
        texts.append(cause.sentence(None if end is None else end["reason"], stacks))
    more = [f"and {len(met) - MAX_BLAMED} ranks more"] if len(met) > MAX_BLAMED else []
    return "\n".join(texts + more)


def describe_late(
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
    who = f"{describe_rank(silent[0], ranks)}{more}"
    return (
        f"{who} did not end {case} within its budget of {budget_s:g} s; raise --case-budget if it "
        f"needs longer{_its_stacks(silent[0], journal_path)}"
    )


def describe_uneven(
    found: Sequence[Mapping[str, Any] | None], ranks: Sequence[Mapping[str, Any]]
) -> str:
    """Return which rank called other collectives than rank 0; empty where all agree.

    A collective whose result no rank waits for does not fail where it is called: the next case
    would meet it in place of its own. gloo counts sends and receives alike. What is found of a rank
    has "collectives", and is None where the rank was silent.
    """
    counts = {rank: end["collectives"] for rank, end in enumerate(found) if end is not None}
    odd = next((rank for rank, count in counts.items() if count != counts[min(counts)]), None)
    if odd is None:
        return ""
    first = min(counts)
    return (
        f"{describe_rank(odd, ranks)} has called {counts[odd]} collectives since the ranks last "
        f"joined, {describe_rank(first, ranks)} {counts[first]}; every rank must call the same "
        "ones (gloo counts sends and receives, too, but in a group of their own from new_group)"
    )


def describe_astray(cases: Sequence[str | None], ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return which rank is about to run another case than the first; empty where all agree.

    The case of a rank that was silent is None.
    """
    first = next(rank for rank, case in enumerate(cases) if case is not None)
    for rank, case in enumerate(cases):
        if case not in (None, cases[first]):
            return (
                f"{describe_rank(rank, ranks)} is at {case} while rank {first} is at "
                f"{cases[first]}; nothing measured from here on could be trusted"
            )
    return ""


def describe_absent(
    cases: Sequence[str | None], ranks: Sequence[Mapping[str, Any]], timeout_s: float
) -> str:
    """Return which ranks did not come to a case, whose case is None; empty where all did."""
    silent = [rank for rank, case in enumerate(cases) if case is None]
    if not silent:
        return ""
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    case = next(case for case in cases if case is not None)
    return (
        f"{describe_rank(silent[0], ranks)}{more}, awaited at {case}, did not come within "
        f"{timeout_s:g} s; see its log"
    )


def _its_stacks(rank: int, journal_path: Path | None) -> str:
    if journal_path is None:
        return ""
    return f"; its stacks, if it could write them: {stacks_file(journal_path, rank)}"


Outcome = Literal["passed", "failed", "skipped"]
# What a rank that has no case left names as its next one.
NO_CASE = "the end of its launch"
# What each rank gives as a phase ends; None in its place where it did not answer.
Ends = Sequence[Mapping[str, Any] | None]


@dataclass(frozen=True)
class Ended:
    """How a phase of a case ended on this rank.

    Attributes:
        reason: Why it did not pass, as pytest shows it, which may be a traceback.
        error: The error alone, where there was one.
        is_consequence: Whether this rank only met what another one did.
    """

    outcome: Outcome = "passed"
    reason: str = ""
    error: str = ""
    is_consequence: bool = False

    @classmethod
    def with_words(cls, words: str) -> "Ended":
        """Return the end of a phase that failed without an error of its own."""
        return cls("failed", words, words)

    @classmethod
    def with_error(cls, error: Exception) -> "Ended":
        """Return the end of a phase that an error of this package or of torch ended."""
        words = str(error).partition("\n")[0] or type(error).__name__
        return cls("failed", words, words, is_consequence(error))


@dataclass(frozen=True)
class Verdict:
    """What holds on all ranks.

    Attributes:
        code: Exit code with which the launch ends before its next case; None where it goes on.
        room: What every rank may still take of memory, once all are set up.
        needs_group: Whether a rank has lost the process group without failing.
        causes: What ranks that did not pass met, the first to blame first.
    """

    outcome: Outcome = "passed"
    reason: str = ""
    code: int | None = None
    ending: str = ""
    room: Room | None = None
    needs_group: bool = False
    causes: tuple[FailureCause, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> "Verdict":
        """Return the verdict that `to_json` gave."""
        room = facts["room"]
        causes = tuple(FailureCause(**cause) for cause in facts["causes"])
        return cls(**{**facts, "room": Room(**room) if room else None, "causes": causes})

    def ends(self, code: int, ending: str) -> "Verdict":
        """Return the verdict with an end of the launch, unless it has one."""
        return self if self.code is not None else replace(self, code=code, ending=ending)


@dataclass(frozen=True)
class Facts:
    """What a verdict rests on besides what the ranks gave.

    Attributes:
        timeout_s: How long the ranks wait for each other between cases.
        journal_path: Beside which silent ranks may have left their stacks.
    """

    ranks: Sequence[Mapping[str, Any]]
    case: str
    budget_s: float
    timeout_s: float
    journal_path: Path | None
    has_failed: bool = False

    def late(self, silent: Sequence[int]) -> str:
        """Return which ranks took longer for the case than it may take."""
        return describe_late(silent, self.ranks, self.case, self.budget_s, self.journal_path)


def of_phase(ends: Ends, facts: Facts) -> Verdict:
    """Return what a phase comes to: failed where one rank failed, or ranks ended it differently."""
    outcomes = {end["outcome"] if end else "silent" for end in ends}
    if outcomes in ({"passed"}, {"skipped"}):
        uneven = "" if facts.has_failed else describe_uneven(ends, facts.ranks)
        if uneven:
            return Verdict("failed", uneven)
        assert ends[0] is not None
        return Verdict(ends[0]["outcome"], ends[0]["reason"])
    reason = describe_failure(ends, facts.ranks, facts.journal_path)
    verdict = Verdict("failed", reason, causes=find_causes(ends, facts.ranks)[:MAX_BLAMED])
    silent = [rank for rank, end in enumerate(ends) if end is None]
    return verdict.ends(EXIT_LOST, facts.late(silent)) if silent else verdict


def of_set_up(ends: Ends, facts: Facts) -> Verdict:
    """Return what set-up comes to, and the memory that is left; the ranks must run one case."""
    verdict = of_phase(ends, facts)
    astray = describe_astray(_each(ends, "case"), facts.ranks)
    if astray:
        return replace(verdict, outcome="failed", reason=astray).ends(EXIT_OUT_OF_STEP, astray)
    if verdict.outcome != "passed":
        return verdict
    free_bytes = [end["free_bytes"] for end in ends if end]
    return replace(verdict, room=least_room(free_bytes, [rank["host"] for rank in facts.ranks]))


def of_leaving(ends: Ends, facts: Facts) -> Verdict:
    """Return what teardown comes to; the ranks must be about to run the same case next.

    Before the first case there is no teardown: `Facts.case` is empty, and every end passed.
    """
    nexts = _each(ends, "next")
    astray = describe_astray(nexts, facts.ranks)
    if facts.case:
        verdict = of_phase(ends, facts)
    else:
        absent = describe_absent(nexts, facts.ranks, facts.timeout_s)
        verdict = Verdict("failed", absent, EXIT_LOST, absent) if absent else Verdict()
    if astray:
        verdict = replace(verdict, code=EXIT_OUT_OF_STEP, ending=astray)
    left = [each for end in ends if end for each in end["left"]]
    return replace(verdict, needs_group=any(each["kind"] == "process_group" for each in left))


def _each(ends: Ends, name: str) -> list[Any]:
    return [None if end is None else end[name] for end in ends]


def of_rebuilding(ends: Ends, facts: Facts) -> Verdict:
    """Return whether the process group is there again; without it the launch ends."""
    blamed = describe_failure(ends, facts.ranks, facts.journal_path)
    if not blamed:
        return Verdict()
    ending = f"the process group could not be built again after a failure: {blamed}"
    return Verdict("failed", blamed, EXIT_LOST, ending)
