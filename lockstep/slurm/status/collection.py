"""What jobs have left: the JSON of each launch, and what is known of the jobs that have ended.

It makes the same files of what has ended when it runs again, twice at once, or while jobs run.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.core import files, journal
from lockstep.core.record import KEY
from lockstep.slurm import client as slurm
from lockstep.slurm.status import accounting, by_hand, standing
from lockstep.slurm.status.sent import Job, Results, writers

SCHEMA = 2
# Of an element that was cancelled before it began sacct keeps nothing.
NEVER_BEGAN = {"raw_id": None, "state": "CANCELLED", "elapsed_s": 0.0}
# Seconds between questions while sacct fails, or does not know yet how a job ended: 15 in all.
WAITS_S = (1, 2, 4, 8)
# A launch that runs may grow while its JSON is made; the last look is then as good as any.
MAX_LOOKS = 5

Say = Callable[[str], None]


def collect(results: Results, say: Say = lambda _: None) -> dict[str, Any]:
    """Make each launch's JSON from its journal, and write what is known of the jobs that ended.

    What is unknown stays None; what an earlier `collect` knew is kept.

    Returns:
        The names of the launches with results, and the rows of the jobs, as in accounting.json.

    Raises:
        ValueError: A journal, or the record of submissions, is corrupt.
    """
    made = [name for name in results.names() if _write_result(results, name)]
    sent = results.jobs()
    others = by_hand.ids(results, sent, {})
    jobs = [*sent, *by_hand.jobs(results, others, {}, {})]
    accounts = _ask(results, jobs, say) if jobs else {}
    jobs = [*sent, *by_hand.jobs(results, others, {}, accounts)]  # whose names sacct may know
    rows = _write_accounting(results, jobs, accounts, say) if jobs else []
    return {"launches": made, "jobs": rows}


def _write_result(results: Results, name: str) -> bool:
    """Make a launch's JSON, and look once more: another may have written an older one."""
    path = results.journal(name)
    has_ended = False
    for _ in range(MAX_LOOKS):
        before = path.stat().st_size
        has_ended = results.write_result(name)
        if path.stat().st_size == before:
            break
    return has_ended


def _ask(results: Results, jobs: Sequence[Job], say: Say) -> dict[str, Any]:
    """Return what accounting knows, asked again while it fails or lags behind what has ended."""
    accounts = _kept(results, say)
    otherwise = "jobs/sacct.txt alone is read" if accounts else "accounting is left as it was"
    accounts |= {
        str(job.id): NEVER_BEGAN
        for job in jobs
        if (job.id is not None and job.cancelled and (not results.output(job).exists()))
    }
    ids = list(dict.fromkeys(job.id.partition("_")[0] for job in jobs if job.id))
    for wait_s in (*WAITS_S, None):
        problem, may_change = _ask_once(results, jobs, ids, accounts)
        if problem is None:
            return accounts
        if wait_s is None or not may_change:
            break
        say(f"{problem}; asked again in {wait_s} s")
        time.sleep(wait_s)
    say(f"{otherwise}: {problem}")
    return accounts


def _ask_once(
    results: Results, jobs: Sequence[Job], ids: Sequence[str], accounts: dict[str, Any]
) -> tuple[str | None, bool]:
    """Add what sacct knows now; return what is amiss, and whether that may pass by itself."""
    try:
        fresh = accounting.ask(ids)
    except RuntimeError as error:
        return str(error), not accounting.is_absent(error)
    ended = accounting.has_ended
    for job_id, account in fresh.items():
        if ended(account) or not ended(accounts.get(job_id)):
            accounts[job_id] = account
    late = [str(job.id) for job in _late(results, jobs, accounts)]
    return (_lags(late), True) if late else (None, False)


def _lags(late: Sequence[str]) -> str:
    shown = ", ".join(late[:8]) + (f" and {len(late) - 8} more" if late[8:] else "")
    return f"sacct does not say yet how {shown} ended"


def _kept(results: Results, say: Say) -> dict[str, Any]:
    """Return what the job that collects has asked sacct, which its image does not have."""
    path = results.jobs_folder / "sacct.txt"
    if not path.exists():
        return {}
    accounts = accounting.read(files.text(path))
    if not accounts:
        say(f"{path} says nothing about jobs; left aside")
    return dict(accounts)


def _late(results: Results, jobs: Sequence[Job], accounts: Mapping[str, Any]) -> list[Job]:
    """Return the jobs that have left the queue and that sacct does not call ended yet."""
    open_jobs = [job for job in jobs if job.id and not accounting.has_ended(accounts.get(job.id))]
    if not open_jobs:
        return []
    try:
        queue = standing.queued_elements(slurm.queue(by_hand.users(results, jobs)))
    except RuntimeError:
        queue = None
    exits = results.exits()
    return [job for job in open_jobs if _has_left(job, queue, accounts.get(str(job.id)), exits)]


