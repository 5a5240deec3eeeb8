"""One launch as pytest sees it: who takes part, which cases run, and what becomes of each.

Every rank runs the same session. Before the first case the ranks compare what they collected;
each case begins with a handshake, and each of its phases (set-up, call, teardown) ends with one
verdict, equal on all ranks. After a failed case the process group is built again, or the session
ends and its launcher starts it again.

Every rank exits with pytest's codes (1 failed case, 2 interrupted, 4 wrong options, 5 nothing
selected), or with 70: a rank or the store is lost, 74: the journal or the JSON cannot be written,
75: ended in order because the stop file is there, 76: ranks out of step, 78: the machine cannot
measure.
"""

import contextlib
import gc
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import pytest

from lockstep import workloads
from lockstep.launch import blame, preflight
from lockstep.launch.blame import EXIT_LOST
from lockstep.launch.items import case_of, has_size, params_of, source_sha256, study_of
from lockstep.launch.keeper import Keeper
from lockstep.launch.options import Settings
from lockstep.measure.harness import Harness
from lockstep.measure.timing import ReplayClock, synchronise
from lockstep.vocabulary import sizes
from lockstep.vocabulary.flags import Flag, flag
from lockstep.vocabulary.record import KEY
from lockstep.world import process_group as world
from lockstep.world.control import TIMEOUTS_FOR_RANK_0, Control, LostError
from lockstep.world.watchdog import GRACE_S, Watchdog

if TYPE_CHECKING:
    from lockstep.measure.state import State

Outcome = Literal["passed", "failed", "skipped"]

EXIT_FAILED = 1
EXIT_USAGE = 4
EXIT_IO = 74
EXIT_STOPPED = 75
EXIT_MACHINE = 78
MAX_REASON_CHARACTERS = 4000
MIN_PATIENCE_S = 60.0


@dataclass
class Ending:
    """Why a launch ends before its last case, and the exit code that says so."""

    code: int
    reason: str
    is_said: bool = False

    def say(self) -> None:
        """Say why on standard error, once, where no summary will."""
        if self.code in (EXIT_LOST, EXIT_IO) and not self.is_said:
            sys.stderr.write(f"lockstep: {self.reason}\n")
            sys.stderr.flush()
            self.is_said = True


