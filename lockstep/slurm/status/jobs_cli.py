"""The command `lockstep cancel`, and how `status --cancel-below` ends a campaign's ladder.

The record of submissions notes each cancellation, because Slurm keeps nothing of an array element
that never started, neither in squeue nor in sacct.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.slurm import client as slurm
from lockstep.slurm.client import FailedError
from lockstep.slurm.status.sent import Results
from lockstep.slurm.submit.cli_options import dry_run_option

if TYPE_CHECKING:
    from lockstep.slurm.status.standing import Campaign


def results_of(folder: str) -> Results:
    """Return the results in a folder, and set the cluster for Slurm's commands.

    Raises:
        ValueError: It is not a folder, or holds no campaign.
    """
    from lockstep.slurm.submit import submission

    path = Path(folder)
    results = Results(path.resolve())
    problem = None
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
    elif not (results.claim_file.exists() or results.jobs_folder.exists() or results.names()):
        problem = "holds no campaign"
    if problem:
        raise ValueError(f"{folder} {problem}; give the results folder, such as results/NAME")
    if (results.jobs_folder / submission.SITE_FILE).exists():
        with suppress(OSError, ValueError):  # then this machine's cluster is used
            slurm.on_cluster(submission.stored_site(results).cluster)
    slurm.on_cluster(results.cluster())  # which may differ from the requested one
    return results


@click.command()
@click.argument("folder", metavar="FOLDER|JOB")
@click.option("--job", "name", metavar="NAME", help="Cancel only the job of this name.")
@click.option(
    "--point", type=click.IntRange(min=0), metavar="K", help="Cancel only element K of the array."
)
@dry_run_option
def cancel(folder: str, *, name: str | None, point: int | None, dry_run: bool) -> None:
    """Cancel the jobs of a campaign's FOLDER that have not ended, or any JOB by its id.

    \b
    Examples:
      lockstep cancel results/campaign --dry-run
      lockstep cancel results/campaign --job campaign-w8-r0
      lockstep cancel results/campaign --point 3
      lockstep cancel 4711 --dry-run
    """
    from lockstep.slurm.any_job import held

    if name is None and point is None and held.is_id(folder) and not Path(folder).exists():
        jobs = held.of_job(folder)
        if not jobs:
            raise ValueError(
                f"job {folder} is not in squeue; lockstep slurm why {folder} shows how it ended"
            )
        for job in jobs:
            click.echo(f"{held.job_line(job)}; of {job.user}")
        if dry_run:
            click.echo(shlex.join(["scancel", *slurm.cluster_options(), folder]))
            return
        _scancel([folder], {job.user for job in jobs})
        click.echo(f"cancelled: job {folder}")
        return
    results = results_of(folder)
    opened = open_jobs(results, name, point)
    titles = _ids(opened, point)
    if not titles:
        click.echo("No job is pending or running; nothing to cancel.")
        return
    if dry_run:
        click.echo(shlex.join(["scancel", *slurm.cluster_options(), *titles]))
        return
    cancel_jobs(results, opened, point)
    for job_id, title in titles.items():
        click.echo(f"cancelled: {title}, job {job_id}")
    typed = shlex.quote(folder)
    if name is None and point is None:
        click.echo(f"Next: lockstep resume {typed}  # measures what is missing")
    else:
        click.echo(
            f"Next: lockstep status {typed}  # then lockstep resume, once the other jobs have ended"
        )


@dataclass(frozen=True)
class Open:
    """A pending or running job, or elements of an array.

    Attributes:
        uuid: Id of its submission; None if it was submitted by hand.
    """

    held: slurm.Queued
    name: str
    uuid: str | None


def open_jobs(results: Results, name: str | None = None, point: int | None = None) -> list[Open]:
    """Return the folder's pending and running jobs, optionally of one name or array element.

    Raises:
        ValueError: No job has this name, or not exactly one array has this element.
        RuntimeError: squeue fails.
    """
    sent, opened = results.submissions(), list(_open(results))
    names = dict.fromkeys([*(entry["job"] for entry in sent), *(job.name for job in opened)])
    if name is not None and name not in names:
        choices = ", ".join(names) or "none"
        raise ValueError(f"{results.path} has no job {name!r}; choose from {choices}")
    opened = [job for job in opened if name in (None, job.name)]
    if point is None:
        return opened
    recorded = [
        entry["job"]
        for entry in sent
        if entry.get("kind") == "array"
        and point < len(entry.get("launches", ()))
        and name in (None, entry["job"])
    ]
    opened = [job for job in opened if point in (job.held.elements or ())]
    arrays = dict.fromkeys([*recorded, *(job.name for job in opened)])
    if not arrays:
        raise ValueError(
            f"no array here has an element {point}; leave out --point to cancel whole jobs"
        )
    if len(arrays) > 1:
        choices = ", ".join(arrays)
        raise ValueError(
            f"several arrays have an element {point}; choose one with --job: {choices}"
        )
    return opened


def _open(results: Results) -> Iterator[Open]:
    sent = results.submissions()
    by_comment = {entry["uuid"]: entry for entry in sent}
    by_id = {entry["id"]: entry for entry in sent}
    for held in slurm.queue().values():
        entry = by_comment.get(held.comment)
        if entry is None and held.comment in ("", "(null)"):  # Slurm reuses ids after a while
            entry = by_id.get(held.array_id)
        if held.state.has_ended:
            continue
        if entry is not None:
            yield Open(held, entry["job"], entry["uuid"])
        elif held.array_id not in by_id and results.is_ours(held.command):
            yield Open(held, Path(held.command.split(" ")[0]).stem, None)


def _ids(opened: Sequence[Open], point: int | None) -> dict[str, str]:
    """Return id for scancel -> name of the job."""
    end = "" if point is None else f"_{point}"
    return {f"{job.held.array_id}{end}": job.name for job in opened}


def _scancel(job_ids: Iterable[str], users: set[str], *, only_waiting: bool = False) -> None:
    """Cancel jobs by their ids; the error names the user who may cancel them."""
    try:
        slurm.scancel(job_ids, only_waiting=only_waiting)
    except FailedError as error:
        others = sorted(users - {slurm.own_name()})
        if not others:
            raise
        owners = " and ".join(others)
        raise RuntimeError(f"{error}; these are jobs of {owners}: ask them to cancel") from None


def cancel_jobs(
    results: Results,
    opened: Sequence[Open],
    point: int | None,
    below_floor: Mapping[str, Any] | None = None,
) -> list[Open]:
    """Cancel jobs, record it, and return those that were cancelled.

    `below_floor` names the world size that missed the floor; then only pending jobs are cancelled.

    Raises:
        RuntimeError: scancel fails, as it does for jobs of another user.
        OSError: They are cancelled, but this cannot be recorded.
    """
    users = {job.held.user for job in opened}
    _scancel(_ids(opened, point), users, only_waiting=below_floor is not None)
    cancelled = list(opened)
    if below_floor is not None:  # those that have left squeue
        still = {
            (job.held.array_id, n) for job in _open(results) for n in job.held.elements or (0,)
        }
        cancelled = []
        for job in opened:
            gone = [n for n in job.held.elements or (0,) if (job.held.array_id, n) not in still]
            if gone:
                elements = None if job.held.elements is None else tuple(gone)
                cancelled.append(replace(job, held=replace(job.held, elements=elements)))
    ended: dict[str, list[int]] = {}
    for job in cancelled:
        if job.uuid is not None:
            elements = (job.held.elements or (0,)) if point is None else (point,)
            ended.setdefault(job.uuid, []).extend(elements)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    why = {"below_floor": dict(below_floor)} if below_floor else {}
    for uuid, numbers in ended.items():
        results.note({"uuid": uuid, "cancelled": numbers, "cancelled_at": now, **why})
    return cancelled


def end_ladder(campaign: "Campaign", results: Results, measured: Mapping[str, Any]) -> list[str]:
    """Cancel the pending jobs of world sizes above one that misses the floor.

    The reason is recorded, and the campaign is complete without their sizes. A job that has started
    meanwhile continues. Nothing is cancelled before each launch of the size that misses the floor
    is complete, or its jobs have ended.

    Returns:
        The names of the jobs.

    Raises:
        ValueError: Another command changes the folder.
        RuntimeError: Slurm does not answer.
    """
    below, names = measured["below_floor"], set(measured["not_worth_it"])
    if not names:
        return []
    judged = {
        launch["name"]
        for launch in (results.claimed() or {}).get("launches", ())
        if launch.get("world_size") == below[0]["world_size"]
    }
    if not all(map(campaign.is_complete, judged - set(campaign.abandoned))):
        return []
    with results.alone():
        waiting = [
            job
            for job in open_jobs(results)
            if job.name in names and job.held.state.name == "PENDING"
        ]
        if waiting:
            waiting = cancel_jobs(results, waiting, None, below_floor=below[0])
            _leave_out(results, waiting, campaign)
    return list(dict.fromkeys(job.name for job in waiting))


def _leave_out(results: Results, cancelled: Sequence[Open], campaign: "Campaign") -> None:
    """Remove the launches of cancelled jobs from the folder's claim."""
    from lockstep.campaign.campaign import LeftOut
    from lockstep.slurm.submit.job import launches_of
    from lockstep.slurm.submit.submission import stored

    ended = {(one.name, number) for one in cancelled for number in one.held.elements or (None,)}
    gone, coming = set[str](), set[str]()
    for standing in campaign.jobs:
        is_gone = (standing.job.name, standing.job.element) in ended
        if is_gone or not standing.has_ended:
            (gone if is_gone else coming).update(standing.job.launches)
    gone = {name for name in gone - coming if not results.journal(name).exists()}
    own, claimed = stored(results)[0], results.claimed() or {}
    names = {launch["name"] for launch in claimed["launches"]} - gone
    launches = launches_of(own)
    kept = [launch for launch in launches if launch.name in names]
    beyond = {launch.world_size for launch in launches if launch.name in gone}
    beyond -= {launch.world_size for launch in kept}
    left_out = [LeftOut(size, kind="below_floor") for size in sorted(beyond)]
    results.claim(own, kept, [*results.below_floor(), *left_out])
