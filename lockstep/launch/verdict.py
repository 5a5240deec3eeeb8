"""The verdict on a phase of a case: a rank's own fault comes before its consequences."""

import errno
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from lockstep.core.errors import EXIT_LOST, EXIT_OUT_OF_STEP, OtherRankError
from lockstep.core.record import CauseKind, FailureCause, name_rank
from lockstep.machine.memory import Room, least_room
from lockstep.ranks.control import LostError
from lockstep.ranks.watchdog import stacks_file

MAX_BLAMED = 8
# kind of a cause -> its order among the causes of a failure
ORDER: dict[CauseKind, int] = {"fault": 0, "skip": 1, "silence": 1, "consequence": 2}
# Parts of errors of gloo, NCCL and the store on ranks that wait for a failed rank. gloo's errors
# name its source file, unlike a broken pipe in the user's code.
SIGNS_OF_ANOTHERS_FAULT = ("gloo/", "wait timeout", "DistBackendError", "DistNetworkError")
# Parts of errors of this rank's own operating system, in any library.
SIGNS_OF_OWN_FAULT = tuple(map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM)))

Outcome = Literal["passed", "failed", "skipped"]
# The next "case" of a rank that has no case left.
NO_CASE = "the end of its launch"
# The end of a phase by rank; None for a rank that did not answer.
Ends = Sequence[Mapping[str, Any] | None]


def is_consequence(error: BaseException) -> bool:
    """Return whether an error is only a consequence of another rank's loss or refusal."""
    if isinstance(error, BaseExceptionGroup):  # errors of several fixtures in their teardown
        return all(map(is_consequence, error.exceptions))
    if isinstance(error, (LostError, OtherRankError)):
        return True
    text = "".join(traceback.format_exception_only(error))
    if any(sign in text for sign in SIGNS_OF_OWN_FAULT):
        return False
    return any(sign in text for sign in SIGNS_OF_ANOTHERS_FAULT)


@dataclass(frozen=True)
class Ended:
    """How a phase of a case ended on this rank."""

    outcome: Outcome = "passed"
    reason: str = ""  # why the phase did not pass, as pytest shows it, perhaps with a traceback
    error: str = ""  # the error without a traceback
    is_consequence: bool = False  # whether another rank caused the failure

    @classmethod
    def from_words(cls, words: str) -> Self:
        return cls("failed", words, words)

    @classmethod
    def from_error(cls, error: Exception) -> Self:
        """Return a failure by an error of this package or of torch."""
        words = str(error).partition("\n")[0] or type(error).__name__
        return cls("failed", words, words, is_consequence(error))


