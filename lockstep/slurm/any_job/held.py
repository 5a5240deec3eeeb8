"""What squeue holds of any job, and why one of them waits: facts, no sentences.

How well a job used what it was given, and what to ask for next time: facts, no sentences.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lockstep.core.formats import parse_duration
from lockstep.slurm import client as slurm
from lockstep.slurm.client import ENDED, FailedError, State
from lockstep.slurm.status import accounting
from lockstep.slurm.status.accounting import instant
from lockstep.slurm.status.causes import NEAR

# squeue(1), --format; the name is last, for it may hold any character.
FORMAT = "%i|%T|%r|%u|%P|%D|%M|%l|%V|%S|%E|%Q|%N|%j"
# sprio(1), --format: the weighted factors, which add up to the priority.
FACTORS = {
    "A": "age",
    "F": "fairshare",
    "J": "size of the job",
    "P": "partition",
    "Q": "QOS",
    "N": "nice",
}
_JOB = re.compile(r"([0-9]{1,12})(?:_([0-9]{1,7}))?", re.ASCII)
_DEPENDENCY = re.compile(r"(after\w*|singleton)(?::([0-9]+(?:_[0-9*]+)?))?", re.ASCII)


@dataclass(frozen=True)
class Held:
    """A job, or elements of an array, as squeue shows it.

    Attributes:
        job_id: Its id as squeue spells it: `7`, `7_3`, or `7_[4-9%2]` for elements that wait.
        state: Its state, with the reason for which it waits.
        partition: Where it runs or is to run; several with commas between.
        limit_s: Its time limit; None without one.
        submitted: When it was sent, in seconds of the epoch.
        starts: When it began; of one that waits, when Slurm expects to start it, if it says.
        waits_for: (how, job id) of what it waits for, such as `("afterok", "12")`.
        priority: Slurm's number, by which the waiting jobs are ordered.
    """

    job_id: str
    name: str
    user: str
    state: State
    partition: str
    num_nodes: int | None
    nodes: str
    elapsed_s: float | None
    limit_s: float | None
    submitted: int | None
    starts: int | None
    waits_for: tuple[tuple[str, str], ...]
    priority: int | None

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun."""
        return self.state.name == "PENDING"

    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self) | {"state": self.state.name, "reason": self.state.reason}


@dataclass(frozen=True)
class Wait:
    """Why a job waits.

    Attributes:
        factors: Weighted factor -> its part of the priority; None where sprio gives no answer.
        num_ahead: Jobs of a higher priority that wait in the same partition; None where that is
            not what it waits for.
    """

    factors: Mapping[str, int] | None
    num_ahead: int | None


def is_id(text: str) -> bool:
    """Return whether a text may be the id of a job, or of an array's element."""
    return _JOB.fullmatch(text) is not None


def checked(job_id: str) -> str:
    """Return a job's id as it was typed.

    Raises:
        ValueError: It is no id of a job.
    """
    if not is_id(job_id):
        raise ValueError(
            f"{job_id[:80]!r} is no id of a job; give one such as 4711, of an array's element "
            "4711_3; lockstep slurm jobs lists yours"
        )
    return job_id


def of_user(user: str) -> list[Held]:
    """Return what a user's jobs do, those that run first, then by the expected start.

    Raises:
        RuntimeError: squeue fails.
    """
    jobs = _ask(f"--user={user}")
    far = max((job.starts or 0 for job in jobs), default=0) + 1
    return sorted(jobs, key=lambda job: (job.is_waiting, job.starts or far))


def of_job(job_id: str) -> list[Held]:
    """Return what squeue holds of a job, of an array its elements; nothing once it forgot it.

    Raises:
        RuntimeError: squeue fails.
    """
    try:
        return _ask(f"--jobs={job_id}")
    except FailedError as error:
        if "Invalid job id" in error.stderr:  # it ended more than MinJobAge ago, or never was
            return []
        raise


def reason_of_end(job_id: str, state: str) -> str | None:
    """Return why a job was cancelled, as long as squeue holds it; None of other ends."""
    if state != "CANCELLED":
        return None
    try:
        jobs = _ask(f"--jobs={job_id}", "--states=all")
    except RuntimeError:  # accounting has answered, and squeue need not
        return None
    return jobs[0].state.reason if len(jobs) == 1 else None


def wait(job: Held) -> Wait:
    """Ask why a waiting job does not run yet."""
    return Wait(_factors(job), _num_ahead(job) if job.state.reason in slurm.IN_LINE else None)


def _ask(*selection: str) -> list[Held]:
    listing = slurm.ask("squeue", *selection, "--noheader", f"--format={FORMAT}")
    most = FORMAT.count("|")
    rows = [line.split("|", most) for line in listing.splitlines() if line.count("|") >= most]
    return [_held(row) for row in rows]


def _held(row: Sequence[str]) -> Held:
    job_id, state, reason, user, partition, num_nodes, elapsed, limit, *rest = row
    submitted, starts, waits_for, priority, nodes, name = rest
    return Held(
        job_id=job_id,
        name=name,
        user=user,
        state=State(state, reason),
        partition=partition,
        num_nodes=slurm.count(num_nodes.partition("-")[0]),
        nodes=nodes,
        elapsed_s=parse_duration(elapsed),
        limit_s=parse_duration(limit),
        submitted=instant(submitted),
        starts=instant(starts),
        waits_for=tuple(_DEPENDENCY.findall(waits_for)),
        priority=slurm.count(priority),
    )


