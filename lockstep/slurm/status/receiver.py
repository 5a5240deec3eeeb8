"""The receiver of events: HTTP, of which it takes one kind of message and gives one page.

It believes only who signs with the key, within five minutes and once, and nothing about jobs that
are not the campaign's. What it takes is on disk before it answers.

A sender signs `TIMESTAMP.BODY` by HMAC-SHA256 (RFC 2104) and gives timestamp and signature in two
headers; `slurm_templates/lib/epilog.sh` is one.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from lockstep.core import files
from lockstep.core.journal import Journal
from lockstep.slurm.status import by_hand, job_events
from lockstep.slurm.status.sent import Results

TIMESTAMP_HEADER = "X-Lockstep-Timestamp"
SIGNATURE_HEADER = "X-Lockstep-Signature"
# How far the clocks of sender and receiver may differ, and a message may be under way.
WINDOW_S = 300
LEAST_KEY_BYTES = 16

Refusal = Literal["unsigned", "forged", "late", "replayed"]


def sign(key: bytes, timestamp: str, body: bytes) -> str:
    """Return the signature of a message, as hexadecimal digits."""
    return hmac.new(key, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def read_key(path: Path) -> bytes:
    """Return the key in a file, which is made with a new key where there is none.

    Raises:
        ValueError: It cannot be read, is too short, or others may read it.
        OSError: It cannot be made.
    """
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    key = files.content(path).strip()
    if len(key) < LEAST_KEY_BYTES:
        raise ValueError(f"{path}: a key has {LEAST_KEY_BYTES} characters or more")
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path}: others may read this key; chmod 600 it, better make a new one")
    return key


class Guard:
    """Says of each message whether it may be believed; for one thread at a time.

    Args:
        seen: Signature -> timestamp of messages taken before, as after a restart.
    """

    def __init__(
        self, key: bytes, seen: Mapping[str, int], clock: Callable[[], float] = time.time
    ) -> None:
        self._key = key
        self._seen = dict(seen)
        self._clock = clock

    def refuse(self, timestamp: str | None, signature: str | None, body: bytes) -> Refusal | None:
        """Return why a message is not believed; None of one that is, until it is noted."""
        if not timestamp or not signature:
            return "unsigned"
        # A signature of other characters than ASCII cannot be compared.
        if not re.fullmatch("[0-9]{1,12}", timestamp) or not signature.isascii():
            return "forged"
        if not hmac.compare_digest(sign(self._key, timestamp, body), signature):
            return "forged"
        now = self._clock()
        if abs(now - int(timestamp)) > WINDOW_S:
            return "late"
        self._seen = {s: at for s, at in self._seen.items() if now - at <= WINDOW_S}
        return "replayed" if signature in self._seen else None

    def note(self, timestamp: str, signature: str) -> None:
        """Believe a message no more, for it is kept."""
        self._seen[signature] = int(timestamp)


EVENTS_PATH = "/events"
CHANGES_PATH = "/changes"
# An event has about a hundred bytes.
MAX_BYTES = 4096
SOCKET_TIMEOUT_S = 10.0
# Pages that wait for changes at once; each holds a thread.
MAX_WATCHERS = 64
BEAT_S = 15.0
ANSWERS: dict[Refusal, tuple[int, str]] = {
    "unsigned": (401, f"not signed; give {TIMESTAMP_HEADER} and {SIGNATURE_HEADER}"),
    "forged": (401, "the signature is not that of the key"),
    "late": (401, "the timestamp is more than five minutes off"),
    "replayed": (409, "this message was taken before"),
}


@dataclass
class Inbox:
    """Where events go that are believed."""

    results: Results
    guard: Guard
    on_event: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, timestamp: str | None, signature: str | None, body: bytes) -> tuple[int, str]:
        """Return the answer to a message: HTTP's status, and why.

        Raises:
            OSError: It is believed, but cannot be written.
        """
        with self._lock:  # one line after another, and the jobs as they are then
            if refusal := self.guard.refuse(timestamp, signature, body):
                return ANSWERS[refusal]
            assert timestamp is not None
            assert signature is not None
            try:
                event = job_events.parse(files.parse(body), int(timestamp))
            except ValueError as error:
                return 422, str(error)
            if not self._is_ours(event.job_id):
                return 404, "no job of this campaign"
            record = Journal(self.results.events_file)
            try:
                record.append({"uuid": signature, **vars(event)})
            finally:
                record.close()
            self.guard.note(timestamp, signature)  # last: what was not kept may be sent again
        self.on_event()
        return 202, "taken"

    def _is_ours(self, job_id: str) -> bool:
        sent = self.results.jobs()
        return any(job.id == job_id for job in sent) or job_id in by_hand.ids(
            self.results, sent, None
        )


@dataclass
class Shown:
    """The page as it is now, for which viewers may wait.

    Attributes:
        version: How often it has changed.
    """

    page: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, page: str, facts: dict[str, Any], *, is_new: bool) -> None:
        """Show another page, and tell viewers where it says something new."""
        with self.changed:
            self.page, self.facts = page, facts
            self.version += is_new
            self.changed.notify_all()

    def wait(self, version: int) -> int:
        """Return the version once it is another one, or after a while the same."""
        with self.changed:
            self.changed.wait_for(lambda: self.version != version, BEAT_S)
            return self.version


class Server(ThreadingHTTPServer):
    """The receiver, bound to an address; its threads end with the process."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], inbox: Inbox, shown: Shown) -> None:
        self.inbox = inbox
        self.shown = shown
        self.watchers = threading.BoundedSemaphore(MAX_WATCHERS)
        super().__init__(address, Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    timeout = SOCKET_TIMEOUT_S  # or who sends nothing would hold a thread
    server_version = "lockstep"
    sys_version = ""

    def do_POST(self) -> None:
        """Take an event."""
        if self.path != EVENTS_PATH:
            self._say(404, f"post events to {EVENTS_PATH}")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._say(411, "give Content-Length")
        elif len(length) > 9 or int(length) > MAX_BYTES:
            self._say(413, f"an event has {MAX_BYTES} bytes at most")
        else:
            body = self.rfile.read(int(length))
            timestamp, signature = map(self.headers.get, (TIMESTAMP_HEADER, SIGNATURE_HEADER))
            try:
                self._say(*self.server.inbox.take(timestamp, signature, body))
            except (OSError, ValueError):
                self._say(500, "it cannot be kept")

    def do_GET(self) -> None:
        """Give the page, its record, or word of changes."""
        shown = self.server.shown
        if self.path == "/":
            self._give("text/html; charset=utf-8", shown.page.encode())
        elif self.path == "/status.json":
            self._give("application/json", json.dumps(shown.facts, indent=1).encode())
        elif self.path == CHANGES_PATH:
            self._tell_changes(shown)
        else:
            self._say(404, "there is /, /status.json and /changes")

    def _tell_changes(self, shown: Shown) -> None:
        """Say each change, as server-sent events, until the viewer goes."""
        if not self.server.watchers.acquire(blocking=False):
            self._say(503, "too many pages watch")
            return
        try:
            self._head(200, "text/event-stream")
            version = shown.version
            while True:
                before, version = version, shown.wait(version)
                line = b": nothing new\n\n" if version == before else b"data: changed\n\n"
                self.wfile.write(line)
        except OSError:
            return
        finally:
            self.server.watchers.release()

    def _say(self, code: int, why: str) -> None:
        self._give("text/plain; charset=utf-8", f"{why}\n".encode(), code)

    def _give(self, kind: str, content: bytes, code: int = 200) -> None:
        self._head(code, kind, len(content))
        self.wfile.write(content)

    def _head(self, code: int, kind: str, length: int | None = None) -> None:
        self.close_connection = True
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, the library's name
        """Say nothing of single requests."""
