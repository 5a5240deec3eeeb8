"""The states of a campaign's jobs and launches, each from the most reliable source that knows it.

The sources, the most reliable first: the record that the job's script writes at its end, squeue,
sacct (or its last answer if sacct fails), slurmstepd's lines in the job's output, events. A job
that no source knows is `unknown`, and after a grace period `LOST`; it never counts as completed.

The patterns fit the logs of Slurm 22.05 to 24.05, pytest 8 and 9 and torch 2.15.
"""

import math
import re
import shlex
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
from lockstep.core.processes import INTERFACE_NAMES
from lockstep.slurm import client as slurm
from lockstep.slurm.client import NEVER_SATISFIED, State
from lockstep.slurm.status import accounting, sent
from lockstep.slurm.status.sent import Job, JobEvent, Results, strip_element
from lockstep.slurm.submit.submission import stored_site

# Time until another machine sees a job's record, and until sacct knows the job's end: slurmdbd
# writes in batches, and may be down for a while.
GRACE_S = 600
TAIL_BYTES = 8192
MAX_LINE = 160
# pytest's reason for the end of a session.
PYTEST_EXIT = re.compile(r"! _pytest\.outcomes\.Exit: (.*) !")
# Lines of srun and slurmstepd about the end of a task, less useful than the task's own error.
TASK_ENDED = re.compile(
    r"^srun: error: .*(Exited with exit code [0-9]+|Terminated|Killed)$"
    r"|^slurmstepd.* error: \*\*\* STEP .* CANCELLED .*"
)
# Lines of torchrun's traceback and report, also less useful than the rank's own error.
OF_TORCHRUN = re.compile(
    r'^File "|^raise |^(traceback|error_file) ?:|^[EW]\d+ \S+ \d+ torch/distributed/elastic/'
    r"|^torch\.distributed\.elastic\."
)
# srun's line about a failed node. (slurmstepd names its own node, which has not failed.)
NODE_FAILED = re.compile(r"^srun: .*Node failure on ([\w.-]+)", re.MULTILINE)
# slurmstepd's line in a batch script's output if Slurm ended the job, with the reason.
JOB_ENDED = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?")
OUT_OF_MEMORY = re.compile(r"oom[-_ ]kill event.* StepId=\w+\.batch")
# reason in that line -> state of the job; a requeued job has another reason and has not ended.
WORDS = {"": "CANCELLED", "TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL",
         "PREEMPTION": "PREEMPTED"}  # fmt: skip
# slurmd's line in place of the script's output, if the prolog failed.
PROLOG_FAILED = re.compile(r"^Error running slurm prolog")
# A line about an error, written by any program.
ERROR = re.compile(r"error|exception|killed|fatal", re.IGNORECASE)


@dataclass(frozen=True)
class LogEnd:
    """The end of a log."""

    line: str | None = None  # the most informative line about an error, else the last line
    failed_node: str | None = None
    prolog_failed: bool = False
    state: str | None = None  # state in which Slurm ended the job


def read_end(log: Path) -> LogEnd:
    """Return the end of a log; an empty `LogEnd` if the log cannot be read."""
    text = ""
    with suppress(OSError):
        text = files.tail(log, TAIL_BYTES)
    lines = [line for row in text.splitlines() if (line := one_line(" ".join(row.split())))]
    if not lines:
        return LogEnd()
    errors = [line for line in lines if ERROR.search(line) and not OF_TORCHRUN.search(line)]
    exits = [match[1] for line in lines if (match := PYTEST_EXIT.fullmatch(line))]
    causes = [line for line in errors if not TASK_ENDED.search(line)]
    line = (exits or causes or errors or lines)[-1]
    node, ends = NODE_FAILED.search(text), JOB_ENDED.findall(text)
    state = WORDS.get(ends[-1].strip()) if ends else None
    state = "OUT_OF_MEMORY" if OUT_OF_MEMORY.search(text) else state
    return LogEnd(line[:MAX_LINE], node and node[1], bool(PROLOG_FAILED.match(line)), state)


