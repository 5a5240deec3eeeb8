"""The states of a campaign's jobs and launches, from the most reliable source that knows each.

The sources, the most reliable first: the record that the job's script writes at its end, squeue,
sacct (or its last answer if it is down), slurmstepd's lines in the job's output, events. A job that
none of them knows is `unknown`, and after a grace period `LOST`; it never counts as completed.

The patterns fit the logs of Slurm 22.05 to 24.05, pytest 8 and 9 and torch 2.15.
"""

import os
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.campaign import floor
from lockstep.campaign.folder import Outcome, longest_case_s
from lockstep.core import files
from lockstep.core.formats import one_line
from lockstep.slurm import client as slurm
from lockstep.slurm.client import State
from lockstep.slurm.status import accounting, sent
from lockstep.slurm.status.sent import Job, JobEvent, Results, whole

# How long another machine may take to see a job's record, and sacct to know its end: slurmdbd
# writes in batches, and may be down for longer.
GRACE_S = 600
ENDED_WELL_SOON = State("unknown", "it has ended, but its record is not visible yet")
NO_RECORD = State("LOST", "it has ended without a record, and sacct does not know how")
# A launch writes a line at the start and end of each case; it has stalled if no line comes for
# longer than a case may take.
STALLED = State("STALLED")
# Who cancelled a job that only the record of submissions shows as cancelled.
OUR_COMMAND = "a lockstep command"
LAGS = State("unknown", "it has left squeue, and sacct does not know yet how it ended")
# slurmdbd missed the end of such a job; an administrator fixes it with `sacctmgr show runaway`.
RUNAWAY = State(
    "LOST",
    "it has left squeue without a record of its end, but sacct does not list it as ended",
)

TAIL_BYTES = 8192
MAX_LINE = 160
# pytest: why a session ended.
PYTEST_EXIT = re.compile(r"! _pytest\.outcomes\.Exit: (.*) !")
# srun and slurmstepd: the end of a task, less useful than the task's own error.
TASK_ENDED = re.compile(
    r"^srun: error: .*(Exited with exit code [0-9]+|Terminated|Killed)$"
    r"|^slurmstepd.* error: \*\*\* STEP .* CANCELLED .*"
)
# torchrun: its traceback and report of a failed rank, also less useful than the rank's error.
OF_TORCHRUN = re.compile(
    r'^File "|^raise |^(traceback|error_file) ?:|^[EW]\d+ \S+ \d+ torch/distributed/elastic/'
    r"|^torch\.distributed\.elastic\."
)
# srun: the failed node. slurmstepd would name its own node, which works.
NODE_FAILED = re.compile(r"^srun: .*Node failure on ([\w.-]+)", re.MULTILINE)
# slurmstepd, in a batch script's output: that Slurm ended the job, and why.
JOB_ENDED = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?")
OUT_OF_MEMORY = re.compile(r"oom[-_ ]kill event.* StepId=\w+\.batch")
# reason -> state; a requeued job has another reason and has not ended.
WORDS = {"": "CANCELLED", "TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL",
         "PREEMPTION": "PREEMPTED"}  # fmt: skip
# slurmd: instead of the script's output.
PROLOG_FAILED = re.compile(r"^Error running slurm prolog")
# Any program.
ERROR = re.compile(r"error|exception|killed|fatal", re.IGNORECASE)


@dataclass(frozen=True)
class LogEnd:
    """The end of a log.

    Attributes:
        line: The most informative line about an error, else the last one; None if it is empty.
        prolog_failed: Whether slurmd reports that the job's prolog failed.
    """

    line: str | None = None
    failed_node: str | None = None
    prolog_failed: bool = False


def read_end(log: Path) -> LogEnd:
    """Return the end of a log; an empty one if it cannot be read."""
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
    """Return the state that the output shows if Slurm ended the job; else None."""
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


