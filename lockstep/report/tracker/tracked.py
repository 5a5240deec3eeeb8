"""What a tracker is told of results, whichever tracker it is: runs, their metrics and files.

What a tracker has confirmed of each run, so that nothing is sent twice.

The results themselves are what is kept until a tracker takes it: they are on disk before anything
is sent. Here lie `tracker/RUN.json`, one file a run and one entry in it a tracker.

Which tracker results go to: the table `[tracker]` of a site file, or what a command is given.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lockstep import content
from lockstep.core import files, inputs, locks
from lockstep.core.files import write_atomically
from lockstep.report.load import sources

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
# What MLflow takes of a name, a parameter and a tag (mlflow.utils.validation); a colon is refused
# by older servers.
LONGEST_NAME = 250
LONGEST_VALUE = 5000
_NOT_IN_NAMES = re.compile(r"[^\w.\- ]+", re.ASCII)


@dataclass(frozen=True)
class Metric:
    """A value of a run.

    Attributes:
        name: What it is, with its unit; a run has one value of a name and step.
        step: The round, epoch or update that it is of; a name's values come by growing steps.
        time_ms: When it was known, in milliseconds since the epoch.
    """

    name: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class Artifact:
    """A file of a run.

    Attributes:
        sha256: Of its content, by which a tracker is sent it once.
    """

    path: Path
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "Artifact":
        """Return a file with its digest.

        Raises:
            ValueError: It cannot be read, or is larger than Lockstep reads.
        """
        return cls(path, hashlib.sha256(files.content(path)).hexdigest())


@dataclass(frozen=True)
class Run:
    """One run of a tracker: a launch, a training run, or a campaign as a whole.

    Attributes:
        key: What tells it from every other run, of this folder and of others.
        ended_ms: When it ended, in milliseconds since the epoch; None while it runs.
        params: Its configuration.
        facts: What a tracker shows and searches by: job id, node, seed, GPU type.
    """

    key: str
    experiment: str
    name: str
    kind: Literal["campaign", "launch", "training"]
    status: Status
    started_ms: int
    ended_ms: int | None = None
    params: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    artifacts: tuple[Artifact, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of all that a tracker is told of it."""
        steps: dict[str, int] = {}
        for metric in self.metrics:
            steps[metric.name] = max(metric.step, steps.get(metric.name, 0))
        sent = [(artifact.path.name, artifact.sha256) for artifact in self.artifacts]
        told = [self.status, self.ended_ms, self.params, self.facts, steps, sent]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Found:
    """The runs of a folder, and why parts of it gave none, a sentence each."""

    runs: tuple[Run, ...]
    unread: tuple[str, ...] = ()


class EmptyError(ValueError):
    """A folder holds no results yet."""


def metric_name(case: str, quantity: str) -> str:
    """Return the name of a case's quantity, of characters that every tracker takes."""
    said = [part for part in parameters(case) if not part.endswith("=None")]
    test = case.partition("[")[0].removeprefix("test_")
    clean = "/".join(_NOT_IN_NAMES.sub("_", one) for one in (test, "-".join(said)) if one)
    if len(clean) > (room := LONGEST_NAME - len(quantity) - 1):
        digest = hashlib.sha256(case.encode()).hexdigest()[:8]
        clean = f"{clean[: room - len(digest) - 1]}-{digest}"
    return f"{clean}/{quantity}"