def _has_left(
    job: Job,
    queue: Mapping[str, slurm.Queued] | None,
    account: Mapping[str, Any] | None,
    exits: Mapping[str, Any],
) -> bool:
    if queue is not None:
        return not standing.is_active(queue.get(str(job.id)))
    raw = (account or {}).get("raw_id") or job.id
    return str(raw) in exits


def _write_accounting(
    results: Results, jobs: Sequence[Job], accounts: Mapping[str, Any], say: Say
) -> list[dict[str, Any]]:
    """Write the rows of the jobs, those of an earlier `collect` kept where nothing newer is known.

    Asking took a while: the file is read again under the lock, so that none undoes another's work.
    """
    with results.merging(say):
        stored = _stored(results)
        exits, staging = results.exits(), results.staging()
        hours = _rank_hours(results)
        rows = [_row(job, accounts, stored, exits, staging, hours) for job in jobs]
        document = {"schema": SCHEMA, "jobs": rows}
        files.write_atomically(results.accounting_file, json.dumps(document, indent=1))
    return rows


def _stored(results: Results) -> dict[str, Mapping[str, Any]]:
    """Return job id -> its row of an earlier `collect`."""
    try:
        document = files.parse(files.content(results.accounting_file))
        rows = document["jobs"] if document["schema"] == SCHEMA else []
        return {str(row["id"]): row for row in rows if _is_whole(row["accounting"])}
    except (ValueError, KeyError, TypeError):
        return {}  # none yet, or of an earlier schema, which sacct is asked again for


def _is_whole(account: object) -> bool:
    """Return whether a job's account is None, or has what is looked for in it."""
    return account is None or (isinstance(account, dict) and {"raw_id", "state"} <= account.keys())


def _row(
    job: Job,
    accounts: Mapping[str, Any],
    stored: Mapping[str, Mapping[str, Any]],
    exits: Mapping[str, Any],
    staging: Mapping[str, Any],
    hours: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    before = stored.get(str(job.id), {})
    account = _merged(before.get("accounting"), accounts.get(str(job.id)))
    ids = [str(job_id) for job_id in (account and account["raw_id"], job.id) if job_id]
    record = next((exits[job_id] for job_id in ids if job_id in exits), None)
    staged: Mapping[str, Any] = next((staging[job_id] for job_id in ids if job_id in staging), {})
    return {
        "id": job.id,
        "job": job.name,
        "kind": job.kind,
        "launches": list(job.launches),
        "accounting": account,
        "exit": record,
        "stage_in_s": staged.get("stage_in_s"),
        "stage_out_s": staged.get("stage_out_s"),
        "cache_hits": staged.get("cache_hits"),
        "cache_misses": staged.get("cache_misses"),
        "measured_rank_hours": _measured(job, account, record, hours),
    }


def _measured(
    job: Job,
    account: Mapping[str, Any] | None,
    record: Mapping[str, Any] | None,
    hours: Mapping[str, Mapping[str, float]],
) -> float | None:
    """Return the rank-hours that a job measured; None until it has ended, or where not known."""
    raw_id = account["raw_id"] if account else job.id if record and job.element is None else None
    kept = [hours[name] for name in job.launches if name in hours]
    # Without any journal it may have measured nothing, or what it measured was deleted.
    if raw_id is None or not kept or any("" in of_jobs for of_jobs in kept):
        return None
    return sum(of_jobs.get(raw_id, 0.0) for of_jobs in kept)


def _merged(
    before: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return what is known of a job that has ended: nothing known is lost again."""
    if not accounting.has_ended(now):
        return dict(before) if before else None
    fresh = {name: value for name, value in (now or {}).items() if value is not None}
    return {**(now or {}), **(before or {}), **fresh}


def _rank_hours(results: Results) -> dict[str, dict[str, float]]:
    """Return launch -> SLURM_JOB_ID -> ranks x hours in timed regions, of the cases it finished.

    On GPUs a rank has one, so these are the GPU-hours that measured something. What was set aside
    to be measured again counts for the job that measured it.
    """
    hours: dict[str, dict[str, float]] = {}
    for name, path in results.journals():
        jobs = hours.setdefault(name, {})
        job_id = ""
        for entry in journal.read(path):
            if entry.get("kind") == "launch":
                job_id = next(writers(entry), "")
            elif entry.get("kind") == "case":
                jobs[job_id] = jobs.get(job_id, 0.0) + _hours(entry)
    return hours


def _hours(entry: Mapping[str, Any]) -> float:
    block = _inside(entry, "benchmark", "extra_info", KEY)
    elapsed_s, world_size = block.get("elapsed_s"), block.get("world_size")
    if not isinstance(elapsed_s, int | float) or not isinstance(world_size, int):
        return 0.0
    return elapsed_s * world_size / accounting.HOUR_S


def _inside(value: Any, *names: str) -> Mapping[str, Any]:
    """Return an object within objects; an empty one where any of them is no object."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
