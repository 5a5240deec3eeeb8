"""Soak the suite in kills: campaigns, of whose processes one after another is struck at random.

Ranks, torchrun, the driver and data workers on this machine; `make faults` strikes what Slurm
starts. What was struck is resumed until it is complete. No finished case may be lost, doubled or
mixed with another attempt's, every file must be valid and no process may stay behind.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from launched import NO_HYPOTHESIS  # noqa: E402, this script's own folder
from soak_check import WRONGS, Watch, command, end, strike  # noqa: E402

# Ranks that wait for a frozen one shall not wait for minutes, nor for hypothesis at their end.
PYTEST_OPTIONS = f"--comm-timeout=20 --case-budget=60 {NO_HYPOTHESIS}"
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
PATIENCE_S = 180.0  # a run that nothing disturbs for so long hangs
LEFT_S = 180.0  # three time-outs and a budget: what a killed launch leaves has ended by then
POLL_S = 0.1
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
COLUMNS = (*WRONGS, "left", "hung")

Row = tuple[str, str]


@dataclass
class Table:
    """What the kills came to, by victim and signal."""

    kills: Counter[Row] = field(default_factory=Counter)
    wrong: dict[Row, Counter[str]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    num_campaigns: int = 0

    def count(self, row: Row, wrong: Counter[str]) -> None:
        """Add to what is wrong after a kill."""
        self.wrong.setdefault(row, Counter()).update(wrong)

    @property
    def holds(self) -> bool:
        """Whether nothing was wrong."""
        return not self.said and not any(count.total() for count in self.wrong.values())

    def __str__(self) -> str:
        rows = [["victim", "signal", "kills", *COLUMNS]]
        for row, count in sorted(self.kills.items()):
            wrong = self.wrong.get(row, Counter())
            rows.append([*row, str(count), *(str(wrong[name]) for name in COLUMNS)])
        total = Counter[str]()
        for wrong in self.wrong.values():
            total += wrong
        sums = (str(total[name]) for name in COLUMNS)
        rows.append(["all", "", str(self.kills.total()), *sums])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        cells = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
        return "\n".join("  ".join(row).rstrip() for row in cells)


@dataclass
class Local:
    """A campaign on this machine, whose driver is started again and again."""

    folder: Path
    random: Random
    table: Table
    budget: int
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "soak.toml").write_text(CAMPAIGN, encoding="utf-8")
        self.watch = Watch(self.folder / "results" / "soak")

    def run(self) -> None:
        """Kill and resume until the campaign is complete, or hangs."""
        done, planned = False, iter(KILLS_A_RUN)
        while not done:
            num_kills = min(next(planned, 0), self.budget)
            driver = self._start()
            row = self._strike_again_and_again(driver, num_kills)
            done = self._end(driver, row)
        self.table.num_campaigns += 1
        for case in self.watch.unfinished():
            self.table.said.append(f"complete, but for {case}")
        self.table.said += self.watch.said

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

    def _strike_again_and_again(self, driver: psutil.Popen, num_kills: int) -> Row | None:
        row = None
        for _ in range(num_kills):
            victim, name = _draw(self.random, VICTIMS), _draw(self.random, SIGNALS)
            process = _await(lambda v=victim: self._find(driver, v), driver)
            if process is None:
                continue
            time.sleep(self.random.uniform(0, DELAYS_S[victim]))
            if not strike(process, name, self.random):
                continue
            row = victim, name
            self.budget -= 1
            self.table.kills[row] += 1
            time.sleep(self.random.uniform(0, 1))
            self.table.count(row, self.watch.look())
            if victim == "driver" and driver.poll() is not None:
                break
        return row

    def _find(self, driver: psutil.Popen, victim: str) -> psutil.Process | None:
        found = [one for one, kind in _kinds(driver) if kind == victim]
        return self.random.choice(found) if found else None

    def _end(self, driver: psutil.Popen, row: Row | None) -> bool:
        """Wait for a run's end, judge it, and return whether the campaign is complete."""
        wrong: Counter[str] = Counter()
        try:
            driver.wait(PATIENCE_S)
        except psutil.TimeoutExpired:
            wrong["hung"] += 1
            self.table.said.append(f"the run hung after {row}: {_commands(driver)}")
            driver.kill()
            driver.wait()
        wrong["left"] += self._end_the_rest(row)
        wrong += self.watch.look()
        if row:
            self.table.count(row, wrong)
        elif driver.returncode != 0:
            self.table.said.append(f"a run that nothing struck ended with {driver.returncode}")
            return True
        elif wrong.total():
            self.table.said.append(f"wrong after a run that nothing struck: {dict(wrong)}")
        return row is None or bool(driver.returncode == 0)

    def _end_the_rest(self, row: Row | None) -> int:
        """Wait for what a run left behind, end what stays, and return how much that was."""
        give_up = time.monotonic() + LEFT_S
        while (left := _alive()) and time.monotonic() < give_up:
            time.sleep(POLL_S)
        self.table.said += [f"left after {row}: {end(process)}" for process in left]
        return len(left)


def _draw(random: Random, weights: dict[str, int]) -> str:
    return random.choices(list(weights), list(weights.values()))[0]


def _await(
    find: Callable[[], psutil.Process | None], driver: psutil.Popen
) -> psutil.Process | None:
    """Wait for a victim while the driver runs."""
    give_up = time.monotonic() + VICTIM_WAIT_S
    while driver.poll() is None and time.monotonic() < give_up:
        if found := find():
            return found
        time.sleep(POLL_S / 5)
    return None


def _kinds(driver: psutil.Popen) -> Iterator[tuple[psutil.Process, str]]:
    """Yield the processes of a run, and what each is."""
    yield psutil.Process(driver.pid), "driver"
    for launcher in _children(driver):
        if "torch.distributed.run" not in command(launcher):
            continue
        yield launcher, "torchrun"
        for rank in _children(launcher):
            if "pytest" in command(rank):
                yield rank, "rank"
                yield from ((one, "worker") for one in _children(rank))


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.NoSuchProcess:
        return []


def _commands(driver: psutil.Popen) -> list[str]:
    return [f"{kind} {process.pid} {process.status()}" for process, kind in _kinds(driver)]


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


def soak(kills: int, seed: int) -> Table:
    """Make campaigns on this machine until so many processes were struck."""
    table, number = Table(), 0
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    while (left := kills - table.kills.total()) > 0:
        with tempfile.TemporaryDirectory(prefix="lockstep-soak-") as folder:
            random = Random(f"{seed}/{number}")  # noqa: S311, no secret
            Local(Path(folder), random, table, left).run()
        number += 1
        _say(f"{table.kills.total()} kills, {table.num_campaigns} campaigns, {table.said[-3:]}")
    return table


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Strike as often as asked for and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    asked = parser.parse_args()
    # A shell's background job ignores SIGINT, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    table = soak(asked.kills, asked.seed)
    for sentence in table.said:
        _say(sentence)
    _say(f"{table}\n{table.num_campaigns} campaigns, {time.monotonic() - started:.0f} s")
    return 0 if table.holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
