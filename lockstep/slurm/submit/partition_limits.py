"""What a partition allows a job: how long it may take, and how many nodes it may have."""

from typing import TYPE_CHECKING

from lockstep.campaign.campaign import Campaign
from lockstep.core.formats import clock, parse_limit
from lockstep.slurm.site import Site

if TYPE_CHECKING:
    from lockstep.slurm.submit.resources import Share


def limit_s(site: Site) -> int | None:
    """Return the longest job of the partition; None where it is not known."""
    return parse_limit(site.limits.time) if site.limits.time else None


def time_limit_s(campaign: Campaign, site: Site, name: str, num_launches: int) -> int:
    """Return the time limit of a job that makes so many launches one after another.

    Raises:
        ValueError: The partition gives no job so much time.
    """
    most_s = limit_s(site)
    times = campaign.jobs
    if times.launch_time is None and times.time is None:
        return min(parse_limit(site.time), most_s or parse_limit(site.time))
    each_s = parse_limit(str(times.launch_time or times.time))
    needed_s = each_s * num_launches if times.launch_time else each_s
    if most_s is not None and needed_s > most_s:
        raise ValueError(
            f"job {name} needs {clock(needed_s)}, over the {clock(most_s)} of partition "
            f"{site.partition}; {_how_to_cut(campaign, num_launches, most_s)}"
        )
    return needed_s


def _how_to_cut(campaign: Campaign, num_launches: int, most_s: int) -> str:
    if campaign.jobs.launch_time is None:
        return f"lower [jobs] time to {clock(most_s)}, or choose another --partition"
    fitting = most_s // parse_limit(campaign.jobs.launch_time)
    if num_launches == 1 or not fitting:
        return "lower [jobs] launch_time, or choose another --partition"
    finer = {"ladder": '"job" or "array"', "job": '"array"'}.get(campaign.jobs.allocation)
    fewer = "take share_job out" if campaign.jobs.share_job else "lower launch_time"
    return (
        f"{fitting} of its {num_launches} launches fit: {fewer}, or set [jobs] allocation to "
        f"{finer}"
    )


def check_nodes(resources: "Share", site: Site, world_size: int) -> None:
    """Refuse a world size that the partition has too few nodes for.

    Raises:
        ValueError: It has.
    """
    num_nodes, most = resources.num_nodes(world_size), site.limits.max_nodes
    if most is not None and num_nodes > most:
        num_ranks = most * resources.ranks_per_node
        raise ValueError(
            f"world size {world_size} needs {num_nodes} nodes, but partition {site.partition} of "
            f"site {site.name} gives {most}, for up to {num_ranks} ranks; leave the world size "
            "out, or choose another --partition"
        )
