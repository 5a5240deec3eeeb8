"""Slurm's accounting of jobs that have ended, and ratios computed from it.

A batch script runs the same query, `SHELL_COMMAND` and --jobs=IDS, to save the answer for a machine
without sacct. The row of a job that has not ended is not final, so it is not kept.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    *("NodeList", "User", "JobName"),  # the name is last, as it may contain any character
)
COMMAND = ("sacct", "--parsable2", f"--format={','.join(FIELDS)}")
SHELL_COMMAND = " ".join((*(f"{k}={v}" for k, v in slurm.ENVIRONMENT.items()), *COMMAND))

# Slurm counts in units of 1024, whatever the letter (sacct(1), --units).
UNITS: dict[str, int] = {letter: 1024**power for power, letter in enumerate(["", *"KMGTPE"])}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTPE]?)(?:i?B)?", re.ASCII)
HOUR_S = 3600.0

T = TypeVar("T", int, float)
Row = dict[str, str]
Account = dict[str, Any]


def ask(job_ids: Sequence[str]) -> dict[str, Account]:
    """Return sacct's account of each job and array element, ended or not, by one call."""
    return select(f"--jobs={','.join(job_ids)}") if job_ids else {}


def select(*selection: str) -> dict[str, Account]:
    """Return sacct's account of each job that these options of sacct select."""
    return read(slurm.ask(*COMMAND, *selection))


def read(text: str) -> dict[str, Account]:
    """Return job id (`ID_K` for an array's element) -> its account, from sacct's parsable text."""
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
        if elements.startswith("["):  # elements that never began share a row
            names = [f"{array_id}_{number}" for number in slurm.numbers(elements)]
        accounts |= dict.fromkeys(names, _account(row, steps.get(job_id, [])))
    return accounts


def _rows(text: str) -> Iterator[Row]:
    head, *lines = text.splitlines() or [""]
    names = head.split("|")
    if {"JobID", "State"} <= set(names):
        for line in lines:
            cells = line.split("|", len(names) - 1)
            if len(cells) == len(names):  # leaves out a line that is cut short
                yield dict.fromkeys(FIELDS, "") | dict(zip(names, cells, strict=True))


def read_collected(results: Results) -> dict[str, Account]:
    """Return job id -> account of its end, as an earlier `collect` wrote it."""
    try:
        rows = files.parse(files.content(results.accounting_file))["jobs"]
        known = {str(row["id"]): row["accounting"] for row in rows if row["accounting"]}
        return {i: each for i, each in known.items() if "raw_id" in each and has_ended(each)}
    except (ValueError, KeyError, TypeError):
        return {}  # no `collect` has run yet


def read_saved(results: Results) -> dict[str, Account]:
    """Return job id -> account of its end, from files of the collecting job and of `collect`."""
    path = results.jobs_folder / "sacct.txt"
    accounts = (read(files.text(path)) if path.exists() else {}) | read_collected(results)
    return {job_id: account for job_id, account in accounts.items() if has_ended(account)}


def is_absent(error: RuntimeError) -> bool:
    """Return whether sacct failed because this cluster or machine has no accounting."""
    return isinstance(error, NotInstalledError | NoAccountingError)


def has_ended(account: Mapping[str, Any] | None) -> bool:
    return account is not None and account["state"] in slurm.ENDED


def end_of(account: Mapping[str, Any], reason: str | None = None) -> slurm.State:
    """Return the state in which a job ended; `reason` is squeue's reason for its wait."""
    return slurm.State(account["state"], reason, account.get("cancelled_by"))


def _account(row: Row, steps: Sequence[Row]) -> Account:
    """Merge a job's row with the rows of its steps, which alone have the memory."""
    submitted, eligible, started = (instant(row[name]) for name in ("Submit", "Eligible", "Start"))
    wait_s = None  # without the time that a dependency or --begin held the job
    if submitted is not None and eligible is not None and started is not None:
        wait_s = started - max(submitted, eligible)
    used_s = [used for step in steps if (used := parse_duration(step["TotalCPU"])) is not None]
    busy_cpus = (
        used / elapsed
        for step in steps
        if (used := parse_duration(step["TotalCPU"]))
        and (elapsed := parse_duration(step["Elapsed"]))
    )
    uid, tres = slurm.count(row["State"].partition(" by ")[2]), _tres(row["AllocTRES"])
    facts: Account = {
        "raw_id": row["JobIDRaw"] or None, "name": row["JobName"] or None,
        "user": row["User"] or None, "state": _word(row["State"]),
        "cancelled_by": None if uid is None else slurm.name_of(uid),  # None for Slurm
        "exit_code": row["ExitCode"] or None,
        "elapsed_s": parse_duration(row["Elapsed"]), "limit_s": parse_duration(row["Timelimit"]),
        "submitted": submitted, "eligible": eligible, "started": started,
        "ended": instant(row["End"]),
        "queue_wait_s": wait_s if wait_s is None or wait_s >= 0 else None,
        "max_rss_bytes": _largest(size(step["MaxRSS"]) for step in steps),
        "max_vm_bytes": _largest(size(step["MaxVMSize"]) for step in steps),
        "ave_cpu_s": _largest(parse_duration(step["AveCPU"]) for step in steps),
        "total_cpu_s": sum(used_s) if used_s else parse_duration(row["TotalCPU"]),
        "busiest_cpus": _largest(busy_cpus),
        "memory_bytes": _largest(map(_memory, steps)),
        "node_bytes": _largest(map(_memory_of_node, steps)),
        "num_tasks": _largest(slurm.count(step["NTasks"]) for step in steps),
        "bad_steps": list(_bad_steps(row, steps)), "gpu_use": _gpu_use(steps),
        "alloc_tres": tres or None, "alloc_cpus": slurm.count(row["AllocCPUS"]),
        "num_nodes": slurm.count(row["NNodes"]),
        "nodes": row["NodeList"] if row["NodeList"] not in ("", "None assigned") else None,
        # Memory of the whole job: allocated, else requested.
        "requested_bytes": size(tres.get("mem", "")) or size(row["ReqMem"]) or None,
    }  # fmt: skip
    return facts | _ratios(facts)


