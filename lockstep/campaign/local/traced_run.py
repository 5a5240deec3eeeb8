"""Traces of a campaign's steps by torch.profiler on this machine, apart from what is measured."""

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from lockstep.campaign.campaign import Campaign, common_options
from lockstep.campaign.local.ladder import pytest_command
from lockstep.campaign.local.launcher import local_environment
from lockstep.core.processes import die_with_parent

# A trace is a window of a few steps, a whole run's would be gigabytes; so few say nothing of
# efficiency, so every size is traced.
FEW_STEPS = {
    "rounds": 2, "warmup_rounds": 2, "steps_per_round": 3, "repeats": 1, "until_efficiency": None,
}  # fmt: skip


def refuse_program(campaign: Campaign) -> None:
    """Refuse a campaign that measures a program.

    Raises:
        ValueError: It does.
    """
    if campaign.command:
        raise ValueError(
            f"{campaign.name} runs a program, in which torch.profiler sees no step; choose a "
            "campaign of studies or tests"
        )


def commands(campaign: Campaign, folder: Path) -> Iterator[list[str]]:
    """Yield the command of each world size, the smallest first, which leaves traces in a folder."""
    few = campaign.model_copy(update=FEW_STEPS)
    for world_size in sorted(few.world_sizes):
        start = pytest_command(few, world_size)
        yield [*start, "-q", *common_options(few), f"--torch-trace={folder}"]


def trace(
    campaign: Campaign, folder: Path, say: Callable[[str], None], *, dry_run: bool = False
) -> int:
    """Trace each case at each world size, and return the exit code of the command.

    Args:
        campaign: Whose cases, with the threads of a rank.
        folder: Where the traces go, and what of a step each part takes as JSON.
        say: Told each command of a dry run, and which sessions failed.
        dry_run: Start nothing.

    Raises:
        ValueError: The campaign measures a program.
    """
    refuse_program(campaign)
    failed = 0
    for command in commands(campaign, folder.absolute()):
        if dry_run:
            say(shlex.join(command))
            continue
        environ = local_environment(os.environ, campaign.threads_per_rank or 1)
        ended = subprocess.run(command, env=environ, preexec_fn=die_with_parent, check=False)
        if ended.returncode:
            say(f"not all cases were traced: torchrun ended with {ended.returncode}, see above")
            failed = 1
    return failed
