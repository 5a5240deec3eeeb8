"""The commands about jobs that were sent: status and collect."""

import json
from pathlib import Path

import click

folder_argument = click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False, exists=True)
)


@click.command()
@folder_argument
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(folder: Path, *, as_json: bool) -> None:
    """Say how the jobs and launches of a campaign's FOLDER stand.

    \b
    Example:
      lockstep status results/campaign
    """
    from slurm_templates import slurm
    from slurm_templates.results import Results

    results = Results(folder.resolve())
    states = slurm.states(results.job_ids())
    found = [(entry, states.get(entry["id"], slurm.UNKNOWN)) for entry in results.submissions()]
    rows = [
        {"id": e["id"], "job": e["job"], "state": s.name, "meaning": s.meaning} for e, s in found
    ]
    launches = {name: vars(results.outcome(name)) for name in results.names()}
    if as_json:
        click.echo(json.dumps({"jobs": rows, "launches": launches}, indent=1))
        return
    for row in rows:
        click.echo(f"{row['job']}, job {row['id'] or '-'}: {row['state']}, {row['meaning']}")
    for name, one in launches.items():
        ended = "complete" if one["complete"] else "not complete"
        click.echo(f"  {name}: {one['measured']} measured, {len(one['failed'])} failed, {ended}")


@click.command()
@folder_argument
def collect(folder: Path) -> None:
    """Make the JSON of each launch in FOLDER from its journal, and ask accounting about the jobs.

    \b
    Example:
      lockstep collect results/campaign
    """
    from slurm_templates import collection
    from slurm_templates.results import Results

    made = collection.collect(Results(folder.resolve()))
    if made["error"]:
        click.echo(f"accounting is left as it was: {made['error']}", err=True)
    click.echo(f"{len(made['launches'])} launches collected\nNext: lockstep report {folder}")
