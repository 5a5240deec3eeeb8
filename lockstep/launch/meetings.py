"""The cases of a launch, one after another: where the ranks meet, and what is kept of each."""

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.core.records import said
from lockstep.launch import verdict
from lockstep.launch.blame import EXIT_LOST
from lockstep.launch.ending import EXIT_FAILED, EXIT_IO, EXIT_STOPPED, Ending
from lockstep.launch.keeper import CaseEnd
from lockstep.launch.options import Settings
from lockstep.launch.verdict import NO_CASE, Ended, Ends, Facts, Verdict
from lockstep.machine import memory
from lockstep.measure.result import Case, Part
from lockstep.measure.timing import synchronise
from lockstep.ranks import process_group as world
from lockstep.ranks.control import LostError, Waits

if TYPE_CHECKING:
    from lockstep.launch.session import LaunchSession
    from lockstep.measure.state import Earlier, State

MAX_REASON_CHARACTERS = 4000
MAX_ERROR_CHARACTERS = 1000
# Returns what the journal is to keep of a case that has passed, or why it cannot keep it.
Entry = Callable[[], tuple[dict[str, Any], str]]


class Cases:
    """The cases of a launch on one rank.

    Args:
        launch: Whose cases they are.

    Attributes:
        num_expected: Cases of the launch, those of an earlier session included.
        num_left: Cases that are not finished yet.
        number: Cases begun in this session.
        name: The case that runs, or ran last; empty before the first.
        current: What the launch gives that case, and what the case hands over to be kept.
        has_failed: Whether it has failed on any rank.
        is_in_step: Whether all ranks agreed on the last case's end.
    """

    def __init__(self, launch: "LaunchSession") -> None:
        self.launch = launch
        self.num_expected = self.num_left = 0
        self.number = 0
        self.name = ""
        self.current = Case()
        self.has_failed = False
        self.is_in_step = False
        self._num_groups = 1
        self._state: State | None = None
        self._earlier: Earlier | None = None
        self._kept = CaseEnd(launch.keeper, "")

    def begin(self, name: str) -> None:
        """Begin a case, which all ranks have agreed on; does nothing where the launch must end."""
        if not self.number:
            self._enter_first(name)
        if self.launch.ending:
            return
        from lockstep.measure.state import Earlier, State  # which imports torch

        self.number += 1
        if self.number == 2:
            _freeze_imports()
        self.name = name
        keeper = self.launch.keeper
        self.current = Case(
            folder=keeper.folder, telemetry_file=keeper.telemetry_file, go_on=self.go_on
        )
        self.has_failed = self.is_in_step = False
        self._kept = CaseEnd(keeper, name)
        self._give_time()
        self._state = State(is_first=self.number == 1)
        self._earlier = self._earlier or Earlier()
        self._earlier.begin()
        keeper.note_begin(name)

    def _give_time(self) -> None:
        """Give the case all of its time, from now."""
        budget_s = self.launch.settings.budget_s
        self.launch.control.deadline = time.monotonic() + budget_s
        # Rank 0 names other ranks that are late in its verdict. If it is late itself, only its own
        # watchdog can say so, and needs the words now.
        late = _facts(self).late([self.launch.world.rank]) if self.launch.is_voice else ""
        self.launch.watchdog.arm(budget_s, late)

    def go_on(self, facts: Mapping[str, Any]) -> None:
        """Note how far a long case has come, and give it its time again; every rank calls it.

        Args:
            facts: A line for the journal, with its kind.

        Raises:
            pytest.Session.Interrupted: The stop file is there; the next session goes on from here.
        """
        launch = self.launch

        def note_and_look(_: list[Any]) -> bool:
            launch.keeper.keep({**facts, "case": self.name})
            return _is_stop_asked(launch.settings)

        if launch.control.settle_all(f"{self.number}/on", "here", note_and_look):
            stopped = _progress(launch.settings, self.num_expected, self.num_left)
            launch.end(EXIT_STOPPED, stopped)
            self.is_in_step = True  # so that they leave together
            raise pytest.Session.Interrupted(stopped)
        self._give_time()

    def end_set_up(self, ended: Ended) -> Verdict:
        """Return what set-up comes to on all ranks; the argument is this rank's."""
        ended, free_bytes = _with_room(ended, self.launch.world)
        end = _end(self.launch, ended) | {"case": self.name, "free_bytes": free_bytes}
        settled = self.settle("setup", end, verdict.of_set_up)
        self.current.room = settled.room
        return self._note(settled)

    def end_call(self, ended: Ended, entry: Entry) -> Verdict:
        """Return what the call comes to on all ranks.

        On rank 0 the entry is called once the result of all ranks is made.
        """

        def judge(ends: Ends, facts: Facts) -> Verdict:
            settled = verdict.of_phase(ends, facts)
            if settled.outcome != "passed":
                return settled
            problem = _conclude(self.current, ends)
            if not problem:
                self._kept.pending, problem = entry()
            return Verdict("failed", problem) if problem else settled

        part = self.current.part
        end = _end(self.launch, ended) | {"part": asdict(part) if part else None}
        settled = self.settle("call", end, judge)
        self.current = Case()  # which may keep the case's model
        return self._note(settled)

    def leave(self, ended: Ended, next_name: str | None) -> Verdict:
        """Leave a case on all ranks, and return what its teardown comes to.

        Rank 0 writes down how the case has ended before any rank may begin the next one.
        """
        end = _end(self.launch, ended) | {"next": next_name or NO_CASE} | self._left()
        control, patience_s = self.launch.control, self.launch.patience_s
        # Writing to a slow disk comes on top of the case's time, which may be nearly over.
        self.launch.watchdog.arm((control.left_s() or 0.0) + patience_s)
        settled = self.settle("enter", end, self._judge_leaving, Waits.AFTER_CASE)
        control.deadline = None
        self.launch.watchdog.arm(patience_s)
        if self.launch.ending:
            self._note(settled)  # rank 0 may be lost before it wrote this down
        elif self.has_failed or settled.needs_group:
            _recover(self, self._num_groups)
            self._num_groups += 1
        self.is_in_step = _is_in_order(self.launch.ending)
        return settled

    def _left(self) -> dict[str, list[dict[str, Any]]]:
        """Return what the case leaves on this rank, put back where it can be, and ran with."""
        gc.collect()  # free what the case held before any rank begins the next one
        if not (self._state and self._earlier):
            return {"left": []}
        left = self._state.left_behind()
        under = self._earlier.end(self.name, self._state, left)
        return {"left": [asdict(each) for each in left], "under": under}

    def _enter_first(self, name: str) -> None:
        """Shake hands before the first case: every rank must be about to run the same one."""
        end = _end(self.launch, Ended()) | {"next": name, "left": []}
        self.settle("enter", end, self._judge_leaving)
        self.is_in_step = _is_in_order(self.launch.ending)

    def settle(
        self,
        phase: str,
        end: dict[str, Any],
        judge: Callable[[Ends, Facts], Verdict],
        waits: Waits = Waits.AFTER_PHASE,
    ) -> Verdict:
        """Return rank 0's verdict on a phase; this rank's own where the launch has ended."""
        launch = self.launch
        if launch.ending:
            return Verdict(end["outcome"], end["reason"])

        def judge_on_rank_0(ends: list[Any]) -> dict[str, Any]:
            settled = judge(ends, _facts(self))
            if launch.keeper.broken:
                settled = settled.ends(EXIT_IO, launch.keeper.broken)
            return settled.to_json()

        # A case is entered while the one before still has the number.
        name = f"{self.number + (phase == 'enter')}/{phase}"
        try:
            settled = Verdict.from_json(launch.control.settle(name, end, judge_on_rank_0, waits))
        except LostError as error:
            settled = Verdict("failed", f"{error}\n{end['reason']}".strip(), EXIT_LOST, str(error))
        if settled.code is not None:
            launch.end(settled.code, settled.ending)
            assert launch.ending is not None
            launch.ending.say()  # now, for the teardown may hang
        self.has_failed = self.has_failed or settled.outcome == "failed"
        return settled

    def _note(self, settled: Verdict) -> Verdict:
        """Note what a phase comes to, for the journal."""
        if settled.outcome == "skipped":
            self._kept.skip(settled.reason)
        elif settled.outcome == "failed":
            self._kept.fail(settled.reason, settled.causes)
        return settled

    def _judge_leaving(self, ends: Ends, facts: Facts) -> Verdict:
        """Judge how a case is left, write it to the journal, and look for the stop file."""
        settled = verdict.of_leaving(ends, facts)
        if self.name:
            self._note(settled)
            left, under = _by_rank(ends, "left"), _by_rank(ends, "under")
            self.num_left -= self._kept.finish(left, under)
        assert ends[0] is not None
        settings = self.launch.settings
        if ends[0]["next"] != NO_CASE and _is_stop_asked(settings):
            stopped = _progress(settings, self.num_expected, self.num_left)
            settled = settled.ends(EXIT_STOPPED, stopped)
        return settled


