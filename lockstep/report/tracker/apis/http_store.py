"""A tracker behind a plain HTTP interface of JSON requests.

    POST  /runs                 key, experiment, name, kind, started, slurm_job_id, node, seed,
                                gpu_type, config, facts -> run_id
    POST  /runs/ID/metrics      metrics: a list of name, value, step, timestamp; 1,000 at most
    POST  /runs/ID/artifacts    path, type, size_bytes, sha256, content (base64; null above 16 MiB)
    PATCH /runs/ID              status, ended, config, facts

The key goes into the header `X-API-Key`. A request whose answer was lost is sent again as it was,
with the same `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), by which a server can
tell that it has it already.
"""

import base64
import hashlib
import json
import mimetypes
import urllib.error
import urllib.request
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, NoReturn

from lockstep.core import files
from lockstep.core.formats import one_line
from lockstep.report.tracker.apis.stores import MAX_SAID, OutOfReachError, RefusedError, failed
from lockstep.report.tracker.confirmed import Entry
from lockstep.report.tracker.runs.tracked import Artifact, Metric, Run

LARGEST_CONTENT_BYTES = 16 * files.MIB
FACTS = ("slurm_job_id", "node", "seed", "gpu_type")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows to no other address: urllib would send the key, and the results, there, too."""

    def redirect_request(self, req: Any, *rest: Any) -> NoReturn:
        """Refuse; the last of what urllib gives is the address."""
        address = one_line(str(rest[-1]))[:MAX_SAID]
        raise RefusedError(
            f"it redirects {req.get_method()} {req.full_url} to {address}; "
            "give the address that it has now"
        )


class HttpStore:
    """The interface at one address."""

    def __init__(self, uri: str, key: str | None, timeout_s: float) -> None:
        self.uri = uri
        self._headers = {"Content-Type": "application/json"} | ({"X-API-Key": key} if key else {})
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect)

    def open(self, run: Run, entry: Entry) -> None:
        """Make the run once, and send again what was not confirmed."""
        if not entry.id:
            payload: dict[str, Any] = {name: run.facts.get(name) for name in FACTS}
            payload |= {"key": run.key, "experiment": run.experiment, "name": run.name}
            payload |= {"kind": run.kind, "started": _moment(run.started_ms)}
            payload |= {"config": run.params, "facts": run.facts}
            answer = self._request("POST", "/runs", payload, f"{run.key} run")
            if not isinstance(answer, dict) or not isinstance(answer.get("run_id"), str | int):
                raise RefusedError("it answers POST /runs without a run_id")
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
        path = f"/runs/{entry.id}/metrics"
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
        self._request("POST", f"/runs/{entry.id}/artifacts", payload, name)

    def close(self, run: Run, entry: Entry) -> None:
        """Tell the tracker the state of the run."""
        ended = None if run.ended_ms is None else _moment(run.ended_ms)
        payload = {"status": run.status, "ended": ended, "config": run.params, "facts": run.facts}
        self._request("PATCH", f"/runs/{entry.id}", payload, f"{entry.key} {run.digest}")

    def _request(self, method: str, path: str, payload: dict[str, Any], name: str) -> Any:
        headers = self._headers | {"Idempotency-Key": hashlib.sha256(name.encode()).hexdigest()}
        request = urllib.request.Request(  # noqa: S310, the address was checked to be http
            self.uri + path, json.dumps(payload).encode(), headers, method=method
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                text = answer.read(files.MIB)
        except urllib.error.HTTPError as error:
            said = f"it answers {method} {path} with {error.code} {one_line(str(error.reason))}"
            raise failed(error.code, said) from None
        except (OSError, HTTPException) as error:
            raise OutOfReachError(one_line(str(getattr(error, "reason", error)))) from None
        try:
            return json.loads(text or b"null")
        except ValueError:
            raise RefusedError(f"it answers {method} {path} with what is no JSON") from None


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
