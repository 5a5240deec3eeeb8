"""The trackers that results are sent to: a plain HTTP interface, and MLflow.

Both have the methods `open`, `log`, `upload` and `close`, which raise NotSentError. The
HTTP interface takes JSON requests. Their paths are those below, or the keys `run`, `metrics`,
`artifacts` and `status` of the tracker's `routes`:

    POST  /runs                 key, experiment, name, kind, started, slurm_job_id, node, seed,
                                gpu_type, config, facts -> run_id
    POST  /runs/ID/metrics      metrics: a list of name, value, step, timestamp; 1,000 at most
    POST  /runs/ID/artifacts    path, type, size_bytes, sha256, content (base64; null above 16 MiB)
    PATCH /runs/ID              status, ended, config, facts

The key goes into the header `X-API-Key`. A request whose answer was lost is sent again as it was,
with the same `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), by which a server
recognises it.

MLflow is a SQLite file or a server, used through its own client. The tag `lockstep.run` names a
run, and what MLflow holds of it decides what is still to be sent: a folder whose `tracker/` was
deleted, or a second machine, adds nothing twice.
"""

import base64
import hashlib
import json
import logging
import mimetypes
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import quote, urlsplit

from lockstep.core import files
from lockstep.core.formats import one_line
from lockstep.report.tracker.tracked import Artifact, Entry, Metric, Routes, Run

Kind = Literal[
    "sent", "out-of-reach", "refused", "busy", "unwritable", "unreadable", "empty", "late", "broken"
]
LONGEST_ANSWER = 300  # characters of a tracker's error message that are shown
# Metrics, and parameters and tags, in one request (MLflow's REST interface, "Log Batch").
LARGEST_BATCH = 1000
LARGEST_FACTS = 100
# Answers after which the same request may succeed later.
LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class NotSentError(RuntimeError):
    """A tracker did not accept a request; `kind` says why."""

    def __init__(self, kind: Kind, why: object = "") -> None:
        super().__init__(one_line(str(why))[:LONGEST_ANSWER])
        self.kind = kind


def _answer_error(status: int, why: object) -> NotSentError:
    is_later = status in LATER or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return NotSentError("out-of-reach" if is_later else "refused", why)


LARGEST_CONTENT_BYTES = 16 * files.MIB
FACTS = ("slurm_job_id", "node", "seed", "gpu_type")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirection: urllib would send the key and the results to the other address."""

    def redirect_request(self, req: Any, *rest: Any) -> NoReturn:
        address = rest[-1]
        raise NotSentError(
            "refused",
            f"the server redirects requests for {req.full_url} to {address}; set the tracker's uri "
            "to the new address",
        )


class HttpStore:
    """The HTTP interface at an address."""

    def __init__(self, uri: str, key: str | None, timeout_s: float, routes: Routes) -> None:
        self._uri = uri
        self._routes = routes
        self._experiment = ""
        self._headers = {"Content-Type": "application/json"} | ({"X-API-Key": key} if key else {})
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect)

    def open(self, run: Run, entry: Entry) -> None:
        """Create the run once, and repeat unconfirmed requests."""
        self._experiment = quote(run.experiment, safe="")
        if not entry.id:
            payload = {name: run.facts.get(name) for name in FACTS} | {
                "key": run.key, "experiment": run.experiment, "name": run.name, "kind": run.kind,
                "started": _moment(run.started_ms), "config": run.params, "facts": run.facts,
            }  # fmt: skip
            path = self._path(self._routes.run, entry)
            answer = self._request("POST", path, payload, f"{run.key} run")
            if not isinstance(answer, dict) or not isinstance(answer.get("run_id"), str | int):
                raise NotSentError("refused", f"the server's answer to POST {path} has no run_id")
            entry.id = str(answer["run_id"])
        if entry.pending:
            metrics = [Metric(*values) for values in entry.pending]
            self.log(entry, metrics)
            entry.confirm(metrics)

    def log(self, entry: Entry, metrics: list[Metric]) -> None:
        """Add metrics."""
        values = [
            {"name": m.name, "value": m.value, "step": m.step, "timestamp": _moment(m.time_ms)}
            for m in metrics
        ]
        digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()
        path = self._path(self._routes.metrics, entry)
        self._request("POST", path, {"metrics": values}, f"{entry.key} {digest}")

    def upload(self, entry: Entry, artifact: Artifact) -> None:
        """Add a file, its content as base64."""
        content = files.content(artifact.path)
        is_small = len(content) <= LARGEST_CONTENT_BYTES
        payload = {
            "path": artifact.path.name,
            "type": mimetypes.guess_type(artifact.path.name)[0] or "application/octet-stream",
            "size_bytes": len(content),
            "sha256": artifact.sha256,
            "content": base64.b64encode(content).decode() if is_small else None,
        }
        name = f"{entry.key} {artifact.path.name} {artifact.sha256}"
        self._request("POST", self._path(self._routes.artifacts, entry), payload, name)

    def close(self, run: Run, entry: Entry) -> None:
        """Send the state of the run."""
        ended = None if run.ended_ms is None else _moment(run.ended_ms)
        payload = {"status": run.status, "ended": ended, "config": run.params, "facts": run.facts}
        path = self._path(self._routes.status, entry)
        self._request("PATCH", path, payload, f"{entry.key} {run.digest}")

    def _path(self, route: str, entry: Entry) -> str:
        return route.format(experiment=self._experiment, id=quote(entry.id, safe=""))

    def _request(self, method: str, path: str, payload: dict[str, Any], name: str) -> Any:
        headers = self._headers | {"Idempotency-Key": hashlib.sha256(name.encode()).hexdigest()}
        request = urllib.request.Request(  # noqa: S310, the address was checked to be http
            self._uri + path, json.dumps(payload).encode(), headers, method=method
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                text = answer.read(files.MIB)
        except urllib.error.HTTPError as error:
            why = f"the server answers {method} {path} with {error.code} {error.reason}"
            raise _answer_error(error.code, why) from None
        except (OSError, HTTPException) as error:
            raise NotSentError("out-of-reach", getattr(error, "reason", error)) from None
        try:
            return json.loads(text or b"null")
        except ValueError:
            why = f"the server's answer to {method} {path} is not JSON"
            raise NotSentError("refused", why) from None


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


KEY_TAG = "lockstep.run"
KIND_TAG = "lockstep.kind"
PORTS = {"http": 80, "https": 443}
NOISY = ("mlflow", "alembic", "sqlalchemy", "urllib3")


def prepare(key: str | None, timeout_s: float) -> None:
    """Set MLflow's environment variables, and import MLflow, which takes seconds."""
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
        import mlflow  # noqa: F401
    except ImportError as error:
        why = f"{error}; install MLflow here: pip install '/path/to/checkout[tracker]'"
        raise NotSentError("refused", why) from None
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


