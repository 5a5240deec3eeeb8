"""Soak the suite in kills: campaigns, of whose processes one after another is struck at random.

Ranks, torchrun, the driver and data workers on this machine; `make faults` strikes what Slurm
starts. What was struck is resumed until it is complete. No finished case may be lost, doubled or
mixed with another attempt's, every file must be valid and no process may stay behind.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from launched import FEW_PLUGINS, read_lines  # noqa: E402

from lockstep.core import journal  # noqa: E402

# Ranks that wait for a frozen one shall not wait for minutes, nor for hypothesis at their end.
PYTEST_OPTIONS = f"--comm-timeout=20 --case-budget=60 {FEW_PLUGINS}"
CAMPAIGN = """schema = 1
name = "soak"
studies = ["weak", "loader", "accumulation"]
world_sizes = [1, 2]
repeats = 1
size = "smoke"
device = "cpu"
threads_per_rank = 1
rounds = 10
steps_per_round = 5
workload = "mlp:width=64,depth=2"
"""
VICTIMS = {"rank": 4, "worker": 2, "torchrun": 2, "driver": 2}
SIGNALS = {"SIGKILL": 4, "SIGSTOP": 2, "SIGTERM": 1, "SIGINT": 1}
KILLS_A_RUN = (6, 4, 2)  # of one campaign; the runs after these are left alone
VICTIM_WAIT_S = 10.0
DELAYS_S = {"rank": 9.0, "torchrun": 9.0, "driver": 9.0, "worker": 0.3}
FROZEN_S = 8.0
PATIENCE_S = 360.0  # a run that nothing disturbs for so long hangs, beside another lane too
LEFT_S = 180.0  # three time-outs and a budget: what a killed launch leaves has ended by then
POLL_S = 0.1
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def fenced(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the last chain of sessions, each of the attempt that was its own."""
    kept: list[dict[str, Any]] = []
    attempt = None
    for line in read_lines(path):
        if line["kind"] == "launch":
            attempt = line["attempt"]
            kept = kept if line["resumed"] else []
        if line["attempt"] == attempt:
            kept.append(line)
    return kept


@dataclass
class Watch:
    """A campaign's folder, and what it held when it was last looked at.

    The journals are read by rules of their own, not by the suite's reader, which is judged by them.

    Attributes:
        folder: The campaign's results.
        finished: Launch -> its cases that were measured.
    """

    folder: Path
    finished: dict[str, set[str]] = field(default_factory=dict)

    def look(self) -> list[str]:
        """Return what is wrong now, each as `lost`, `doubled`, `mixed` or `invalid: ...`.

        Ranks may be writing: a copy is looked at, which stands still.
        """
        wrong = []
        for path in sorted(self.folder.glob("launches/*/journal.jsonl")):
            with tempfile.TemporaryDirectory(prefix="lockstep-soak-look-") as still:
                # The result first: it is made of the journal, which may grow meanwhile.
                for file in (path.with_name("result.json"), path):
                    if file.exists():
                        shutil.copy(file, still)
                try:
                    found = list(self._compare(path.parent.name, Path(still)))
                except (ValueError, KeyError, TypeError) as error:
                    found = [f"invalid: {error!r}"]
            wrong += [f"{one} in {path.parent.name}" for one in found]
        return wrong

    def _compare(self, name: str, folder: Path) -> Iterator[str]:
        lines = fenced(folder / "journal.jsonl")
        measured = [line["case"] for line in lines if line["kind"] == "case"]
        before = self.finished.get(name, set())
        yield from (f"lost: {case}" for case in sorted(before - set(measured)))
        yield from (f"doubled: {case}" for case, count in Counter(measured).items() if count > 1)
        self.finished[name] = before | set(measured)
        if lines:
            yield from _rebuilt(folder, lines)
        result = folder / "result.json"
        if result.exists():
            kept = [line.get("benchmark") for line in lines]
            for entry in json.loads(result.read_text(encoding="utf-8"))["benchmarks"]:
                if entry not in kept:
                    yield f"invalid: the journal lacks {entry['fullname']} of the result"

    def unfinished(self) -> list[str]:
        """Return the cases that are neither measured nor skipped, as `launch: case`."""
        found = []
        for path in sorted(self.folder.glob("launches/*/journal.jsonl")):
            lines = fenced(path)
            heads = [line for line in lines if line["kind"] == "launch"]
            ended = {line["case"] for line in lines if line["kind"] in ("case", "skip")}
            expected = heads[-1]["expected"] if heads else ["no launch"]
            found += [f"{path.parent.name}: {case}" for case in expected if case not in ended]
        return found


def _rebuilt(folder: Path, lines: list[dict[str, Any]]) -> Iterator[str]:
    """Compare what the suite makes of a journal with its lines."""
    last = {line["case"]: line for line in lines if line["kind"] in ("case", "skip", "fail")}
    expected = [line["benchmark"] for line in last.values() if line["kind"] == "case"]
    entries = journal.rebuild(folder / "journal.jsonl")["benchmarks"]
    names = Counter(entry["fullname"] for entry in entries)
    yield from (f"doubled: {name}, rebuilt" for name, count in names.items() if count > 1)
    yield from (f"mixed: {entry['fullname']}" for entry in entries if entry not in expected)


