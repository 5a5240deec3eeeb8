"""One job as it is rendered and submitted, and each rank's share of a node."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from lockstep.campaign.campaign import Campaign, Launch, Stage
from lockstep.core.formats import clock, parse_limit
from lockstep.slurm.site import Site

# A fallback is a stage that starts only if a job fails; otherwise Slurm cancels it.
Kind = Literal[
    "ladder", "job", "array", "preflight", "profile", "collect", "stage", "fallback",
]  # fmt: skip
Profiler = Literal["nsys", "ncu", "perf", "torch"]
# A dependency waits until the job has succeeded, failed (one of several is enough), ended or begun;
# `singleton` waits until no earlier job has the same name.
How = Literal["afterok", "afternotok", "afterany", "after", "singleton"]


class Dependency(NamedTuple):
    """A job that another job waits for."""

    job: str  # its name; with `singleton`, the name of the waiting job itself
    how: How


@dataclass(frozen=True)
class JobSpec:
    """One batch job, or one array of jobs."""

    name: str
    kind: Kind
    folder: str  # the campaign's, absolute
    num_nodes: int  # of the allocation; for an array, of each element
    cpus_per_node: int
    gpus_per_node: int
    billed_per_node: int  # GPUs that Slurm allocates and accounts for on each node
    time_s: int
    num_threads: int  # of a rank, for OpenMP and the linear algebra libraries
    directives: tuple[str, ...]
    shapes: dict[int, tuple[str, ...]]  # world size -> srun's options for its resources
    # World size -> torchrun's options for nodes and ranks; empty if srun starts the ranks.
    agents: dict[int, tuple[str, ...]] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    launches: tuple[Launch, ...] = ()  # in this order; element K of an array makes launch K
    after: tuple[Dependency, ...] = ()
    profiler: Profiler | None = None
    ncu_options: tuple[str, ...] = ()  # which kernels ncu records
    tests: tuple[str, ...] = ()  # files that pytest measures; empty for the built-in benchmarks
    workdir: str | None = None  # folder in which a program runs; None if pytest measures
    floor: float | None = None  # below this efficiency no larger world size starts
    continues: str | None = None  # name of the job whose unfinished launches this job makes
    stage: Stage | None = None
    screen: tuple[str, ...] = ()  # options of the screening at the end of a preflight

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
        """Node-hours if the job, or every array element, uses its whole time limit."""
        return self.num_elements * self.num_nodes * self.time_s / 3600

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that Slurm accounts for if the job uses its whole time limit."""
        return self.billed_per_node * self.node_hours

    @property
    def script(self) -> Path:
        return Path(self.folder, "jobs", f"{self.name}.sh")

    def output(self, job_id: str) -> Path:
        """Return the output file of the batch script; for an array, of its first element."""
        number = f"{job_id}_0" if self.kind == "array" else job_id
        return Path(self.folder, "jobs", f"{self.name}-{number}.out")


# Without this option, a job that waits for a failed job stays in the queue for ever.
KEEP_GOING = "--kill-on-invalid-dep=yes"
SENDING = """#!/bin/bash
# Submits the jobs of this folder, each after the jobs that it waits for.
set -euo pipefail
declare -A id
send() { # send JOB SCRIPT OPTION...
    local answer
    answer=$(sbatch --parsable "${@:3}" "$2")
    id[$1]=${answer%%;*} # sbatch may print ID;CLUSTER
    echo "$1: job ${id[$1]}"
}
"""


def wait_options(after: Iterable[tuple[str, str]], ids: Mapping[str, str]) -> list[str]:
    """Return sbatch's options for the dependencies (job, how) of a job."""
    waits: dict[str, list[str]] = {}
    for job, how in after:
        waits.setdefault(how, []).extend([] if how == "singleton" else [ids[job]])
    if not waits:
        return []
    if failed := waits.get("afternotok"):  # `?` means "or"; `:` and `,` would mean "and"
        conditions = "?".join(f"afternotok:{job_id}" for job_id in failed)
    else:
        conditions = ",".join(":".join([how, *others]) for how, others in waits.items())
    return [f"--dependency={conditions}", KEEP_GOING]


