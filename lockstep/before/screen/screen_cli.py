"""The command `lockstep screen`."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.core.processes import die_with_parent
from lockstep.ranks.placement import integer

if TYPE_CHECKING:
    from lockstep.before.screen.screening import Settings
    from lockstep.before.screen.search import Screening

EXAMPLES = """\b
Examples:
  lockstep screen                                the devices of this machine
  lockstep screen --ranks 2 --device cpu --json  a line for a prolog or a maintenance job
  srun -N4 --ntasks-per-node=1 apptainer exec lockstep.sif lockstep screen
  srun -N4 --ntasks-per-node=8 --gpus-per-node=8 apptainer exec --nv pytorch.sif lockstep screen
"""
EXIT_SLOW = 1
# On CPUs, where nobody says how many.
USUAL_RANKS = 2
# Ports below those that a kernel gives out by itself; steps of one node get different ones.
FIRST_PORT, NUM_PORTS = 15_000, 15_000


@click.command(epilog=EXAMPLES)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="Start so many here; one for each GPU by default, two without GPUs. Under srun or "
    "torchrun its tasks are the ranks.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="CUDA by default, if there is a GPU."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help="How often each probe is timed; 40 by default. Few repeats show nothing.",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=1.0),
    default=120.0,
    show_default=True,
    help="How long ranks wait for each other.",
)
@click.option(
    "--floor-gb-per-s",
    type=click.FloatRange(min=0.0, min_open=True),
    help="Least bus bandwidth of an all-reduce over all ranks, of 64 MiB on GPUs, 4 MiB on CPUs.",
)
@click.option(
    "--to", type=click.Path(dir_okay=False, path_type=Path), help="Also write all facts as JSON."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each node.")
def screen(
    ranks: int | None,
    device: str | None,
    repeats: int | None,
    timeout_s: float,
    floor_gb_per_s: float | None,
    to: Path | None,
    as_json: bool,
) -> int:
    """Find a slow node, device or link, in seconds, before a campaign finds it.

    Every rank multiplies matrices and copies memory; the ranks of each node all-reduce among
    themselves; then the nodes all-reduce in pairs, each with up to three partners. That takes at
    most ceil(log2 n) + 2 steps for n nodes, and never more than four. A step is one division of the
    nodes into groups that work at the same time.

    Something is named that takes at least 5 % longer than the others, the interval of its ratio
    above 1.02. Noise alone names anything in at most 1 % of screenings. Links between nodes are
    compared from three nodes on; one node compares its devices.

    With --floor-gb-per-s all ranks together must reduce at so much; below it the slowest node is
    named as well.

    Ends with 0 where nothing is slow, 1 where something is, 2 for wrong input, 3 where the machine
    fails.
    """
    from lockstep.before.screen.screening import Settings, run
    from lockstep.before.screen.search import below_floor, node_lines, page

    settings = Settings(repeats, device, timeout_s, floor_gb_per_s)
    rank, environ = 0, None if ranks else as_rank(os.environ)
    if environ is None:
        screening = _on_this_machine(ranks, settings)
    else:
        rank, screening = run(settings, environ)
    if rank:
        return 0  # rank 0 says how it ended: a launcher ends all ranks once one has failed
    click.echo("\n".join(node_lines(screening)) if as_json else page(screening))
    if to:
        to.write_text(json.dumps(screening.to_json(), indent=1), encoding="utf-8")
    sys.stdout.flush()
    if text := below_floor(screening):
        click.echo(f"lockstep: error: {text}", err=True)
    return 0 if screening.is_clean else EXIT_SLOW


def as_rank(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables of a rank that a launcher started; None where none did.

    The tasks of a plain srun meet at the first node of their step, unless MASTER_ADDR says where.

    Raises:
        ValueError: This is the shell of an allocation of several nodes, not a step in it.
    """
    if "RANK" in environ or "LOCKSTEP_LAUNCHER" in environ:
        return dict(environ)
    if int(environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _of_slurm(environ) | dict(environ)
    if "SLURM_JOB_ID" in environ and int(environ.get("SLURM_NNODES", "1")) > 1:
        raise ValueError(
            f"this job has {environ['SLURM_NNODES']} nodes, and this is one process on one of "
            "them; start with srun --ntasks-per-node=1, or a task for each GPU"
        )
    return None


def _of_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    job, step = integer(environ, "SLURM_JOB_ID"), integer(environ, "SLURM_STEP_ID")
    return {
        "LOCKSTEP_LAUNCHER": "slurm",
        "MASTER_ADDR": _first_host(environ["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(FIRST_PORT + (31 * job + step) % NUM_PORTS),
    }


def _first_host(hosts: str) -> str:
    """Return the first name of a list as Slurm writes it, `n1` of `n[1-4,7],login`."""
    first = re.match(r"(?:[^,\[]|\[[^]]*\])*", hosts)
    assert first
    return re.sub(r"\[(\w+)[^]]*\]", r"\1", first[0])


def _on_this_machine(num_ranks: int | None, settings: "Settings") -> "Screening":
    """Screen with ranks that torchrun starts here: one for each GPU, where nobody says how many.

    Raises:
        ValueError: There is one rank, or there are too few repeats to name anything.
        RuntimeError: Ranks cannot be started, or fail.
    """
    from lockstep.before.screen.screening import num_repeats
    from lockstep.before.screen.search import Screening
    from lockstep.campaign import launcher
    from lockstep.campaign.next import last_words
    from lockstep.ranks.process_group import usable_cores

    if absent := launcher.missing_packages():
        raise RuntimeError(absent)
    gpus = 0 if settings.device == "cpu" else launcher.num_gpus()
    num_ranks = num_ranks or gpus or USUAL_RANKS
    num_repeats(num_ranks, settings.repeats)
    with tempfile.TemporaryDirectory(prefix="lockstep-screen-") as folder:
        path, log_file = Path(folder) / "settings.json", Path(folder) / "log"
        path.write_text(json.dumps(asdict(settings)), encoding="utf-8")
        with log_file.open("wb") as log:
            ended = subprocess.run(
                [*launcher.torchrun(num_ranks), "-m", "lockstep.before.screen.screening", path],
                env=launcher.local_environment(os.environ, max(1, usable_cores() // num_ranks)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
                check=False,
            )
        found = path.with_suffix(".found")
        if ended.returncode or not found.exists():
            words = last_words(log_file, 0) or f"torchrun ended with {ended.returncode}"
            raise RuntimeError(words)
        return Screening.from_json(json.loads(found.read_text(encoding="utf-8")))