class MlflowStore:
    """MLflow at sqlite:///PATH or at a server's address; the key is a token of the server."""

    def __init__(self, uri: str, key: str | None, timeout_s: float) -> None:
        parts = urlsplit(uri)
        if parts.scheme in PORTS:  # MLflow itself would try longer and report a vaguer error
            try:
                address = (parts.hostname or "", parts.port or PORTS[parts.scheme])
                socket.create_connection(address, timeout_s).close()
            except OSError as error:
                raise NotSentError("out-of-reach", error) from None
        prepare(key, timeout_s)
        from mlflow import MlflowClient

        self._artifacts: Path | None = None
        if parts.scheme == "sqlite":
            self._artifacts = Path(uri.removeprefix("sqlite:///")).with_name("mlartifacts")
        with _translated_errors():
            self._client = MlflowClient(uri)
        self._experiments: dict[str, str] = {}

    def open(self, run: Run, entry: Entry) -> None:
        """Find the run by its tag, or create it; read from MLflow which metrics it has."""
        with _translated_errors():
            experiment = self._experiment(run.experiment)
            mark = '"' if "'" in run.key else "'"
            wanted = f"tags.`{KEY_TAG}` = {mark}{run.key}{mark}"
            known = next(iter(self._client.search_runs([experiment], wanted, max_results=1)), None)
            if known is None:
                tags = {KEY_TAG: run.key, KIND_TAG: run.kind}
                known = self._client.create_run(experiment, run.started_ms, tags, run.name)
            if known.info.run_id != entry.id:  # the run was deleted in MLflow, or the entry is lost
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
        with _translated_errors():
            self._client.log_batch(entry.id, metrics=values)

    def upload(self, entry: Entry, artifact: Artifact) -> None:
        """Add a file."""
        with _translated_errors():
            self._client.log_artifact(entry.id, str(artifact.path))

    def close(self, run: Run, entry: Entry) -> None:
        """Add new configuration and facts, and set the state of the run."""
        from mlflow.entities import Param, RunTag

        with _translated_errors():
            known = self._client.get_run(entry.id)
            params = [Param(*p) for p in run.params.items() if p[0] not in known.data.params]
            tags = [RunTag(*tag) for tag in run.facts.items()]
            for i in range(0, max(len(params), len(tags)), LARGEST_FACTS):
                chosen = slice(i, i + LARGEST_FACTS)
                self._client.log_batch(entry.id, params=params[chosen], tags=tags[chosen])
            if run.status != "RUNNING":
                self._client.set_terminated(entry.id, run.status, run.ended_ms)
            elif known.info.status != "RUNNING":  # ended in MLflow, resumed since
                self._client.update_run(entry.id, "RUNNING")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn MLflow's errors into NotSentError, by MLflow's own code of each error."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise _answer_error(error.get_http_status_code(), error) from None
    except OSError as error:
        raise NotSentError("out-of-reach", error) from None
