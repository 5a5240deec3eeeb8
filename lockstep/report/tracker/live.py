"""A process beside a measurement that tells its tracker how far it is.

Between two launches it is waited for 2 s and no longer; then it ends the request under way, and
begins the next after the next launch. What it does beside ranks (that request, reading results,
starting, the epochs of a training) has the lowest priority that the system has. It may hang, fail
or be killed: results are on disk before it looks at them, and what it left is sent by `lockstep
sync`.
"""

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep import content
from lockstep.core.processes import die_with_parent
from lockstep.report.tracker import sending, tracked
from lockstep.report.tracker.sending import LIVE_TIMEOUT_S, Sent
from lockstep.report.tracker.stores import RefusedError
from lockstep.report.tracker.tracked import Tracker

# At the end nothing is measured any more.
LAST_S = 10.0
LOG = "live.txt"
# Of what it says: an answer names each file that could not be read.
MOST_BYTES = 1 << 22
# For all that a campaign's jobs have measured.
COLLECTED_S = 60.0


class Sender:
    """The process of one results folder."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self.folder, self.tracker = folder, tracker
        self._log = folder / tracked.FOLDER / LOG
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder), tracker.model_dump_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env=_environment(os.environ),
                preexec_fn=die_with_parent,
                start_new_session=True,  # Ctrl-C is the front end's to answer
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # it may hang
        self._said = b""
        self._num_asked = 0

    def send(self, wait_s: float = LIVE_TIMEOUT_S) -> None:
        """Have what is new sent, and wait for that so long and no longer.

        Args:
            wait_s: When the time is over, nothing further is begun; 0 waits and ends for nothing.
        """
        deadline_s = time.monotonic() + wait_s
        self._ask(deadline_s if wait_s else math.inf)
        while self._last()[0] < self._num_asked and self._hear(deadline_s - time.monotonic()):
            pass

    def _ask(self, until_s: float) -> None:
        """Number what is asked for, as an answer may come when the next is asked for already."""
        self._num_asked += 1
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self._process.stdin.write(f"{self._num_asked} {until_s}\n".encode())

    def close(self, wait_s: float = LAST_S) -> Sent:
        """End the process, by force where it takes longer, and return how far it came."""
        told, heard = self._process.stdin, self._process.stdout
        assert told is not None
        assert heard is not None
        deadline_s = time.monotonic() + wait_s
        self._ask(deadline_s)
        with contextlib.suppress(OSError):
            told.close()
        with heard:
            while self._hear(deadline_s - time.monotonic()):
                pass
        try:
            self._process.wait(max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return Sent(str(self.tracker.uri), "late")
        return self._ended()

    def _last(self) -> tuple[int, dict[str, Any]]:
        """Return which question was answered last, and how; (0, {}) before the first answer."""
        lines = self._said.split(b"\n")[:-1]  # one that is cut short is none
        number, sent = json.loads(lines[-1]) if lines else (0, {})
        return number, sent

    def _ended(self) -> Sent:
        """Return what the process said last; where that is nothing, how it ended."""
        if self._process.returncode:
            why = f"it ended with {self._process.returncode}, see {self._log}"
            return Sent(str(self.tracker.uri), "broken", why=why)
        sent = self._last()[1]
        return Sent(**sent) if sent else Sent(str(self.tracker.uri), "late")

    def _hear(self, wait_s: float) -> bool:
        """Read what the process says next; return whether it may say more."""
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], max(0.0, wait_s))[0]:
            return False
        said = os.read(stream.fileno(), MOST_BYTES)
        self._said = (self._said + said)[-MOST_BYTES:]
        return bool(said)


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
    tracker = tracked.find(folder)
    if tracker is None:
        yield Silent()
        return
    try:
        sender = Sender(folder, tracker)
    except OSError as error:  # a folder of another user's, for one
        sys.stderr.write(f"No tracker is told: {error}\n")
        yield Silent()
        return
    try:
        yield sender
    finally:
        is_whole = sys.exc_info()[0] is None
        ended = sender.close(LAST_S if is_whole else LIVE_TIMEOUT_S)
        _report(ended, folder, lambda text: sys.stderr.write(f"{text}\n"))


def tell(folder: Path, say: Callable[[str], object]) -> None:
    """Send what was collected to the tracker, if the folder has one; nothing fails with it."""
    try:
        tracker = tracked.find(folder)
        sender = Sender(folder, tracker) if tracker else None
    except (ValueError, OSError) as error:  # OSError of a folder of another user's, for one
        say(f"No tracker is told: {error}")
        return
    if sender:
        _report(sender.close(COLLECTED_S), folder, say)


def _report(sent: Sent, folder: Path, say: Callable[[str], object]) -> None:
    if sent.kind != "empty":
        for text in (*sending.left_out(sent), sending.line(sent, folder)):
            say(text)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(content.IMPORTABLE_FROM), environ.get("PYTHONPATH")]))
    return {**environ, "PYTHONPATH": path}


def _be_idle() -> None:
    """Take only the time of cores that nobody else wants (sched(7), SCHED_IDLE; nice elsewhere)."""
    with contextlib.suppress(OSError):
        if hasattr(os, "sched_setscheduler"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.nice(19)


def _asked() -> Iterator[bytes]:
    """Yield the last of the lines that came in meanwhile, until no more can come."""
    while asked := os.read(sys.stdin.fileno(), MOST_BYTES):
        yield asked.splitlines()[-1]


def main(folder: Path, tracker: Tracker) -> None:
    """Send what is new each time that a line comes in, until no more can come."""
    _be_idle()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    if tracker.kind == "mlflow":  # before it is needed
        with contextlib.suppress(RefusedError):
            from lockstep.report.tracker import stores

            stores.prepare(tracker.key, LIVE_TIMEOUT_S)
    for line in _asked():
        number, until_s = line.split()
        sent = sending.send(folder, tracker, LIVE_TIMEOUT_S, wait_s=0, until_s=float(until_s))
        answers.write(json.dumps([int(number), asdict(sent)]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Tracker.model_validate_json(sys.argv[2]))
