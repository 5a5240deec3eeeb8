"""One job as it is rendered and submitted, with every number and option.

What one rank gets of a node, and the options of sbatch and srun that say so.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from lockstep.campaign.campaign import Campaign, Launch, Stage
from lockstep.core.formats import clock, parse_limit
from lockstep.slurm.site import Site

# A fallback is a stage that begins where a job has failed, and is cancelled where none has.
Kind = Literal[
    "ladder", "job", "array", "preflight", "profile", "collect", "stage", "fallback",
]  # fmt: skip
Profiler = Literal["nsys", "ncu", "torch"]
How = Literal["afterok", "afternotok", "afterany", "after", "singleton"]


class Dependency(NamedTuple):
    """What a job waits for.

    Attributes:
        job: Name of the other job; with `singleton` its own.
        how: Whether that must have succeeded (`afterok`), failed (`afternotok`, one of several),
            only ended (`afterany`) or only begun (`after`), or no earlier job of its name may be
            there (`singleton`).
    """

    job: str
    how: How


@dataclass(frozen=True)
class JobSpec:
    """One batch job, or one array of them.

    Attributes:
        kind: Which template renders it.
        folder: The campaign's folder, absolute.
        num_nodes: Nodes of the allocation, of each element's where it is an array.
        billed_per_node: GPUs that Slurm allocates on each of them, and accounts for.
        cpus_per_task: CPUs of a rank, equal at every world size.
        num_threads: Threads of a rank, for OpenMP and the libraries of linear algebra.
        shapes: World size -> srun's options for nodes, tasks, CPUs and GPUs.
        agents: World size -> torchrun's options for nodes and ranks; empty where each task of srun
            is a rank.
        tests: What pytest measures, absolute; nothing for the suite's own.
        launches: The launches in the order they are made; an array's element K makes the K-th.
        profiler: What each rank runs under, if anything.
        workdir: Where a program runs, absolute; None where pytest measures.
        floor: Least efficiency of a world size for a larger one to be begun; None for any.
        continues: The job of whose launches it makes what that left; None for the first of them.
        screen: Options of the screening that a preflight ends with; empty without one.
    """

    name: str
    kind: Kind
    folder: str
    num_nodes: int
    cpus_per_node: int
    gpus_per_node: int
    billed_per_node: int
    time_s: int
    cpus_per_task: int
    num_threads: int
    directives: tuple[str, ...]
    shapes: dict[int, tuple[str, ...]]
    options: tuple[str, ...]
    agents: dict[int, tuple[str, ...]] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    after: tuple[Dependency, ...] = ()
    profiler: Profiler | None = None
    tests: tuple[str, ...] = ()
    workdir: str | None = None
    floor: float | None = None
    continues: str | None = None
    stage: Stage | None = None
    screen: tuple[str, ...] = ()

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
        """The file of its script."""
        return Path(self.folder, "jobs", f"{self.name}.sh")


KEEP_GOING = "--kill-on-invalid-dep=yes"  # or what waits for a failed job waits for ever
SENDING = """#!/bin/bash
# Sends the jobs of this folder, each after those that it waits for.
set -euo pipefail
declare -A id
send() { # send JOB SCRIPT OPTION...
    local said
    said=$(sbatch --parsable "${@:3}" "$2")
    id[$1]=${said%%;*} # a cluster's name may follow it
    echo "$1: job ${id[$1]}"
}
"""


def wait_options(after: Iterable[tuple[str, str]], ids: Mapping[str, str]) -> list[str]:
    """Return sbatch's options about the jobs, as (job, how), that a job waits for."""
    waits: dict[str, list[str]] = {}
    for job, how in after:
        waits.setdefault(how, []).extend([] if how == "singleton" else [ids[job]])
    if not waits:
        return []
    if failed := waits.get("afternotok"):  # one of them: `:` would mean all, and , is no or
        conditions = "?".join(f"afternotok:{job_id}" for job_id in failed)
    else:
        conditions = ",".join(":".join([how, *others]) for how, others in waits.items())
    return [f"--dependency={conditions}", KEEP_GOING]


def sending_command(script: Path, after: Sequence[tuple[str, str]]) -> str:
    """Return how a script is sent by hand, with `<id of NAME>` for ids that are not known yet."""
    ids = {job: f"<id of {job}>" for job, _ in after}
    return " ".join(["sbatch", *wait_options(after, ids), shlex.quote(str(script))])


def sending_script(jobs: Iterable[tuple[str, Path, Sequence[tuple[str, str]]]]) -> str:
    """Return a script that sends jobs, each as (job, script, its waits), in their order."""
    ids: dict[str, str] = {}
    lines = []
    for job, script, after in jobs:
        ids[job] = f"${{id[{job}]}}"
        options = "".join(f' "{option}"' for option in wait_options(after, ids))
        lines.append(f"send {job} {shlex.quote(str(script))}{options}")
    return SENDING + "\n".join(lines) + "\n"


WARNING_S = 120
# In a quoted value of a directive sbatch reads these its own way, or as a file name's pattern.
UNSAFE = frozenset("\"'`\\$#%")


