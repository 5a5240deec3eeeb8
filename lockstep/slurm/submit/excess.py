"""What of a campaign's jobs is over a limit of QOS or account, before they are sent."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.core.formats import clock
from lockstep.slurm.associations import Limit
from lockstep.slurm.site import Site
from lockstep.slurm.submit.job_spec import JobSpec

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
