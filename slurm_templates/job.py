"""Jobs: what a campaign asks of a site, computed here before `script` renders it.

The templates hold no arithmetic: every number and every option stands in a `JobSpec`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bench.campaign import Campaign, Launch, common_options, plan, seconds
from slurm_templates.site import Site

Kind = Literal["ladder", "job", "array", "preflight", "profile", "collect"]
Profiler = Literal["nsys", "ncu"]
# What a job beside the measuring ones may take; they take minutes where nothing is wrong.
PREFLIGHT_S = 900
COLLECT_S = 1800
WARNING_S = 120
# A profile is a window of a few steps: a whole run's would be gigabytes that nobody reads.
PROFILED = {"rounds": 2, "warmup_rounds": 2, "steps_per_round": 3}
# In a quoted value of a directive sbatch reads these its own way, or as a file name's pattern.
UNSAFE = frozenset("\"'`\\$#%")


@dataclass(frozen=True)
class Dependency:
    """What a job waits for.

    Attributes:
        job: Name of the other job.
        how: Whether that must have succeeded (`afterok`) or only ended (`afterany`).
    """

    job: str
    how: Literal["afterok", "afterany"]


@dataclass(frozen=True)
class JobSpec:
    """One batch job, or one array of them.

    Attributes:
        name: Name of the job and its script.
        kind: Which template renders it.
        folder: The campaign's folder, absolute.
        num_nodes: Nodes of the allocation, of each element's where it is an array.
        gpus_per_node: GPUs asked for on each of them.
        billed_per_node: GPUs that Slurm allocates on each of them, and accounts for.
        time_s: Its time limit.
        cpus_per_task: CPUs of a rank, equal at every world size.
        directives: What sbatch is told, one option each.
        shapes: World size -> what srun is told about nodes, ranks and GPUs.
        options: What pytest is told in every launch.
        launches: The launches in the order they are made; an array's element K makes the K-th.
        after: The jobs that it waits for.
        profiler: What each rank runs under, if anything.
    """

    name: str
    kind: Kind
    folder: str
    num_nodes: int
    gpus_per_node: int
    billed_per_node: int
    time_s: int
    cpus_per_task: int
    directives: tuple[str, ...]
    shapes: dict[int, tuple[str, ...]]
    options: tuple[str, ...]
    launches: tuple[Launch, ...] = ()
    after: tuple[Dependency, ...] = ()
    profiler: Profiler | None = None

    @property
    def num_ranks(self) -> int:
        """Ranks of the largest step."""
        return max(self.shapes)

    @property
    def num_elements(self) -> int:
        """Elements of the array; 1 for any other job."""
        return len(self.launches) if self.kind == "array" else 1

    @property
    def node_hours(self) -> float:
        """Node-hours if every element takes all of its time."""
        return self.num_elements * self.num_nodes * self.time_s / 3600

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that Slurm accounts for if every element takes all of its time."""
        return self.billed_per_node * self.node_hours

    @property
    def script(self) -> Path:
        """Where its script stands."""
        return Path(self.folder, "jobs", f"{self.name}.sh")


