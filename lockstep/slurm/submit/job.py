"""The jobs of a campaign at a site, computed before `script` renders them.

The templates hold no arithmetic: every number and every option is in a `JobSpec`. The user's own
jobs, its stages, come before and after those that measure.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

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
    check_nodes,
    directives,
    limit_s,
    shape,
    share,
    time_limit_s,
)

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
        specs = [first, *(_behind([Dependency(first.name, "afterok")], job) for job in specs)]
    specs = [*maker.stages_before(specs, done), *maker.stages_after(specs, done)]
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
    """Makes the jobs of a campaign at a site."""

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
            yield from self._arrays(launches)
            return
        # Repeats within one job share its nodes, and are not independent of each other. So do those
        # of a ladder that may end early, for a size is judged by all of its repeats.
        is_one = self.campaign.jobs.share_job or self.campaign.until_efficiency is not None
        groups = [("", list(launches))]
        if not is_one and self.campaign.repeats > 1:
            by_repeat = groupby(launches, key=lambda launch: launch.repeat)
            groups = [(f"-r{repeat}", list(group)) for repeat, group in by_repeat]
        name = self.campaign.name
        before: tuple[Dependency, ...] = ()
        for suffix, group in groups:
            specs: list[JobSpec] = []
            if self.campaign.jobs.allocation == "ladder":
                specs += self._chain(self.make(f"{name}{suffix}", "ladder", group, before))
            else:  # one for each world size, after the smaller one
                for world_size, some in _by_size(group):
                    first = self.make(f"{name}-w{world_size}{suffix}", "job", some, before)
                    specs += self._chain(first)
                    before = (Dependency(specs[-1].name, "afterok"),)
            yield from specs
            # On nodes that jobs share, two repeats at once would slow each other down.
            before = () if self.site.is_exclusive else (Dependency(specs[-1].name, "afterany"),)

    def _chain(self, first: JobSpec) -> list[JobSpec]:
        """Return a job and those that go on, one after another, with what it leaves."""
        chain = [first]
        for number in range(2, self.campaign.jobs.chain + 1):
            before, name = chain[-1].name, f"{first.name}-c{number}"
            after = (Dependency(before, "afterany"), *first.after)
            job = self.make(name, first.kind, first.launches, after)
            chain.append(replace(job, continues=before))
        return chain

    def _arrays(self, launches: Sequence[Launch]) -> Iterator[JobSpec]:
        """Yield as many arrays of each world size as Slurm's limit of one makes of them."""
        before: tuple[Dependency, ...] = ()
        limited, most = self.campaign.jobs.max_running is not None, self.site.max_array_size
        for world_size, group in _by_size(launches):
            chunks = [group[first : first + most] for first in range(0, len(group), most)]
            for number, chunk in enumerate(chunks, start=1):
                name = f"{self.campaign.name}-w{world_size}"
                job = self.make(name if len(chunks) == 1 else f"{name}-{number}", "array", chunk)
                yield replace(job, after=before)
                # At once they would run more elements than the campaign lets run.
                before = (Dependency(job.name, "afterany"),) if limited else ()

    def stages_before(self, specs: Sequence[JobSpec], done: Collection[str]) -> list[JobSpec]:
        """Return the stages that come first, each after the one before it, and the jobs behind."""
        stages: list[JobSpec] = []
        waits: list[Dependency] = []
        for stage in self.campaign.jobs.stage if specs else ():
            # What the others only need to have begun runs beside them, each time anew.
            is_left = stage.name not in done or stage.dependency == "after"
            if stage.when == "before" and is_left:
                stages.append(self._stage(stage, waits[-1:]))
                how: How = "afterok" if stage.dependency == "singleton" else stage.dependency
                waits.append(Dependency(stages[-1].name, how))
        return [*stages, *(_behind(waits, job) for job in specs)]

    def stages_after(self, specs: Sequence[JobSpec], done: Collection[str]) -> list[JobSpec]:
        """Return the stages that come last; one that needs success also waits for those before it.

        Without jobs that measure, only those that have not ended well yet.
        """
        went_on = {job.continues for job in specs}
        ends = [job for job in specs if job.name not in went_on]
        begins = [job for job in specs if not job.continues]
        stages: list[JobSpec] = []
        for stage in self.campaign.jobs.stage:
            is_left = stage.name not in done and stage.dependency != "afternotok"
            if stage.when == "before" or not (specs or is_left):
                continue
            how: How = "afterany" if stage.dependency == "singleton" else stage.dependency
            others = list(begins if how == "after" else ends)
            others += [job for job in stages if job.kind == "stage" and how == "afterok"]
            stages.append(self._stage(stage, [Dependency(job.name, how) for job in others]))
        return stages

    def _stage(self, stage: Stage, after: Sequence[Dependency]) -> JobSpec:
        name, tasks = f"{self.campaign.name}-{stage.name}", stage.tasks_per_node
        most_s, time_s = limit_s(self.site), parse_limit(stage.time or self.site.time)
        if stage.time and most_s and time_s > most_s:
            raise ValueError(
                f"stage {stage.name}: time {stage.time} exceeds the limit {clock(most_s)} of "
                f"partition {self.site.partition}; lower it"
            )
        cpus = stage.cpus_per_task or max(1, self.site.cpus_per_node // tasks)
        if cpus * tasks > self.site.cpus_per_node:
            raise ValueError(
                f"stage {stage.name}: {tasks} tasks of {cpus} CPUs need more than the "
                f"{self.site.cpus_per_node} CPUs of a node of {self.site.name}; lower one of them"
            )
        if stage.gpus and tasks > self.site.gpus_per_node:
            raise ValueError(
                f"stage {stage.name}: {tasks} tasks need a GPU each, but a node of "
                f"{self.site.name} has {self.site.gpus_per_node}; lower tasks_per_node"
            )
        kind: Kind = "fallback" if stage.dependency == "afternotok" else "stage"
        job = self.job(name, kind, [stage.nodes * tasks], time_s, Share(tasks, cpus, stage.gpus))
        if stage.dependency == "singleton":
            after = [*after, Dependency(name, "singleton")]
        # Its tasks are no ranks, and need no store to meet at: to the script they are one.
        shapes = {1: job.shapes[stage.nodes * tasks]}
        return replace(job, after=tuple(after), shapes=shapes, options=(), tests=(), stage=stage)

    def preflight(self, world_size: int) -> JobSpec:
        """Return the job that shows that nodes answer and ranks meet, at the largest shape."""
        campaign, floor = self.campaign, self.campaign.jobs.min_all_reduce_gb_per_s
        settings = [f"--threads-per-rank={campaign.threads_per_rank}"]
        settings += [f"--device={campaign.device}"] if campaign.device else []
        screen: list[str] = []
        if campaign.jobs.screen and world_size > 1:  # one rank has nothing to be compared with
            screen.append(f"--device={campaign.device or 'cpu'}")
            screen += [] if floor is None else [f"--floor-gb-per-s={floor:g}"]
        time_s = min(PREFLIGHT_S, parse_limit(self.site.time))
        job = self.job(f"{campaign.name}-preflight", "preflight", [world_size], time_s)
        options = ("-m", "collective or weak", "--size=smoke", "--benchmark-disable", *settings)
        return replace(job, options=options, tests=(), screen=tuple(screen))

    def collect(self, others: Sequence[JobSpec]) -> JobSpec:
        """Return the job that collects and reports once the others have ended."""
        after = tuple(Dependency(job.name, "afterany") for job in others)
        name = f"{self.campaign.name}-collect"
        place = replace(self, site=self.site.for_collecting())
        resources = replace(self.share, is_gpu=False, is_torchrun=False)
        if self.site.collect_partition:
            resources = replace(resources, cpus_per_task=min(COLLECT_CPUS, resources.cpus_per_task))
        time_s = min(COLLECT_S, parse_limit(self.site.time))
        job = place.job(name, "collect", [1], time_s, resources)
        return replace(job, options=(), after=after)

    def make(
        self, name: str, kind: Kind, launches: Sequence[Launch], after: tuple[Dependency, ...] = ()
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
        self, name: str, kind: Kind, sizes: Sequence[int], time_s: int, share: Share | None = None
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
            options=(*common_options(self.campaign), f"--label=site={self.site.name}", "--resume"),
            tests=self.campaign.tests,
            workdir=self.campaign.command.workdir if self.campaign.command else None,
            floor=self.campaign.until_efficiency,
        )


def _behind(first: Sequence[Dependency], job: JobSpec) -> JobSpec:
    """Return a job that never begins where one of the first ones fails."""
    if any(dependency.how == "afterok" for dependency in job.after):
        return job  # the one before it does not begin then
    return replace(job, after=(*first, *job.after))


def _by_size(launches: Sequence[Launch]) -> Iterator[tuple[int, list[Launch]]]:
    """Yield each world size, the smallest first, with its launches."""
    for world_size in sorted({launch.world_size for launch in launches}):
        yield world_size, [launch for launch in launches if launch.world_size == world_size]


def _check_ladder(campaign: Campaign, site: Site, resources: Share) -> None:
    if site.gpu_types and campaign.jobs.chain > 1:
        raise ValueError(
            "chain may continue a launch on another of gpu_types; set chain = 1, or replace "
            "gpu_types by a constraint with one type"
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
        raise ValueError(
            f"{folder}: not an absolute path; give one, because jobs start in another folder"
        )
    barred = UNSAFE | (frozenset(":,") if site.container else frozenset())
    unsafe = sorted(barred & set(str(folder)))
    if unsafe or not str(folder).isprintable():
        what = f"{unsafe[0]!r}" if unsafe else "a control character"
        raise ValueError(
            f"{str(folder)!r} contains {what}, which has a special meaning to sbatch or Apptainer; "
            "give --to another folder"
        )
