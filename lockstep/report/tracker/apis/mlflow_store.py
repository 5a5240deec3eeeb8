"""MLflow as a tracker: a SQLite file or a server, through MLflow's own client.

The tag `lockstep.run` names a run, and what MLflow holds of it decides what is still to be sent: a
folder whose `tracker/` was deleted, or a second machine, adds nothing twice.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from lockstep.core.formats import one_line
from lockstep.report.tracker.apis.stores import MAX_SAID, OutOfReachError, RefusedError, failed
from lockstep.report.tracker.confirmed import Entry
from lockstep.report.tracker.runs.tracked import Artifact, Metric, Run

KEY_TAG = "lockstep.run"
KIND_TAG = "lockstep.kind"
# Parameters and tags in one request (MLflow's REST interface, "Log Batch").
LARGEST_FACTS = 100
PORTS = {"http": 80, "https": 443}
NOISY = ("mlflow", "alembic", "sqlalchemy", "urllib3")


def prepare(key: str | None, timeout_s: float) -> None:
    """Set what MLflow reads from its environment, and import it: some seconds.

    Raises:
        RefusedError: It is not installed.
    """
    os.environ.update(
        MLFLOW_HTTP_REQUEST_TIMEOUT=str(max(1, round(timeout_s))),
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
        MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT="true",
        MLFLOW_DISABLE_TELEMETRY="true",
        DO_NOT_TRACK="true",
    )
    if key:
        os.environ["MLFLOW_TRACKING_TOKEN"] = key
    try:
        import mlflow
    except ImportError as error:
        raise RefusedError(
            f"{error}; pip install '/path/to/checkout[tracker]' where this command runs"
        ) from None
    assert mlflow
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


class MlflowStore:
    """One MLflow, at sqlite:///PATH or at a server's address.

    The key is a token that the server wants; MLflow's own variables do as well.

    Raises:
        RefusedError: MLflow is not installed.
        OutOfReachError: The server does not answer, or the database cannot be opened.
    """

    def __init__(self, uri: str, key: str | None, timeout_s: float) -> None:
        parts = urlsplit(uri)
        if parts.scheme in PORTS:  # MLflow would try for longer, and say less
            try:
                address = (parts.hostname or "", parts.port or PORTS[parts.scheme])
                socket.create_connection(address, timeout_s).close()
            except OSError as error:
                raise OutOfReachError(one_line(str(error))) from None
        prepare(key, timeout_s)
        from mlflow import MlflowClient

        self._artifacts: Path | None = None
        if parts.scheme == "sqlite":
            self._artifacts = Path(uri.removeprefix("sqlite:///")).with_name("mlartifacts")
        with _named():
            self._client = MlflowClient(uri)
        self._experiments: dict[str, str] = {}

    def open(self, run: Run, entry: Entry) -> None:
        """Find the run by its tag, or make it; MLflow itself says which metrics it has."""
        with _named():
            experiment = self._experiment(run.experiment)
            mark = '"' if "'" in run.key else "'"
            wanted = f"tags.`{KEY_TAG}` = {mark}{run.key}{mark}"
            known = next(iter(self._client.search_runs([experiment], wanted, max_results=1)), None)
            if known is None:
                tags = {KEY_TAG: run.key, KIND_TAG: run.kind}
                known = self._client.create_run(experiment, run.started_ms, tags, run.name)
            if known.info.run_id != entry.id:  # it was deleted there, or the entry is lost
                entry.id, entry.files, entry.digest = known.info.run_id, {}, ""
            entry.pending, entry.through = [], {}
            for name in known.data.metrics:
                history = self._client.get_metric_history(entry.id, name)
                entry.through[name] = max(metric.step for metric in history)

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            known = self._client.get_experiment_by_name(name)
            made = known.experiment_id if known else self._client.create_experiment(
                name, artifact_location=self._artifacts and (self._artifacts / name).as_uri()
            )  # fmt: skip
            self._experiments[name] = str(made)
        return self._experiments[name]

    def log(self, entry: Entry, metrics: list[Metric]) -> None:
        """Add metrics."""
        from mlflow.entities import Metric as Value

        values = [Value(m.name, m.value, m.time_ms, m.step) for m in metrics]
        with _named():
            self._client.log_batch(entry.id, metrics=values)

    def upload(self, entry: Entry, artifact: Artifact) -> None:
        """Add a file."""
        with _named():
            self._client.log_artifact(entry.id, str(artifact.path))

    def close(self, run: Run, entry: Entry) -> None:
        """Add what is new of configuration and facts, and tell the state of the run."""
        from mlflow.entities import Param, RunTag

        with _named():
            known = self._client.get_run(entry.id)
            params = [Param(*p) for p in run.params.items() if p[0] not in known.data.params]
            tags = [RunTag(*tag) for tag in run.facts.items()]
            for i in range(0, max(len(params), len(tags)), LARGEST_FACTS):
                chosen = slice(i, i + LARGEST_FACTS)
                self._client.log_batch(entry.id, params=params[chosen], tags=tags[chosen])
            if run.status != "RUNNING":
                self._client.set_terminated(entry.id, run.status, run.ended_ms)
            elif known.info.status != "RUNNING":  # it was resumed
                self._client.update_run(entry.id, "RUNNING")


@contextmanager
def _named() -> Iterator[None]:
    """Tell a tracker that refuses from one that cannot be reached, by MLflow's own code of it."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        said = one_line(str(error))[:MAX_SAID]
        raise failed(error.get_http_status_code(), said) from None
    except OSError as error:
        raise OutOfReachError(one_line(str(error))[:MAX_SAID]) from None
