"""How ranks are started on this machine: the command before theirs, and their environment.

Needs no torch.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import psutil

from lockstep import content
from lockstep.campaign.next import Facts
from lockstep.core import processes
from lockstep.ranks.placement import STORE_VARIABLES, VARIABLES

# What every rank imports beyond what a login node has.
NEEDED = ("torch", "torchvision", "pytest", "pytest_benchmark")
# What a GPU's driver leaves in /dev; without that, torch need not be loaded, which takes seconds.
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-ctrl-gpu")
COUNT_GPUS = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
# The first import of torch from a cold, shared file system takes a minute and more.
COUNT_TIMEOUT_S = 300.0
# torchrun takes the variable of this name for an option that its command leaves out.
TORCHRUN_OPTIONS = "PET_"


@dataclass(frozen=True)
class LeftRank:
    """A rank that still runs: its number, and whether its process is stopped, as by SIGSTOP."""

    rank: int
    is_stopped: bool

    def __str__(self) -> str:
        return f"rank {self.rank}{' (its process is stopped)' if self.is_stopped else ''}"


@dataclass(frozen=True)
class Hang:
    """Where a launch brought nothing for so long that it was ended.

    Attributes:
        kind: Before its first case, in one, between two, or after its last one.
        limit_s: How long it brought nothing.
        ranks: Those that still ran, on this machine.
        case: The case that ran, in one.
    """

    kind: Literal["start", "case", "between", "end"]
    limit_s: float
    ranks: tuple[LeftRank, ...]
    case: str | None = None

    def __str__(self) -> str:
        missed = {
            "start": "its ranks began no case within {} s",
            "case": f"{self.case} did not end within {{}} s",
            "between": "its ranks began no further case within {} s",
            "end": "its ranks did not end within {} s of their last case",
        }
        who = ", ".join(map(str, self.ranks)) or "torchrun alone"
        return f"{missed[self.kind].format(f'{self.limit_s:g}')}; {who} still ran"


@dataclass(frozen=True)
class Ended:
    """How a session of a launch ended.

    Attributes:
        facts: Of the launch then.
        hung: Where it hung, and was ended.
    """

    facts: Facts
    exit_code: int = 0
    hung: Hang | None = None


def left_ranks(torchrun_pid: int) -> tuple[LeftRank, ...]:
    """Return which ranks of a launch on this machine still run."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(torchrun_pid).children()
        return tuple(sorted(_as_ranks(children), key=lambda left: left.rank))
    return ()


def _as_ranks(running: list[psutil.Process]) -> Iterator[LeftRank]:
    for process in running:
        with contextlib.suppress(psutil.Error):
            rank = process.environ().get("RANK", "")
            if rank.isdecimal():
                yield LeftRank(int(rank), process.status() == psutil.STATUS_STOPPED)


def missing_packages() -> str:
    """Return in words what ranks lack in this Python; nothing where they can measure."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    if not absent:
        return _in_the_way()
    return (
        f"no {', '.join(absent)} for this Python ({sys.executable}), so no rank can measure; "
        "pip install '/path/to/checkout[bench]'"
    )


def _in_the_way() -> str:
    """Return which file of the user's hides a package; nothing where none does."""
    for name in NEEDED:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is None:
            return f"{spec.origin} hides the package {name}, so no rank can measure; rename it"
    return ""


def num_gpus() -> int:
    """Return how many GPUs a rank on this machine sees, asked of torch in a process of its own.

    Raises:
        RuntimeError: torch does not load.
    """
    if not any(map(os.path.exists, DRIVERS)):
        return 0
    try:
        ended = processes.run([sys.executable, "-c", COUNT_GPUS], COUNT_TIMEOUT_S)
    except processes.CommandError:
        raise RuntimeError(
            f"torch does not load within {COUNT_TIMEOUT_S:g} s; see {sys.executable} -c "
            "'import torch'"
        ) from None
    answer = (ended.output.split() or ended.errors.splitlines() or ["it says nothing"])[-1]
    if ended.code or not answer.isdecimal():
        raise RuntimeError(
            f"torch does not load: {answer}; install torch and torchvision as a pair"
        )
    return int(answer)


def torchrun(nproc: int) -> list[str]:
    """Return the start of a command, for `-m module` to follow: `nproc` ranks of one launch.

    They meet by address: the host's name, which torchrun would take, may resolve nowhere. By -P a
    checkout of Lockstep in the working folder does not mix with the code that runs now.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    ranks = ["--no-python", sys.executable, "-P", "-u"]
    return [sys.executable, *launcher, f"--nproc-per-node={nproc}", *ranks]


def program_driver(world_size: int) -> list[str]:
    """Return the start of a command: what runs a program at so many ranks."""
    return [sys.executable, "-m", "lockstep.campaign.program.driver", f"--world-size={world_size}"]


def local_environment(environ: Mapping[str, str], threads_per_rank: int) -> dict[str, str]:
    """Return the environment of ranks on this machine, free of an outer launcher's variables."""
    outer = {"LOCKSTEP_LAUNCHER", *STORE_VARIABLES, *VARIABLES["torchrun"]}
    kept = {
        name: value
        for name, value in environ.items()
        if name not in outer and not name.startswith(TORCHRUN_OPTIONS)
    }
    # gloo would look up the host's name, which a laptop or a sandbox may not resolve.
    if "lo" in (name for _, name in socket.if_nameindex()):
        kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    given = filter(None, [environ.get("PYTHONPATH")])
    paths = [str(content.IMPORTABLE_FROM), *given, str(Path.cwd())]
    return kept | {
        "OMP_NUM_THREADS": str(threads_per_rank),
        "PYTHONPATH": os.pathsep.join(paths),
    }
