"""The local ladder: one torchrun launch per world size and repeat, resumable at any point.

Results lie under `results/<campaign>/launches/<launch>/`: the journal, pytest-benchmark's JSON
rebuilt from it, and the launch's output. What they hold is never measured again.
"""

import contextlib
import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil

from lockstep import content
from lockstep.campaign.campaign import Campaign, Launch, LeftOut, common_options, own_options, plan
from lockstep.campaign.floor import Missed, missed
from lockstep.campaign.folder import USUAL_BUDGET_S, Folder, Outcome
from lockstep.campaign.local.launcher import (
    Ended,
    Hang,
    left_ranks,
    local_environment,
    program_driver,
    torchrun,
)
from lockstep.campaign.next import Next, decide, gather, mark, words_of
from lockstep.core import journal, locks
from lockstep.core.processes import die_with_parent, hostname
from lockstep.core.record import KEY, case_name

POLL_S = 1.0
ORPHAN_S = 60.0
# The least time a rank has between two cases, as in launch/session.py.
LEAST_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Ladder:
    """A campaign and the folder of its results.

    Attributes:
        left_out: World sizes of it that this machine cannot measure.
        lock: Descriptor of the folder's lock, which launches hold as long as they write.
        options: What every launch is given beside the campaign's own.
    """

    campaign: Campaign
    folder: Path
    left_out: tuple[LeftOut, ...] = ()
    lock: int | None = None
    options: tuple[str, ...] = ()

    @property
    def results(self) -> Folder:
        """What the folder holds."""
        return Folder(self.folder)

    def outcome(self, launch: Launch) -> Outcome:
        """Return how far a launch has come, by its journal alone.

        Raises:
            ValueError: The journal is corrupt.
        """
        return self.results.outcome(launch.name, self.campaign.studies)

    def missing(self) -> list[Launch]:
        """Return the launches that still lack a case, in the order they are made."""
        return self.results.missing(self.campaign, plan(self.campaign))

    def write_results(self) -> None:
        """Make each JSON again that its journal is ahead of, as a full disk may leave it."""
        for launch in plan(self.campaign):
            path = self.results.journal(launch.name)
            if path.exists() and journal.is_ahead(path, self.results.result(launch.name)):
                self.results.write_result(launch.name)

    def refuse(self) -> None:
        """Refuse a folder that the campaign could not claim.

        Raises:
            ValueError: As `Folder.refuse` does.
        """
        self.results.refuse(self.campaign, plan(self.campaign))

    def claim(self) -> None:
        """Write the campaign into the folder of its results, or refuse to mix it with another's.

        Raises:
            ValueError: As `Folder.refuse` does.
        """
        self.results.claim(self.campaign, plan(self.campaign), self.left_out)

    def missed(self, launch: Launch) -> Missed | None:
        """Return the smaller world size whose missing of the floor leaves this launch out.

        Raises:
            ValueError: A journal is corrupt.
        """
        floor = self.campaign.until_efficiency
        return missed(self.folder / "launches", launch.world_size, floor) if floor else None

    def leave_out(self, world_sizes: Collection[int]) -> None:
        """Note in the folder that the ladder has ended before these sizes."""
        beyond = [LeftOut(size, kind="below_floor") for size in sorted(world_sizes)]
        launches = [each for each in plan(self.campaign) if each.world_size not in world_sizes]
        self.results.claim(self.campaign, launches, [*self.left_out, *beyond])

    def command(self, launch: Launch, options: Sequence[str] = ()) -> list[str]:
        """Return the command line of a launch: torchrun's, or that of a program's driver."""
        start = program_driver if self.campaign.command else partial(pytest_command, self.campaign)
        return [
            *start(launch.world_size),
            *common_options(self.campaign),
            *own_options(launch),
            *self.options,
            *("--resume", "--journal", str(self.results.journal(launch.name))),
            *options,
        ]

    def run(self, launch: Launch, on_progress: Callable[[Launch, Outcome], None]) -> Outcome:
        """Make one launch, again after a failure or a crash as long as that brings it further."""
        follows = Next("again")
        while follows.kind == "again":
            ended = self._start(launch, on_progress, follows.options)
            follows = decide(ended.facts)
        return dataclasses.replace(self.outcome(launch), ended=ended)

    def _start(
        self,
        launch: Launch,
        on_progress: Callable[[Launch, Outcome], None],
        options: Sequence[str],
    ) -> Ended:
        """Run one session of a launch and return how it ended."""
        folder = self.results.launch(launch.name)
        folder.mkdir(parents=True, exist_ok=True)
        before, path = mark(folder), self.results.log_file(launch.name)
        with path.open("ab") as log:
            process = subprocess.Popen(
                self.command(launch, options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=local_environment(os.environ, self.campaign.threads_per_rank or 1),
                preexec_fn=die_with_parent,
                pass_fds=() if self.lock is None else (self.lock,),
            )
            try:
                hung = self._wait(process, launch, on_progress)
            finally:
                _stop(process)
                self.results.write_result(launch.name)
        code = process.returncode
        starter = "its driver" if self.campaign.command else "torchrun"
        why = words_of(folder, before, by_slurm=False) or f"{starter} ended with {code}"
        return Ended(gather(folder, before, str(hung or why)), code, hung)

    def _limit_s(self, outcome: Outcome) -> float:
        """Return how long a launch may bring nothing: all that a start or a case may take, twice.

        The ranks keep limits of their own, but what they measure can take those away. Once all
        cases are measured, nothing is lost with the ranks.
        """
        if outcome.complete:
            return 2 * LEAST_PATIENCE_S
        if self.campaign.command:
            size = self.campaign.measured_size()
            return self.campaign.command.longest_s(size.rounds + size.warmup_rounds)
        return 2 * max(self.campaign.case_budget or USUAL_BUDGET_S, LEAST_PATIENCE_S)

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        launch: Launch,
        on_progress: Callable[[Launch, Outcome], None],
    ) -> Hang | None:
        """Wait until a launch has ended, or hangs; return where it hangs."""
        path, outcome = self.results.journal(launch.name), Outcome(launch.name)
        seen_bytes, seen = -1, time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
            # The ranks need the cores: the journal is read only when it has grown.
            size_bytes = path.stat().st_size if path.exists() else 0
            if size_bytes != seen_bytes:
                seen_bytes, seen = size_bytes, time.monotonic()
                outcome = self.outcome(launch)
                on_progress(launch, outcome)
            if process.returncode is not None:
                return None
            if time.monotonic() - seen > (limit_s := self._limit_s(outcome)):
                ranks = left_ranks(process.pid)
                return Hang(_where_it_hangs(outcome), limit_s, ranks, outcome.in_flight)


