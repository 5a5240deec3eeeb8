"""A process beside a measurement that sends new results to its tracker.

`lockstep run` waits at most 2 s for the process between launches. The process then ends the current
request, and begins the next after the next launch. Beside ranks it has the system's lowest
priority. It may hang, fail or be killed: results are on disk first, and `lockstep export again`
sends the rest.
"""

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
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


class Sender:
    """The process that sends the results of a folder.

    A request is a number and a deadline. The answer has the same number, by which a late answer is
    not taken for the answer to the next request, and the outcome.
    """

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self.tracker = tracker
        self._log = folder / tracked.FOLDER / LOG
        self._log.parent.mkdir(parents=True, exist_ok=True)
        path = [str(content.IMPORTABLE_FROM), os.environ.get("PYTHONPATH")]
        with self._log.open("wb") as log:
            requests, self._requests = Pipe(duplex=False)
            self._answers, answers = Pipe(duplex=False)
            with requests, answers:
                own = (requests.fileno(), answers.fileno())
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, folder, tracker.model_dump_json(),
                     *map(str, own)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=own,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
                    preexec_fn=die_with_parent,
                    start_new_session=True,  # the command itself answers Ctrl-C
                )  # fmt: skip
        os.set_blocking(self._requests.fileno(), False)  # the process may hang
        self._num_requests = self._num_answered = 0
        self._sent: Sent | None = None

    def send(self, wait_s: float = LIVE_TIMEOUT_S) -> None:
        """Request that new results are sent, and wait at most `wait_s` for that.

        After that time no further request is begun. With 0 this returns at once, limits nothing,
        and requests nothing while an answer is missing.
        """
        deadline_s = time.monotonic() + wait_s
        while self._read(0):
            pass
        if wait_s or self._num_answered == self._num_requests:
            self._request(deadline_s if wait_s else math.inf)
        while self._num_answered < self._num_requests and self._read(deadline_s):
            pass

    def close(self, wait_s: float = LAST_S) -> Sent:
        """End the process, by force after `wait_s`, and return the outcome."""
        deadline_s = time.monotonic() + wait_s
        self._request(deadline_s)
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
        return self._sent or Sent(uri, "late")

    def _request(self, until_s: float) -> None:
        self._num_requests += 1
        with contextlib.suppress(OSError):  # the process has ended
            self._requests.send((self._num_requests, until_s))

    def _read(self, deadline_s: float) -> bool:
        """Read the next answer of the process; return whether there was one in time."""
        with contextlib.suppress(EOFError, OSError):  # the process has ended
            if self._answers.poll(max(0.0, deadline_s - time.monotonic())):
                self._num_answered, self._sent = self._answers.recv()
                return True
        return False


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


def main(folder: Path, tracker: Tracker, requests: int, answers: int) -> None:
    """Send new results at each request, until the pipe of requests ends."""
    with contextlib.suppress(OSError):  # run only on cores that are idle: sched(7)
        if hasattr(os, "sched_setscheduler"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.nice(19)
    if tracker.kind == "mlflow":  # imported before it is needed
        with contextlib.suppress(stores.NotSentError):
            stores.prepare(tracker.key, LIVE_TIMEOUT_S)
    with (
        contextlib.suppress(EOFError),
        Connection(requests, writable=False) as source,
        Connection(answers, readable=False) as target,
    ):
        while True:
            number, until_s = source.recv()
            if time.monotonic() <= until_s:  # else a later request is waiting
                sent = sending.send(folder, tracker, LIVE_TIMEOUT_S, wait_s=0, until_s=until_s)
                target.send((number, sent))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Tracker.model_validate_json(sys.argv[2]), *map(int, sys.argv[3:]))