@dataclass(frozen=True)
class Standing:
    """The state of one job; None for an unknown value."""

    job: Job
    state: State
    account: Mapping[str, Any] | None = None  # the job's account in sacct
    record: Mapping[str, Any] | None = None  # the record that the job's script wrote at its end
    sent_s: float | None = None  # time since a pending job was submitted
    quiet_s: float | None = None  # time since a running job last wrote a line
    user: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.state.has_ended or self.state.name == "LOST"

    @property
    def is_bad(self) -> bool:
        # Slurm cancels a fallback if the job that it waits for succeeds.
        is_unneeded = self.job.kind == "fallback" and self.state.name == "CANCELLED"
        return self.has_ended and self.state.name != "COMPLETED" and not is_unneeded


@dataclass(frozen=True)
class Campaign:
    """The state of a whole campaign."""

    jobs: Sequence[Standing]
    launches: Mapping[str, Outcome]  # outcomes of the launches that have begun
    planned: Sequence[str]
    errors: Sequence[str]  # failures of Slurm's commands
    # Launches that no job starts, because a smaller size missed `until_efficiency`.
    left_out: Collection[str] = frozenset()

    @property
    def num_complete(self) -> int:
        return sum(map(self.is_complete, self.planned))

    def is_complete(self, name: str) -> bool:
        return name in self.launches and self.launches[name].complete

    def is_settled(self, name: str) -> bool:
        return self.is_complete(name) or name in self.left_out

    @property
    def has_ended(self) -> bool:
        return all(standing.has_ended for standing in self.jobs)

    @property
    def abandoned(self) -> list[str]:
        """Launches that an ended job left incomplete and that no other job will measure."""
        ended = (standing.job.launches for standing in self.jobs if standing.has_ended)
        left = set[str]().union(*ended) - self.coming
        return sorted(name for name in left if not self.is_settled(name))

    @cached_property
    def coming(self) -> set[str]:
        return set[str]().union(
            *(standing.job.launches for standing in self.jobs if not standing.has_ended)
        )

    @property
    def is_bad(self) -> bool:
        """Whether a launch is abandoned, or a job without launches ended badly."""
        last = {standing.job.name: standing for standing in self.jobs if not standing.job.launches}
        return bool(self.abandoned) or any(standing.is_bad for standing in last.values())


@dataclass(frozen=True)
class _Answers:
    """The answers of all sources at one moment, each by job id."""

    exits: Mapping[str, Mapping[str, Any]]  # records of the jobs' scripts, by SLURM_JOB_ID
    queue: Mapping[str, slurm.Queued] | None  # None if squeue does not answer
    accounts: Mapping[str, Mapping[str, Any]]  # sacct's present or earlier answer
    events: Mapping[str, JobEvent]
    all_answer: bool  # whether both squeue and sacct answered


