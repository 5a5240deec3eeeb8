"""How the jobs and launches of a campaign stand, by what is surest of what is known.

The layers, the surest first: what the job's own script left at its end, squeue, sacct. A job that
none of them knows is `unknown`, and after a time of grace `LOST`: never completed.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from bench.folder import Outcome
from slurm_templates import accounting, slurm
from slurm_templates.results import Job, Results
from slurm_templates.slurm import State

# sacct may lag by minutes (slurmdbd writes in batches, and may be down for longer).
GRACE_S = 600
# A launch writes a line as each case begins and ends: without one for longer than a case may take
# it stands still. That is pytest's own default of --case-budget; to start may take as long as this.
CASE_BUDGET_S = 900.0
START_S = 300.0
STALLED = State("STALLED")
LAGS = State("unknown", "squeue knows it no more, but sacct does not say yet how it ended")
# slurmdbd never heard of such a job's end; an administrator mends it by `sacctmgr show runaway`.
RUNAWAY = State(
    "LOST",
    "squeue knows it no more and it left no record of its end, though sacct does not call it ended",
)


@dataclass(frozen=True)
class Standing:
    """How one job stands.

    Attributes:
        job: The job.
        state: Its state.
        account: What sacct says, where it was asked and knows.
        record: What the job's own script left at its end.
        wait_s: Seconds from submission to start, or until now.
        quiet_s: Seconds since a running job last wrote a line.
    """

    job: Job
    state: State
    account: Mapping[str, Any] | None = None
    record: Mapping[str, Any] | None = None
    wait_s: float | None = None
    quiet_s: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the job will write no more, as far as is known."""
        return self.state.has_ended or self.state.name == "LOST"

    @property
    def is_bad(self) -> bool:
        """Whether it has ended otherwise than well."""
        return self.has_ended and self.state.name != "COMPLETED"


@dataclass(frozen=True)
class Answers:
    """What the layers say at one moment; None where one gives no answer.

    Attributes:
        exits: SLURM_JOB_ID -> the record of the job's own script.
        queue: Job id -> what squeue holds.
        accounts: Job id -> what sacct knows.
        errors: Why a layer gives no answer.
    """

    exits: Mapping[str, Mapping[str, Any]]
    queue: Mapping[str, slurm.Queued] | None
    accounts: Mapping[str, Mapping[str, Any]] | None
    errors: tuple[str, ...]


@dataclass(frozen=True)
class Campaign:
    """How a whole campaign stands.

    Attributes:
        jobs: Its jobs, in the order they were sent.
        launches: Launch -> how far it is, of those that have begun.
        planned: The launches of the campaign.
        errors: Why a layer gave no answer.
    """

    jobs: Sequence[Standing]
    launches: Mapping[str, Outcome]
    planned: Sequence[str]
    errors: Sequence[str]

    @property
    def num_complete(self) -> int:
        """Planned launches that are complete."""
        return sum(self.is_complete(name) for name in self.planned)

    def is_complete(self, name: str) -> bool:
        """Return whether a launch is complete."""
        return name in self.launches and self.launches[name].complete

    @property
    def has_ended(self) -> bool:
        """Whether no job will write any more."""
        return all(one.has_ended for one in self.jobs)

    @property
    def abandoned(self) -> list[str]:
        """Launches that an ended job left incomplete and that no job will make any more."""
        coming = {name for one in self.jobs if not one.has_ended for name in one.job.launches}
        left = {name for one in self.jobs if one.has_ended for name in one.job.launches}
        return sorted(name for name in left - coming if not self.is_complete(name))

    @property
    def is_bad(self) -> bool:
        """Whether something was lost: a launch abandoned, or a job of no launches ended badly."""
        last = {one.job.name: one for one in self.jobs if not one.job.launches}
        return bool(self.abandoned) or any(one.is_bad for one in last.values())