def parameters(case: str) -> list[str]:
    """Return the parameters in a case's name, each as `name=value`."""
    return re.split(r"-(?=[A-Za-z_]+=)", case.partition("[")[2].removesuffix("]"))


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what is known of values, as the texts that parameters and tags are."""
    return {
        name: (value if isinstance(value, str) else json.dumps(value))[:LONGEST_VALUE]
        for name, value in values.items()
        if value not in (None, "", [], {})
    }


def milliseconds(moment: str) -> int:
    """Return an ISO 8601 moment in milliseconds since the epoch.

    Raises:
        ValueError: It is none.
    """
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def modified_ms(path: Path) -> int:
    """Return when a file was last written, in milliseconds since the epoch."""
    return path.stat().st_mtime_ns // 1_000_000


SITE_VARIABLE = "LOCKSTEP_SITE"
SITE_FILE = "site.toml"
KEY_VARIABLE = "LOCKSTEP_TRACKER_KEY"
# Of a results folder: what its trackers have confirmed, and where they are.
FOLDER = sources.TRACKER
TARGET = "target.json"
DATABASE = "mlflow.db"


def _address(text: str) -> str:
    if not text.isprintable() or " " in text:
        raise ValueError("no address of a tracker; write sqlite:///PATH or http://SERVER")
    parts = urlsplit(text)
    if parts.scheme not in ("sqlite", "http", "https"):
        raise ValueError("no address of a tracker; it begins with sqlite:///, http:// or https://")
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "an address is kept in files, so no key may be in it; put the key into an environment "
            "variable and name that in key_variable"
        )
    return text.rstrip("/")


class Tracker(BaseModel):
    """Where runs are tracked while and after they are measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["mlflow", "http"] = Field(
        default="mlflow", description="MLflow, or a plain HTTP interface"
    )
    uri: Annotated[str, AfterValidator(_address)] | None = Field(
        default=None,
        description=f"sqlite:///PATH, or a server's address; {DATABASE} beside the results folder "
        "by default",
    )
    key_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default=KEY_VARIABLE, description="environment variable that holds the server's key, if any"
    )

    @property
    def key(self) -> str | None:
        """The server's key, which is in no file."""
        return os.environ.get(self.key_variable) or None

    @property
    def database(self) -> Path | None:
        """The SQLite file; None for a server."""
        uri = self.uri or ""
        return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:") else None

    def beside(self, folder: Path) -> Self:
        """Return the tracker with its address filled in, and a file's made absolute."""
        default = folder.resolve().parent / DATABASE
        path = default if self.uri is None else self.database
        if path is None:
            return self
        return self.model_copy(update={"uri": f"sqlite:///{path.absolute()}"})

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        if self.kind == "http" and not (self.uri or "").startswith("http"):
            raise ValueError("a tracker of kind http needs uri, the address of its server")
        return self


def given(kind: str, uri: str | None) -> Tracker:
    """Return the tracker that a command is given.

    Raises:
        ValueError: The address is none.
    """
    return _checked({"kind": kind, "uri": uri}, "--to")


def find(folder: Path) -> Tracker | None:
    """Return the tracker of a results folder; None where nobody names one.

    The site that commands are about names it, else the one that the folder's jobs were sent for,
    else what was used before.

    Raises:
        ValueError: A file that may name it cannot be read, or says something that is not allowed.
    """
    source = os.environ.get(SITE_VARIABLE) or SITE_FILE
    shipped = content.ROOT / "slurm_templates" / "sites" / f"{source}.toml"
    site = shipped if shipped.is_file() else Path(source)
    sent_for, used = folder / "jobs" / "site.json", folder / FOLDER / TARGET
    readers: dict[Path, Callable[[], dict[str, Any] | None]] = {
        site: lambda: inputs.table(site, "tracker"),
        sent_for: lambda: _json(sent_for).get("tracker"),
        used: lambda: _json(used),
    }
    for path, read in readers.items():
        if path.is_file() and (table := read()):
            return _checked(table, str(path)).beside(folder)
    return None


def _json(path: Path) -> dict[str, Any]:
    found = files.parse(files.content(path))
    return found if isinstance(found, dict) else {}


def _checked(table: Mapping[str, Any], where: str) -> Tracker:
    try:
        return Tracker.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{where}: {inputs.sentence(error, Tracker)}") from None


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
        """Note where the tracker is; its key stays in the environment alone."""
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