@dataclass
class Board:
    """A campaign whose state is read repeatedly; final states are not asked for again."""

    results: Results
    # Command -> why it did not answer last time.
    failures: dict[str, RuntimeError] = field(default_factory=dict)
    _accounts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _complete: dict[str, Outcome] = field(default_factory=dict)

    def look(self) -> Campaign:
        """Return the campaign's state now, with at most one call of squeue and one of sacct."""
        claimed = self.results.read_claim() or {}
        standings = self.standings(longest_case_s(claimed))
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
        campaign = Campaign(standings, launches, planned, [*map(str, self.failures.values())], gone)
        if not campaign.abandoned:
            return campaign
        left_out = gone | floor.find_left_out(self.results.path / "launches", claimed)
        planned = [name for name in planned if name not in left_out]
        return replace(campaign, planned=planned, left_out=left_out)

    def standings(self, limit_s: float = math.inf) -> list[Standing]:
        """Return the states of all submitted jobs; a job without output for `limit_s` stalls."""
        now, jobs = time.time(), self.results.jobs()
        self.failures = {}
        if not jobs and not any(self.results.jobs_folder.glob("*.sh")):
            return []
        queue, accounts = None, None
        try:
            rows = slurm.queue(sent.users_to_ask(self.results, jobs)).values()
            # Elements that wait share a row.
            queue = {job_id: row for row in rows for job_id in row.ids}
        except RuntimeError as error:
            self.failures["squeue"] = error
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
        active = {name for name, job in (queue or {}).items() if not job.state.has_ended}
        wanted = dict.fromkeys(
            strip_element(job_id)
            for job_id in [*(job.id for job in jobs if job.id), *others]
            if job_id not in self._accounts and job_id not in active
        )
        try:
            accounts = accounting.ask(list(wanted))
        except RuntimeError as error:
            self.failures["sacct"] = error
            self._accounts = accounting.read_saved(self.results) | self._accounts
            if accounting.is_absent(error):
                accounts = {}  # nothing more to wait for
        known = {**(accounts or {}), **self._accounts}
        self._accounts = {name: each for name, each in known.items() if accounting.has_ended(each)}
        by_hand = sent.jobs_by_hand(self.results, others, queue, known)
        names = {job.name for job in by_hand}
        jobs = [*(job for job in jobs if job.id or job.name not in names), *by_hand]
        all_answer = queue is not None and accounts is not None
        exits, events = self.results.exits(), self.results.events()
        answers = _Answers(exits, queue, known, events, all_answer)
        return [self._find_standing(job, answers, now, limit_s) for job in jobs]

    def _find_standing(self, job: Job, answers: _Answers, now: float, limit_s: float) -> Standing:
        job_id = str(job.id)
        queued, account = (answers.queue or {}).get(job_id), answers.accounts.get(job_id)
        # Slurm reuses ids after a while.
        if queued and not (queued.comment == job.uuid or job.user in (None, queued.user)):
            queued = None
        raw_id = (account and account["raw_id"]) or (queued and queued.raw_id) or job_id
        record = answers.exits.get(str(raw_id)) or answers.exits.get(job_id)
        state = state_of(queued, account, record)
        if state is None or (state.name == "FAILED" and not accounting.has_ended(account)):
            word = None if queued else read_end(self.results.output(job)).state
            state = State(word) if word else state
        # Latest change of the job's output, or of a journal or log of its launches.
        folders = [self.results.launch(name) for name in job.launches]
        logs = [folder / name for folder in folders for name in ("journal.jsonl", "log.txt")]
        signs = filter(None, map(sent.written_at, [self.results.output(job), *logs]))
        last_sign = max(signs, default=None)
        if state is None:
            state = _infer_state(job, answers, last_sign, now)
        if state.name == "CANCELLED" and job.cancelled and not state.by:
            state = replace(state, by="a lockstep command")
        sent_s = quiet_s = None
        if queued and state.name == "PENDING" and queued.submitted:
            sent_s = max(0.0, now - queued.submitted)
        if state.name == "RUNNING" and last_sign is not None:
            quiet_s = max(0.0, now - last_sign)
            # A launch writes a line at the start and end of each case; it has stalled if it writes
            # none for longer than a case may take. A job may take any time before it measures.
            measures = job.kind in ("ladder", "job", "array") and any(
                self.results.journal(name).exists() for name in job.launches
            )
            state = State("STALLED") if quiet_s > limit_s and measures else state
        user = (queued and queued.user) or (account and account.get("user")) or job.user
        return Standing(job, state, account, record, sent_s, quiet_s, user)


