"""Launches of real ranks from a copy of the suite, whose one measured file breaks as it is told."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "tests" / "samples"
# Of a healthy case, which takes a fraction of a second, on two cores that do other things as well.
BUDGET_S = 9.0
PATIENCE_S = 120.0
CAMPAIGN = """
schema = 1
name = "fault"
studies = ["weak"]
repeats = 1
size = "smoke"
device = "cpu"
threads_per_rank = 1
"""
# Each session would import these: at its end all of hypothesis, a third of what its start costs.
FEW_PLUGINS = "-p no:hypothesispytest -p no:anyio"
OPTIONS = (
    *("--size=smoke", "--device=cpu", "--threads-per-rank=1"),
    *(f"--case-budget={BUDGET_S:g}", "--journal=out.journal.jsonl", "--benchmark-json=out.json"),
)


@dataclass(frozen=True)
class Ended:
    """What is left of a launch.

    Attributes:
        codes: Exit codes: of each rank, or of `lockstep run` alone.
        said: All that was printed, by ranks, torchrun and lockstep.
        lines: The journal.
        document: The JSON; empty where there is none, or an empty file.
        told: Rank -> case -> its phases that did not pass, as that rank's pytest reported them.
        num_left: Processes that still run.
    """

    codes: list[int]
    said: str
    lines: list[dict[str, Any]]
    document: dict[str, Any]
    told: dict[int, dict[str, list[str]]]
    num_left: int

    def ends(self, kind: str) -> dict[str, str]:
        """Return short case name -> reason of the lines of one kind, the last of each case."""
        return {
            short(line["case"]): line.get("reason", "")
            for line in self.lines
            if line["kind"] == kind
        }

    @property
    def measured(self) -> list[str]:
        return [short(one["name"]) for one in self.document.get("benchmarks", ())]

    def line(self, pattern: str) -> str:
        """Return the first line that was printed and holds a pattern, or nothing."""
        found = re.search(rf"^.*{pattern}.*$", self.said, re.MULTILINE)
        return found[0].strip() if found else ""


def short(case: str) -> str:
    return case.rpartition("::")[2].partition("[")[0]


def copy_suite(folder: Path) -> None:
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("test_*", "*.pyc.*")  # the last are being written
    for room in ("bench", "lockstep", "reports"):
        shutil.copytree(ROOT / room, folder / room, ignore=ignored)


def suite(folder: Path, case: Path = SAMPLES / "faulted_cases.py") -> None:
    """Copy what measures into a folder, with one file of cases in the place of the suite's own."""
    copy_suite(folder)
    shutil.copy(case, folder / "bench" / "test_faulted.py")
    shutil.copy(SAMPLES / "telling_conftest.py", folder / "bench" / "conftest.py")


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder as an author of its own, outside of any hook; return what it prints."""
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    return done.stdout.strip()


def environ(folder: Path, **own: str) -> dict[str, str]:
    """Return variables without those of a launcher or of pytest, and with what tests need."""
    foreign = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "SLURM_", "LOCKSTEP_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    usual = {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": FEW_PLUGINS}
    return kept | usual | {"PYTHONPATH": str(folder)} | own


@dataclass
class Started:
    """Processes of one launch, and what they write."""

    folder: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start one process in a session of its own, whose output goes to a file."""
        with (self.folder / f"out-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def wait(self) -> None:
        until(
            lambda: None not in [process.poll() for process in self.processes],
            "the end of the launch",
        )

    def _journals(self) -> Iterator[Path]:
        return self.folder.glob("**/*journal.jsonl")

    def _texts(self) -> Iterator[bytes]:
        logs = [*sorted(self.folder.glob("out-*.log")), *self.folder.glob("**/log.txt")]
        return (path.read_bytes() for path in logs)

    def ended(self) -> Ended:
        return Ended(
            codes=[process.returncode for process in self.processes],
            said=b"\n".join(self._texts()).decode(errors="replace"),
            lines=[line for path in self._journals() for line in read_lines(path)],
            document=self._document(),
            told=self._told(),
            num_left=len(inside(self.folder)),
        )

    def _document(self) -> dict[str, Any]:
        paths = [*self.folder.glob("**/out.json"), *self.folder.glob("results/**/result.json")]
        found = [json.loads(path.read_text()) for path in paths if path.stat().st_size]
        return dict(found[0]) if found else {}

    def _told(self) -> dict[int, dict[str, list[str]]]:
        told: dict[int, dict[str, list[str]]] = {}
        for path in sorted(self.folder.glob("told-*.jsonl")):
            own = told.setdefault(int(path.stem.removeprefix("told-")), {})
            for line in read_lines(path):
                phases = own.setdefault(short(line["case"]), [])
                if line["outcome"] != "passed":
                    phases.append(f"{line['when']} {line['outcome']}")
        return told


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def until(
    holds: Callable[[], Any], what: str, patience_s: float = PATIENCE_S, poll_s: float = 0.05
) -> Any:
    """Wait until something holds, and return that."""
    deadline = time.monotonic() + patience_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {patience_s:g} s in vain for {what}")
        time.sleep(poll_s)
    return found


def again_if_disturbed(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test of measured causes hold in one of three runs: other tests take its cores."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        for _ in range(2):
            try:
                return test(*args, **kwargs)
            except AssertionError:
                pass
        return test(*args, **kwargs)

    return run


@contextmanager
def started(folder: Path) -> Iterator[Started]:
    launch = Started(folder)
    try:
        yield launch
    finally:
        for pid in inside(folder):
            kill(pid)
        for process in launch.processes:
            process.wait()


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def inside(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            is_inside = path.readlink() == folder.resolve()
        except OSError:  # it has ended, or is the kernel's
            continue
        if is_inside:
            found.append(int(path.parent.name))
    return found


def ladder(folder: Path, fault: str, **env: str) -> Ended:
    """Measure by `lockstep run`, which starts a launch again after a crash."""
    suite(folder)
    with started(folder) as launch:
        begin_ladder(launch, fault, **env)
        launch.wait()
        return launch.ended()


def begin_ladder(
    launch: Started,
    fault: str,
    *options: str,
    ranks: int = 2,
    budget_s: float = BUDGET_S,
    **env: str,
) -> "subprocess.Popen[bytes]":
    own = f"world_sizes = [{ranks}]\ncase_budget = {budget_s:g}\n"
    (launch.folder / "fault.toml").write_text(CAMPAIGN + own)
    command = [sys.executable, "-m", "lockstep", "run", "fault.toml", *options]
    return launch.start(command, environ(launch.folder, FAULT=fault, **env))


def alone(
    folder: Path, fault: str, *options: str, bench_of_rank_1: str = "bench", **env: str
) -> Ended:
    """Measure by two ranks that no launcher ends when the other has ended."""
    with started(folder) as launch, store(folder) as (address, pid):
        for rank, bench in enumerate(("bench", bench_of_rank_1)):
            variables = {
                "LOCKSTEP_STORE": address,
                "LOCKSTEP_STORE_PREFIX": "launch",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "PYTHONPATH": str((folder / bench).parent),
            }
            own = environ(folder, FAULT=fault, FAULT_STORE=str(pid)) | variables | env
            launch.start([sys.executable, "-m", "pytest", bench, *OPTIONS, *options], own)
        launch.wait()
        return launch.ended()


@contextmanager
def store(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a store outside the ranks, as a job script does: its address and its process."""
    path = folder / "store"
    path.unlink(missing_ok=True)  # of a launch before this one
    serve = [*("-m", "lockstep.ranks.store", "--host", "127.0.0.1"), "--address-file", str(path)]
    with subprocess.Popen(
        [sys.executable, *serve], cwd=folder, env=environ(folder), stdin=subprocess.PIPE
    ) as process:
        try:
            until(path.exists, "the store")
            yield path.read_text().strip(), process.pid
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def printed_by_two(script: str, folder: Path) -> list[Any]:
    """Return what each of two processes prints last, a line of JSON; they meet in a file."""
    (folder / "script.py").write_text(script)
    rendezvous = f"file://{folder / 'store'}"
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "script.py", str(rank), rendezvous],
            cwd=folder, stdout=subprocess.PIPE, env=environ, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    return [json.loads(rank.communicate(timeout=300)[0].splitlines()[-1]) for rank in ranks]
