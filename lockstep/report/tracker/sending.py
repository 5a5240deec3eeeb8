"""Results to a tracker: what it lacks, once, in the order in which a run is made.

The same for a campaign that is measured at this moment, one that was collected, and one of last
year. Whatever stops it, it goes on where it stopped.

What was sent to a tracker, in words.
"""

import math
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.core.formats import counted
from lockstep.report.load.sources import trainings_below
from lockstep.report.tracker import stores, tracked
from lockstep.report.tracker.from_launches import of_campaign
from lockstep.report.tracker.stores import OutOfReachError, RefusedError, Store
from lockstep.report.tracker.tracked import EmptyError, Found, Run, Tracker

# While something is measured, no tracker is waited for longer than this.
LIVE_TIMEOUT_S = 2.0
TIMEOUT_S = 30.0

Kind = Literal[
    "sent", "out-of-reach", "refused", "busy", "unwritable", "unreadable", "empty", "late", "broken"
]


class LateError(Exception):
    """The time in which something may be sent is over."""


@dataclass
class Sent:
    """What was sent of a folder, and what stopped it.

    Attributes:
        kind: `sent` where the tracker has all there is; else what stopped it.
        num_runs: Runs that the tracker has now.
        num_refused: Runs that it does not take; `why` is of the first.
        num_new: Runs of which something was sent.
        num_metrics: Metrics that were sent.
        num_artifacts: Files that were sent.
        why: What the tracker, or the system, said.
        unread: What could not be read of the results, a sentence each.
    """

    uri: str
    kind: Kind = "sent"
    num_runs: int = 0
    num_refused: int = 0
    num_new: int = 0
    num_metrics: int = 0
    num_artifacts: int = 0
    why: str = ""
    unread: tuple[str, ...] = ()


def found(folder: Path) -> Found:
    """Return the runs of a campaign's folder, or of the trainings in a folder of such folders.

    Raises:
        EmptyError: It holds neither.
        ValueError: What it holds cannot be read.
    """
    runs: list[Run] = []
    unread: list[str] = []
    for training in trainings_below(folder) or [folder]:
        there = of_campaign(training)
        runs += there.runs
        unread += there.unread
    return Found(tuple(runs), tuple(unread))


def send(
    folder: Path,
    tracker: Tracker,
    timeout_s: float = TIMEOUT_S,
    wait_s: float = TIMEOUT_S,
    *,
    is_asked: bool = False,
    until_s: float = math.inf,
) -> Sent:
    """Send a tracker what it lacks of a results folder, and return how far that went.

    A request may take `timeout_s`; another command that sends is waited for `wait_s`; nothing
    further is begun at `until_s`, in seconds of `time.monotonic`. With `is_asked` MLflow is asked
    for runs that it has confirmed, too: they may have been deleted there.
    """
    tracker = tracker.beside(folder)
    sent = Sent(str(tracker.uri))
    try:
        there = found(folder)
    except ValueError as error:
        sent.kind = "empty" if isinstance(error, EmptyError) else "unreadable"
        sent.why = str(error)
        return sent
    if not there.runs:
        sent.kind, sent.why = "unreadable", there.unread[0]
        return sent
    sent.unread = there.unread
    with _noting_what_stops(sent), tracked.only_writer(folder, tracker, wait_s):
        known = tracked.Confirmed(folder, tracker)
        known.keep_target()
        runs = known.under_first_key(there.runs)
        is_asked = is_asked and tracker.kind == "mlflow"
        left = [r for r in runs if is_asked or known.entry(r).digest != r.digest]
        sent.num_runs = len(runs) - len(left)
        if left:
            _check_time(until_s)
            _send_each(left, stores.connect(tracker, timeout_s), known, sent, until_s)
    return sent


@contextmanager
def _noting_what_stops(sent: Sent) -> Iterator[None]:
    try:
        yield
    except LateError:
        sent.kind = "late"
    except OutOfReachError as error:
        sent.kind, sent.why = "out-of-reach", str(error)
    except RefusedError as error:
        sent.kind, sent.why = "refused", str(error)
    except tracked.BusyError as error:
        sent.kind, sent.why = "busy", str(error)
    except OSError as error:
        sent.kind, sent.why = "unwritable", f"{error.filename}: {error.strerror}"


def _check_time(until_s: float) -> None:
    if time.monotonic() > until_s:
        raise LateError


def _send_each(
    runs: list[Run], store: Store, known: tracked.Confirmed, sent: Sent, until_s: float
) -> None:
    """Send what the tracker lacks of runs; one that it refuses keeps no other from it."""
    for run in runs:
        try:
            _deliver(run, store, known, sent, until_s)
            sent.num_runs += 1
        except RefusedError as error:
            sent.kind, sent.why = "refused", sent.why or str(error)
            sent.num_refused += 1


def _deliver(run: Run, store: Store, known: tracked.Confirmed, sent: Sent, until_s: float) -> None:
    """Send what the tracker lacks of one run; each step is noted once it is confirmed."""
    _check_time(until_s)
    entry = known.entry(run)
    store.open(run, entry)
    new = [metric for metric in run.metrics if entry.is_new(metric)]
    if entry.digest == run.digest and not new:
        return
    sent.num_new += 1
    known.keep(run, entry)
    for first in range(0, len(new), stores.LARGEST_BATCH):
        _check_time(until_s)
        batch = new[first : first + stores.LARGEST_BATCH]
        entry.pending = [[m.name, m.value, m.step, m.time_ms] for m in batch]
        known.keep(run, entry)
        store.log(entry, batch)
        entry.confirm(batch)
        known.keep(run, entry)
        sent.num_metrics += len(batch)
    for artifact in run.artifacts:
        if entry.files.get(artifact.path.name) != artifact.sha256:
            _check_time(until_s)
            store.upload(entry, artifact)
            entry.files[artifact.path.name] = artifact.sha256
            known.keep(run, entry)
            sent.num_artifacts += 1
    store.close(run, entry)
    entry.digest = run.digest
    known.keep(run, entry)


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
    todo = f"lockstep export again {shlex.quote(str(folder))}"
    return f"{why[0].upper()}{why[1:]}; nothing is lost, {todo} sends what it lacks."


def _counts(sent: Sent) -> str:
    there = f"{counted(sent.num_runs, 'run')} there"
    if not sent.num_new:
        return f"{there}, nothing new"
    return (
        f"{there}, {sent.num_new} new or changed ({counted(sent.num_metrics, 'metric')}, "
        f"{counted(sent.num_artifacts, 'file')} sent)"
    )