def _infer_state(job: Job, answers: _Answers, last_sign: float | None, now: float) -> State:
    """Return the state of a job that is not in squeue and has no known end."""
    account = answers.accounts.get(str(job.id))
    if job.cancelled:  # Slurm forgets an array element that never started
        return State("CANCELLED")
    if event := answers.events.get(str(job.id)):
        # A job script writes a record if it can, so a job without a record has not succeeded.
        if event.exit_code == 0 and event.status == "COMPLETED":
            if now - event.at > GRACE_S:
                return State(
                    "LOST", "the job has ended, but not even sacct has a record of its end"
                )
            return State("unknown", "the job has ended, but its record is not visible yet")
        return State(event.status if event.status != "COMPLETED" else "FAILED")
    if not answers.all_answer:  # sacct's last answer is the best there is
        return State(account["state"]) if account and answers.queue is None else slurm.UNKNOWN
    if account is None and job.user not in (None, slurm.own_name()):
        return State("unknown", f"the job belongs to {job.user}, and Slurm does not show it to you")
    signs = [] if last_sign is None else [last_sign]
    with suppress(ValueError):  # a job submitted by hand has no time of submission
        signs.append(datetime.fromisoformat(job.sent).timestamp())
    is_late = bool(signs) and now - max(signs) > GRACE_S
    if account is None:
        return State("LOST") if is_late else slurm.UNKNOWN
    if not is_late:
        return State("unknown", "the job has left squeue, and sacct does not know yet how it ended")
    # slurmdbd missed the job's end; an administrator fixes such a job by `sacctmgr show runaway`.
    return State(
        "LOST",
        "the job has left squeue without a record, but sacct does not list it as ended",
    )


def state_of(
    queued: slurm.Queued | None, account: Mapping[str, Any] | None, record: Mapping[str, Any] | None
) -> State | None:
    """Return a job's state from the sources; None if no source knows it.

    The record of the job's script is the most reliable source. For a job that has ended, Slurm's
    state is more precise than an exit code.
    """
    if queued is not None and not queued.state.has_ended:
        has_left = record is not None and queued.state.name != "PENDING"  # PENDING: requeued
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


# Why a job ended badly, and what to do

