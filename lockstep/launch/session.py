"""One pytest session of a launch: who takes part, which cases run, and what becomes of each.

Every rank runs the same session. Before the first case the ranks compare what they collected.
Then they meet three times a case: when they leave the case before and enter this one, after its
set-up, and after its call. Each time every rank gives rank 0 one value, and all read one verdict.
After a failed case the process group is built again, or the session ends and another one follows.

Every rank exits with pytest's codes (1 failed case, 2 interrupted, 4 wrong options, 5 nothing
selected), or with 70: a rank or the store is lost, 74: the journal or the JSON cannot be written,
75: ended in order because the stop file is there, 76: ranks out of step, 78: the machine cannot
measure.

The cases of a launch, one after another: where the ranks meet, and what is kept of each.

How a launch ends: exit codes, the last words, and the files that are written before them.
"""

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from lockstep import workloads
from lockstep.core import errors, journal, sizes
from lockstep.core.flags import Flag
from lockstep.launch import preflight, verdict
from lockstep.launch.items import case_of, has_size, own_file, params_of, source_sha256, study_of
from lockstep.launch.journal_writer import CaseEnd, Keeper
from lockstep.launch.options import Settings
from lockstep.launch.verdict import EXIT_LOST, NO_CASE, Ended, Ends, Facts, Verdict
from lockstep.machine import memory
from lockstep.measure.harness import Case, Harness, Part
from lockstep.measure.timing import ReplayClock, synchronise
from lockstep.ranks import process_group as world
from lockstep.ranks.control import TIMEOUTS_FOR_RANK_0, Control, LostError, Waits, refuse_any
from lockstep.ranks.placement import Placement, is_launched, placement
from lockstep.ranks.watchdog import GRACE_S, Watchdog

if TYPE_CHECKING:
    from lockstep.measure.state import Earlier, State


EXIT_FAILED = 1
EXIT_USAGE = 4
EXIT_IO = 74
EXIT_STOPPED = 75
EXIT_MACHINE = 78
LAST_WORD_S = 2 * GRACE_S


@dataclass
class Ending:
    """Why a launch ends before its last case, and the exit code that says so."""

    code: int
    reason: str
    is_said: bool = False

    def say(self) -> None:
        """Say why on standard error, once, where no summary will."""
        if self.code in (EXIT_LOST, EXIT_IO) and not self.is_said:
            errors.say(self.reason)
            self.is_said = True


