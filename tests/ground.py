"""Campaigns of one launch or two on the testbed, for faults to be put into."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cluster import IMAGE, SHARED, STATE, TESTBED, as_user

ROOT = Path(__file__).resolve().parent.parent
RUN = Path("/run/lockstep-testbed")
USER = "lockstep"
PATIENCE_S = 120.0
# The tests beside, in `make chaos`, have jobs on the same nodes.
QUEUE_PATIENCE_S = 400.0
Ended = subprocess.CompletedProcess[str]
CAMPAIGN = {
    "schema": 1,
    "name": "fault",
    "studies": ["strong", "weak"],
    "world_sizes": [2],
    "repeats": 1,
    "size": "smoke",
    "device": "cpu",
    "threads_per_rank": 1,
    "global_batch": 16,
    "workload": "gated:gated",
}


def missing() -> str | None:
    """Return what the rows lack here, or None."""
    if shutil.which("sinfo") is None:
        return "no Slurm is installed; tests/testbed/up brings the testbed up"
    asked = subprocess.run(["scontrol", "show", "config"], capture_output=True, check=False)
    if b"= testbed" not in asked.stdout:
        return "no testbed is up; tests/testbed/up brings it up"
    if os.geteuid() != 0:
        return "only root may harm the testbed's daemons"
    if not (STATE / "login").exists():
        return "the testbed's user has no Lockstep; tests/testbed/login installs it"
    return None if IMAGE.exists() else f"there is no {IMAGE}; tests/testbed/image builds it"


@cache
def suite() -> Path:
    """Return a copy of this checkout that the user and the nodes see."""
    made = SHARED / f"fault-suite-{os.getpid()}"
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in names.split("\0"):
        if name and not name.startswith("tests/") and (ROOT / name).is_file():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, made / name)
    for name in ("gated.py", "samples/in_file_order.py"):
        shutil.copy(ROOT / "tests" / name, made)
    (made / "COMMIT").write_text("0" * 40)
    return made


def toml(facts: dict[str, Any]) -> str:
    """Return facts as a TOML file says them; tables come last."""
    plain = {key: value for key, value in facts.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items() if value is not None]
    for key, value in facts.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", toml(value)]
    return "\n".join([*lines, ""])


class Ground:
    """A campaign's folder on the testbed.

    Args:
        name: Of the folder.
        jobs: The campaign's table of that name.
        env: Further variables of the ranks.
        site: Further keys of the site, instead of the usual ones.
        campaign: Further keys of the campaign, instead of the usual ones.
    """

    def __init__(
        self,
        name: str,
        jobs: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        site: dict[str, Any] | None = None,
        **campaign: Any,
    ) -> None:
        self.folder = SHARED / f"fault-{name}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        variables = {"GLOO_SOCKET_IFNAME": "lo", "FAULT_FOLDER": str(self.folder), **(env or {})}
        # A fault strikes the case that it names, so each launch runs its cases in one order.
        options = ["-p in_file_order", variables.pop("PYTEST_ADDOPTS", "")]
        usual = {
            "schema": 1,
            "name": "testbed",
            "partition": "debug",
            "account": "project",
            "gpus_per_node": 0,
            "cpus_per_node": 4,
            "max_ranks_per_node": 2,
            "mem": "6G",
            "time": "00:05:00",
            "suite": str(suite()),
            "container": {"image": str(IMAGE)},
            "env": variables | {"PYTEST_ADDOPTS": " ".join(filter(None, options))},
        }
        (self.folder / "site.toml").write_text(toml(usual | (site or {})))
        text = toml(CAMPAIGN | campaign | {"jobs": jobs or {}})
        (self.folder / "campaign.toml").write_text(text)
        self.own(self.folder)

    def own(self, path: Path) -> None:
        """Give a path to the user."""
        subprocess.run(["chown", "--recursive", USER, path], check=True)

    @property
    def results(self) -> Path:
        """The folder of results."""
        return self.folder / "results" / "fault"

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of the copied suite's `lockstep`."""
        python = STATE / "login" / "bin" / "python"
        return ["env", f"PYTHONPATH={suite()}", str(python), "-m", "lockstep", *arguments]

    def lockstep(self, *arguments: str, tools: Path | None = None) -> Ended:
        """Run a command of `lockstep` as the user does.

        Args:
            arguments: The command's.
            tools: Folder of commands that come before Slurm's.
        """
        path = ["env", f"PATH={tools}:/usr/local/bin:/usr/bin:/bin"] if tools else []
        ended: Ended = as_user(*path, *self.command(*arguments), cwd=self.folder)
        return ended

    def begin(self, *arguments: str, tools: Path | None = None) -> "subprocess.Popen[str]":
        """Start a command of `lockstep` as the user does, and do not wait for it."""
        line = [str(TESTBED / "as-user"), "env", f"--chdir={self.folder}"]
        line += [f"PATH={tools}:/usr/local/bin:/usr/bin:/bin"] if tools else []
        return subprocess.Popen(
            [*line, *self.command(*arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tool(self, name: str, body: str) -> Path:
        """Write a command into a folder of tools, and return that."""
        made = self.folder / "tools"
        made.mkdir(exist_ok=True)
        (made / name).write_text(f"#!/bin/bash\n{body}\n")
        (made / name).chmod(0o755)
        self.own(made)
        return made

    def submit(self) -> str:
        """Send the campaign and return the id of its first job."""
        done(self.lockstep("submit", "campaign.toml", "--site", "site.toml"))
        return self.sent()[-1]

    def sent(self) -> list[str]:
        """Return the ids of the jobs that were sent."""
        lines = (self.results / "jobs" / "submitted.jsonl").read_text().splitlines()
        return [entry["id"] for entry in map(json.loads, lines) if "id" in entry]

    def rewrite_site(self, **keys: str) -> None:
        """Set further keys of the site."""
        path = self.folder / "site.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        path.write_text("\n".join([*lines, path.read_text()]))

    def bind_on(self, node: str, bind: str) -> None:
        """Bind something further into the image on one node alone."""
        real = "exec /usr/bin/apptainer"
        elsewhere = f'[ "$SLURMD_NODENAME" = {node} ] || {real} "$@"'
        tools = self.tool("apptainer", f'{elsewhere}\nshift\n{real} exec --bind="{bind}" "$@"')
        self.rewrite_site(shell_before=f"PATH={tools}:$PATH")

    def status(self, tools: Path | None = None) -> dict[str, Any]:
        """Return how the campaign stands, as `lockstep status --json` says it."""
        ended = self.lockstep("status", "results/fault", "--json", tools=tools)
        if not ended.stdout:
            raise RuntimeError(ended.stderr)
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    def job(self, tools: Path | None = None) -> dict[str, Any]:
        """Return how the job that was sent last stands."""
        row: dict[str, Any] = self.status(tools)["jobs"][-1]
        return row

    def told(self) -> str:
        """Return what `lockstep status` says, in one line."""
        return " ".join(self.lockstep("status", "results/fault").stdout.split())

    def put(self, *names: str) -> None:
        """Put files beside the results, which the gated workload looks for."""
        for name in names:
            (self.folder / name).touch()
            shutil.chown(self.folder / name, USER)

    def let_go(self) -> None:
        """Let the ranks go on that wait in the gated case."""
        (self.folder / "hold").unlink(missing_ok=True)

    def at_gate(self, *ranks: int) -> None:
        """Wait until ranks are in the gated case."""
        until(
            lambda: all((self.folder / f"arrived-{rank}").exists() for rank in ranks),
            f"ranks {ranks} in the gated case; {self.texts()}",
            QUEUE_PATIENCE_S,
        )

    def entries(self, launch: str = "w2-r0") -> list[dict[str, Any]]:
        """Return the lines of a journal."""
        path = self.results / "launches" / launch / "journal.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def cases(self, kind: str = "case", launch: str = "w2-r0") -> list[str]:
        """Return the studies of a journal's cases that ended so, in the order they did."""
        ids = [entry["case"] for entry in self.entries(launch) if entry["kind"] == kind]
        return [one.partition("::test_")[2].partition("_")[0] for one in ids]

    def log(self, launch: str = "w2-r0") -> str:
        """Return what the ranks of a launch said."""
        path = self.results / "launches" / launch / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, job_id: str) -> str:
        """Return what the script of a job said."""
        path = self.results / "jobs" / f"slurm-{job_id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def exit_facts(self, job_id: str) -> dict[str, Any]:
        """Return what the script of a job left about its end; empty before it."""
        path = self.results / "jobs" / f"exit-{job_id}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def finished(self, job_id: str) -> dict[str, Any]:
        """Wait until the script of a job has ended, and return what it left."""
        until(lambda: bool(self.exit_facts(job_id)), f"the end of job {job_id}; {self.texts()}")
        until(lambda: state(job_id) not in ("RUNNING", "COMPLETING"), f"Slurm's end of {job_id}")
        return self.exit_facts(job_id)

    def texts(self) -> str:
        """Return the ends of all that the jobs and launches said."""
        paths = [path for path in self.folder.rglob("*") if path.suffix in (".out", ".txt")]
        return " ".join(f"{path.name}: {path.read_text()[-500:]}" for path in paths)

    def resume(self) -> str:
        """Send what is missing again and return the job's id."""
        done(self.lockstep("resume", "results/fault"))
        return self.sent()[-1]


@contextmanager
def ground(name: str, **changes: Any) -> Iterator[Ground]:
    """Give a campaign's folder, and leave no job of it."""
    made = Ground(name, **changes)
    try:
        yield made
    finally:
        made.let_go()
        jobs = made.sent() if (made.results / "jobs" / "submitted.jsonl").exists() else []
        for job_id in jobs:
            subprocess.run(["scancel", job_id], capture_output=True, check=False)
        until(lambda: not set(jobs) & set(queued()), "no job of this row left")
        if not os.environ.get("LOCKSTEP_KEEP_FAULTS"):
            shutil.rmtree(made.folder, ignore_errors=True)


def done(ended: Ended) -> str:
    """Return what a command printed, which must have succeeded."""
    if ended.returncode:
        raise RuntimeError(f"{ended.returncode}: {ended.stderr}{ended.stdout}")
    return ended.stdout


def ask(*command: str | Path) -> str:
    """Return what a command prints, as root."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def queued() -> list[str]:
    """Return the ids of the jobs that Slurm holds and that have not ended."""
    return ask("squeue", "--noheader", "--format=%A").split()


def state(job_id: str) -> str:
    """Return Slurm's word for how a job stands."""
    shown = ask("scontrol", "show", "job", job_id)
    found = [word for word in shown.split() if word.startswith("JobState=")]
    return found[0].partition("=")[2] if found else ""


def until(holds: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> float:
    """Wait until something holds, and return the seconds that took.

    Raises:
        RuntimeError: It did not in time.
    """
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > patience_s:
            raise RuntimeError(f"waited {patience_s:g} s in vain for {what}")
        time.sleep(0.1)
    return time.monotonic() - began


def pid_of(daemon: str) -> int:
    """Return the process of a daemon of the testbed."""
    return int((RUN / f"{daemon}.pid").read_text())


@contextmanager
def frozen(daemon: str) -> Iterator[None]:
    """Stop a daemon of the testbed, and let it go on."""
    pid = pid_of(daemon)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        ask("scontrol", "reconfigure")  # or a node that was given up waits to be asked


def node(command: str, name: str) -> None:
    """Lose a node, or bring it back."""
    subprocess.run([TESTBED / "node", command, name], check=True, capture_output=True)


def all_idle() -> bool:
    """Return whether every node takes jobs."""
    states = ask("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%T").split()
    return len(states) == 4 and set(states) == {"idle"}


def processes(*words: str, job_id: str | None = None, rank: int | None = None) -> list[int]:
    """Return the processes whose command line holds all words, the youngest last.

    Args:
        words: What their command lines hold.
        job_id: Only those of this job.
        rank: Only those of this rank of a step.
    """
    wanted = {f"SLURM_JOB_ID={job_id}"} if job_id else set()
    wanted |= set() if rank is None else {f"SLURM_PROCID={rank}"}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environ = (path / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if wanted <= set(environ) and all(word in line for word in words):
            found.append(int(path.name))
    return sorted(found)


def first(lines: Sequence[str], *words: str) -> str:
    """Return the first line that holds all words, or nothing."""
    return next((one.strip() for one in lines if all(word in one for word in words)), "")
