"""Jobs that were sent by hand, found by what their scripts leave in a campaign's folder.

A script writes `slurm-ID.out` from its first line on and `exit-ID.json` at its end; its sessions
note the job in the journals. One that still waits is known to squeue alone, by its script's path.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.slurm import client as slurm
from lockstep.slurm.status.sent import Job, Results

KEEP_GOING = "--kill-on-invalid-dep=yes"  # or what waits for a failed job waits for ever
UNNAMED = "sent by hand"
SENDING = """#!/bin/bash
# Sends the jobs of this folder, each after those that it waits for.
set -euo pipefail
declare -A id
send() { # send JOB SCRIPT OPTION...
    local said
    said=$(sbatch --parsable "${@:3}" "$2")
    id[$1]=${said%%;*} # a cluster's name may follow it
    echo "$1: job ${id[$1]}"
}
"""
_OUTPUT = re.compile(r"slurm-([0-9]+(?:_[0-9]+)?)\.out", re.ASCII)


def ids(
    results: Results, sent: Sequence[Job], queue: Mapping[str, slurm.Queued] | None
) -> list[str]:
    """Return the ids of jobs that have no record of a submission, of an array `ID_K`."""
    recorded = {whole(job.id) for job in sent if job.id}
    comments = {job.uuid for job in sent}
    # What submit sends has a comment, and stays in the list as failed where Slurm refused it.
    waiting = [
        job_id
        for job_id, held in (queue or {}).items()
        if is_of(held.command, results)
        and held.comment not in comments
        and not (held.comment and held.state.has_ended)
    ]
    candidates = dict.fromkeys([*_left(results), *waiting])
    return [job_id for job_id in candidates if whole(job_id) not in recorded]


def users(results: Results, sent: Sequence[Job]) -> list[str]:
    """Return whose jobs squeue is asked about: everybody's (none) once some were sent by hand."""
    recorded = {whole(job.id) for job in sent if job.id and not job.by_hand}
    return results.users() if {*map(whole, _outputs(results))} <= recorded else []


def _outputs(results: Results) -> Iterator[str]:
    names = [path.name for path in results.jobs_folder.glob("slurm-*.out")]
    yield from (match[1] for name in sorted(names) if (match := _OUTPUT.fullmatch(name)))


def _left(results: Results) -> Iterator[str]:
    yield from _outputs(results)
    # An earlier version's record names no job; of an element it may have another id than squeue.
    yield from (job_id for job_id, record in results.exits().items() if record.get("job"))


def jobs(
    results: Results,
    job_ids: Sequence[str],
    queue: Mapping[str, slurm.Queued] | None,
    accounts: Mapping[str, Mapping[str, Any]],
) -> list[Job]:
    """Return the jobs of these ids, with what is known of what they make.

    Raises:
        ValueError: A journal is corrupt.
    """
    if not job_ids:
        return []
    scripts, exits, writers = results.scripts(), results.exits(), results.jobs_of_launches()
    sent_by_hand = []
    for job_id in job_ids:
        held, account = (queue or {}).get(job_id), accounts.get(job_id, {})
        script = Path(held.command.split(" ")[0]).stem if held else None
        name = exits.get(job_id, {}).get("job") or script or account.get("name") or UNNAMED
        kind, launches = _made_by(job_id, scripts.get(name), writers)
        user = held.user if held else account.get("user")
        sent_by_hand.append(_job(job_id, str(name), kind, launches, user))
    return sent_by_hand


def _made_by(
    job_id: str, script: Mapping[str, Any] | None, writers: Mapping[str, set[str]]
) -> tuple[str, list[str]]:
    """Return a job's kind and launches, by its script or else by the journals that it wrote to."""
    element = job_id.partition("_")[2]
    if script is None:
        launches = [name for name, written_by in writers.items() if job_id in written_by]
        return "array" if element else "ladder", launches
    launches = script["launches"]
    return script["kind"], launches[int(element) :][:1] if element else launches


def _job(job_id: str, name: str, kind: str, launches: Sequence[str], user: str | None) -> Job:
    element = job_id.partition("_")[2]
    number = int(element) if element else None
    array = f"by hand:{whole(job_id)}"  # alike for the elements of an array
    return Job(job_id, name, kind, array, "", tuple(launches), number, user, by_hand=True)


def whole(job_id: str) -> str:
    """Return a job's id, of an element the id that its array's elements share."""
    return job_id.partition("_")[0]


def is_of(command: str, results: Results) -> bool:
    """Return whether a job's script is one of a folder's."""
    if not command.startswith("/"):
        return False  # Slurm does not say
    return Path(command).resolve().is_relative_to(results.jobs_folder.resolve())


def sending(scripts: Sequence[tuple[str, Path, Sequence[tuple[str, str]]]]) -> str:
    """Return a script that sends others, each after those that it waits for.

    Args:
        scripts: (job, script, its waits as (job, how)) of each, after those that it waits for.
    """
    ids = {job: f"${{id[{job}]}}" for job, _, _ in scripts}
    lines = []
    for job, script, after in scripts:
        options = "".join(f' "{option}"' for option in dependencies(after, ids))
        lines.append(f"send {job} {shlex.quote(str(script))}{options}")
    return SENDING + "\n".join(lines) + "\n"


def command(script: Path, after: Sequence[tuple[str, str]]) -> str:
    """Return how a script is sent by hand, with `<id of NAME>` for ids that are not known yet."""
    ids = {job: f"<id of {job}>" for job, _ in after}
    return " ".join(["sbatch", *dependencies(after, ids), shlex.quote(str(script))])


def dependencies(after: Iterable[tuple[str, str]], ids: Mapping[str, str]) -> list[str]:
    """Return sbatch's options about the jobs that a job waits for."""
    waits: dict[str, list[str]] = {}
    for job, how in after:
        waits.setdefault(how, []).extend([] if how == "singleton" else [ids[job]])
    if not waits:
        return []
    if failed := waits.get("afternotok"):  # one of them: `:` would mean all, and , is no or
        conditions = "?".join(f"afternotok:{job_id}" for job_id in failed)
    else:
        conditions = ",".join(":".join([how, *others]) for how, others in waits.items())
    return [f"--dependency={conditions}", KEEP_GOING]
