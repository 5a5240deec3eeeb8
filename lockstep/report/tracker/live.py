"""A process beside a measurement that sends new results to its tracker.

`lockstep run` waits at most 2 s for the process between launches. The process then ends the current
request, and begins the next after the next launch. Beside ranks it has the system's lowest
priority. It may hang, fail or be killed: results are on disk first, and `lockstep export again`
sends the rest.
"""

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from lockstep import content
from lockstep.core.processes import die_with_parent
from lockstep.report.tracker import sending, stores, tracked
from lockstep.report.tracker.sending import LIVE_TIMEOUT_S, Sent
from lockstep.report.tracker.tracked import Tracker

LAST_S = 10.0  # longest wait at the end of all measurements
COLLECTED_S = 60.0  # longest wait for all results of a campaign's jobs
LOG = "live.txt"
MOST_BYTES = 1 << 22  # of the process's answers, which list unreadable files


class Sender:
    """The process that sends the results of a folder.

    The process reads lines `NUMBER DEADLINE` and answers each with a JSON line `[NUMBER, SENT]`.
    The number distinguishes a late answer from the answer to the next request.
    """

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self.tracker = tracker
        self._log = folder / tracked.FOLDER / LOG
        self._log.parent.mkdir(parents=True, exist_ok=True)
        path = [str(content.IMPORTABLE_FROM), os.environ.get("PYTHONPATH")]
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder), tracker.model_dump_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
                preexec_fn=die_with_parent,
                start_new_session=True,  # the command itself answers Ctrl-C
            )
        assert self._process.stdin
        assert self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)  # the process may hang
        self._text = b""
        self._num_requests = 0

    def send(self, wait_s: float = LIVE_TIMEOUT_S) -> None:
        """Request that new results are sent, and wait at most `wait_s` for that.

        After that time no further request is begun. With 0 this returns at once and limits nothing.
        """
        deadline_s = time.monotonic() + wait_s
        self._request(deadline_s if wait_s else math.inf)
        while self._last_answer()[0] < self._num_requests and self._read(deadline_s):
            pass

    def close(self, wait_s: float = LAST_S) -> Sent:
        """End the process, by force after `wait_s`, and return the outcome."""
        deadline_s = time.monotonic() + wait_s
        self._request(deadline_s)
        with contextlib.suppress(OSError):
            self._requests.close()
        with self._answers:
            while self._read(deadline_s):
                pass
        uri = str(self.tracker.uri)
        try:
            code = self._process.wait(max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return Sent(uri, "late")
        if code:
            return Sent(
                uri,
                "broken",
                why=f"the process that sends results ended with exit code {code}; see {self._log}",
            )
        return self._last_answer()[1] or Sent(uri, "late")

    def _request(self, until_s: float) -> None:
        self._num_requests += 1
        with contextlib.suppress(OSError):  # the process has ended
            self._requests.write(f"{self._num_requests} {until_s}\n".encode())

    def _last_answer(self) -> tuple[int, Sent | None]:
        """Return the last answered request's number and outcome; (0, None) before any answer."""
        lines = self._text.split(b"\n")[:-1]  # the last line may be incomplete
        if not lines:
            return 0, None
        number, sent = json.loads(lines[-1])
        return number, Sent(**sent)

    def _read(self, deadline_s: float) -> bool:
        """Read the next output of the process; return whether more may follow."""
        wait_s = max(0.0, deadline_s - time.monotonic())
        if not select.select([self._answers], [], [], wait_s)[0]:
            return False
        text = os.read(self._answers.fileno(), MOST_BYTES)
        self._text = (self._text + text)[-MOST_BYTES:]
        return bool(text)


@contextlib.contextmanager
def live_sender(folder: Path) -> Iterator[Callable[..., None]]:
    """Yield `Sender.send` of a results folder, and print at the end what its tracker lacks.

    Without a tracker, the function does nothing.

    Raises:
        ValueError: The site file's table [tracker] has a value that is not allowed.
    """
    tracker = tracked.find_tracker(folder)
    sender = None
    try:
        sender = Sender(folder, tracker) if tracker else None
    except OSError as error:  # such as in another user's folder
        click.echo(f"Nothing is sent to the tracker: {error}", err=True)
    try:
        yield sender.send if sender else lambda *_: None
    finally:
        is_whole = sys.exc_info()[0] is None
        if sender:
            print_outcome(sender.close(LAST_S if is_whole else LIVE_TIMEOUT_S), folder)


def send_collected(folder: Path) -> None:
    """Send collected results to the folder's tracker, if it has one; print any failure."""
    try:
        if tracker := tracked.find_tracker(folder):
            print_outcome(Sender(folder, tracker).close(COLLECTED_S), folder)
    except (ValueError, OSError) as error:  # such as in another user's folder
        click.echo(f"Nothing is sent to the tracker: {error}", err=True)


def print_outcome(sent: Sent, folder: Path) -> None:
    """Print the outcome to standard error; no line for a folder without results."""
    for text in sending.lines(sent, folder) if sent.kind != "empty" else ():
        click.echo(text, err=True)


def main(folder: Path, tracker: Tracker) -> None:
    """Send new results each time that a line arrives, until standard input ends."""
    with contextlib.suppress(OSError):  # run only on cores that are idle: sched(7)
        if hasattr(os, "sched_setscheduler"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.nice(19)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for output of libraries
    if tracker.kind == "mlflow":  # imported before it is needed
        with contextlib.suppress(stores.NotSentError):
            stores.prepare(tracker.key, LIVE_TIMEOUT_S)
    while requests := os.read(sys.stdin.fileno(), MOST_BYTES):
        # One answer serves all requests that arrived meanwhile.
        number, until_s = requests.splitlines()[-1].split()
        sent = sending.send(folder, tracker, LIVE_TIMEOUT_S, wait_s=0, until_s=float(until_s))
        answers.write(json.dumps([int(number), asdict(sent)]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Tracker.model_validate_json(sys.argv[2]))
