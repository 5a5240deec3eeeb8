"""One pytest session of a launch: who takes part, which cases run, and what becomes of each.

Every rank runs the same session. Before the first case the ranks compare what they collected.
Then they meet three times a case: when they leave the case before and enter this one, after its
set-up, and after its call. Each time every rank gives rank 0 one value, and all read one verdict.
After a failed case the process group is built again, or the session ends and another one follows.

Every rank exits with pytest's codes (1 failed case, 2 interrupted, 4 wrong options, 5 nothing
selected), or with 70: a rank or the store is lost, 74: the journal or the JSON cannot be written,
75: ended in order because the stop file is there, 76: ranks out of step, 78: the machine cannot
measure.
"""

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lockstep import workloads
from lockstep.core import sizes
from lockstep.core.records.flags import Flag
from lockstep.launch import blame, preflight, transport
from lockstep.launch.blame import EXIT_LOST
from lockstep.launch.ending import Ending
from lockstep.launch.items import case_of, has_size, own_file, params_of, source_sha256, study_of
from lockstep.launch.keeper import Keeper
from lockstep.launch.meetings import Cases
from lockstep.launch.options import Settings
from lockstep.measure.harness import Harness
from lockstep.measure.timing import ReplayClock
from lockstep.ranks import process_group as world
from lockstep.ranks import refusing
from lockstep.ranks.control import TIMEOUTS_FOR_RANK_0, Control, LostError
from lockstep.ranks.placement import Placement, is_launched, placement
from lockstep.ranks.watchdog import GRACE_S, Watchdog

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
        refusing.before_cases(self.control, _problem(items, self.world.world_size))
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
        found = transport.gather(self.world, hosts, stacks.parent.parent if stacks else None)
        self.provenance |= {"transport": found.facts or None}
        self.flags += found.flags

    def open_journal(self, expected: list[str], document: dict[str, Any]) -> None:
        """Begin this session's part of the journal.

        The document is the head of pytest-benchmark's JSON.

        Raises:
            OSError: The journal cannot be written.
        """
        self.keeper.begin(expected, document, _facts(self))
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
            who = ", ".join(map(self.where, lost[: blame.MAX_BLAMED]))
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
        return blame.where(rank, self.provenance["ranks"])


def _facts(launch: LaunchSession) -> dict[str, Any]:
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
