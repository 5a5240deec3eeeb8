"""What Slurm's own commands are asked, and how their answers read.

A question that fails has no answer: `None` or `unknown`, never a state that sounds good.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 60
UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
FIELDS = ("JobIDRaw", "State", "ExitCode", "ElapsedRaw", "Submit", "Start", "MaxRSS", "AllocTRES")
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
# state -> what it means, and what to do
MEANINGS = {
    "PENDING": "waits",
    "RUNNING": "runs",
    "COMPLETING": "is being ended by Slurm",
    "COMPLETED": "every launch is complete",
    "FAILED": "a launch is incomplete; its log.txt says why, submit again measures the rest",
    "TIMEOUT": "the time limit was reached; submit again measures the rest",
    "OUT_OF_MEMORY": "a rank needed more memory; raise mem or lower the batch, then submit again",
    "NODE_FAIL": "a node failed; submit again measures the rest",
    "PREEMPTED": "another job took its nodes; submit again measures the rest",
    "CANCELLED": "it was cancelled; submit again measures the rest",
    "unknown": "Slurm gave no answer about it; ask again later",
}
REASONS = {
    "Priority": "jobs of a higher priority come first",
    "Resources": "until enough nodes are free",
    "Dependency": "for another job",
    "PartitionDown": "because its partition is down",
    "ReqNodeNotAvail": "because its nodes are down or reserved",
    "PartitionTimeLimit": "for ever: its time is over the partition's limit; lower the site's time",
    "BadConstraints": "for ever: no node is as asked; change the site's constraint",
    "JobHeldUser": "because its owner holds it",
    "JobHeldAdmin": "because an administrator holds it",
}
# part of what sbatch says -> the site's key it is about
REFUSALS = {
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "feature": "constraint",
    "reservation": "reservation",
    "time limit": "time",
    "memory": "mem",
    "gres": "gpu_type",
    "node count": "partition",
    "node configuration": "gpus_per_node, cpus_per_node or mem",
    "more processors": "cpus_per_node",
}


@dataclass(frozen=True)
class State:
    """What Slurm says of a job.

    Attributes:
        name: Slurm's word, or `unknown`.
        reason: Why a pending job waits, in Slurm's word.
    """

    name: str
    reason: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the job will write no more."""
        return self.name in ENDED

    @property
    def meaning(self) -> str:
        """The state in plain words."""
        meant = MEANINGS.get(self.name, f"Slurm calls it {self.name}")
        if self.name != "PENDING" or self.reason in (None, "None"):
            return meant
        return f"{meant}: {REASONS.get(str(self.reason), self.reason)}"


UNKNOWN = State("unknown")


