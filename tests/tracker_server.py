"""A stand-in of a tracker's HTTP interface, see `lockstep.report.tracker.stores`.

It keeps what it is told, like a server that honours Idempotency-Key, and dies when it is asked to.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "a-secret-of-the-tracker"
SCHEMAS = {
    "runs": {"key", "experiment", "name", "kind", "started", "slurm_job_id", "node", "seed",
        "gpu_type", "config", "facts"},
    "metrics": {"metrics"},
    "artifacts": {"path", "type", "size_bytes", "sha256", "content"},
    "": {"status", "ended", "config", "facts"},
}  # fmt: skip


class Tracker(ThreadingHTTPServer):
    """The server; `dies_after` counts the requests that it takes without answering the last."""

    daemon_threads = True

    def __init__(self, port: int = 0, dies_after: int | None = None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.dies_after = dies_after
        self.leads_to = ""  # the address that it redirects to
        self.prefix = ""  # of all paths
        self.refuses = ""  # name of a run that it does not take
        self.requests: list[tuple[str, str, int]] = []
        self.heard = 0
        self.problems: list[str] = []
        self.done: dict[str, Any] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, method: str, path: str, payload: dict[str, Any]) -> Any:
        parts = path.removeprefix(self.prefix).strip("/").split("/")
        what = "runs" if len(parts) == 1 else "".join(parts[2:])
        if set(payload) != SCHEMAS[what]:
            self.problems.append(f"{path} has {sorted(payload)}")
        if what == "runs":
            run_id = f"run-{len(self.runs)}"
            self.runs[run_id] = payload | {"metrics": [], "artifacts": [], "status": "RUNNING"}
            return {"run_id": run_id}
        run = self.runs[parts[1]]
        if what == "metrics":
            self.requests.append((method, path, len(payload["metrics"])))
            run["metrics"] += payload["metrics"]
        elif what == "artifacts":
            content = base64.b64decode(payload["content"])
            if hashlib.sha256(content).hexdigest() != payload["sha256"]:
                self.problems.append(f"{payload['path']} came torn")
            run["artifacts"].append(payload["path"])
        else:
            run.update(payload)
        return {}


class Handler(BaseHTTPRequestHandler):
    server: Tracker

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        tracker = self.server
        tracker.heard += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if tracker.leads_to:
            self.send_response(302)
            self.send_header("Location", tracker.leads_to + self.path)
            self.end_headers()
            return
        if self.headers["X-API-Key"] != KEY:
            self.send_error(401)
            return
        if tracker.refuses and body.get("name") == tracker.refuses:
            self.send_error(422)
            return
        with tracker.lock:
            name = self.headers["Idempotency-Key"]
            if name not in tracker.done:
                tracker.done[name] = tracker.take(self.command, self.path, body)
            answer = json.dumps(tracker.done[name]).encode()
            if tracker.dies_after is not None:
                tracker.dies_after -= 1
                if tracker.dies_after <= 0:  # it has what it was sent, and nobody learns of it
                    self.close_connection = True
                    return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815, the names that http.server calls


@contextmanager
def serving(dies_after: int | None = None) -> Iterator[Tracker]:
    tracker = Tracker(dies_after=dies_after)
    threading.Thread(target=tracker.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield tracker
    finally:
        tracker.shutdown()
        tracker.server_close()
