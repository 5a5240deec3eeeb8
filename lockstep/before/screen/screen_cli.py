"""The command `lockstep screen`."""

import json
import os
import sys
from pathlib import Path

import click

EXAMPLES = """\b
Examples:
  lockstep screen                                the devices of this machine
  lockstep screen --ranks 2 --device cpu --json  a line for a prolog or a maintenance job
  srun -N4 --ntasks-per-node=1 apptainer exec lockstep.sif lockstep screen
  srun -N4 --ntasks-per-node=8 --gpus-per-node=8 apptainer exec --nv pytorch.sif lockstep screen
"""
EXIT_SLOW = 1


@click.command(epilog=EXAMPLES)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="Start so many here; one for each GPU by default, two without GPUs. Under srun or "
    "torchrun its tasks are the ranks.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="CUDA where there is one, by default."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help="How often each probe is timed; 40 by default. Few can show nothing.",
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
    from lockstep.before.screen import starting
    from lockstep.before.screen.screening import Settings, run
    from lockstep.before.screen.search import below_floor, node_lines, page

    settings = Settings(repeats, device, timeout_s, floor_gb_per_s)
    rank, environ = 0, None if ranks else starting.as_rank(os.environ)
    if environ is None:
        screening = starting.on_this_machine(ranks, settings)
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