def sending_command(script: Path, after: Sequence[tuple[str, str]]) -> str:
    """Return the command that submits a script by hand; unknown ids read `<id of NAME>`."""
    ids = {job: f"<id of {job}>" for job, _ in after}
    return " ".join(["sbatch", *wait_options(after, ids), shlex.quote(str(script))])


def sending_script(jobs: Iterable[JobSpec]) -> str:
    """Return a script that submits jobs in their order, each with its dependencies."""
    ids: dict[str, str] = {}
    lines = []
    for job in jobs:
        ids[job.name] = f"${{id[{job.name}]}}"
        options = "".join(f' "{option}"' for option in wait_options(job.after, ids))
        lines.append(f"send {job.name} {shlex.quote(str(job.script))}{options}\n")
    return SENDING + "".join(lines)


WARNING_S = 120
# Characters that are special to sbatch in a quoted value, or as a pattern in a file's name.
UNSAFE = frozenset("\"'`\\$#%")


def directive(option: str, value: str) -> str:
    """Return one option for a script; raise ValueError if its value could end the line."""
    if not value.isprintable() or (UNSAFE - {"%"}) & set(value):
        raise ValueError(
            f"{option} = {value!r} contains a quote, backslash, $, # or control character, which a "
            "value for sbatch must not have; remove it"
        )
    return f'--{option}="{value}"' if " " in value else f"--{option}={value}"


def gpus_on_node(site: Site, num: int) -> dict[str, str]:
    """Return the option of sbatch and srun that requests `num` GPUs on each node."""
    typed = f"{site.gpu_type}:{num}" if site.gpu_type else str(num)
    return {site.gpu_request: f"gpu:{typed}" if site.gpu_request == "gres" else typed}


