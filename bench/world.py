"""Who takes part in a launch: ranks, hosts, devices and the process group between them.

Ranks come from torchrun's variables. A scheduler's are read only where the job script says so by
`LOCKSTEP_LAUNCHER=slurm|openmpi|pmi`: inside an interactive allocation a plain `pytest bench/`
would otherwise wait for ranks that nobody started.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from bench import provenance

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

# launcher -> variable of (rank, local rank, world size, ranks per node)
VARIABLES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    "openmpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "pmi": ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
}


@dataclass(frozen=True)
class Placement:
    """Where one rank stands, as in torch.distributed."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 1

    @property
    def num_nodes(self) -> int:
        """Number of hosts, the last of which may be only partly used."""
        return -(-self.world_size // self.ranks_per_node)


@dataclass(frozen=True, kw_only=True)
class World(Placement):
    """A rank that has joined: its device, its share of the cores, its process group."""

    device: "torch.device"
    backend: str
    threads_per_rank: int
    store: "Store"


def placement(environ: Mapping[str, str] = os.environ) -> Placement:
    """Return this process's place, world size 1 if no launcher started it.

    Raises:
        ValueError: A launcher's variables are missing, not integers, or contradict each other.
    """
    launcher = environ.get("LOCKSTEP_LAUNCHER", "torchrun")
    if launcher not in VARIABLES:
        raise ValueError(
            f"LOCKSTEP_LAUNCHER={launcher!r} is not one of {', '.join(VARIABLES)}; unset it"
        )
    rank, local_rank, world_size, ranks_per_node = VARIABLES[launcher]
    if launcher == "torchrun" and rank not in environ and world_size not in environ:
        return Placement()
    size = _integer(environ, world_size)
    per_node = _ranks_per_node(environ, ranks_per_node, size)
    found = Placement(_integer(environ, rank), _integer(environ, local_rank), size, per_node)
    if not (0 <= found.rank < size and 0 <= found.local_rank < per_node <= size):
        raise ValueError(
            f"{rank}={found.rank}, {local_rank}={found.local_rank}, {world_size}={size} and "
            f"{per_node} ranks per node contradict each other; start with torchrun or srun"
        )
    return found


def _ranks_per_node(environ: Mapping[str, str], name: str, size: int) -> int:
    """Return ranks per host; Slurm does not say where only --ntasks was given."""
    if name in environ:
        return _integer(environ, name)
    num_nodes = _integer(environ, "SLURM_NNODES") if "SLURM_NNODES" in environ else 1
    return -(-size // max(1, num_nodes))


def _integer(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name)
    if value is None:
        raise ValueError(
            f"{name} is not set although a launcher's other variables are; "
            "start with torchrun, or unset them for world size 1"
        )
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} is not an integer; start with torchrun") from None


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return len(provenance.usable_cores())


def join(
    timeout_s: float = 300.0,
    *,
    device: str | None = None,
    threads_per_rank: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> World:
    """Take this rank's device and join the process group: nccl on GPUs, gloo on CPUs.

    Args:
        timeout_s: After this long a collective that a rank is missing from raises.
        device: "cpu" or "cuda"; CUDA where there is one, by default.
        threads_per_rank: Threads of one rank; its share of the usable cores by default.
        environ: The launcher's variables.

    Raises:
        ValueError: The launcher's variables are wrong, or an option's value is not allowed.
        RuntimeError: There are fewer GPUs than ranks on this host, or the ranks do not meet.
    """
    import torch
    from torch import distributed

    place = placement(environ)
    threads = _threads(threads_per_rank, place.ranks_per_node, environ)
    torch.set_num_threads(threads)
    own_device = _device(device, place.local_rank)
    backend = "nccl" if own_device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    store = _store(place, timeout, environ)
    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore("process_group", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
    )
    return World(
        **vars(place), device=own_device, backend=backend, threads_per_rank=threads, store=store
    )


def leave() -> None:
    """Leave the process group, if this process is in one."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def _threads(asked: int | None, ranks_per_node: int, environ: Mapping[str, str]) -> int:
    if asked is not None and asked < 1:
        raise ValueError(f"threads_per_rank={asked} is not 1 or more")
    if environ.get("LOCKSTEP_LAUNCHER") == "slurm" and "SLURM_CPUS_PER_TASK" in environ:
        # Under srun the usable cores may already be one task's own.
        return asked or _integer(environ, "SLURM_CPUS_PER_TASK")
    return asked or max(1, usable_cores() // ranks_per_node)


def _device(asked: str | None, local_rank: int) -> "torch.device":
    import torch

    if asked not in (None, "cpu", "cuda"):
        raise ValueError(f"device {asked!r} is not cpu or cuda")
    if asked == "cpu" or (asked is None and not torch.cuda.is_available()):
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if local_rank >= visible:
        raise RuntimeError(
            f"local rank {local_rank} needs GPU {local_rank}, but {visible} are visible on this "
            "host; start one rank per GPU, or pass --device cpu"
        )
    own_device = torch.device("cuda", local_rank)
    torch.cuda.set_device(own_device)
    return own_device


def _store(place: Placement, timeout: timedelta, environ: Mapping[str, str]) -> "Store":
    from torch import distributed

    if place.world_size == 1:
        return distributed.HashStore()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environ]
    if missing:
        raise ValueError(
            f"world size {place.world_size} but {' and '.join(missing)} not set; "
            "start with torchrun, or unset the launcher's variables"
        )
    # torchrun's agent serves the store itself; under other launchers rank 0 does.
    agent_serves = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = distributed.TCPStore(
        environ["MASTER_ADDR"],
        _integer(environ, "MASTER_PORT"),
        place.world_size,
        is_master=place.rank == 0 and not agent_serves,
        timeout=timeout,
    )
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return distributed.PrefixStore(f"lockstep/{restart}", store)
