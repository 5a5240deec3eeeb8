"""Starts ranks on this machine: commands, environment, and launches that only trace."""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from lockstep import content
from lockstep.campaign.campaign import Campaign, common_options
from lockstep.core import processes
from lockstep.ranks.placement import STORE_VARIABLES, VARIABLES

# Packages that ranks need and a login node may lack.
NEEDED = ("torch", "torchvision", "pytest", "pytest_benchmark")
# Device files of GPU drivers. Without any of them there is no GPU, and torch is not loaded.
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-ctrl-gpu")
COUNT_GPUS = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
# The first import of torch from a cold, shared file system takes a minute and more.
COUNT_TIMEOUT_S = 300.0
# torchrun reads options that its command leaves out from variables with this prefix.
TORCHRUN_OPTIONS = "PET_"


def missing_packages(needed: Sequence[str] = NEEDED) -> str:
    """Return a sentence about the packages that this Python lacks for ranks; empty if none."""
    specs = {name: find_spec(name) for name in needed}
    if absent := [name for name, spec in specs.items() if spec is None]:
        missing = ", ".join(absent)
        return (
            f"this Python ({sys.executable}) lacks the packages that ranks need ({missing}); run "
            "lockstep in an image that has these packages, or run pip install "
            "'/path/to/checkout[bench]'"
        )
    for name, spec in specs.items():  # the user's own torch.py, for example, hides torch
        if spec is not None and spec.submodule_search_locations is None:
            return (
                f"the file {spec.origin} hides the package {name}, which ranks need; rename that "
                "file"
            )
    return ""


def num_gpus() -> int:
    """Return the number of GPUs that torch sees, by a process of its own."""
    if not any(map(os.path.exists, DRIVERS)):
        return 0
    try:
        ended = processes.run([sys.executable, "-c", COUNT_GPUS], COUNT_TIMEOUT_S)
    except processes.CommandError:
        raise RuntimeError(
            f"the import of torch did not end within {COUNT_TIMEOUT_S:g} s; run "
            f"{sys.executable} -c 'import torch' to see the cause"
        ) from None
    answer = (ended.output.split() or ended.errors.splitlines() or ["it printed nothing"])[-1]
    if ended.code or not answer.isdecimal():
        raise RuntimeError(
            f"torch cannot be imported ({answer}); install torch and torchvision of matching "
            "versions"
        )
    return int(answer)


def torchrun(nproc: int) -> list[str]:
    """Return a torchrun command for `nproc` ranks, to be followed by `-m MODULE`.

    --local-addr is set because the host's name may not resolve. -P keeps a checkout in the working
    folder off the import path.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    ranks = ["--no-python", sys.executable, "-P", "-u"]
    return [sys.executable, *launcher, f"--nproc-per-node={nproc}", *ranks]


def pytest_command(campaign: Campaign, world_size: int) -> list[str]:
    """Return the first words of the command that measures a campaign's tests on its ranks."""
    measured = campaign.tests or [str(content.ROOT / "bench")]
    return [*torchrun(world_size), "-m", "pytest", *measured, "-p", "lockstep.launch.hooks"]


def local_environment(environ: Mapping[str, str], threads_per_rank: int) -> dict[str, str]:
    """Return the environment of ranks on this machine, without an outer launcher's variables."""
    outer = {"LOCKSTEP_LAUNCHER", *STORE_VARIABLES, *VARIABLES["torchrun"]}
    kept = {
        name: value
        for name, value in environ.items()
        if name not in outer and not name.startswith(TORCHRUN_OPTIONS)
    }
    # Otherwise gloo looks up the host's name, which a laptop or a sandbox may not resolve.
    if "lo" in (name for _, name in socket.if_nameindex()):
        kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    own = filter(None, [environ.get("PYTHONPATH")])
    paths = [str(content.IMPORTABLE_FROM), *own, str(Path.cwd())]
    return kept | {"OMP_NUM_THREADS": str(threads_per_rank), "PYTHONPATH": os.pathsep.join(paths)}


# A trace of a whole run would be gigabytes. Few steps show no efficiency, so no size is left out.
FEW_STEPS = {
    "rounds": 2, "warmup_rounds": 2, "steps_per_round": 3, "repeats": 1, "until_efficiency": None,
}  # fmt: skip


def refuse_program(campaign: Campaign) -> None:
    if campaign.command:
        raise ValueError(
            f"the campaign {campaign.name} measures a program, whose steps torch.profiler cannot "
            "see; choose a campaign of studies or tests"
        )


def trace(
    campaign: Campaign, folder: Path, say: Callable[[str], None], *, dry_run: bool = False
) -> int:
    """Trace each case at each world size into a folder; return the command's exit code."""
    refuse_program(campaign)
    if absent := missing_packages():
        raise RuntimeError(absent)
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
            say(
                f"torchrun ended with exit code {ended.returncode} before all cases were traced; "
                "see the output of torchrun above"
            )
            failed = 1
    return failed
