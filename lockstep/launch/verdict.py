"""What holds on all ranks after a phase of a case, concluded from what every rank gave."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lockstep.core.records.launch_block import FailureCause
from lockstep.launch import blame
from lockstep.launch.blame import EXIT_LOST, EXIT_OUT_OF_STEP, MAX_BLAMED
from lockstep.machine.memory import Room, least_room

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
        return cls("failed", words, words, blame.is_consequence(error))


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
        return blame.late(silent, self.ranks, self.case, self.budget_s, self.journal_path)


def of_phase(ends: Ends, facts: Facts) -> Verdict:
    """Return what a phase comes to: failed where one rank failed, or ranks ended it differently."""
    outcomes = {end["outcome"] if end else "silent" for end in ends}
    if outcomes in ({"passed"}, {"skipped"}):
        uneven = "" if facts.has_failed else blame.uneven(ends, facts.ranks)
        if uneven:
            return Verdict("failed", uneven)
        assert ends[0] is not None
        return Verdict(ends[0]["outcome"], ends[0]["reason"])
    reason = blame.blame(ends, facts.ranks, facts.journal_path)
    verdict = Verdict("failed", reason, causes=blame.causes(ends, facts.ranks)[:MAX_BLAMED])
    silent = [rank for rank, end in enumerate(ends) if end is None]
    return verdict.ends(EXIT_LOST, facts.late(silent)) if silent else verdict


def of_set_up(ends: Ends, facts: Facts) -> Verdict:
    """Return what set-up comes to, and the memory that is left; the ranks must run one case."""
    verdict = of_phase(ends, facts)
    astray = blame.astray(_each(ends, "case"), facts.ranks)
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
    astray = blame.astray(nexts, facts.ranks)
    if facts.case:
        verdict = of_phase(ends, facts)
    else:
        absent = blame.absent(nexts, facts.ranks, facts.timeout_s)
        verdict = Verdict("failed", absent, EXIT_LOST, absent) if absent else Verdict()
    if astray:
        verdict = replace(verdict, code=EXIT_OUT_OF_STEP, ending=astray)
    left = [each for end in ends if end for each in end["left"]]
    return replace(verdict, needs_group=any(each["kind"] == "process_group" for each in left))


def _each(ends: Ends, name: str) -> list[Any]:
    return [None if end is None else end[name] for end in ends]


def of_rebuilding(ends: Ends, facts: Facts) -> Verdict:
    """Return whether the process group is there again; without it the launch ends."""
    blamed = blame.blame(ends, facts.ranks, facts.journal_path)
    if not blamed:
        return Verdict()
    ending = f"the process group could not be built again after a failure: {blamed}"
    return Verdict("failed", blamed, EXIT_LOST, ending)