def _factors(job: Held) -> dict[str, int] | None:
    """Return factor -> its part of the priority, those that add nothing left out."""
    spelt = "|".join(f"%{letter}" for letter in FACTORS)
    single = job.job_id.partition("_")[0]
    try:
        text = slurm.ask("sprio", "--noheader", f"--jobs={single}", f"--format={spelt}")
    except RuntimeError:  # priority/basic has no factors, and some centres forbid the question
        return None
    for line in text.splitlines():
        cells = line.replace(" ", "").split("|")
        if len(cells) == len(FACTORS):
            parts = {n: _signed(cell) for n, cell in zip(FACTORS.values(), cells, strict=True)}
            return {name: part for name, part in parts.items() if part}
    return None


def _signed(text: str) -> int:
    number = slurm.count(text.removeprefix("-")) or 0
    return -number if text.startswith("-") else number


def _num_ahead(job: Held) -> int | None:
    """Return how many jobs of a higher priority wait in its partition, an array counted once."""
    where = f"--partition={job.partition}"
    pending = ("--states=PENDING", "--noheader", "--format=%Q|%r")
    try:
        listing = slurm.ask("squeue", where, *pending)
    except RuntimeError:
        return None
    rows = [line.split("|", 1) for line in listing.splitlines() if "|" in line]
    in_line = [slurm.count(priority) or 0 for priority, reason in rows if reason in slurm.IN_LINE]
    return sum(priority > (job.priority or 0) for priority in in_line)


# Under so much of what was asked for, less would have done; over NEAR, more may be needed.
AMPLE = 0.5
# What is suggested is larger than what was used by so much.
MARGIN = 1.25
# Requests under these are not worth a change.
SMALL_BYTES = 2 * 1024**3
SMALL_S = 600


@dataclass(frozen=True)
class Hint:
    """What the next job of this kind might ask for.

    Attributes:
        kind: `memory_ample`, `memory_near` its limit, `time_ample`, `time_near`, `cpus_idle`.
        amount: So much would do, with a margin: bytes a node, as sbatch's --mem has it, seconds or
            CPUs; of what is near its limit so much would be safer.
    """

    kind: Literal["memory_ample", "memory_near", "time_ample", "time_near", "cpus_idle"]
    amount: int


def of_jobs(job_ids: list[str]) -> dict[str, accounting.Account]:
    """Return what sacct knows of jobs; of an array, of each element.

    Raises:
        RuntimeError: sacct fails.
    """
    return accounting.ask(job_ids)


def lately(user: str, hours: float) -> dict[str, accounting.Account]:
    """Return a user's jobs that ended within the last hours.

    Raises:
        RuntimeError: sacct fails.
    """
    since = f"--starttime=now-{math.ceil(hours * 60)}minutes"
    # Without states sacct leaves out what was cancelled before it might have begun.
    states = f"--state={','.join(sorted(ENDED))}"
    known = accounting.matching(f"--user={user}", "--allocations", since, "--endtime=now", states)
    return {job_id: one for job_id, one in known.items() if accounting.has_ended(one)}


def hints(account: Mapping[str, Any]) -> list[Hint]:
    """Return what the next job might ask for; less only where this one and its steps ended well."""
    states = (account["state"], *(step["state"] for step in account["bad_steps"]))
    if "OUT_OF_MEMORY" in states:
        return [*_of_memory(account, was_enough=False)]
    if account["state"] not in ("COMPLETED", "TIMEOUT"):
        return []
    found = [*_of_memory(account, was_enough=True), *_of_time(account), *_of_cpus(account)]
    has_ended_well = states == ("COMPLETED",)
    return [hint for hint in found if has_ended_well or hint.kind in ("memory_near", "time_near")]


def _of_memory(account: Mapping[str, Any], *, was_enough: bool) -> Iterator[Hint]:
    used, requested = account["node_bytes"], account["requested_bytes"]
    if used is None or not requested:
        return
    of_node = requested / (account["num_nodes"] or 1)
    if not was_enough or used >= NEAR * of_node:
        yield Hint("memory_near", math.ceil(MARGIN * max(used, of_node)))
    elif used < AMPLE * of_node and requested > SMALL_BYTES:
        yield Hint("memory_ample", math.ceil(MARGIN * used))


def _of_time(account: Mapping[str, Any]) -> Iterator[Hint]:
    share, elapsed_s = account["time_efficiency"], account["elapsed_s"]
    if share is None:
        return
    if share >= NEAR:
        yield Hint("time_near", math.ceil(MARGIN * elapsed_s))
    elif share < AMPLE and account["limit_s"] > SMALL_S:
        yield Hint("time_ample", max(SMALL_S, math.ceil(MARGIN * elapsed_s)))


def _of_cpus(account: Mapping[str, Any]) -> Iterator[Hint]:
    share, cpus = account["cpu_efficiency"], account["alloc_cpus"]
    if share is None or account["gpu_hours"] or cpus < 2:  # of GPU jobs CPUs wait, by rights
        return
    least = max(account["num_nodes"] or 1, account["num_tasks"] or 1)  # one each
    enough = max(least, math.ceil(MARGIN * share * cpus))
    if share < AMPLE and enough < cpus:
        yield Hint("cpus_idle", enough)
