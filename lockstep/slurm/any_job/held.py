"""Any job of Slurm: its state, why it waits, how it ended, and how well it used its resources."""

import math
import re
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.core.formats import DASH, clock, in_words, size_of
from lockstep.slurm import client as slurm
from lockstep.slurm.client import ENDED, FailedError, Queued
from lockstep.slurm.status import accounting
from lockstep.slurm.status.causes import NEAR

COLUMNS = (
    *("job_id", "state", "reason", "user", "partition", "num_nodes", "elapsed", "limit"),
    *("submitted", "starts", "waits_for", "priority", "nodes", "name"),
)
# sprio(1), --format: the weighted factors, which add up to the priority.
FACTORS = {
    "A": "age",
    "F": "fairshare",
    "J": "size of the job",
    "P": "partition",
    "Q": "QOS",
    "N": "nice",
}
# kind of dependency -> condition in words
WAITS = {
    "after": "job {} has begun",
    "afterany": "job {} has ended",
    "afterok": "job {} has succeeded",
    "afternotok": "job {} has failed",
    "aftercorr": "the same element of job {} has succeeded",
    "afterburstbuffer": "job {} has ended and its burst-buffer data have been copied out",
    "singleton": "your earlier jobs of the same name have ended",
}
# CODE:SIGNAL as sacct writes it -> the usual cause
ENDS = {
    "0:53": "its node could not open its output file, or the folder does not exist",
    "0:125": "it needed more memory than it had",
    "126:0": "a command was found, but is not executable",
    "127:0": "a command was not found: a module, an environment or a path is missing",
}
# signal -> its usual cause
SIGNALS: dict[int, str] = {
    signal.SIGABRT: ", an abort of the program",
    signal.SIGBUS: ", a bus error, often because /dev/shm is full",
    signal.SIGKILL: ", often for lack of memory",
    signal.SIGSEGV: ", a segmentation fault",
    signal.SIGTERM: ", for example by scancel",
    signal.SIGUSR1: ", for example by --signal without B:, which signals the ranks",
}
MAX_STEPS = 5
# Less would have done where less than AMPLE of a request was used, and more may be needed where
# more than NEAR was.
AMPLE = 0.5
# Ratio of a suggested request to what was used.
MARGIN = 1.25
# Requests below these are not worth a change.
SMALL_BYTES = 2 * 1024**3
SMALL_S = 600
_JOB = re.compile(r"([0-9]{1,12})(?:_([0-9]{1,7}))?", re.ASCII)


def facts(job: Queued) -> dict[str, Any]:
    """Return a job as a JSON object."""
    names = ("job_id", "name", "user", "state", "partition", "num_nodes", "nodes", "elapsed_s",
             "limit_s", "submitted", "starts", "waits_for", "priority")  # fmt: skip
    own = {name: getattr(job, name) for name in names}
    return own | {"state": job.state.name, "reason": job.state.reason}


def is_id(text: str) -> bool:
    """Return whether a text has the form of a job id or an array element's id."""
    return _JOB.fullmatch(text) is not None


def checked(job_id: str) -> str:
    """Return a job's id unchanged if it has the form of one.

    Raises:
        ValueError: It does not.
    """
    if not is_id(job_id):
        raise ValueError(
            f"{job_id[:80]!r} is not a job id; give one such as 4711, or for an array's element "
            "4711_3; lockstep slurm jobs lists your jobs"
        )
    return job_id


def of_user(user: str) -> list[Queued]:
    """Return a user's jobs: running ones first, then by expected start."""
    jobs = slurm.squeue(COLUMNS, f"--user={user}")
    far = max((job.starts or 0 for job in jobs), default=0) + 1
    return sorted(jobs, key=lambda job: (job.is_waiting, job.starts or far))


def of_job(job_id: str) -> list[Queued]:
    """Return a job, or an array's elements, from squeue; nothing once squeue has dropped it."""
    try:
        return slurm.squeue(COLUMNS, f"--jobs={job_id}")
    except FailedError as error:
        if "Invalid job id" in error.stderr:  # it ended more than MinJobAge ago, or never existed
            return []
        raise


