"""Any job of Slurm: its state, why it waits, how it ended, and how well it used its resources."""

import math
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from lockstep.core.formats import DASH, clock, counted, in_words, size_of, trimmed
from lockstep.slurm import client as slurm
from lockstep.slurm.client import ENDED, FailedError, Queued
from lockstep.slurm.status import accounting
from lockstep.slurm.status.standing import NEAR

COLUMNS = (
    *("job_id", "state", "reason", "user", "partition", "num_nodes", "elapsed", "limit"),
    *("submitted", "starts", "waits_for", "priority", "nodes", "name"),
)
# Letters of sprio's --format -> the weighted factors that add up to the priority (sprio(1)).
FACTORS = {"A": "age", "F": "fairshare", "J": "job size", "P": "partition", "Q": "QOS",
           "N": "nice"}  # fmt: skip
# kind of dependency -> condition in words
WAITS = {
    "after": "job {job} has begun",
    "afterany": "job {job} has ended",
    "afterok": "job {job} has succeeded",
    "afternotok": "job {job} has failed",
    "aftercorr": "the same element of job {job} has succeeded",
    "afterburstbuffer": "job {job} has ended, and its burst-buffer data have been copied",
    "singleton": "your earlier jobs of the same name have ended",
}
# CODE:SIGNAL as sacct writes it -> the usual cause
ENDS = {
    "0:53": "the node could not open the output file, perhaps because its folder does not exist",
    "0:125": "the processes needed more memory than Slurm gave them",
    "126:0": "a command exists, but is not executable",
    "127:0": "a command was not found, because a module, an environment or a path is missing",
}
# signal -> its usual cause
SIGNALS: dict[int, str] = {
    signal.SIGABRT: "; the program aborted",
    signal.SIGBUS: "; this bus error often means that /dev/shm is full",
    signal.SIGKILL: "; the usual cause is that memory ran out",
    signal.SIGSEGV: "; this is a segmentation fault",
    signal.SIGTERM: "; scancel sends this signal, for example",
    signal.SIGUSR1: "; --signal without B: sends this signal to the ranks, for example",
}
MAX_STEPS = 5
# A job that used less than AMPLE of a request could request less; above NEAR it may need more.
AMPLE = 0.5
# Ratio of a suggested request to the use.
MARGIN = 1.25
# Requests below these are not worth a change.
SMALL_BYTES = 2 * 1024**3
SMALL_S = 600
_JOB = re.compile(r"([0-9]{1,12})(?:_([0-9]{1,7}))?", re.ASCII)


def facts(job: Queued) -> dict[str, Any]:
    # Only the columns that squeue was asked for: the other fields are empty, as if it had answered.
    names = (*COLUMNS, "elapsed_s", "limit_s")
    own = {name: value for name, value in vars(job).items() if name in names}
    return own | {"state": job.state.name, "reason": job.state.reason}


def is_id(text: str) -> bool:
    return _JOB.fullmatch(text) is not None


def check_id(job_id: str) -> str:
    """Return a job id unchanged; raise ValueError for another text."""
    if not is_id(job_id):
        raise ValueError(
            f"{job_id[:80]!r} is not a job id; give an id such as 4711, or 4711_3 for an array's "
            "element; lockstep slurm jobs lists your jobs"
        )
    return job_id


def list_jobs(user: str) -> list[Queued]:
    """Return a user's jobs: running ones first, then by expected start."""
    jobs = slurm.squeue(COLUMNS, f"--user={user}")
    far = max((job.starts or 0 for job in jobs), default=0) + 1
    return sorted(jobs, key=lambda job: (job.is_waiting, job.starts or far))


def find_job(job_id: str) -> list[Queued]:
    """Return a job, or an array's elements, from squeue; nothing if squeue has dropped the job."""
    try:
        return slurm.squeue(COLUMNS, f"--jobs={job_id}")
    except FailedError as error:
        if "Invalid job id" in error.stderr:  # ended more than MinJobAge ago, or never existed
            return []
        raise


