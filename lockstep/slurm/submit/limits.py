"""What of a campaign's jobs is over a limit of QOS or account, before they are sent.

What a partition allows a job: how long it may take, and how many nodes it may have.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lockstep.campaign.campaign import Campaign
from lockstep.core.formats import clock, parse_limit
from lockstep.slurm.associations import Limit
from lockstep.slurm.site import Site
from lockstep.slurm.submit.job_spec import JobSpec

if TYPE_CHECKING:
    from lockstep.slurm.submit.job_spec import Share


SHOWN_JOBS = 3


@dataclass(frozen=True)
class Excess:
    """Jobs over one limit.

    Attributes:
        kind: What Slurm does: it refuses them (`refused`), never starts them (`held`), or starts
            them once others have ended (`queued`).
        jobs: Which jobs; of those in the queue together, the ones that are too many.
        needs: What the largest of them needs, or all of them together, in the limit's unit.
    """

    kind: Literal["refused", "held", "queued"]
    limit: Limit
    jobs: tuple[str, ...]
    needs: int

    @property
    def text(self) -> str:
        """What happens to which jobs, why, and what to do."""
        if self.kind == "queued":
            return (
                f"Of {self.needs:,} jobs {self.limit.value:,} may run at once: {self.limit.text}."
            )
        does = "Slurm would refuse" if self.kind == "refused" else "Slurm would never start"
        names, more = ", ".join(self.jobs[:SHOWN_JOBS]), len(self.jobs) - SHOWN_JOBS
        return f"{does} {names}{f' and {more:,} more' if more > 0 else ''}: {self._why}."

    @property
    def _why(self) -> str:
        if self.limit.name == "MaxWall":
            return f"{clock(self.needs)} is over {self.limit.text}; lower time, or change qos"
        if self.limit.name == "MaxSubmit":
            return (
                f"{self.needs:,} jobs are over {self.limit.text}; for fewer jobs set share_job, or "
                'allocation = "ladder", in [jobs] of the campaign'
            )
        return (
            f"{self.limit.tres}={self.needs:,} is over {self.limit.text}; leave out the largest "
            "world_sizes, or change qos"
        )


def excesses(jobs: Sequence[JobSpec], site: Site, limits: Sequence[Limit]) -> list[Excess]:
    """Return what of the jobs is over which limit, one for each limit.

    Other jobs of the user count, too, where a limit is of all of them; they are not known here.
    """
    exceeded = []
    for limit in limits:
        if limit.name == "MaxSubmit":
            exceeded += _too_many(jobs, limit)
        elif limit.name == "MaxJobs":
            exceeded += _one_after_another(jobs, limit)
        else:
            exceeded += _too_large(jobs, site, limit)
    return exceeded


def _too_large(jobs: Sequence[JobSpec], site: Site, limit: Limit) -> list[Excess]:
    needs = {job.name: _needs(job, site, limit) for job in jobs}
    over = {name: number for name, number in needs.items() if number > limit.value}
    kind: Literal["refused", "held"] = "refused" if limit.denies else "held"
    return [Excess(kind, limit, tuple(over), max(over.values()))] if over else []


def _needs(job: JobSpec, site: Site, limit: Limit) -> int:
    """Return how much a job has of what is limited; 0 where that is not known."""
    if limit.name == "MaxWall":
        return job.time_s
    cpus = site.cpus_per_node if site.is_exclusive else job.cpus_per_node
    of_node = {"node": 1, "cpu": cpus, "gres/gpu": job.billed_per_node}
    if site.gpu_type:
        of_node[f"gres/gpu:{site.gpu_type}"] = job.billed_per_node
    return of_node.get(limit.tres, 0) * job.num_nodes


def _too_many(jobs: Sequence[JobSpec], limit: Limit) -> list[Excess]:
    total, over = 0, []
    for job in jobs:
        total += job.num_elements
        over += [job.name] if total > limit.value else []
    return [Excess("refused", limit, tuple(over), total)] if over else []


def _one_after_another(jobs: Sequence[JobSpec], limit: Limit) -> list[Excess]:
    """Return what keeps jobs waiting that wait for none of the others."""
    depth: dict[str, int] = {}
    together: Counter[int] = Counter()
    for job in jobs:  # each after those that it waits for; a singleton for an earlier one
        depth[job.name] = 1 + max((depth.get(wait.job, 0) for wait in job.after), default=0)
        together[depth[job.name]] += job.num_elements
    most = max(together.values(), default=0)
    return [Excess("queued", limit, (), most)] if most > limit.value else []


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
