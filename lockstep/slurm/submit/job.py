"""Jobs: what a campaign asks of a site, computed here before `script` renders it.

The templates hold no arithmetic: every number and every option is in a `JobSpec`.

The user's own jobs before and after those that measure: their order, and who waits for whom.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Protocol

from lockstep.campaign.campaign import Campaign, Launch, Stage, common_options, plan
from lockstep.campaign.launcher import FEW_STEPS, refuse_program
from lockstep.core.formats import clock, parse_limit
from lockstep.slurm.site import Site
from lockstep.slurm.submit.job_spec import (
    UNSAFE,
    Dependency,
    How,
    JobSpec,
    Kind,
    Profiler,
    Share,
    agent,
    directives,
    shape,
    share,
)
from lockstep.slurm.submit.limits import check_nodes, limit_s, time_limit_s


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
                *(job_spec for job_spec in stages if job_spec.kind == "stage" and how == "afterok"),
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


# Time limits of jobs that do not measure; they take minutes where nothing is wrong.
PREFLIGHT_S = 900
COLLECT_S = 1800
COLLECT_CPUS = 4  # where it has no node of its own


def settle(campaign: Campaign, site: Site) -> Campaign:
    """Return the campaign with the device and the threads that every launch will use."""
    resources = share(campaign, site)
    # A driver that a node lacks is then an error, never a measurement of its CPUs.
    device = "cuda" if resources.is_gpu else campaign.device
    threads = campaign.threads_per_rank or resources.cpus_per_task
    return campaign.model_copy(update={"device": device, "threads_per_rank": threads})


def launches_of(campaign: Campaign) -> list[Launch]:
    """Return the launches as the campaign's jobs cut them: an array's are of one case each."""
    return plan(campaign, by_case=campaign.jobs.allocation == "array")


def jobs(
    campaign: Campaign,
    site: Site,
    folder: Path,
    launches: Sequence[Launch] | None = None,
    done: Collection[str] = (),
) -> list[JobSpec]:
    """Return the jobs of a campaign, each after those that it waits for.

    All launches are made by default; `done` names the stages that have ended well.

    Raises:
        ValueError: Campaign and site do not fit, or the folder's name cannot be given to sbatch.
    """
    maker = Maker.of(campaign, site, folder)
    wanted = launches_of(campaign) if launches is None else launches
    specs = list(maker.measuring(wanted)) if wanted else []
    if campaign.jobs.preflight and wanted:
        first = maker.preflight(max(launch.world_size for launch in wanted))
        specs = [first, *(behind([Dependency(first.name, "afterok")], job) for job in specs)]
    specs = Stages(campaign, site, maker.job, done).around(specs)
    if campaign.jobs.collect and specs:
        specs.append(maker.collect(specs))
    for name, count in Counter(spec.name for spec in specs).items():
        if count > 1:  # one script would be written over the other
            raise ValueError(f"two jobs would be called {name!r}; give the stage another name")
    return specs


def profile(campaign: Campaign, site: Site, folder: Path, profiler: Profiler) -> JobSpec:
    """Return the job that profiles a few steps of each case, apart from what is measured.

    Raises:
        ValueError: Campaign and site do not fit, or the folder's name cannot be given to sbatch.
    """
    # While ncu replays a kernel of one rank the others would wait for it for ever.
    world_sizes = (1,) if profiler == "ncu" else campaign.world_sizes
    if profiler == "torch":
        refuse_program(campaign)
    campaign = campaign.model_copy(update=FEW_STEPS | {"world_sizes": world_sizes})
    maker = Maker.of(campaign, site, folder)
    job = maker.make(f"{campaign.name}-{profiler}", "profile", plan(campaign))
    return replace(job, profiler=profiler)


@dataclass(frozen=True)
class Maker:
    """What all jobs of a campaign at a site have in common."""

    campaign: Campaign
    site: Site
    folder: Path
    share: Share

    @classmethod
    def of(cls, campaign: Campaign, site: Site, folder: Path) -> "Maker":
        """Return the maker of jobs that fit.

        Raises:
            ValueError: Campaign and site do not fit, or sbatch cannot be given the folder's name.
        """
        _check_folder(folder, site)
        campaign = settle(campaign, site)
        resources = share(campaign, site)
        _check_ladder(campaign, site, resources)
        return cls(campaign, site, folder, resources)

    def measuring(self, launches: Sequence[Launch]) -> Iterator[JobSpec]:
        """Yield the jobs that measure, as the campaign cuts them."""
        if self.campaign.jobs.allocation == "array":
            yield from self._all_arrays(launches)
            return
        before: tuple[Dependency, ...] = ()
        for suffix, group in self._apart(launches):
            specs = self._of_repeat(suffix, group, before)
            yield from specs
            # On nodes that jobs share, two repeats at once would slow each other down.
            before = () if self.site.is_exclusive else (Dependency(specs[-1].name, "afterany"),)

    def _apart(self, launches: Sequence[Launch]) -> Iterator[tuple[str, list[Launch]]]:
        """Yield what jobs of their own make, with an end for their names: a repeat each.

        Repeats within one job share its nodes, and are not independent of each other. So do
        those of a ladder that may end early, for a size is judged by all of its repeats.
        """
        is_one = self.campaign.jobs.share_job or self.campaign.until_efficiency is not None
        if is_one or self.campaign.repeats == 1:
            yield "", list(launches)
            return
        for repeat, group in groupby(launches, key=lambda launch: launch.repeat):
            yield f"-r{repeat}", list(group)

    def _of_repeat(
        self, suffix: str, launches: Sequence[Launch], before: tuple[Dependency, ...]
    ) -> list[JobSpec]:
        """Return the jobs of a repeat: one, or one for each world size after the smaller one."""
        name = self.campaign.name
        if self.campaign.jobs.allocation == "ladder":
            return self._chain(self.make(f"{name}{suffix}", "ladder", launches, before))
        specs: list[JobSpec] = []
        for world_size, group in _by_size(launches):
            first = self.make(f"{name}-w{world_size}{suffix}", "job", group, before)
            specs += self._chain(first)
            before = (Dependency(specs[-1].name, "afterok"),)
        return specs

    def _chain(self, first: JobSpec) -> list[JobSpec]:
        """Return a job and those that go on, one after another, with what it leaves."""
        chain = [first]
        for number in range(2, self.campaign.jobs.chain + 1):
            before, name = chain[-1].name, f"{first.name}-c{number}"
            after = (Dependency(before, "afterany"), *first.after)
            job = self.make(name, first.kind, first.launches, after)
            chain.append(replace(job, continues=before))
        return chain

    def _all_arrays(self, launches: Sequence[Launch]) -> Iterator[JobSpec]:
        before: tuple[Dependency, ...] = ()
        limited = self.campaign.jobs.max_running is not None
        for world_size, group in _by_size(launches):
            for job in self._arrays(f"{self.campaign.name}-w{world_size}", group):
                yield replace(job, after=before)
                # At once they would run more elements than the campaign lets run.
                before = (Dependency(job.name, "afterany"),) if limited else ()

    def _arrays(self, name: str, launches: Sequence[Launch]) -> Iterator[JobSpec]:
        """Yield as many arrays as Slurm's limit of one makes of them."""
        most = self.site.max_array_size
        chunks = [launches[first : first + most] for first in range(0, len(launches), most)]
        for number, chunk in enumerate(chunks, start=1):
            array_name = name if len(chunks) == 1 else f"{name}-{number}"
            yield self.make(array_name, "array", chunk)

    def preflight(self, world_size: int) -> JobSpec:
        """Return the job that shows that nodes answer and ranks meet, at the largest shape."""
        settings = [f"--threads-per-rank={self.campaign.threads_per_rank}"]
        settings += [f"--device={self.campaign.device}"] if self.campaign.device else []
        job = self.job(
            f"{self.campaign.name}-preflight", "preflight", [world_size], self._short(PREFLIGHT_S)
        )
        options = ("-m", "collective or weak", "--size=smoke", "--benchmark-disable", *settings)
        return replace(job, options=options, tests=(), screen=self._screen(world_size))

    def _screen(self, world_size: int) -> tuple[str, ...]:
        """Return the options of the screening; one rank has nothing to be compared with."""
        if not self.campaign.jobs.screen or world_size == 1:
            return ()
        floor = self.campaign.jobs.min_all_reduce_gb_per_s
        device = f"--device={self.campaign.device or 'cpu'}"
        return (device, *([] if floor is None else [f"--floor-gb-per-s={floor:g}"]))

    def collect(self, others: Sequence[JobSpec]) -> JobSpec:
        """Return the job that collects and reports once the others have ended."""
        after = tuple(Dependency(job.name, "afterany") for job in others)
        name = f"{self.campaign.name}-collect"
        place = replace(self, site=self.site.for_collecting())
        resources = self.share.without_gpu()
        if self.site.collect_partition:
            resources = replace(resources, cpus_per_task=min(COLLECT_CPUS, resources.cpus_per_task))
        job = place.job(name, "collect", [1], self._short(COLLECT_S), resources)
        return replace(job, options=(), after=after)

    def _short(self, time_s: int) -> int:
        """Return the time of a job that needs little, where the site's jobs are shorter still."""
        return min(time_s, parse_limit(self.site.time))

    def make(
        self,
        name: str,
        kind: Kind,
        launches: Sequence[Launch],
        after: tuple[Dependency, ...] = (),
    ) -> JobSpec:
        """Return a job that makes launches."""
        one_after_another = 1 if kind == "array" else len(launches)
        time_s = time_limit_s(self.campaign, self.site, name, one_after_another)
        world_sizes = sorted({launch.world_size for launch in launches})
        job = self.job(name, kind, world_sizes, time_s)
        if kind == "array":
            limit = self.campaign.jobs.max_running
            elements = f"0-{len(launches) - 1}" + (f"%{limit}" if limit else "")
            job = replace(job, directives=(*job.directives, f"--array={elements}"))
        return replace(job, launches=tuple(launches), after=after)

    def job(
        self,
        name: str,
        kind: Kind,
        sizes: Sequence[int],
        time_s: int,
        share: Share | None = None,
    ) -> JobSpec:
        """Return a job of nothing but its resources, for steps of so many ranks."""
        resources = share or self.share
        largest = max(sizes)
        check_nodes(resources, self.site, largest)
        time_s = min(time_s, limit_s(self.site) or time_s)
        number = "%A_%a" if kind == "array" else "%j"
        output = f"{self.folder}/jobs/slurm-{number}.out"
        num_gpus = resources.on_node(largest) if resources.is_gpu else 0
        return JobSpec(
            name=name,
            kind=kind,
            folder=str(self.folder),
            num_nodes=resources.num_nodes(largest),
            cpus_per_node=resources.cpus_per_task * resources.on_node(largest),
            gpus_per_node=num_gpus,
            billed_per_node=self.site.gpus_per_node if self.site.is_exclusive else num_gpus,
            time_s=time_s,
            cpus_per_task=resources.cpus_per_task,
            num_threads=resources.num_threads or resources.cpus_per_task,
            directives=tuple(directives(self.site, resources, name, largest, time_s, output)),
            shapes={size: shape(self.site, resources, size) for size in sizes},
            agents={size: agent(resources, size) for size in sizes if resources.is_torchrun},
            options=tuple(_options(self.campaign, self.site)),
            tests=self.campaign.tests,
            workdir=self.campaign.command.workdir if self.campaign.command else None,
            floor=self.campaign.until_efficiency,
        )


