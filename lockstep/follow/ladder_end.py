"""A campaign's ladder ended where a size misses the floor: larger ones that wait are cancelled."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.campaign.campaign import LeftOut
from lockstep.slurm.status import cancelling
from lockstep.slurm.status.cancelling import Open
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Campaign
from lockstep.slurm.submit.job import launches_of
from lockstep.slurm.submit.submission import stored


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
            for job in cancelling.chosen(results, None, None)
            if job.name in names and job.held.state.name == "PENDING"
        ]
        if not waiting:
            return []
        waiting = cancelling.cancel(results, waiting, None, below_floor=below[0])
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
    for one in campaign.jobs:
        is_gone = (one.job.name, one.job.element) in ended
        if is_gone or not one.has_ended:
            (gone if is_gone else coming).update(one.job.launches)
    gone = {name for name in gone - coming if not results.journal(name).exists()}
    own, claimed = stored(results)[0], results.claimed() or {}
    names = {launch["name"] for launch in claimed["launches"]} - gone
    kept = [launch for launch in launches_of(own) if launch.name in names]
    beyond = {one.world_size for one in launches_of(own) if one.name in gone}
    beyond -= {launch.world_size for launch in kept}
    left_out = [LeftOut(size, kind="below_floor") for size in sorted(beyond)]
    results.claim(own, kept, [*results.below_floor(), *left_out])
