"""How the ranks of a user's own script meet: through the store of its process group.

Not by a collective: where one rank alone explains its step, the others are in an all-reduce of
their training, which would take the ranks' messages for gradients.
"""

import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from lockstep.core.system.host import hostname
from lockstep.ranks import refusing
from lockstep.ranks.control import Control, LostError
from lockstep.ranks.placement import Placement
from lockstep.ranks.process_group import World, has_group

if TYPE_CHECKING:
    import torch

# A rank may come later than the others by what a checkpoint or a validation takes.
PATIENCE_S = 300.0
# Launcher's variables that say how many ranks there should be.
SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_meetings = count()


@dataclass(frozen=True)
class Met:
    """The ranks of a script."""

    world: World
    hosts: tuple[str, ...]


def meet(device: "torch.device", problem: str) -> Met:
    """Wait for all ranks of the script, and refuse on all of them what one cannot do.

    `problem` says why this rank cannot; empty where it can.

    Raises:
        ValueError: This rank, or another one, cannot.
        RuntimeError: A rank did not come.
    """
    import torch

    control = _control()
    try:
        told = control.exchange("explain", {"host": hostname(), "problem": problem})
    except LostError as error:
        raise RuntimeError(
            f"rank 0 did not come to lockstep.explain within {3 * PATIENCE_S:g} s; call it on "
            "every rank, not on one"
        ) from error
    _refuse(told)
    hosts = tuple(each["host"] for each in told)
    on_host = [rank for rank, host in enumerate(hosts) if host == hosts[control.rank]]
    place = Placement(
        rank=control.rank,
        local_rank=on_host.index(control.rank),
        world_size=control.world_size,
        ranks_per_node=max(hosts.count(host) for host in hosts),
    )
    world = World(
        **vars(place),
        device=device,
        backend=torch.distributed.get_backend() if has_group() else "none",
        threads_per_rank=torch.get_num_threads(),
        control=control,
        group_timeout_s=PATIENCE_S,
    )
    return Met(world, hosts)


def _control() -> Control:
    """Return what tells the ranks apart and each other; a process without a group is alone."""
    from torch import distributed

    if not has_group():
        others = next((os.environ[name] for name in SIZES if name in os.environ), "1")
        if others != "1":
            raise ValueError(
                f"the launcher started {others} ranks, but there is no process group; call "
                "lockstep.explain after init_process_group"
            )
        return Control(distributed.HashStore(), 0, 1, PATIENCE_S)
    # torch has no public name for the store that its ranks have met through.
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
    own = distributed.PrefixStore(f"lockstep/explain/{next(_meetings)}", store)
    return Control(own, distributed.get_rank(), distributed.get_world_size(), PATIENCE_S)


def _refuse(told: list[Any]) -> None:
    """Refuse what one rank cannot do.

    Raises:
        ValueError: A rank has a problem.
        RankError: A rank did not come.
    """
    refusing.silent(
        told,
        f"did not come to lockstep.explain within {PATIENCE_S:g} s; call it on every rank, not on "
        "one",
    )
    for rank, each in enumerate(told):
        if each["problem"]:
            where = f"rank {rank} on {each['host']}: " if len(told) > 1 else ""
            raise ValueError(f"{where}{each['problem']}")
