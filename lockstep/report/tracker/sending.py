"""Send a tracker the results that it lacks, each once, in the order in which they were measured.

This works during a measurement, after it, and for old results; an interrupted transfer continues
where it stopped. Results are on disk before anything is sent, so only confirmations are kept here.
"""

import hashlib
import json
import math
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.core import files, locks
from lockstep.core.files import write_atomically
from lockstep.core.formats import capital, counted
from lockstep.report.tracker import stores, tracked
from lockstep.report.tracker.runs import read_runs
from lockstep.report.tracker.stores import HttpStore, Kind, MlflowStore, NotSentError
from lockstep.report.tracker.tracked import EmptyError, Entry, Run, Tracker

# Longest wait for a tracker during a measurement.
LIVE_TIMEOUT_S = 2.0
TIMEOUT_S = 30.0


@dataclass
class Sent:
    """The outcome of sending a folder.

    Attributes:
        kind: `sent` if the tracker has all results; else the reason why not.
        num_runs: Runs that the tracker has now.
        num_refused: Runs that the tracker rejected; `why` is about the first.
        num_new: Runs with new parts that were sent.
        why: Error message of the tracker or the system.
        unread: A sentence for each result that could not be read.
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


class Confirmed:
    """The confirmed parts of a folder's runs: `tracker/RUN.json`, an entry per tracker."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self.folder = folder / tracked.FOLDER
        self.name = f"{tracker.kind} {tracker.uri}"

    def entry(self, run: Run) -> Entry:
        """Return the confirmed part of a run; empty if the file is lost or of another run."""
        try:
            return Entry(**self._stored(run)[self.name])
        except (KeyError, TypeError):
            return Entry(run.key)

    def write(self, run: Run, entry: Entry) -> None:
        """Write the confirmed part of a run to disk."""
        text = json.dumps(self._stored(run) | {self.name: asdict(entry)}, indent=1)
        write_atomically(self._path(run), text)

    def with_first_key(self, run: Run) -> Run:
        """Return a campaign's run with the key under which it was first sent.

        The key contains the time of the first launch, which may have become unreadable since.
        """
        path = self.folder / "campaign.txt"
        key = files.text(path) if path.is_file() else ""
        if key.rpartition("/")[0] == run.experiment:
            return replace(run, key=key)
        write_atomically(path, run.key)
        return run

    def _path(self, run: Run) -> Path:
        digest = hashlib.sha256(run.key.encode()).hexdigest()[:8]
        return self.folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', run.name)[:60]}-{digest}.json"

    def _stored(self, run: Run) -> dict[str, Any]:
        try:
            return tracked.read_object(self._path(run))
        except ValueError:
            return {}


@contextmanager
def only_writer(folder: Path, tracker: Tracker, wait_s: float) -> Iterator[None]:
    """Hold the locks of a folder's confirmations and of the database that is written.

    Raises:
        NotSentError: Another command holds a lock for longer than `wait_s`.
        OSError: The folder, or the database's folder, cannot be written.
    """
    paths = [folder / tracked.FOLDER / ".lock"]
    if tracker.database is not None:
        paths.append(tracker.database.with_name(f".{tracker.database.name}.lock"))
    with ExitStack() as stack:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.open("a", encoding="utf-8"))
            with suppress(locks.NoLocksError):  # this file system cannot lock
                if not locks.take(lock, wait_s):
                    why = f"another lockstep command is writing to {path.parent}"
                    raise NotSentError("busy", why)
        yield


