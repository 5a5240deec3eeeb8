"""The records of tracking: a run with its metrics and files, the tracker, what it has confirmed."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lockstep import content
from lockstep.core import files, inputs
from lockstep.report.load import sources

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
# What MLflow takes of a name, a parameter and a tag (mlflow.utils.validation); a colon is refused
# by older servers.
LONGEST_NAME = 250
LONGEST_VALUE = 5000
_NOT_IN_NAMES = re.compile(r"[^\w.\- ]+", re.ASCII)


class Metric(NamedTuple):
    """A value of a run, at most one of a name and step.

    Attributes:
        name: What it is, with its unit.
        step: The round, epoch or update that it is of; a name's values come by growing steps.
        time_ms: When it was known, in milliseconds since the epoch.
    """

    name: str
    value: float
    step: int
    time_ms: int


class Artifact(NamedTuple):
    """A file of a run, and the digest of its content, by which a tracker is sent it once."""

    path: Path
    sha256: str


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
        """Digest of all that a tracker gets of it."""
        steps: dict[str, int] = {}
        for metric in self.metrics:
            steps[metric.name] = max(metric.step, steps.get(metric.name, 0))
        sent = [(artifact.path.name, artifact.sha256) for artifact in self.artifacts]
        state = [self.status, self.ended_ms, self.params, self.facts, steps, sent]
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Found:
    """The runs of a folder, and why parts of it gave none, a sentence each."""

    runs: tuple[Run, ...]
    unread: tuple[str, ...] = ()


class EmptyError(ValueError):
    """A folder holds no results yet."""


def artifacts(folder: Path, names: Iterable[str]) -> tuple[Artifact, ...]:
    """Return the files of these names that a folder holds.

    Raises:
        ValueError: One cannot be read, or is larger than Lockstep reads.
    """
    paths = [folder / name for name in names if (folder / name).is_file()]
    return tuple(Artifact(p, hashlib.sha256(files.content(p)).hexdigest()) for p in paths)


def metric_name(case: str, quantity: str) -> str:
    """Return the name of a case's quantity, of characters that every tracker takes."""
    known = "-".join(part for part in parameters(case) if not part.endswith("=None"))
    test = case.partition("[")[0].removeprefix("test_")
    clean = "/".join(_NOT_IN_NAMES.sub("_", part) for part in (test, known) if part)
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
            "the address is written to files, so it must not contain a key; put the key into an "
            "environment variable and give its name as key_variable"
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
        default=KEY_VARIABLE,
        description=("environment variable with the server's key, if it needs one"),
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
            raise ValueError("a tracker of kind http needs uri, the server's address")
        return self


def given(kind: str, uri: str | None) -> Tracker:
    """Return the tracker that a command is given.

    Raises:
        ValueError: The address is none.
    """
    return _checked({"kind": kind, "uri": uri}, "--to")


def find(folder: Path) -> Tracker | None:
    """Return the tracker of a results folder; None where none is configured.

    The current site file comes first, then the site that the folder's jobs were submitted with,
    then the tracker used before.

    Raises:
        ValueError: A file that may name it cannot be read, or says something that is not allowed.
    """
    source = os.environ.get(SITE_VARIABLE) or SITE_FILE
    shipped = content.ROOT / "slurm_templates" / "sites" / f"{source}.toml"
    site = shipped if shipped.is_file() else Path(source)
    submitted, used = folder / "jobs" / "site.json", folder / FOLDER / TARGET
    for path in (site, submitted, used):
        if not path.is_file():
            continue
        document = inputs.table(site, "tracker") if path is site else _json(path)
        table = document.get("tracker") if path is submitted else document
        if table:
            return _checked(table, str(path)).beside(folder)
    return None


def _json(path: Path) -> dict[str, Any]:
    document = files.parse(files.content(path))
    return document if isinstance(document, dict) else {}


def _checked(table: Mapping[str, Any], where: str) -> Tracker:
    try:
        return Tracker.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{where}: {inputs.sentence(error, Tracker)}") from None


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

    def confirm(self, metrics: Iterable[Metric]) -> None:
        """Note metrics that the tracker has."""
        self.pending = []
        for metric in metrics:
            self.through[metric.name] = max(metric.step, self.through.get(metric.name, -1))
