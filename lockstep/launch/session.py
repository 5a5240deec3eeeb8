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
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from lockstep import content, workloads
from lockstep.launch import blame, preflight
from lockstep.launch.blame import EXIT_LOST
from lockstep.launch.options import Settings
from lockstep.measure.harness import Harness
from lockstep.measure.timing import ReplayClock, synchronise
from lockstep.plugin import FIXTURE
from lockstep.vocabulary import journal, sizes
from lockstep.vocabulary.errors import AgreedError, RankError
from lockstep.vocabulary.flags import Flag, flag
from lockstep.vocabulary.journal import Journal
from lockstep.vocabulary.record import KEY, OWN, SCHEMA_VERSION
from lockstep.world import process_group as world
from lockstep.world.control import TIMEOUTS_FOR_RANK_0, Control, LostError
from lockstep.world.watchdog import GRACE_S, Watchdog, stacks_file

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
# An NFS client may go on for so long by what it knows of a folder (nfs(5), acdirmax).
SHARED_WITHIN_S = 60.0


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
        broken: Why rank 0 could not write the journal; empty while it can.
        ending: Why the launch ends before its next case; None while it goes on.
        is_in_step: Whether all ranks agreed on the last case's end.
        has_parted: Whether this rank has left the others.
        order_seed: Seed of the order in which the launch runs its cases.
        order: The launch's cases in that order, those of an earlier session included.
        case: The case that runs, or ran last.
        state: The state of this process before it.
        left: What it has left behind, on each rank.
        sources: Case -> digest of what it measures, see `CaseRecord.workload_sha256`.
    """

    settings: Settings
    world: world.World
    clock: ReplayClock
    watchdog: Watchdog
    provenance: dict[str, Any] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()
    journal: Journal | None = None
    num_cases: int = 0
    num_expected: int = 0
    num_left: int = 0
    num_groups: int = 1
    case_failed: bool = False
    pending: dict[str, Any] | None = None
    broken: str = ""
    ending: Ending | None = None
    is_in_step: bool = False
    has_parted: bool = False
    order_seed: int = 0
    order: list[str] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)
    case: str = ""
    state: "State | None" = None
    left: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.control.bounded = self._bounded

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
        self.sources = {case_of(item): _source_sha256(item) for item in items}
        self.provenance = preflight.gather_provenance(self.world, self.control, self.settings.seed)
        self.flags = tuple(preflight.launch_flags(self.provenance))
        if self.journals:
            self._agree_on_files()
        before = self._before()
        self.order_seed = preflight.order_seed(self.control, before)
        ordered = sizes.shuffled(items, case_of, self.order_seed)
        self.order = [case_of(item) for item in ordered]
        chosen = [item for item in ordered if self._is_left(before.done.get(case_of(item)))]
        self.num_expected, self.num_left = len(items), len(chosen)
        return chosen

    def open_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        """Begin this session's part of the journal, on rank 0.

        Args:
            expected: Every case of the launch, those of an earlier session included.
            document: machine_info, commit_info, datetime and version of pytest-benchmark's JSON.

        Raises:
            RuntimeError: Rank 0 cannot write it.
        """
        path = self.settings.journal_path
        if path is not None:
            self._agree("head of --journal", path, lambda: self._begin_journal(expected, document))
        self.is_in_step = True

    @property
    def journals(self) -> bool:
        """Whether this launch keeps what it measures."""
        return self.settings.journal_path is not None

    def _agree_on_files(self) -> None:
        """Open what is written, and keep others out of it, before anything of it is read."""
        path, result = self.settings.journal_path, self.settings.result_path
        assert path is not None
        if result is not None:
            self._agree("--benchmark-json", result, lambda: self._check_writable(result))
        self._agree("--journal", path, lambda: self._open_journal(path))
        # Ranks that were told no path have each made up one of its own, by the time.
        there = Path(self.control.exchange_all("journal path", str(path.absolute()))[0])
        self._agree("stacks beside --journal", path, lambda: self._open_stacks(path, there))

    def _agree(self, name: str, path: Path, act: Callable[[], None]) -> None:
        """Use a file, or the folder of results, and refuse on all ranks where one cannot."""
        option, problem, is_wrong = name.split()[-1], "", False
        try:
            act()
        except ValueError as error:
            problem, is_wrong = f": {error}; give {option} another file", True
        except OSError as error:
            why = f"cannot write {path}: {error}"
            problem = f" {why}; give {option} a folder that every node sees and may write to"
        there = self.control.exchange_all(f"write {name}", [problem, is_wrong])
        for rank, (said, is_input) in enumerate(there):
            if said:
                kind = AgreedError if is_input else RankError
                raise kind(f"{self._where(rank)}{said}", rank)

    def _check_writable(self, path: Path) -> None:
        """Refuse on rank 0 what it could not write at the end, when all is measured."""
        if not self.is_voice:
            return
        if path.exists() and not path.is_file():  # as /dev/null
            return
        if path.exists():
            path.open("ab").close()
            # another will be made beside it, to take its place
            tempfile.NamedTemporaryFile(dir=path.resolve().parent).close()
            return
        target = path.resolve()  # of a link to what is not there yet, which stays
        target.parent.mkdir(parents=True, exist_ok=True)
        target.open("ab").close()
        target.unlink()

    def _open_stacks(self, path: Path, of_rank_0: Path) -> None:
        end = time.monotonic() + min(SHARED_WITHIN_S, self.settings.timeout_s / 2)
        # Rank 0 has made the folder of stacks, whose name no other rank has looked up before.
        while not (seen := [p for p in (path, of_rank_0) if stacks_file(p, 0).parent.is_dir()]):
            if time.monotonic() > end:
                made = stacks_file(of_rank_0, 0).parent
                raise FileNotFoundError(f"this host does not see {made}, which rank 0 has made")
            time.sleep(0.1)
        watchdog = Watchdog(stacks_file(seen[0], self.world.rank))
        self.watchdog.close()
        self.watchdog = watchdog
        self.watchdog.arm(self.patience_s)

    def _open_journal(self, path: Path) -> None:
        if self.is_voice:
            self.journal = Journal(path)
            stacks_file(path, 0).parent.mkdir(exist_ok=True)

    def _begin_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        if self.journal is None:
            return
        path = self.journal.path
        flight = journal.in_flight(path)
        self.journal.append(
            {
                "kind": "launch",
                "schema": SCHEMA_VERSION,
                "resumed": self.settings.resume and bool(journal.current(journal.read(path))),
                "skips_failed": self.settings.skip_failed,
                "expected": expected,
                "document": document,
                "launch": self._launch_facts(),
            }
        )
        if flight and self.settings.resume and self.settings.skip_failed:
            reason = f"crashed: {self.settings.after or 'the session ended while this case ran'}"
            self.keep({"kind": "fail", "case": flight, "reason": reason, "crashed": True})

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
        there = self._exchange("enter", {"case": nodeid, "stop": stop, "broken": self.broken})
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
        if self.journal:
            self._write(lambda kept: kept.begin(nodeid))

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
            "broken": self.broken,
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

    def keep(self, end: Mapping[str, Any]) -> None:
        """Write one case's end to the journal, on rank 0."""
        if self.journal:
            self._write(lambda kept: kept.append(end))

    def _write(self, act: Callable[[Journal], None]) -> None:
        assert self.journal is not None
        if self.broken:
            return
        try:
            act(self.journal)
        except OSError as error:
            # The others learn of it with the case's last verdict.
            self.broken = f"the journal {self.journal.path} cannot be written: {error.strerror}"

    def leave(self) -> None:
        """End a case: keep how, count its time no longer, and mend what it left out of step."""
        # First: a slow disk is no fault of the case, whose time may be nearly over.
        self.watchdog.arm(self.patience_s)
        self.control.deadline = None
        for one in self.left:
            self.keep({"kind": "left", "case": self.case, "left": one})
        if self.pending and not self.case_failed:
            _flag(self.pending, self.left)
            self.keep(self.pending)
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
            if self.journal:
                self.journal.close()
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


