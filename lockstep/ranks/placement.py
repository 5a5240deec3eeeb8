"""The place of this process among the ranks, by the variables of its launcher.

A scheduler's variables count only with `LOCKSTEP_LAUNCHER`: a job without ranks has them, too.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

# launcher -> variable of (rank, local rank, world size, ranks per node)
VARIABLES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    "openmpi": (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    "pmi": ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
}

# launcher -> the command that sets its variables
COMMANDS = {"torchrun": "torchrun", "slurm": "srun", "openmpi": "mpirun", "pmi": "mpiexec"}
# A job script's store: its address, and the prefix of this step's keys.
STORE_VARIABLES = ("LOCKSTEP_STORE", "LOCKSTEP_STORE_PREFIX")
SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Placement:
    """The place of one rank, as in torch.distributed."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 1

    @property
    def num_nodes(self) -> int:
        """Number of hosts, the last of which may be only partly used."""
        return -(-self.world_size // self.ranks_per_node)


def placement(environ: Mapping[str, str] = os.environ) -> Placement:
    """Return this process's place; world size 1 if no launcher started it."""
    launcher = environ.get("LOCKSTEP_LAUNCHER", "torchrun")
    if launcher not in VARIABLES:
        known = ", ".join(VARIABLES)
        raise ValueError(
            f"LOCKSTEP_LAUNCHER={launcher!r} is not one of {known}; unset this variable"
        )
    rank_variable, local_rank_variable, size_variable, ranks_per_node = VARIABLES[launcher]
    if launcher == "torchrun" and not {rank_variable, size_variable} & {*environ}:
        _refuse_without_srun(environ, hint="start the ranks with srun and LOCKSTEP_LAUNCHER=slurm")
        refuse_apart(environ)
        return Placement()
    if launcher == "slurm":
        _refuse_without_srun(environ, hint="start the ranks with srun")
    size = integer(environ, size_variable)
    per_node = _ranks_per_node(environ, ranks_per_node, size)
    rank, local_rank = integer(environ, rank_variable), integer(environ, local_rank_variable)
    place = Placement(rank, local_rank, size, per_node)
    if not (0 <= place.rank < size and 0 <= place.local_rank < per_node <= size):
        raise _wrong(
            environ,
            f"{rank_variable}={rank}, {local_rank_variable}={local_rank}, {size_variable}={size} "
            f"and {per_node} ranks per node contradict each other",
        )
    return place


def find_ranks_per_node(world_size: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return a user's ranks per host, by the variables of any launcher; all ranks without them."""
    # If a batch script starts ranks without srun, Slurm's variables count the script alone.
    by_srun = environ.get("SLURM_STEP_NUM_TASKS") == str(world_size)
    names = [names[-1] for launcher, names in VARIABLES.items() if launcher != "slurm" or by_srun]
    name = next((name for name in names if name in environ), "")
    if not (name or by_srun):
        return world_size
    return min(_ranks_per_node(environ, name, world_size), world_size)


def is_launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun or a job script started this process, and waits for it."""
    return "TORCHELASTIC_RUN_ID" in environ or "LOCKSTEP_LAUNCHER" in environ


def _refuse_without_srun(environ: Mapping[str, str], hint: str) -> None:
    """Refuse one process inside an allocation that was made for several tasks.

    An interactive shell may be one task with the variables of the whole allocation.
    """
    num_tasks = environ.get("SLURM_NTASKS", "1")
    is_alone = environ.get("SLURM_STEP_NUM_TASKS", "1") == "1"
    if "SLURM_JOB_ID" in environ and is_alone and num_tasks != "1":
        raise ValueError(
            f"SLURM_NTASKS is {num_tasks}, but this process runs alone; {hint}, or unset "
            "SLURM_NTASKS to measure one rank"
        )


def refuse_apart(environ: Mapping[str, str]) -> None:
    """Refuse several tasks of srun without LOCKSTEP_LAUNCHER: each would measure alone."""
    num_tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if "SLURM_JOB_ID" in environ and num_tasks != "1":
        raise ValueError(
            f"srun started {num_tasks} tasks, but LOCKSTEP_LAUNCHER is not set, so each task "
            "would measure alone; set LOCKSTEP_LAUNCHER=slurm, or start only one task"
        )


def _ranks_per_node(environ: Mapping[str, str], name: str, size: int) -> int:
    """Return the ranks per host; with --ntasks alone, Slurm gives only the number of nodes."""
    if name in environ:
        return integer(environ, name)
    num_nodes = integer(environ, "SLURM_NNODES") if "SLURM_NNODES" in environ else 1
    return -(-size // max(1, num_nodes))


def integer(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name)
    if value is None:
        fact = f"{name} is not set, although other variables of a launcher are set"
        raise _wrong(environ, fact, ", or unset those variables to measure one rank")
    try:
        return int(value)
    except ValueError:
        fact = f"{name}={value[:SHOWN_CHARACTERS]!r} is not an integer"
        raise _wrong(environ, fact) from None


def _wrong(environ: Mapping[str, str], fact: str, instead: str = "") -> ValueError:
    names = ["LOCKSTEP_LAUNCHER", *chain(*VARIABLES.values()), "SLURM_NNODES"]
    seen = [f"{name}={environ[name][:SHOWN_CHARACTERS]!r}" for name in names if name in environ]
    variables = ", ".join(seen)
    command = COMMANDS[environ.get("LOCKSTEP_LAUNCHER", "torchrun")]
    return ValueError(
        f"{fact}; start the ranks with {command}{instead} (variables that are set: {variables})"
    )