@dataclass(frozen=True)
class Facts:
    """The facts for a verdict, in addition to the ends of the ranks."""

    ranks: Sequence[Mapping[str, Any]]  # provenance of each rank
    case: str  # the running case; empty before the first case
    budget_s: float
    timeout_s: float  # how long ranks wait for each other between cases
    journal_path: Path | None
    has_failed: bool = False

    def name_rank(self, rank: int) -> str:
        return name_rank(rank, self.ranks[rank]["host"], self.ranks[rank]["device"])

    def describe_late(self, silent: Sequence[int]) -> str:
        """Return a sentence about ranks that took longer for the case than its budget."""
        more = f" and {len(silent) - 1} more ranks" if len(silent) > 1 else ""
        return (
            f"{self.name_rank(silent[0])}{more} did not finish the case {self.case} within "
            f"{self.budget_s:g} s; raise --case-budget if the case needs "
            f"longer{self.describe_stacks(silent[0])}"
        )

    def describe_stacks(self, rank: int) -> str:
        """Return a phrase with the file of a silent rank's stacks; empty without a journal."""
        if self.journal_path is None:
            return ""
        return (
            "; the rank's stacks, if it could write them, are in "
            f"{stacks_file(self.journal_path, rank)}"
        )

    def find_uneven(self, ends: Ends) -> str:
        """Return a sentence about a rank that called more or fewer collectives; else an empty text.

        An unmatched collective may not fail in this case, but would disturb the next case.
        """
        counts = {rank: end["collectives"] for rank, end in enumerate(ends) if end is not None}
        first = min(counts)
        odd = next((rank for rank, count in counts.items() if count != counts[first]), None)
        if odd is None:
            return ""
        return (
            f"{self.name_rank(odd)} called {counts[odd]} collectives since the process group was "
            f"opened, but {self.name_rank(first)} called {counts[first]}; every rank must call the "
            "same collectives. With gloo, sends and receives count as well, unless they use a "
            "separate group from new_group"
        )

    def find_astray(self, ends: Ends, at: Literal["case", "next"]) -> str:
        """Return a sentence about a rank that is at another case; else an empty text."""
        cases = {rank: end[at] for rank, end in enumerate(ends) if end is not None}
        first = min(cases)
        for rank, case in cases.items():
            if case != cases[first]:
                return (
                    f"{self.name_rank(rank)} is at {case}, but rank {first} is at {cases[first]}; "
                    "later measurements would be wrong, so the launch ends"
                )
        return ""

    def blame(self, ends: Ends) -> tuple[tuple[FailureCause, ...], str]:
        """Return the causes of a failure, the most likely first, and a text about them."""
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
            lines.append(
                cause.sentence(end["reason"] if end else None, self.describe_stacks(cause.rank))
            )
        if len(causes) > MAX_BLAMED:
            lines.append(f"and {len(causes) - MAX_BLAMED} more ranks")
        return tuple(causes[:MAX_BLAMED]), "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """The outcome of a phase, equal on all ranks."""

    outcome: Outcome = "passed"
    reason: str = ""
    code: int | None = None  # exit code, if the launch ends before its next case
    ending: str = ""  # why the launch ends
    room: Room | None = None  # memory that every rank may still use, after set-up
    needs_group: bool = False  # whether a rank lost the process group although it passed
    causes: tuple[FailureCause, ...] = ()  # the most likely first

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Self:
        room = facts["room"]
        causes = tuple(FailureCause(**cause) for cause in facts["causes"])
        return cls(**{**facts, "room": Room(**room) if room else None, "causes": causes})

    def ends(self, code: int, ending: str) -> Self:
        """Return the verdict with an end of the launch, unless it already has one."""
        return self if self.code is not None else replace(self, code=code, ending=ending)

    @classmethod
    def judge_phase(cls, ends: Ends, facts: Facts) -> Self:
        """Judge a phase: it fails if a rank fails, or if ranks end it differently."""
        outcomes = {end["outcome"] if end else "silent" for end in ends}
        if outcomes in ({"passed"}, {"skipped"}):
            if not facts.has_failed and (uneven := facts.find_uneven(ends)):
                return cls("failed", uneven)
            assert ends[0] is not None
            return cls(ends[0]["outcome"], ends[0]["reason"])
        causes, reason = facts.blame(ends)
        verdict = cls("failed", reason, causes=causes)
        silent = [rank for rank, end in enumerate(ends) if end is None]
        return verdict.ends(EXIT_LOST, facts.describe_late(silent)) if silent else verdict

    @classmethod
    def judge_set_up(cls, ends: Ends, facts: Facts) -> Self:
        """Judge a set-up, and add the free memory; all ranks must run the same case."""
        verdict = cls.judge_phase(ends, facts)
        if astray := facts.find_astray(ends, "case"):
            failed = replace(verdict, outcome="failed", reason=astray)
            return failed.ends(EXIT_OUT_OF_STEP, astray)
        if verdict.outcome != "passed":
            return verdict
        free_bytes = [end["free_bytes"] for end in ends if end]
        hosts = [rank["host"] for rank in facts.ranks]
        return replace(verdict, room=least_room(free_bytes, hosts))

    @classmethod
    def judge_leaving(cls, ends: Ends, facts: Facts) -> Self:
        """Judge a teardown, or the entry of the first case; all ranks must go to the same case."""
        verdict = cls()
        silent = [rank for rank, end in enumerate(ends) if end is None]
        if facts.case:
            verdict = cls.judge_phase(ends, facts)
        elif silent:
            more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
            case = next(end["next"] for end in ends if end is not None)
            absent = (
                f"{facts.name_rank(silent[0])}{more} did not reach {case} within "
                f"{facts.timeout_s:g} s; see the log of that rank"
            )
            verdict = cls("failed", absent, EXIT_LOST, absent)
        if astray := facts.find_astray(ends, "next"):
            verdict = replace(verdict, code=EXIT_OUT_OF_STEP, ending=astray)
        left = [each["kind"] for end in ends if end for each in end["left"]]
        return replace(verdict, needs_group="process_group" in left)

    @classmethod
    def judge_rebuilding(cls, ends: Ends, facts: Facts) -> Self:
        _, reason = facts.blame(ends)
        if not reason:
            return cls()
        ending = f"the process group could not be rebuilt after a failure: {reason}"
        return cls("failed", reason, EXIT_LOST, ending)
