"""The states of a campaign's jobs and launches, by the surest of what is known.

The layers, the surest first: what the job's own script left at its end, squeue, sacct, or what it
last said where it is out of reach, slurmstepd's words in the job's output, events. A job that none
of them knows is `unknown`, and after a time of grace `LOST`: never completed.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from lockstep.campaign import floor
from lockstep.campaign.folder import Outcome, longest_case_s
from lockstep.slurm import client as slurm
from lockstep.slurm.client import State
from lockstep.slurm.log_end import word_for_end
from lockstep.slurm.status import accounting, by_hand, job_events
from lockstep.slurm.status.job_events import GRACE_S, JobEvent
from lockstep.slurm.status.sent import Job, Results

# A launch writes a line as each case begins and ends: without one for longer than a case may take
# it has stalled.
STALLED = State("STALLED")
# Who cancelled a job, where only its record of submissions says so.
OUR_COMMAND = "a lockstep command"
LAGS = State("unknown", "squeue knows it no more, but sacct does not say yet how it ended")
# slurmdbd never heard of such a job's end; an administrator mends it by `sacctmgr show runaway`.
RUNAWAY = State(
    "LOST",
    "squeue knows it no more and it left no record of its end, though sacct does not call it ended",
)


@dataclass(frozen=True)
class Standing:
    """The state of one job.

    Attributes:
        account: What sacct says, where it was asked and knows.
        record: What the job's own script left at its end.
        wait_s: Seconds in which the job might have started, and did not.
        sent_s: Seconds since a job that still waits was submitted.
        quiet_s: Seconds since a running job last wrote a line.
        user: Whose it is, as far as is known.
    """

    job: Job
    state: State
    account: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None
    wait_s: float | None = None
    sent_s: float | None = None
    quiet_s: float | None = None
    user: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the job will write no more, as far as is known."""
        return self.state.has_ended or self.state.name == "LOST"

    @property
    def is_spared(self) -> bool:
        """Whether it was to begin only where another failed, and none did."""
        return self.job.kind == "fallback" and self.state.name == "CANCELLED"

    @property
    def is_bad(self) -> bool:
        """Whether it has ended otherwise than well."""
        return self.has_ended and self.state.name != "COMPLETED" and not self.is_spared


@dataclass(frozen=True)
class Answers:
    """What the layers say at one moment; None where one gives no answer.

    Attributes:
        exits: SLURM_JOB_ID -> the record of the job's own script.
        queue: Job id -> what squeue holds.
        events: Job id -> the event of its end.
    """

    exits: Mapping[str, Mapping[str, Any]]
    queue: Mapping[str, slurm.Queued] | None
    accounts: Mapping[str, Mapping[str, Any]] | None
    errors: tuple[str, ...]
    events: Mapping[str, JobEvent] = field(default_factory=dict)


