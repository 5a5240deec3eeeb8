"""`lockstep slurm serve`: receives events of jobs that ended, and serves the status page.

An event is accepted once, if it is about a job of the campaign, signed with the key, and at most
five minutes old; it is on disk before the answer goes out. A sender signs `TIMESTAMP.BODY` by
HMAC-SHA256 (RFC 2104) and gives timestamp and signature in two headers, as
`slurm_templates/lib/epilog.sh` does.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

from lockstep import content
from lockstep.core import files
from lockstep.slurm.status import status_page
from lockstep.slurm.status.sent import Results, append_line, ids_by_hand, parse_event, read_lines
from lockstep.slurm.status.standing import Board
from lockstep.slurm.status.status_cli import expectation_options, results_of
from lockstep.slurm.status.status_record import Wanted, record

PORT = 8765
EVERY_S = 60.0
# Pause after each query of Slurm: many events come at the end of a campaign, and all users share
# squeue.
LEAST_PAUSE_S = 2.0
SOON_S = 4.0
KEY_FILE = ".events.key"
# The controller's own copy of the key, because the controller may run as another user.
INSTALLED_KEY = Path("/etc/slurm/lockstep-events.key")
WILDCARDS = ("0.0.0.0", "")  # noqa: S104, the epilog gets this machine's name instead
TIMESTAMP_HEADER = "X-Lockstep-Timestamp"
SIGNATURE_HEADER = "X-Lockstep-Signature"
# Allowed difference between the timestamp of a message and the receiver's clock.
WINDOW_S = 300
LEAST_KEY_BYTES = 16
EVENTS_PATH = "/events"
# An event has about a hundred bytes.
MAX_BYTES = 4096
SOCKET_TIMEOUT_S = 10.0
# Browser pages that may wait for changes at the same time; each holds a thread.
MAX_WATCHERS = 64
BEAT_S = 15.0


@click.command()
@click.argument("folder")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True,
              help="Port of the status page's server; 0 takes a free port.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Network address of the status page's server. Whoever can reach this address "
                   "can read the page.")  # fmt: skip
@click.option("--key-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="File with the key that signs events; the file is created if it is missing. "
                   f" [default: {KEY_FILE} in FOLDER]",
              )  # fmt: skip
@click.option("--every", "every_s", type=click.FloatRange(5, 86_400), default=EVERY_S,
              show_default=True, metavar="SECONDS",
              help="Ask Slurm every SECONDS if no event arrives."
              )  # fmt: skip
@click.option("--print-epilog", is_flag=True,
              help="Only print the script for Slurm's EpilogSlurmctld.")  # fmt: skip
@expectation_options
def serve(
    folder: str,
    *,
    port: int,
    host: str,
    key_file: Path | None,
    every_s: float,
    print_epilog: bool,
    expect: Path | None,
    floor: float | None,
) -> None:
    """Serve the status page of a campaign's FOLDER, and receive an event when one of its jobs ends.

    The page at / updates itself in open browsers. Slurm's controller posts events to /events,
    signed with the key. A forged, late or repeated event changes nothing; if an event is lost, the
    next query of Slurm shows the end of the job. The server runs until you interrupt it.

    \b
    Examples:
      lockstep slurm serve results/campaign --port 8765
      lockstep slurm serve results/campaign --print-epilog > epilog.sh
    """
    results = results_of(folder)
    key_path = key_file or results.path / KEY_FILE
    key = read_key(key_path)
    if print_epilog:
        name = socket.getfqdn() if host in WILDCARDS else host  # as other machines call this one
        url = f"http://{name}:{port}{EVENTS_PATH}"
        click.echo(epilog(url, key_path, key_file or INSTALLED_KEY), nl=False)
        return
    page = StatusPage(results, folder, Wanted(expect, floor, inventory=True))
    page.look()
    try:
        server = Server((host, port), Inbox(results, key, page.event_came.set), page)
    except OSError as error:
        reason = error.strerror or error
        raise RuntimeError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --port"
        ) from None
    threading.Thread(target=page.follow, args=(every_s,), daemon=True).start()
    click.echo(f"page: http://{host}:{server.server_port}/")
    click.echo(f"key: {key_path}")
    with server:
        server.serve_forever()


def epilog(url: str, key_path: Path, installed: Path) -> str:
    """Return the epilog script with the URL of events and the file of the key filled in.

    The controller reads the key from `installed`: the same file, or its own copy.
    """
    text = files.text(content.ROOT / "slurm_templates/lib/epilog.sh")
    key, own = (shlex.quote(str(path.absolute())) for path in (key_path, installed))
    url_line, key_line = f"url={shlex.quote(url)}", f"key_file={own}"
    if url.startswith(("http://127.", "http://localhost")):
        url_line = (
            "# Only this machine reaches this address; give --host to let other machines reach "
            f"it.\n{url_line}"
        )
    if own != key:
        install = f"install -o slurm -m 600 {key} {own}"
        key_line = f"# As root, for SlurmUser=slurm: {install}\n{key_line}"
    text = re.sub("^url=.*$", lambda _: url_line, text, flags=re.MULTILINE)
    return re.sub("^key_file=.*$", lambda _: key_line, text, flags=re.MULTILINE)


def sign(key: bytes, timestamp: str, body: bytes) -> str:
    return hmac.new(key, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def read_key(path: Path) -> bytes:
    """Return the key in a file; a missing file is created with a new key.

    Raises:
        ValueError: The file cannot be read, the key is too short, or others may read it.
        OSError: The file cannot be created.
    """
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    key = files.content(path).strip()
    if len(key) < LEAST_KEY_BYTES:
        raise ValueError(
            f"{path}: the key has fewer than {LEAST_KEY_BYTES} characters; delete the file, and "
            "lockstep slurm serve makes a new key"
        )
    if path.stat().st_mode & 0o077:
        raise ValueError(
            f"{path}: other users may read this key; delete the file, and lockstep slurm serve "
            "makes a new key"
        )
    return key


class Inbox:
    """Accepts signed events, and writes each to disk once, even across restarts."""

    def __init__(
        self,
        results: Results,
        key: bytes,
        on_event: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.results, self.key, self.on_event, self.clock = results, key, on_event, clock
        # Signature -> timestamp of each accepted event.
        self.seen = {str(e["uuid"]): int(e.get("at", 0)) for e in read_lines(results.events_file)}
        self.lock = threading.Lock()

    def take(self, timestamp: str | None, signature: str | None, body: bytes) -> tuple[int, str]:
        """Return the answer to a message: the status of HTTP, and a reason.

        Raises:
            OSError: The event is accepted, but cannot be written.
        """
        with self.lock:  # so that one event is judged and written at a time
            if not timestamp or not signature:
                headers = f"{TIMESTAMP_HEADER} and {SIGNATURE_HEADER}"
                return 401, f"the message is not signed; send the headers {headers}"
            # compare_digest accepts only ASCII.
            is_ours = (
                re.fullmatch("[0-9]{1,12}", timestamp)
                and signature.isascii()
                and hmac.compare_digest(sign(self.key, timestamp, body), signature)
            )
            if not is_ours:
                return 401, "the signature was not made with this server's key"
            now = self.clock()
            if abs(now - int(timestamp)) > WINDOW_S:
                return 401, (
                    "the timestamp differs from this machine's clock by more than five minutes"
                )
            self.seen = {s: at for s, at in self.seen.items() if now - at <= WINDOW_S}
            if signature in self.seen:
                return 409, "this message was already received"
            try:
                event = parse_event(files.parse(body), int(timestamp))
            except ValueError as error:
                return 422, str(error)
            sent = self.results.jobs()
            known = {job.id for job in sent}
            if event.job_id not in known | set(ids_by_hand(self.results, sent, None)):
                return 404, "this campaign has no job with this job_id"
            append_line(self.results.events_file, {"uuid": signature, **asdict(event)})
            self.seen[signature] = int(timestamp)  # last: an event that was not written may return
        self.on_event()
        return 202, "accepted"


class StatusPage:
    """The page of a campaign, updated while the campaign runs."""

    def __init__(self, results: Results, folder: str, wanted: Wanted) -> None:
        self.board, self.folder, self.wanted = Board(results), folder, wanted
        self.html, self.facts = "", dict[str, Any]()
        self.version = 0  # number of changes
        self.changed, self.event_came = threading.Condition(), threading.Event()
        self.shown: list[Any] = []  # facts whose changes wake the viewers

    def follow(self, every_s: float) -> None:
        """Update the page for ever, even if an update fails."""
        wait_s = every_s
        while True:
            has_event = self.event_came.wait(wait_s)
            self.event_came.clear()
            # squeue shows a job as COMPLETING while its epilog runs, so ask again soon.
            wait_s = SOON_S if has_event else min(2 * wait_s, every_s)
            self.attempt()
            time.sleep(LEAST_PAUSE_S)

    def attempt(self) -> None:
        try:
            self.look()
        except Exception as error:  # noqa: BLE001, no other thread updates the page
            reason = f"{type(error).__name__}: {error}"
            click.echo(f"the status page was not updated: {reason}", err=True)
            self._show(self.facts | {"failed_look": reason}, [])

    def look(self) -> None:
        facts = record(self.board.look(), self.board.results, self.folder, self.wanted)
        states = [(job["id"], job["state"], job.get("elements")) for job in facts["jobs"]]
        points = facts["measured"]["points"]
        self._show(facts, [states, facts["launches"], points, facts["next"], facts["errors"]])

    def _show(self, facts: dict[str, Any], shown: list[Any]) -> None:
        """Replace the page, and wake its viewers if `shown` differs."""
        page = status_page.html(facts, EVERY_S, is_served=True)
        with self.changed:
            self.html, self.facts = page, facts
            self.version += shown != self.shown
            self.shown = shown
            self.changed.notify_all()

    def wait(self, version: int) -> int:
        with self.changed:
            self.changed.wait_for(lambda: self.version != version, BEAT_S)
            return self.version


class Server(ThreadingHTTPServer):
    """The HTTP server; its threads end with the process."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], inbox: Inbox, page: StatusPage) -> None:
        self.inbox, self.page = inbox, page
        self.watchers = threading.BoundedSemaphore(MAX_WATCHERS)
        super().__init__(address, Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a broken connection."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    timeout = SOCKET_TIMEOUT_S  # a silent client would hold a thread
    server_version = "lockstep"
    sys_version = ""

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != EVENTS_PATH:
            self._answer(404, f"post events to {EVENTS_PATH}")
        elif not length.isdecimal():
            self._answer(411, "give Content-Length")
        elif len(length) > 9 or int(length) > MAX_BYTES:
            self._answer(413, f"an event may have {MAX_BYTES} bytes at most")
        else:
            body = self.rfile.read(int(length))
            timestamp, signature = map(self.headers.get, (TIMESTAMP_HEADER, SIGNATURE_HEADER))
            try:
                self._answer(*self.server.inbox.take(timestamp, signature, body))
            except (OSError, ValueError):
                self._answer(500, "the event cannot be written to the campaign's folder")

    def do_GET(self) -> None:
        """Send the page, its record, or a stream with a line for each change."""
        page = self.server.page
        match self.path:
            case "/":
                self._answer(200, page.html, "text/html; charset=utf-8")
            case "/status.json":
                self._answer(200, json.dumps(page.facts, indent=1), "application/json")
            case status_page.CHANGES_PATH:
                self._send_changes(page)
            case _:
                self._answer(404, "this server has only the addresses /, /status.json and /changes")

    def _send_changes(self, page: StatusPage) -> None:
        if not self.server.watchers.acquire(blocking=False):
            self._answer(503, "too many browsers show this page; close one of the pages")
            return
        try:
            self._head(200, "text/event-stream")
            version = page.version
            while True:
                before, version = version, page.wait(version)
                line = b": nothing new\n\n" if version == before else b"data: changed\n\n"
                self.wfile.write(line)
        except OSError:
            return
        finally:
            self.server.watchers.release()

    def _answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        content = text.encode()
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
        """Print nothing about single requests."""
