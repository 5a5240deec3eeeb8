"""What holds on all ranks after a phase of a case, judged from what every rank gave.

The same ends and facts give the same verdict on any rank. What a rank did itself is blamed before
what it suffered from another.
"""

import errno
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from lockstep.core.errors import EXIT_LOST, EXIT_OUT_OF_STEP, OtherRankError
from lockstep.core.record import CauseKind, FailureCause, name_rank
from lockstep.machine.memory import Room, least_room
from lockstep.ranks.control import LostError
from lockstep.ranks.watchdog import stacks_file

MAX_BLAMED = 8
# kind of a cause -> its place among those that a failure names
ORDER: dict[CauseKind, int] = {"fault": 0, "skip": 1, "silence": 1, "consequence": 2}
# What gloo, NCCL and the store raise on the ranks that a failing one left waiting. gloo names
# its source file: a pipe of the user's own, or of a loader's worker, breaks in the same words.
SIGNS_OF_ANOTHERS_FAULT = ("gloo/", "wait timeout", "DistBackendError", "DistNetworkError")
# What this rank's own kernel refuses, whatever library says so.
SIGNS_OF_OWN_FAULT = tuple(map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM)))

Outcome = Literal["passed", "failed", "skipped"]
# What a rank that has no case left names as its next one.
NO_CASE = "the end of its launch"
# What each rank gives as a phase ends; None in its place where it did not answer.
Ends = Sequence[Mapping[str, Any] | None]


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
    def with_words(cls, words: str) -> Self:
        """Return the end of a phase that failed without an error of its own."""
        return cls("failed", words, words)

    @classmethod
    def with_error(cls, error: Exception) -> Self:
        """Return the end of a phase that an error of this package or of torch ended."""
        words = str(error).partition("\n")[0] or type(error).__name__
        return cls("failed", words, words, is_consequence(error))


