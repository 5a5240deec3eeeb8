"""How a launch ends: exit codes, the last words, and the files that are written before them."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from lockstep.core.records import journal, said
from lockstep.launch.blame import EXIT_LOST
from lockstep.ranks.watchdog import GRACE_S

if TYPE_CHECKING:
    from lockstep.launch.session import LaunchSession

EXIT_FAILED = 1
EXIT_USAGE = 4
EXIT_IO = 74
EXIT_STOPPED = 75
EXIT_MACHINE = 78
LAST_WORD_S = 2 * GRACE_S


@dataclass
class Ending:
    """Why a launch ends before its last case, and the exit code that says so."""

    code: int
    reason: str
    is_said: bool = False

    def say(self) -> None:
        """Say why on standard error, once, where no summary will."""
        if self.code in (EXIT_LOST, EXIT_IO) and not self.is_said:
            said.say(self.reason)
            self.is_said = True


def write_json(config: pytest.Config, launch: "LaunchSession") -> bool:
    """Write the JSON in pytest-benchmark's place, and return whether that went well.

    It would write none where a resume has nothing left to measure, and empties an older one before
    it knows that the disk has room.
    """
    path = launch.settings.result_path
    launch.keeper.restore()
    if launch.keeper.journal is None or path is None or (path.exists() and not path.is_file()):
        return True  # what is no file, such as /dev/stdout, cannot be replaced
    benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    benchmarks.json = None
    kept = launch.keeper.journal.path
    try:
        if journal.outcomes(kept):
            journal.write_result(kept, path.resolve())
            benchmarks.logger.info(f"Wrote benchmark data in: {path}", purple=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        sys.stderr.write("\n")  # after the line of dots
        sys.stderr.write(
            f"lockstep: --benchmark-json {path} cannot be written: {why}; the cases are kept in "
            f"{kept}: run again with --resume --journal={kept}\n"
        )
        sys.stderr.flush()
        return False
    return True


def leave(config: pytest.Config, launch: "LaunchSession") -> None:
    """Leave the other ranks; end the process at once where the launch ends before its last case."""
    _flush(config)
    if launch.ending is None and launch.keeper.broken:
        launch.end(EXIT_IO, launch.keeper.broken)
    if launch.ending is None:
        launch.part()
    if launch.ending:
        _end(launch, launch.ending)
    launch.close()


def _end(launch: "LaunchSession", ending: Ending) -> NoReturn:
    """End this process with the code that says why, whatever the ranks still wait for."""
    try:
        if ending.code == EXIT_STOPPED:
            # Once one rank has ended, a launcher kills those still on their way out, and with them
            # the exit code. All that is to be written is: they end at once, together.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            launch.close()
        else:
            _last_word(launch, ending)
    finally:
        os._exit(ending.code)


def _last_word(launch: "LaunchSession", ending: Ending) -> None:
    """Say why, also where there is no summary, and let rank 0 and the watchdogs go first."""
    launch.watchdog.arm(launch.patience_s)  # writing to a full pipe may wait for ever
    ending.say()
    time.sleep(GRACE_S if launch.is_voice else LAST_WORD_S)
    launch.watchdog.close(launch.end_s)


def _flush(config: pytest.Config) -> None:
    """Let out what rank 0 says: a launcher ends all ranks as soon as one has ended."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.flush()