def send(
    folder: Path,
    tracker: Tracker,
    timeout_s: float = TIMEOUT_S,
    wait_s: float = TIMEOUT_S,
    *,
    verifies: bool = False,
    until_s: float = math.inf,
) -> Sent:
    """Send a tracker the missing results of a folder, and return the outcome.

    A request may take `timeout_s`, and another command that sends the same folder is waited for
    `wait_s`. `verifies` also asks MLflow for confirmed runs, which may have been deleted there.
    After `until_s`, in seconds of `time.monotonic`, no further request begins.
    """
    tracker = tracker.beside(folder)
    sent = Sent(str(tracker.uri))
    try:
        runs, sent.unread = read_runs(folder)
        if not runs:
            raise ValueError(next(iter(sent.unread), f"{folder} holds no launch of Lockstep"))
    except ValueError as error:
        sent.kind = "empty" if isinstance(error, EmptyError) else "unreadable"
        sent.why = str(error)
        return sent
    verifies = verifies and tracker.kind == "mlflow"
    try:
        with only_writer(folder, tracker, wait_s):
            known = Confirmed(folder, tracker)
            # The address of the tracker; its key stays in the environment.
            text = json.dumps(tracker.model_dump(), indent=1)
            write_atomically(known.folder / tracked.TARGET, text)
            runs = [known.with_first_key(run) if run.kind == "campaign" else run for run in runs]
            missing = [run for run in runs if verifies or known.entry(run).digest != run.digest]
            sent.num_runs = len(runs) - len(missing)
            if missing:
                _check_time(until_s)
                at = (sent.uri, tracker.key, timeout_s)
                is_http = tracker.kind == "http"
                store = HttpStore(*at, tracker.routes) if is_http else MlflowStore(*at)
                _send_runs(missing, store, known, sent, until_s)
    except NotSentError as error:
        sent.kind, sent.why = error.kind, str(error)
    except OSError as error:
        sent.kind, sent.why = "unwritable", f"{error.filename}: {error.strerror}"
    return sent


def _check_time(until_s: float) -> None:
    if time.monotonic() > until_s:
        raise NotSentError("late")


def _send_runs(
    runs: list[Run], store: HttpStore | MlflowStore, known: Confirmed, sent: Sent, until_s: float
) -> None:
    """Send the runs that the tracker lacks; a rejected run does not stop the others."""
    for run in runs:
        try:
            _send_run(run, store, known, sent, until_s)
            sent.num_runs += 1
        except NotSentError as error:
            if error.kind != "refused":
                raise
            sent.kind, sent.why = "refused", sent.why or str(error)
            sent.num_refused += 1


def _send_run(
    run: Run, store: HttpStore | MlflowStore, known: Confirmed, sent: Sent, until_s: float
) -> None:
    """Send the missing parts of one run; each confirmed part is recorded on disk."""
    _check_time(until_s)
    entry = known.entry(run)
    store.open(run, entry)
    new = [metric for metric in run.metrics if metric.step > entry.through.get(metric.name, -1)]
    if entry.digest == run.digest and not new:
        return
    sent.num_new += 1
    known.write(run, entry)
    for first in range(0, len(new), stores.LARGEST_BATCH):
        _check_time(until_s)
        batch = new[first : first + stores.LARGEST_BATCH]
        entry.pending = [list(metric) for metric in batch]
        known.write(run, entry)
        store.log(entry, batch)
        entry.confirm(batch)
        known.write(run, entry)
        sent.num_metrics += len(batch)
    for artifact in run.artifacts:
        if entry.files.get(artifact.path.name) != artifact.sha256:
            _check_time(until_s)
            store.upload(entry, artifact)
            entry.files[artifact.path.name] = artifact.sha256
            known.write(run, entry)
            sent.num_artifacts += 1
    store.close(run, entry)
    entry.digest = run.digest
    known.write(run, entry)


# Outcome -> sentence; `sent` has its own, and `empty` prints none.
SENTENCES: dict[Kind, str] = {
    "out-of-reach": "the tracker {uri} cannot be reached ({why})",
    "refused": "the tracker {uri} rejected {refused} ({why})",
    "busy": "nothing was sent to the tracker {uri} now: {why}",
    "unwritable": (
        "nothing was sent to the tracker {uri}, because the tracker's answers cannot be "
        "written to disk ({why})"
    ),
    "unreadable": "nothing was sent to the tracker {uri}: {why}",
    "broken": "results could not be sent to the tracker {uri}: {why}",
    "late": "the tracker {uri} did not accept the results in time",
}


def lines(sent: Sent, folder: Path) -> list[str]:
    """Return the lines to print: results left out, then what was sent or why not."""
    if sent.kind == "sent":
        new = "nothing is new"
        if sent.num_new:
            metrics = counted(sent.num_metrics, "metric")
            num_files = counted(sent.num_artifacts, "file")
            new = f"new or changed runs: {sent.num_new} ({metrics} and {num_files} sent)"
        end = f"Tracker {sent.uri} has {counted(sent.num_runs, 'run')}; {new}."
    else:
        refused = counted(sent.num_refused, "run") if sent.num_refused else "the results"
        why = SENTENCES[sent.kind].format(uri=sent.uri, why=sent.why, refused=refused)
        command, why = f"lockstep export again {shlex.quote(str(folder))}", capital(why)
        end = f"{why}; no result is lost: {command} sends the rest."
    return [*(f"Left out: {why}" for why in sent.unread), end]
