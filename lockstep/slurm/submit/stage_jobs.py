"""The user's own jobs before and after those that measure: their order, and who waits for whom."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lockstep.campaign.campaign import Campaign
from lockstep.campaign.job_cuts import Stage
from lockstep.core.formats import clock, parse_limit
from lockstep.slurm.site import Site
from lockstep.slurm.submit.job_spec import Dependency, How, JobSpec, Kind
from lockstep.slurm.submit.partition_limits import limit_s
from lockstep.slurm.submit.resources import Share


class Make(Protocol):
    """What makes a job of so many tasks."""

    def __call__(
        self, name: str, kind: Kind, sizes: Sequence[int], time_s: int, share: Share
    ) -> JobSpec:
        """Return the job."""


@dataclass(frozen=True)
class Stages:
    """The stages of a campaign at a site."""

    campaign: Campaign
    site: Site
    make: Make
    done: Collection[str]

    def around(self, specs: Sequence[JobSpec]) -> list[JobSpec]:
        """Return the jobs that measure with the stages before and after them."""
        return [*self._before(specs), *self._after(specs)]

    def _before(self, specs: Sequence[JobSpec]) -> list[JobSpec]:
        """Return the stages that come first, each after the one before it, and the jobs behind."""
        stages: list[JobSpec] = []
        waits: list[Dependency] = []
        for stage in self.campaign.jobs.stage if specs else ():
            # What the others only need to have begun runs beside them, each time anew.
            is_left = stage.name not in self.done or stage.dependency == "after"
            if stage.when == "before" and is_left:
                stages.append(self._job(stage, waits[-1:]))
                how: How = "afterok" if stage.dependency == "singleton" else stage.dependency
                waits.append(Dependency(stages[-1].name, how))
        return [*stages, *(behind(waits, job) for job in specs)]

    def _after(self, specs: Sequence[JobSpec]) -> list[JobSpec]:
        """Return the stages that come last; one that needs success also waits for those before it.

        Without jobs that measure, only those that have not ended well yet.
        """
        went_on = {job.continues for job in specs}
        ends = [job for job in specs if job.name not in went_on]
        begins = [job for job in specs if not job.continues]
        stages: list[JobSpec] = []
        for stage in self.campaign.jobs.stage:
            is_left = stage.name not in self.done and stage.dependency != "afternotok"
            if stage.when == "before" or not (specs or is_left):
                continue
            how: How = "afterany" if stage.dependency == "singleton" else stage.dependency
            measuring = begins if how == "after" else ends
            others = [
                *measuring,
                *(one for one in stages if one.kind == "stage" and how == "afterok"),
            ]
            stages.append(self._job(stage, [Dependency(job.name, how) for job in others]))
        return stages

    def _job(self, stage: Stage, after: Sequence[Dependency]) -> JobSpec:
        name, num_tasks = f"{self.campaign.name}-{stage.name}", stage.nodes * stage.tasks_per_node
        kind: Kind = "fallback" if stage.dependency == "afternotok" else "stage"
        time_s, resources = _time_s(stage, self.site), _share(stage, self.site)
        job = self.make(name, kind, [num_tasks], time_s, resources)
        if stage.dependency == "singleton":
            after = [*after, Dependency(name, "singleton")]
        # Its tasks are no ranks, and need no store to meet at: to the script they are one.
        shapes = {1: job.shapes[num_tasks]}
        return replace(job, after=tuple(after), shapes=shapes, options=(), tests=(), stage=stage)


def behind(first: Sequence[Dependency], job: JobSpec) -> JobSpec:
    """Return a job that never begins where one of the first ones fails."""
    if any(dependency.how == "afterok" for dependency in job.after):
        return job  # the one before it does not begin then
    return replace(job, after=(*first, *job.after))


def _time_s(stage: Stage, site: Site) -> int:
    """Return a stage's time limit.

    Raises:
        ValueError: The partition gives no job so much time.
    """
    most_s, time_s = limit_s(site), parse_limit(stage.time or site.time)
    if stage.time and most_s and time_s > most_s:
        raise ValueError(
            f"stage {stage.name}: time {stage.time} is over the {clock(most_s)} of partition "
            f"{site.partition}; lower it"
        )
    return time_s


def _share(stage: Stage, site: Site) -> Share:
    """Return what a task of a stage gets of its node.

    Raises:
        ValueError: A node has not so much.
    """
    tasks = stage.tasks_per_node
    cpus = stage.cpus_per_task or max(1, site.cpus_per_node // tasks)
    if cpus * tasks > site.cpus_per_node:
        raise ValueError(
            f"stage {stage.name}: {tasks} tasks of {cpus} CPUs do not fit on the "
            f"{site.cpus_per_node} CPUs of a node of {site.name}; lower one of them"
        )
    if stage.gpus and tasks > site.gpus_per_node:
        raise ValueError(
            f"stage {stage.name}: {tasks} tasks with a GPU each, but a node of {site.name} has "
            f"{site.gpus_per_node}; lower tasks_per_node"
        )
    return Share(tasks, cpus, stage.gpus)
