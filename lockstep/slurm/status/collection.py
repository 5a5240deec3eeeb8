"""`collect`: writes the JSON of each launch, and the accounting of the jobs that have ended."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lockstep.core import files, journal
from lockstep.core.formats import listed
from lockstep.core.record import ACCOUNTING_SCHEMA, KEY
from lockstep.slurm.status import accounting, sent
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Board, Standing

# sacct keeps nothing of an element that was cancelled before it started.
NEVER_BEGAN = {"raw_id": None, "state": "CANCELLED", "elapsed_s": 0.0}
# Pauses in s while sacct fails, or does not know yet how a job ended; 15 s in total.
WAITS_S = (1, 2, 4, 8)
# Attempts to write the JSON of a launch whose journal grows at the same time.
MAX_LOOKS = 5

Say = Callable[[str], None]


def collect(results: Results, say: Say = lambda _: None) -> dict[str, Any]:
    """Write each launch's JSON from its journal, and the accounting of the jobs that ended.

    Unknown values are None; values of an earlier `collect` are kept. For jobs that have ended the
    result is the same however often `collect` runs, also twice at once.
    """
    launches = [name for name in results.names() if _write_result(results, name)]
    standings = _ask(results, say)
    if not standings:
        return {"launches": launches, "jobs": []}
    # Another collect may have written meanwhile, so the file is read again under the lock.
    with results.hold_collect_lock(say):
        # An earlier answer of sacct may contain more than the present one.
        stored = accounting.read_collected(results)
        exits, staging, hours = results.exits(), results.staging(), _rank_hours(results)
        rows = [
            _row(each, stored.get(str(each.job.id)), exits, staging, hours) for each in standings
        ]
        document = {"schema": ACCOUNTING_SCHEMA, "jobs": rows}
        files.write_atomically(results.accounting_file, json.dumps(document, indent=1))
    return {"launches": launches, "jobs": rows}


def _write_result(results: Results, name: str) -> bool:
    """Write a launch's JSON, again if its journal grew; return whether the launch has results."""
    path = results.journal(name)
    for _ in range(MAX_LOOKS):
        size_bytes, has_results = path.stat().st_size, results.write_result(name)
        if path.stat().st_size == size_bytes:
            break
    return has_results


def _ask(results: Results, say: Say) -> list[Standing]:
    """Return the jobs with their accounting; ask sacct again while it fails or lags behind."""
    path, saved = results.jobs_folder / "sacct.txt", dict[str, Any]()
    if path.exists():  # sacct's answer, saved by the collecting job, whose image has no sacct
        saved = accounting.read(files.text(path))
        if not saved:
            say(f"{path} lists no jobs, so this file is ignored")
    otherwise = "only jobs/sacct.txt is used" if saved else "accounting is unchanged"
    board = Board(results)
    for wait_s in (*WAITS_S, None):
        standings = board.standings()
        for number, each in enumerate(standings):
            if not accounting.has_ended(each.account):
                never_began = each.job.cancelled and not results.output(each.job).exists()
                account = NEVER_BEGAN if never_began else saved.get(each.job.id or "")
                standings[number] = replace(each, account=account)
        late = [
            each.job.id
            for each in standings
            if each.job.id and not accounting.has_ended(each.account)
            if each.has_ended or (each.state.name == "unknown" and "squeue" not in board.failures)
        ]
        failure = board.failures.get("sacct")
        if not late and failure is None:
            break
        problem = str(failure or f"sacct does not know yet how these jobs ended: {listed(late, 8)}")
        if wait_s is None or (failure and accounting.is_absent(failure)):
            say(f"{otherwise}: {problem}")
            break
        say(f"{problem}; the next attempt is in {wait_s} s")
        time.sleep(wait_s)
    return standings


def _row(
    standing: Standing,
    account: Mapping[str, Any] | None,
    exits: Mapping[str, Any],
    staging: Mapping[str, Any],
    hours: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Return the row of a job for accounting.json; values already stored are kept."""
    job, now = standing.job, standing.account
    if now and accounting.has_ended(now):
        fresh = {name: value for name, value in now.items() if value is not None}
        account = {**now, **(account or {}), **fresh}
    ids = [str(job_id) for job_id in (account and account["raw_id"], job.id) if job_id]
    record = next((exits[job_id] for job_id in ids if job_id in exits), None)
    staged: Mapping[str, Any] = next((staging[job_id] for job_id in ids if job_id in staging), {})
    # Rank-hours in timed regions; None until the job has ended, and if its journals were deleted.
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
        **{name: staged.get(name) for name in sent.STAGING},
        "measured_rank_hours": measured,
    }


def _rank_hours(results: Results) -> dict[str, dict[str, float]]:
    """Return launch -> SLURM_JOB_ID -> ranks x hours in timed regions of its finished cases.

    A rank uses one GPU, so on GPUs these are GPU-hours. A launch set aside counts for the job that
    measured it.
    """
    hours: dict[str, dict[str, float]] = {}
    for name, path in results.journals():
        jobs = hours.setdefault(name, {})
        job_id = ""
        for entry in journal.read(path):
            if entry.get("kind") == "launch":
                job_id = next(sent.writers(entry), "")
            elif entry.get("kind") == "case":
                block: Any = sent.find_table(entry, "benchmark", "extra_info", KEY)
                elapsed_s, world_size = block.get("elapsed_s"), block.get("world_size")
                is_known = isinstance(elapsed_s, int | float) and isinstance(world_size, int)
                rank_s = elapsed_s * world_size if is_known else 0.0
                jobs[job_id] = jobs.get(job_id, 0.0) + rank_s / accounting.HOUR_S
    return hours
