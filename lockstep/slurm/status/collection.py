"""`collect`: writes the JSON of each launch, and the accounting of the jobs that have ended.

It is idempotent for ended jobs: also if it runs again, twice at once, or while jobs run.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.core import files, journal
from lockstep.core.record import KEY
from lockstep.slurm import client as slurm
from lockstep.slurm.status import accounting, standing
from lockstep.slurm.status.sent import (
    Job,
    Results,
    ids_by_hand,
    jobs_by_hand,
    users_to_ask,
    whole,
    writers,
)

SCHEMA = 2
# sacct keeps nothing of an element that was cancelled before it started.
NEVER_BEGAN = {"raw_id": None, "state": "CANCELLED", "elapsed_s": 0.0}
# Pauses in s while sacct fails, or does not know yet how a job ended: 15 s in all.
WAITS_S = (1, 2, 4, 8)
# Attempts to write the JSON of a launch whose journal grows meanwhile.
MAX_LOOKS = 5

Say = Callable[[str], None]


def collect(results: Results, say: Say = lambda _: None) -> dict[str, Any]:
    """Write each launch's JSON from its journal, and the accounting of the jobs that ended.

    Unknown values are None; values of an earlier `collect` are kept.

    Returns:
        The names of the launches with results, and the rows of the jobs, as in accounting.json.
    """
    made = [name for name in results.names() if _write_result(results, name)]
    sent = results.jobs()
    others = ids_by_hand(results, sent, {})
    jobs = [*sent, *jobs_by_hand(results, others, {}, {})]
    if not jobs:
        return {"launches": made, "jobs": []}
    accounts = _ask(results, jobs, say)
    jobs = [*sent, *jobs_by_hand(results, others, {}, accounts)]  # now with the names from sacct
    # Another collect may have written meanwhile, so the file is read again under the lock.
    with results.merging(say):
        stored = _stored(results)
        exits, staging, hours = results.exits(), results.staging(), _rank_hours(results)
        rows = [_row(job, accounts, stored, exits, staging, hours) for job in jobs]
        document = {"schema": SCHEMA, "jobs": rows}
        files.write_atomically(results.accounting_file, json.dumps(document, indent=1))
    return {"launches": made, "jobs": rows}


def _write_result(results: Results, name: str) -> bool:
    """Write a launch's JSON, again if its journal grew meanwhile; return whether it has results."""
    path = results.journal(name)
    has_ended = False
    for _ in range(MAX_LOOKS):
        before = path.stat().st_size
        has_ended = results.write_result(name)
        if path.stat().st_size == before:
            break
    return has_ended


def _ask(results: Results, jobs: Sequence[Job], say: Say) -> dict[str, Any]:
    """Return job id -> accounting; ask again while sacct fails or lags behind ended jobs."""
    accounts: dict[str, Any] = {}
    path = results.jobs_folder / "sacct.txt"
    if path.exists():  # sacct's answer, saved by the collecting job, whose image has no sacct
        accounts = dict(accounting.read(files.text(path)))
        if not accounts:
            say(f"{path} has no jobs and is ignored")
    otherwise = "only jobs/sacct.txt is used" if accounts else "accounting is unchanged"
    accounts |= {
        str(job.id): NEVER_BEGAN
        for job in jobs
        if job.id is not None and job.cancelled and not results.output(job).exists()
    }
    ids = list(dict.fromkeys(whole(job.id) for job in jobs if job.id))
    for wait_s in (*WAITS_S, None):
        problem, may_change = _ask_once(results, jobs, ids, accounts)
        if problem is None:
            return accounts
        if wait_s is None or not may_change:
            break
        say(f"{problem}; next attempt in {wait_s} s")
        time.sleep(wait_s)
    say(f"{otherwise}: {problem}")
    return accounts


