"""What a tracker is told of results, whichever tracker it is: runs, their metrics and files."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from lockstep.core import files

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
        sent = [(one.path.name, one.sha256) for one in self.artifacts]
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