def wait(job: Queued) -> dict[str, Any]:
    """Ask why a pending job has not started.

    Returns:
        `factors`: weighted factor -> its part of the priority, None where sprio gives no answer;
        `num_ahead`: jobs of a higher priority that wait in the same partition, an array counted
        once, None where that is not what it waits for.
    """
    factors, num_ahead = None, None
    wanted = "|".join(f"%{letter}" for letter in FACTORS)
    # priority/basic has no factors, and some centres forbid sprio.
    try:
        text = slurm.ask("sprio", "--noheader", f"--jobs={job.array_id}", f"--format={wanted}")
        rows = [line.replace(" ", "").split("|") for line in text.splitlines()]
    except RuntimeError:
        rows = []
    for row in (row for row in rows[:1] if len(row) == len(FACTORS)):
        digits = [slurm.count(cell.removeprefix("-")) or 0 for cell in row]
        parts = [-n if cell.startswith("-") else n for n, cell in zip(digits, row, strict=True)]
        factors = {n: part for n, part in zip(FACTORS.values(), parts, strict=True) if part}
    if job.state.reason in slurm.IN_LINE:
        where = (f"--partition={job.partition}", "--states=PENDING")
        try:
            others = slurm.squeue(("priority", "reason"), *where)
        except RuntimeError:
            others = None
        if others is not None:
            in_line = [other for other in others if other.state.reason in slurm.IN_LINE]
            num_ahead = sum((other.priority or 0) > (job.priority or 0) for other in in_line)
    return {"factors": factors, "num_ahead": num_ahead}


def ended(job_ids: list[str]) -> dict[str, accounting.Account]:
    """Return job id -> what sacct knows of the job, for an array of each element.

    Raises:
        ValueError: sacct knows none of the jobs.
        RuntimeError: sacct fails.
    """
    found = accounting.ask([checked(job_id) for job_id in job_ids])
    if not found:
        raise ValueError(
            f"Slurm does not know job {', '.join(job_ids)}: it is not in squeue, and "
            "accounting has no record of it; lockstep slurm jobs --ended 24 lists your jobs"
        )
    return found


def lately(user: str, hours: float) -> dict[str, accounting.Account]:
    """Return a user's jobs that ended within the last hours."""
    since = f"--starttime=now-{math.ceil(hours * 60)}minutes"
    # Without --state sacct leaves out jobs that were cancelled before they started.
    states = f"--state={','.join(sorted(ENDED))}"
    known = accounting.matching(f"--user={user}", "--allocations", since, "--endtime=now", states)
    return {job_id: one for job_id, one in known.items() if accounting.has_ended(one)}


def reason_of_end(job_id: str, state: str) -> str | None:
    """Return why a job was cancelled, while squeue still shows it; None for other states."""
    if state != "CANCELLED":
        return None
    try:
        jobs = slurm.squeue(COLUMNS, f"--jobs={job_id}", "--states=all")
    except RuntimeError:  # accounting has answered, and squeue need not
        return None
    return jobs[0].state.reason if len(jobs) == 1 else None