def write_json(config: pytest.Config, launch: "LaunchSession") -> bool:
    """Write the JSON in pytest-benchmark's place, and return whether that went well.

    It would write none where a resume has nothing left to measure, and empties an older one before
    it knows that the disk has room.
    """
    path = launch.settings.result_path
    launch.keeper.restore()
    if launch.keeper.journal is None or path is None or (path.exists() and not path.is_file()):
        return True  # what is no file, such as /dev/stdout, cannot be replaced
    benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    benchmarks.json = None
    kept = launch.keeper.journal.path
    try:
        if journal.outcomes(kept):
            journal.write_result(kept, path.resolve())
            benchmarks.logger.info(f"Wrote benchmark data in: {path}", purple=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        sys.stderr.write("\n")  # after the line of dots
        sys.stderr.write(
            f"lockstep: --benchmark-json {path} cannot be written: {why}; the cases are kept in "
            f"{kept}: run again with --resume --journal={kept}\n"
        )
        sys.stderr.flush()
        return False
    return True


def leave(config: pytest.Config, launch: "LaunchSession") -> None:
    """Leave the other ranks; end the process at once where the launch ends before its last case."""
    _flush(config)
    if launch.ending is None and launch.keeper.broken:
        launch.end(EXIT_IO, launch.keeper.broken)
    if launch.ending is None:
        launch.part()
    if launch.ending:
        _leave(launch, launch.ending)
    launch.close()


def _leave(launch: "LaunchSession", ending: Ending) -> NoReturn:
    """End this process with the code that says why, whatever the ranks still wait for."""
    try:
        if ending.code == EXIT_STOPPED:
            # Once one rank has ended, a launcher kills those still on their way out, and with them
            # the exit code. All that is to be written is: they end at once, together.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            launch.close()
        else:
            _last_word(launch, ending)
    finally:
        os._exit(ending.code)


def _last_word(launch: "LaunchSession", ending: Ending) -> None:
    """Say why, also where there is no summary, and let rank 0 and the watchdogs go first."""
    launch.watchdog.arm(launch.patience_s)  # writing to a full pipe may wait for ever
    ending.say()
    time.sleep(GRACE_S if launch.is_voice else LAST_WORD_S)
    launch.watchdog.close(launch.end_s)


def _flush(config: pytest.Config) -> None:
    """Let out what rank 0 says: a launcher ends all ranks as soon as one has ended."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.flush()


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
        late = _verdict_facts(self).late([self.launch.world.rank]) if self.launch.is_voice else ""
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
            settled = judge(ends, _verdict_facts(self))
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


def _verdict_facts(cases: Cases) -> Facts:
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
        errors.say(f"{launch.where(launch.world.rank)}: {lines[0]}")
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


MIN_PATIENCE_S = 60.0


@dataclass
class LaunchSession:
    """The state of one session of a launch on one rank.

    Attributes:
        provenance: Of the launch, every rank's part in it; empty until the ranks have met.
        flags: What is known against any result of the launch.
        unsupported: Precision -> why a rank cannot measure it.
        ending: Why the launch ends before its next case; None while it goes on.
        has_parted: Whether this rank has left the others.
        order_seed: Seed of the order in which the launch runs its cases.
        order: The launch's cases in that order, those of an earlier session included.
        sources: Case -> digest of what it measures, see `CaseRecord.workload_sha256`.
    """

    settings: Settings
    world: world.World
    clock: ReplayClock
    watchdog: Watchdog
    provenance: dict[str, Any] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()
    unsupported: dict[str, str] = field(default_factory=dict)
    ending: Ending | None = None
    has_parted: bool = False
    order_seed: int = 0
    order: list[str] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)
    keeper: Keeper = field(init=False)
    cases: Cases = field(init=False)

    def __post_init__(self) -> None:
        self.control.bounded = self._bounded
        self.keeper = Keeper(self.settings, self.control, self.where)
        self.cases = Cases(self)

    @property
    def is_voice(self) -> bool:
        """Whether this is rank 0, which alone prints and writes."""
        return self.world.rank == 0

    @property
    def patience_s(self) -> float:
        """How long this rank may take, or wait, between two cases."""
        return patience_s(self.settings)

    @property
    def end_s(self) -> float | None:
        """How long this process may take to end; None where others may go on in it."""
        return end_s(self.settings, self.world)

    @property
    def control(self) -> Control:
        """What this rank tells the others through the store."""
        return self.world.control

    def prepare(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Agree with the other ranks on what will run.

        Returns:
            The items left after those a resumed journal already holds, in the order in which they
            are to run: a random one, so that no case is always the first of its launch.
        """
        preflight.compare(self.control, [case_of(item) for item in items], self.settings)
        refuse_any(self.control, _problem(items, self.world.world_size))
        self.sources = {case_of(item): source_sha256(item) for item in items}
        self.provenance = preflight.gather_provenance(
            self.world, self.control, self.settings.seed, own_file(items)
        )
        self.unsupported = preflight.gather_unsupported(
            self.world, self.control, self.settings.size.precision
        )
        self.flags = tuple(preflight.launch_flags(self.provenance))
        if stacks := self.keeper.open():
            self.watchdog.close()
            self.watchdog = Watchdog(stacks)
            self.watchdog.arm(self.patience_s)
        self._note_transport(stacks)
        before = self._before()
        self.order_seed = preflight.order_seed(self.control, before, self.settings.order_seed)
        ordered = sizes.shuffled(items, case_of, self.order_seed)
        self.order = [case_of(item) for item in ordered]
        left_out = {"case", "skip", *(("fail", "begin") if self.settings.skip_failed else ())}
        chosen = [item for item in ordered if before.done.get(case_of(item)) not in left_out]
        self.cases.num_expected, self.cases.num_left = len(items), len(chosen)
        return chosen

    def _note_transport(self, stacks: Path | None) -> None:
        """Add to the launch's provenance and flags which links NCCL uses."""
        hosts = [rank["host"] for rank in self.provenance["ranks"]]
        transport = preflight.gather(self.world, hosts, stacks.parent.parent if stacks else None)
        self.provenance |= {"transport": transport.facts or None}
        self.flags += transport.flags

    def open_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        """Begin this session's part of the journal.

        The document is the head of pytest-benchmark's JSON.

        Raises:
            OSError: The journal cannot be written.
        """
        self.keeper.begin(expected, document, _journal_facts(self))
        self.cases.is_in_step = True

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Give each exchange between cases the same time, however long those before it took.

        The watchdog ends the rank, for a frozen store does not keep its own time-out.
        """
        self.watchdog.arm(TIMEOUTS_FOR_RANK_0 * self.settings.timeout_s)
        try:
            yield
        finally:
            self.watchdog.arm(self.patience_s)

    def end(self, code: int, reason: str) -> None:
        """End the launch before its next case; the first reason counts."""
        if self.ending is None:
            self.ending = Ending(code, reason)

    def harness(self, node: Any, benchmark: Any) -> Harness:
        """Return what one case works with."""
        return Harness(
            world=self.world,
            size=self.settings.size,
            name=node.originalname,
            number=self.cases.number,
            factors=params_of(node),
            study=study_of(node),
            seed=self.settings.seed,
            data_root=self.settings.data_root,
            benchmark=benchmark,
            clock=self.clock,
            case=self.cases.current,
            cores_on_host=preflight.cores_beside(self.provenance["ranks"], self.world.rank),
            flags=self.flags,
            goal=self.settings.goal,
            rank_hosts=tuple(rank["host"] for rank in self.provenance["ranks"]),
            unsupported=self.unsupported,
            watches=self.settings.telemetry,
            causes=self.settings.causes,
            halves=self.settings.on_oom == "halve",
            facts={
                "position": self.order.index(case_of(node)),
                "workload_sha256": self.sources[case_of(node)],
            },
        )

    def part(self) -> None:
        """Leave the other ranks together, and end the launch where one of them does not come."""
        # Ranks that are out of step would wait for each other in different exchanges.
        is_in_step = self.cases.is_in_step or not self.cases.number
        if self.has_parted or not is_in_step:
            return
        self.has_parted = True
        self.watchdog.arm(self.patience_s)
        self.control.deadline = None
        world.leave()
        try:
            lost = self.control.part(self.patience_s if self.cases.number else 0.0)
        except LostError as error:
            self.end(EXIT_LOST, str(error))
            return
        if lost and self.provenance:
            who = ", ".join(map(self.where, lost[: verdict.MAX_BLAMED]))
            self.end(EXIT_LOST, f"{who} did not come to the end of the launch; see its log")

    def close(self) -> None:
        """Leave the other ranks, and free what this one holds."""
        self.watchdog.arm(self.patience_s)
        gc.unfreeze()
        try:
            self.keeper.close()
            self.part()
        finally:
            self.watchdog.close(self.end_s, self._hangs_at_end())

    def _hangs_at_end(self) -> str:
        if self.end_s is None or not self.provenance:
            return ""
        return (
            f"{self.where(self.world.rank)} did not end within {self.end_s:g} s of its last case; "
            "a thread, or what runs as pytest or Python ends, keeps it: its stacks follow"
        )

    def _before(self) -> preflight.Before:
        """Return what the journal to resume holds; nothing for a fresh launch."""
        path = self.settings.journal_path
        if not (self.settings.resume and path):
            return preflight.Before()
        facts = preflight.measured_with(self.world, self.settings)
        return preflight.done_before(
            self.control, path, preflight.Now(facts, self.provenance, self.sources)
        )

    def where(self, rank: int) -> str:
        """Return a rank with its host and device."""
        return verdict.describe_rank(rank, self.provenance["ranks"])


def _journal_facts(launch: LaunchSession) -> dict[str, Any]:
    """Return what the journal says of a launch."""
    settings, joined = launch.settings, launch.world
    return {
        **settings.labels,
        "size": settings.size_name,
        "rounds": settings.size.rounds,
        "warmup_rounds": settings.size.warmup_rounds,
        "part": settings.part,
        "order_seed": launch.order_seed,
        "measured_with": preflight.measured_with(joined, settings),
        "world_size": joined.world_size,
        "num_nodes": joined.num_nodes,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": launch.provenance,
    }


def _problem(items: list[pytest.Item], world_size: int) -> str:
    """Return what a rank cannot measure, and why; empty where it can measure all."""
    rows = [params_of(item) for item in items if has_size(item)]
    try:
        for batch in {row["global_batch"] for row in rows if row.get("global_batch")}:
            sizes.local_batch_of(batch, world_size)
        for spec in {row["workload"] for row in rows if "workload" in row}:
            workloads.make(spec)
    except ValueError as error:
        return str(error)
    return ""


def join(settings: Settings) -> LaunchSession:
    """Join the other ranks of this launch.

    Raises:
        ValueError: The launcher's variables or an option's value are wrong.
        RuntimeError: The ranks do not meet, or a GPU is missing.
    """
    place = placement()
    watchdog = Watchdog(None)
    # Twice, for this rank may wait for the store, then for rank 0, then for the process group.
    watchdog.arm(2 * patience_s(settings))
    try:
        joined = world.join(
            settings.timeout_s,
            device=settings.device,
            threads_per_rank=settings.threads_per_rank,
            nccl_timeout_s=settings.budget_s + 2 * GRACE_S,
        )
    except BaseException:
        watchdog.close(end_s(settings, place))
        raise
    return LaunchSession(settings, joined, ReplayClock(), watchdog)


def patience_s(settings: Settings) -> float:
    """Return how long a rank may take, or wait, outside a case."""
    return max(MIN_PATIENCE_S, TIMEOUTS_FOR_RANK_0 * settings.timeout_s)


def end_s(settings: Settings, place: Placement) -> float | None:
    """Return how long a rank may take to end, which its launcher waits for.

    None for a process that no launcher started as a rank: it may be a notebook, which goes on
    after its measurement.
    """
    is_rank = place.world_size > 1 or is_launched()
    return patience_s(settings) if is_rank else None