@dataclass(frozen=True)
class Campaign:
    """The state of a whole campaign.

    Attributes:
        launches: Launch -> how far it is, of those that have begun.
        left_out: Launches that no job begins, for a smaller size missed `until_efficiency`.
    """

    jobs: Sequence[Standing]
    launches: Mapping[str, Outcome]
    planned: Sequence[str]
    errors: Sequence[str]
    left_out: Collection[str] = frozenset()

    @property
    def num_complete(self) -> int:
        """Planned launches that are complete."""
        return sum(self.is_complete(name) for name in self.planned)

    def is_complete(self, name: str) -> bool:
        """Return whether a launch is complete."""
        return name in self.launches and self.launches[name].complete

    def is_settled(self, name: str) -> bool:
        """Return whether nothing of a launch is left to make."""
        return self.is_complete(name) or name in self.left_out

    @property
    def has_ended(self) -> bool:
        """Whether no job will write any more."""
        return all(standing.has_ended for standing in self.jobs)

    @property
    def is_unknown(self) -> bool:
        """Whether Slurm says nothing of any job, and nothing else does."""
        states = {standing.state.name for standing in self.jobs}
        return bool(self.errors) and states == {"unknown"}

    @property
    def abandoned(self) -> list[str]:
        """Launches that an ended job left incomplete and that no job will make any more."""
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
    """A campaign that is looked at again and again: what cannot change is not asked twice."""

    results: Results
    _accounts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _complete: dict[str, Outcome] = field(default_factory=dict)

    def look(self) -> Campaign:
        """Return the campaign's state now, by at most one squeue and one sacct call.

        Raises:
            ValueError: The folder's records are corrupt.
        """
        jobs, answers = self._jobs()
        now = time.time()
        claimed = self.results.claimed() or {}
        limit_s = longest_case_s(claimed)
        standings = [self._standing(job, answers, now, limit_s) for job in jobs]
        launches = self._launches(claimed.get("studies", ()))
        sent = [name for job in jobs for name in job.launches]
        planned = [launch["name"] for launch in claimed.get("launches", ())]
        planned = planned or list(dict.fromkeys([*sent, *launches]))
        # What is claimed no more was left out, by `status --cancel-below`.
        gone = frozenset(sent) - set(planned) - set(launches)
        campaign = Campaign(standings, launches, planned, answers.errors, gone)
        if not campaign.abandoned:
            return campaign
        left_out = gone | floor.left_out(self.results.path / "launches", claimed)
        planned = [name for name in planned if name not in left_out]
        return replace(campaign, planned=planned, left_out=left_out)

    def _jobs(self) -> tuple[list[Job], Answers]:
        """Return the jobs that were sent, also by hand, and what the layers say of them."""
        sent = self.results.jobs()
        if not sent and not any(self.results.jobs_folder.glob("*.sh")):
            return [], Answers({}, {}, {}, ())
        errors = []
        queue = None
        try:
            queue = queued_elements(slurm.queue(by_hand.users(self.results, sent)))
        except RuntimeError as error:
            errors.append(str(error))
        sent = _named(sent, queue or {})
        others = by_hand.ids(self.results, sent, queue)
        answers = self._ask([*(job.id for job in sent if job.id), *others], queue, errors)
        by_users = by_hand.jobs(self.results, others, queue, answers.accounts or {})
        names = {job.name for job in by_users}  # of which sbatch may have lost the id
        return [*(job for job in sent if job.id or job.name not in names), *by_users], answers

    def _ask(
        self, ids: Sequence[str], queue: Mapping[str, slurm.Queued] | None, errors: list[str]
    ) -> Answers:
        accounts = None
        try:
            accounts = accounting.ask(self._wanted(ids, queue or {}))
        except RuntimeError as error:
            errors.append(str(error))
            self._accounts = accounting.kept(self.results) | self._accounts
            if accounting.is_absent(error):
                accounts = {}  # which is an answer
        for job_id, account in (accounts or {}).items():
            if accounting.has_ended(account):
                self._accounts[job_id] = account
        kept = None if accounts is None else {**accounts, **self._accounts}
        events = job_events.read(self.results)
        return Answers(self.results.exits(), queue, kept, tuple(errors), events)

    def _wanted(self, ids: Sequence[str], queue: Mapping[str, slurm.Queued]) -> list[str]:
        """Return what sacct is to be asked about: what has left the queue, arrays as a whole."""
        left = (
            by_hand.whole(job_id)
            for job_id in ids
            if job_id not in self._accounts and not is_active(queue.get(job_id))
        )
        return list(dict.fromkeys(left))

    def _standing(self, job: Job, answers: Answers, now: float, limit_s: float) -> Standing:
        queued = (answers.queue or {}).get(job.id or "")
        if queued is not None and not is_held_for(queued, job):
            queued = None
        account = (answers.accounts or {}).get(job.id or "") or self._accounts.get(job.id or "")
        raw = (account and account["raw_id"]) or (queued and queued.raw_id) or job.id
        record = answers.exits.get(str(raw)) or answers.exits.get(str(job.id))
        state = state_of(queued, account, record)
        if state is None or (state.name == "FAILED" and not accounting.has_ended(account)):
            word = None if queued else word_for_end(self.results.output(job))
            state = State(word) if word else state
        if state is None:
            state = self._without_answer(job, account, answers, now)
        if state.name == "CANCELLED" and job.cancelled and not state.by:
            state = replace(state, by=OUR_COMMAND)
        wait_s = account.get("queue_wait_s") if account else None
        sent_s = None
        if queued and state.name == "PENDING" and queued.submitted:
            sent_s = max(0.0, now - queued.submitted)
        user = (queued and queued.user) or (account and account.get("user")) or job.user
        quiet_s = self._quiet_s(job, now) if state.name == "RUNNING" else None
        if quiet_s is not None and quiet_s > limit_s and self._measures(job):
            state = STALLED
        return Standing(job, state, account, record, wait_s, sent_s, quiet_s, user)

    def _without_answer(
        self, job: Job, account: Mapping[str, Any] | None, answers: Answers, now: float
    ) -> State:
        """Return the state of a job that squeue does not know and that has no known end."""
        if job.cancelled:  # of an element that had not begun neither layer keeps anything
            return State("CANCELLED")
        if event := answers.events.get(str(job.id)):
            return event.state(now)
        if answers.queue is None:  # then what sacct last heard is the best that is known
            return State(account["state"]) if account else slurm.UNKNOWN
        if answers.accounts is None:
            return slurm.UNKNOWN
        if account is None and job.user not in (None, slurm.own_name()):
            return State("unknown", f"Slurm says nothing of it here; it is a job of {job.user}")
        signs = [self._last_sign(job)]
        try:
            signs.append(datetime.fromisoformat(job.sent).timestamp())
        except ValueError:
            signs.append(None)
        seen = max((sign for sign in signs if sign is not None), default=None)
        if seen is not None and now - seen > GRACE_S:
            return RUNAWAY if account else State("LOST")
        return LAGS if account else slurm.UNKNOWN

    def _quiet_s(self, job: Job, now: float) -> float | None:
        sign = self._last_sign(job)
        return None if sign is None else max(0.0, now - sign)

    def _measures(self, job: Job) -> bool:
        """Return whether a job has begun to measure: what it does before may take any time."""
        has_begun = any(self.results.journal(name).exists() for name in job.launches)
        return job.kind in ("ladder", "job", "array") and has_begun

    def _last_sign(self, job: Job) -> float | None:
        """Return when a job last wrote into its output, or a journal or log of its launches."""
        folders = [self.results.launch(name) for name in job.launches]
        paths = [folder / name for folder in folders for name in ("journal.jsonl", "log.txt")]
        signs = []
        for path in [self.results.output(job), *paths]:
            try:
                signs.append(path.stat().st_mtime)
            except OSError:
                continue  # not written yet
        return max(signs, default=None)

    def _launches(self, studies: Sequence[str]) -> dict[str, Outcome]:
        outcomes = {}
        for name in self.results.names():
            outcomes[name] = self._complete.get(name) or self.results.outcome(name, studies)
        self._complete = {name: outcome for name, outcome in outcomes.items() if outcome.complete}
        return outcomes


