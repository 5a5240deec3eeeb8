"""The testbed's share of the soak: a job's processes and Slurm's own are struck, one a job.

The testbed is one for all that runs on this machine: whoever strikes it holds `LOCK`.
"""

import fcntl
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psutil
from cluster import SHARED, STATE, TESTBED, USUAL_STATE, as_user
from soak_check import Watch, end, strike

if TYPE_CHECKING:
    from soak import Table

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path("/tmp/testbed.lock")  # noqa: S108, what others of this machine hold, too
CAMPAIGN = """schema = 1
name = "soak"
studies = ["weak", "loader", "collective"]
world_sizes = [2, 4]
repeats = 1
size = "smoke"
device = "cpu"
threads_per_rank = 1
rounds = 30
steps_per_round = 20
[jobs]
"""
PYTEST_OPTIONS = "--comm-timeout=20 --case-budget=60"
VICTIMS = {"rank": 4, "srun": 2, "slurmstepd": 2, "slurmd": 2, "batch script": 1, "store": 1}
SIGNALS = {"SIGKILL": 4, "SIGSTOP": 1, "SIGTERM": 1}
BEGIN_S = 60.0  # until a job has a process of every kind
DELAY_S = 12.0
END_S = 90.0  # a job that has not ended by then is cancelled
CANCEL_S = 90.0
POLL_S = 0.5
MOST_JOBS = 4  # of one campaign, the last of which nothing strikes


def soak(table: "Table", kills: int, seed: int) -> None:
    """Strike jobs of campaigns on the testbed until it was done so often."""
    before = table.kills.total()
    number = 0
    while (left := kills - table.kills.total() + before) > 0:
        with _alone():
            _campaign(table, min(left, MOST_JOBS), Random(f"slurm/{seed}/{number}"))  # noqa: S311
        number += 1


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the testbed, and leave it as it was found."""
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            _restore()


def _campaign(table: "Table", num_kills: int, random: Random) -> None:
    folder = _make_folder()
    watch = Watch(folder / "results" / "soak")
    try:
        _lockstep(folder, "submit", "campaign.toml", "--site", "site.toml")
        for _ in range(num_kills):
            row = _strike(watch, random)
            wrong = _await_end(folder, table, row)
            _restore()
            if row:
                table.kills[row] += 1
                table.count(row, wrong + watch.look())
            if not _resume(folder):
                break
        table.said += _finish(folder, watch)
    finally:
        _lockstep(folder, "cancel", "results/soak")
        shutil.rmtree(folder, ignore_errors=True)
    table.num_campaigns += 1


def _make_folder() -> Path:
    folder = SHARED / "soak"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    site = (ROOT / "slurm_templates" / "sites" / "testbed.toml").read_text(encoding="utf-8")
    site = site.replace(USUAL_STATE, str(STATE)) + f'PYTEST_ADDOPTS = "{PYTEST_OPTIONS}"\n'
    (folder / "site.toml").write_text(site, encoding="utf-8")
    (folder / "campaign.toml").write_text(CAMPAIGN, encoding="utf-8")
    subprocess.run(["chown", "--recursive", "lockstep", folder], check=True)
    return folder


def _lockstep(folder: Path, *arguments: str) -> Any:
    return as_user("lockstep", *arguments, cwd=folder)


def _strike(watch: Watch, random: Random) -> tuple[str, str] | None:
    """Strike one process of the job that runs, and return what it was and the signal."""
    victim = random.choices(list(VICTIMS), list(VICTIMS.values()))[0]
    name = random.choices(list(SIGNALS), list(SIGNALS.values()))[0]
    give_up = time.monotonic() + BEGIN_S
    while not (found := [one for one, kind in kinds() if kind == victim]):
        if time.monotonic() > give_up:
            return None
        time.sleep(POLL_S)
    time.sleep(random.uniform(0, DELAY_S))
    process = random.choice(found)
    watch.look()
    return (victim, name) if strike(process, name, random) else None


def kinds() -> Iterator[tuple[psutil.Process, str]]:
    """Yield the processes of the testbed's jobs and nodes, and what each is."""
    for process in psutil.process_iter(["name", "username", "cmdline", "status"]):
        name, command = process.info["name"], " ".join(process.info["cmdline"] or ())
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue  # it has ended, whatever its name
        if name in ("slurmd", "slurmstepd"):
            yield process, name
        elif process.info["username"] == "lockstep" and (kind := _kind(name, command)):
            yield process, kind


def _kind(name: str, command: str) -> str:
    if name == "srun":
        return "srun"
    if "slurm_script" in command:
        return "batch script"
    if "lockstep.ranks.store" in command and name.startswith("python"):
        return "store"
    return "rank" if re.search(r"python\S* .*pytest .*--journal", command) else ""


def _await_end(folder: Path, table: "Table", row: tuple[str, str] | None) -> Counter[str]:
    """Wait until the jobs have ended, with their processes; cancel those that do not."""
    wrong: Counter[str] = Counter()
    if not _have_ended(folder, END_S):
        _restore()  # a job whose node is lost ends once that is back
        if not _have_ended(folder, POLL_S):
            _lockstep(folder, "cancel", "results/soak")
        if not _have_ended(folder, CANCEL_S):
            wrong["hung"] += 1
            table.said.append(f"jobs do not end after {row}: {_states(folder)}")
    left = _left()
    table.said += [f"left after {row}: {end(process)}" for process in left]
    wrong["left"] += len(left)
    return wrong


def _have_ended(folder: Path, patience_s: float) -> bool:
    give_up = time.monotonic() + patience_s
    while states := _states(folder):
        if time.monotonic() > give_up:
            return False
        time.sleep(POLL_S * 2)
    return not states


def _states(folder: Path) -> list[str]:
    """Return the states of the user's jobs that Slurm still holds."""
    asked = subprocess.run(
        ["squeue", "--noheader", "--user=lockstep", "--format=%T %Z"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split()[0] for line in asked.stdout.splitlines() if str(folder) in line]


def _left() -> list[psutil.Process]:
    """Return what runs of jobs although none is there."""
    give_up = time.monotonic() + 40
    ours = ("srun", "batch script", "store", "rank")
    while left := [one for one, kind in kinds() if kind in ours]:
        if time.monotonic() > give_up:
            return left
        time.sleep(POLL_S)
    return []


def _restore() -> None:
    """Start the nodes' daemons that were killed, and take down no node that is up."""
    run = Path("/run/lockstep-testbed")
    for number in range(1, 5):
        path = run / f"node{number}.pid"
        pid = int(path.read_text() or 0) if path.exists() else 0
        if not runs(pid):
            subprocess.run([TESTBED / "node", "return", f"node{number}"], check=True)
    nodes = "node[1-4]"
    for state in ("idle", "resume"):
        subprocess.run(
            ["scontrol", "update", f"nodename={nodes}", f"state={state}"],
            capture_output=True,
            check=False,
        )


def runs(pid: int) -> bool:
    """Return whether a process runs: not one that has ended and waits to be reaped."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _resume(folder: Path) -> bool:
    """Send again what is missing, and return whether anything was."""
    return ": job " in _lockstep(folder, "resume", "results/soak").stdout


def _finish(folder: Path, watch: Watch) -> Iterator[str]:
    """Let the last jobs end undisturbed, and yield what is still wrong then."""
    for _ in range(3):
        _have_ended(folder, 4 * END_S)
        if not _resume(folder):
            break
    yield from (f"complete on the testbed, but for {case}" for case in watch.unfinished())
    yield from watch.said
