"""Events of jobs that ended, as `lockstep slurm serve` keeps them in a campaign's folder.

An event is the word of Slurm's `EpilogSlurmctld`: surest in that the job has ended, and less sure
than the job's own record or Slurm's accounting in how. Of a job that reached its time limit, was
cancelled, or lost a node, Slurm 22.05 tells the epilog exit code 0.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.core import journal
from lockstep.slurm.client import ENDED, State
from lockstep.slurm.status.sent import Results

# What a process can end with, also 128 + its signal.
LARGEST_CODE = 255
# So late another machine may see a job's own record, and sacct its end: slurmdbd writes in batches,
# and may be down for longer.
GRACE_S = 600
ENDED_WELL_SOON = State("unknown", "it has ended, and its own record is not seen yet")
NO_RECORD = State("LOST", "it has ended and left no record, and sacct does not say how")


@dataclass(frozen=True)
class JobEvent:
    """That a job has ended.

    Attributes:
        job_id: Its id, of an element of an array `ID_K`.
        status: Slurm's word for its end, as far as the epilog knows.
        exit_code: What its script ended with, or 128 + its signal.
        at: When it was sent, in seconds of the epoch.
    """

    job_id: str
    status: str
    exit_code: int
    at: int

    def state(self, now: float) -> State:
        """Return what is known of a job that left nothing but this event.

        A script of ours leaves a record whenever it can: without one it has not ended well.
        """
        if self.exit_code == 0 and self.status == "COMPLETED":
            return NO_RECORD if now - self.at > GRACE_S else ENDED_WELL_SOON
        return State(self.status if self.status != "COMPLETED" else "FAILED")


def parse(value: object, at: int) -> JobEvent:
    """Return the event that a JSON value is.

    Raises:
        ValueError: It is no event: a key is missing or has a wrong value.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object; send job_id, status and exit_code")
    job_id, status, code = (value.get(name) for name in ("job_id", "status", "exit_code"))
    if not isinstance(job_id, str) or not re.fullmatch("[0-9]{1,18}(_[0-9]{1,9})?", job_id):
        raise ValueError("job_id is not an id of Slurm's, such as 17 or 17_3")
    if status not in ENDED:
        raise ValueError(f"status is not one of {', '.join(sorted(ENDED))}")
    if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code <= LARGEST_CODE:
        raise ValueError(f"exit_code is no number from 0 to {LARGEST_CODE}")
    return JobEvent(job_id, str(status), code, at)


def entries(results: Results) -> list[dict[str, Any]]:
    """Return the lines of a folder's record of events, oldest first.

    Raises:
        ValueError: The record is corrupt.
    """
    path = results.events_file
    return journal.read(path) if path.exists() else []


def read(results: Results) -> Mapping[str, JobEvent]:
    """Return job id -> the last event of it.

    Raises:
        ValueError: The record is corrupt.
    """
    found = {}
    for entry in entries(results):
        try:
            event = parse(entry, int(entry.get("at", 0)))
        except (ValueError, TypeError):
            continue  # of another version: the job is then as if it had sent none
        found[event.job_id] = event
    return found
