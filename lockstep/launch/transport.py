"""The links that NCCL uses in a launch: its own word, from the log of an untimed warm-up.

NCCL reads NCCL_DEBUG once, as it starts. Told INFO of its start alone, it writes as it connects and
never in a collective, so what is measured is not slower. Who asks for more than warnings keeps what
they asked for; who asks for warnings finds those of the start on the terminal, later ones in the
file beside the journal.
"""

import os
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core import flags
from lockstep.core.flags import Flag
from lockstep.machine import nccl_log, network
from lockstep.machine.nccl_log import Link, NcclLog
from lockstep.ranks.process_group import World

FOLDER = "nccl"
# A message of several channels, so that all of them connect.
WARM_UP_ITEMS = 2**22
# Levels that tell of failures alone.
QUIET = ("", "VERSION", "WARN")
MAX_LINKS = 4096


@dataclass(frozen=True)
class Transport:
    """What the ranks' logs say together."""

    facts: dict[str, Any] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()


def listen(folder: Path, rank: int, environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """Let NCCL write of its start into a file, and return it; call it before NCCL starts.

    Returns:
        None where other logs were asked for, or the file cannot be made.
    """
    asked = environ.get("NCCL_DEBUG", "").upper()
    if asked not in QUIET or "NCCL_DEBUG_FILE" in environ:
        return None
    path = folder / FOLDER / f"rank-{rank}.log"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    except OSError:
        return None
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV,NET,P2P,SHM"
    # NCCL takes % for its own marks (host, process).
    environ["NCCL_DEBUG_FILE"] = str(path).replace("%", "%%")
    return path


def gather(world: World, hosts: Sequence[str], folder: Path | None) -> Transport:
    """Warm NCCL up on all ranks, and return what its logs say; nothing with another back end.

    Every rank must call it.

    Raises:
        RuntimeError: A rank did not answer.
    """
    if world.backend != "nccl" or world.world_size == 1 or folder is None:
        return Transport()
    path = listen(folder, world.rank)
    _warm_up(world)
    return settle(world, hosts, nccl_log.read(path) if path else NcclLog())


def settle(world: World, hosts: Sequence[str], log: NcclLog) -> Transport:
    """Return what the logs of all ranks say, equal on all; the argument is this rank's."""
    for warning in log.warnings:
        sys.stderr.write(f"lockstep: rank {world.rank}: NCCL warns: {warning}\n")
    own = {"log": asdict(log), "fabrics": network.fabrics()}
    settled = world.control.settle_all("transport", own, lambda there: _conclude(there, hosts))
    return Transport(settled["facts"], tuple(map(flags.read, settled["flags"])))


def _conclude(there: Sequence[dict[str, Any]], hosts: Sequence[str]) -> dict[str, Any]:
    """Return facts and flags of all ranks' logs, as JSON holds them."""
    log = nccl_log.merged(_log(each["log"]) for each in there)
    fabrics = sorted({name for each in there for name in each["fabrics"]})
    if not log.links:
        return {"facts": {}, "flags": []}
    found = nccl_log.findings(log, hosts, fabrics)
    return {
        "facts": {
            "nccl_log": log.version,
            "networks": list(log.networks),
            "adapters": list(log.adapters),
            "transports": log.transports,
            "links": [list(asdict(link).values()) for link in log.links[:MAX_LINKS]],
        },
        "flags": [one.to_dict() for one in found],
    }


def _log(given: dict[str, Any]) -> NcclLog:
    """Return a log that went through JSON."""
    links = tuple(Link(**link) for link in given["links"])
    lists = {name: tuple(given[name]) for name in ("networks", "adapters", "warnings", "settings")}
    return NcclLog(given["version"], links=links, **lists)


def _warm_up(world: World) -> None:
    """Let all ranks connect; a failure is left for the first case to name."""
    import torch
    from torch import distributed

    try:
        distributed.all_reduce(torch.zeros(WARM_UP_ITEMS, device=world.device))
        torch.cuda.synchronize(world.device)
    except RuntimeError as error:
        sys.stderr.write(f"lockstep: the warm-up of NCCL failed: {error}\n")