# A job that used at least this fraction of its memory probably reached the limit.
NEAR = 0.9
# Exit code of a job whose output file its node cannot open: signal 53.
NO_OUTPUT = "0:53"
# Exit codes of a killed process: 128 + SIGKILL from a shell, and those of a killed step.
KILLED = ("137:0", "0:9", "9:0")
# The key to correct for a failed stage; `lockstep resume` would submit the stage unchanged.
COMMAND = "command"
# Keys to correct in the campaign file; `lockstep resume` would submit the scripts unchanged.
OF_CAMPAIGN = (COMMAND, "device")
# Slurm's reasons for jobs that can never start because of a value in the site file.
FOR_EVER = {
    *("PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "ReservationDeleted"),
    *("InvalidAccount", "InvalidQOS", "MaxMemPerLimit"),
}
# Limits of one job, such as QOSMaxWallDurationPerJobLimit and QOSMaxGRESPerJob.
_PER_JOB = re.compile(r"(QOS|Assoc)Max\w+PerJob(Limit)?")
GIB = 1024**3


@dataclass(frozen=True)
class Cause:
    """Why a job failed, and what to do, as a phrase; no text if only the state is known."""

    kind: str
    text: str = ""
    # Key of the site file, or of `OF_CAMPAIGN`, that must change before the job can succeed. "" if
    # the key is unknown; None if the same scripts may measure the rest.
    key: str | None = None


def find_cause(standing: Standing, results: Results) -> Cause:
    """Return why a job failed; for other jobs an unknown cause without a key."""
    if not standing.is_bad:
        return Cause("unknown")
    account, output = standing.account or {}, results.output(standing.job)
    nodes = account.get("nodes")
    match standing.state.name:
        case "OUT_OF_MEMORY":
            more = "the job needs more memory, or a smaller batch in the campaign file"
            return Cause("memory", f"{_memory(account)}; {more}", "mem")
        case "TIMEOUT" | "DEADLINE":
            more = (
                "to need fewer jobs, raise time in the site file or in [jobs] of the campaign file"
            )
            return Cause("time", more)
        case "NODE_FAIL" | "BOOT_FAIL":
            if silent := (standing.record or {}).get("lost"):
                node = one_line(str(silent))[:MAX_LINE]
                return Cause("node_silent", f"{node} no longer answers")
            for path in (_last_log(standing, results), output):
                if failed := read_end(path).failed_node:
                    return Cause("node_failed", f"{failed} failed")
            if nodes:
                which = (
                    f"one of the nodes {nodes} failed; run lockstep slurm nodes to see which node"
                )
                return Cause("node_unknown", which)
        case "FAILED":
            return _find_failure(standing, results)
        case "CANCELLED":
            # If a prolog fails, Slurm cancels a job that may not be requeued (slurm.conf(5)).
            end = read_end(output)
            if end.prolog_failed:
                place = nodes or "a node"
                text = f"{place} did not start the job ({end.line}); sinfo -R lists the reasons"
                return Cause("not_started", text)
            return _find_unmet_dependency(standing, results)
        case "LOST":
            if output.exists():
                return Cause("lost", "see the job's log")
            return Cause("never_began", "the job never started; it may have been cancelled")
    return Cause("unknown")


def _find_failure(standing: Standing, results: Results) -> Cause:
    account, record = standing.account or {}, standing.record or {}
    output, code = results.output(standing.job), account.get("exit_code")
    if record.get("stopped"):
        return Cause("stopped", "the job stopped cleanly before its time limit")
    if code in KILLED:
        used, requested = account.get("memory_bytes") or 0, account.get("requested_bytes") or 0
        is_near = requested > 0 and used >= NEAR * requested
        memory_use = _memory(account)
        action = "the job needs more memory" if is_near else "read the job's log first"
        text = (
            "a user killed a process of the job, or memory ran out (without cgroups Slurm cannot "
            f"tell which); {memory_use}; {action}"
        )
        return Cause("killed", text, "mem" if is_near and record else None)
    key = _key_to_mend(standing, results) if record else None
    if code == NO_OUTPUT and not output.exists():
        nodes = account.get("nodes") or "the job's nodes"
        text = (
            f"exit code {code}: {nodes} could not open {output}; use --to to choose a writable "
            "folder on shared storage"
        )
        return Cause("no_output", text, key)
    log = _last_log(standing, results)
    line, name = read_end(log).line, log.relative_to(results.path)
    return Cause("log", f"{name}: {line}" if line else f"see {name}", key)


def _key_to_mend(standing: Standing, results: Results) -> str | None:
    """Return the key to correct before a failed script can succeed, as `Cause.key`."""
    record, job = standing.record or {}, standing.job
    if record.get("mend") or record.get("lost"):
        mend = one_line(str(record.get("mend") or ""))[:MAX_LINE]
        if mend in INTERFACE_NAMES:  # a variable of the ranks, which a key of the site sets
            with suppress(OSError, ValueError):
                site = stored_site(results)
                is_own = mend in site.env
                mend = f"env.{mend}" if is_own else "interface" if site.interface else mend
        return mend or None
    if job.kind in ("stage", "fallback"):
        return COMMAND
    has_begun = any(results.journal(name).exists() for name in job.launches)
    return None if has_begun or job.kind in ("collect", "profile") else ""


def _find_unmet_dependency(standing: Standing, results: Results) -> Cause:
    """Return the cause of a job that Slurm may have cancelled for an unmet dependency."""
    account, name = standing.account or {}, standing.job.name
    if standing.state.by or standing.state.reason not in (None, NEVER_SATISFIED):
        return Cause("unknown")
    scripts = results.scripts()
    exit_codes = {str(end.get("job")): end["exit_code"] for end in results.exits().values()}
    failed = _find_failed(name, scripts, exit_codes)
    # sacct names the user who cancelled a job, but no user if Slurm cancelled it.
    is_open = any(exit_codes.get(other) != 0 for other in _dependencies(name, scripts))
    by_slurm = "cancelled_by" in account and is_open
    has_begun = bool(standing.record or account.get("elapsed_s"))
    is_likely = (failed or by_slurm) and not has_begun
    if standing.state.reason != NEVER_SATISFIED and not is_likely:
        return Cause("unknown")
    return Cause(
        "dependency",
        f"Slurm cancelled the job before it started, because {failed or 'another job'} "
        f"did not end as required ({NEVER_SATISFIED})",
    )


def _find_failed(
    name: str, scripts: Mapping[str, Mapping[str, Any]], exit_codes: Mapping[str, int]
) -> str | None:
    """Return the first failed job among a job's direct and indirect `afterok` dependencies."""
    for other in _dependencies(name, scripts):
        if exit_codes.get(other):
            return other
        if other not in exit_codes and (first := _find_failed(other, scripts, exit_codes)):
            return first
    return None


def _dependencies(name: str, scripts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    after = scripts.get(name, {}).get("after", ())
    return [str(wait.get("job")) for wait in after if wait.get("how") == "afterok"]


def _memory(account: Mapping[str, Any]) -> str:
    used, requested = account.get("memory_bytes"), account.get("requested_bytes")
    if used is None or requested is None:
        return "the job's memory use is not known"
    return f"the job used {used / GIB:.1f} GiB of its {requested / GIB:.1f} GiB of memory"


def _last_log(standing: Standing, results: Results) -> Path:
    """Return the job's launch log that was written last, else the output of its script."""
    job, output = standing.job, results.output(standing.job)
    logs = [results.log_file(name) for name in job.launches]
    if job.kind in ("preflight", "collect"):
        logs.append(results.jobs_folder / f"{job.kind}-{job.id}.txt")
    existing = [path for path in logs if path.exists()]
    return max(existing, key=lambda path: path.stat().st_mtime) if existing else output


def advise(
    standing: Standing, results: Results, folder: str, *, is_last: bool, is_continued: bool = False
) -> str | None:
    """Return what to do about a job; None if there is nothing to do.

    `folder` is quoted for a command. With `is_last` no other job runs or waits, so `lockstep
    resume` can start now. With `is_continued` another job will measure the launches left here.
    """
    when = "" if is_last else "once the other jobs have ended, "
    if standing.state.name == "STALLED":
        minutes = (standing.quiet_s or 0) / 60
        chosen = f"--job {shlex.quote(standing.job.name)}"
        if standing.job.element is not None:
            chosen += f" --point {standing.job.element}"
        return (
            f"the job's last output is {minutes:.0f} min old; run lockstep cancel {folder} "
            f"{chosen}, then {when}lockstep resume {folder} to measure the missing launches"
        )
    reason = standing.state.reason or ""
    if standing.state.name == "PENDING" and (reason in FOR_EVER or _PER_JOB.fullmatch(reason)):
        return (
            f"run lockstep cancel {folder}, correct the site file, then run lockstep resume "
            f"{folder} --site SITE"
        )
    if not standing.is_bad:
        return None
    cause = find_cause(standing, results)
    submit = f"{when}run lockstep submit CAMPAIGN --site SITE"
    if cause.key is None:
        resume = f"{when}run lockstep resume {folder} to measure the missing launches"
        action = "" if is_continued else resume
    elif not cause.key:
        action = (
            "no launch began, and the same scripts would fail again; correct the cause in the "
            f"campaign or site file, then {submit}"
        )
    elif cause.key in OF_CAMPAIGN:
        action = f"correct {cause.key} in the campaign file, then {submit}"
    else:
        resume = f"{when}run lockstep resume {folder} --site SITE"
        action = f"correct {cause.key} in the site file, then {resume}"
    return "; ".join(filter(None, (cause.text, action))) or None