@dataclass
class Board:
    """A campaign that is looked at again and again: what cannot change is not asked twice."""

    results: Results
    _accounts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _complete: dict[str, Outcome] = field(default_factory=dict)

    def look(self) -> Campaign:
        """Return how the campaign stands now, by at most one squeue and one sacct call.

        Raises:
            ValueError: The folder's records are corrupt.
        """
        jobs = self.results.jobs()
        answers = self._ask(jobs) if jobs else Answers({}, {}, {}, ())
        now = time.time()
        claimed = self.results.claimed() or {}
        limit_s = max(claimed.get("case_budget") or CASE_BUDGET_S, START_S)
        standings = [self._standing(job, answers, now, limit_s) for job in _named(jobs, answers)]
        launches = self._launches(claimed.get("studies", ()))
        sent = [name for job in jobs for name in job.launches]
        planned = [one["name"] for one in claimed.get("launches", ())]
        planned = planned or list(dict.fromkeys([*sent, *launches]))
        return Campaign(standings, launches, planned, answers.errors)

    def _ask(self, jobs: Sequence[Job]) -> Answers:
        errors = []
        queue = accounts = None
        try:
            queue = queued_elements(slurm.queue())
        except RuntimeError as error:
            errors.append(str(error))
        wanted = self._wanted(jobs, queue or {})
        try:
            accounts = accounting.ask(wanted)
        except RuntimeError as error:
            errors.append(str(error))
            if accounting.is_absent(error):
                accounts = {}  # which is an answer
        self._accounts |= {
            i: one for i, one in (accounts or {}).items() if accounting.has_ended(one)
        }
        known = None if accounts is None else {**accounts, **self._accounts}
        return Answers(self.results.exits(), queue, known, tuple(errors))

    def _wanted(self, jobs: Sequence[Job], queue: Mapping[str, slurm.Queued]) -> list[str]:
        """Return what sacct is to be asked about: what has left the queue, arrays as a whole."""
        left = (
            job.id.partition("_")[0]
            for job in jobs
            if job.id and job.id not in self._accounts and not is_active(queue.get(job.id))
        )
        return list(dict.fromkeys(left))

    def _standing(self, job: Job, answers: Answers, now: float, limit_s: float) -> Standing:
        queued = (answers.queue or {}).get(job.id or "")
        account = (answers.accounts or {}).get(job.id or "") or self._accounts.get(job.id or "")
        raw = (account and account["raw_id"]) or (queued and queued.raw_id) or job.id
        record = answers.exits.get(str(raw)) or answers.exits.get(str(job.id))
        state = state_of(queued, account, record)
        if state is None:
            state = self._without_answer(job, account, answers, now)
        wait_s = account["queue_wait_s"] if account else None
        if wait_s is None and queued and state.name == "PENDING" and queued.submitted:
            wait_s = max(0.0, now - queued.submitted)
        quiet_s = self._quiet_s(job, now) if state.name == "RUNNING" else None
        if quiet_s is not None and quiet_s > limit_s:
            state = STALLED
        return Standing(job, state, account, record, wait_s, quiet_s)

    def _without_answer(
        self, job: Job, account: Mapping[str, Any] | None, answers: Answers, now: float
    ) -> State:
        """Return what to call a job that squeue does not know, and whose end nobody knows of."""
        if answers.queue is None:  # then what sacct last heard is the best that is known
            return State(account["state"]) if account else slurm.UNKNOWN
        if answers.accounts is None:
            return slurm.UNKNOWN
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
        found = {}
        for name in self.results.names():
            found[name] = self._complete.get(name) or self.results.outcome(name, studies)
        self._complete = {name: one for name, one in found.items() if one.complete}
        return found


def queued_elements(queue: Mapping[str, slurm.Queued]) -> dict[str, slurm.Queued]:
    """Return job id, of an element `ID_K`, -> what squeue holds, which joins those that wait."""
    found = {}
    for job in queue.values():
        if job.elements is None:
            found[job.job_id] = job
        else:
            found |= {f"{job.job_id}_{number}": job for number in job.elements}
    return found


def is_active(queued: slurm.Queued | None) -> bool:
    """Return whether squeue holds a job that has not ended."""
    return queued is not None and not queued.state.has_ended


def _named(jobs: Sequence[Job], answers: Answers) -> list[Job]:
    """Return the jobs, those whose id sbatch never said with the id that squeue knows."""
    ids = {one.comment: one.job_id for one in (answers.queue or {}).values()}
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
        return State(account["state"])
    if queued is not None and queued.state.has_ended:
        return queued.state
    if record is not None:
        return State("COMPLETED" if record["exit_code"] == 0 else "FAILED")
    return None


def counts(standings: Sequence[Standing]) -> dict[str, int]:
    """Return state -> how many elements of an array are in it, the most first."""
    return dict(Counter(one.state.name for one in standings).most_common())


def open_ids(results: Results, name: str | None, point: int | None) -> dict[str, str]:
    """Return id -> name of the folder's jobs that wait or run, as scancel takes them.

    Args:
        results: The campaign's folder.
        name: Only the jobs of this name.
        point: Only this element of an array.

    Raises:
        ValueError: No job is so called, or none, or several, are arrays with that element.
        RuntimeError: squeue fails.
    """
    sent = [one for one in results.submissions() if name in (None, one["job"])]
    if name is not None and not sent:
        names = ", ".join(dict.fromkeys(one["job"] for one in results.submissions())) or "none"
        raise ValueError(f"no job {name!r} was sent from {results.path}; its jobs are: {names}")
    arrays = [one for one in sent if _has_element(one, point)]
    if point is not None and not arrays:
        raise ValueError(f"no array here has an element {point}; without --point, jobs end whole")
    if point is not None and len({one["job"] for one in arrays}) > 1:
        names = ", ".join(dict.fromkeys(one["job"] for one in arrays))
        raise ValueError(f"several arrays have an element {point}; name one by --job: {names}")
    queue = [one for one in slurm.queue().values() if not one.state.has_ended]
    return {
        _cancelled_by(held, point): entry["job"]
        for entry in (sent if point is None else arrays)
        for held in queue
        if _is_ours(held, entry) and (point is None or point in (held.elements or ()))
    }


def _has_element(entry: Mapping[str, Any], point: int | None) -> bool:
    is_array = entry.get("kind") == "array"
    return is_array and point is not None and point < len(entry.get("launches", ()))


def _is_ours(held: slurm.Queued, entry: Mapping[str, Any]) -> bool:
    """Return whether a job in the queue is the one that was sent: ids begin anew some day."""
    if held.comment == entry["uuid"]:
        return True
    return held.job_id == entry["id"] and held.comment in ("", "(null)")


def _cancelled_by(held: slurm.Queued, point: int | None) -> str:
    return held.job_id if point is None else f"{held.job_id}_{point}"