@dataclass
class Local:
    """A campaign on this machine, whose driver is started again and again.

    Attributes:
        budget: How many processes may be struck.
        kills: (victim, signal) -> how many were struck.
        said: What was wrong.
    """

    folder: Path
    random: Random
    budget: int
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Kill and resume until the campaign is complete, or hangs."""
        (self.folder / "soak.toml").write_text(CAMPAIGN, encoding="utf-8")
        self.watch = Watch(self.folder / "results" / "soak")
        done, planned = False, iter(KILLS_A_RUN)
        while not done:
            driver = self._start()
            struck = self._strike_again_and_again(driver, next(planned, 0))
            done = self._end(driver, struck)
        self.said += [f"complete, but for {case}" for case in self.watch.unfinished()]

    def _start(self) -> psutil.Popen:
        environ = os.environ | {"PYTEST_ADDOPTS": PYTEST_OPTIONS, "OMP_NUM_THREADS": "1"}
        with (self.folder / "driver.txt").open("ab") as log:
            return psutil.Popen(
                [sys.executable, "-m", "lockstep", "run", "soak.toml"],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _strike_again_and_again(self, driver: psutil.Popen, num_kills: int) -> str:
        """Return what was struck last, or nothing."""
        struck = ""
        for _ in range(min(num_kills, self.budget - self.kills.total())):
            victim, name = _draw(self.random, VICTIMS), _draw(self.random, SIGNALS)
            process = self._await(driver, victim)
            if process is None:
                continue
            time.sleep(self.random.uniform(0, DELAYS_S[victim]))
            if not strike(process, name, self.random):
                continue
            struck = f"{name} of a {victim}"
            self.kills[victim, name] += 1
            time.sleep(self.random.uniform(0, 1))
            self.said += [f"{one}, after {struck}" for one in self.watch.look()]
            if victim == "driver" and driver.poll() is not None:
                break
        return struck

    def _await(self, driver: psutil.Popen, victim: str) -> psutil.Process | None:
        give_up = time.monotonic() + VICTIM_WAIT_S
        while driver.poll() is None and time.monotonic() < give_up:
            if found := [process for process, kind in _kinds(driver) if kind == victim]:
                return self.random.choice(found)
            time.sleep(POLL_S / 5)
        return None

    def _end(self, driver: psutil.Popen, struck: str) -> bool:
        """Wait for a run's end, judge it, and return whether the campaign is complete."""
        wrong = []
        try:
            driver.wait(PATIENCE_S)
        except psutil.TimeoutExpired:
            wrong.append(f"hung: {[f'{kind} {p.pid} {p.status()}' for p, kind in _kinds(driver)]}")
            driver.kill()
            driver.wait()
        give_up = time.monotonic() + LEFT_S
        while (left := _alive()) and time.monotonic() < give_up:
            time.sleep(POLL_S)
        wrong += [f"left: {end(process)}" for process in left]
        wrong += self.watch.look()
        if not struck and driver.returncode:
            wrong.append(f"the run ended with {driver.returncode}")
        self.said += [f"{one}, after {struck or 'nothing'}" for one in wrong]
        return not struck or driver.returncode == 0


def _draw(random: Random, weights: dict[str, int]) -> str:
    return random.choices(list(weights), list(weights.values()))[0]


def strike(process: psutil.Process, name: str, random: Random) -> bool:
    """Send a signal, and return whether there was still somebody to get it.

    What is frozen thaws after a while, or is killed, unless its launcher has killed it by then.
    """
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False  # it would take any signal, and has ended
        process.send_signal(getattr(signal, name))
    except psutil.NoSuchProcess:
        return False
    if name == "SIGSTOP":
        time.sleep(random.uniform(0, FROZEN_S))
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(random.choice((signal.SIGCONT, signal.SIGKILL)))
    return True


def end(process: psutil.Process) -> str:
    """Kill a process that should have ended by itself, and return which it was."""
    said = f"{process.pid} {_command(process)[:200]}"
    with contextlib.suppress(psutil.Error):  # which it may do still
        process.kill()
    return said


def _command(process: psutil.Process) -> str:
    """Return a process's command line, or a question mark where it has none any more."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"


def _kinds(driver: psutil.Popen) -> Iterator[tuple[psutil.Process, str]]:
    yield psutil.Process(driver.pid), "driver"
    for launcher in _children(driver):
        if "torch.distributed.run" not in _command(launcher):
            continue
        yield launcher, "torchrun"
        for rank in _children(launcher):
            if "pytest" in _command(rank):
                yield rank, "rank"
                yield from ((one, "worker") for one in _children(rank))


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.NoSuchProcess:
        return []


def _alive() -> list[psutil.Process]:
    """Return what runs of this process's descendants: what loses its parent becomes its child."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                process.wait(0)
            else:
                found.append(process)
        except psutil.Error:
            continue
    return found


def main() -> int:
    """Make campaigns until so many processes were struck; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    asked = parser.parse_args()
    # A shell's background job ignores SIGINT, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    started, number, kills, num_wrong = time.monotonic(), 0, Counter[tuple[str, str]](), 0
    while (left := asked.kills - kills.total()) > 0:
        with tempfile.TemporaryDirectory(prefix="lockstep-soak-") as folder:
            random = Random(f"{asked.seed}/{number}")  # noqa: S311, no secret
            campaign = Local(Path(folder), random, left)
            campaign.run()
        number, kills = number + 1, kills + campaign.kills
        num_wrong += len(campaign.said)
        sys.stdout.write("".join(f"{line}\n" for line in campaign.said))
        took = f"{time.monotonic() - started:.0f} s"
        sys.stdout.write(f"{kills.total()} kills, {number} campaigns, {num_wrong} wrong, {took}\n")
        sys.stdout.flush()
    counts = [f"{name} of a {victim} {count}" for (victim, name), count in sorted(kills.items())]
    sys.stdout.write(f"{', '.join(counts)}\n")
    return int(num_wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