def _by_size(launches: Sequence[Launch]) -> Iterator[tuple[int, list[Launch]]]:
    """Yield each world size, the smallest first, with its launches."""
    for world_size in sorted({launch.world_size for launch in launches}):
        yield world_size, [launch for launch in launches if launch.world_size == world_size]


def _check_ladder(campaign: Campaign, site: Site, resources: Share) -> None:
    if site.gpu_types and campaign.jobs.chain > 1:
        raise ValueError(
            "chain goes on with launches that may have begun on another of gpu_types; set chain = "
            "1, or constraint to one type in the place of gpu_types"
        )
    # srun ignores --ntasks-per-node where the ranks do not fill their nodes evenly.
    on_node = resources.ranks_per_node
    for world_size in campaign.world_sizes:
        if world_size > on_node and world_size % on_node:
            raise ValueError(
                f"world size {world_size} does not fill nodes of {on_node} ranks on {site.name}; "
                f"choose {world_size // on_node * on_node} or {-(-world_size // on_node) * on_node}"
            )


def _check_folder(folder: Path, site: Site) -> None:
    if not folder.is_absolute():
        raise ValueError(f"{folder}: not an absolute path; jobs start in another folder")
    barred = UNSAFE | (frozenset(":,") if site.container else frozenset())
    unsafe = sorted(barred & set(str(folder)))
    if unsafe or not str(folder).isprintable():
        what = f"{unsafe[0]!r}" if unsafe else "a control character"
        raise ValueError(
            f"{str(folder)!r} holds {what}, which sbatch or Apptainer would read its own way; "
            "give --to another folder"
        )


def _options(campaign: Campaign, site: Site) -> Iterable[str]:
    yield from common_options(campaign)
    yield f"--label=site={site.name}"
    yield "--resume"
