"""What is to be done about a job that has ended badly, in one sentence."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from lockstep.slurm.site import INTERFACE_NAMES
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Standing
from lockstep.slurm.submit.submission import stored_site
from lockstep.vocabulary import files
from lockstep.vocabulary.texts import one_line

GIB = 1024**3
# A peak this near to the request is what the limit let it have.
NEAR = 0.9
# How Slurm ends a job whose output its node cannot open: signal 53.
NO_OUTPUT = "0:53"
# 128 + SIGKILL, as a shell reports it, and as the exit code of a step that was killed.
KILLED = ("137:0", "0:9", "9:0")
SIDE_KINDS = ("preflight", "collect")
# Why a job waits that will never begin, in Slurm's words: what its site file asks for is at fault.
FOR_EVER = {
    *("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "ReservationDeleted"),
    *("InvalidAccount", "InvalidQOS", "MaxMemPerLimit"),
}
# A limit of what one job may have, such as QOSMaxWallDurationPerJobLimit and QOSMaxGRESPerJob.
_PER_JOB = re.compile(r"(QOS|Assoc)Max\w+PerJob(Limit)?")
MAX_GIST = 160
TAIL_BYTES = 8192
MINUTE_S = 60
_EXITED = re.compile(
    r"^srun: error: .*(Exited with exit code [0-9]+|Terminated|Killed)$"
    r"|^slurmstepd.* error: \*\*\* STEP .* CANCELLED .*"
)
# How pytest says why a session ended.
_SESSION_END = re.compile(r"! _pytest\.outcomes\.Exit: (.*) !")
# How srun names the node; slurmstepd's own line names the one that it runs on, which is well.
_NODE = re.compile(r"Node failure on ([\w.-]+)")


def advise(standing: Standing, results: Results, folder: str, *, is_last: bool) -> str | None:
    """Return what to do about a job; None where nothing is to be done.

    Args:
        standing: The job.
        results: The campaign's folder.
        folder: The folder as it is typed in a command.
        is_last: Whether no other job runs or waits: resume refuses until then.
    """
    when = "" if is_last else "once the other jobs have ended, "
    state = standing.state.name
    if state == "STALLED":
        minutes = (standing.quiet_s or 0) / MINUTE_S
        named = f"--job {shlex.quote(standing.job.name)}"
        if standing.job.element is not None:
            named += f" --point {standing.job.element}"
        return (
            f"its last line is {minutes:.0f} min old: lockstep cancel {folder} {named}, then "
            f"lockstep resume {folder} measures the rest"
        )
    if state == "PENDING" and _waits_for_ever(standing.state.reason or ""):
        return (
            f"lockstep cancel {folder}, mend that in the site file, then lockstep resume {folder} "
            "--site SITE"
        )
    if not standing.is_bad:
        return None
    cause = _cause(standing, results)
    return "; ".join(filter(None, (cause, _next(standing, results, folder, when))))


def _waits_for_ever(reason: str) -> bool:
    return reason in FOR_EVER or _PER_JOB.fullmatch(reason) is not None


def _next(standing: Standing, results: Results, folder: str, when: str) -> str:
    """Return the command that measures the rest, with what must be mended before it."""
    key = to_mend(standing, results)
    if key is None:
        return f"{when}lockstep resume {folder} measures the rest"
    if not key:
        return (
            "nothing was measured, and the same scripts would end in the same way: mend the cause, "
            f"in the site file by lockstep resume {folder} --site SITE"
        )
    return f"mend {key} in the site file, then {when}lockstep resume {folder} --site SITE"


def to_mend(standing: Standing, results: Results) -> str | None:
    """Return the site's key that must change before a job can end well.

    Returns:
        The key, or keys; nothing ("") where something must change that no record names; None where
        the same scripts may well measure the rest.
    """
    record = standing.record or {}
    if standing.state.name == "OUT_OF_MEMORY":
        return "mem"
    if standing.state.name != "FAILED" or not record or record.get("stopped"):
        return None
    if _was_killed(standing):
        return "mem" if _is_near_limit(standing) else None
    if record.get("mend") or record.get("lost"):
        return _key(one_line(str(record.get("mend") or ""))[:MAX_GIST], results) or None
    has_begun = any(results.journal(name).exists() for name in standing.job.launches)
    return None if has_begun or standing.job.kind in ("collect", "profile") else ""


def _key(mend: str, results: Results) -> str:
    """Return the key that sets a variable of the ranks, where a job's record names that."""
    if mend not in INTERFACE_NAMES:
        return mend
    try:
        site = stored_site(results)
    except (OSError, ValueError):
        return mend
    if mend in site.env:
        return f"env.{mend}"
    return "interface" if site.interface else mend