def ask(*command: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return what one of Slurm's commands says.

    Raises:
        RuntimeError: It is not installed, fails, or does not answer in time.
    """
    try:
        ended = subprocess.run(
            command,
            env={**environ, "SLURM_TIME_FORMAT": "%s"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise RuntimeError(
            f"{command[0]} is not installed here; use a login node of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"{command[0]} gave no answer within {TIMEOUT_S} s; ask again later"
        ) from None
    if ended.returncode:
        said = " ".join(ended.stderr.split()) or f"nothing, and exit code {ended.returncode}"
        raise RuntimeError(f"{command[0]} said: {said}")
    return ended.stdout


def sbatch(script: Path, comment: str) -> str:
    """Submit a script and return its job's id.

    Args:
        script: The batch script.
        comment: What the job is found by if the answer is lost.

    Raises:
        ValueError: sbatch refuses what the site file says.
        RuntimeError: Slurm does not answer, and has no such job.
    """
    environ = {name: value for name, value in os.environ.items() if _is_harmless(name)}
    try:
        said = ask("sbatch", "--parsable", f"--comment={comment}", str(script), environ=environ)
    except RuntimeError as error:
        # sbatch may lose the answer after the job has been taken.
        if (job_id := _find(comment)) is not None:
            return job_id
        if key := refused_key(str(error)):
            raise ValueError(f"{error}; change {key} in the site file") from None
        raise
    return said.strip().partition(";")[0]


def _is_harmless(name: str) -> bool:
    """Return whether a variable leaves sbatch's options alone, also inside another job."""
    return not name.startswith(("SBATCH_", "SLURM_CPU_BIND", "SLURM_EXPORT_ENV"))


def refused_key(said: str) -> str | None:
    """Return the site's key that a refusal is about; None if it is about none."""
    low = said.lower()
    return next((key for part, key in REFUSALS.items() if part in low), None)


def _find(comment: str) -> str | None:
    try:
        found = [job_id for job_id, job in queue().items() if job.comment == comment]
    except RuntimeError:
        return None
    return found[0] if found else None


@dataclass(frozen=True)
class Queued:
    """A job that Slurm still holds."""

    state: State
    comment: str


def queue() -> dict[str, Queued]:
    """Return the user's jobs that Slurm still holds, some of which may just have ended.

    Raises:
        RuntimeError: squeue fails.
    """
    said = ask("squeue", "--me", "--noheader", "--states=all", "--format=%A|%T|%r|%k")
    rows = [line.split("|", 3) for line in said.splitlines() if line.count("|") >= 3]
    return {job_id: Queued(State(name, reason), note) for job_id, name, reason, note in rows}


def states(job_ids: Sequence[str]) -> dict[str, State]:
    """Return the state of each job, by one squeue and one sacct call."""
    found = _queued()
    missing = [job_id for job_id in job_ids if job_id not in found]
    found |= {job_id: State(row["state"]) for job_id, row in _accounts(missing).items()}
    return {job_id: found.get(job_id, UNKNOWN) for job_id in job_ids}


def _queued() -> dict[str, State]:
    try:
        return {job_id: job.state for job_id, job in queue().items()}
    except RuntimeError:
        return {}


def _accounts(job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    try:
        return accounting(job_ids)
    except RuntimeError:
        return {}


def accounting(job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what accounting knows of each job; jobs it does not know are left out.

    Raises:
        RuntimeError: sacct fails.
    """
    if not job_ids:
        return {}
    said = ask(
        "sacct",
        "--noheader",
        "--parsable2",
        f"--jobs={','.join(job_ids)}",
        f"--format={','.join(FIELDS)}",
    )
    return read_accounting(said)


def read_accounting(text: str) -> dict[str, dict[str, Any]]:
    """Return job id -> its row, with the largest memory of its steps, from sacct's output."""
    rows = [dict(zip(FIELDS, line.split("|"), strict=True)) for line in text.splitlines()]
    found = {}
    for row in rows:
        job_id = row["JobIDRaw"]
        if "." not in job_id:
            steps = [r for r in rows if r["JobIDRaw"].partition(".")[0] == job_id]
            found[job_id] = _job_row(row, steps)
    return found


def _job_row(row: Mapping[str, str], steps: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    memory = [size for step in steps if (size := _bytes(step["MaxRSS"])) is not None]
    submitted, started = _seconds(row["Submit"]), _seconds(row["Start"])
    known = submitted is not None and started is not None
    return {
        "state": row["State"].partition(" ")[0],
        "exit_code": row["ExitCode"] or None,
        "elapsed_s": _seconds(row["ElapsedRaw"]),
        "queue_wait_s": started - submitted if known else None,  # type: ignore[operator]
        "max_rss_bytes": max(memory, default=None),
        "alloc_tres": dict(_pairs(row["AllocTRES"])) or None,
    }


def _pairs(text: str) -> list[tuple[str, str]]:
    cells = [cell.rpartition("=") for cell in text.split(",") if "=" in cell]
    return [(name, value) for name, _, value in cells]


def _seconds(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _bytes(text: str) -> int | None:
    match = re.fullmatch(r"([0-9.]+)([KMGT]?)", text)
    return round(float(match[1]) * UNITS[match[2]]) if match else None