def pytest_command(campaign: Campaign, world_size: int) -> list[str]:
    """Return the start of a command: what measures a campaign's tests at so many ranks."""
    measured = campaign.tests or [str(content.ROOT / "bench")]
    return [*torchrun(world_size), "-m", "pytest", *measured, "-p", "lockstep.launch.hooks"]


def _where_it_hangs(outcome: Outcome) -> Literal["start", "case", "between", "end"]:
    if outcome.in_flight:
        return "case"
    if not (outcome.remaining or outcome.measured):
        return "start"
    return "between" if outcome.remaining else "end"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a launch: in order, or at last with what it started."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(ORPHAN_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(psutil.NoSuchProcess):
            for rank in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    rank.kill()
        process.kill()
        process.wait()


@contextmanager
def only_driver(
    folder: Path, on_wait: Callable[[], None] = lambda: None, otherwise: str = "--to another folder"
) -> Iterator[int]:
    """Hold the campaign's lock and give its descriptor, for the launches to hold it, too.

    The system frees the lock when the last holder has ended, in whatever way: what a killed
    driver left behind is waited for, a living one is not.

    Raises:
        ValueError: Another command works in the folder, or one of another host or what it left, or
            the folder's file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    with path.open("a", encoding="utf-8") as lock:
        if not locks.take(lock):
            process, host, _ = locks.holder(path)
            # Whether a process of another host runs cannot be seen from here.
            if host not in ("", hostname()) or _runs(process):
                raise ValueError(f"{locks.in_use(folder)}, or {otherwise}")
            on_wait()
            if not locks.take(lock, ORPHAN_S):
                raise RuntimeError(
                    f"a launch that a killed run left behind still writes into {folder}; end its "
                    f"torchrun, or {otherwise}"
                )
        locks.sign(lock)
        # A process that is forked from this one closes the lock's own file.
        held = os.dup(lock.fileno())
        try:
            yield held
        finally:
            os.close(held)


def _runs(pid: str) -> bool:
    try:
        return bool(psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE)
    except (ValueError, psutil.NoSuchProcess):
        return False


def only_skip(ladder: Ladder) -> str:
    """Return why the first case was skipped where no case was measured; else nothing.

    Raises:
        ValueError: A journal is corrupt.
    """
    reasons: list[str] = []
    for launch in plan(ladder.campaign):
        document = journal.rebuild(ladder.results.journal(launch.name))
        if document["benchmarks"]:
            return ""
        reasons += [str(skip["reason"]) for skip in document[KEY]["skipped"]]
    return next(iter(reasons), "")


def step_times(
    ladder: Ladder, launches: Sequence[Launch] | None = None
) -> dict[str, dict[int, list[float]]]:
    """Return case -> world size -> median seconds per step of each launch measured so far.

    Raises:
        ValueError: A journal is corrupt.
    """
    times: dict[str, dict[int, list[float]]] = {}
    for launch in plan(ladder.campaign) if launches is None else launches:
        path = ladder.results.journal(launch.name)
        if not journal.outcomes(path):
            continue
        for entry in journal.rebuild(path)["benchmarks"]:
            try:
                name, step_s = case_name(entry), _step_s(entry)
            except (KeyError, TypeError, ValueError, ZeroDivisionError):
                raise ValueError(
                    f"{path}: a case line has no median of its steps; the journal is corrupt"
                ) from None
            times.setdefault(name, {}).setdefault(launch.world_size, []).append(step_s)
    return times


def _step_s(entry: dict[str, Any]) -> float:
    return float(entry["stats"]["median"] / entry["extra_info"][KEY]["steps_per_round"])
