"""One pytest session of a launch: its ranks, its cases, and how each case ends.

Ranks meet three times per case: when they enter it, after its set-up and after its call. Each time
they give rank 0 one value and read one verdict. Exit codes are those of pytest and `core.errors`.
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
# A function that returns the journal's entry of a passed case, or why there is none.
Entry = Callable[[], tuple[dict[str, Any], str]]


@dataclass
class Ending:
    """Why a launch ends before its last case, and its exit code."""

    code: int
    reason: str
    is_said: bool = False

    def say(self) -> None:
        """Print the reason once on standard error, if pytest's summary will not show it."""
        if self.code in (EXIT_LOST, EXIT_IO) and not self.is_said:
            errors.say(self.reason)
            self.is_said = True


@dataclass
class LaunchSession:
    """The state of one session of a launch on one rank."""

    settings: Settings
    world: world.World
    clock: ReplayClock
    watchdog: Watchdog
    provenance: dict[str, Any] = field(default_factory=dict)  # of all ranks, once they have met
    flags: tuple[Flag, ...] = ()  # flags of every result of the launch
    unsupported: dict[str, str] = field(default_factory=dict)  # precision -> why it is not measured
    ending: Ending | None = None  # why the launch ends before its next case
    order_seed: int = 0
    order: list[str] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)  # case -> `workload_sha256`
    num_expected: int = 0
    num_left: int = 0
    number: int = 0  # number of cases begun in this session
    name: str = ""  # the case that runs, or ran last
    current: Case = field(default_factory=Case)  # input and output of that case
    has_failed: bool = False  # whether that case failed on any rank
    is_in_step: bool = False  # whether all ranks agreed on the last case's end
    has_left: bool = False  # whether this rank has left the other ranks
    writer: JournalWriter = field(init=False)
    patience_s: float = field(init=False)
    end_s: float | None = field(init=False)
    _num_groups: int = 1
    _state: "State | None" = None
    _earlier: "Earlier | None" = None

    def __post_init__(self) -> None:
        self.control.bounded = self._limit_exchange
        self.patience_s = patience_s(self.settings)
        self.end_s = end_s(self.settings, self.world)
        self.writer = JournalWriter(self.settings, self.control, self.name_rank)

    @property
    def control(self) -> Control:
        return self.world.control

    def name_rank(self, rank: int) -> str:
        facts = self.provenance["ranks"][rank]
        return name_rank(rank, facts["host"], facts["device"])

    def prepare(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Agree with the other ranks on the cases; return the cases to measure, in random order."""
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
        folder = stacks.parent.parent if stacks else None
        transport, flags = preflight.gather(self.world, hosts, folder)
        self.provenance |= {"transport": transport or None}
        self.flags += flags
        before = preflight.Before({}, None)
        if settings.resume and settings.journal_path:
            facts = preflight.resume_facts(self.world, settings)
            before = preflight.read_before(
                self.control, settings.journal_path, facts, self.provenance, self.sources
            )
        self.order_seed = preflight.order_seed(self.control, before, settings.order_seed)
        ordered = sizes.shuffle(items, case_of, self.order_seed)
        self.order = [case_of(item) for item in ordered]
        left_out = {"case", "skip", *(("fail", "begin") if settings.skip_failed else ())}
        chosen = [item for item in ordered if before.done.get(case_of(item)) not in left_out]
        self.num_expected, self.num_left = len(items), len(chosen)
        return chosen

    def open_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        """Begin this session's part of the journal; `document` heads pytest-benchmark's JSON."""
        settings = self.settings
        facts = {
            **settings.labels, "size": settings.size_name, "rounds": settings.size.rounds,
            "warmup_rounds": settings.size.warmup_rounds, "part": settings.part,
            "order_seed": self.order_seed,
            "measured_with": preflight.resume_facts(self.world, settings),
            "world_size": self.world.world_size, "num_nodes": self.world.num_nodes,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": self.provenance,
        }  # fmt: skip
        self.writer.begin(expected, document, facts)
        self.is_in_step = True

    def harness(self, node: Any, benchmark: Any) -> Harness:
        settings, ranks, case = self.settings, self.provenance["ranks"], case_of(node)
        facts = {"position": self.order.index(case), "workload_sha256": self.sources[case]}
        return Harness(
            world=self.world, size=settings.size, name=node.originalname, number=self.number,
            factors=params_of(node), study=study_of(node), seed=settings.seed,
            data_root=settings.data_root, benchmark=benchmark, clock=self.clock,
            case=self.current, cores_on_host=preflight.cores_beside(ranks, self.world.rank),
            flags=self.flags, goal=settings.goal,
            rank_hosts=tuple(rank["host"] for rank in ranks), unsupported=self.unsupported,
            watches=settings.telemetry, causes=settings.causes,
            halves=settings.on_oom == "halve", facts=facts,
        )  # fmt: skip

    def begin(self, name: str) -> None:
        """Begin a case, unless the launch must end."""
        if not self.number:  # check that all ranks begin with the same case
            end = self._describe_end(Ended()) | {"next": name, "left": []}
            self.settle("enter", end, self._judge_leaving)
            self.is_in_step = self._is_in_order()
        if self.ending:
            return
        from lockstep.measure.state import Earlier, State  # imports torch

        self.number += 1
        if self.number == 2:
            # Each case collects garbage. A million objects from the imports of the first case
            # would make the collection slower than the case.
            gc.collect()
            gc.freeze()
        self.name = name
        to = self.writer
        self.current = Case(folder=to.folder, telemetry_file=to.telemetry_file, go_on=self.prolong)
        self.has_failed = self.is_in_step = False
        self._give_time()
        self._state = State(is_first=self.number == 1)
        self._earlier = self._earlier or Earlier()
        self._earlier.begin()
        self.writer.begin_case(name)

    def _give_time(self) -> None:
        budget_s = self.settings.budget_s
        self.control.deadline = time.monotonic() + budget_s
        # Rank 0's verdict names other late ranks; its watchdog prints if rank 0 itself is late.
        late = self._facts().describe_late([0]) if self.world.rank == 0 else ""
        self.watchdog.arm(budget_s, late)

    def prolong(self, facts: Mapping[str, Any]) -> None:
        """Write the progress of a long case, and restart its time limit; a collective call."""

        def note_and_look(_: list[Any]) -> bool:
            self.writer.append({**facts, "case": self.name})
            return self._is_stop_asked()

        if self.control.settle_all(f"{self.number}/on", "here", note_and_look):
            self.end(EXIT_STOPPED, self._progress())
            self.is_in_step = True  # so that the ranks leave together
            raise pytest.Session.Interrupted(self._progress())
        self._give_time()

    def end_set_up(self, ended: Ended) -> Verdict:
        """Return the verdict on the set-up; `ended` is how it ended on this rank."""
        free_bytes = 0
        if ended.outcome == "passed":
            try:
                free_bytes = memory.free_bytes(self.world.device, self.world.ranks_per_node)
            except RuntimeError as error:  # a late error of CUDA by an earlier call
                ended = Ended.from_error(error)
        end = self._describe_end(ended) | {"case": self.name, "free_bytes": free_bytes}
        settled = self.settle("setup", end, Verdict.judge_set_up)
        self.current.room = settled.room
        self.writer.note(self.name, settled)
        return settled

    def end_call(self, ended: Ended, entry: Entry) -> Verdict:
        """Return the verdict on the call; `entry` makes the journal's line on rank 0."""

        def judge(ends: Ends, facts: Facts) -> Verdict:
            settled = Verdict.judge_phase(ends, facts)
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
        end = self._describe_end(ended) | {"part": asdict(part) if part else None}
        settled = self.settle("call", end, judge)
        self.current = Case()  # the old object may hold the case's model
        self.writer.note(self.name, settled)
        return settled

    def leave_case(self, ended: Ended, next_name: str | None) -> Verdict:
        """Leave a case on all ranks, and return the verdict on its teardown.

        Rank 0 writes how the case ended before any rank begins the next case.
        """
        end = self._describe_end(ended) | {"next": next_name or NO_CASE, "left": []}
        gc.collect()  # free the case's objects before any rank begins the next case
        if self._state and self._earlier:  # undo what the case changed, if possible
            left = self._state.left_behind()
            end["under"] = self._earlier.end(self.name, self._state, left)
            end["left"] = [asdict(each) for each in left]
        # Rank 0 may write to a slow disk when the case's time is over.
        self.watchdog.arm((self.control.left_s() or 0.0) + self.patience_s)
        settled = self.settle("enter", end, self._judge_leaving, Waits.AFTER_CASE)
        self.control.deadline = None
        self.watchdog.arm(self.patience_s)
        if self.ending:
            self.writer.note(self.name, settled)  # rank 0 may have written nothing yet
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
        """Return rank 0's verdict on a phase, or this rank's own once the launch has ended."""
        if self.ending:
            return Verdict(end["outcome"], end["reason"])

        def judge_on_rank_0(ends: list[Any]) -> dict[str, Any]:
            settled = judge(ends, self._facts())
            if self.writer.broken:
                settled = settled.ends(EXIT_IO, self.writer.broken)
            return asdict(settled)

        # A case is entered before `number` counts it.
        name = f"{self.number + (phase == 'enter')}/{phase}"
        try:
            settled = Verdict.from_json(self.control.settle(name, end, judge_on_rank_0, waits))
        except LostError as error:
            settled = Verdict("failed", f"{error}\n{end['reason']}".strip(), EXIT_LOST, str(error))
        if settled.code is not None:
            self.end(settled.code, settled.ending).say()  # now, because the teardown may hang
        self.has_failed = self.has_failed or settled.outcome == "failed"
        return settled

    def _judge_leaving(self, ends: Ends, facts: Facts) -> Verdict:
        """Judge the end of a case, write it to the journal, and look for the stop file."""
        settled = Verdict.judge_leaving(ends, facts)
        if self.name:
            self.writer.note(self.name, settled)
            found = [(rank, end) for rank, end in enumerate(ends) if end]
            left, under = (
                [{"rank": rank} | each for rank, end in found for each in end.get(key, ())]
                for key in ("left", "under")
            )
            self.num_left -= self.writer.end_case(self.name, left, under)
        assert ends[0] is not None
        if ends[0]["next"] != NO_CASE and self._is_stop_asked():
            settled = settled.ends(EXIT_STOPPED, self._progress())
        return settled

    def _describe_end(self, ended: Ended) -> dict[str, Any]:
        if ended.outcome == "failed" and self.world.backend != "gloo" and self.world.rank > 0:
            # NCCL's timeout on another rank may end this process before the verdict.
            lines = ended.error.strip().splitlines() or ["no reason given"]
            errors.say(f"{self.name_rank(self.world.rank)}: {lines[0]}")
        return asdict(ended) | {
            "reason": ended.reason[-MAX_REASON_CHARACTERS:],
            "error": ended.error[:MAX_ERROR_CHARACTERS],
            "collectives": world.num_collectives(),
        }

    def _facts(self) -> Facts:
        limits, ranks = self.settings, self.provenance["ranks"]
        times = (limits.budget_s, limits.timeout_s)
        return Facts(ranks, self.name, *times, limits.journal_path, self.has_failed)

    def _recover(self) -> None:
        epoch = self._num_groups
        self._num_groups += 1
        if self.world.world_size == 1 and world.has_group():
            try:
                synchronise(self.world.device)
            except RuntimeError as error:  # for example after a fault of CUDA
                reason = str(error).partition("\n")[0]
                lost = f"{self.name_rank(0)} lost its device in a failed case ({reason})"
                self.end(EXIT_FAILED, f"{lost}; run again with --resume")
        elif self.world.backend != "gloo":
            self.end(
                EXIT_FAILED,
                (
                    "the launch ends, because a case failed and the ranks may now be at different "
                    "steps"
                ),
            )
        else:
            ended = Ended()
            try:
                world.rebuild(self.world, epoch)
            except RuntimeError as error:
                ended = Ended.from_error(error)
            self.settle("rebuilt", self._describe_end(ended), Verdict.judge_rebuilding)

    def _is_in_order(self) -> bool:
        return self.ending is None or self.ending.code == EXIT_STOPPED

    def _is_stop_asked(self) -> bool:
        # Rank 0 looks for all ranks: a shared file system may show others an older folder.
        # os.path.exists never raises, unlike Path.exists; the other ranks wait for an answer.
        path = self.settings.stop_file
        return path is not None and os.path.exists(path)  # noqa: PTH110

    def _progress(self) -> str:
        path, num_finished = self.settings.journal_path, self.num_expected - self.num_left
        options = f" with --resume --journal={path}" if path else ""
        return (
            f"the stop file {self.settings.stop_file} exists, so the launch ends with "
            f"{num_finished} of {self.num_expected} cases finished; remove the file and run "
            f"again{options}"
        )

    @contextlib.contextmanager
    def _limit_exchange(self) -> Iterator[None]:
        """Limit each exchange between cases by the watchdog: a frozen store has no timeout."""
        self.watchdog.arm(TIMEOUTS_FOR_RANK_0 * self.settings.timeout_s)
        try:
            yield
        finally:
            self.watchdog.arm(self.patience_s)

    def end(self, code: int, reason: str) -> Ending:
        self.ending = self.ending or Ending(code, reason)
        return self.ending

    def write_json(self, config: pytest.Config) -> bool:
        """Write the JSON in pytest-benchmark's place, and return whether that succeeded.

        pytest-benchmark would empty an older file before it knows whether the disk has room.
        """
        path = self.settings.result_path
        self.writer.restore()
        if self.writer.journal is None or path is None or (path.exists() and not path.is_file()):
            return True  # /dev/stdout and the like cannot be replaced
        benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
        benchmarks.json = None
        journal_path = self.writer.journal.path
        try:
            if journal.outcomes(journal_path):
                journal.write_result(journal_path, path.resolve())
                benchmarks.logger.info(f"Wrote benchmark data in: {path}", purple=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            sys.stderr.write(  # after the line of dots
                f"\nlockstep: --benchmark-json {path} cannot be written: {reason}; {journal_path} "
                "holds the finished cases, so run again with --resume "
                f"--journal={journal_path}\n"
            )
            sys.stderr.flush()
            return False
        return True

    def leave(self, config: pytest.Config) -> None:
        """Leave the other ranks; end this process at once if the launch ends early."""
        # A launcher ends all ranks as soon as one has ended, so flush rank 0's output first.
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
        try:
            if ending.code == EXIT_STOPPED:
                # Once one rank has ended, a launcher kills the others, and their exit code is lost.
                # Everything is written by now, so all ranks end at once, together.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                self.close()
            else:
                self.watchdog.arm(self.patience_s)  # a write to a full pipe may wait for ever
                ending.say()
                # Rank 0 and the watchdogs end first.
                time.sleep(LAST_WORD_S if self.world.rank else GRACE_S)
                self.watchdog.close(self.end_s)
        finally:
            os._exit(ending.code)

    def part(self) -> None:
        # Ranks out of step would wait in different exchanges.
        if self.has_left or not (self.is_in_step or not self.number):
            return
        self.has_left = True
        self.watchdog.arm(self.patience_s)
        self.control.deadline = None
        world.leave()
        try:
            lost = self.control.leave_together(self.patience_s if self.number else 0.0)
        except LostError as error:
            self.end(EXIT_LOST, str(error))
            return
        if lost and self.provenance:
            ranks = ", ".join(map(self.name_rank, lost[:MAX_BLAMED]))
            self.end(
                EXIT_LOST,
                (
                    f"{ranks} did not reach the end of the launch; see the log of each of these "
                    "ranks"
                ),
            )

    def close(self) -> None:
        self.watchdog.arm(self.patience_s)
        gc.unfreeze()
        hangs = ""
        if self.end_s is not None and self.provenance:
            hangs = (
                f"{self.name_rank(self.world.rank)} did not end within {self.end_s:g} s after its "
                "last case, because a thread or exit handler still runs; the stacks of its threads "
                "follow"
            )
        try:
            self.writer.close()
            self.part()
        finally:
            self.watchdog.close(self.end_s, hangs)


def _problem(items: list[pytest.Item], world_size: int) -> str:
    """Return why this rank cannot measure a case; empty if it can measure all cases."""
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
    place = placement()
    watchdog = Watchdog(None)
    # Twice, because this rank waits for the store, then for rank 0, then for the process group.
    watchdog.arm(2 * patience_s(settings))
    try:
        joined = world.join(
            settings.timeout_s, device=settings.device, threads_per_rank=settings.threads_per_rank,
            nccl_timeout_s=settings.budget_s + 2 * GRACE_S,
        )  # fmt: skip
    except BaseException:
        watchdog.close(end_s(settings, place))
        raise
    return LaunchSession(settings, joined, ReplayClock(), watchdog)


def patience_s(settings: Settings) -> float:
    """Return the longest time of a rank outside a case, in seconds."""
    return max(MIN_PATIENCE_S, TIMEOUTS_FOR_RANK_0 * settings.timeout_s)


def end_s(settings: Settings, place: Placement) -> float | None:
    """Return the longest time for a rank to end, in seconds, while its launcher waits.

    None for a process without a launcher, such as a notebook, which goes on after measuring.
    """
    is_rank = place.world_size > 1 or is_launched()
    return patience_s(settings) if is_rank else None
