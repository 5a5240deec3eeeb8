"""What Slurm's accounting knows of jobs that have ended, and what follows from it.

A batch script asks the same by `SHELL_COMMAND` and --jobs=IDS, where the answer is to be kept for a
machine without sacct. A row of a job that has not ended says nothing final, and is not kept.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from lockstep.core import files
from lockstep.core.formats import parse_duration
from lockstep.slurm import client as slurm
from lockstep.slurm.client import NoAccountingError, NotInstalledError, instant
from lockstep.slurm.status.sent import Results

FIELDS = (
    *("JobID", "JobIDRaw", "State", "ExitCode", "Elapsed", "Submit", "Eligible", "Start"),
    *("End", "Timelimit", "MaxRSS"),
    *("MaxVMSize", "AveCPU", "TotalCPU", "ReqMem", "AllocTRES", "AllocCPUS", "NNodes", "NTasks"),
    *("TRESUsageInAve", "TRESUsageInMax", "TRESUsageInTot"),
    *("NodeList", "User", "JobName"),  # the last may hold any character
)
COMMAND = ("sacct", "--parsable2", f"--format={','.join(FIELDS)}")
SHELL_COMMAND = " ".join((*(f"{k}={v}" for k, v in slurm.ENVIRONMENT.items()), *COMMAND))

# Slurm counts in units of 1024, whatever the letter (sacct(1), --units).
UNITS: dict[str, int] = {letter: 1024**power for power, letter in enumerate(["", *"KMGTPE"])}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTPE]?)(?:i?B)?", re.ASCII)
_REQUEST = re.compile(r"(.+?)([nc]?)", re.ASCII)
HOUR_S = 3600.0

T = TypeVar("T", int, float)
Row = dict[str, str]
Account = dict[str, Any]


def ask(job_ids: Sequence[str]) -> dict[str, Account]:
    """Return what sacct knows now of each job and array element, ended or not, by one call."""
    return matching(f"--jobs={','.join(job_ids)}") if job_ids else {}


def matching(*selection: str) -> dict[str, Account]:
    """Return what sacct knows of the jobs that its options select."""
    return read(slurm.ask(*COMMAND, *selection))


def read(text: str) -> dict[str, Account]:
    """Return job id (of an array's element `ID_K`) -> what sacct's parsable text says of it."""
    steps: dict[str, list[Row]] = {}
    jobs: dict[str, Row] = {}
    for row in _rows(text):
        job_id, _, step = row["JobID"].partition(".")
        if step:
            steps.setdefault(job_id, []).append(row)
        elif job_id:
            jobs[job_id] = row
    accounts: dict[str, Account] = {}
    for job_id, row in jobs.items():
        array_id, _, elements = job_id.partition("_")
        names = [job_id]
        if elements.startswith("["):  # those that never began share a row
            names = [f"{array_id}_{number}" for number in slurm.numbers(elements)]
        accounts |= dict.fromkeys(names, _account(row, steps.get(job_id, [])))
    return accounts


def _rows(text: str) -> Iterator[Row]:
    head, *lines = text.splitlines() or [""]
    names = head.split("|")
    if {"JobID", "State"} <= set(names):
        for line in lines:
            cells = line.split("|", len(names) - 1)
            if len(cells) == len(names):  # a line that is cut short is left out
                yield dict.fromkeys(FIELDS, "") | dict(zip(names, cells, strict=True))


def kept(results: Results) -> dict[str, Account]:
    """Return job id -> what sacct said of its end, to the collecting job or to `collect`."""
    path = results.jobs_folder / "sacct.txt"
    accounts = read(files.text(path)) if path.exists() else {}
    with suppress(ValueError, KeyError, TypeError):  # none yet, or of an earlier schema
        rows = files.parse(files.content(results.accounting_file))["jobs"]
        accounts |= {row["id"]: row["accounting"] for row in rows if row["accounting"]}
    return {job_id: account for job_id, account in accounts.items() if has_ended(account)}


def is_absent(error: RuntimeError) -> bool:
    """Return whether a failure of sacct means that there is no accounting to wait for."""
    return isinstance(error, NotInstalledError | NoAccountingError)


def has_ended(account: Mapping[str, Any] | None) -> bool:
    """Return whether sacct says of a job that it has ended."""
    return account is not None and account["state"] in slurm.ENDED


def end_of(account: Mapping[str, Any], reason: str | None = None) -> slurm.State:
    """Return the state in which a job ended; `reason` is Slurm's word for what it waited for."""
    return slurm.State(account["state"], reason, account.get("cancelled_by"))


def _account(row: Row, steps: Sequence[Row]) -> Account:
    """Merge a job's row with those of its steps: only steps have their memory."""
    submitted, eligible, started = (instant(row[name]) for name in ("Submit", "Eligible", "Start"))
    wait_s = None  # in which the job might have started: not held by a dependency or `--begin`
    if submitted is not None and eligible is not None and started is not None:
        wait_s = started - max(submitted, eligible)
    used_s = [used for step in steps if (used := parse_duration(step["TotalCPU"])) is not None]
    uid = slurm.count(row["State"].partition(" by ")[2])
    facts: Account = {
        "raw_id": row["JobIDRaw"] or None,
        "name": row["JobName"] or None,
        "user": row["User"] or None,
        "state": _word(row["State"]),
        "cancelled_by": None if uid is None else slurm.name_of(uid),  # of Slurm itself nobody
        "exit_code": row["ExitCode"] or None,
        "elapsed_s": parse_duration(row["Elapsed"]),
        "limit_s": parse_duration(row["Timelimit"]),
        "submitted": submitted,
        "eligible": eligible,
        "started": started,
        "ended": instant(row["End"]),
        "queue_wait_s": wait_s if wait_s is None or wait_s >= 0 else None,
        "max_rss_bytes": _largest(size(step["MaxRSS"]) for step in steps),
        "max_vm_bytes": _largest(size(step["MaxVMSize"]) for step in steps),
        "ave_cpu_s": _largest(parse_duration(step["AveCPU"]) for step in steps),
        "total_cpu_s": sum(used_s) if used_s else parse_duration(row["TotalCPU"]),
        "memory_bytes": _largest(map(_memory, steps)),
        "node_bytes": _largest(map(_memory_of_node, steps)),
        "num_tasks": _largest(slurm.count(step["NTasks"]) for step in steps),
        "bad_steps": list(_bad_steps(row, steps)),
        "gpu_use": _gpu_use(steps),
        "alloc_tres": _tres(row["AllocTRES"]) or None,
        "alloc_cpus": slurm.count(row["AllocCPUS"]),
        "num_nodes": slurm.count(row["NNodes"]),
        "nodes": row["NodeList"] if row["NodeList"] not in ("", "None assigned") else None,
    }
    facts["requested_bytes"] = _requested(row["ReqMem"], facts)
    return facts | _ratios(facts)


def _ratios(facts: Account) -> Account:
    """Return the shares that were used, as seff 2.1 (contribs/seff of Slurm) computes them.

    CPU time of all steps over CPUs x elapsed time, and the largest memory that a step's tasks had
    together over what was allocated; and elapsed time over its limit. Hours are of what was
    allocated; those of `billing` are Slurm's own (slurm.conf(5), TRESBillingWeights), before a
    QOS's usage factor.
    """
    cpus, elapsed = facts["alloc_cpus"], facts["elapsed_s"]
    tres = facts["alloc_tres"] or {}
    # `gres/gpu=4` or, where only types are counted, `gres/gpu:h100=4`.
    typed = [slurm.count(value) for name, value in tres.items() if name.startswith("gres/gpu:")]
    num_gpus = slurm.count(tres["gres/gpu"]) if "gres/gpu" in tres else sum(filter(None, typed))

    def hours(count: int | None) -> float | None:
        return None if count is None or elapsed is None else count * elapsed / HOUR_S

    def ratio(part: float | None, whole: float | None) -> float | None:
        return part / whole if part is not None and whole else None

    return {
        # No time at all is one that was not accounted, as of a job that lost its node.
        "cpu_efficiency": ratio(facts["total_cpu_s"] or None, cpus and elapsed and cpus * elapsed),
        "memory_efficiency": ratio(facts["memory_bytes"], facts["requested_bytes"]),
        "time_efficiency": ratio(elapsed, facts["limit_s"]),
        "gpu_hours": hours(num_gpus if "gres/gpu" in tres else num_gpus or None),
        "node_hours": hours(facts["num_nodes"]),
        "cpu_hours": hours(cpus),
        "billing_hours": hours(slurm.count(tres.get("billing"))),
    }


def _word(text: str) -> str:
    """Return the state's first word: `CANCELLED by 1000`, `COMPLETED+`."""
    return (text.split() or [""])[0].rstrip("+") or "unknown"


def _memory(step: Row) -> int | None:
    """Return what the tasks of a step had together: the sum of their peaks."""
    total = size(_tres(step["TRESUsageInTot"]).get("mem", ""))
    if total is not None:
        return total
    each, tasks = size(step["MaxRSS"]), slurm.count(step["NTasks"])
    return each * (tasks or 1) if each is not None else None


def _memory_of_node(step: Row) -> int | None:
    """Return what a step's tasks may have had together on one of its nodes, at most.

    MaxRSS is the peak of its largest task (sacct(1)), and a node has as many tasks as an even
    share; never more than all tasks together. Without MaxRSS all may have been on one node.
    """
    each, total = size(step["MaxRSS"]), _memory(step)
    if each is None or total is None:
        return total
    tasks, nodes = slurm.count(step["NTasks"]) or 1, slurm.count(step["NNodes"]) or 1
    return min(each * math.ceil(tasks / nodes), max(each, total))


def _bad_steps(row: Row, steps: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yield the steps that did not end well, where the job's own row does not say it.

    Where Slurm ends a job it ends the steps, by SIGTERM and then SIGKILL.
    """
    ends_steps = _word(row["State"]) not in ("COMPLETED", "FAILED", "OUT_OF_MEMORY")
    for step in steps:
        name, state, code = step["JobID"].partition(".")[2], _word(step["State"]), step["ExitCode"]
        is_said = name == "extern" or (name == "batch" and code == row["ExitCode"])
        is_said = is_said or (ends_steps and code in ("0:0", "0:9", "0:15"))
        if state in slurm.ENDED and not is_said and (state != "COMPLETED" or code != "0:0"):
            yield {"step": name, "state": state, "exit_code": code}


def _gpu_use(steps: Sequence[Row]) -> dict[str, Any] | None:
    """Return what the busiest step had of its GPUs; None where Slurm does not gather it.

    With AutoDetect of gres.conf Slurm gathers `gres/gpuutil`, in per cent, and `gres/gpumem` of
    each task; the columns are of a task on average, of the largest, and of all together (sacct(1)).
    """
    for column in ("TRESUsageInAve", "TRESUsageInMax", "TRESUsageInTot"):
        used = {step["JobID"].partition(".")[2]: _tres(step[column]) for step in steps}
        busy = {name: slurm.count(tres.get("gres/gpuutil")) for name, tres in used.items()}
        if known := {name: percent for name, percent in busy.items() if percent is not None}:
            step = max(known, key=lambda name: known[name])
            memory = size(used[step].get("gres/gpumem", ""))
            facts = {"step": step, "column": column, "busy_percent": known[step]}
            return facts | {"memory_bytes": memory}
    return None


def _requested(text: str, facts: Account) -> int | None:
    """Return the memory of the whole job: what was allocated, else what was asked for.

    `32G` is of the job, `32Gn` of each node and `4Gc` of each CPU (sacct(1) up to 20.11).
    """
    allocated = size((facts["alloc_tres"] or {}).get("mem", ""))
    if allocated is not None and allocated > 0:
        return allocated
    match = _REQUEST.fullmatch(text)
    amount = size(match[1]) if match else None
    if not match or not amount:
        return None
    per: dict[str, int | None] = {"n": facts["num_nodes"], "c": facts["alloc_cpus"], "": 1}
    times = per[match[2]]
    return amount * times if times else None


def _tres(text: str) -> dict[str, str]:
    cells = (cell.rpartition("=") for cell in text.split(",") if "=" in cell)
    return {name: value for name, _, value in cells}


def _largest(values: "Iterable[T | None]") -> "T | None":
    return max((value for value in values if value is not None), default=None)


def size(text: str) -> int | None:
    """Return the bytes of `1024`, `1908K`, `28.5G`; None for anything else."""
    match = _SIZE.fullmatch(text)
    if not match or len(text) > slurm.MAX_DIGITS:
        return None
    return round(float(match[1]) * UNITS[match[2]])
