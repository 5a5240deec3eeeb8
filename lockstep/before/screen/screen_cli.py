"""The command `lockstep screen`."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.core.processes import die_with_parent
from lockstep.ranks.placement import integer, placement

if TYPE_CHECKING:
    from lockstep.before.screen.search import Screening

EXAMPLES = """\b
Examples:
  lockstep screen                                # screen the devices of this machine
  lockstep screen --ranks 2 --device cpu --json  # in a prolog or a maintenance job
  srun -N4 --ntasks-per-node=8 --gpus-per-node=8 apptainer exec --nv pytorch.sif lockstep screen
"""
USUAL_RANKS = 2  # on CPUs
# Ports below the kernel's ephemeral ports; steps on one node get different ports.
FIRST_PORT, NUM_PORTS = 15_000, 15_000


@click.command(epilog=EXAMPLES)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="Number of ranks to start here; by default one per GPU, or two without GPUs. Under srun "
    "or torchrun each task is a rank.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Device to screen; by default cuda if there is a GPU, else cpu.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help="How often each probe is timed, 40 by default. Too few repeats cannot show a slow device.",
)
@click.option(
    "--floor-gb-per-s",
    type=click.FloatRange(min=0.0, min_open=True),
    help="Lowest allowed bus bandwidth of an all-reduce over all ranks (64 MiB on GPUs, 4 MiB on "
    "CPUs).",
)
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write all results into this file, as JSON.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a line of JSON for each node, instead of the table.",
)
def screen(
    ranks: int | None,
    device: str | None,
    repeats: int | None,
    floor_gb_per_s: float | None,
    to: Path | None,
    as_json: bool,
) -> int:
    """Find slow nodes, devices and links before a campaign.

    Every rank multiplies matrices and copies memory. Then the ranks of each node all-reduce among
    themselves. Then the nodes all-reduce in pairs, each with up to three partners. In each
    step, groups of nodes work at the same time. A screening of n nodes takes at most
    ceil(log2 n) + 2 steps, and never more than four. This can take minutes; if so, the command
    prints an estimate.

    A node, device or link is slow if it takes at least 5 % longer than the others and the interval
    of this ratio is above 1.02. If nothing is slow, at most 1 % of screenings report something.
    Links between nodes are compared if there are at least three nodes. On one node, only its
    devices are compared.

    With --floor-gb-per-s an all-reduce over all ranks must reach this bandwidth. If the all-reduce
    is slower, the slowest node is also named.

    Exit code: 0 if nothing is slow or the times vary too much to show it, 1 if something is slow, 2
    for wrong input, 3 if the machine fails or torch is missing.
    """
    from lockstep.before.screen.screening import run
    from lockstep.before.screen.search import describe_floor, node_lines, page
    from lockstep.campaign.launcher import missing_packages

    settings = (repeats, device, floor_gb_per_s)
    environ = None if ranks else find_rank(os.environ)
    own = placement(environ) if environ else None
    if absent := missing_packages(["torch"]):
        if own and own.local_rank:
            return 0  # the first rank of the node says it
        raise RuntimeError(absent)
    if not (own and own.rank):
        click.echo("lockstep: timing devices and links; this can take minutes", err=True)
    screening = run(environ, *settings) if environ else _screen_here(ranks, *settings)
    if screening is None:
        return 0  # rank 0 reports: a launcher would end all ranks once another rank has failed
    click.echo("\n".join(node_lines(screening)) if as_json else page(screening))
    if to:
        to.write_text(json.dumps(screening.to_json(), indent=1), encoding="utf-8")
    sys.stdout.flush()
    if text := describe_floor(screening):
        click.echo(f"lockstep: error: {text}", err=True)
    return int(not screening.is_clean)


def find_rank(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables of a rank that a launcher started; None without a launcher.

    Tasks of srun meet at the first node of their step, unless MASTER_ADDR is set.

    Raises:
        ValueError: This is the shell of an allocation of several nodes, not a step in it.
    """
    if "RANK" in environ or "LOCKSTEP_LAUNCHER" in environ:
        return dict(environ)
    if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        job, step = integer(environ, "SLURM_JOB_ID"), integer(environ, "SLURM_STEP_ID")
        # The first name of a list as Slurm writes it: n1 of n[1-4,7],login.
        hosts = re.match(r"(?:[^,\[]|\[[^]]*\])*", environ["SLURM_STEP_NODELIST"])
        assert hosts
        return {
            "LOCKSTEP_LAUNCHER": "slurm",
            "MASTER_ADDR": re.sub(r"\[(\w+)[^]]*\]", r"\1", hosts[0]),
            "MASTER_PORT": str(FIRST_PORT + (31 * job + step) % NUM_PORTS),
        } | dict(environ)
    if "SLURM_JOB_ID" in environ and int(environ.get("SLURM_NNODES", "1")) > 1:
        raise ValueError(
            f"the job has {environ['SLURM_NNODES']} nodes, but lockstep screen runs on only one; "
            "start lockstep screen with srun --ntasks-per-node=1, or with one task per GPU"
        )
    return None


def _screen_here(
    num_ranks: int | None, repeats: int | None, device: str | None, floor: float | None
) -> "Screening":
    """Screen with ranks that torchrun starts here; by default one per GPU.

    Raises:
        ValueError: There is one rank, or there are too few repeats to show slowness.
        RuntimeError: Ranks cannot be started, or fail.
    """
    from pydantic import TypeAdapter

    from lockstep.before.screen.screening import ESTIMATE, num_repeats
    from lockstep.before.screen.search import Screening
    from lockstep.campaign import launcher
    from lockstep.campaign.next import last_words
    from lockstep.ranks.process_group import usable_cores

    gpus = 0 if device == "cpu" else launcher.num_gpus()
    num_ranks = num_ranks or gpus or USUAL_RANKS
    num_repeats(num_ranks, repeats)
    with tempfile.TemporaryDirectory(prefix="lockstep-screen-") as folder:
        path, log_file = Path(folder) / "screening", Path(folder) / "log"
        settings = json.dumps([repeats, device, floor])
        program = ["-m", "lockstep.before.screen.screening", settings, str(path)]
        with (
            log_file.open("wb") as log,
            subprocess.Popen(
                [*launcher.torchrun(num_ranks), *program],
                env=launcher.local_environment(os.environ, max(1, usable_cores() // num_ranks)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            ) as ended,
        ):
            for line in ended.stdout or ():
                log.write(line)
                if line.startswith(ESTIMATE):
                    click.echo(line, err=True, nl=False)
        if ended.returncode or not path.exists():
            words = last_words(log_file, 0) or f"torchrun ended with {ended.returncode}"
            raise RuntimeError(words)
        return TypeAdapter(Screening).validate_json(path.read_bytes())