def case_of(item: pytest.Item) -> str:
    """Return a case's name, the same from whichever folder the suite is started.

    pytest names an item from its root folder, and where the suite is installed as a package that
    is a folder above both the suite and the current one.
    """
    if not item.path.is_relative_to(content.ROOT):
        return item.nodeid
    return f"{item.path.relative_to(content.ROOT).as_posix()}::{item.nodeid.partition('::')[2]}"


def is_measured(item: pytest.Item) -> bool:
    """Return whether a collected test measures: it asks for `lockstep`, or is of a size's study."""
    fixtures = getattr(item, "fixturenames", ())
    return FIXTURE in fixtures or has_size(item)


def has_size(item: pytest.Item) -> bool:
    """Return whether a size gives the case its parameters."""
    return item.get_closest_marker("cases") is not None


def study_of(item: pytest.Item) -> str:
    """Return a measured case's study; `OWN` for a user's test, which says how it scales."""
    marker = item.get_closest_marker("cases")
    return str(marker.args[0]) if marker else OWN


def params_of(item: pytest.Item) -> dict[str, Any]:
    """Return a case's parameters as JSON knows them, name -> value; a class by its name."""
    callspec = getattr(item, "callspec", None)
    return {name: _plain(value) for name, value in callspec.params.items()} if callspec else {}


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(getattr(value, "__name__", value))


def _source_sha256(item: pytest.Item) -> str | None:
    """Return the digest of what a case measures; None where the suite alone defines that."""
    from lockstep.workloads import source

    own_file = None if item.path.is_relative_to(content.ROOT) else item.path
    spec = params_of(item).get("workload") if has_size(item) else None
    if spec is None:
        return source.of_file(own_file) if own_file else None
    return source.sha256(workloads.make(spec), own_file)


def of_part(items: list[pytest.Item], part: tuple[int, int] | None) -> list[pytest.Item]:
    """Return the K-th of N parts of the items: every N-th from the K-th on.

    Raises:
        ValueError: That part holds nothing.
    """
    if part is None:
        return items
    number, num_parts = part
    if number > len(items):
        raise ValueError(
            f"--part {number}/{num_parts} holds no case, for {len(items)} are selected; "
            f"choose a part from 1 to {len(items)}"
        )
    return items[number - 1 :: num_parts]
