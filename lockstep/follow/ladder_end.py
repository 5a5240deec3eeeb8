"""A campaign's ladder ended where a size misses the floor: larger ones that wait are cancelled."""

from collections.abc import Mapping
from typing import Any

from lockstep.campaign.campaign import LeftOut
from lockstep.slurm.status import cancelling
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.standing import Campaign
from lockstep.slurm.submit.job import launches_of
from lockstep.slurm.submit.submission import stored


def end(campaign: Campaign, results: Results, measured: Mapping[str, Any]) -> list[str]:
    """Cancel the jobs that wait to measure only sizes beyond one that misses the floor.

    It is noted why, and their sizes are then left out of the campaign, which is complete without
    them. A job that has begun meanwhile goes on. Nothing is done before a launch of the size that
    misses the floor is complete: another case of it may still reach the floor.

    Args:
        campaign: How its jobs stand.
        results: Its folder.
        measured: What is measured of it, as `status_record` has it.

    Returns:
        The names of the jobs.

    Raises:
        ValueError: Another command changes the folder.
        RuntimeError: Slurm does not answer.
    """
    below, names = measured["below_floor"], set(measured["not_worth_it"])
    claimed = (results.claimed() or {}).get("launches", ())
    sizes = {launch["name"]: launch.get("world_size", 0) for launch in claimed}
    judged = {sizes[name] for name in sizes if campaign.is_complete(name)}
    if not names or not any(one["world_size"] in judged for one in below):
        return []
    with results.alone():
        waiting = [
            job
            for job in cancelling.chosen(results, None, None)
            if job.name in names and job.held.state.name == "PENDING"
        ]
        if not waiting:
            return []
        cancelling.cancel(results, waiting, None, below_floor=below[0])
        _leave_out(results, {job.name for job in waiting}, campaign)
    return list(dict.fromkeys(job.name for job in waiting))


def _leave_out(results: Results, cancelled: set[str], campaign: Campaign) -> None:
    """Take what is not measured any more out of the campaign that the folder is claimed for."""
    mine = [one.job for one in campaign.jobs if one.job.name in cancelled]
    gone = {name for job in mine for name in job.launches if not results.journal(name).exists()}
    own, claimed = stored(results)[0], results.claimed() or {}
    names = {launch["name"] for launch in claimed["launches"]} - gone
    kept = [launch for launch in launches_of(own) if launch.name in names]
    beyond = {one.world_size for one in launches_of(own) if one.name in gone}
    beyond -= {launch.world_size for launch in kept}
    before = [LeftOut(**one) for one in claimed.get("left_out", ())]
    left_out = [*before, *(LeftOut(size, kind="below_floor") for size in sorted(beyond))]
    results.claim(own, kept, left_out)
