"""What one rank gets of a node, and the options of sbatch and srun that say so."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lockstep.campaign.campaign import Campaign
from lockstep.core.formats import clock
from lockstep.slurm.site import Site

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

    def without_gpu(self) -> "Share":
        """Return the share of what computes nothing."""
        return replace(self, is_gpu=False, is_torchrun=False)


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
            f"{ranks} ranks of {threads} threads do not fit on the {site.cpus_per_node} CPUs of a "
            f"node of {site.name}; lower threads_per_rank or max_ranks_per_node"
        )
    # torchrun starts what imports torch.distributed; a program has a launcher of its own.
    is_torchrun = site.launcher == "torchrun" and campaign.command is None
    return Share(ranks, cpus, is_gpu, campaign.threads_per_rank, is_torchrun)


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
            f"{option} = {value!r}: a quote, backslash, $, # or control character is not allowed "
            "in a value for sbatch; leave it out"
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
