"""The command `lockstep diagnose`: a question, the cases that answer it, and the card."""

from pathlib import Path

import click

# What `questions.QUESTIONS` holds, without loading what measures; and one that needs a cluster.
NAMES = ("strong", "straggler", "loader", "nodes")


@click.command()
@click.argument("question", type=click.Choice(NAMES))
@click.option(
    "--to",
    "root",
    type=click.Path(path_type=Path, file_okay=False),
    default="results",
    show_default=True,
    help="Folder of results; diagnose-QUESTION is added.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="CUDA where there is one, by default."
)
@click.option("--workload", help="Model that is trained, e.g. mlp:width=512.")
@click.option("-n", "--dry-run", is_flag=True, help="Print the launches without starting them.")
def diagnose(
    question: str, root: Path, device: str | None, workload: str | None, *, dry_run: bool
) -> int:
    """Answer QUESTION in about five minutes: measure what tells, and end with a card.

    No launch is begun that would probably end later; one that runs is not cut short.

    \b
    strong     more GPUs do not help
    straggler  one rank, GPU or node may hold the others up
    loader     the step may wait for its data
    nodes      two nodes are slower than one (says how to ask on Slurm)

    \b
    Examples:
      lockstep diagnose strong
      lockstep diagnose straggler --device cpu --workload mlp
      lockstep diagnose loader --dry-run
    """
    from lockstep.campaign.local import launcher
    from lockstep.campaign.local.run_cli import measure
    from lockstep.campaign.questions import LIMIT_S, campaign_of
    from lockstep.ranks.process_group import usable_cores

    if question == "nodes":
        raise ValueError(
            "nodes compares one node with two, which takes Slurm: lockstep submit nodes --site "
            "site.toml, and once its jobs have ended, lockstep report results/nodes"
        )
    num_gpus = 0 if device == "cpu" or launcher.missing_packages() else launcher.num_gpus()
    campaign = campaign_of(
        question, num_gpus=num_gpus, cores=usable_cores(), device=device, workload=workload
    )
    return measure(campaign, root, dry_run=dry_run, limit_s=LIMIT_S)
