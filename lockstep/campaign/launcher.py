"""How ranks are started on this machine: the command before theirs, and their environment.

Needs no torch. A session that traces steps by torch.profiler is started here, too: it is no launch
of a ladder, for nothing of it is kept.
"""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from lockstep import content
from lockstep.campaign.campaign import Campaign, common_options
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


def missing_packages() -> str:
    """Return in words what ranks lack in this Python; nothing where they can measure."""
    specs = {name: find_spec(name) for name in NEEDED}
    if absent := [name for name, spec in specs.items() if spec is None]:
        return (
            f"no {', '.join(absent)} for this Python ({sys.executable}), so no rank can measure; "
            "pip install '/path/to/checkout[bench]'"
        )
    for name, spec in specs.items():  # a file of the user's may hide a package
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


def pytest_command(campaign: Campaign, world_size: int) -> list[str]:
    """Return the start of a command: what measures a campaign's tests at so many ranks."""
    measured = campaign.tests or [str(content.ROOT / "bench")]
    return [*torchrun(world_size), "-m", "pytest", *measured, "-p", "lockstep.launch.hooks"]


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


# A trace is a window of a few steps, a whole run's would be gigabytes; so few show nothing of
# efficiency, so every size is traced.
FEW_STEPS = {
    "rounds": 2, "warmup_rounds": 2, "steps_per_round": 3, "repeats": 1, "until_efficiency": None,
}  # fmt: skip


def refuse_program(campaign: Campaign) -> None:
    """Refuse to trace a campaign that measures a program.

    Raises:
        ValueError: It does.
    """
    if campaign.command:
        raise ValueError(
            f"{campaign.name} runs a program, in which torch.profiler sees no step; choose a "
            "campaign of studies or tests"
        )


def trace(
    campaign: Campaign, folder: Path, say: Callable[[str], None], *, dry_run: bool = False
) -> int:
    """Trace each case at each world size, the smallest first; return the command's exit code.

    Args:
        campaign: Whose cases, with the threads of a rank.
        folder: Where the traces go, and what of a step each part takes as JSON.
        say: Gets each command of a dry run, and which sessions failed.
        dry_run: Start nothing.
    """
    few, failed = campaign.model_copy(update=FEW_STEPS), 0
    for world_size in sorted(few.world_sizes):
        options = ["-q", *common_options(few), f"--torch-trace={folder.absolute()}"]
        command = [*pytest_command(few, world_size), *options]
        if dry_run:
            say(shlex.join(command))
            continue
        environ = local_environment(os.environ, campaign.threads_per_rank or 1)
        ended = subprocess.run(
            command, env=environ, preexec_fn=processes.die_with_parent, check=False
        )
        if ended.returncode:
            say(f"not all cases were traced: torchrun ended with {ended.returncode}, see above")
            failed = 1
    return failed