def _ratios(facts: Account) -> Account:
    """Return the used fractions, as seff 2.1 (contribs/seff of Slurm) computes them.

    They are the CPU time of all steps over CPUs x elapsed time; the largest total memory of a
    step's tasks over the allocated memory; and the elapsed time over its limit. Hours of `billing`
    are Slurm's own (slurm.conf(5), TRESBillingWeights), before a QOS's usage factor.
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
        # Slurm gives 0 s if it could not account the time, for example after a node failure.
        "cpu_efficiency": ratio(facts["total_cpu_s"] or None, cpus and elapsed and cpus * elapsed),
        "memory_efficiency": ratio(facts["memory_bytes"], facts["requested_bytes"]),
        "time_efficiency": ratio(elapsed, facts["limit_s"]),
        "gpu_hours": hours(num_gpus if "gres/gpu" in tres else num_gpus or None),
        "node_hours": hours(facts["num_nodes"]),
        "cpu_hours": hours(cpus),
        "billing_hours": hours(slurm.count(tres.get("billing"))),
    }


def _word(text: str) -> str:
    """Return the state without its additions, as in `CANCELLED by 1000` and `COMPLETED+`."""
    return (text.split() or [""])[0].rstrip("+") or "unknown"


def _memory(step: Row) -> int | None:
    """Return the memory of all tasks of a step: the sum of their peaks."""
    total, each = size(_tres(step["TRESUsageInTot"]).get("mem", "")), size(step["MaxRSS"])
    if total is not None or each is None:
        return total
    return each * (slurm.count(step["NTasks"]) or 1)


def _memory_of_node(step: Row) -> int | None:
    """Return the most memory that a step's tasks may have used on one node.

    This is MaxRSS, the peak of the largest task (sacct(1)), times an even share of the tasks, but
    at most the memory of all tasks. Without MaxRSS all tasks may have been on one node.
    """
    each, total = size(step["MaxRSS"]), _memory(step)
    if each is None or total is None:
        return total
    tasks, nodes = slurm.count(step["NTasks"]) or 1, slurm.count(step["NNodes"]) or 1
    return min(each * math.ceil(tasks / nodes), max(each, total))


def slurm_ended(state: str, code: str) -> bool:
    """Return whether Slurm itself ended a job or its step: by SIGTERM, then SIGKILL."""
    is_own_end = state in ("COMPLETED", "FAILED", "OUT_OF_MEMORY")
    return not is_own_end and code in ("0:0", "0:9", "0:15")


def _bad_steps(row: Row, steps: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yield the steps that failed, except failures that the job's own row already shows."""
    for step in steps:
        name, state, code = step["JobID"].partition(".")[2], _word(step["State"]), step["ExitCode"]
        is_known = name == "extern" or (name == "batch" and code == row["ExitCode"])
        is_known = is_known or slurm_ended(_word(row["State"]), code)
        if state in slurm.ENDED and not is_known and (state != "COMPLETED" or code != "0:0"):
            yield {"step": name, "state": state, "exit_code": code}


def _gpu_use(steps: Sequence[Row]) -> dict[str, Any] | None:
    """Return the use of GPUs by the busiest step; None where Slurm does not gather it.

    With AutoDetect in gres.conf Slurm gathers `gres/gpuutil`, in per cent, and `gres/gpumem` of
    each task. The columns show the mean task, the largest task, and all tasks together (sacct(1)).
    """
    for column in ("TRESUsageInAve", "TRESUsageInMax", "TRESUsageInTot"):
        used = {step["JobID"].partition(".")[2]: _tres(step[column]) for step in steps}
        busy = {name: slurm.count(tres.get("gres/gpuutil")) for name, tres in used.items()}
        if known := {name: percent for name, percent in busy.items() if percent is not None}:
            step = max(known, key=lambda name: known[name])
            memory = size(used[step].get("gres/gpumem", ""))
            return {"step": step, "column": column, "busy_percent": known[step],
                    "memory_bytes": memory}  # fmt: skip
    return None


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
