"""Why a job failed, which key must change before it can succeed, and what to do, as a sentence."""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep.core.formats import one_line
from lockstep.core.processes import INTERFACE_NAMES
from lockstep.slurm.client import NEVER_SATISFIED
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import MAX_LINE, Standing, read_end
from lockstep.slurm.submit.submission import stored_site

Kind = Literal[
    "stopped", "time", "memory", "killed", "no_output", "log", "not_started", "never_began", "lost",
    "node_silent", "node_failed", "node_unknown", "dependency",
]  # fmt: skip
# From this fraction of the request on, the peak counts as cut by the limit.
NEAR = 0.9
# Exit code of a job whose output file its node cannot open: signal 53.
NO_OUTPUT = "0:53"
# Exit codes of a killed process: 128 + SIGKILL from a shell, and those of a killed step.
KILLED = ("137:0", "0:9", "9:0")
# The key of a failed stage; resume would submit it unchanged.
COMMAND = "command"
# Keys of the campaign file; resume would submit the scripts unchanged.
OF_CAMPAIGN = (COMMAND, "device")
SIDE_KINDS = ("preflight", "collect")
# Slurm's reasons of jobs that will never start because of the site file.
FOR_EVER = {
    *("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "ReservationDeleted"),
    *("InvalidAccount", "InvalidQOS", "MaxMemPerLimit"),
}
# Limits of one job, such as QOSMaxWallDurationPerJobLimit and QOSMaxGRESPerJob.
_PER_JOB = re.compile(r"(QOS|Assoc)Max\w+PerJob(Limit)?")


@dataclass(frozen=True)
class Cause:
    """Why a job failed.

    Attributes:
        kind: `stopped` in order before its time limit; `time`, the limit was reached; `memory`,
            Slurm ended it for that; `killed`, by hand or for memory; `no_output`, its node could
            not open its output; `log`, what its log says; `not_started` by its nodes; `never_began`
            and `lost`, Slurm does not say; `node_silent`, `node_failed`, and `node_unknown` where
            it is one of several; `dependency`, a job that it waited for did not end as it needs.
        nodes: The node, or the nodes of the job.
        line: What the log says; of a dependency, the job that it waited for, if it is known.
    """

    kind: Kind
    nodes: str | None = None
    log: Path | None = None
    line: str | None = None
    used_bytes: int | None = None
    requested_bytes: int | None = None

    @property
    def is_near_limit(self) -> bool:
        """Whether it used at least `NEAR` of its memory."""
        return bool(self.requested_bytes) and (self.used_bytes or 0) >= NEAR * (
            self.requested_bytes or 0
        )


def waits_for_ever(standing: Standing) -> bool:
    """Return whether a pending job will never start because of its site file."""
    reason = standing.state.reason or ""
    is_waiting = standing.state.name == "PENDING"
    return is_waiting and (reason in FOR_EVER or _PER_JOB.fullmatch(reason) is not None)


def find_cause(standing: Standing, results: Results) -> Cause | None:
    """Return why a job failed; None if only its state is known."""
    if not standing.is_bad:
        return None
    nodes = (standing.account or {}).get("nodes")
    match standing.state.name:
        case "OUT_OF_MEMORY":
            return Cause("memory", **_memory_of(standing))
        case "TIMEOUT" | "DEADLINE":
            return Cause("time")
        case "NODE_FAIL" | "BOOT_FAIL":
            return _node(standing, results)
        case "FAILED":
            return _failure(standing, results)
        case "CANCELLED":
            # Slurm cancels a job that may not be requeued where a prolog fails (slurm.conf(5)).
            end = read_end(results.output(standing.job))
            if end.prolog_failed:
                return Cause("not_started", nodes, line=end.line)
            return _unsatisfied(standing, results)
        case "LOST":
            return Cause("lost" if results.output(standing.job).exists() else "never_began")
    return None


def _unsatisfied(standing: Standing, results: Results) -> Cause | None:
    """Return the cause of a job that Slurm cancelled for its dependency; else None."""
    if standing.state.by or standing.state.reason not in (None, NEVER_SATISFIED):
        return None
    account, scripts = standing.account or {}, results.scripts()
    exit_codes = {str(end.get("job")): end["exit_code"] for end in results.exits().values()}
    failed = _failed_before(standing.job.name, scripts, exit_codes)
    # sacct names the user who cancelled a job, and nobody if Slurm did.
    is_open = any(exit_codes.get(other) != 0 for other in _needed(standing.job.name, scripts))
    by_slurm = "cancelled_by" in account and is_open
    has_begun = bool(standing.record or account.get("elapsed_s"))
    is_likely = (failed or by_slurm) and not has_begun
    is_reported = standing.state.reason == NEVER_SATISFIED
    return Cause("dependency", line=failed) if is_reported or is_likely else None


def _failed_before(
    name: str, scripts: Mapping[str, Mapping[str, Any]], ends: Mapping[str, int]
) -> str | None:
    """Return the first failed job among a job's `afterok` dependencies, also indirect ones."""
    for other in _needed(name, scripts):
        if ends.get(other):
            return other
        if other not in ends and (first := _failed_before(other, scripts, ends)):
            return first
    return None


def _needed(name: str, scripts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the jobs that a job depends on by `afterok`."""
    after = scripts.get(name, {}).get("after", ())
    return [str(wait.get("job")) for wait in after if wait.get("how") == "afterok"]


def _memory_of(standing: Standing) -> dict[str, Any]:
    account = standing.account or {}
    names = ("memory_bytes", "requested_bytes")
    return dict(zip(("used_bytes", "requested_bytes"), map(account.get, names), strict=True))


def _node(standing: Standing, results: Results) -> Cause | None:
    if silent := (standing.record or {}).get("lost"):
        return Cause("node_silent", one_line(str(silent))[:MAX_LINE])
    for path in (log_of(standing, results), results.output(standing.job)):
        if failed := read_end(path).failed_node:
            return Cause("node_failed", failed)
    nodes = (standing.account or {}).get("nodes")
    return Cause("node_unknown", nodes) if nodes else None


def _failure(standing: Standing, results: Results) -> Cause:
    account, output = standing.account or {}, results.output(standing.job)
    if (standing.record or {}).get("stopped"):
        return Cause("stopped")
    if account.get("exit_code") == NO_OUTPUT and not output.exists():
        return Cause("no_output", account.get("nodes"), output)
    if _was_killed(standing):
        return Cause("killed", **_memory_of(standing))
    log = log_of(standing, results)
    return Cause("log", log=log, line=read_end(log).line)


def _was_killed(standing: Standing) -> bool:
    return (standing.account or {}).get("exit_code") in KILLED


def log_of(standing: Standing, results: Results) -> Path:
    """Return the launch log that was written last, else the output of the job's script."""
    logs = [results.log_file(name) for name in standing.job.launches]
    logs += [results.side_log(standing.job)] if standing.job.kind in SIDE_KINDS else []
    existing = [path for path in logs if path.exists()]
    output = results.output(standing.job)
    return max(existing, key=lambda path: path.stat().st_mtime) if existing else output


def key_to_mend(standing: Standing, results: Results) -> str | None:
    """Return the key that must change before a job can succeed.

    Returns:
        The site's key, or keys; one of `OF_CAMPAIGN`, of which a stage's own lines are `COMMAND`;
        nothing ("") where something must change that no record names; None where the same scripts
        may well measure the rest.
    """
    record = standing.record or {}
    if standing.state.name == "OUT_OF_MEMORY":
        return "mem"
    if standing.state.name != "FAILED" or not record or record.get("stopped"):
        return None
    if _was_killed(standing):
        return "mem" if Cause("killed", **_memory_of(standing)).is_near_limit else None
    if record.get("mend") or record.get("lost"):
        mend = one_line(str(record.get("mend") or ""))[:MAX_LINE]
        if mend in INTERFACE_NAMES:  # a variable of the ranks: which key of the site sets it
            with suppress(OSError, ValueError):
                site = stored_site(results)
                is_own = mend in site.env
                mend = f"env.{mend}" if is_own else "interface" if site.interface else mend
        return mend or None
    if standing.job.kind in ("stage", "fallback"):
        return COMMAND
    has_begun = any(results.journal(name).exists() for name in standing.job.launches)
    return None if has_begun or standing.job.kind in ("collect", "profile") else ""


GIB = 1024**3
MINUTE_S = 60


def advise(
    standing: Standing, results: Results, folder: str, *, is_last: bool, is_continued: bool = False
) -> str | None:
    """Return what to do about a job; None if nothing is to be done.

    `folder` is as it is typed in a command. With `is_last` no other job runs or waits: resume
    refuses until then. With `is_continued` another job will measure what this one left.
    """
    when = "" if is_last else "once the other jobs have ended, "
    if standing.state.name == "STALLED":
        minutes = (standing.quiet_s or 0) / MINUTE_S
        chosen = f"--job {shlex.quote(standing.job.name)}"
        if standing.job.element is not None:
            chosen += f" --point {standing.job.element}"
        return (
            f"its last output is {minutes:.0f} min old: lockstep cancel {folder} {chosen}, then "
            f"{when}lockstep resume {folder} measures the rest"
        )
    if waits_for_ever(standing):
        return (
            f"lockstep cancel {folder}, correct the site file, then lockstep resume {folder} "
            "--site SITE"
        )
    if not standing.is_bad:
        return None
    cause = find_cause(standing, results)
    sentences = [in_words(cause, results)] if cause else []
    key = key_to_mend(standing, results)
    if key is None:
        sentences += [f"{when}lockstep resume {folder} measures the rest"] * (not is_continued)
    elif not key:
        sentences.append(
            "nothing was measured, and the same scripts would fail again: correct the cause "
            "in the campaign or site file, then "
            f"{when}lockstep submit CAMPAIGN --site SITE"
        )
    elif key in OF_CAMPAIGN:
        sentences.append(
            f"correct {key} in the campaign file, then {when}lockstep submit CAMPAIGN --site SITE"
        )
    else:
        sentences.append(
            f"correct {key} in the site file, then {when}lockstep resume {folder} --site SITE"
        )
    return "; ".join(sentences) or None


def in_words(cause: Cause, results: Results) -> str:
    """Return the cause as a phrase with what to do."""
    nodes, memory = cause.nodes or "its nodes", "its memory use is not known"
    if cause.used_bytes is not None and cause.requested_bytes is not None:
        used, requested = cause.used_bytes / GIB, cause.requested_bytes / GIB
        memory = f"it used {used:.1f} of {requested:.1f} GiB"
    log = cause.log
    if cause.kind == "log" and log is not None:
        log = log.relative_to(results.path)
    action = "raise mem" if cause.is_near_limit else "read its log first"
    return {
        "log": f"{log}: {cause.line}" if cause.line else f"see {log}",
        "memory": f"{memory}; raise mem, or lower the batch",
        "killed": "one of its processes was killed, by hand or for memory; without cgroups Slurm "
        f"does not report which; {memory}; {action}",
        "no_output": f"exit code 0:53: {nodes} could not open {log}; give --to a folder "
        "on shared storage where you may write",
        "dependency": "Slurm cancelled it before it started, because "
        f"{cause.line or 'a job that it depended on'} did not end as required ({NEVER_SATISFIED})",
        "not_started": f"{nodes} did not start it ({cause.line}); sinfo -R lists the reasons",
        "time": "a higher time in [jobs] of the campaign or in the site file needs fewer jobs",
        "stopped": "it stopped cleanly before its time limit",
        "lost": "see its log",
        "never_began": "it never started; it may have been cancelled",
        "node_silent": f"{nodes} no longer answers",
        "node_failed": f"{nodes} failed",
        "node_unknown": f"one of {nodes} failed; lockstep slurm nodes shows which, and why",
    }[cause.kind]
