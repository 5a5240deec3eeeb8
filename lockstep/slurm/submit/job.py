"""The jobs of a campaign at a site: those that measure, and the user's stages before and after.

The templates hold no arithmetic: every number and every option is in a `JobSpec`.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
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
    share,
    time_limit_s,
)

# Time limits of jobs that do not measure, which usually take minutes.
PREFLIGHT_S = 900
COLLECT_S = 1800
COLLECT_CPUS = 4  # of the collecting job in `collect_partition`


def settle(campaign: Campaign, site: Site) -> Campaign:
    """Return the campaign with the device and the threads that every launch will use."""
    resources = share(campaign, site)
    # With the device set, a node without a GPU driver fails instead of measuring on its CPUs.
    device = "cuda" if resources.is_gpu else campaign.device
    threads = campaign.threads_per_rank or resources.cpus_per_task
    return campaign.model_copy(update={"device": device, "threads_per_rank": threads})


def launches_of(campaign: Campaign) -> list[Launch]:
    """Return the launches as the jobs make them: in an array, each launch has one case."""
    return plan(campaign, by_case=campaign.jobs.allocation == "array")


def jobs(
    campaign: Campaign,
    site: Site,
    folder: Path,
    launches: Sequence[Launch] | None = None,
    done: Collection[str] = (),
) -> list[JobSpec]:
    """Return the jobs of a campaign, each after the jobs that it waits for.

    Without `launches`, the jobs make all launches; `done` names the stages that have succeeded.
    Raises ValueError if campaign, site and folder do not fit together.
    """
    maker = Maker(campaign, site, folder)
    wanted = launches_of(campaign) if launches is None else launches
    specs = list(maker.measuring_jobs(wanted)) if wanted else []
    if campaign.jobs.preflight and wanted:
        first = maker.preflight(max(launch.world_size for launch in wanted))
        waits = [Dependency(first.name, "afterok")]
        specs = [first, *(_add_dependencies(waits, job) for job in specs)]
    specs = [*maker.stages_before(specs, done), *maker.stages_after(specs, done)]
    if campaign.jobs.collect and specs:
        specs.append(maker.collect(specs))
    for name, count in Counter(spec.name for spec in specs).items():
        if count > 1:  # the second script would overwrite the first
            raise ValueError(f"two jobs would be called {name!r}; give the stage another name")
    return specs


def profile(campaign: Campaign, site: Site, folder: Path, profiler: Profiler) -> JobSpec:
    """Return the job that profiles a few steps of each case, outside the measured launches."""
    # While ncu replays a kernel of one rank, the others would wait for that rank for ever.
    world_sizes = (1,) if profiler == "ncu" else campaign.world_sizes
    if profiler == "torch":
        refuse_program(campaign)
    campaign = campaign.model_copy(update=FEW_STEPS | {"world_sizes": world_sizes})
    maker = Maker(campaign, site, folder)
    job = maker.make(f"{campaign.name}-{profiler}", "profile", plan(campaign))
    asked = campaign.jobs.ncu
    named = () if asked.kernels is None else (f"--kernel-name=regex:{asked.kernels}",)
    limits = (f"--launch-skip={asked.launch_skip}", f"--launch-count={asked.launch_count}")
    return replace(
        job, profiler=profiler, ncu_options=(*named, *limits) if profiler == "ncu" else ()
    )


class Maker:
    """Makes the jobs of a campaign at a site."""

    def __init__(self, campaign: Campaign, site: Site, folder: Path) -> None:
        barred = UNSAFE | (frozenset(":,") if site.container else frozenset())
        path = str(folder)
        unsafe = sorted(barred & set(path))
        if unsafe or not path.isprintable():
            character = f"{unsafe[0]!r}" if unsafe else "a control character"
            raise ValueError(
                f"the folder {path!r} contains {character}, which has a special meaning to "
                "sbatch or Apptainer; give --to another folder"
            )
        if site.gpu_types and campaign.jobs.chain > 1:
            raise ValueError(
                "with chain above 1, a launch may continue on another type of GPU; set chain = 1 "
                "in the campaign file, or replace gpu_types by a constraint in the site file"
            )
        self.campaign, self.site, self.folder = settle(campaign, site), site, folder
        self.share = share(self.campaign, site)
        # srun ignores --ntasks-per-node where the ranks do not fill their nodes evenly.
        most = self.share.ranks_per_node
        for world_size in campaign.world_sizes:
            if world_size > most and world_size % most:
                lower, upper = world_size // most * most, -(-world_size // most) * most
                raise ValueError(
                    f"world size {world_size} does not fill whole nodes of {site.name}, which "
                    f"take {most} ranks each; choose {lower} or {upper}"
                )

    def measuring_jobs(self, launches: Sequence[Launch]) -> Iterator[JobSpec]:
        if self.campaign.jobs.allocation == "array":
            yield from self._arrays(launches)
            return
        # Repeats within one job share its nodes, so they are not independent. The repeats of a
        # ladder that may end early share a job, because all of them judge a size.
        is_shared = self.campaign.jobs.share_job or self.campaign.until_efficiency is not None
        groups = [("", list(launches))]
        if not is_shared and self.campaign.repeats > 1:
            by_repeat = groupby(launches, key=lambda launch: launch.repeat)
            groups = [(f"-r{repeat}", list(group)) for repeat, group in by_repeat]
        name = self.campaign.name
        before: tuple[Dependency, ...] = ()
        for suffix, group in groups:
            specs: list[JobSpec] = []
            if self.campaign.jobs.allocation == "ladder":
                specs += self._chain(self.make(f"{name}{suffix}", "ladder", group, before))
            else:  # one job for each world size, after the job of the next smaller size
                for world_size, of_size in _group_by_size(group):
                    first = self.make(f"{name}-w{world_size}{suffix}", "job", of_size, before)
                    specs += self._chain(first)
                    before = (Dependency(specs[-1].name, "afterok"),)
            yield from specs
            # On shared nodes two repeats that run at once would slow each other down.
            before = () if self.site.is_exclusive else (Dependency(specs[-1].name, "afterany"),)

    def _chain(self, first: JobSpec) -> list[JobSpec]:
        """Return a job and its successors; each makes the launches that are still unfinished."""
        chain = [first]
        for number in range(2, self.campaign.jobs.chain + 1):
            before = chain[-1].name
            after = (Dependency(before, "afterany"), *first.after)
            job = self.make(f"{first.name}-c{number}", first.kind, first.launches, after)
            chain.append(replace(job, continues=before))
        return chain

    def _arrays(self, launches: Sequence[Launch]) -> Iterator[JobSpec]:
        """Yield the arrays of each world size, none larger than Slurm's limit."""
        before: tuple[Dependency, ...] = ()
        limit, most = self.campaign.jobs.max_running, self.site.max_array_size
        for world_size, group in _group_by_size(launches):
            chunks = [group[first : first + most] for first in range(0, len(group), most)]
            for number, chunk in enumerate(chunks, start=1):
                name = f"{self.campaign.name}-w{world_size}"
                name += f"-{number}" if len(chunks) > 1 else ""
                job = self.make(name, "array", chunk, before)
                elements = f"--array=0-{len(chunk) - 1}" + (f"%{limit}" if limit else "")
                yield replace(job, directives=(*job.directives, elements))
                # Arrays that run at once would exceed max_running.
                before = (Dependency(job.name, "afterany"),) if limit else ()

    def stages_before(self, specs: Sequence[JobSpec], done: Collection[str]) -> list[JobSpec]:
        """Return the stages before the measuring jobs, one after another, and then those jobs."""
        stages: list[JobSpec] = []
        waits: list[Dependency] = []
        for stage in self.campaign.jobs.stage if specs else ():
            # With "after" a stage runs beside the measuring jobs, so each submission needs it.
            is_needed = stage.name not in done or stage.dependency == "after"
            if stage.when == "before" and is_needed:
                stages.append(self._stage(stage, waits[-1:]))
                how: How = "afterok" if stage.dependency == "singleton" else stage.dependency
                waits.append(Dependency(stages[-1].name, how))
        return [*stages, *(_add_dependencies(waits, job) for job in specs)]

    def stages_after(self, specs: Sequence[JobSpec], done: Collection[str]) -> list[JobSpec]:
        """Return the stages after the measuring jobs.

        Without measuring jobs, only stages that have not succeeded yet. An `afterok` stage also
        waits for the stages listed before it.
        """
        continued = {job.continues for job in specs}
        ends = [job for job in specs if job.name not in continued]
        begins = [job for job in specs if not job.continues]
        stages: list[JobSpec] = []
        for stage in self.campaign.jobs.stage:
            is_needed = stage.name not in done and stage.dependency != "afternotok"
            if stage.when == "before" or not (specs or is_needed):
                continue
            how: How = "afterany" if stage.dependency == "singleton" else stage.dependency
            others = list(begins if how == "after" else ends)
            others += [job for job in stages if job.kind == "stage" and how == "afterok"]
            stages.append(self._stage(stage, [Dependency(job.name, how) for job in others]))
        return stages

    def _stage(self, stage: Stage, after: Sequence[Dependency]) -> JobSpec:
        name, tasks = f"{self.campaign.name}-{stage.name}", stage.tasks_per_node
        most_s, time_s = self.site.limit_s, parse_limit(stage.time or self.site.time)
        if stage.time and most_s and time_s > most_s:
            limit = clock(most_s)
            raise ValueError(
                f"stage {stage.name}: time {stage.time} exceeds the limit {limit} of partition "
                f"{self.site.partition}; lower time of this stage in the campaign file"
            )
        cpus = stage.cpus_per_task or max(1, self.site.cpus_per_node // tasks)
        num_cpus, num_gpus = cpus * tasks, tasks * stage.gpus
        if num_cpus > self.site.cpus_per_node or num_gpus > self.site.gpus_per_node:
            raise ValueError(
                f"stage {stage.name} needs {num_cpus} CPUs and {num_gpus} GPUs of a node, but a "
                f"node of {self.site.name} has {self.site.cpus_per_node} CPUs and "
                f"{self.site.gpus_per_node} GPUs; lower tasks_per_node or cpus_per_task of this "
                "stage in the campaign file"
            )
        kind: Kind = "fallback" if stage.dependency == "afternotok" else "stage"
        resources = Share(self.site, tasks, cpus, stage.gpus)
        job = self._job(name, kind, [stage.nodes * tasks], time_s, resources)
        if stage.dependency == "singleton":
            after = [*after, Dependency(name, "singleton")]
        # Tasks of a stage are not ranks and need no store: the script counts them as one rank.
        shapes = {1: job.shapes[stage.nodes * tasks]}
        return replace(job, after=tuple(after), shapes=shapes, stage=stage)

    def preflight(self, world_size: int) -> JobSpec:
        """Return the job that checks that all nodes answer and all ranks can communicate."""
        campaign, floor = self.campaign, self.campaign.jobs.min_all_reduce_gb_per_s
        options = ["-m", "collective or weak", "--size=smoke", "--benchmark-disable"]
        options.append(f"--threads-per-rank={campaign.threads_per_rank}")
        options += [f"--device={campaign.device}"] if campaign.device else []
        screen: list[str] = []
        if campaign.jobs.screen and world_size > 1:  # one rank can be compared with no other
            screen.append(f"--device={campaign.device or 'cpu'}")
            screen += [] if floor is None else [f"--floor-gb-per-s={floor:g}"]
        time_s = min(PREFLIGHT_S, self.site.time_s)
        job = self._job(f"{campaign.name}-preflight", "preflight", [world_size], time_s)
        return replace(job, options=tuple(options), screen=tuple(screen))

    def collect(self, others: Sequence[JobSpec]) -> JobSpec:
        site = self.site.collecting_site()
        cpus = self.share.cpus_per_task
        cpus = min(COLLECT_CPUS, cpus) if site.collect_partition else cpus
        resources = replace(
            self.share, site=site, cpus_per_task=cpus, is_gpu=False, is_torchrun=False
        )
        time_s = min(COLLECT_S, parse_limit(site.time))
        job = self._job(f"{self.campaign.name}-collect", "collect", [1], time_s, resources)
        after = tuple(Dependency(other.name, "afterany") for other in others)
        return replace(job, tests=self.campaign.tests, after=after)

    def make(
        self, name: str, kind: Kind, launches: Sequence[Launch], after: tuple[Dependency, ...] = ()
    ) -> JobSpec:
        num_consecutive = 1 if kind == "array" else len(launches)
        time_s = time_limit_s(self.campaign, self.site, name, num_consecutive)
        world_sizes = sorted({launch.world_size for launch in launches})
        options = common_options(self.campaign)
        return replace(
            self._job(name, kind, world_sizes, time_s),
            options=(*options, f"--label=site={self.site.name}", "--resume"),
            tests=self.campaign.tests,
            launches=tuple(launches),
            after=after,
        )

    def _job(
        self, name: str, kind: Kind, sizes: Sequence[int], time_s: int, share: Share | None = None
    ) -> JobSpec:
        """Return a job with the resources for steps of these sizes, but without work."""
        resources = share or self.share
        site, largest = resources.site, max(sizes)
        resources.check_nodes(largest)
        time_s = min(time_s, site.limit_s or time_s)
        output = f"{self.folder}/jobs/{name}-{'%A_%a' if kind == 'array' else '%j'}.out"
        on_node = resources.ranks_on_node(largest)
        num_gpus = on_node if resources.is_gpu else 0
        return JobSpec(
            name=name,
            kind=kind,
            folder=str(self.folder),
            num_nodes=resources.num_nodes(largest),
            cpus_per_node=resources.cpus_per_task * on_node,
            gpus_per_node=num_gpus,
            billed_per_node=site.gpus_per_node if site.is_exclusive else num_gpus,
            time_s=time_s,
            num_threads=resources.num_threads or resources.cpus_per_task,
            directives=tuple(resources.directives(name, largest, time_s, output)),
            shapes={size: resources.shape(size) for size in sizes},
            agents={size: resources.agent(size) for size in sizes if resources.is_torchrun},
            workdir=self.campaign.command.workdir if self.campaign.command else None,
            floor=self.campaign.until_efficiency,
        )


def _add_dependencies(first: Sequence[Dependency], job: JobSpec) -> JobSpec:
    if any(dependency.how == "afterok" for dependency in job.after):
        return job  # it waits for a job that already waits for them
    return replace(job, after=(*first, *job.after))


def _group_by_size(launches: Sequence[Launch]) -> Iterator[tuple[int, list[Launch]]]:
    for world_size in sorted({launch.world_size for launch in launches}):
        yield world_size, [launch for launch in launches if launch.world_size == world_size]
