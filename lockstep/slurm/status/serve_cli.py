"""`lockstep slurm serve`: events of jobs that ended come in, the status page goes out."""

import shlex
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.slurm.status.jobs_cli import results_of
from lockstep.slurm.status.status_cli import expectation_options

if TYPE_CHECKING:
    from lockstep.slurm.status.receiver import Inbox, Server, Shown
    from lockstep.slurm.status.standing import Board
    from lockstep.slurm.status.status_record import Wanted


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
    from lockstep.slurm.status import job_events, receiver
    from lockstep.slurm.status.standing import Board
    from lockstep.slurm.status.status_record import Wanted

    results = results_of(folder)
    key_path = key_file or results.path / KEY_FILE
    key = receiver.read_key(key_path)
    if print_epilog:
        url = f"http://{reachable(host)}:{port}{receiver.EVENTS_PATH}"
        click.echo(epilog(url, key_path, key_file or INSTALLED_KEY), nl=False)
        return
    known = {str(entry["uuid"]): int(entry.get("at", 0)) for entry in job_events.entries(results)}
    shown = receiver.Shown()
    follower = Follower(Board(results), folder, Wanted(expect, floor, inventory=True), shown)
    inbox = receiver.Inbox(results, receiver.Guard(key, known), follower.wanted.set)
    follower.look()
    server = _listening(host, port, inbox, shown)
    threading.Thread(target=follower.run, args=(every_s,), daemon=True).start()
    click.echo(f"page: http://{host}:{server.server_port}/")
    click.echo(f"key: {key_path}")
    with server:
        server.serve_forever()


def _listening(host: str, port: int, inbox: "Inbox", shown: "Shown") -> "Server":
    from lockstep.slurm.status import receiver

    try:
        return receiver.Server((host, port), inbox, shown)
    except OSError as error:
        why = error.strerror or error
        raise RuntimeError(f"{host}, port {port}: {why}; choose another by --port") from None


def reachable(host: str) -> str:
    """Return a name by which other machines reach what listens on an address."""
    return socket.getfqdn() if host in WILDCARDS else host


def epilog(url: str, key_path: Path, installed: Path) -> str:
    """Return the script that ships, with where events go and the file of the key filled in.

    The controller reads the key where it is installed: the same file, or its own copy.
    """
    from lockstep import content
    from lockstep.core import files

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


@dataclass
class Follower:
    """Looks at a campaign when an event has come, and now and then, and shows what it sees.

    Attributes:
        folder: The folder as it was typed.
        page_of: What the record shall hold.
        wanted: Set once there is something to look for.
    """

    board: "Board"
    folder: str
    page_of: "Wanted"
    shown: "Shown"
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
        from lockstep.slurm.status import status_page

        try:
            self.look()
        except Exception as error:  # noqa: BLE001, this thread is all that looks
            why = f"{type(error).__name__}: {error}"
            click.echo(f"not shown: {why}", err=True)
            record = self.shown.facts | {"failed_look": why}
            page = status_page.html(record, EVERY_S, is_served=True)
            self.shown.put(page, record, is_new=bool(self._before))
            self._before = []

    def look(self) -> None:
        """Look once, and show it."""
        from lockstep.slurm.status import status_page, status_record

        campaign = self.board.look()
        record = status_record.record(campaign, self.board.results, self.folder, self.page_of)
        now = [
            [(job["id"], job["state"], job.get("elements")) for job in record["jobs"]],
            record["launches"], record["measured"]["points"], record["next"], record["errors"],
        ]  # fmt: skip
        page = status_page.html(record, EVERY_S, is_served=True)
        self.shown.put(page, record, is_new=now != self._before)
        self._before = now