def wait(job: Queued) -> dict[str, Any]:
    """Return why a pending job has not started; None for what Slurm does not answer.

    Returns:
        `factors`: factor -> its part of the priority; `num_ahead`: pending jobs of a higher
        priority in the same partition, an array counted once; None if the job waits for something
        else than its turn.
    """
    factors, num_ahead = None, None
    # priority/basic has no factors, and some centres forbid sprio.
    with suppress(RuntimeError):
        wanted = "|".join(f"%{letter}" for letter in FACTORS)
        text = slurm.ask("sprio", "--noheader", f"--jobs={job.array_id}", f"--format={wanted}")
        first = (text.splitlines() or [""])[0]
        cells = first.replace(" ", "").split("|")
        if len(cells) == len(FACTORS):
            numbers = (re.fullmatch("-?[0-9]{1,18}", cell, re.ASCII) for cell in cells)
            parts = zip(FACTORS.values(), numbers, strict=True)
            factors = {name: part for name, number in parts if number and (part := int(number[0]))}
    if job.state.reason in slurm.IN_LINE:
        with suppress(RuntimeError):
            where = (f"--partition={job.partition}", "--states=PENDING")
            others = slurm.squeue(("priority", "reason"), *where)
            in_line = [other for other in others if other.state.reason in slurm.IN_LINE]
            num_ahead = sum((other.priority or 0) > (job.priority or 0) for other in in_line)
    return {"factors": factors, "num_ahead": num_ahead}


def read_accounts(job_ids: list[str]) -> dict[str, accounting.Account]:
    """Return the id of a job or array element -> its account in sacct.

    Raises:
        ValueError: An id is malformed, or sacct knows none of the jobs.
    """
    accounts = accounting.ask([check_id(job_id) for job_id in job_ids])
    if not accounts:
        ids = ", ".join(job_ids)
        raise ValueError(
            f"Slurm does not know job {ids}: squeue does not list the job, and accounting has no "
            "record of the job; lockstep slurm jobs --ended 24 lists your jobs"
        )
    return accounts


def list_ended(user: str, hours: float) -> dict[str, accounting.Account]:
    since = f"--starttime=now-{math.ceil(hours * 60)}minutes"
    # Without --state sacct leaves out jobs that were cancelled before they started.
    states = f"--state={','.join(sorted(ENDED))}"
    known = accounting.select(f"--user={user}", "--allocations", since, "--endtime=now", states)
    return {job_id: each for job_id, each in known.items() if accounting.has_ended(each)}


def reason_of_end(job_id: str, state: str) -> str | None:
    """Return squeue's reason of a cancelled job; None once squeue has dropped it."""
    if state == "CANCELLED":
        with suppress(RuntimeError):  # without squeue the answer of accounting is enough
            jobs = slurm.squeue(COLUMNS, f"--jobs={job_id}", "--states=all")
            return jobs[0].state.reason if len(jobs) == 1 else None
    return None