@dataclass
class LaunchSession:
    """The state of one launch on one rank.

    Attributes:
        num_cases: Cases entered in this session.
        num_expected: Cases of the launch, those of an earlier session included.
        num_left: Cases that are not finished yet.
        num_groups: Process groups there have been.
        case_failed: Whether the case that runs has failed on any rank.
        pending: How the case that runs has ended, unless its teardown fails.
        ending: Why the launch ends before its next case; None while it goes on.
        is_in_step: Whether all ranks agreed on the last case's end.
        has_parted: Whether this rank has left the others.
        order_seed: Seed of the order in which the launch runs its cases.
        order: The launch's cases in that order, those of an earlier session included.
        case: The case that runs, or ran last.
        state: The state of this process before it.
        left: What it has left behind, on each rank.
        keeper: Keeps what is measured.
        sources: Case -> digest of what it measures, see `CaseRecord.workload_sha256`.
    """

    settings: Settings
    world: world.World
    clock: ReplayClock
    watchdog: Watchdog
    provenance: dict[str, Any] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()
    num_cases: int = 0
    num_expected: int = 0
    num_left: int = 0
    num_groups: int = 1
    case_failed: bool = False
    pending: dict[str, Any] | None = None
    ending: Ending | None = None
    is_in_step: bool = False
    has_parted: bool = False
    order_seed: int = 0
    order: list[str] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)
    case: str = ""
    state: "State | None" = None
    left: list[dict[str, Any]] = field(default_factory=list)
    keeper: Keeper = field(init=False)

    def __post_init__(self) -> None:
        self.control.bounded = self._bounded
        self.keeper = Keeper(self.settings, self.control, self._where)

    @property
    def is_voice(self) -> bool:
        """Whether this rank prints and writes."""
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
        preflight.refuse_alike(self.control, self._problem(items))
        self.sources = {case_of(item): source_sha256(item) for item in items}
        self.provenance = preflight.gather_provenance(self.world, self.control, self.settings.seed)
        self.flags = tuple(preflight.launch_flags(self.provenance))
        if stacks := self.keeper.open():
            self.watchdog.close()
            self.watchdog = Watchdog(stacks)
            self.watchdog.arm(self.patience_s)
        before = self._before()
        self.order_seed = preflight.order_seed(self.control, before)
        ordered = sizes.shuffled(items, case_of, self.order_seed)
        self.order = [case_of(item) for item in ordered]
        chosen = [item for item in ordered if self._is_left(before.done.get(case_of(item)))]
        self.num_expected, self.num_left = len(items), len(chosen)
        return chosen

    def open_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        """Begin this session's part of the journal; arguments and errors as `Keeper.begin`."""
        self.keeper.begin(expected, document, self._launch_facts())
        self.is_in_step = True

    def enter(self, nodeid: str) -> None:
        """Shake hands before a case: every rank must be about to run the same one.

        Where `ending` says why on return, the case is not to run.
        """
        self.num_cases += 1
        self.case = nodeid
        self.is_in_step = self.case_failed = False
        if self.num_cases == 2:
            # The first case has imported all that cases import. A case collects garbage before it
            # is timed; going through a million imported objects each time would cost more than it.
            gc.collect()
            gc.freeze()
        # Rank 0 looks for all: a shared file system may show the others an older folder.
        stop = self.is_voice and self._is_stop_asked()
        there = self._exchange(
            "enter", {"case": nodeid, "stop": stop, "broken": self.keeper.broken}
        )
        if not there:
            return
        cases = [other and other["case"] for other in there]
        ranks = self.provenance["ranks"]
        if ending := blame.parted(cases, ranks, self.settings.timeout_s):
            self.end(*ending)
        elif there[0]["broken"]:
            self.end(EXIT_IO, there[0]["broken"])
        elif there[0]["stop"]:
            self.is_in_step = True
            self.end(EXIT_STOPPED, self._where_it_stands())
        else:
            self._begin(nodeid)

    def _begin(self, nodeid: str) -> None:
        """Count the case's time from here, and note that it is in flight."""
        budget_s = self.settings.budget_s
        from lockstep.measure.state import State  # which imports torch

        self.control.deadline = time.monotonic() + budget_s
        # Rank 0 speaks for the others; of itself nobody would.
        self.watchdog.arm(budget_s, self._late([self.world.rank]) if self.is_voice else "")
        self.state, self.left = State(is_first=self.num_cases == 1), []
        self.keeper.note_begin(nodeid)

    def _exchange(self, name: str, value: Any) -> list[Any]:
        """Return every rank's value of this case, or end the launch and return nothing."""
        try:
            return self.control.exchange(f"{self.num_cases}/{name}", value, is_verdict=True)
        except LostError as error:
            self.end(EXIT_LOST, str(error))
            return []

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Give one exchange between cases its time, whatever those before it took of theirs."""
        # A frozen store keeps no time-out: by then it has not answered, and the rank ends.
        self.watchdog.arm(TIMEOUTS_FOR_RANK_0 * self.settings.timeout_s)
        try:
            yield
        finally:
            self.watchdog.arm(self.patience_s)

    def end(self, code: int, reason: str) -> None:
        """End the launch before its next case; the first reason counts."""
        if self.ending is None:
            self.ending = Ending(code, reason)

    def _is_stop_asked(self) -> bool:
        path = self.settings.stop_file
        # Unlike Path.exists, this raises for no path: the other ranks wait for an answer.
        return path is not None and os.path.exists(path)  # noqa: PTH110

    def _where_it_stands(self) -> str:
        path = self.settings.journal_path
        return (
            f"{self.settings.stop_file} exists: {self.num_expected - self.num_left} of "
            f"{self.num_expected} cases are finished, {self.num_left} left; remove it and "
            f"run again{f' with --resume --journal={path}' if path else ''}"
        )

    def verdict(self, phase: str, outcome: Outcome, reason: str) -> tuple[Outcome, str]:
        """Return the outcome of a phase that holds on all ranks, and its reason.

        Args:
            phase: setup, call or teardown.
            outcome: This rank's own: passed, failed or skipped.
            reason: Why, if not passed.
        """
        if self.ending:
            return outcome, reason
        if outcome == "failed" and self.world.backend != "gloo" and not self.is_voice:
            self._say(reason)
        own = {
            "outcome": outcome,
            "reason": reason[-MAX_REASON_CHARACTERS:],
            "broken": self.keeper.broken,
            "collectives": world.num_collectives(),
            "left": self._left() if phase == "teardown" else [],
        }
        found = self._exchange(phase, own)
        self.left = [
            {"rank": rank, **one}
            for rank, given in enumerate(found)
            for one in (given["left"] if given else [])
        ]
        if self.ending:
            self.ending.say()  # now, for the teardown may hang
        if found and found[0] and found[0]["broken"]:
            self.end(EXIT_IO, found[0]["broken"])
        outcomes = {rank["outcome"] if rank else "silent" for rank in found}
        if len(outcomes) == 1 and outcome != "failed" and not self.ending:
            uneven = "" if self.case_failed else blame.uneven(found, self.provenance["ranks"])
            self.case_failed = self.case_failed or bool(uneven)
            return ("failed", uneven) if uneven else (outcome, reason)
        self.case_failed = True
        silent = [rank for rank, given in enumerate(found) if given is None]
        if silent:
            self.end(EXIT_LOST, self._late(silent))
        if found and (blamed := self._blame(found)):
            return "failed", blamed
        assert self.ending is not None
        return "failed", f"{self.ending.reason}\n{reason}".strip()

    def _say(self, reason: str) -> None:
        """Say why this rank failed, for NCCL's time-out on another may end all before a verdict."""
        last = reason.strip().splitlines()[-1:] or ["no reason given"]
        sys.stderr.write(f"lockstep: {self._where(self.world.rank)}: {last[0]}\n")
        sys.stderr.flush()

    def leave(self) -> None:
        """End a case: keep how, count its time no longer, and mend what it left out of step."""
        # First: a slow disk is no fault of the case, whose time may be nearly over.
        self.watchdog.arm(self.patience_s)
        self.control.deadline = None
        for one in self.left:
            self.keeper.keep({"kind": "left", "case": self.case, "left": one})
        if self.pending and not self.case_failed:
            _flag(self.pending, self.left)
            self.keeper.keep(self.pending)
            self.num_left -= 1
        self.pending = None
        has_group = not any(one["kind"] == "process_group" for one in self.left)
        if self.ending is None and (self.case_failed or not has_group):
            self._recover()
        else:
            self.is_in_step = self.ending is None

    def _left(self) -> list[dict[str, Any]]:
        """Return what the case that ends leaves behind on this rank, put back where that can be."""
        return [asdict(one) for one in self.state.left_behind()] if self.state else []

    def _recover(self) -> None:
        """Build the process group again, or end the launch for its launcher to start it again."""
        if self.world.world_size == 1 and world.has_group():
            self._probe()
            return
        if self.world.backend != "gloo":
            self.end(EXIT_FAILED, "a case failed: the ranks may be out of step")
            return
        problem = ""
        try:
            world.rebuild(self.world, self.num_groups)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0] or type(error).__name__
        self.num_groups += 1
        there = self._exchange(
            "rebuilt", {"outcome": "failed" if problem else "passed", "reason": problem}
        )
        if blamed := self._blame(there):
            self.end(
                EXIT_LOST, f"the process group could not be built again after a failure: {blamed}"
            )
        self.is_in_step = self.ending is None

    def _probe(self) -> None:
        """End the launch if its one rank can use its device no longer, as after a fault of CUDA."""
        try:
            synchronise(self.world.device)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            self.end(
                EXIT_FAILED,
                f"{self._where(self.world.rank)} has lost its device with a failed case "
                f"({reason}); run again with --resume",
            )
        self.is_in_step = self.ending is None

    def harness(self, node: Any, benchmark: Any) -> Harness:
        """Return what one case works with."""
        return Harness(
            world=self.world,
            size=self.settings.size,
            case=f"{self.num_cases}/{node.name}",
            factors=params_of(node),
            study=study_of(node),
            cores_on_host=preflight.cores_beside(self.provenance["ranks"], self.world.rank),
            seed=self.settings.seed,
            data_root=self.settings.data_root,
            flags=self.flags,
            goal=self.settings.goal,
            benchmark=benchmark,
            clock=self.clock,
            rank_hosts=tuple(rank["host"] for rank in self.provenance["ranks"]),
            position=self.order.index(case_of(node)),
            source_sha256=self.sources[case_of(node)],
            is_first=self.num_cases == 1,
        )

    def part(self) -> None:
        """Leave the other ranks together, and end the launch where one of them does not come."""
        if self.has_parted or not (self.is_in_step or not self.num_cases):
            return
        self.has_parted = True
        self.watchdog.arm(self.patience_s)
        world.leave()
        try:
            lost = self.control.part(self.patience_s if self.num_cases else 0.0)
        except LostError as error:
            self.end(EXIT_LOST, str(error))
            return
        if lost and self.provenance:
            who = ", ".join(map(self._where, lost[: blame.MAX_BLAMED]))
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
            f"{self._where(self.world.rank)} did not end within {self.end_s:g} s of its last case; "
            "a thread, or what runs as pytest or Python ends, keeps it: its stacks follow"
        )

    def _problem(self, items: list[pytest.Item]) -> str:
        """Return what this rank cannot measure, and why; empty where it can all."""
        rows = [params_of(item) for item in items if has_size(item)]
        try:
            for batch in {row["global_batch"] for row in rows if "global_batch" in row}:
                sizes.check_global_batch(batch, self.world.world_size)
            for spec in {row["workload"] for row in rows if "workload" in row}:
                workloads.make(spec)
        except ValueError as error:
            return str(error)
        return ""

    def _before(self) -> preflight.Before:
        """Return what the journal to resume holds; nothing for a fresh launch."""
        path = self.settings.journal_path
        if not (self.settings.resume and path):
            return preflight.Before()
        facts = preflight.measured_with(self.world, self.settings)
        return preflight.done_before(
            self.control, path, preflight.Now(facts, self.provenance, self.sources)
        )

    def _is_left(self, outcome: str | None) -> bool:
        """Return whether a case of this outcome in an earlier session is to run in this one."""
        leave_out = {"case", "skip"}
        if self.settings.skip_failed:
            leave_out |= {"fail", "begin"}
        return outcome not in leave_out

    def _launch_facts(self) -> dict[str, Any]:
        return {
            **self.settings.labels,
            "size": self.settings.size_name,
            "rounds": self.settings.size.rounds,
            "warmup_rounds": self.settings.size.warmup_rounds,
            "part": self.settings.part,
            "order_seed": self.order_seed,
            "measured_with": preflight.measured_with(self.world, self.settings),
            "world_size": self.world.world_size,
            "num_nodes": self.world.num_nodes,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": self.provenance,
        }

    def _blame(self, found: list[Any]) -> str:
        return blame.blame(found, self.provenance["ranks"], self.settings.journal_path)

    def _late(self, silent: list[int]) -> str:
        ranks, path = self.provenance["ranks"], self.settings.journal_path
        return blame.late(silent, ranks, self.case, self.settings.budget_s, path)

    def _where(self, rank: int) -> str:
        return blame.where(rank, self.provenance["ranks"])


def _flag(end: dict[str, Any], left: list[dict[str, Any]]) -> None:
    """Flag a case that was measured in another state than its launch has."""
    block = end.get("benchmark", {}).get("extra_info", {}).get(KEY, {})
    for one in left:
        facts = {name: one[name] for name in ("rank", "before", "after")} | {"what": one["kind"]}
        made = flag("left-behind" if one["is_restored"] else "left-in-place", **facts)
        block.setdefault("flags", []).append(made.to_dict())


def join(settings: Settings) -> LaunchSession:
    """Join the other ranks of this launch.

    Raises:
        ValueError: The launcher's variables or an option's value are wrong.
        RuntimeError: The ranks do not meet, or a GPU is missing.
    """
    place = world.placement()
    watchdog = Watchdog(None)
    # One after the other it may wait for the store, for rank 0, and for the process group.
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


def end_s(settings: Settings, place: world.Placement) -> float | None:
    """Return how long a rank may take to end, which its launcher waits for.

    None for a process that nobody started as a rank: it may be a notebook, which goes on after its
    measurement.
    """
    is_rank = place.world_size > 1 or world.is_launched()
    return patience_s(settings) if is_rank else None