def hints(account: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return suggestions for the next request; a smaller one only if job and steps succeeded.

    Returns:
        Each with its `kind`, `memory_ample`, `memory_near` its limit, `time_ample`, `time_near` or
        `cpus_idle`, and the `amount` that would do, with a margin: bytes a node, as sbatch's --mem
        has it, seconds or CPUs.
    """
    states = (account["state"], *(step["state"] for step in account["bad_steps"]))
    if "OUT_OF_MEMORY" in states:
        amounts = _memory_hints(account, was_enough=False)
    elif account["state"] in ("COMPLETED", "TIMEOUT"):
        amounts = _memory_hints(account, was_enough=True) | _time_and_cpu_hints(account)
        if states != ("COMPLETED",):
            amounts = {kind: n for kind, n in amounts.items() if kind.endswith("_near")}
    else:
        amounts = {}
    return [{"kind": kind, "amount": math.ceil(amount)} for kind, amount in amounts.items()]


def _memory_hints(account: Mapping[str, Any], *, was_enough: bool) -> dict[str, float]:
    used, requested = account["node_bytes"], account["requested_bytes"]
    if used is None or not requested:
        return {}
    of_node = requested / (account["num_nodes"] or 1)
    if not was_enough or used >= NEAR * of_node:
        return {"memory_near": MARGIN * max(used, of_node)}
    is_ample = used < AMPLE * of_node and requested > SMALL_BYTES
    return {"memory_ample": MARGIN * used} if is_ample else {}


def _time_and_cpu_hints(account: Mapping[str, Any]) -> dict[str, float]:
    amounts: dict[str, float] = {}
    share, elapsed_s = account["time_efficiency"], account["elapsed_s"]
    if share is not None and share >= NEAR:
        amounts["time_near"] = MARGIN * elapsed_s
    elif share is not None and share < AMPLE and account["limit_s"] > SMALL_S:
        amounts["time_ample"] = max(SMALL_S, MARGIN * elapsed_s)
    share, cpus = account["cpu_efficiency"], account["alloc_cpus"]
    if share is not None and not account["gpu_hours"]:  # CPUs of GPU jobs wait, by rights
        least = max(account["num_nodes"] or 1, account["num_tasks"] or 1)  # one each
        enough = max(least, math.ceil(MARGIN * share * cpus))
        if share < AMPLE and enough < cpus:
            amounts["cpus_idle"] = enough
    return amounts


# Lines for a terminal


def _meaning(job: Queued) -> str:
    return job.state.meaning.replace("{id}", job.job_id)


def job_line(job: Queued) -> str:
    """Return one line with a job's state."""
    parts = [_meaning(job)]
    if job.is_waiting and job.starts is not None:
        parts.append(f"expected to start {moment(job.starts)}")
    elif job.state.name == "RUNNING":
        parts = [f"has run for {in_words(job.elapsed_s)} on {job.nodes}"]
        if job.limit_s is not None and job.elapsed_s is not None:
            parts.append(f"{in_words(max(0.0, job.limit_s - job.elapsed_s))} left")
    return f"{job.job_id} {job.name}: {'; '.join(parts)}"


def moment(at: int) -> str:
    """Return a local date and time, and how far ahead it is."""
    ahead_s = at - time.time()
    return f"{date(at)}, {f'in {in_words(ahead_s)}' if ahead_s > 0 else 'now'}"


def date(at: int) -> str:
    """Return a local date and time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def wait_lines(job: Queued, why: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about why a job waits and what to do."""
    yield f"{job.job_id} {job.name} of {job.user}, partition {job.partition}"
    yield f"  {_meaning(job)}"
    for how, other in job.waits_for:
        yield f"  it starts once {WAITS.get(how, how + ' {}').format(other)}"
    if why["num_ahead"] is not None:
        yield f"  jobs ahead of it in the partition: {why['num_ahead']}"
    if job.starts is not None:
        yield f"  expected to start: {moment(job.starts)}; earlier if other jobs end early"
    elif why["num_ahead"] is not None:
        yield "  expected to start: not planned yet; Slurm plans only the first jobs of the queue"
    if why["factors"]:
        parts = ", ".join(f"{name} {part:,}" for name, part in why["factors"].items())
        yield f"  priority {job.priority or 0:,}: {parts}"


def end_lines(job_id: str, account: Mapping[str, Any]) -> list[str]:
    """Return lines about how a job ended, from accounting, with squeue's reason if known."""
    state = accounting.end_of(account, account.get("reason"))
    lines = [f"{job_id} {account['name']} of {account['user']}: {state.name}, {state.meaning}"]
    if account["elapsed_s"] is not None:
        limit = "" if account["limit_s"] is None else f" of {in_words(account['limit_s'])}"
        has_begun = account["elapsed_s"] or account["nodes"]
        ran = in_words(account["elapsed_s"] if has_begun else None)
        lines.append(f"  ran {ran}{limit} on {account['nodes'] or 'no node'}")
    code = account["exit_code"]
    if code not in (None, "0:0"):
        means = ENDS.get(code) or _signal(code)
        lines.append(f"  exit code {code}{means and f': {means}'}")
    lines += _ends_of_steps(account)
    if state.name in ("NODE_FAIL", "BOOT_FAIL"):
        return [*lines, "Next: lockstep slurm nodes  # shows which is down"]
    return [*lines, f"Next: lockstep slurm eff {job_id}"]


def _ends_of_steps(account: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the steps that failed."""
    bad = account["bad_steps"]
    for step in bad[:MAX_STEPS]:
        code = "0:125" if step["state"] == "OUT_OF_MEMORY" else step["exit_code"]
        how = ENDS.get(code) or _signal(code) or f"it ended as {step['state']}, exit code {code}"
        name = "script" if step["step"] == "batch" else f"step {step['step']}"
        yield f"  {name}: {how}"
    if len(bad) > MAX_STEPS:
        yield f"  {len(bad) - MAX_STEPS} more steps failed"


def _signal(code: str) -> str:
    """Return which signal ended a program, also from a shell's 128 + number; "" if none did."""
    status, number = (slurm.count(part) or 0 for part in (code + ":").split(":")[:2])
    number = number or max(0, status - 128)
    if not 0 < number < signal.NSIG:
        return ""
    known = [f" ({each.name.removeprefix('SIG')})" for each in signal.Signals if each == number]
    return f"signal {number}{''.join(known)} ended it{SIGNALS.get(number, '')}"


def use_lines(job_id: str, account: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about how well a job used its resources."""
    yield f"{job_id} {account['name']}: {account['state']}"
    yield from _ends_of_steps(account)
    elapsed = in_words(account["elapsed_s"])
    for what, fraction, used, given in (
        ("CPUs", account["cpu_efficiency"], in_words(account["total_cpu_s"]),
         f"{account['alloc_cpus']} CPUs x {elapsed}"),
        ("memory", account["memory_efficiency"], size(account["memory_bytes"]),
         size(account["requested_bytes"])),
        ("time", account["time_efficiency"], elapsed, in_words(account["limit_s"])),
    ):  # fmt: skip
        part = DASH if fraction is None else f"{fraction:.0%}"
        yield f"  {what:7} {part:>5}   {used} of {given}"
    if account["gpu_hours"]:
        use, busy = account["gpu_use"], "Slurm does not report how busy they were"
        if use is not None:
            memory = use["memory_bytes"]
            memory = "" if memory is None else f", {_mebibytes(memory)} of memory"
            busy = f"{use['busy_percent']}% busy{memory} ({use['column']} of step {use['step']})"
        yield f"  GPUs    {account['gpu_hours']:.3g} GPU-hours; {busy}"
    if account["state"] not in ENDED:
        then = "top" if account["state"] == "RUNNING" else "why"
        yield f"  The job has not ended; lockstep slurm {then} {job_id} shows its state"
    for hint in hints(account):
        kind, amount = hint["kind"], hint["amount"]
        wanted = f"--time={clock(amount)}" if "time" in kind else f"--mem={_mebibytes(amount)}"
        if kind == "cpus_idle":
            wanted = f"{amount} CPU{'s' * (amount > 1)} would be enough"
        wanted += " a node" * ("memory" in kind)
        wanted += " would be enough, and the job may start earlier" * kind.endswith("ample")
        wanted += " or more; this job was near its limit" * kind.endswith("near")
        yield f"  Next time: {wanted}"


def size(num_bytes: float | None) -> str:
    """Return a number of bytes with a unit; a dash if it is not known."""
    return DASH if num_bytes is None else size_of(num_bytes)


def _mebibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // 1024**2)}M"
