"""What Slurm's programs and pytest print in the log of a job, read as data.

As Slurm 22.05 to 24.05, pytest 8 and 9 and torch 2.15 print it.
"""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from lockstep.core import files
from lockstep.core.formats import one_line

TAIL_BYTES = 8192
MAX_LINE = 160
# pytest: why a session ended.
PYTEST_EXIT = re.compile(r"! _pytest\.outcomes\.Exit: (.*) !")
# srun and slurmstepd: that a task ended, which says less than the task's own words.
TASK_ENDED = re.compile(
    r"^srun: error: .*(Exited with exit code [0-9]+|Terminated|Killed)$"
    r"|^slurmstepd.* error: \*\*\* STEP .* CANCELLED .*"
)
# torchrun: frames and report of a rank that ended, which say less likewise, cut or whole.
OF_TORCHRUN = re.compile(
    r'^File "|^raise |^(traceback|error_file) ?:|^[EW]\d+ \S+ \d+ torch/distributed/elastic/'
    r"|^torch\.distributed\.elastic\."
)
# srun: the node that failed. slurmstepd names the node that it runs on itself, which is well.
NODE_FAILED = re.compile(r"^srun: .*Node failure on ([\w.-]+)", re.MULTILINE)
# slurmstepd, in a batch script's output: that Slurm ended the job, and why.
JOB_ENDED = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?")
OUT_OF_MEMORY = re.compile(r"oom[-_ ]kill event.* StepId=\w+\.batch")
# Why -> Slurm's word for the end; a job that was requeued has another reason and did not end.
WORDS = {"": "CANCELLED", "TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL",
         "PREEMPTION": "PREEMPTED"}  # fmt: skip
# slurmd: in place of a script's output.
PROLOG_FAILED = re.compile(r"^Error running slurm prolog")
# Any program.
ERROR = re.compile(r"error|exception|killed|fatal", re.IGNORECASE)


@dataclass(frozen=True)
class LogEnd:
    """What the end of a log tells.

    Attributes:
        line: The line that says most about an error, else the last one; None of an empty log.
        prolog_failed: Whether slurmd says that the job's prolog failed.
    """

    line: str | None = None
    failed_node: str | None = None
    prolog_failed: bool = False


def read_end(log: Path) -> LogEnd:
    """Return what the end of a log tells; nothing where it cannot be read."""
    text = _tail(log)
    lines = [line for row in text.splitlines() if (line := one_line(" ".join(row.split())))]
    if not lines:
        return LogEnd()
    errors = [line for line in lines if ERROR.search(line) and not OF_TORCHRUN.search(line)]
    exits = [match[1] for line in lines if (match := PYTEST_EXIT.fullmatch(line))]
    causes = [line for line in errors if not TASK_ENDED.search(line)]
    line = (exits or causes or errors or lines)[-1]
    failed = NODE_FAILED.search(text)
    return LogEnd(line[:MAX_LINE], failed and failed[1], bool(PROLOG_FAILED.match(line)))


def word_for_end(output: Path) -> str | None:
    """Return Slurm's word for how it ended a job, by the job's output; None where it did not."""
    text = _tail(output)
    if OUT_OF_MEMORY.search(text):
        return "OUT_OF_MEMORY"
    whys = [match[1] or "" for match in JOB_ENDED.finditer(text)]
    return WORDS.get(whys[-1].strip()) if whys else None


def _tail(path: Path) -> str:
    try:
        with files.opened(path, sys.maxsize) as file:
            is_cut = file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)) > 0
            text = file.read(TAIL_BYTES).decode(errors="replace")
            return text.partition("\n")[2] if is_cut and "\n" in text else text
    except (OSError, ValueError):
        return ""
