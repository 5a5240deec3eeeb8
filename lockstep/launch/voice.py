"""Rank 0 alone prints and writes; another rank speaks of what it alone knows."""

import sys
import time
from typing import NoReturn

import pytest

from lockstep.core import end_reason
from lockstep.core.errors import AgreedError
from lockstep.core.processes import hostname
from lockstep.launch.session import EXIT_USAGE
from lockstep.ranks.control import LostError
from lockstep.ranks.placement import Placement, placement

REFUSAL_S = 6.0  # rank 0 may still be importing torch
# Plugins of pytest that write a file without being asked.
WRITERS = ("LFPlugin", "NFPlugin", "StepwisePlugin")


def _place() -> Placement | None:
    """Return this rank's place; None where joining will refuse what its launcher has set."""
    try:
        return placement()
    except ValueError:
        return None


def is_voice() -> bool:
    """Return whether this rank prints, whichever launcher started it."""
    place = _place()
    return place is None or place.rank == 0  # somebody must say what is refused


def is_alone() -> bool:
    """Return whether there is no other rank."""
    place = _place()
    return place is not None and place.world_size == 1


def silence(config: pytest.Config) -> None:
    """Leave printing and writing to rank 0."""
    config.pluginmanager.unregister(name="terminalreporter")
    leave_results(config)
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ in WRITERS:
            config.pluginmanager.unregister(plugin)


def leave_results(config: pytest.Config) -> None:
    """Leave pytest-benchmark's files and tables to rank 0."""
    benchmarks = config.pluginmanager.get_plugin("pytest-benchmark")
    if benchmarks is not None:
        benchmarks.json = benchmarks.save = benchmarks.autosave = benchmarks.compare = None
        benchmarks.quiet = True


def refuse(error: ValueError) -> NoReturn:
    """End the session with one sentence, said by rank 0 alone."""
    if is_voice():
        raise pytest.UsageError(str(error)) from error
    end_session(error, EXIT_USAGE)


def end_session(error: Exception, returncode: int) -> NoReturn:
    """End the session of this rank with a code; rank 0 says why."""
    if not is_voice():
        rank, named = placement().rank, getattr(error, "ranks", ())
        if rank in named:  # no other rank may know it
            end_reason.say(str(error))
        # A launcher ends all ranks as soon as one has ended: rank 0 needs the time to say why.
        time.sleep(REFUSAL_S)
        # Where nothing was agreed on, and no rank is named, this one may be alone: rank 0, still
        # there, had no such reason to end.
        if isinstance(error, LostError):  # which says which rank lost rank 0
            end_reason.say(str(error))
        elif not (isinstance(error, AgreedError) or named):
            end_reason.say(f"rank {rank} on {hostname()}: {error}")
    pytest.exit(str(error), returncode=returncode)


def say_own(words: str) -> None:
    """Say what only this rank may know, in a line of its own: rank 0 may be within one of dots."""
    sys.stderr.write("\n")
    end_reason.say(f"rank {placement().rank} on {hostname()}: {words}")
