"""What is to be done about a job that has ended badly, in one sentence."""

import shlex

from lockstep.slurm.scheduler import NEVER_SATISFIED
from lockstep.slurm.status.causes import OF_CAMPAIGN, Cause, find_cause, key_to_mend, waits_for_ever
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Standing

GIB = 1024**3
MINUTE_S = 60


def advise(
    standing: Standing,
    results: Results,
    folder: str,
    *,
    is_last: bool,
    is_continued: bool = False,
) -> str | None:
    """Return what to do about a job; None where nothing is to be done.

    `folder` is as it is typed in a command. With `is_last` no other job runs or waits: resume
    refuses until then. With `is_continued` another job will make what this one left.
    """
    when = "" if is_last else "once the other jobs have ended, "
    if standing.state.name == "STALLED":
        return _stalled(standing, folder, when)
    if waits_for_ever(standing):
        return (
            f"lockstep cancel {folder}, mend that in the site file, then lockstep resume {folder} "
            "--site SITE"
        )
    if not standing.is_bad:
        return None
    cause = find_cause(standing, results)
    sentences = [in_words(cause, results)] if cause else []
    key = key_to_mend(standing, results)
    if key is not None or not is_continued:
        sentences.append(_next(key, folder, when))
    return "; ".join(sentences) or None


def _stalled(standing: Standing, folder: str, when: str) -> str:
    minutes = (standing.quiet_s or 0) / MINUTE_S
    chosen = f"--job {shlex.quote(standing.job.name)}"
    if standing.job.element is not None:
        chosen += f" --point {standing.job.element}"
    return (
        f"its last line is {minutes:.0f} min old: lockstep cancel {folder} {chosen}, then "
        f"{when}lockstep resume {folder} measures the rest"
    )


def _next(key: str | None, folder: str, when: str) -> str:
    """Return the command that measures the rest, with what must be mended before it."""
    if key is None:
        return f"{when}lockstep resume {folder} measures the rest"
    if not key:
        return (
            "nothing was measured, and the same scripts would end in the same way: mend the cause "
            "in the campaign's or the site's file, then "
            f"{when}lockstep submit CAMPAIGN --site SITE"
        )
    if key in OF_CAMPAIGN:
        return f"mend {key} in the campaign file, then {when}lockstep submit CAMPAIGN --site SITE"
    return f"mend {key} in the site file, then {when}lockstep resume {folder} --site SITE"


def in_words(cause: Cause, results: Results) -> str:
    """Return why a job ended badly, in words."""
    nodes = cause.nodes or "its nodes"
    match cause.kind:
        case "log":
            assert cause.log is not None
            log = cause.log.relative_to(results.path)
            return f"{log} says: {cause.line}" if cause.line else f"see {log}"
        case "memory":
            return f"{_memory(cause)}: raise mem, or lower the batch"
        case "killed":
            todo = "so raise mem" if cause.is_near_limit else "so look at its log first"
            return (
                "a process of it was killed, by hand or for memory, which Slurm cannot tell apart "
                f"without cgroups; {_memory(cause)}, {todo}"
            )
        case "no_output":
            return (
                f"exit code 0:53: {nodes} could not open {cause.log}, so choose by --to a folder "
                "that every node sees and where you may write"
            )
        case "dependency":
            other = cause.line or "a job that it waited for"
            return (
                f"Slurm cancelled it before it began, for {other} did not end as it needs "
                f"({NEVER_SATISFIED})"
            )
        case "not_started":
            return f"{nodes} did not start it ({cause.line}); sinfo -R says more"
    return {
        "time": "raise time in the campaign's [jobs] or in the site file, for fewer jobs",
        "stopped": "it stopped in order before its time limit",
        "lost": "see its log",
        "never_began": "it never began: it may have been cancelled",
        "node_silent": f"{nodes} answers no more",
        "node_failed": f"{nodes} failed",
        "node_unknown": f"one of {nodes}; lockstep nodes says which is down, and why",
    }[cause.kind]


def _memory(cause: Cause) -> str:
    if cause.used_bytes is None or cause.requested_bytes is None:
        return "how much it used is not known"
    return f"it used {cause.used_bytes / GIB:.1f} of {cause.requested_bytes / GIB:.1f} GiB"