@dataclass(frozen=True)
class Standing:
    """The state of one job.

    Attributes:
        account: The job in sacct; None if sacct was not asked or does not know it.
        record: The record that the job's script wrote at its end.
        sent_s: Seconds since a pending job was submitted.
        quiet_s: Seconds since a running job last wrote a line.
        user: The owner, None if unknown.
    """

    job: Job
    state: State
    account: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None
    sent_s: float | None = None
    quiet_s: float | None = None
    user: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, as far as is known."""
        return self.state.has_ended or self.state.name == "LOST"

    @property
    def is_bad(self) -> bool:
        """Whether it has ended without success."""
        # Slurm cancels a fallback if the job before it succeeds.
        is_unneeded = self.job.kind == "fallback" and self.state.name == "CANCELLED"
        return self.has_ended and self.state.name != "COMPLETED" and not is_unneeded


@dataclass(frozen=True)
class Campaign:
    """The state of a whole campaign.

    Attributes:
        launches: Launch -> its progress, for the launches that have begun.
        errors: Failures of Slurm's commands.
        left_out: Launches that no job starts because a smaller size missed `until_efficiency`.
    """

    jobs: Sequence[Standing]
    launches: Mapping[str, Outcome]
    planned: Sequence[str]
    errors: Sequence[str]
    left_out: Collection[str] = frozenset()

    @property
    def num_complete(self) -> int:
        """Number of planned launches that are complete."""
        return sum(map(self.is_complete, self.planned))

    def is_complete(self, name: str) -> bool:
        """Return whether a launch is complete."""
        return name in self.launches and self.launches[name].complete

    def is_settled(self, name: str) -> bool:
        """Return whether a launch is complete or left out."""
        return self.is_complete(name) or name in self.left_out

    @property
    def has_ended(self) -> bool:
        """Whether all jobs have ended."""
        return all(standing.has_ended for standing in self.jobs)

    @property
    def is_unknown(self) -> bool:
        """Whether Slurm does not answer and no job's state is known."""
        states = {standing.state.name for standing in self.jobs}
        return bool(self.errors) and states == {"unknown"}

    @property
    def abandoned(self) -> list[str]:
        """Launches that an ended job left incomplete and that no other job will measure."""
        ended = (standing.job.launches for standing in self.jobs if standing.has_ended)
        left = set[str]().union(*ended) - self.coming
        return sorted(name for name in left if not self.is_settled(name))

    @cached_property
    def coming(self) -> set[str]:
        """Launches of the jobs that have not ended."""
        return set[str]().union(
            *(standing.job.launches for standing in self.jobs if not standing.has_ended)
        )

    @property
    def is_bad(self) -> bool:
        """Whether something was lost: a launch abandoned, or a job of no launches ended badly."""
        last = {standing.job.name: standing for standing in self.jobs if not standing.job.launches}
        return bool(self.abandoned) or any(standing.is_bad for standing in last.values())