@dataclass(frozen=True)
class Share:
    """One rank's share of a node of a site."""

    site: Site
    ranks_per_node: int
    cpus_per_task: int
    is_gpu: bool
    num_threads: int | None = None  # threads of a rank; None for its number of CPUs
    is_torchrun: bool = False  # srun starts one task per node, and that task torchrun

    def num_nodes(self, world_size: int) -> int:
        return -(-world_size // self.ranks_per_node)

    def ranks_on_node(self, world_size: int) -> int:
        return min(world_size, self.ranks_per_node)

    def check_nodes(self, world_size: int) -> None:
        """Raise ValueError for a world size that needs more nodes than the partition gives."""
        num_nodes, most = self.num_nodes(world_size), self.site.limits.max_nodes
        if most is not None and num_nodes > most:
            raise ValueError(
                f"world size {world_size} needs {num_nodes} nodes, but partition "
                f"{self.site.partition} of site {self.site.name} gives a job {most} nodes, for up "
                f"to {most * self.ranks_per_node} ranks; leave out the world size, or choose "
                "another --partition"
            )

    def shape(self, world_size: int) -> tuple[str, ...]:
        on_node = self.ranks_on_node(world_size)
        per_task = on_node if self.is_torchrun else 1
        options = [
            f"--nodes={self.num_nodes(world_size)}",
            f"--ntasks={world_size // per_task}",
            f"--ntasks-per-node={on_node // per_task}",
            f"--cpus-per-task={self.cpus_per_task * per_task}",
        ]
        # A rank must see all GPUs of its node, or NCCL silently loses its fast paths. (With
        # --gpu-bind=none the ranks saw no GPU at all on Slurm 22.05.)
        if self.is_gpu:
            options += [f"--{name}={num}" for name, num in gpus_on_node(self.site, on_node).items()]
        return tuple(options)

    def agent(self, world_size: int) -> tuple[str, ...]:
        nodes, on_node = self.num_nodes(world_size), self.ranks_on_node(world_size)
        return (f"--nnodes={nodes}", f"--nproc-per-node={on_node}")

    def directives(self, name: str, largest: int, time_s: int, output: str) -> Iterator[str]:
        site, on_node = self.site, self.ranks_on_node(largest)
        per_task = on_node if self.is_torchrun else 1
        chosen = {
            "job-name": name,
            "clusters": site.cluster,
            "partition": site.partition,
            "account": site.account,
            "qos": site.qos,
            "constraint": site.features,
            "reservation": site.reservation,
            "nodes": self.num_nodes(largest),
            "ntasks-per-node": on_node // per_task,
            "cpus-per-task": self.cpus_per_task * per_task,
            **(gpus_on_node(site, on_node) if self.is_gpu else {}),
            "mem": site.mem,
            "time": clock(time_s),
            # In a short job the warning comes at three quarters of the time.
            "signal": f"B:USR1@{min(WARNING_S, time_s // 4)}",
            "open-mode": "append",
            "output": output,
        }
        for option, value in chosen.items():
            if value is not None:
                yield directive(option, str(value))
        yield "--no-requeue"
        yield from site.extra_directives
        yield from site.directives


def share(campaign: Campaign, site: Site) -> Share:
    """Return each rank's share of a node; raise ValueError if a node has too few CPUs or no GPU."""
    if campaign.device == "cuda" and not site.gpus_per_node:
        raise ValueError(
            f'device is "cuda", but site {site.name} has gpus_per_node = 0; change device in '
            "the campaign file, or choose another site"
        )
    is_gpu = site.gpus_per_node > 0 and campaign.device != "cpu"
    most = site.gpus_per_node if is_gpu else site.cpus_per_node
    threads = campaign.threads_per_rank or 1
    ranks = min(most, site.max_ranks_per_node or most)
    # A ladder of a program may vary the threads, so a rank may take a whole node.
    if campaign.command and threads <= site.cpus_per_node:
        ranks = min(ranks, site.cpus_per_node // threads)
    cpus = site.cpus_per_node // ranks
    if cpus < threads:
        raise ValueError(
            f"{ranks} ranks with {threads} threads each need more than the {site.cpus_per_node} "
            f"CPUs of a node of {site.name}; lower threads_per_rank in the campaign file, or "
            "max_ranks_per_node in the site file"
        )
    # torchrun starts programs that use torch.distributed; a [command] names its own launcher.
    is_torchrun = site.launcher == "torchrun" and campaign.command is None
    return Share(site, ranks, cpus, is_gpu, campaign.threads_per_rank, is_torchrun)


def time_limit_s(campaign: Campaign, site: Site, name: str, num_launches: int) -> int:
    """Return a job's time limit; raise ValueError if its partition allows less."""
    most_s, times = site.limit_s, campaign.jobs
    if times.launch_time is None and times.time is None:
        return site.time_s
    each_s = parse_limit(str(times.launch_time or times.time))
    needed_s = each_s * num_launches if times.launch_time else each_s
    if most_s is None or needed_s <= most_s:
        return needed_s
    num_fitting, needed, limit = most_s // each_s, clock(needed_s), clock(most_s)
    if times.launch_time is None:
        remedy = (
            f"lower time in [jobs] of the campaign file to {limit}, or choose another --partition"
        )
    elif num_launches == 1 or not num_fitting:
        remedy = "lower launch_time in [jobs] of the campaign file, or choose another --partition"
    else:
        finer = {"ladder": '"job" or "array"', "job": '"array"'}[times.allocation]
        fewer = "remove share_job" if times.share_job else "lower launch_time"
        remedy = (
            f"only {num_fitting} of the job's {num_launches} launches fit; in [jobs] of the "
            f"campaign file, {fewer} or set allocation to {finer}"
        )
    raise ValueError(
        f"job {name} needs {needed}, which is more than the limit {limit} of "
        f"partition {site.partition}; {remedy}"
    )
