"""The local ladder: one torchrun launch per world size and repeat, resumable at any time."""

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

from lockstep.campaign import next as sessions
from lockstep.campaign.campaign import Campaign, Launch, LeftOut, common_options, own_options, plan
from lockstep.campaign.floor import find_missed
from lockstep.campaign.folder import USUAL_BUDGET_S, Folder, Outcome
from lockstep.campaign.launcher import local_environment, pytest_command
from lockstep.campaign.next import Ended, Hang, HangKind, LeftRank
from lockstep.core import journal, locks, processes
from lockstep.core.formats import listed, number
from lockstep.core.processes import hostname
from lockstep.core.record import KEY

POLL_S = 1.0
ORPHAN_S = 60.0
OnProgress = Callable[[Launch, Outcome], None]
# Least time limit of a rank between two cases, as in launch/session.py.
LEAST_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Ladder:
    """A campaign and the folder of its results."""

    campaign: Campaign
    folder: Path
    left_out: tuple[LeftOut, ...] = ()  # world sizes that this machine cannot measure
    lock: int | None = None  # descriptor of the folder's lock, which launches hold while they write
    options: tuple[str, ...] = ()  # further options of every launch

    @property
    def results(self) -> Folder:
        return Folder(self.folder)

    def outcome(self, launch: Launch) -> Outcome:
        return self.results.outcome(launch.name, self.campaign.studies)

    def missing(self, aside: Collection[str] = ()) -> list[Launch]:
        return self.results.missing(self.campaign, plan(self.campaign), aside)

    def write_results(self) -> None:
        """Write each JSON again that lacks cases of its journal, for example after a full disk."""
        for launch in plan(self.campaign):
            path = self.results.journal(launch.name)
            if path.exists() and journal.is_ahead(path, self.results.result(launch.name)):
                self.results.write_result(launch.name)

    def claim(self) -> None:
        self.results.claim(self.campaign, plan(self.campaign), self.left_out)

    def find_missed(self, launch: Launch) -> str | None:
        """Return why the ladder ends: a smaller world size missed `until_efficiency`."""
        floor = self.campaign.until_efficiency
        return find_missed(self.folder / "launches", launch.world_size, floor) if floor else None

    def leave_out(self, world_sizes: Collection[int]) -> None:
        """Record in the folder that the ladder ended before these world sizes."""
        beyond = [LeftOut(size, kind="below_floor") for size in sorted(world_sizes)]
        launches = [each for each in plan(self.campaign) if each.world_size not in world_sizes]
        self.results.claim(self.campaign, launches, [*self.left_out, *beyond])

    def command(self, launch: Launch, options: Sequence[str] = ()) -> list[str]:
        start = pytest_command(self.campaign, launch.world_size)
        if self.campaign.command:
            driver = [sys.executable, "-m", "lockstep.campaign.program"]
            start = [*driver, f"--world-size={launch.world_size}"]
        return [
            *start, *common_options(self.campaign), *own_options(launch), *self.options,
            *("--resume", "--journal", str(self.results.journal(launch.name))), *options,
        ]  # fmt: skip

    def run(self, launch: Launch, on_progress: OnProgress) -> Outcome:
        """Run sessions of a launch while each finishes a case, and return the launch's outcome."""
        follows = sessions.Next("again")
        while follows.kind == "again":
            ended = self._start(launch, on_progress, follows.options)
            follows = sessions.decide(ended.facts)
        return replace(self.outcome(launch), ended=ended)

    def _start(self, launch: Launch, on_progress: OnProgress, options: Sequence[str]) -> Ended:
        folder = self.results.launch(launch.name)
        folder.mkdir(parents=True, exist_ok=True)
        before, path = sessions.mark(folder), self.results.log_file(launch.name)
        with path.open("ab") as log:
            process = subprocess.Popen(
                self.command(launch, options), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
                env=local_environment(os.environ, self.campaign.threads_per_rank or 1),
                preexec_fn=processes.die_with_parent,
                pass_fds=() if self.lock is None else (self.lock,),
            )  # fmt: skip
            try:
                hung = self._wait(process, launch, on_progress)
            finally:
                processes.end_tree(process, ORPHAN_S)
                self.results.write_result(launch.name)
        code = process.returncode
        starter = "its driver" if self.campaign.command else "torchrun"
        why = sessions.words_of(folder, before, by_slurm=False) or f"{starter} ended with {code}"
        return Ended(sessions.gather(folder, before, str(hung or why)), code, hung)

    def _wait(
        self, process: "subprocess.Popen[bytes]", launch: Launch, on_progress: OnProgress
    ) -> Hang | None:
        """Wait until a launch ends; return a `Hang` if its journal does not grow for too long.

        The limit is twice the ranks' own limit, because user code may disable the latter.
        """
        path, outcome = self.results.journal(launch.name), Outcome(launch.name)
        seen_bytes, seen_s = -1, time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
            # The ranks need the cores, so the journal is read only when it has grown.
            size_bytes = path.stat().st_size if path.exists() else 0
            if size_bytes != seen_bytes:
                seen_bytes, seen_s = size_bytes, time.monotonic()
                outcome = self.outcome(launch)
                on_progress(launch, outcome)
            if process.returncode is not None:
                return None
            if outcome.complete:  # all cases are kept, so the ranks may be ended early
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

    @property
    def earlier(self) -> Folder | None:
        """The campaign that `set_aside` last moved as a whole, or None."""
        claims = sorted(self.folder.glob("replaced/*/campaign.json"))
        return Folder(claims[-1].parent) if claims else None

    def is_cut_short(self) -> bool:
        """Return whether a launch that was moved aside still has to be measured again."""
        names = self.earlier.names() if self.earlier else []
        outcomes = [self.outcome(each) for each in self.missing() if not self.find_missed(each)]
        return any(each.name in names and not each.failed for each in outcomes)

    def other_commit(self) -> str:
        """Return a warning if launches measured another commit of the user's own tests."""
        paths = [Path(test.partition("::")[0]) for test in self.campaign.tests]
        here = {processes.git_state(path if path.is_dir() else path.parent)[0] for path in paths}
        heads = [journal.read(self.results.journal(name))[:1] for name in self.results.names()]
        measured = [(head[0].get("launch") or {}).get("provenance") or {} for head in heads if head]
        commits = {str(facts.get("project_commit")) for facts in measured}
        others = commits - {*map(str, here), "None"}
        if not others or not here or None in here:
            return ""
        old, new = listed(sorted(others)), listed(sorted(map(str, here)))
        return (
            f"Warning: {self.folder} holds launches of commit {old}, but your tests are now at "
            f"commit {new}; pass --name to measure commit {new} into another folder, then compare "
            "the two folders"
        )

    def changed_tests(self) -> dict[str, set[str]]:
        """Return test file -> the launches that measured the file before it was edited."""
        changed: dict[str, set[str]] = {}
        digests = {}
        for path in (Path(test.partition("::")[0]) for test in self.campaign.tests):
            for file in path.rglob("test_*.py") if path.is_dir() else [path]:
                digests[file] = hashlib.sha256(file.read_bytes()).hexdigest()
        for name in self.results.names():
            for case, entry in journal.measured(self.results.journal(name)).items():
                then = entry.get("extra_info", {}).get(KEY, {}).get("workload_sha256")
                # With a workload, the digest also contains the workload, which ranks compare.
                if "workload=" in case or not then:
                    continue
                named = Path(case.partition("::")[0]).name
                alike = {file: digest for file, digest in digests.items() if file.name == named}
                if then not in alike.values():
                    for file in alike:
                        changed.setdefault(str(file), set()).add(name)
        return changed

    def choose_replaced(self, named: Sequence[str], *, replace: bool) -> list[str]:
        """Return the launches to measure again: the `named` ones, or all with `replace`.

        An interrupted `replace` continues. Without `replace`, edited tests are refused.
        """
        names = self.results.names()
        if unknown := sorted(set(named) - set(names)):
            known = listed(names, 8) or "no launches"
            raise ValueError(
                f"--replace-launch: {self.folder} holds no launch {listed(unknown)}; the folder "
                f"holds {known}"
            )
        changed = self.changed_tests()
        if replace:
            conflicts = self.results.find_conflicts(self.campaign)
            is_new = changed or conflicts or not self.is_cut_short()
            return names if is_new else sorted(named)
        if launches := sorted(set[str]().union(*changed.values()) - set(named)):
            files, measured = listed(sorted(changed), 3), listed(launches, 3)
            raise ValueError(
                f"the test file {files} changed after the launch {measured} in {self.folder} was "
                "measured; pass --name to measure into another folder, or --replace to move all "
                "launches aside, measure again and compare"
            )
        return sorted(named)

    def set_aside(self, launches: Sequence[str]) -> Path:
        """Move launches to `replaced/TIME`; if these are all launches, with the campaign."""
        aside = self.folder / "replaced" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        (aside / "launches").mkdir(parents=True)
        if {*launches} == {*self.results.names()} and self.results.claim_file.exists():
            shutil.copy(self.results.claim_file, aside)
        for name in launches:
            self.results.launch(name).rename(Folder(aside).launch(name))
        return aside

    def only_skip(self) -> str:
        """Return why the first case was skipped, if no case was measured; else an empty text."""
        reasons: list[str] = []
        for launch in plan(self.campaign):
            document = journal.rebuild(self.results.journal(launch.name))
            if document["benchmarks"]:
                return ""
            reasons += [str(skip["reason"]) for skip in document[KEY]["skipped"]]
        return next(iter(reasons), "")

    def first_step(self, launch: Launch) -> str:
        """Return `CASE: N ms a step` for the first measured case, or an empty text."""
        with contextlib.suppress(KeyError, TypeError, ZeroDivisionError):  # a corrupt line
            for case, entry in journal.measured(self.results.journal(launch.name)).items():
                step_s = entry["stats"]["median"] / entry["extra_info"][KEY]["steps_per_round"]
                test, _, factors = case.rpartition("::")[2].partition("[")
                test = test if self.campaign.tests else test.removeprefix("test_")
                name = f"{test} {factors.rstrip(']').replace('-', ', ')}".strip()
                step_ms = number(step_s * 1e3)
                return f"{name} takes {step_ms} ms per step"
        return ""


def left_ranks(torchrun_pid: int) -> tuple[LeftRank, ...]:
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
    folder: Path,
    on_wait: Callable[[], None] = lambda: None,
    otherwise: str = "pass --to another folder",
) -> Iterator[int]:
    """Hold the campaign's lock, and yield its descriptor, so that launches also hold the lock.

    It waits for a launch that a killed command left behind, and refuses if a command still runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    with path.open("a", encoding="utf-8") as lock:
        if not locks.take(lock):
            process, host, _ = locks.holder(path)
            # A process of another host may still run: this host cannot see whether it does.
            if host not in ("", hostname()) or processes.runs(process):
                raise ValueError(f"{locks.name_holder(folder)}, or {otherwise}")
            on_wait()
            if not locks.take(lock, ORPHAN_S):
                raise RuntimeError(
                    f"a launch of a killed lockstep run still writes into {folder}; end the "
                    f"torchrun process of that launch, or {otherwise}"
                )
        locks.sign(lock)
        # A forked process closes the lock's own file, so the descriptor is a copy.
        held = os.dup(lock.fileno())
        try:
            yield held
        finally:
            os.close(held)
