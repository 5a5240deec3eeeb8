"""A process beside a measurement that sends its tracker what is new.

Between two launches it is waited for 2 s and no longer; then it ends the request under way, and
begins the next after the next launch. What it does beside ranks (that request, reading results,
starting, the epochs of a training) has the lowest priority that the system has. It may hang, fail
or be killed: results are on disk before it reads them, and `lockstep export again` sends the rest.
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

from lockstep import content
from lockstep.core.processes import die_with_parent
from lockstep.report.tracker import sending, stores, tracked
from lockstep.report.tracker.sending import LIVE_TIMEOUT_S, Sent
from lockstep.report.tracker.tracked import Tracker

LAST_S = 10.0  # at the end nothing is measured any more
COLLECTED_S = 60.0  # for all that a campaign's jobs have measured
LOG = "live.txt"
MOST_BYTES = 1 << 22  # of its answers, which name each file that could not be read


class Sender:
    """The process of one results folder.

    It reads lines `NUMBER DEADLINE` and answers each with a JSON line `[NUMBER, SENT]`. The
    numbers keep an answer that comes late from being taken for that to the next request.
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
                start_new_session=True,  # Ctrl-C is the front end's to answer
            )
        assert self._process.stdin
        assert self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)  # it may hang
        self._text = b""
        self._num_asked = 0

    def send(self, wait_s: float = LIVE_TIMEOUT_S) -> None:
        """Have what is new sent, and wait for that so long and no longer.

        Args:
            wait_s: When the time is over, nothing further is begun; 0 waits and ends for nothing.
        """
        deadline_s = time.monotonic() + wait_s
        self._ask(deadline_s if wait_s else math.inf)
        while self._last()[0] < self._num_asked and self._read(deadline_s):
            pass

    def close(self, wait_s: float = LAST_S) -> Sent:
        """End the process, by force where it takes longer, and return how far it came."""
        deadline_s = time.monotonic() + wait_s
        self._ask(deadline_s)
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
            return Sent(uri, "broken", why=f"it ended with exit code {code}; see {self._log}")
        return self._last()[1] or Sent(uri, "late")

    def _ask(self, until_s: float) -> None:
        self._num_asked += 1
        with contextlib.suppress(OSError):  # it has ended
            self._requests.write(f"{self._num_asked} {until_s}\n".encode())

    def _last(self) -> tuple[int, Sent | None]:
        """Return which request was answered last, and how; (0, None) before the first answer."""
        lines = self._text.split(b"\n")[:-1]  # what follows the last line end is cut short
        if not lines:
            return 0, None
        number, sent = json.loads(lines[-1])
        return number, Sent(**sent)

    def _read(self, deadline_s: float) -> bool:
        """Read what the process writes next; return whether it may write more."""
        wait_s = max(0.0, deadline_s - time.monotonic())
        if not select.select([self._answers], [], [], wait_s)[0]:
            return False
        text = os.read(self._answers.fileno(), MOST_BYTES)
        self._text = (self._text + text)[-MOST_BYTES:]
        return bool(text)


class Silent:
    """A sender that does nothing, where results have no tracker."""

    def send(self, wait_s: float = 0.0) -> None:
        """Do nothing."""


@contextlib.contextmanager
def following(folder: Path) -> Iterator[Sender | Silent]:
    """Give the sender of a results folder, and say at the end what its tracker lacks.

    Raises:
        ValueError: The site file's table of the tracker says something that is not allowed.
    """

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    tracker = tracked.find(folder)
    sender: Sender | Silent = Silent()
    try:
        sender = Sender(folder, tracker) if tracker else sender
    except OSError as error:  # a folder of another user's, for one
        say(f"Nothing is sent to the tracker: {error}")
    try:
        yield sender
    finally:
        is_whole = sys.exc_info()[0] is None
        if isinstance(sender, Sender):
            _report(sender.close(LAST_S if is_whole else LIVE_TIMEOUT_S), folder, say)


def tell(folder: Path, say: Callable[[str], object]) -> None:
    """Send what was collected to the tracker, if the folder has one; nothing fails with it."""
    try:
        if tracker := tracked.find(folder):
            _report(Sender(folder, tracker).close(COLLECTED_S), folder, say)
    except (ValueError, OSError) as error:  # OSError of a folder of another user's, for one
        say(f"Nothing is sent to the tracker: {error}")


def _report(sent: Sent, folder: Path, say: Callable[[str], object]) -> None:
    for text in sending.lines(sent, folder) if sent.kind != "empty" else ():
        say(text)


def main(folder: Path, tracker: Tracker) -> None:
    """Send what is new each time that a line comes in, until no more can come."""
    with contextlib.suppress(OSError):  # only the time of cores that nobody else wants: sched(7)
        if hasattr(os, "sched_setscheduler"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.nice(19)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    if tracker.kind == "mlflow":  # before it is needed
        with contextlib.suppress(stores.RefusedError):
            stores.prepare(tracker.key, LIVE_TIMEOUT_S)
    while requests := os.read(sys.stdin.fileno(), MOST_BYTES):
        number, until_s = requests.splitlines()[-1].split()  # one sends for all that came meanwhile
        sent = sending.send(folder, tracker, LIVE_TIMEOUT_S, wait_s=0, until_s=float(until_s))
        answers.write(json.dumps([int(number), asdict(sent)]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Tracker.model_validate_json(sys.argv[2]))