def _freeze_imports() -> None:
    """Leave aside what the first case has imported, which is all that cases import.

    A case collects garbage before it is timed; going through a million imported objects each time
    would cost more than it.
    """
    gc.collect()
    gc.freeze()


def _facts(cases: Cases) -> Facts:
    settings = cases.launch.settings
    return Facts(
        ranks=cases.launch.provenance["ranks"],
        case=cases.name,
        budget_s=settings.budget_s,
        timeout_s=settings.timeout_s,
        journal_path=settings.journal_path,
        has_failed=cases.has_failed,
    )


def _end(launch: "LaunchSession", ended: Ended) -> dict[str, Any]:
    """Return what every rank gives rank 0 at the end of any phase."""
    if ended.outcome == "failed" and launch.world.backend != "gloo" and not launch.is_voice:
        # NCCL's time-out on another rank may end all before a verdict.
        lines = ended.error.strip().splitlines() or ["no reason given"]
        said.say(f"{launch.where(launch.world.rank)}: {lines[0]}")
    return asdict(ended) | {
        "reason": ended.reason[-MAX_REASON_CHARACTERS:],
        "error": ended.error[:MAX_ERROR_CHARACTERS],
        "collectives": world.num_collectives(),
    }


def _with_room(ended: Ended, joined: world.World) -> tuple[Ended, int]:
    """Return how a set-up ended, and the bytes that this rank's device then has free."""
    if ended.outcome != "passed":
        return ended, 0
    try:
        return ended, memory.free_bytes(joined.device, joined.ranks_per_node)
    except RuntimeError as error:  # of CUDA, for what was called before
        return Ended.with_error(error), 0