def _ask_once(
    results: Results, jobs: Sequence[Job], ids: Sequence[str], accounts: dict[str, Any]
) -> tuple[str | None, bool]:
    """Add sacct's answer; return the problem or None, and whether a retry may help."""
    ended = accounting.has_ended
    try:
        fresh = accounting.ask(ids)
    except RuntimeError as error:
        return str(error), not accounting.is_absent(error)
    for job_id, account in fresh.items():
        if ended(account) or not ended(accounts.get(job_id)):
            accounts[job_id] = account
    unsure = [job for job in jobs if job.id and not ended(accounts.get(job.id))]
    if not unsure:
        return None, False
    # Those that have left squeue or, if squeue fails, those with a record of their end.
    try:
        queue = standing.queued_elements(slurm.queue(users_to_ask(results, jobs)))
        late = [str(job.id) for job in unsure if not standing.is_active(queue.get(str(job.id)))]
    except RuntimeError:
        exits = results.exits()
        raw_ids = {str(job.id): accounts.get(str(job.id), {}).get("raw_id") for job in unsure}
        late = [job_id for job_id, raw in raw_ids.items() if str(raw or job_id) in exits]
    if not late:
        return None, False
    shown = ", ".join(late[:8]) + (f" and {len(late) - 8} more" if late[8:] else "")
    return f"sacct does not know yet how {shown} ended", True


def _stored(results: Results) -> dict[str, Mapping[str, Any]]:
    """Return job id -> its row of an earlier `collect`."""

    def is_whole(account: object) -> bool:
        has_keys = isinstance(account, dict) and {"raw_id", "state"} <= account.keys()
        return account is None or has_keys

    try:
        document = files.parse(files.content(results.accounting_file))
        rows = document["jobs"] if document["schema"] == SCHEMA else []
        return {str(row["id"]): row for row in rows if is_whole(row["accounting"])}
    except (ValueError, KeyError, TypeError):
        return {}  # none yet, or of an earlier schema; sacct is asked again


def _row(
    job: Job,
    accounts: Mapping[str, Any],
    stored: Mapping[str, Mapping[str, Any]],
    exits: Mapping[str, Any],
    staging: Mapping[str, Any],
    hours: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Return the row of a job for accounting.json; values already stored are kept."""
    account = stored.get(str(job.id), {}).get("accounting")
    now = accounts.get(str(job.id), {})
    if now and accounting.has_ended(now):
        fresh = {name: value for name, value in now.items() if value is not None}
        account = {**now, **(account or {}), **fresh}
    ids = [str(job_id) for job_id in (account and account["raw_id"], job.id) if job_id]
    record = next((exits[job_id] for job_id in ids if job_id in exits), None)
    staged: Mapping[str, Any] = next((staging[job_id] for job_id in ids if job_id in staging), {})
    # Rank-hours in timed regions: None until the job has ended, and without a journal, which may
    # have been deleted.
    raw_id = account["raw_id"] if account else job.id if record and job.element is None else None
    kept = [hours[name] for name in job.launches if name in hours]
    measured = None
    if raw_id is not None and kept and not any("" in of_jobs for of_jobs in kept):
        measured = sum(of_jobs.get(raw_id, 0.0) for of_jobs in kept)
    return {
        "id": job.id,
        "job": job.name,
        "kind": job.kind,
        "launches": list(job.launches),
        "accounting": account or None,
        "exit": record,
        "stage_in_s": staged.get("stage_in_s"),
        "stage_out_s": staged.get("stage_out_s"),
        "cache_hits": staged.get("cache_hits"),
        "cache_misses": staged.get("cache_misses"),
        "measured_rank_hours": measured,
    }


def _rank_hours(results: Results) -> dict[str, dict[str, float]]:
    """Return launch -> SLURM_JOB_ID -> ranks x hours in timed regions of its finished cases.

    A rank uses one GPU, so these are GPU-hours in timed regions. A launch set aside counts for the
    job that measured it.
    """
    hours: dict[str, dict[str, float]] = {}
    for name, path in results.journals():
        jobs = hours.setdefault(name, {})
        job_id = ""
        for entry in journal.read(path):
            if entry.get("kind") == "launch":
                job_id = next(writers(entry), "")
            elif entry.get("kind") == "case":
                block: Any = entry
                for key in ("benchmark", "extra_info", KEY):
                    block = block.get(key) if isinstance(block, dict) else None
                block = block if isinstance(block, dict) else {}
                elapsed_s, world_size = block.get("elapsed_s"), block.get("world_size")
                is_known = isinstance(elapsed_s, int | float) and isinstance(world_size, int)
                rank_s = elapsed_s * world_size if is_known else 0.0
                jobs[job_id] = jobs.get(job_id, 0.0) + rank_s / accounting.HOUR_S
    return hours
