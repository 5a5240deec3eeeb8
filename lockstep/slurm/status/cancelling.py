"""Cancelling the jobs of a campaign.

What was cancelled is noted in the record of submissions: of an element of an array that had not
begun Slurm keeps nothing, neither in squeue nor in sacct.

A campaign's ladder ended where a size misses the floor: larger ones that wait are cancelled.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lockstep.campaign.campaign import LeftOut
from lockstep.slurm import client as slurm
from lockstep.slurm.client import FailedError
from lockstep.slurm.status import by_hand
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Campaign
from lockstep.slurm.submit.job import launches_of
from lockstep.slurm.submit.submission import stored


@dataclass(frozen=True)
class Open:
    """A job, or elements of an array, that waits or runs.

    Attributes:
        uuid: Its submission; None where it was sent by hand.
    """

    held: slurm.Queued
    name: str
    uuid: str | None


def chosen(results: Results, name: str | None, point: int | None) -> list[Open]:
    """Return the folder's jobs that wait or run and are to be cancelled.

    Raises:
        ValueError: No job is so called, or none, or several, are arrays with that element.
        RuntimeError: squeue fails.
    """
    sent, opened = results.submissions(), list(_open(results))
    names = dict.fromkeys([*(entry["job"] for entry in sent), *(job.name for job in opened)])
    if name is not None and name not in names:
        choices = ", ".join(names) or "none"
        raise ValueError(f"no job {name!r} was sent from {results.path}; its jobs are: {choices}")
    opened = [job for job in opened if name in (None, job.name)]
    if point is None:
        return opened
    having = [
        entry["job"]
        for entry in sent
        if (entry.get("kind") == "array" and point < len(entry.get("launches", ())))
    ]
    recorded = [job for job in having if name in (None, job)]
    opened = [job for job in opened if point in (job.held.elements or ())]
    arrays = dict.fromkeys([*recorded, *(job.name for job in opened)])
    if not arrays:
        raise ValueError(f"no array here has an element {point}; without --point, jobs end whole")
    if len(arrays) > 1:
        choices = ", ".join(arrays)
        raise ValueError(f"several arrays have an element {point}; name one by --job: {choices}")
    return opened


def _open(results: Results) -> Iterator[Open]:
    sent = results.submissions()
    ids = {entry["id"] for entry in sent}
    for held in slurm.queue().values():
        if held.state.has_ended:
            continue
        entry = next((entry for entry in sent if _is_ours(held, entry)), None)
        if entry is not None:
            yield Open(held, entry["job"], entry["uuid"])
        elif held.job_id not in ids and by_hand.is_of(held.command, results):
            yield Open(held, Path(held.command.split(" ")[0]).stem, None)


def _is_ours(held: slurm.Queued, entry: Mapping[str, Any]) -> bool:
    """Return whether a job in the queue is the one that was sent: Slurm uses ids again some day."""
    if held.comment == entry["uuid"]:
        return True
    return held.job_id == entry["id"] and held.comment in ("", "(null)")


def ids(opened: Sequence[Open], point: int | None) -> dict[str, str]:
    """Return id, as scancel takes it, -> name of the job."""
    end = "" if point is None else f"_{point}"
    return {f"{job.held.job_id}{end}": job.name for job in opened}


def cancel(
    results: Results,
    opened: Sequence[Open],
    point: int | None,
    below_floor: Mapping[str, Any] | None = None,
) -> list[Open]:
    """Cancel jobs, note it, and return them, without what began just before.

    Below a floor, `below_floor` has the world size that missed it; only what still waits is
    cancelled then.

    Raises:
        RuntimeError: scancel fails, as it does for jobs of another user.
        OSError: They are cancelled, but this cannot be noted.
    """
    users = {job.held.user for job in opened}
    scancel(ids(opened, point), users, only_waiting=below_floor is not None)
    if below_floor is not None:
        opened = _gone(opened, _open(results))
    ended: dict[str, list[int]] = {}
    for job in opened:
        if job.uuid is not None:
            elements = (job.held.elements or (0,)) if point is None else (point,)
            ended.setdefault(job.uuid, []).extend(elements)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for uuid, cancelled in ended.items():
        why = {"below_floor": dict(below_floor)} if below_floor else {}
        results.set_down({"uuid": uuid, "cancelled": cancelled, "cancelled_at": now, **why})
    return list(opened)


def scancel(job_ids: Iterable[str], users: Iterable[str], *, only_waiting: bool = False) -> None:
    """Cancel jobs by their ids, as `scancel` does.

    Raises:
        RuntimeError: scancel fails, as it does for jobs of another user, who is named then.
    """
    try:
        slurm.scancel(job_ids, only_waiting=only_waiting)
    except FailedError as error:
        others = sorted({*users} - {slurm.own_name()})
        if not others:
            raise
        whose = " and ".join(others)
        raise RuntimeError(f"{error}; ask {whose}, whose jobs these are, to cancel them") from None


def _gone(before: Iterable[Open], now: Iterable[Open]) -> list[Open]:
    """Return the jobs, and elements of arrays, that Slurm holds no more."""
    held = {(job.held.job_id, number) for job in now for number in job.held.elements or (0,)}
    gone = []
    for job in before:
        numbers = job.held.elements or (0,)
        left = tuple(number for number in numbers if (job.held.job_id, number) not in held)
        if left:
            elements = None if job.held.elements is None else left
            gone.append(replace(job, held=replace(job.held, elements=elements)))
    return gone


def end(campaign: Campaign, results: Results, measured: Mapping[str, Any]) -> list[str]:
    """Cancel the jobs that wait to measure only sizes beyond one that misses the floor.

    It is noted why, and their sizes are then left out of the campaign, which is complete without
    them. A job that has begun meanwhile goes on. Nothing is done while a launch of the size that
    misses the floor may still change that: each is complete, or its jobs have ended.

    Returns:
        The names of the jobs.

    Raises:
        ValueError: Another command changes the folder.
        RuntimeError: Slurm does not answer.
    """
    below, names = measured["below_floor"], set(measured["not_worth_it"])
    if not names or not _is_judged(below[0]["world_size"], campaign, results):
        return []
    with results.alone():
        waiting = [
            job
            for job in chosen(results, None, None)
            if job.name in names and job.held.state.name == "PENDING"
        ]
        if not waiting:
            return []
        waiting = cancel(results, waiting, None, below_floor=below[0])
        _leave_out(results, waiting, campaign)
    return list(dict.fromkeys(job.name for job in waiting))


def _is_judged(world_size: int, campaign: Campaign, results: Results) -> bool:
    """Return whether no claimed launch of a size will be measured any further."""
    claimed = (results.claimed() or {}).get("launches", ())
    own = {launch["name"] for launch in claimed if launch.get("world_size") == world_size}
    return all(map(campaign.is_complete, own - set(campaign.abandoned)))


def _leave_out(results: Results, cancelled: Sequence[Open], campaign: Campaign) -> None:
    """Take what is not measured any more out of the campaign that the folder is claimed for."""
    ended = {(one.name, number) for one in cancelled for number in one.held.elements or (None,)}
    gone, coming = set[str](), set[str]()
    for standing in campaign.jobs:
        is_gone = (standing.job.name, standing.job.element) in ended
        if is_gone or not standing.has_ended:
            (gone if is_gone else coming).update(standing.job.launches)
    gone = {name for name in gone - coming if not results.journal(name).exists()}
    own, claimed = stored(results)[0], results.claimed() or {}
    names = {launch["name"] for launch in claimed["launches"]} - gone
    kept = [launch for launch in launches_of(own) if launch.name in names]
    beyond = {launch.world_size for launch in launches_of(own) if launch.name in gone}
    beyond -= {launch.world_size for launch in kept}
    left_out = [LeftOut(size, kind="below_floor") for size in sorted(beyond)]
    results.claim(own, kept, [*results.below_floor(), *left_out])
