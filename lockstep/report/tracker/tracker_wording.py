"""What was sent to a tracker, in words."""

import shlex
from pathlib import Path

from lockstep.core.formats import counted
from lockstep.report.tracker.sending import Kind, Sent

# kind -> the sentence; `sent` has one of its own, and of `empty` nothing is said
WORDS: dict[Kind, str] = {
    "out-of-reach": "the tracker {uri} is out of reach ({why})",
    "refused": "the tracker {uri} does not take {refused} ({why})",
    "busy": "the tracker {uri} was sent nothing now: {why}",
    "unwritable": "the tracker {uri} was sent nothing: what it confirms cannot be kept ({why})",
    "unreadable": "the tracker {uri} was sent nothing: {why}",
    "broken": "the process that sends to the tracker {uri} failed: {why}",
    "late": "the tracker {uri} did not take the results in time",
}


def left_out(sent: Sent) -> list[str]:
    """Return what could not be read, and so was not sent."""
    return [f"Left out: {why}" for why in sent.unread]


def line(sent: Sent, folder: Path) -> str:
    """Return what was sent, or what stopped it and the command that sends the rest."""
    if sent.kind == "sent":
        return f"Tracker {sent.uri}: {_counts(sent)}."
    refused = counted(sent.num_refused, "run") if sent.num_refused else "the results"
    why = WORDS[sent.kind].format(uri=sent.uri, why=sent.why, refused=refused)
    todo = f"lockstep sync {shlex.quote(str(folder))}"
    return f"{why[0].upper()}{why[1:]}; nothing is lost, {todo} sends what it lacks."


def _counts(sent: Sent) -> str:
    there = f"{counted(sent.num_runs, 'run')} there"
    if not sent.num_new:
        return f"{there}, nothing new"
    return (
        f"{there}, {sent.num_new} new or changed ({counted(sent.num_metrics, 'metric')}, "
        f"{counted(sent.num_artifacts, 'file')} sent)"
    )
