"""What a tracker has confirmed of each run, so that nothing is sent twice.

The results themselves are what is kept until a tracker takes it: they are on disk before anything
is sent. Here lie `tracker/RUN.json`, one file a run and one entry in it a tracker.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.core import files, locks
from lockstep.core.files import write_atomically
from lockstep.report.tracker.target import FOLDER, TARGET, Tracker
from lockstep.report.tracker.tracked import Metric, Run

CAMPAIGN_KEY = "campaign.txt"


@dataclass
class Entry:
    """What one tracker has confirmed of one run.

    Attributes:
        key: The run's; a launch that was measured anew is another run of the same name.
        id: The run's name in the tracker; empty until it has one.
        through: Metric -> the last step that was confirmed.
        files: Artifact -> digest of what was confirmed.
        digest: Of the whole run; equal where nothing is left to send.
        pending: Metrics that were sent and not confirmed: the answer, or the tracker, was lost.
    """

    key: str
    id: str = ""
    through: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    pending: list[list[Any]] = field(default_factory=list)

    def is_new(self, metric: Metric) -> bool:
        """Tell whether a metric is still to be sent."""
        return metric.step > self.through.get(metric.name, -1)

    def confirm(self, metrics: list[Metric]) -> None:
        """Note metrics that the tracker has."""
        self.pending = []
        for metric in metrics:
            self.through[metric.name] = max(metric.step, self.through.get(metric.name, -1))


class Confirmed:
    """The entries of one tracker in a results folder."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self.folder = folder / FOLDER
        self.tracker = tracker
        self.name = f"{tracker.kind} {tracker.uri}"

    def entry(self, run: Run) -> Entry:
        """Return what is confirmed of a run; nothing where the file is lost or of another run."""
        try:
            return Entry(**self._stored(run)[self.name])
        except (KeyError, TypeError):
            return Entry(run.key)

    def keep(self, run: Run, entry: Entry) -> None:
        """Put what is confirmed of a run on disk."""
        text = json.dumps(self._stored(run) | {self.name: asdict(entry)}, indent=1)
        write_atomically(self._path(run), text)

    def keep_target(self) -> None:
        """Note where the tracker is, for `lockstep sync`; its key is in the environment alone."""
        text = json.dumps(self.tracker.model_dump(), indent=1)
        write_atomically(self.folder / TARGET, text)

    def under_first_key(self, runs: Sequence[Run]) -> list[Run]:
        """Return runs, the campaign's under the key that it was first sent by.

        It is made of the first launch's time, which is another where that launch cannot be read,
        or one that began earlier is read later.
        """
        path = self.folder / CAMPAIGN_KEY
        kept = files.text(path) if path.is_file() else ""
        same = []
        for run in runs:
            if run.kind == "campaign" and kept.rpartition("/")[0] == run.experiment:
                same.append(replace(run, key=kept))
                continue
            if run.kind == "campaign":
                write_atomically(path, run.key)
            same.append(run)
        return same

    def _path(self, run: Run) -> Path:
        digest = hashlib.sha256(run.key.encode()).hexdigest()[:8]
        return self.folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', run.name)[:60]}-{digest}.json"

    def _stored(self, run: Run) -> dict[str, Any]:
        try:
            found = files.parse(files.content(self._path(run)))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class BusyError(ValueError):
    """Another command sends the same results, or writes the same database."""


@contextmanager
def only_writer(folder: Path, tracker: Tracker, wait_s: float) -> Iterator[None]:
    """Hold the locks of a folder's entries, and of the database that is written.

    Raises:
        BusyError: Another holds one for longer than `wait_s`.
        OSError: The folder, or the database's, cannot be written.
    """
    paths = [folder / FOLDER / ".lock"]
    if tracker.database is not None:
        paths.append(tracker.database.with_name(f".{tracker.database.name}.lock"))
    with ExitStack() as held:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(path.open("a", encoding="utf-8"))
            try:
                is_free = locks.take(lock, wait_s)
            except locks.NoLocksError:
                is_free = True  # others cannot be kept out here
            if not is_free:
                raise BusyError(f"another lockstep command writes {path.parent}")
        yield
