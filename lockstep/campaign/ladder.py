"""The local ladder: one torchrun launch per world size and repeat, resumable at any point.

Results lie under `results/<campaign>/launches/<launch>/`: the journal, pytest-benchmark's JSON
rebuilt from it, and the launch's output. What they hold is never measured again.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from lockstep.campaign.campaign import Campaign, Launch, LeftOut, common_options, own_options, plan
from lockstep.campaign.floor import Missed, missed
from lockstep.campaign.folder import USUAL_BUDGET_S, Folder, Outcome
from lockstep.campaign.launcher import local_environment, pytest_command
from lockstep.campaign.next import (
    Ended,
    Hang,
    HangKind,
    LeftRank,
    Next,
    decide,
    gather,
    mark,
    words_of,
)
from lockstep.core import journal, locks, processes
from lockstep.core.formats import listed
from lockstep.core.processes import hostname
from lockstep.core.record import KEY, case_name

POLL_S = 1.0
ORPHAN_S = 60.0
# The least time a rank has between two cases, as in launch/session.py.
LEAST_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Ladder:
    """A campaign and the folder of its results.

    Methods that read a journal raise ValueError where it is corrupt.

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
        """Return how far a launch has come, by its journal alone."""
        return self.results.outcome(launch.name, self.campaign.studies)

    def missing(self, aside: Collection[str] = ()) -> list[Launch]:
        """Return the launches that lack a case, or will once some are aside, in their order."""
        return [
            launch
            for launch in plan(self.campaign)
            if launch.name in aside or not self.outcome(launch).complete
        ]

    def write_results(self) -> None:
        """Make each JSON again that its journal is ahead of, as a full disk may leave it."""
        for launch in plan(self.campaign):
            path = self.results.journal(launch.name)
            if path.exists() and journal.is_ahead(path, self.results.result(launch.name)):
                self.results.write_result(launch.name)

    def refuse(self) -> None:
        """Refuse a folder that the campaign could not claim, as `Folder.refuse` does."""
        self.results.refuse(self.campaign, plan(self.campaign))

    def claim(self) -> None:
        """Write the campaign into the folder of its results, as `Folder.claim` does."""
        self.results.claim(self.campaign, plan(self.campaign), self.left_out)

    def missed(self, launch: Launch) -> Missed | None:
        """Return the smaller world size whose missing of the floor leaves this launch out."""
        floor = self.campaign.until_efficiency
        return missed(self.folder / "launches", launch.world_size, floor) if floor else None

    def leave_out(self, world_sizes: Collection[int]) -> None:
        """Note in the folder that the ladder has ended before these sizes."""
        beyond = [LeftOut(size, kind="below_floor") for size in sorted(world_sizes)]
        launches = [each for each in plan(self.campaign) if each.world_size not in world_sizes]
        self.results.claim(self.campaign, launches, [*self.left_out, *beyond])

    def command(self, launch: Launch, options: Sequence[str] = ()) -> list[str]:
        """Return the command line of a launch: torchrun's, or that of a program's driver."""
        start = pytest_command(self.campaign, launch.world_size)
        if self.campaign.command:
            driver = [sys.executable, "-m", "lockstep.campaign.program"]
            start = [*driver, f"--world-size={launch.world_size}"]
        return [
            *start,
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
        return replace(self.outcome(launch), ended=ended)

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
                preexec_fn=processes.die_with_parent,
                pass_fds=() if self.lock is None else (self.lock,),
            )
            try:
                hung = self._wait(process, launch, on_progress)
            finally:
                processes.end_tree(process, ORPHAN_S)
                self.results.write_result(launch.name)
        code = process.returncode
        starter = "its driver" if self.campaign.command else "torchrun"
        why = words_of(folder, before, by_slurm=False) or f"{starter} ended with {code}"
        return Ended(gather(folder, before, str(hung or why)), code, hung)

    def _wait(
        self,
        process: "subprocess.Popen[bytes]",
        launch: Launch,
        on_progress: Callable[[Launch, Outcome], None],
    ) -> Hang | None:
        """Wait until a launch has ended, or hangs; return where it hangs.

        It hangs where it brings nothing for twice as long as a start or a case may take. The ranks
        keep limits of their own, but what they measure can take those away.
        """
        path, outcome = self.results.journal(launch.name), Outcome(launch.name)
        seen_bytes, seen_s = -1, time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
            # The ranks need the cores: the journal is read only when it has grown.
            size_bytes = path.stat().st_size if path.exists() else 0
            if size_bytes != seen_bytes:
                seen_bytes, seen_s = size_bytes, time.monotonic()
                outcome = self.outcome(launch)
                on_progress(launch, outcome)
            if process.returncode is not None:
                return None
            if outcome.complete:  # nothing is lost with the ranks
                limit_s = 2 * LEAST_PATIENCE_S
            elif self.campaign.command:
                size = self.campaign.measured_size()
                limit_s = self.campaign.command.longest_s(size.rounds + size.warmup_rounds)
            else:
                limit_s = 2 * max(self.campaign.case_budget or USUAL_BUDGET_S, LEAST_PATIENCE_S)
            if time.monotonic() - seen_s > limit_s:
                kind: HangKind = "end"
                if outcome.in_flight:
                    kind = "case"
                elif outcome.remaining:
                    kind = "between"
                elif not outcome.measured:
                    kind = "start"
                return Hang(kind, limit_s, left_ranks(process.pid), outcome.in_flight)

    # Launches that are measured again.

    @property
    def earlier(self) -> Folder | None:
        """The campaign that `set_aside` moved last; None where it moved single launches at most."""
        claims = sorted(self.folder.glob("replaced/*/campaign.json"))
        return Folder(claims[-1].parent) if claims else None

    def is_cut_short(self) -> bool:
        """Return whether a launch that was moved aside to be measured again has not ended yet."""
        names = self.earlier.names() if self.earlier else []
        outcomes = [self.outcome(each) for each in self.missing() if not self.missed(each)]
        return any(each.name in names and not each.failed for each in outcomes)

    def other_commit(self) -> str:
        """Return a warning of launches that measured another commit of one's own tests, if any."""
        paths = [Path(test.partition("::")[0]) for test in self.campaign.tests]
        here = {processes.git_state(path if path.is_dir() else path.parent)[0] for path in paths}
        known = set()
        for name in self.results.names():
            head = next(iter(journal.read(self.results.journal(name))), {})
            provenance = (head.get("launch") or {}).get("provenance") or {}
            known.add(provenance.get("project_commit"))
        others = sorted(str(commit) for commit in known - here if commit)
        if not others or None in here:
            return ""
        return (
            f"Warning: {self.folder} holds launches of commit {listed(others)}, and the tests are "
            f"at {listed(sorted(filter(None, here)))}; give --name for a folder of this commit, "
            "and compare the two"
        )

    def changed_tests(self) -> dict[str, set[str]]:
        """Return the files of one's own tests that were edited since, and the launches of before.

        A case that has no result holds nothing: it may have failed, and be mended.
        """
        found: dict[str, set[str]] = {}
        digests = {}
        for path in (Path(test.partition("::")[0]) for test in self.campaign.tests):
            for file in path.rglob("test_*.py") if path.is_dir() else [path]:
                digests[file] = hashlib.sha256(file.read_bytes()).hexdigest()
        for name in self.results.names():
            for case, entry in journal.measured(self.results.journal(name)).items():
                then = entry.get("extra_info", {}).get(KEY, {}).get("workload_sha256")
                # A case of a size has its workload in the digest as well: its ranks compare that.
                if "workload=" in case or not then:
                    continue
                named = Path(case.partition("::")[0]).name
                alike = {file: digest for file, digest in digests.items() if file.name == named}
                if then not in alike.values():
                    for file in alike:
                        found.setdefault(str(file), set()).add(name)
        return found

    def to_replace(self, named: Sequence[str], *, replace: bool) -> list[str]:
        """Return the launches to measure again: those named, or all that there are to `replace`.

        Where measuring all again was cut short, it goes on with what is missing.

        Raises:
            ValueError: No launch has a name, or tests were edited and `replace` is not given.
        """
        names = self.results.names()
        if unknown := sorted(set(named) - set(names)):
            raise ValueError(
                f"--replace-launch: {self.folder} holds no launch {listed(unknown)}; it holds "
                f"{listed(names, 8) or 'none'}"
            )
        changed = self.changed_tests()
        if replace:
            is_new = changed or self.results.held(self.campaign) or not self.is_cut_short()
            return names if is_new else sorted(named)
        if launches := sorted(set[str]().union(*changed.values()) - set(named)):
            raise ValueError(
                f"{listed(sorted(changed), 3)} changed after {listed(launches, 3)} of "
                f"{self.folder} measured it; give --name for a folder of what the tests measure "
                "now, or --replace to move all launches aside, measure again and compare"
            )
        return sorted(named)

    def set_aside(self, launches: Sequence[str]) -> Path:
        """Move launches into a folder of their own beside those that count, and return it.

        All launches are moved as a campaign that `lockstep report` and `compare` read.
        """
        aside = self.folder / "replaced" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        (aside / "launches").mkdir(parents=True)
        if {*launches} == {*self.results.names()} and self.results.claim_file.exists():
            shutil.copy(self.results.claim_file, aside)
        for name in launches:
            self.results.launch(name).rename(Folder(aside).launch(name))
        return aside

    # What the launches have measured.

    def only_skip(self) -> str:
        """Return why the first case was skipped where no case was measured; else nothing."""
        reasons: list[str] = []
        for launch in plan(self.campaign):
            document = journal.rebuild(self.results.journal(launch.name))
            if document["benchmarks"]:
                return ""
            reasons += [str(skip["reason"]) for skip in document[KEY]["skipped"]]
        return next(iter(reasons), "")

    def step_times(self, launches: Sequence[Launch]) -> dict[str, dict[int, list[float]]]:
        """Return case -> world size -> median seconds per step of each of these launches."""
        times: dict[str, dict[int, list[float]]] = {}
        for launch in launches:
            path = self.results.journal(launch.name)
            if not journal.outcomes(path):
                continue
            for entry in journal.rebuild(path)["benchmarks"]:
                try:
                    name, steps = case_name(entry), entry["extra_info"][KEY]["steps_per_round"]
                    step_s = float(entry["stats"]["median"] / steps)
                except (KeyError, TypeError, ValueError, ZeroDivisionError):
                    raise ValueError(
                        f"{path}: a case line has no median of its steps; the journal is corrupt"
                    ) from None
                times.setdefault(name, {}).setdefault(launch.world_size, []).append(step_s)
        return times


def left_ranks(torchrun_pid: int) -> tuple[LeftRank, ...]:
    """Return which ranks of a launch on this machine still run."""
    ranks = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(torchrun_pid).children():
            with contextlib.suppress(psutil.Error):
                rank = process.environ().get("RANK", "")
                if rank.isdecimal():
                    is_stopped = process.status() == psutil.STATUS_STOPPED
                    ranks.append(LeftRank(int(rank), is_stopped))
    return tuple(sorted(ranks, key=lambda left: left.rank))


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
            if host not in ("", hostname()) or processes.runs(process):
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
