"""`lockstep slurm serve`: events of jobs that ended come in, the status page goes out.

Over HTTP it takes one kind of message and gives one page. It believes only who signs with the key,
within five minutes and once, and nothing about jobs that are not the campaign's. What it takes is
on disk before it answers.

A sender signs `TIMESTAMP.BODY` by HMAC-SHA256 (RFC 2104) and gives timestamp and signature in two
headers; `slurm_templates/lib/epilog.sh` is one.
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
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

from lockstep import content
from lockstep.core import files
from lockstep.core.journal import Journal
from lockstep.slurm.status.jobs_cli import results_of
from lockstep.slurm.status.sent import Results, ids_by_hand, parse_event
from lockstep.slurm.status.standing import Board
from lockstep.slurm.status.status_cli import expectation_options
from lockstep.slurm.status.status_page import CHANGES_PATH, html
from lockstep.slurm.status.status_record import Wanted, record

PORT = 8765
EVERY_S = 60.0
# Events come in swarms as a campaign ends, and squeue is everybody's.
LEAST_PAUSE_S = 2.0
SOON_S = 4.0
KEY_FILE = ".events.key"
EPILOG = "lib/epilog.sh"
# Where the controller reads its own copy of the key: it may run as another user.
INSTALLED_KEY = Path("/etc/slurm/lockstep-events.key")
WILDCARDS = ("0.0.0.0", "")  # noqa: S104, to be replaced by a name
TIMESTAMP_HEADER = "X-Lockstep-Timestamp"
SIGNATURE_HEADER = "X-Lockstep-Signature"
# How far the clocks of sender and receiver may differ, and a message may be under way.
WINDOW_S = 300
LEAST_KEY_BYTES = 16
EVENTS_PATH = "/events"
# An event has about a hundred bytes.
MAX_BYTES = 4096
SOCKET_TIMEOUT_S = 10.0
# Pages that wait for changes at once; each holds a thread.
MAX_WATCHERS = 64
BEAT_S = 15.0


@click.command()
@click.argument("folder")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True,
              help="Port to listen on; 0 takes a free one.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on. Whoever reaches it can read the page.")  # fmt: skip
@click.option("--key-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help=f"Key of the events, made where there is none.  [default: {KEY_FILE} in FOLDER]",
              )  # fmt: skip
@click.option("--every", "every_s", type=click.FloatRange(5, 86_400), default=EVERY_S,
              show_default=True, metavar="SECONDS", help="Ask Slurm so often without an event."
              )  # fmt: skip
@click.option("--print-epilog", is_flag=True,
              help="Print the script for Slurm's EpilogSlurmctld, and end.")  # fmt: skip
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
    """Serve the status page of a campaign's FOLDER, and take events of its jobs' ends.

    The page at / tells open browsers of every change. Slurm's controller posts to /events, signed
    with the key; what is forged, late or sent twice changes nothing, and an event that is lost is
    found at the next look. It runs until it is interrupted.

    \b
    Examples:
      lockstep slurm serve results/campaign --port 8765
      lockstep slurm serve results/campaign --print-epilog > epilog.sh
    """
    results = results_of(folder)
    key_path = key_file or results.path / KEY_FILE
    key = read_key(key_path)
    if print_epilog:
        name = socket.getfqdn() if host in WILDCARDS else host  # by which other machines reach it
        url = f"http://{name}:{port}{EVENTS_PATH}"
        click.echo(epilog(url, key_path, key_file or INSTALLED_KEY), nl=False)
        return
    shown = Shown()
    follower = Follower(Board(results), folder, Wanted(expect, floor, inventory=True), shown)
    inbox = Inbox(results, key, follower.wanted.set)
    follower.look()
    try:
        server = Server((host, port), inbox, shown)
    except OSError as error:
        why = error.strerror or error
        raise RuntimeError(f"{host}, port {port}: {why}; choose another by --port") from None
    threading.Thread(target=follower.run, args=(every_s,), daemon=True).start()
    click.echo(f"page: http://{host}:{server.server_port}/")
    click.echo(f"key: {key_path}")
    with server:
        server.serve_forever()


def epilog(url: str, key_path: Path, installed: Path) -> str:
    """Return the script that ships, with where events go and the file of the key filled in.

    The controller reads the key where it is installed: the same file, or its own copy.
    """
    text = files.text(content.ROOT / "slurm_templates" / EPILOG)
    key, read = (shlex.quote(str(path.absolute())) for path in (key_path, installed))
    lines = {"url=": f"url={shlex.quote(url)}\n", "key_file=": f"key_file={read}\n"}
    if url.startswith(("http://127.", "http://localhost")):
        lines["url="] = (
            f"# Only this machine reaches this address; else give --host.\n{lines['url=']}"
        )
    if read != key:
        own = f"# As root, for SlurmUser=slurm: install -o slurm -m 600 {key} {read}\n"
        lines["key_file="] = own + lines["key_file="]
    return "".join(
        next((text for name, text in lines.items() if line.startswith(name)), line)
        for line in text.splitlines(keepends=True)
    )


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


class Inbox:
    """Takes the events that may be believed, and writes each down once, also after a restart."""

    def __init__(
        self,
        results: Results,
        key: bytes,
        on_event: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.results = results
        self.key = key
        self.on_event = on_event
        self.clock = clock
        # Signature -> timestamp of what was taken before.
        self.seen = {str(e["uuid"]): int(e.get("at", 0)) for e in results.event_entries()}
        self.lock = threading.Lock()

    def take(self, timestamp: str | None, signature: str | None, body: bytes) -> tuple[int, str]:
        """Return the answer to a message: HTTP's status, and why.

        Raises:
            OSError: It is believed, but cannot be written.
        """
        with self.lock:  # one line after another, and the jobs as they are then
            if not timestamp or not signature:
                return 401, f"not signed; give {TIMESTAMP_HEADER} and {SIGNATURE_HEADER}"
            # A signature of other characters than ASCII cannot be compared.
            is_ours = (
                re.fullmatch("[0-9]{1,12}", timestamp)
                and signature.isascii()
                and hmac.compare_digest(sign(self.key, timestamp, body), signature)
            )
            if not is_ours:
                return 401, "the signature is not that of the key"
            now = self.clock()
            if abs(now - int(timestamp)) > WINDOW_S:
                return 401, "the timestamp is more than five minutes off"
            self.seen = {s: at for s, at in self.seen.items() if now - at <= WINDOW_S}
            if signature in self.seen:
                return 409, "this message was taken before"
            try:
                event = parse_event(files.parse(body), int(timestamp))
            except ValueError as error:
                return 422, str(error)
            sent = self.results.jobs()
            known = {job.id for job in sent}
            if event.job_id not in known | set(ids_by_hand(self.results, sent, None)):
                return 404, "no job of this campaign"
            journal = Journal(self.results.events_file)
            try:
                journal.append({"uuid": signature, **asdict(event)})
            finally:
                journal.close()
            self.seen[signature] = int(timestamp)  # last: what was not kept may be sent again
        self.on_event()
        return 202, "taken"


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


@dataclass
class Follower:
    """Looks at a campaign when an event has come, and now and then, and shows what it sees.

    Attributes:
        folder: The folder as it was typed.
        page_of: What the record shall hold.
        wanted: Set once there is something to look for.
    """

    board: Board
    folder: str
    page_of: Wanted
    shown: Shown
    wanted: threading.Event = field(default_factory=threading.Event)
    _before: list[Any] = field(default_factory=list)

    def run(self, every_s: float) -> None:
        """Look again and again; whatever one look meets, there is another."""
        wait_s = every_s
        while True:
            is_told = self.wanted.wait(wait_s)
            self.wanted.clear()
            # While its epilog tells of a job, squeue calls that still COMPLETING.
            wait_s = SOON_S if is_told else min(2 * wait_s, every_s)
            self.attempt()
            time.sleep(LEAST_PAUSE_S)

    def attempt(self) -> None:
        """Look once; where that fails, show what was seen before and why it is no newer."""
        try:
            self.look()
        except Exception as error:  # noqa: BLE001, this thread is all that looks
            why = f"{type(error).__name__}: {error}"
            click.echo(f"not shown: {why}", err=True)
            facts = self.shown.facts | {"failed_look": why}
            page = html(facts, EVERY_S, is_served=True)
            self.shown.put(page, facts, is_new=bool(self._before))
            self._before = []

    def look(self) -> None:
        """Look once, and show it."""
        facts = record(self.board.look(), self.board.results, self.folder, self.page_of)
        now = [
            [(job["id"], job["state"], job.get("elements")) for job in facts["jobs"]],
            facts["launches"], facts["measured"]["points"], facts["next"], facts["errors"],
        ]  # fmt: skip
        self.shown.put(html(facts, EVERY_S, is_served=True), facts, is_new=now != self._before)
        self._before = now
