"""Why a launch ended, by what its ranks have kept and the words of the programs that took part.

A process that is killed leaves no record: its launcher's output is all there is. The table below is
the one place that reads such output. Once cases run, they write into it, too: then only what
launchers alone say counts, and of that what comes last.
"""

import re
import signal
from pathlib import Path

from lockstep.core.formats import one_line

# A rank may print without end; why a launch ended is at the end of its log.
MAX_LOG_BYTES = 2**20
MAX_CHARACTERS = 300

# program -> the line that says why, the programs that know best first
LINES = {
    # What ranks say when memory ran out is what came of it.
    "Slurm on memory": re.compile(
        r"^(?:srun: error: |(?=slurmstepd))(.*(?:exceeded memory limit|oom.kill|Out Of Memory).*)$",
        re.MULTILINE,
    ),
    "a rank": re.compile(r"^lockstep: (rank .*)$", re.MULTILINE),
    # In rank 0's words; of a rank that was killed it knows only the silence.
    "pytest": re.compile(
        r"^(?:!+ _pytest\.outcomes\.Exit:|ERROR:(?! usage:)) (.*?)(?: !+)?$", re.MULTILINE
    ),
    "srun": re.compile(r"^srun: error: (\S+: tasks? .*)$", re.MULTILINE),
    # Of torch that does not load, say, no rank is left to say anything.
    "Python": re.compile(r"^((?:ModuleNotFound|Import)Error: .*)$", re.MULTILINE),
}
TORCHRUN = re.compile(r".*?^ *rank *: (\d+).*?^ *exitcode *: (-?\d+)", re.MULTILINE | re.DOTALL)
# How srun says that a task ended by itself, not by a signal.
EXITED = "Exited with"
# Of programs that start ranks, which go on when a case has begun.
STARTERS = ("Slurm on memory", "srun")


def last_words(
    log: Path, start: int, kept: str = "", *, has_begun: bool = False, by_slurm: bool = True
) -> str:
    """Return what tells why the session ended whose output begins at byte `start`; or nothing.

    Args:
        log: The output of the session and its launchers.
        start: Where it begins.
        kept: What its ranks have kept of why they ended, if anything.
        has_begun: Whether cases may have printed into the log.
        by_slurm: Whether Slurm started the ranks.
    """
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - MAX_LOG_BYTES))
        text = file.read(MAX_LOG_BYTES).decode(errors="replace")
    programs = [
        program for program in LINES if (by_slurm if program in STARTERS else not has_begun)
    ]
    lines = {program: line[1] for program in programs if (line := LINES[program].search(text))}
    _, is_there, block = text.rpartition("Root Cause ")
    root = TORCHRUN.match(block) if is_there else None
    is_killed = bool(root and int(root[2]) < 0) or EXITED not in lines.get("srun", EXITED)
    if is_killed:
        lines.pop("pytest", None)
    if root and EXITED in lines.get("srun", ""):
        lines.pop("srun")  # its task was torchrun, which knows the rank
    torchruns = f"rank {root[1]} ended with {how(int(root[2]))}" if root else ""
    lines = {"Slurm on memory": "", "a rank": ""} | lines | ({"a rank": kept} if kept else {})
    words = [*lines.values(), torchruns]
    return one_line(next(filter(None, words), ""))[:MAX_CHARACTERS]


def how(exit_code: int) -> str:
    """Return an exit code in words; subprocess gives a signal as its negative."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