def _conclude(case: Case, ends: Ends) -> str:
    """Make the result of all ranks' parts on rank 0; return why that fails, or nothing."""
    parts = [Part(**end["part"]) for end in ends if end and end["part"]]
    if case.conclude and len(parts) == len(ends):
        try:
            case.conclude(parts)
        except (ValueError, RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _recover(cases: Cases, epoch: int) -> None:
    """Build the process group again, or end the session for another one to follow.

    `epoch` is how many process groups there were before.
    """
    launch = cases.launch
    if launch.world.world_size == 1 and world.has_group():
        if reason := _lost_device(launch.world):
            who = launch.where(launch.world.rank)
            lost = f"{who} has lost its device with a failed case ({reason})"
            launch.end(EXIT_FAILED, f"{lost}; run again with --resume")
    elif launch.world.backend != "gloo":
        launch.end(EXIT_FAILED, "a case failed: the ranks may be out of step")
    else:
        cases.settle("rebuilt", _end(launch, _rebuilt(launch.world, epoch)), verdict.of_rebuilding)


def _by_rank(ends: Ends, name: str) -> list[dict[str, Any]]:
    """Return what each rank says that a case left behind, or ran with."""
    return [
        {"rank": rank, **each}
        for rank, end in enumerate(ends)
        for each in (end.get(name, []) if end else [])
    ]


def _is_in_order(ending: Ending | None) -> bool:
    return ending is None or ending.code == EXIT_STOPPED


def _is_stop_asked(settings: Settings) -> bool:
    # Rank 0 looks for all: a shared file system may show the others an older folder.
    # Unlike Path.exists, this raises for no path: the other ranks wait for an answer.
    return settings.stop_file is not None and os.path.exists(settings.stop_file)  # noqa: PTH110


def _progress(settings: Settings, num_expected: int, num_left: int) -> str:
    path = settings.journal_path
    return (
        f"{settings.stop_file} exists: {num_expected - num_left} of {num_expected} cases are "
        f"finished, {num_left} left; remove it and run again"
        f"{f' with --resume --journal={path}' if path else ''}"
    )


def _lost_device(world_: world.World) -> str:
    """Return why this rank can use its device no longer, as after a fault of CUDA, or nothing."""
    try:
        synchronise(world_.device)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def _rebuilt(world_: world.World, epoch: int) -> Ended:
    """Build the process group again, and return how that ended on this rank."""
    try:
        world.rebuild(world_, epoch)
    except RuntimeError as error:
        return Ended.with_error(error)
    return Ended()
