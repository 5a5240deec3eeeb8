"""One pytest session of a launch: who takes part, which cases run, and what becomes of each.

Every rank runs the same session. Before the first case the ranks compare what they collected.
Then they meet three times a case: when they leave the case before and enter this one, after its
set-up, and after its call. Each time every rank gives rank 0 one value, and all read one verdict.
After a failed case the process group is built again, or the session ends and another one follows.

Every rank exits with pytest's codes (1 failed case, 2 interrupted, 4 wrong options, 5 nothing
selected), or with one of `core.errors`.
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
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from lockstep import workloads
from lockstep.core import errors, journal, sizes
from lockstep.core.errors import EXIT_IO, EXIT_LOST, EXIT_STOPPED
from lockstep.core.flags import Flag
from lockstep.core.record import name_rank
from lockstep.launch import preflight
from lockstep.launch.items import case_of, has_size, own_file, params_of, source_sha256, study_of
from lockstep.launch.journal_writer import JournalWriter
from lockstep.launch.options import Settings
from lockstep.launch.verdict import MAX_BLAMED, NO_CASE, Ended, Ends, Facts, Verdict
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
MIN_PATIENCE_S = 60.0
LAST_WORD_S = 2 * GRACE_S
MAX_REASON_CHARACTERS = 4000
MAX_ERROR_CHARACTERS = 1000
# Returns what the journal is to keep of a case that has passed, or why it cannot keep it.
Entry = Callable[[], tuple[dict[str, Any], str]]


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


@dataclass
class LaunchSession:
    """The state of one session of a launch on one rank.

    Attributes:
        provenance: Of the launch, every rank's part in it; empty until the ranks have met.
        flags: What is known against any result of the launch.
        unsupported: Precision -> why a rank cannot measure it.
        ending: Why the launch ends before its next case; None while it goes on.
        order_seed: Seed of the order in which the launch runs its cases.
        order: The launch's cases in that order, those of an earlier session included.
        sources: Case -> digest of what it measures, see `CaseRecord.workload_sha256`.
        num_expected: Cases of the launch, those of an earlier session included.
        num_left: Cases that are not finished yet.
        number: Cases begun in this session.
        name: The case that runs, or ran last; empty before the first.
        current: What the launch gives that case, and what the case hands over to be kept.
        has_failed: Whether it has failed on any rank.
        is_in_step: Whether all ranks agreed on the last case's end.
        has_left: Whether this rank has left the others.
    """

    settings: Settings
    world: world.World
    clock: ReplayClock
    watchdog: Watchdog
    provenance: dict[str, Any] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()
    unsupported: dict[str, str] = field(default_factory=dict)
    ending: Ending | None = None
    order_seed: int = 0
    order: list[str] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)
    num_expected: int = 0
    num_left: int = 0
    number: int = 0
    name: str = ""
    current: Case = field(default_factory=Case)
    has_failed: bool = False
    is_in_step: bool = False
    has_left: bool = False
    writer: JournalWriter = field(init=False)
    _num_groups: int = 1
    _state: "State | None" = None
    _earlier: "Earlier | None" = None

    def __post_init__(self) -> None:
        self.control.bounded = self._bounded
        self.writer = JournalWriter(self.settings, self.control, self.name_rank)

    @property
    def control(self) -> Control:
        """What this rank exchanges with the others through the store."""
        return self.world.control

    @property
    def patience_s(self) -> float:
        """How long this rank may take, or wait, between two cases."""
        return patience_s(self.settings)

    @property
    def end_s(self) -> float | None:
        """How long this process may take to end; None where others may go on in it."""
        return end_s(self.settings, self.world)

    def name_rank(self, rank: int) -> str:
        """Return a rank with its host and device."""
        facts = self.provenance["ranks"][rank]
        return name_rank(rank, facts["host"], facts["device"])

    # What the ranks agree on before the first case.

    def prepare(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Agree with the other ranks on what will run.

        Returns:
            The items left after those a resumed journal already holds, in the order in which they
            are to run: a random one, so that no case is always the first of its launch.
        """
        settings = self.settings
        preflight.compare(self.control, [case_of(item) for item in items], settings)
        refuse_any(self.control, _problem(items, self.world.world_size))
        self.sources = {case_of(item): source_sha256(item) for item in items}
        self.provenance = preflight.gather_provenance(
            self.world, self.control, settings.seed, own_file(items)
        )
        self.unsupported = preflight.gather_unsupported(
            self.world, self.control, settings.size.precision
        )
        self.flags = tuple(preflight.launch_flags(self.provenance))
        if stacks := self.writer.open():
            self.watchdog.close()
            self.watchdog = Watchdog(stacks)
            self.watchdog.arm(self.patience_s)
        hosts = [rank["host"] for rank in self.provenance["ranks"]]
        transport = preflight.gather(self.world, hosts, stacks.parent.parent if stacks else None)
        self.provenance |= {"transport": transport.facts or None}
        self.flags += transport.flags
        before = preflight.Before()
        if settings.resume and settings.journal_path:
            before = preflight.done_before(
                self.control,
                settings.journal_path,
                preflight.measured_with(self.world, settings),
                self.provenance,
                self.sources,
            )
        self.order_seed = preflight.order_seed(self.control, before, settings.order_seed)
        ordered = sizes.shuffled(items, case_of, self.order_seed)
        self.order = [case_of(item) for item in ordered]
        left_out = {"case", "skip", *(("fail", "begin") if settings.skip_failed else ())}
        chosen = [item for item in ordered if before.done.get(case_of(item)) not in left_out]
        self.num_expected, self.num_left = len(items), len(chosen)
        return chosen

    def open_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        """Begin this session's part of the journal; `document` heads pytest-benchmark's JSON."""
        settings = self.settings
        facts = {
            **settings.labels,
            "size": settings.size_name,
            "rounds": settings.size.rounds,
            "warmup_rounds": settings.size.warmup_rounds,
            "part": settings.part,
            "order_seed": self.order_seed,
            "measured_with": preflight.measured_with(self.world, settings),
            "world_size": self.world.world_size,
            "num_nodes": self.world.num_nodes,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": self.provenance,
        }
        self.writer.begin(expected, document, facts)
        self.is_in_step = True

    def harness(self, node: Any, benchmark: Any) -> Harness:
        """Return what one case works with."""
        return Harness(
            world=self.world,
            size=self.settings.size,
            name=node.originalname,
            number=self.number,
            factors=params_of(node),
            study=study_of(node),
            seed=self.settings.seed,
            data_root=self.settings.data_root,
            benchmark=benchmark,
            clock=self.clock,
            case=self.current,
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

    # The cases, one after another.

    def begin(self, name: str) -> None:
        """Begin a case, which all ranks have agreed on; does nothing where the launch must end."""
        if not self.number:  # every rank must be about to run the same first case
            end = self._end_of(Ended()) | {"next": name, "left": []}
            self.settle("enter", end, self._judge_leaving)
            self.is_in_step = self._is_in_order()
        if self.ending:
            return
        from lockstep.measure.state import Earlier, State  # which imports torch

        self.number += 1
        if self.number == 2:
            # A case collects garbage before it is timed: going each time through the million
            # objects that the first case has imported would cost more than the case.
            gc.collect()
            gc.freeze()
        self.name = name
        self.current = Case(
            folder=self.writer.folder,
            telemetry_file=self.writer.telemetry_file,
            go_on=self.go_on,
        )
        self.has_failed = self.is_in_step = False
        self._give_time()
        self._state = State(is_first=self.number == 1)
        self._earlier = self._earlier or Earlier()
        self._earlier.begin()
        self.writer.begin_case(name)

    def _give_time(self) -> None:
        """Give the case all of its time, from now."""
        budget_s = self.settings.budget_s
        self.control.deadline = time.monotonic() + budget_s
        # Rank 0 names other ranks that are late in its verdict. If it is late itself, only its own
        # watchdog can say so, and needs the words now.
        late = self._facts().late([0]) if self.world.rank == 0 else ""
        self.watchdog.arm(budget_s, late)

    def go_on(self, facts: Mapping[str, Any]) -> None:
        """Note how far a long case has come, and give it its time again; every rank calls it.

        Args:
            facts: A line for the journal, with its kind.

        Raises:
            pytest.Session.Interrupted: The stop file is there; the next session goes on from here.
        """

        def note_and_look(_: list[Any]) -> bool:
            self.writer.append({**facts, "case": self.name})
            return self._is_stop_asked()

        if self.control.settle_all(f"{self.number}/on", "here", note_and_look):
            self.end(EXIT_STOPPED, self._progress())
            self.is_in_step = True  # so that they leave together
            raise pytest.Session.Interrupted(self._progress())
        self._give_time()

    def end_set_up(self, ended: Ended) -> Verdict:
        """Return what set-up comes to on all ranks; the argument is this rank's."""
        free_bytes = 0
        if ended.outcome == "passed":
            try:
                free_bytes = memory.free_bytes(self.world.device, self.world.ranks_per_node)
            except RuntimeError as error:  # of CUDA, for what was called before
                ended = Ended.with_error(error)
        end = self._end_of(ended) | {"case": self.name, "free_bytes": free_bytes}
        settled = self.settle("setup", end, Verdict.of_set_up)
        self.current.room = settled.room
        self.writer.note(self.name, settled)
        return settled

    def end_call(self, ended: Ended, entry: Entry) -> Verdict:
        """Return what the call comes to on all ranks.

        On rank 0 the entry is called once the result of all ranks is made.
        """

        def judge(ends: Ends, facts: Facts) -> Verdict:
            settled = Verdict.of_phase(ends, facts)
            if settled.outcome != "passed":
                return settled
            parts = [Part(**end["part"]) for end in ends if end and end["part"]]
            if self.current.conclude and len(parts) == len(ends):
                try:
                    self.current.conclude(parts)
                except (ValueError, RuntimeError, TypeError) as error:
                    return Verdict("failed", f"{type(error).__name__}: {error}")
            self.writer.pending, problem = entry()
            return Verdict("failed", problem) if problem else settled

        part = self.current.part
        end = self._end_of(ended) | {"part": asdict(part) if part else None}
        settled = self.settle("call", end, judge)
        self.current = Case()  # the one before may keep the case's model
        self.writer.note(self.name, settled)
        return settled

    def leave_case(self, ended: Ended, next_name: str | None) -> Verdict:
        """Leave a case on all ranks, and return what its teardown comes to.

        Rank 0 writes down how the case has ended before any rank may begin the next one.
        """
        end = self._end_of(ended) | {"next": next_name or NO_CASE, "left": []}
        gc.collect()  # free what the case held before any rank begins the next one
        if self._state and self._earlier:  # what it leaves is put back where it can be
            left = self._state.left_behind()
            end["under"] = self._earlier.end(self.name, self._state, left)
            end["left"] = [asdict(each) for each in left]
        # Writing to a slow disk comes on top of the case's time, which may be nearly over.
        self.watchdog.arm((self.control.left_s() or 0.0) + self.patience_s)
        settled = self.settle("enter", end, self._judge_leaving, Waits.AFTER_CASE)
        self.control.deadline = None
        self.watchdog.arm(self.patience_s)
        if self.ending:
            self.writer.note(self.name, settled)  # rank 0 may be lost before it wrote this down
        elif self.has_failed or settled.needs_group:
            self._recover()
        self.is_in_step = self._is_in_order()
        return settled

    def settle(
        self,
        phase: str,
        end: dict[str, Any],
        judge: Callable[[Ends, Facts], Verdict],
        waits: Waits = Waits.AFTER_PHASE,
    ) -> Verdict:
        """Return rank 0's verdict on a phase; this rank's own where the launch has ended."""
        if self.ending:
            return Verdict(end["outcome"], end["reason"])

        def judge_on_rank_0(ends: list[Any]) -> dict[str, Any]:
            settled = judge(ends, self._facts())
            if self.writer.broken:
                settled = settled.ends(EXIT_IO, self.writer.broken)
            return settled.to_json()

        # A case is entered while the one before still has the number.
        name = f"{self.number + (phase == 'enter')}/{phase}"
        try:
            settled = Verdict.from_json(self.control.settle(name, end, judge_on_rank_0, waits))
        except LostError as error:
            settled = Verdict("failed", f"{error}\n{end['reason']}".strip(), EXIT_LOST, str(error))
        if settled.code is not None:
            self.end(settled.code, settled.ending).say()  # now, for the teardown may hang
        self.has_failed = self.has_failed or settled.outcome == "failed"
        return settled

    def _judge_leaving(self, ends: Ends, facts: Facts) -> Verdict:
        """Judge how a case is left, write it to the journal, and look for the stop file."""
        settled = Verdict.of_leaving(ends, facts)
        if self.name:
            self.writer.note(self.name, settled)
            left, under = (
                [
                    {"rank": rank, **each}
                    for rank, end in enumerate(ends)
                    for each in (end.get(key, ()) if end else ())
                ]
                for key in ("left", "under")
            )
            self.num_left -= self.writer.end_case(self.name, left, under)
        assert ends[0] is not None
        if ends[0]["next"] != NO_CASE and self._is_stop_asked():
            settled = settled.ends(EXIT_STOPPED, self._progress())
        return settled

    def _end_of(self, ended: Ended) -> dict[str, Any]:
        """Return what every rank gives rank 0 at the end of any phase."""
        if ended.outcome == "failed" and self.world.backend != "gloo" and self.world.rank > 0:
            # NCCL's time-out on another rank may end all before a verdict.
            lines = ended.error.strip().splitlines() or ["no reason given"]
            errors.say(f"{self.name_rank(self.world.rank)}: {lines[0]}")
        return asdict(ended) | {
            "reason": ended.reason[-MAX_REASON_CHARACTERS:],
            "error": ended.error[:MAX_ERROR_CHARACTERS],
            "collectives": world.num_collectives(),
        }

    def _facts(self) -> Facts:
        return Facts(
            ranks=self.provenance["ranks"],
            case=self.name,
            budget_s=self.settings.budget_s,
            timeout_s=self.settings.timeout_s,
            journal_path=self.settings.journal_path,
            has_failed=self.has_failed,
        )

    def _recover(self) -> None:
        """Build the process group again, or end the session for another one to follow."""
        epoch = self._num_groups
        self._num_groups += 1
        if self.world.world_size == 1 and world.has_group():
            try:
                synchronise(self.world.device)
            except RuntimeError as error:  # as after a fault of CUDA
                reason = str(error).partition("\n")[0]
                lost = f"{self.name_rank(0)} has lost its device with a failed case ({reason})"
                self.end(EXIT_FAILED, f"{lost}; run again with --resume")
        elif self.world.backend != "gloo":
            self.end(EXIT_FAILED, "a case failed: the ranks may be out of step")
        else:
            ended = Ended()
            try:
                world.rebuild(self.world, epoch)
            except RuntimeError as error:
                ended = Ended.with_error(error)
            self.settle("rebuilt", self._end_of(ended), Verdict.of_rebuilding)

    def _is_in_order(self) -> bool:
        return self.ending is None or self.ending.code == EXIT_STOPPED

    def _is_stop_asked(self) -> bool:
        # Rank 0 looks for all: a shared file system may show the others an older folder.
        # Unlike Path.exists, this raises for no path: the other ranks wait for an answer.
        path = self.settings.stop_file
        return path is not None and os.path.exists(path)  # noqa: PTH110

    def _progress(self) -> str:
        path = self.settings.journal_path
        return (
            f"{self.settings.stop_file} exists: {self.num_expected - self.num_left} of "
            f"{self.num_expected} cases are finished, {self.num_left} left; remove it and run again"
            f"{f' with --resume --journal={path}' if path else ''}"
        )

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

    # The end of the launch: exit codes, the last words, and the files that are written before them.

    def end(self, code: int, reason: str) -> Ending:
        """End the launch before its next case; the first reason counts."""
        self.ending = self.ending or Ending(code, reason)
        return self.ending

    def write_json(self, config: pytest.Config) -> bool:
        """Write the JSON in pytest-benchmark's place, and return whether that went well.

        pytest-benchmark would write none where a resume has nothing left to measure, and empties
        an older one before it knows that the disk has room.
        """
        path = self.settings.result_path
        self.writer.restore()
        if self.writer.journal is None or path is None or (path.exists() and not path.is_file()):
            return True  # what is no file, such as /dev/stdout, cannot be replaced
        benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
        benchmarks.json = None
        kept = self.writer.journal.path
        try:
            if journal.outcomes(kept):
                journal.write_result(kept, path.resolve())
                benchmarks.logger.info(f"Wrote benchmark data in: {path}", purple=True)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            sys.stderr.write("\n")  # after the line of dots
            sys.stderr.write(
                f"lockstep: --benchmark-json {path} cannot be written: {why}; the cases are kept "
                f"in {kept}: run again with --resume --journal={kept}\n"
            )
            sys.stderr.flush()
            return False
        return True

    def leave(self, config: pytest.Config) -> None:
        """Leave the other ranks; end the process at once where the launch ends early."""
        # A launcher ends all ranks as soon as one has ended: let out what rank 0 says.
        if reporter := config.pluginmanager.get_plugin("terminalreporter"):
            reporter.flush()
        if self.ending is None and self.writer.broken:
            self.end(EXIT_IO, self.writer.broken)
        if self.ending is None:
            self.part()
        if self.ending:
            self._exit(self.ending)
        self.close()

    def _exit(self, ending: Ending) -> NoReturn:
        """End this process with the code that says why, whatever the ranks still wait for."""
        try:
            if ending.code == EXIT_STOPPED:
                # Once one rank has ended, a launcher kills those still on their way out, and with
                # them the exit code. All is written by now: they end at once, together.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self.close()
            else:
                self.watchdog.arm(self.patience_s)  # writing to a full pipe may wait for ever
                ending.say()
                # Rank 0 and the watchdogs go first.
                time.sleep(LAST_WORD_S if self.world.rank else GRACE_S)
                self.watchdog.close(self.end_s)
        finally:
            os._exit(ending.code)

    def part(self) -> None:
        """Leave the other ranks together, and end the launch where one of them does not come."""
        # Ranks that are out of step would wait for each other in different exchanges.
        if self.has_left or not (self.is_in_step or not self.number):
            return
        self.has_left = True
        self.watchdog.arm(self.patience_s)
        self.control.deadline = None
        world.leave()
        try:
            lost = self.control.part(self.patience_s if self.number else 0.0)
        except LostError as error:
            self.end(EXIT_LOST, str(error))
            return
        if lost and self.provenance:
            who = ", ".join(map(self.name_rank, lost[:MAX_BLAMED]))
            self.end(EXIT_LOST, f"{who} did not come to the end of the launch; see its log")

    def close(self) -> None:
        """Leave the other ranks, and free what this one holds."""
        self.watchdog.arm(self.patience_s)
        gc.unfreeze()
        hangs = ""
        if self.end_s is not None and self.provenance:
            hangs = (
                f"{self.name_rank(self.world.rank)} did not end within {self.end_s:g} s of its "
                "last case; a thread, or what runs as pytest or Python ends, keeps it: its stacks "
                "follow"
            )
        try:
            self.writer.close()
            self.part()
        finally:
            self.watchdog.close(self.end_s, hangs)


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
