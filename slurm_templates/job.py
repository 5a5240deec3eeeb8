"""Jobs: what a campaign asks of a site, computed here and rendered into batch scripts.

The templates hold no arithmetic: every number and every option stands in a `JobSpec`.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.campaign import Campaign, Launch, common_options, own_options, plan, seconds
from slurm_templates.site import Site

Mode = Literal["ladder", "job"]
IMAGE_SUITE = "/opt/lockstep"
WARNING_S = 120
# In a quoted value of a directive sbatch reads these its own way, or as a file name's pattern.
UNSAFE = frozenset("\"'`\\$#%")


@dataclass(frozen=True)
class Step:
    """One launch as a step of a job.

    Attributes:
        name: The launch's name.
        world_size: Its ranks.
        shape: What srun is told about nodes, ranks and GPUs.
        options: What pytest is told.
    """

    name: str
    world_size: int
    shape: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class JobSpec:
    """One batch job.

    Attributes:
        name: Name of the job and its script.
        mode: Which template renders it.
        folder: The campaign's folder, absolute.
        num_nodes: Nodes of the allocation.
        gpus_per_node: GPUs asked for on each of them.
        time_s: Its time limit.
        cpus_per_task: CPUs of a rank, equal at every world size.
        directives: What sbatch is told, one option each.
        steps: The launches in the order they are made.
    """

    name: str
    mode: Mode
    folder: str
    num_nodes: int
    gpus_per_node: int
    time_s: int
    cpus_per_task: int
    directives: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the largest step."""
        return max(step.world_size for step in self.steps)

    @property
    def node_hours(self) -> float:
        """Node-hours if the job takes all of its time."""
        return self.num_nodes * self.time_s / 3600

    @property
    def gpu_hours(self) -> float:
        """GPU-hours if the job takes all of its time."""
        return self.gpus_per_node * self.node_hours


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


def jobs(
    campaign: Campaign,
    site: Site,
    folder: Path,
    mode: Mode = "ladder",
    launches: Sequence[Launch] | None = None,
) -> list[JobSpec]:
    """Return the jobs of a campaign.

    Args:
        campaign: What to measure.
        site: Where.
        folder: The campaign's folder of results, absolute.
        mode: One allocation for the whole ladder, or one job per world size.
        launches: Which launches to make; all by default.

    Raises:
        ValueError: Campaign and site do not fit, or the folder's name cannot be given to sbatch.
    """
    _check_folder(folder, site)
    campaign = settle(campaign, site)
    _check_ladder(campaign, site)
    wanted = plan(campaign) if launches is None else launches
    if not wanted:
        return []
    if mode == "ladder":
        return [_job(campaign, site, folder, mode, wanted)]
    sizes = sorted({launch.world_size for launch in wanted})
    groups = [[one for one in wanted if one.world_size == size] for size in sizes]
    return [_job(campaign, site, folder, mode, group) for group in groups]


def _check_ladder(campaign: Campaign, site: Site) -> None:
    # srun ignores --ntasks-per-node where the ranks do not fill their nodes evenly.
    on_node = share(campaign, site).ranks_per_node
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


def _job(
    campaign: Campaign, site: Site, folder: Path, mode: Mode, launches: Sequence[Launch]
) -> JobSpec:
    own = share(campaign, site)
    largest = max(launch.world_size for launch in launches)
    name = campaign.name if mode == "ladder" else f"{campaign.name}-w{largest}"
    return JobSpec(
        name=name,
        mode=mode,
        folder=str(folder),
        num_nodes=own.num_nodes(largest),
        gpus_per_node=own.on_node(largest) if own.is_gpu else 0,
        time_s=seconds(site.time),
        cpus_per_task=own.cpus_per_task,
        directives=tuple(_directives(site, own, folder, name, largest)),
        steps=tuple(_step(campaign, site, own, folder, launch) for launch in launches),
    )


def _directives(site: Site, own: Share, folder: Path, name: str, largest: int) -> Iterable[str]:
    on_node = own.on_node(largest)
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
        "time": site.time,
        "signal": f"B:USR1@{WARNING_S}",
        "open-mode": "append",
        "output": f"{folder}/jobs/slurm-%j.out",
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


def _step(campaign: Campaign, site: Site, own: Share, folder: Path, launch: Launch) -> Step:
    on_node = own.on_node(launch.world_size)
    shape = [
        f"--nodes={own.num_nodes(launch.world_size)}",
        f"--ntasks={launch.world_size}",
        f"--ntasks-per-node={on_node}",
    ]
    if own.is_gpu:
        # A rank must see all GPUs of its node, or NCCL silently loses its fast paths.
        # (--gpu-bind=none is no way to say so: Slurm 22.05 then showed the ranks none at all.)
        shape.append(f"--gpus-per-node={_gpus(site, on_node)}")
    options = tuple(_options(campaign, site, folder, launch))
    return Step(launch.name, launch.world_size, tuple(shape), options)


def _options(campaign: Campaign, site: Site, folder: Path, launch: Launch) -> Iterable[str]:
    yield from common_options(campaign)
    yield f"--label=site={site.name}"
    yield from own_options(launch)
    if site.scratch is not None:
        yield f"--data-root={site.scratch}"
    yield f"--journal={folder}/launches/{launch.name}/journal.jsonl"
    yield "--resume"


def suite(site: Site) -> str:
    """Return where the suite is, as the ranks see it."""
    return site.suite or IMAGE_SUITE


def container_command(site: Site, folder: str, *, is_gpu: bool) -> tuple[str, ...]:
    """Return the start of a rank's command line; empty where ranks run outside an image."""
    if site.container is None:
        return ()
    own = [folder, *filter(None, [site.suite, site.scratch])]
    binds = [f"--bind={path}" for path in [*own, *site.container.binds]]
    flags = ["--cleanenv", *(["--nv"] if is_gpu else [])]
    return ("apptainer", "exec", *flags, *binds, *site.container.args, site.container.image)


def environment() -> Environment:
    """Return the templates' environment: nothing undefined, every value quoted by a filter."""
    folder = Path(str(resources.files("slurm_templates") / "templates"))
    made = Environment(  # noqa: S701, shell scripts, in which HTML's escapes would be wrong
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["sh"] = lambda value: shlex.quote(str(value))
    made.filters["words"] = shlex.join
    return made


def render(job: JobSpec, site: Site) -> str:
    """Return the batch script of a job."""
    values: dict[str, Any] = {
        "job": job,
        "site": site,
        "suite": suite(site),
        "command": container_command(site, job.folder, is_gpu=job.gpus_per_node > 0),
    }
    return environment().get_template(f"{job.mode}.sh.j2").render(values)