def queued_elements(queue: Mapping[str, slurm.Queued]) -> dict[str, slurm.Queued]:
    """Return job id, of an element `ID_K`, -> what squeue holds, which joins those that wait."""
    elements = {}
    for job in queue.values():
        if job.elements is None:
            elements[job.job_id] = job
        else:
            elements |= {f"{job.job_id}_{number}": job for number in job.elements}
    return elements


def is_active(queued: slurm.Queued | None) -> bool:
    """Return whether squeue holds a job that has not ended."""
    return queued is not None and not queued.state.has_ended


def is_held_for(held: slurm.Queued, job: Job) -> bool:
    """Return whether what squeue holds is a job that was sent: Slurm uses ids again some day."""
    return held.comment == job.uuid or job.user in (None, held.user)


def _named(jobs: Sequence[Job], queue: Mapping[str, slurm.Queued]) -> list[Job]:
    """Return the jobs, those whose id sbatch never said with the id that squeue knows."""
    ids = {queued.comment: queued.job_id for queued in queue.values()}
    return [_named_by(job, ids.get(job.uuid)) for job in jobs]


def _named_by(job: Job, job_id: str | None) -> Job:
    if job.id is not None or job_id is None:
        return job
    return replace(job, id=job_id if job.element is None else f"{job_id}_{job.element}")


def state_of(
    queued: slurm.Queued | None,
    account: Mapping[str, Any] | None,
    record: Mapping[str, Any] | None,
) -> State | None:
    """Return a job's state from what each layer knows of it; None where none knows.

    That the job's own script has ended is the surest, though Slurm may still be ending the job;
    of what has ended, Slurm's word for the end says more than an exit code.
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


def counts(standings: Sequence[Standing]) -> dict[str, int]:
    """Return state -> how many elements of an array are in it, the most first."""
    return dict(Counter(standing.state.name for standing in standings).most_common())
