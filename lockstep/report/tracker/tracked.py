"""Records of tracking: runs with metrics and files, the tracker, and its confirmations."""

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

from pydantic import AfterValidator, ValidationError, ValidationInfo, model_validator

from lockstep import content
from lockstep.core import files, inputs
from lockstep.report.load import sources

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
# Limits of MLflow's names, parameters and tags (mlflow.utils.validation); older servers
# refuse a colon.
LONGEST_NAME = 250
LONGEST_VALUE = 5000
_NOT_IN_NAMES = re.compile(r"[^\w.\- ]+", re.ASCII)
SITE_VARIABLE = "LOCKSTEP_SITE"
SITE_FILE = "site.toml"
KEY_VARIABLE = "LOCKSTEP_TRACKER_KEY"
# Folder in a results folder: confirmations of each tracker, address of the last tracker.
FOLDER = sources.TRACKER
TARGET = "target.json"
DATABASE = "mlflow.db"


class Metric(NamedTuple):
    """A value of a run. The steps of a metric (rounds, epochs or updates) ascend without repeats.

    Attributes:
        name: Quantity with its unit.
        time_ms: Time of measurement, in milliseconds since the epoch.
    """

    name: str
    value: float
    step: int
    time_ms: int


class Artifact(NamedTuple):
    """A file of a run, with the digest by which a tracker receives each content once."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Run:
    """One run of a tracker: a launch, a training run, or a whole campaign.

    Attributes:
        key: Identifies the run among those of all folders.
        ended_ms: Milliseconds since the epoch; None while it runs.
        params: Its configuration.
        facts: Facts to show and search in trackers: job id, node, seed, GPU type.
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
        """Digest of everything that a tracker receives."""
        steps = {metric.name: metric.step for metric in sorted(self.metrics, key=lambda m: m.step)}
        names = [(artifact.path.name, artifact.sha256) for artifact in self.artifacts]
        state = [self.status, self.ended_ms, self.params, self.facts, steps, names]
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


class EmptyError(ValueError):
    """A folder holds no results yet."""


def read_artifacts(folder: Path, names: Iterable[str]) -> tuple[Artifact, ...]:
    """Return those of the named files that a folder holds.

    Raises:
        ValueError: A file cannot be read, or is larger than Lockstep reads.
    """
    paths = [folder / name for name in names if (folder / name).is_file()]
    return tuple(Artifact(p, hashlib.sha256(files.content(p)).hexdigest()) for p in paths)


def metric_name(case: str, quantity: str) -> str:
    """Return the name of a case's quantity, in characters that every tracker accepts."""
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
    """Return the known values as texts, the type of parameters and tags."""
    return {
        name: (value if isinstance(value, str) else json.dumps(value))[:LONGEST_VALUE]
        for name, value in values.items()
        if value not in (None, "", [], {})
    }


def milliseconds(moment: str) -> int:
    """Return an ISO 8601 moment in milliseconds since the epoch."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def _address(text: str) -> str:
    if not text.isprintable() or " " in text:
        raise ValueError(
            "a tracker's address must not have spaces; write sqlite:///PATH or http://SERVER"
        )
    parts = urlsplit(text)
    if parts.scheme not in ("sqlite", "http", "https"):
        raise ValueError("a tracker's address must begin with sqlite:///, http:// or https://")
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "the address is written to files, so it must not contain a key; put the key into an "
            "environment variable and give its name as key_variable"
        )
    return text.rstrip("/")


def _route(text: str, info: ValidationInfo) -> str:
    names = re.findall(r"\{(.*?)\}", text)
    is_known = set(names) <= {"experiment", "id"} and ("id" in names) == (info.field_name != "run")
    if not text.startswith("/") or not is_known or set("{} ?#") & set(re.sub(r"\{.*?\}", "", text)):
        raise ValueError(
            "a path in the table routes must begin with / and may contain {experiment}; every path "
            "except run must contain {id}"
        )
    return text


class Routes(inputs.Table):
    """Paths of the HTTP interface below its address; `{experiment}` and `{id}` are filled in."""

    run: Annotated[str, AfterValidator(_route)] = "/runs"
    metrics: Annotated[str, AfterValidator(_route)] = "/runs/{id}/metrics"
    artifacts: Annotated[str, AfterValidator(_route)] = "/runs/{id}/artifacts"
    status: Annotated[str, AfterValidator(_route)] = "/runs/{id}"


class Tracker(inputs.Table):
    """The tracker of runs, during and after their measurement."""

    kind: Literal["mlflow", "http"] = inputs.key(
        "kind of tracker: MLflow, or a plain HTTP interface", "mlflow"
    )
    uri: Annotated[str, AfterValidator(_address)] | None = inputs.key(
        f"address of the tracker: sqlite:///PATH, or http://SERVER; by default {DATABASE} beside "
        "the results folder"
    )
    key_variable: str = inputs.key(
        "name of the environment variable with the server's key, if there is a key",
        KEY_VARIABLE,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
    )
    routes: Routes = inputs.key(
        "paths of the tracker server's HTTP interface; in a path, {experiment} stands for the "
        "name of the experiment, and {id} for the run_id that the server gave",
        Routes(),
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
        """Return the tracker with an address, which is absolute if it is a file."""
        default = folder.resolve().parent / DATABASE
        path = default if self.uri is None else self.database
        if path is None:
            return self
        return self.model_copy(update={"uri": f"sqlite:///{path.absolute()}"})

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        if self.kind == "http" and not (self.uri or "").startswith("http"):
            raise ValueError("a tracker of kind http needs the server's address as its uri")
        return self


def find_tracker(folder: Path) -> Tracker | None:
    """Return the tracker of a results folder; None if none is configured.

    The current site file comes first, then the site that the folder's jobs were submitted with,
    then the tracker used before.

    Raises:
        ValueError: A file that may name the tracker cannot be read, or has a wrong value.
    """
    source = os.environ.get(SITE_VARIABLE) or SITE_FILE
    shipped = content.ROOT / "slurm_templates" / "sites" / f"{source}.toml"
    site = shipped if shipped.is_file() else Path(source)
    submitted, used = folder / "jobs" / "site.json", folder / FOLDER / TARGET
    for path in filter(Path.is_file, (site, submitted, used)):
        document = inputs.table(site, "tracker") if path is site else read_object(path)
        if table := document.get("tracker") if path is submitted else document:
            return validated(table, str(path)).beside(folder)
    return None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty if the file holds another value."""
    document = files.parse(files.content(path))
    return document if isinstance(document, dict) else {}


def validated(table: Mapping[str, Any], where: str) -> Tracker:
    """Return the tracker of a table, or of options; ValueError if a value is not allowed."""
    try:
        return Tracker.model_validate(table)
    except ValidationError as error:
        raise ValueError(f"{where}: {inputs.sentence(error, Tracker)}") from None


@dataclass
class Entry:
    """The parts of one run that one tracker has confirmed.

    Attributes:
        key: The run's key; a launch that was measured again is another run of the same name.
        id: The run's name in the tracker; empty until the tracker has given one.
        through: Metric -> the last step confirmed.
        files: Artifact -> digest of the content confirmed.
        digest: Digest of the whole run; equal to `Run.digest` if nothing is left to send.
        pending: Metrics sent and not confirmed, because the answer was lost.
    """

    key: str
    id: str = ""
    through: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    pending: list[list[Any]] = field(default_factory=list)

    def confirm(self, metrics: Iterable[Metric]) -> None:
        """Record that the tracker has these metrics."""
        self.pending = []
        for metric in metrics:
            self.through[metric.name] = max(metric.step, self.through.get(metric.name, -1))