def _was_killed(standing: Standing) -> bool:
    return (standing.account or {}).get("exit_code") in KILLED


def _is_near_limit(standing: Standing) -> bool:
    return ((standing.account or {}).get("memory_efficiency") or 0.0) >= NEAR


def _cause(standing: Standing, results: Results) -> str | None:
    state = standing.state.name
    if state == "OUT_OF_MEMORY":
        return f"{_memory(standing)}: raise mem, or lower the batch"
    if state in ("TIMEOUT", "DEADLINE"):
        return "raise time in the campaign's [jobs] or in the site file, for fewer jobs"
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return _failed_node(standing, results)
    if state == "FAILED":
        return _failure(standing, results)
    if state == "CANCELLED":
        return _not_begun(standing, results)
    if state == "LOST":
        has_begun = results.output(standing.job).exists()
        return "see its log" if has_begun else "it never began: it may have been cancelled"
    return None


def _not_begun(standing: Standing, results: Results) -> str | None:
    """Return what to say of a job whose nodes failed to start it.

    A job that may not be requeued is cancelled by Slurm where a prolog fails (slurm.conf(5)), which
    slurmd says in place of the script's output.
    """
    said = gist(results.output(standing.job))
    if said is None or not said.startswith("Error running slurm prolog"):
        return None
    nodes = (standing.account or {}).get("nodes") or "its nodes"
    return f"{nodes} did not start it ({said}); sinfo -R says more"


def gist(path: Path) -> str | None:
    """Return the last line of a file that tells of an error, else its last line; None without."""
    lines = list(filter(None, map(one_line, _tail(path).splitlines())))
    telling = [line for line in lines if re.search(r"error|exception|killed|fatal", line, re.I)]
    # That a task exited says less than what it said, and what ends a session says all.
    own = [line for line in telling if not _EXITED.search(line)]
    final = [match[1] for line in lines if (match := _SESSION_END.fullmatch(line))]
    chosen = (final or own or telling or lines)[-1:]
    return chosen[0][:MAX_GIST] if chosen else None


def _tail(path: Path) -> str:
    try:
        with files.opened(path, sys.maxsize) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _memory(standing: Standing) -> str:
    account: Mapping[str, object] = standing.account or {}
    used, asked = account.get("memory_bytes"), account.get("requested_bytes")
    if not isinstance(used, int) or not isinstance(asked, int):
        return "how much it used is not known"
    return f"it used {used / GIB:.1f} of {asked / GIB:.1f} GiB"


def _failure(standing: Standing, results: Results) -> str:
    if standing.record and standing.record.get("stopped"):
        return "it stopped in order before its time limit"
    account = standing.account or {}
    if account.get("exit_code") == NO_OUTPUT and not results.output(standing.job).exists():
        nodes = account.get("nodes") or "its node"
        return (
            f"exit code {NO_OUTPUT}: {nodes} could not open {results.output(standing.job)}, so "
            "choose by --to a folder that every node sees and where you may write"
        )
    if _was_killed(standing):
        cause = "so raise mem" if _is_near_limit(standing) else "so look at its log first"
        return (
            "a process of it was killed, by hand or for memory, which Slurm cannot tell apart "
            f"without cgroups; {_memory(standing)}, {cause}"
        )
    log = _log(standing, results)
    where, said = log.relative_to(results.path), gist(log)
    return f"{where} says: {said}" if said else f"see {where}"


def _log(standing: Standing, results: Results) -> Path:
    """Return the log of the launch that wrote last, else the output of the job's script."""
    logs = [results.log_file(name) for name in standing.job.launches]
    logs += [results.side_log(standing.job)] if standing.job.kind in SIDE_KINDS else []
    there = [path for path in logs if path.exists()]
    output = results.output(standing.job)
    return max(there, key=lambda path: path.stat().st_mtime) if there else output


def _failed_node(standing: Standing, results: Results) -> str | None:
    if lost := (standing.record or {}).get("lost"):
        return f"{one_line(str(lost))[:MAX_GIST]} answers no more"
    logs = (_log(standing, results), results.output(standing.job))
    if found := [name for path in logs for name in _NODE.findall(_tail(path))]:
        return f"{found[0]} failed"
    nodes = (standing.account or {}).get("nodes")
    return f"one of {nodes}; sinfo says which is down" if nodes else None