@dataclass(frozen=True)
class Facts:
    """What a verdict rests on besides what the ranks gave.

    Attributes:
        ranks: The provenance of each rank, with its host and device.
        case: The case that runs; empty before the first.
        timeout_s: How long the ranks wait for each other between cases.
        journal_path: Beside which silent ranks may have left their stacks.
    """

    ranks: Sequence[Mapping[str, Any]]
    case: str
    budget_s: float
    timeout_s: float
    journal_path: Path | None
    has_failed: bool = False

    def name(self, rank: int) -> str:
        """Return a rank with its host and device."""
        return name_rank(rank, self.ranks[rank]["host"], self.ranks[rank]["device"])

    def late(self, silent: Sequence[int]) -> str:
        """Return which ranks took longer for the case than it may take."""
        more = f" and {len(silent) - 1} ranks more" if len(silent) > 1 else ""
        return (
            f"{self.name(silent[0])}{more} did not end {self.case} within its budget of "
            f"{self.budget_s:g} s; raise --case-budget if it needs longer{self.stacks(silent[0])}"
        )

    def stacks(self, rank: int) -> str:
        """Return where the stacks of a silent rank may be; empty without a journal."""
        if self.journal_path is None:
            return ""
        return f"; its stacks, if it could write them: {stacks_file(self.journal_path, rank)}"

    def uneven(self, ends: Ends) -> str:
        """Return which rank called other collectives than the first; empty where all agree.

        A collective whose result no rank waits for does not fail where it is called: the next case
        would meet it in place of its own. gloo counts sends and receives alike.
        """
        counts = {rank: end["collectives"] for rank, end in enumerate(ends) if end is not None}
        first = min(counts)
        odd = next((rank for rank, count in counts.items() if count != counts[first]), None)
        if odd is None:
            return ""
        return (
            f"{self.name(odd)} has called {counts[odd]} collectives since the ranks last joined, "
            f"{self.name(first)} {counts[first]}; every rank must call the same ones (gloo counts "
            "sends and receives, too, but in a group of their own from new_group)"
        )

    def astray(self, ends: Ends, at: Literal["case", "next"]) -> str:
        """Return which rank is at another case than the first; empty where all agree."""
        cases = {rank: end[at] for rank, end in enumerate(ends) if end is not None}
        first = min(cases)
        for rank, case in cases.items():
            if case != cases[first]:
                return (
                    f"{self.name(rank)} is at {case} while rank {first} is at {cases[first]}; "
                    "nothing measured from here on could be trusted"
                )
        return ""

    def blame(self, ends: Ends) -> tuple[tuple[FailureCause, ...], str]:
        """Return what ranks that did not pass met, the first to blame first, and in words."""
        causes = []
        for rank, end in enumerate(ends):
            kind: CauseKind
            if end is None:
                kind, error = "silence", ""
            elif end["outcome"] == "passed":
                continue
            elif end["outcome"] == "skipped":
                kind, error = "skip", end["reason"]
            else:
                kind, error = ("consequence" if end["is_consequence"] else "fault"), end["error"]
            place = self.ranks[rank]
            causes.append(FailureCause(rank, place["host"], place["device"], kind, error))
        causes.sort(key=lambda cause: ORDER[cause.kind])
        lines = []
        for cause in causes[:MAX_BLAMED]:
            end = ends[cause.rank]
            lines.append(cause.sentence(end["reason"] if end else None, self.stacks(cause.rank)))
        if len(causes) > MAX_BLAMED:
            lines.append(f"and {len(causes) - MAX_BLAMED} ranks more")
        return tuple(causes[:MAX_BLAMED]), "\n".join(lines)


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
    def from_json(cls, facts: Mapping[str, Any]) -> Self:
        """Return the verdict that `to_json` gave."""
        room = facts["room"]
        causes = tuple(FailureCause(**cause) for cause in facts["causes"])
        return cls(**{**facts, "room": Room(**room) if room else None, "causes": causes})

    def ends(self, code: int, ending: str) -> Self:
        """Return the verdict with an end of the launch, unless it has one."""
        return self if self.code is not None else replace(self, code=code, ending=ending)

    @classmethod
    def of_phase(cls, ends: Ends, facts: Facts) -> Self:
        """Judge a phase: failed where one rank failed, or where ranks ended it differently."""
        outcomes = {end["outcome"] if end else "silent" for end in ends}
        if outcomes in ({"passed"}, {"skipped"}):
            if not facts.has_failed and (uneven := facts.uneven(ends)):
                return cls("failed", uneven)
            assert ends[0] is not None
            return cls(ends[0]["outcome"], ends[0]["reason"])
        causes, reason = facts.blame(ends)
        verdict = cls("failed", reason, causes=causes)
        silent = [rank for rank, end in enumerate(ends) if end is None]
        return verdict.ends(EXIT_LOST, facts.late(silent)) if silent else verdict

    @classmethod
    def of_set_up(cls, ends: Ends, facts: Facts) -> Self:
        """Judge a set-up, and find the memory that is left; the ranks must run one case."""
        verdict = cls.of_phase(ends, facts)
        if astray := facts.astray(ends, "case"):
            failed = replace(verdict, outcome="failed", reason=astray)
            return failed.ends(EXIT_OUT_OF_STEP, astray)
        if verdict.outcome != "passed":
            return verdict
        free_bytes = [end["free_bytes"] for end in ends if end]
        hosts = [rank["host"] for rank in facts.ranks]
        return replace(verdict, room=least_room(free_bytes, hosts))

    @classmethod
    def of_leaving(cls, ends: Ends, facts: Facts) -> Self:
        """Judge a teardown; the ranks must be about to run the same case next.

        Before the first case there is no teardown: `Facts.case` is empty, and every end passed.
        """
        verdict = cls()
        silent = [rank for rank, end in enumerate(ends) if end is None]
        if facts.case:
            verdict = cls.of_phase(ends, facts)
        elif silent:
            more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
            case = next(end["next"] for end in ends if end is not None)
            absent = (
                f"{facts.name(silent[0])}{more}, awaited at {case}, did not come within "
                f"{facts.timeout_s:g} s; see its log"
            )
            verdict = cls("failed", absent, EXIT_LOST, absent)
        if astray := facts.astray(ends, "next"):
            verdict = replace(verdict, code=EXIT_OUT_OF_STEP, ending=astray)
        left = [each["kind"] for end in ends if end for each in end["left"]]
        return replace(verdict, needs_group="process_group" in left)

    @classmethod
    def of_rebuilding(cls, ends: Ends, facts: Facts) -> Self:
        """Judge whether the process group is there again; without it the launch ends."""
        _, reason = facts.blame(ends)
        if not reason:
            return cls()
        ending = f"the process group could not be built again after a failure: {reason}"
        return cls("failed", reason, EXIT_LOST, ending)
