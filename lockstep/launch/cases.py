"""The cases of a launch, one after another: where the ranks meet, and what is kept of each."""

import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lockstep.launch import verdict
from lockstep.launch.blame import EXIT_LOST
from lockstep.launch.ending import EXIT_FAILED, EXIT_IO, EXIT_STOPPED
from lockstep.launch.keeper import CaseEnd
from lockstep.launch.verdict import NO_CASE, Ends, Facts, Outcome, Verdict
from lockstep.machine import memory
from lockstep.measure.result import Case, Part
from lockstep.measure.timing import synchronise
from lockstep.world import process_group as world
from lockstep.world.control import LostError, Waits

if TYPE_CHECKING:
    from lockstep.launch.session import LaunchSession
    from lockstep.measure.state import State

MAX_REASON_CHARACTERS = 4000
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
        current: What that case and the launch tell each other.
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
        self._kept = CaseEnd(launch.keeper, "")

    def begin(self, name: str) -> None:
        """Begin a case, which all ranks have agreed on; the launch may have an ending instead."""
        if not self.number:
            self._enter_first(name)
        if self.launch.ending:
            return
        from lockstep.measure.state import State  # which imports torch

        self.number += 1
        if self.number == 2:
            # The first case has imported all that cases import. A case collects garbage before it
            # is timed; going through a million imported objects each time would cost more than it.
            gc.collect()
            gc.freeze()
        self.name, self.current = name, Case()
        self.has_failed = self.is_in_step = False
        self._kept = CaseEnd(self.launch.keeper, name)
        budget_s = self.launch.settings.budget_s
        self.launch.control.deadline = time.monotonic() + budget_s
        # Rank 0 speaks for the others; of itself it must speak before it is late.
        late = self._facts().late([self.launch.world.rank]) if self.launch.is_voice else ""
        self.launch.watchdog.arm(budget_s, late)
        self._state = State(is_first=self.number == 1)
        self.launch.keeper.note_begin(name)

    def end_set_up(self, outcome: Outcome, reason: str) -> Verdict:
        """Return what set-up comes to on all ranks; the arguments are this rank's."""
        free_bytes = 0
        if outcome == "passed":
            try:
                world_ = self.launch.world
                free_bytes = memory.free_bytes(world_.device, world_.ranks_per_node)
            except RuntimeError as error:  # of CUDA, for what was called before
                outcome, reason = "failed", str(error)
        end = self._end(outcome, reason) | {"case": self.name, "free_bytes": free_bytes}
        settled = self._settle("setup", end, verdict.of_set_up)
        self.current.room = settled.room
        return self._note(settled)

    def end_call(self, outcome: Outcome, reason: str, entry: Entry) -> Verdict:
        """Return what the call comes to on all ranks.

        Args:
            outcome: This rank's.
            reason: Why, if it did not pass.
            entry: Called on rank 0 once the result of all ranks is made.
        """

        def judge(ends: Ends, facts: Facts) -> Verdict:
            settled = verdict.of_phase(ends, facts)
            if settled.outcome == "passed" and (problem := self._conclude(ends, entry)):
                return Verdict("failed", problem)
            return settled

        part = self.current.part
        end = self._end(outcome, reason) | {"part": asdict(part) if part else None}
        settled = self._settle("call", end, judge)
        self.current = Case()  # which may keep the case's model
        return self._note(settled)

    def leave(self, outcome: Outcome, reason: str, next_name: str | None) -> Verdict:
        """Leave a case on all ranks, and return what its teardown comes to.

        Rank 0 writes down how the case has ended before any rank may begin the next one.

        Args:
            outcome: This rank's, of the teardown.
            reason: Why, if it did not pass.
            next_name: The case that follows; None after the last.
        """
        end = self._end(outcome, reason) | {"next": next_name or NO_CASE, "left": self._left()}
        control, patience_s = self.launch.control, self.launch.patience_s
        # A slow disk is no fault of the case, whose time may be nearly over.
        self.launch.watchdog.arm((control.left_s() or 0.0) + patience_s)
        settled = self._settle("enter", end, self._judge_leaving, Waits.AFTER_CASE)
        control.deadline = None
        self.launch.watchdog.arm(patience_s)
        if self.launch.ending:
            self._note(settled)  # where it was lost before rank 0 could write
        if self.launch.ending is None and (self.has_failed or settled.needs_group):
            self._recover()
        self._note_step()
        return settled

    def _enter_first(self, name: str) -> None:
        """Shake hands before the first case: every rank must be about to run the same one."""
        end = self._end("passed", "") | {"next": name, "left": []}
        self._settle("enter", end, self._judge_leaving)
        self._note_step()

    def _end(self, outcome: Outcome, reason: str) -> dict[str, Any]:
        if outcome == "failed" and self.launch.world.backend != "gloo":
            self._say(reason)
        return {
            "outcome": outcome,
            "reason": reason[-MAX_REASON_CHARACTERS:],
            "collectives": world.num_collectives(),
        }

    def _say(self, reason: str) -> None:
        """Say why this rank failed, for NCCL's time-out on another may end all before a verdict."""
        if not self.launch.is_voice:
            last = reason.strip().splitlines()[-1:] or ["no reason given"]
            sys.stderr.write(f"lockstep: {self.launch.where(self.launch.world.rank)}: {last[0]}\n")
            sys.stderr.flush()

    def _settle(
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
            settled = judge(ends, self._facts())
            if launch.keeper.broken:
                settled = settled.ends(EXIT_IO, launch.keeper.broken)
            return settled.to_json()

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

    def _facts(self) -> Facts:
        settings = self.launch.settings
        return Facts(
            ranks=self.launch.provenance["ranks"],
            case=self.name,
            budget_s=settings.budget_s,
            timeout_s=settings.timeout_s,
            journal_path=settings.journal_path,
            has_failed=self.has_failed,
        )

    def _note(self, settled: Verdict) -> Verdict:
        """Note what a phase comes to, for the journal."""
        if settled.outcome == "skipped":
            self._kept.skip(settled.reason)
        elif settled.outcome == "failed":
            self._kept.fail(settled.reason)
        return settled

    def _conclude(self, ends: Ends, entry: Entry) -> str:
        """Make the result of all ranks' parts on rank 0; return why it is none, if so."""
        parts = [Part(**end["part"]) for end in ends if end and end["part"]]
        if self.current.conclude and len(parts) == len(ends):
            try:
                self.current.conclude(parts)
            except (ValueError, RuntimeError, TypeError) as error:
                return f"{type(error).__name__}: {error}"
        self._kept.pending, problem = entry()
        return problem

    def _left(self) -> list[dict[str, Any]]:
        """Return what the case that ends leaves behind on this rank, put back where that can be."""
        gc.collect()  # what it held is free for the next case once all ranks are there
        return [asdict(each) for each in self._state.left_behind()] if self._state else []

    def _judge_leaving(self, ends: Ends, facts: Facts) -> Verdict:
        settled = verdict.of_leaving(ends, facts)
        if self.name:
            self._note(settled)
            left = [
                {"rank": rank, **each}
                for rank, end in enumerate(ends)
                for each in (end["left"] if end else [])
            ]
            self.num_left -= self._kept.finish(left)
        assert ends[0] is not None
        if ends[0]["next"] != NO_CASE and self._is_stop_asked():
            settled = settled.ends(EXIT_STOPPED, self._progress())
        return settled

    def _is_stop_asked(self) -> bool:
        # Rank 0 looks for all: a shared file system may show the others an older folder.
        path = self.launch.settings.stop_file
        # Unlike Path.exists, this raises for no path: the other ranks wait for an answer.
        return path is not None and os.path.exists(path)  # noqa: PTH110

    def _progress(self) -> str:
        settings = self.launch.settings
        path, done = settings.journal_path, self.num_expected - self.num_left
        return (
            f"{settings.stop_file} exists: {done} of {self.num_expected} cases are finished, "
            f"{self.num_left} left; remove it and run again"
            f"{f' with --resume --journal={path}' if path else ''}"
        )

    def _note_step(self) -> None:
        ending = self.launch.ending
        self.is_in_step = ending is None or ending.code == EXIT_STOPPED

    def _recover(self) -> None:
        """Build the process group again, or end the launch for its launcher to start it again."""
        launch = self.launch
        if launch.world.world_size == 1 and world.has_group():
            if reason := _lost_device(launch.world):
                who = launch.where(launch.world.rank)
                lost = f"{who} has lost its device with a failed case ({reason})"
                launch.end(EXIT_FAILED, f"{lost}; run again with --resume")
        elif launch.world.backend != "gloo":
            launch.end(EXIT_FAILED, "a case failed: the ranks may be out of step")
        else:
            problem = _rebuilding_problem(launch.world, self._num_groups)
            self._num_groups += 1
            outcome: Outcome = "failed" if problem else "passed"
            self._settle("rebuilt", self._end(outcome, problem), verdict.of_rebuilding)


def _lost_device(world_: world.World) -> str:
    """Return why this rank can use its device no longer, as after a fault of CUDA, or nothing."""
    try:
        synchronise(world_.device)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def _rebuilding_problem(world_: world.World, epoch: int) -> str:
    """Build the process group again; return why that cannot be, or nothing."""
    try:
        world.rebuild(world_, epoch)
    except RuntimeError as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""
