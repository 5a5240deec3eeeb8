"""Why a launch ended, in the words of whoever knew it best: its ranks, pytest, srun or torchrun."""

import re
import signal
from pathlib import Path

from lockstep.vocabulary.texts import one_line

# A rank may print without end; why a launch ended is at the end of its log.
MAX_LOG_BYTES = 2**20
MAX_WORDS_CHARACTERS = 300

_RANK = re.compile(r"^lockstep: (rank .*)$", re.MULTILINE)
# Why pytest ended, in rank 0's words; of a rank that was killed it knows only the silence.
_PYTEST = re.compile(
    r"^(?:!+ _pytest\.outcomes\.Exit:|ERROR:(?! usage:)) (.*?)(?: !+)?$", re.MULTILINE
)
_TORCHRUN = re.compile(
    r"Root Cause .*?^ *rank *: (\d+).*?^ *exitcode *: (-?\d+)", re.MULTILINE | re.DOTALL
)
_SRUN = re.compile(r"^srun: error: (\S+: tasks? .*)$", re.MULTILINE)
# What ranks say when memory ran out is what came of it.
_MEMORY = re.compile(
    r"^(?:srun: error: |(?=slurmstepd))(.*(?:exceeded memory limit|oom.kill|Out Of Memory).*)$",
    re.MULTILINE,
)


def last_words(log: Path, start: int) -> str:
    """Return what tells why a launch ended; or nothing.

    Args:
        log: The output of one launch or more.
        start: Byte at which this launch's begins.
    """
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - MAX_LOG_BYTES))
        text = file.read(MAX_LOG_BYTES).decode(errors="replace")
    root, task = _TORCHRUN.search(text), _SRUN.search(text)
    is_killed = bool(root and int(root[2]) < 0) or bool(task and "Exited with" not in task[1])
    found = (
        _MEMORY.search(text)
        or _RANK.search(text)
        or (None if is_killed else _PYTEST.search(text))
        or task
    )
    words = found[1] if found else root and f"rank {root[1]} ended with {how(int(root[2]))}"
    return one_line(words or "")[:MAX_WORDS_CHARACTERS]


def how(exit_code: int) -> str:
    """Return an exit code in words; subprocess gives a signal as its negative."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