@dataclass(frozen=True)
class Share:
    """What one rank gets of a node."""

    ranks_per_node: int
    cpus_per_task: int
    is_gpu: bool
    num_threads: int | None = None  # as many as it has CPUs, by default
    is_torchrun: bool = False  # then a node's one task starts its ranks

    def num_nodes(self, world_size: int) -> int:
        """Return the nodes of a world size."""
        return -(-world_size // self.ranks_per_node)

    def on_node(self, world_size: int) -> int:
        """Return the ranks on each of its nodes."""
        return min(world_size, self.ranks_per_node)

    def of_task(self, world_size: int) -> int:
        """Return the ranks of one task of srun."""
        return self.on_node(world_size) if self.is_torchrun else 1


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
    threads = campaign.threads_per_rank or 1
    ranks = min(most, site.max_ranks_per_node or most)
    # A program is laddered over threads, so that a rank may take a whole node.
    if campaign.command and threads <= site.cpus_per_node:
        ranks = min(ranks, site.cpus_per_node // threads)
    cpus = site.cpus_per_node // ranks
    if cpus < threads:
        raise ValueError(
            f"{ranks} ranks of {threads} threads need more than the {site.cpus_per_node} CPUs of a "
            f"node of {site.name}; lower threads_per_rank or max_ranks_per_node"
        )
    # torchrun starts what imports torch.distributed; a program has a launcher of its own.
    is_torchrun = site.launcher == "torchrun" and campaign.command is None
    return Share(ranks, cpus, is_gpu, campaign.threads_per_rank, is_torchrun)


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
            f"job {name} needs {clock(needed_s)}, more than the limit {clock(most_s)} of partition "
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
    fewer = "remove share_job" if campaign.jobs.share_job else "lower launch_time"
    return (
        f"only {fitting} of its {num_launches} launches fit: {fewer}, or set [jobs] allocation to "
        f"{finer}"
    )


def check_nodes(resources: Share, site: Site, world_size: int) -> None:
    """Refuse a world size that the partition has too few nodes for.

    Raises:
        ValueError: It has.
    """
    num_nodes, most = resources.num_nodes(world_size), site.limits.max_nodes
    if most is not None and num_nodes > most:
        num_ranks = most * resources.ranks_per_node
        raise ValueError(
            f"world size {world_size} needs {num_nodes} nodes, but partition {site.partition} of "
            f"site {site.name} gives a job {most} nodes, for up to {num_ranks} ranks; leave out "
            "the world size, or choose another --partition"
        )


def directives(
    site: Site, resources: Share, name: str, largest: int, time_s: int, output: str
) -> Iterable[str]:
    """Yield sbatch's options for a job."""
    on_node, of_task = resources.on_node(largest), resources.of_task(largest)
    # Of a short job the warning may take only a part.
    warning_s = min(WARNING_S, time_s // 4)
    chosen = {
        "job-name": name,
        "clusters": site.cluster,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.features,
        "reservation": site.reservation,
        "nodes": resources.num_nodes(largest),
        "ntasks-per-node": on_node // of_task,
        "cpus-per-task": resources.cpus_per_task * of_task,
        **(gpus_on_node(site, on_node) if resources.is_gpu else {}),
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
    yield from site.directives


def directive(option: str, value: str) -> str:
    """Return one option as sbatch reads it from a script.

    Raises:
        ValueError: The value could end the line or its quotes.
    """
    if not value.isprintable() or (UNSAFE - {"%"}) & set(value):
        raise ValueError(
            f"{option} = {value!r} contains a quote, backslash, $, # or control character, which a "
            "value for sbatch must not have; remove it"
        )
    return f'--{option}="{value}"' if " " in value else f"--{option}={value}"


def gpus_on_node(site: Site, num: int) -> dict[str, str]:
    """Return the option, of sbatch and srun, that asks for so many GPUs on each node."""
    typed = f"{site.gpu_type}:{num}" if site.gpu_type else str(num)
    return {site.gpu_request: f"gpu:{typed}" if site.gpu_request == "gres" else typed}


def shape(site: Site, resources: Share, world_size: int) -> tuple[str, ...]:
    """Return srun's options for the nodes, tasks, CPUs and GPUs of a world size."""
    on_node, of_task = resources.on_node(world_size), resources.of_task(world_size)
    options = (
        f"--nodes={resources.num_nodes(world_size)}",
        f"--ntasks={world_size // of_task}",
        f"--ntasks-per-node={on_node // of_task}",
        f"--cpus-per-task={resources.cpus_per_task * of_task}",
    )
    # A rank must see all GPUs of its node, or NCCL silently loses its fast paths.
    # (--gpu-bind=none is no way to say so: Slurm 22.05 then showed the ranks none at all.)
    if not resources.is_gpu:
        return options
    return (*options, *(f"--{name}={value}" for name, value in gpus_on_node(site, on_node).items()))


def agent(resources: Share, world_size: int) -> tuple[str, ...]:
    """Return torchrun's options for the nodes and ranks of a world size; empty without it."""
    if not resources.is_torchrun:
        return ()
    nodes, on_node = resources.num_nodes(world_size), resources.on_node(world_size)
    return (f"--nnodes={nodes}", f"--nproc-per-node={on_node}")