def hints(account: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return suggestions for the next request; smaller requests only if job and steps succeeded.

    Returns:
        Each has a `kind` (`memory_ample`, `memory_near`, `time_ample`, `time_near` or `cpus_idle`)
        and the `amount` to request, with a margin: bytes per node, seconds or CPUs.
    """
    states = (account["state"], *(step["state"] for step in account["bad_steps"]))
    is_over, amounts = "OUT_OF_MEMORY" in states, dict[str, float]()
    if not is_over and account["state"] not in ("COMPLETED", "TIMEOUT"):
        return []
    used, requested = account["node_bytes"], account["requested_bytes"]
    num_nodes = account["num_nodes"] or 1
    if used is not None and requested:
        of_node = requested / num_nodes
        if is_over or used >= NEAR * of_node:
            amounts["memory_near"] = MARGIN * max(used, of_node)
        elif used < AMPLE * of_node and requested > SMALL_BYTES:
            amounts["memory_ample"] = MARGIN * used
    share, elapsed_s = account["time_efficiency"], account["elapsed_s"]
    if not is_over and share is not None and share >= NEAR:
        amounts["time_near"] = MARGIN * elapsed_s
    elif share is not None and share < AMPLE and account["limit_s"] > SMALL_S:
        amounts["time_ample"] = max(SMALL_S, MARGIN * elapsed_s)
    share, cpus = account["cpu_efficiency"], account["alloc_cpus"]
    if share is not None and not account["gpu_hours"]:  # CPUs of GPU jobs may well wait
        on_average, busiest = MARGIN * share * cpus, account.get("busiest_cpus") or 0.0
        enough = max(num_nodes, account["num_tasks"] or 1, math.ceil(max(on_average, busiest)))
        if share < AMPLE and enough < cpus:
            amounts["cpus_idle"] = enough
    if states != ("COMPLETED",):
        amounts = {kind: amount for kind, amount in amounts.items() if kind.endswith("_near")}
    return [{"kind": kind, "amount": math.ceil(amount)} for kind, amount in amounts.items()]


# Lines for a terminal


def job_line(job: Queued) -> str:
    text = job.state.meaning.replace("{id}", job.job_id)
    if job.is_waiting and job.starts is not None:
        text += f"; expected start: {moment(job.starts)}"
    elif job.state.name == "RUNNING":
        elapsed = in_words(job.elapsed_s)
        text = f"the job has run for {elapsed} on {job.nodes}"
        if job.limit_s is not None and job.elapsed_s is not None:
            text += f"; {in_words(max(0.0, job.limit_s - job.elapsed_s))} left"
    return f"{job.job_id} {job.name}: {text}"


def moment(at: int) -> str:
    """Return a time as local date and time, and how far ahead it is."""
    ahead_s = at - time.time()
    return f"{date(at)}, {f'in {in_words(ahead_s)}' if ahead_s > 0 else 'now'}"


def date(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def wait_lines(job: Queued, why: Mapping[str, Any]) -> Iterator[str]:
    yield f"{job.job_id} {job.name} of {job.user}, partition {job.partition}"
    yield f"  {job.state.meaning.replace('{id}', job.job_id)}"
    for how, other in job.waits_for:
        condition = WAITS.get(how, how + " {job}").format(job=other)
        yield f"  the job starts once {condition}"
    if why["num_ahead"] is not None:
        yield f"  number of jobs ahead of this job in the partition: {why['num_ahead']}"
    if job.starts is not None:
        yield f"  expected start: {moment(job.starts)}, or earlier if other jobs end early"
    elif why["num_ahead"] is not None:
        yield "  expected start: unknown, because Slurm plans only the first jobs of the queue"
    if why["factors"]:
        parts = ", ".join(f"{name} {part:,}" for name, part in why["factors"].items())
        yield f"  priority {job.priority or 0:,}: {parts}"


def end_lines(job_id: str, account: Mapping[str, Any]) -> list[str]:
    """Return lines about how a job ended, from accounting, with squeue's reason if known."""
    state, steps = accounting.end_of(account, account.get("reason")), list(_step_lines(account))
    meaning = state.meaning
    if steps and state.name == "COMPLETED":
        meaning = "the job's script ended with exit code 0, but a step failed"
    lines = [f"{job_id} {account['name']} of {account['user']}: {state.name}, {meaning}"]
    if account["elapsed_s"] is not None:
        limit = "" if account["limit_s"] is None else f" of {in_words(account['limit_s'])}"
        elapsed, nodes = in_words(account["elapsed_s"]), account["nodes"] or "no node"
        ran = f"  the job ran {elapsed}{limit} on {nodes}"
        if not account["elapsed_s"] and not account["nodes"]:
            # Slurm may record an exit code, but no node, if a program failed at once.
            is_short = state.name in ("COMPLETED", "FAILED")
            ran = (
                "  Slurm recorded no node and a run time of 0 s"
                if is_short
                else "  the job did not run"
            )
        until = "" if account["ended"] is None else f", until {date(account['ended'])}"
        lines.append(ran + until)
    code = account["exit_code"]
    if code not in (None, "0:0") and not accounting.slurm_ended(state.name, code):
        cause = _explain_exit(code)
        is_new = cause and not any(line.endswith(cause) for line in steps)
        shown, cause = code.removesuffix(":0"), f": {cause}" if is_new else ""
        lines.append(f"  exit code {shown}{cause}")
    lines += steps
    if state.name in ("NODE_FAIL", "BOOT_FAIL"):
        return [*lines, "Next: lockstep slurm nodes  # shows which node is down"]
    return [*lines, f"Next: lockstep slurm eff {job_id}"]


def _step_lines(account: Mapping[str, Any]) -> Iterator[str]:
    bad = account["bad_steps"]
    for step in bad[:MAX_STEPS]:
        code = "0:125" if step["state"] == "OUT_OF_MEMORY" else step["exit_code"]
        shown = code.removesuffix(":0")
        how = _explain_exit(code) or f"the step ended as {step['state']} with exit code {shown}"
        name = "script" if step["step"] == "batch" else f"step {step['step']}"
        yield f"  {name}: {how}"
    if len(bad) > MAX_STEPS:
        yield f"  {len(bad) - MAX_STEPS} more steps failed"


def _explain_exit(code: str) -> str:
    """Return the usual cause of sacct's `CODE:SIGNAL`; "" if unknown.

    A shell reports a signal as the code 128 + signal.
    """
    status, number = (slurm.count(part) or 0 for part in (code + ":").split(":")[:2])
    number = number or max(0, status - 128)
    if code in ENDS or not 0 < number < signal.NSIG:
        return ENDS.get(code, "")
    names = [f" ({each.name.removeprefix('SIG')})" for each in signal.Signals if each == number]
    return f"signal {number}{''.join(names)} ended the process{SIGNALS.get(number, '')}"


def use_lines(job_id: str, account: Mapping[str, Any]) -> Iterator[str]:
    yield f"{job_id} {account['name']}: {account['state']}"
    yield from _step_lines(account)
    elapsed, cpus = in_words(account["elapsed_s"]), account["alloc_cpus"]
    requested, num_nodes = size_of(account["requested_bytes"]), account["num_nodes"] or 1
    if account["requested_bytes"] and num_nodes > 1:
        requested += f" on {num_nodes} nodes together"
    for what, used, total in (
        ("cpu", in_words(account["total_cpu_s"]), f"{cpus} CPUs x {elapsed}"),
        ("memory", size_of(account["memory_bytes"]), requested),
        ("time", elapsed, in_words(account["limit_s"])),
    ):
        share = account[f"{what}_efficiency"]
        part, label = DASH if share is None else f"{share:.0%}", "CPUs" if what == "cpu" else what
        yield f"  {label:7} {part:>5}   {used} of {total}"
    if account["gpu_hours"]:
        use, busy = account["gpu_use"], "Slurm does not report how busy the GPUs were"
        if use is not None:
            memory = use["memory_bytes"]
            memory = "" if memory is None else f", {_mebibytes(memory)} of memory"
            busy = f"{use['busy_percent']}% busy{memory} ({use['column']} of step {use['step']})"
        yield f"  GPUs    {trimmed(account['gpu_hours'])} GPU-hours; {busy}"
    if account["state"] not in ENDED:
        command = "top" if account["state"] == "RUNNING" else "why"
        yield f"  The job has not ended; lockstep slurm {command} {job_id} shows its state"
    margin = f"{MARGIN - 1:.0%}"
    for hint in hints(account):
        kind, amount = hint["kind"], hint["amount"]
        request = f"--time={clock(amount)}" if "time" in kind else f"--mem={_mebibytes(amount)}"
        request += " a node" * ("memory" in kind)
        if kind == "cpus_idle":
            rule = f"{margin} more than the job used"
            for noun, least in (("node", account["num_nodes"]), ("task", account["num_tasks"])):
                rule = f"one per {noun}" if amount == least else rule
            yield f"  Next time: request {counted(amount, 'CPU')}, which would be enough: {rule}"
        elif kind.endswith("ample"):
            yield (
                f"  Next time: request {request}, which would be enough; the job may then start "
                "earlier"
            )
        else:
            yield f"  Next time: request {request} or more, because this job was near its limit"
    use = account["gpu_use"] or {"busy_percent": 0}  # unknown: only a next run can show it
    share = use["busy_percent"] / 100 if account["gpu_hours"] else account["cpu_efficiency"]
    if account["state"] in ("COMPLETED", "TIMEOUT") and share is not None and share < AMPLE:
        if not account["gpu_hours"]:
            yield (
                f"CPUs were busy only {share:.0%} of the time. This does not show whether the "
                "job waited for input, for other ranks, or for cores that other programs used."
            )
        yield (
            "Next: during the next run, lockstep slurm top JOB --every 10 --csv use.csv  # "
            "shows when GPUs and CPUs wait"
        )
        yield "Or: profile a step with torch.profiler, then lockstep explain PROFILE"


def _mebibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // 1024**2)}M"