@dataclass
class Board:
    """A campaign that is read repeatedly; states that are final are not asked again."""

    results: Results
    _accounts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _complete: dict[str, Outcome] = field(default_factory=dict)

    def look(self) -> Campaign:
        """Return the campaign's state now, with at most one call of squeue and one of sacct."""
        now, claimed = time.time(), self.results.claimed() or {}
        errors: list[str] = []
        standings = self._standings(now, longest_case_s(claimed), errors)
        launches = {
            name: self._complete.get(name) or self.results.outcome(name, claimed.get("studies", ()))
            for name in self.results.names()
        }
        self._complete = {name: outcome for name, outcome in launches.items() if outcome.complete}
        of_jobs = [name for standing in standings for name in standing.job.launches]
        planned = [launch["name"] for launch in claimed.get("launches", ())]
        planned = planned or list(dict.fromkeys([*of_jobs, *launches]))
        # `status --cancel-below` removes launches from the claim.
        gone = frozenset(of_jobs) - set(planned) - set(launches)
        campaign = Campaign(standings, launches, planned, tuple(errors), gone)
        if not campaign.abandoned:
            return campaign
        left_out = gone | floor.left_out(self.results.path / "launches", claimed)
        planned = [name for name in planned if name not in left_out]
        return replace(campaign, planned=planned, left_out=left_out)

    def _standings(self, now: float, limit_s: float, errors: list[str]) -> list[Standing]:
        """Return the states of all submitted jobs; add failures of Slurm's commands to `errors`."""
        jobs = self.results.jobs()
        if not jobs and not any(self.results.jobs_folder.glob("*.sh")):
            return []
        queue, accounts = None, None
        try:
            queue = queued_elements(slurm.queue(sent.users_to_ask(self.results, jobs)))
        except RuntimeError as error:
            errors.append(str(error))
        # Where sbatch's answer was lost, squeue finds the job by its comment.
        ids = {queued.comment: queued.array_id for queued in (queue or {}).values()}
        jobs = [
            replace(job, id=job_id if job.element is None else f"{job_id}_{job.element}")
            if job.id is None and (job_id := ids.get(job.uuid))
            else job
            for job in jobs
        ]
        others = sent.ids_by_hand(self.results, jobs, queue)
        # Jobs that have left the queue, with an array as one id.
        wanted = dict.fromkeys(
            whole(job_id)
            for job_id in [*(job.id for job in jobs if job.id), *others]
            if job_id not in self._accounts and not is_active((queue or {}).get(job_id))
        )
        try:
            accounts = accounting.ask(list(wanted))
        except RuntimeError as error:
            errors.append(str(error))
            self._accounts = accounting.kept(self.results) | self._accounts
            if accounting.is_absent(error):
                accounts = {}  # nothing more to wait for
        self._accounts |= {
            job_id: account
            for job_id, account in (accounts or {}).items()
            if accounting.has_ended(account)
        }
        known = {**(accounts or {}), **self._accounts}
        by_hand = sent.jobs_by_hand(self.results, others, queue, known)
        names = {job.name for job in by_hand}
        jobs = [*(job for job in jobs if job.id or job.name not in names), *by_hand]
        layers = _Layers(
            self.results.exits(), queue, known, self.results.events(),
            all_answer=queue is not None and accounts is not None,
        )  # fmt: skip
        return [self._standing(job, layers, now, limit_s) for job in jobs]

    def _standing(self, job: Job, layers: "_Layers", now: float, limit_s: float) -> Standing:
        queued = (layers.queue or {}).get(job.id or "")
        # Slurm reuses ids after a while.
        if queued and not (queued.comment == job.uuid or job.user in (None, queued.user)):
            queued = None
        account = layers.accounts.get(job.id or "")
        raw = (account and account["raw_id"]) or (queued and queued.raw_id) or job.id
        record = layers.exits.get(str(raw)) or layers.exits.get(str(job.id))
        state = state_of(queued, account, record)
        if state is None or (state.name == "FAILED" and not accounting.has_ended(account)):
            word = None if queued else word_for_end(self.results.output(job))
            state = State(word) if word else state
        last_sign = self._last_sign(job)
        if state is None:
            state = _without_answer(job, account, layers, last_sign, now)
        if state.name == "CANCELLED" and job.cancelled and not state.by:
            state = replace(state, by=OUR_COMMAND)
        sent_s = None
        if queued and state.name == "PENDING" and queued.submitted:
            sent_s = max(0.0, now - queued.submitted)
        user = (queued and queued.user) or (account and account.get("user")) or job.user
        is_running = state.name == "RUNNING" and last_sign is not None
        quiet_s = max(0.0, now - (last_sign or 0.0)) if is_running else None
        # A job may take any time before it measures.
        measures = job.kind in ("ladder", "job", "array") and any(
            self.results.journal(name).exists() for name in job.launches
        )
        if quiet_s is not None and quiet_s > limit_s and measures:
            state = STALLED
        return Standing(job, state, account, record, sent_s, quiet_s, user)

    def _last_sign(self, job: Job) -> float | None:
        """Return when the job's output, or a journal or log of its launches, last changed."""
        folders = [self.results.launch(name) for name in job.launches]
        paths = [folder / name for folder in folders for name in ("journal.jsonl", "log.txt")]
        signs = []
        for path in [self.results.output(job), *paths]:
            try:
                signs.append(path.stat().st_mtime)
            except OSError:
                continue  # not written yet
        return max(signs, default=None)


