"""Campaigns of one launch or two on the testbed, for faults to be put into."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cluster import IMAGE, ROOT, SHARED, STATE, TESTBED, USER, as_user, done, give
from launched import until

RUN = Path("/run/lockstep-testbed")
CONF = Path("/etc/slurm/slurm.conf")
# Jobs of other tests may still be on the nodes.
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
    """A campaign's folder on the testbed."""

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
        give(self.folder)

    @property
    def results(self) -> Path:
        return self.folder / "results" / "fault"

    def command(self, *arguments: str) -> list[str]:
        python = STATE / "login" / "bin" / "python"
        return ["env", f"PYTHONPATH={suite()}", str(python), "-m", "lockstep", *arguments]

    def lockstep(self, *arguments: str) -> Ended:
        ended: Ended = as_user(*self.command(*arguments), cwd=self.folder)
        return ended

    def begin_submit(self, sbatch: str) -> "subprocess.Popen[str]":
        """Begin to send the campaign by an sbatch that does what the lines of a shell say."""
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "sbatch").write_text(f"#!/bin/bash\n{sbatch}\n")
        (tools / "sbatch").chmod(0o755)
        give(tools)
        line = [TESTBED / "as-user", "env", f"--chdir={self.folder}"]
        path = f"PATH={tools}:/usr/local/bin:/usr/bin:/bin"
        submit = self.command("submit", "campaign.toml", "--site", "site.toml")
        return subprocess.Popen(
            [*line, path, *submit], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def submit(self) -> str:
        done(self.lockstep("submit", "campaign.toml", "--site", "site.toml"))
        return self.sent()[-1]

    def sent(self) -> list[str]:
        lines = (self.results / "jobs" / "submitted.jsonl").read_text().splitlines()
        return [entry["id"] for entry in map(json.loads, lines) if "id" in entry]

    def job(self) -> dict[str, Any]:
        ended = self.lockstep("status", "results/fault", "--json")
        if not ended.stdout:
            raise RuntimeError(ended.stderr)
        row: dict[str, Any] = json.loads(ended.stdout)["jobs"][-1]
        return row

    def told(self) -> str:
        return " ".join(self.lockstep("status", "results/fault").stdout.split())

    def put(self, *names: str) -> None:
        """Put files beside the results, which the gated workload looks for."""
        for name in names:
            (self.folder / name).touch()
            shutil.chown(self.folder / name, USER)

    def submit_and_hold(self) -> str:
        """Send the campaign, wait until both ranks wait in the gated case; return the job's id."""
        self.put("hold")
        job_id = self.submit()
        until(
            lambda: all((self.folder / f"arrived-{rank}").exists() for rank in (0, 1)),
            f"both ranks in the gated case; {self.texts()}",
            QUEUE_PATIENCE_S,
        )
        return job_id

    def let_go(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)

    @property
    def launch(self) -> Path:
        return self.results / "launches" / "w2-r0"

    def entries(self, kind: str) -> list[dict[str, Any]]:
        path = self.launch / "journal.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]

    def measured(self) -> list[str]:
        return [entry["case"] for entry in self.entries("case")]

    def log(self) -> str:
        path = self.launch / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, job_id: str) -> str:
        paths = (self.results / "jobs").glob(f"*-{job_id}.out")
        return "".join(path.read_text(errors="replace") for path in paths)

    def exit_facts(self, job_id: str) -> dict[str, Any]:
        path = self.results / "jobs" / f"exit-{job_id}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def finished(self, job_id: str) -> dict[str, Any]:
        """Wait until the script of a job has ended, and return what it left."""
        until(lambda: bool(self.exit_facts(job_id)), f"the end of job {job_id}; {self.texts()}")
        until(lambda: state(job_id) not in ("RUNNING", "COMPLETING"), f"Slurm's end of {job_id}")
        return self.exit_facts(job_id)

    def texts(self) -> str:
        paths = [path for path in self.folder.rglob("*") if path.suffix in (".out", ".txt")]
        return " ".join(f"{path.name}: {path.read_text()[-500:]}" for path in paths)

    def resume(self) -> str:
        done(self.lockstep("resume", "results/fault"))
        return self.sent()[-1]


@contextmanager
def ground(name: str, **changes: Any) -> Iterator[Ground]:
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


def ask(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def queued() -> list[str]:
    return ask("squeue", "--noheader", "--format=%A").split()


def state(job_id: str) -> str:
    shown = ask("scontrol", "show", "job", job_id)
    found = [word for word in shown.split() if word.startswith("JobState=")]
    return found[0].partition("=")[2] if found else ""


@contextmanager
def configured(*lines: str) -> Iterator[None]:
    """Give Slurm further lines of configuration for a while."""
    before = CONF.read_text()
    CONF.write_text("\n".join([before.rstrip("\n"), *lines, ""]))
    try:
        ask("scontrol", "reconfigure")
        time.sleep(1)
        yield
    finally:
        CONF.write_text(before)
        ask("scontrol", "reconfigure")


@contextmanager
def frozen(daemon: str) -> Iterator[None]:
    pid = int((RUN / f"{daemon}.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        ask("scontrol", "reconfigure")  # or a node that was given up waits to be asked


def node(command: str, name: str) -> None:
    subprocess.run([TESTBED / "node", command, name], check=True, capture_output=True)


def all_idle() -> bool:
    states = ask("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%T").split()
    return len(states) == 4 and set(states) == {"idle"}


def processes(*words: str, job_id: str | None = None) -> list[int]:
    """Return the processes whose command line holds all words, the youngest last."""
    wanted = {f"SLURM_JOB_ID={job_id}"} if job_id else set()
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
