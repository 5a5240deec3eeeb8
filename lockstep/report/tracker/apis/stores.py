"""What a tracker must do for results to be sent to it, and how it may fail to."""

from http import HTTPStatus
from typing import Protocol

from lockstep.report.tracker.confirmed import Entry
from lockstep.report.tracker.runs.tracked import Artifact, Metric, Run
from lockstep.report.tracker.target import Tracker

MAX_SAID = 300  # characters of what a tracker answers

# Metrics in one request: as many as MLflow takes (its REST interface, "Log Batch").
LARGEST_BATCH = 1000


# Answers that mean: not now.
LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class OutOfReachError(RuntimeError):
    """A tracker does not answer in time, or its answer says that it cannot now."""


class RefusedError(RuntimeError):
    """A tracker answers, and refuses: the key, or what was sent."""


def failed(status: int, why: str) -> OutOfReachError | RefusedError:
    """Return what an answer's status means: not now, or not at all."""
    is_later = status in LATER or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return (OutOfReachError if is_later else RefusedError)(why)


class Store(Protocol):
    """One tracker. Each method raises OutOfReachError or RefusedError."""

    def open(self, run: Run, entry: Entry) -> None:
        """Make the run unless it is there; fill in the entry's id, and correct what it says."""

    def log(self, entry: Entry, metrics: list[Metric]) -> None:
        """Add metrics, `LARGEST_BATCH` at most."""

    def upload(self, entry: Entry, artifact: Artifact) -> None:
        """Add a file, or replace it."""

    def close(self, run: Run, entry: Entry) -> None:
        """Bring configuration, facts and status up to date."""


def connect(tracker: Tracker, timeout_s: float) -> Store:
    """Return a tracker's store.

    Raises:
        RefusedError: The software that it needs is not installed.
        OutOfReachError: Its database cannot be opened.
    """
    assert tracker.uri is not None
    if tracker.kind == "http":
        from lockstep.report.tracker.apis.http_store import HttpStore

        return HttpStore(tracker.uri, tracker.key, timeout_s)
    from lockstep.report.tracker.apis.mlflow_store import MlflowStore

    return MlflowStore(tracker.uri, tracker.key, timeout_s)