@dataclass(frozen=True)
class _Layers:
    """The answers of all sources at one moment.

    Attributes:
        exits: SLURM_JOB_ID -> the record of the job's own script.
        queue: Job id -> the job in squeue; None if squeue does not answer.
        accounts: Job id -> the job in sacct, now or in an earlier answer about its end.
        events: Job id -> the event of its end.
        all_answer: Whether both squeue and sacct answered.
    """

    exits: Mapping[str, Mapping[str, Any]]
    queue: Mapping[str, slurm.Queued] | None
    accounts: Mapping[str, Mapping[str, Any]]
    events: Mapping[str, JobEvent]
    all_answer: bool


def _without_answer(
    job: Job,
    account: Mapping[str, Any] | None,
    layers: _Layers,
    last_sign: float | None,
    now: float,
) -> State:
    """Return the state of a job that is not in squeue and has no known end."""
    if job.cancelled:  # no source keeps an element that never started
        return State("CANCELLED")
    if event := layers.events.get(str(job.id)):
        # Our scripts write a record whenever they can: without one the job has not succeeded.
        if event.exit_code == 0 and event.status == "COMPLETED":
            return NO_RECORD if now - event.at > GRACE_S else ENDED_WELL_SOON
        return State(event.status if event.status != "COMPLETED" else "FAILED")
    if not layers.all_answer:  # sacct's last answer is the best there is
        return State(account["state"]) if account and layers.queue is None else slurm.UNKNOWN
    if account is None and job.user not in (None, slurm.own_name()):
        return State("unknown", f"it is a job of {job.user}, which Slurm does not show you")
    signs = [] if last_sign is None else [last_sign]
    with suppress(ValueError):  # an earlier version, or sent by hand
        signs.append(datetime.fromisoformat(job.sent).timestamp())
    if signs and now - max(signs) > GRACE_S:
        return RUNAWAY if account else State("LOST")
    return LAGS if account else slurm.UNKNOWN


def queued_elements(queue: Mapping[str, slurm.Queued]) -> dict[str, slurm.Queued]:
    """Return job id (`ID_K` for an element) -> its row in squeue, which groups pending elements."""
    elements = {}
    for job in queue.values():
        if job.elements is None:
            elements[job.job_id] = job
        else:
            elements |= {f"{job.array_id}_{number}": job for number in job.elements}
    return elements


def is_active(queued: slurm.Queued | None) -> bool:
    """Return whether a job is in squeue and has not ended."""
    return queued is not None and not queued.state.has_ended


def state_of(
    queued: slurm.Queued | None, account: Mapping[str, Any] | None, record: Mapping[str, Any] | None
) -> State | None:
    """Return a job's state from the sources; None if none of them knows it.

    The end of the job's own script is the most reliable fact, although Slurm may still be ending
    the job; for a job that has ended, Slurm's state says more than an exit code.
    """
    if queued is not None and not queued.state.has_ended:
        has_left = record is not None and queued.state.name != "PENDING"  # as when requeued
        return State("COMPLETING") if has_left else queued.state
    if record is not None and record.get("lost"):
        return State("NODE_FAIL")  # the script noticed, and ended before Slurm did
    if account is not None and accounting.has_ended(account):
        return accounting.end_of(account, queued.state.reason if queued else None)
    if queued is not None and queued.state.has_ended:
        return queued.state
    if record is not None:
        return State("COMPLETED" if record["exit_code"] == 0 else "FAILED")
    return None