@dataclass(frozen=True)
class Share:
    """What one rank gets of a node."""

    ranks_per_node: int
    cpus_per_task: int
    is_gpu: bool

    def num_nodes(self, world_size: int) -> int:
        """Return the nodes of a world size."""
        return -(-world_size // self.ranks_per_node)

    def on_node(self, world_size: int) -> int:
        """Return the ranks on each of its nodes."""
        return min(world_size, self.ranks_per_node)

    def without_gpu(self) -> "Share":
        """Return the share of what computes nothing."""
        return replace(self, is_gpu=False)


def share(campaign: Campaign, site: Site) -> Share:
    """Return what one rank gets, the same at every world size.

    Raises:
        ValueError: The site has no GPUs, or too few CPUs, for what the campaign asks.
    """
    if campaign.device == "cuda" and not site.gpus_per_node:
        raise ValueError(
            f'device = "cuda", but site {site.name} has gpus_per_node = 0; set one of them'
        )
    is_gpu = site.gpus_per_node > 0 and campaign.device != "cpu"
    most = site.gpus_per_node if is_gpu else site.cpus_per_node
    ranks = min(most, site.max_ranks_per_node or most)
    cpus = site.cpus_per_node // ranks
    threads = campaign.threads_per_rank or 1
    if cpus < threads:
        raise ValueError(
            f"{ranks} ranks of {threads} threads do not fit on the {site.cpus_per_node} CPUs of a "
            f"node of {site.name}; lower threads_per_rank or max_ranks_per_node"
        )
    return Share(ranks, cpus, is_gpu)


def settle(campaign: Campaign, site: Site) -> Campaign:
    """Return the campaign with the device and the threads that every launch will use."""
    own = share(campaign, site)
    # A driver that a node lacks is then an error, never a measurement of its CPUs.
    device = "cuda" if own.is_gpu else campaign.device
    threads = campaign.threads_per_rank or own.cpus_per_task
    return campaign.model_copy(update={"device": device, "threads_per_rank": threads})


def launches_of(campaign: Campaign) -> list[Launch]:
    """Return the launches as the campaign's jobs cut them: an array's are of one case each."""
    return plan(campaign, by_case=campaign.jobs.allocation == "array")


def jobs(
    campaign: Campaign, site: Site, folder: Path, launches: Sequence[Launch] | None = None
) -> list[JobSpec]:
    """Return the jobs of a campaign, each after those that it waits for.

    Args:
        campaign: What to measure.
        site: Where.
        folder: The campaign's folder of results, absolute.
        launches: Which launches to make; all by default.

    Raises:
        ValueError: Campaign and site do not fit, or the folder's name cannot be given to sbatch.
    """
    maker = Maker.of(campaign, site, folder)
    wanted = launches_of(campaign) if launches is None else launches
    if not wanted:
        return []
    found = list(maker.measuring(wanted))
    if campaign.jobs.preflight:
        first = maker.preflight(max(launch.world_size for launch in wanted))
        found = [first, *(_behind(first, job) for job in found)]
    if campaign.jobs.collect:
        found.append(maker.collect(found))
    return found


def _behind(first: JobSpec, job: JobSpec) -> JobSpec:
    """Return a job that never begins where the first one fails."""
    if any(one.how == "afterok" for one in job.after):
        return job  # the one before it does not begin then
    return replace(job, after=(Dependency(first.name, "afterok"), *job.after))


def profile(campaign: Campaign, site: Site, folder: Path, profiler: Profiler) -> JobSpec:
    """Return the job that profiles a few steps of each case, apart from what is measured.

    Raises:
        ValueError: Campaign and site do not fit, or the folder's name cannot be given to sbatch.
    """
    # While ncu replays a kernel of one rank the others would wait for it for ever.
    world_sizes = (1,) if profiler == "ncu" else campaign.world_sizes
    changes = PROFILED | {"world_sizes": world_sizes, "repeats": 1}
    campaign = campaign.model_copy(update=changes)
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
        own = share(campaign, site)
        _check_ladder(campaign, site, own)
        return cls(campaign, site, folder, own)

    def measuring(self, launches: Sequence[Launch]) -> Iterator[JobSpec]:
        """Yield the jobs that measure, as the campaign cuts them."""
        name, kind = self.campaign.name, self.campaign.jobs.allocation
        if kind == "ladder":
            yield self.make(name, kind, launches)
            return
        smaller: tuple[Dependency, ...] = ()
        limited = self.campaign.jobs.max_running is not None
        for world_size in sorted({launch.world_size for launch in launches}):
            group = [one for one in launches if one.world_size == world_size]
            if kind == "array":
                for job in self._arrays(f"{name}-w{world_size}", group):
                    yield replace(job, after=smaller)
                    # At once they would run more elements than the campaign lets run.
                    smaller = (Dependency(job.name, "afterany"),) if limited else ()
                continue
            yield self.make(f"{name}-w{world_size}", kind, group, smaller)
            smaller = (Dependency(f"{name}-w{world_size}", "afterok"),)

    def _arrays(self, name: str, launches: Sequence[Launch]) -> Iterator[JobSpec]:
        """Yield as many arrays as Slurm's limit of one makes of them."""
        most = self.site.max_array_size
        chunks = [launches[first : first + most] for first in range(0, len(launches), most)]
        for number, chunk in enumerate(chunks, start=1):
            own = name if len(chunks) == 1 else f"{name}-{number}"
            yield self.make(own, "array", chunk)

    def preflight(self, world_size: int) -> JobSpec:
        """Return the job that shows that nodes answer and ranks meet, at the largest shape."""
        own = [f"--threads-per-rank={self.campaign.threads_per_rank}"]
        own += [f"--device={self.campaign.device}"] if self.campaign.device else []
        job = self._job(
            f"{self.campaign.name}-preflight", "preflight", [world_size], self._short(PREFLIGHT_S)
        )
        options = ("-m", "collective or weak", "--size=smoke", "--benchmark-disable", *own)
        return replace(job, options=options)

    def collect(self, others: Sequence[JobSpec]) -> JobSpec:
        """Return the job that collects and reports once the others have ended."""
        after = tuple(Dependency(job.name, "afterany") for job in others)
        name = f"{self.campaign.name}-collect"
        job = self._job(name, "collect", [1], self._short(COLLECT_S), self.share.without_gpu())
        return replace(job, options=(), after=after)

    def _short(self, time_s: int) -> int:
        """Return the time of a job that needs little, where the site's jobs are shorter still."""
        return min(time_s, seconds(self.site.time))

    def make(
        self,
        name: str,
        kind: Kind,
        launches: Sequence[Launch],
        after: tuple[Dependency, ...] = (),
    ) -> JobSpec:
        """Return a job that makes launches."""
        one_after_another = 1 if kind == "array" else len(launches)
        time_s = _time_s(self.campaign, self.site, name, one_after_another)
        world_sizes = sorted({launch.world_size for launch in launches})
        job = self._job(name, kind, world_sizes, time_s)
        if kind == "array":
            limit = self.campaign.jobs.max_running
            elements = f"0-{len(launches) - 1}" + (f"%{limit}" if limit else "")
            job = replace(job, directives=(*job.directives, f"--array={elements}"))
        return replace(job, launches=tuple(launches), after=after)

    def _job(
        self,
        name: str,
        kind: Kind,
        world_sizes: Sequence[int],
        time_s: int,
        own: Share | None = None,
    ) -> JobSpec:
        own = own or self.share
        largest = max(world_sizes)
        _check_nodes(own, self.site, largest)
        time_s = min(time_s, _limit_s(self.site) or time_s)
        number = "%A_%a" if kind == "array" else "%j"
        output = f"{self.folder}/jobs/slurm-{number}.out"
        asked = own.on_node(largest) if own.is_gpu else 0
        return JobSpec(
            name=name,
            kind=kind,
            folder=str(self.folder),
            num_nodes=own.num_nodes(largest),
            gpus_per_node=asked,
            billed_per_node=self.site.gpus_per_node if self.site.is_exclusive else asked,
            time_s=time_s,
            cpus_per_task=own.cpus_per_task,
            directives=tuple(_directives(self.site, own, name, largest, time_s, output)),
            shapes={size: _shape(self.site, own, size) for size in world_sizes},
            options=tuple(_options(self.campaign, self.site)),
        )


def _check_ladder(campaign: Campaign, site: Site, own: Share) -> None:
    # srun ignores --ntasks-per-node where the ranks do not fill their nodes evenly.
    on_node = own.ranks_per_node
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
    found = sorted(barred & set(str(folder)))
    if found or not str(folder).isprintable():
        what = f"{found[0]!r}" if found else "a control character"
        raise ValueError(
            f"{str(folder)!r} holds {what}, which sbatch or Apptainer would read its own way; "
            "give --to another folder"
        )


def _check_nodes(own: Share, site: Site, world_size: int) -> None:
    num_nodes, most = own.num_nodes(world_size), site.limits.max_nodes
    if most is not None and num_nodes > most:
        raise ValueError(
            f"world size {world_size} needs {num_nodes} nodes, but partition {site.partition} of "
            f"site {site.name} gives {most}, for up to {most * own.ranks_per_node} ranks; leave "
            "the world size out, or choose another --partition"
        )


def _limit_s(site: Site) -> int | None:
    return seconds(site.limits.time) if site.limits.time else None


def _time_s(campaign: Campaign, site: Site, name: str, num_launches: int) -> int:
    """Return the time limit of a job that makes so many launches one after another."""
    limit_s = _limit_s(site)
    asked = campaign.jobs
    if asked.launch_time is None and asked.time is None:
        return min(seconds(site.time), limit_s or seconds(site.time))
    each_s = seconds(str(asked.launch_time or asked.time))
    needed_s = each_s * num_launches if asked.launch_time else each_s
    if limit_s is not None and needed_s > limit_s:
        raise ValueError(
            f"job {name} needs {clock(needed_s)}, over the {clock(limit_s)} of partition "
            f"{site.partition}; {_how_to_cut(campaign, num_launches, limit_s)}"
        )
    return needed_s


def _how_to_cut(campaign: Campaign, num_launches: int, limit_s: int) -> str:
    if campaign.jobs.launch_time is None:
        return f"lower [jobs] time to {clock(limit_s)}, or choose another --partition"
    fitting = limit_s // seconds(campaign.jobs.launch_time)
    if num_launches == 1 or not fitting:
        return "lower [jobs] launch_time, or choose another --partition"
    finer = {"ladder": '"job" or "array"', "job": '"array"'}.get(campaign.jobs.allocation)
    return (
        f"{fitting} of its {num_launches} launches fit: lower repeats or launch_time, or set "
        f"[jobs] allocation to {finer}"
    )


def clock(duration_s: int) -> str:
    """Return a time as Slurm writes a limit, `[days-]HH:MM:SS`."""
    minutes, rest = divmod(duration_s, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    prefix = f"{days}-" if days else ""
    return f"{prefix}{hours:02}:{minutes:02}:{rest:02}"


def _directives(
    site: Site, own: Share, name: str, largest: int, time_s: int, output: str
) -> Iterable[str]:
    on_node = own.on_node(largest)
    # Of a short job the warning may take only a part.
    warning_s = min(WARNING_S, time_s // 4)
    chosen = {
        "job-name": name,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "reservation": site.reservation,
        "nodes": own.num_nodes(largest),
        "ntasks-per-node": on_node,
        "cpus-per-task": own.cpus_per_task,
        "gpus-per-node": _gpus(site, on_node) if own.is_gpu else None,
        "mem": site.mem,
        "time": clock(time_s),
        "signal": f"B:USR1@{warning_s}",
        "open-mode": "append",
        "output": output,
    }
    for option, value in chosen.items():
        if value is not None:
            yield directive(option, str(value))
    yield "--no-requeue"
    yield from site.extra_directives


def directive(option: str, value: str) -> str:
    """Return one option as sbatch reads it from a script.

    Raises:
        ValueError: The value could end the line or its quotes.
    """
    if not value.isprintable() or (UNSAFE - {"%"}) & set(value):
        raise ValueError(
            f"{option} = {value!r}: a quote, backslash, $, # or control character is not allowed "
            "in a value for sbatch; leave it out"
        )
    return f'--{option}="{value}"' if " " in value else f"--{option}={value}"


def _gpus(site: Site, num: int) -> str:
    return f"{site.gpu_type}:{num}" if site.gpu_type else str(num)


def _shape(site: Site, own: Share, world_size: int) -> tuple[str, ...]:
    on_node = own.on_node(world_size)
    shape = (
        f"--nodes={own.num_nodes(world_size)}",
        f"--ntasks={world_size}",
        f"--ntasks-per-node={on_node}",
    )
    # A rank must see all GPUs of its node, or NCCL silently loses its fast paths.
    # (--gpu-bind=none is no way to say so: Slurm 22.05 then showed the ranks none at all.)
    return (*shape, f"--gpus-per-node={_gpus(site, on_node)}") if own.is_gpu else shape


def _options(campaign: Campaign, site: Site) -> Iterable[str]:
    yield from common_options(campaign)
    yield f"--label=site={site.name}"
    yield "--resume"
