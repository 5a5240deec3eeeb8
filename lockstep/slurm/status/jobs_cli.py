"""The command `lockstep cancel`, and what `lockstep status --collect` does."""

import contextlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.core.formats import counted
from lockstep.slurm.submit.cli_options import dry_run_option

if TYPE_CHECKING:
    from lockstep.slurm.status.sent import Results

# what accounting counts -> its unit; the last is what Slurm bills, before a QOS's usage factor
HOURS = {
    "node_hours": "node-hours",
    "cpu_hours": "CPU-hours",
    "gpu_hours": "GPU-hours",
    "billing_hours": "hours of TRES billing",
}


def results_of(folder: str) -> "Results":
    """Return the results that a folder holds.

    Raises:
        ValueError: It is no folder, or holds no campaign.
    """
    from lockstep.slurm import client as slurm
    from lockstep.slurm.status.sent import Results
    from lockstep.slurm.submit import submission

    path = Path(folder)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"{folder} {what}; give the results folder, such as results/NAME")
    results = Results(path.resolve())
    if not (results.claim_file.exists() or results.jobs_folder.exists() or results.names()):
        raise ValueError(
            f"{folder} holds no campaign; give the results folder, such as results/NAME"
        )
    if (results.jobs_folder / submission.SITE_FILE).exists():
        with contextlib.suppress(OSError, ValueError):  # then of this machine's own cluster
            slurm.on_cluster(submission.stored_site(results).cluster)
    slurm.on_cluster(results.cluster())  # which may be another than sbatch was asked for
    return results


@click.command()
@click.argument("folder", metavar="FOLDER|JOB")
@click.option("--job", "name", metavar="NAME", help="Only the folder's job of this name.")
@click.option(
    "--point", type=click.IntRange(min=0), metavar="K", help="Only element K of the folder's array."
)
@dry_run_option
def cancel(folder: str, *, name: str | None, point: int | None, dry_run: bool) -> None:
    """Cancel the jobs of a campaign's FOLDER that have not ended, or any JOB by its id.

    \b
    Examples:
      lockstep cancel results/campaign --dry-run
      lockstep cancel results/campaign --job campaign-w8-r0
      lockstep cancel results/campaign --point 3
      lockstep cancel 4711 --dry-run
    """
    from lockstep.slurm.any_job import held

    if name is None and point is None and held.is_id(folder) and not Path(folder).exists():
        _cancel_one(folder, dry_run=dry_run)
    else:
        _cancel_in(folder, name, point, dry_run=dry_run)


def _cancel_one(job: str, *, dry_run: bool) -> None:
    """Cancel a job by its id, whose it is and what it does said first."""
    from lockstep.slurm import client as slurm
    from lockstep.slurm.any_job import held
    from lockstep.slurm.status import cancelling

    jobs = held.of_job(job)
    if not jobs:
        raise ValueError(
            f"squeue does not hold job {job}; lockstep slurm why {job} says how it ended"
        )
    for one in jobs:
        click.echo(f"{held.job_line(one)}; of {one.user}")
    if dry_run:
        click.echo(shlex.join(["scancel", *slurm.cluster_options(), job]))
        return
    cancelling.scancel([job], {one.user for one in jobs})
    click.echo(f"cancelled: job {job}")


def _cancel_in(folder: str, name: str | None, point: int | None, *, dry_run: bool) -> None:
    """Cancel jobs of a campaign's folder, and say what follows."""
    from lockstep.slurm import client as slurm
    from lockstep.slurm.status import cancelling

    results = results_of(folder)
    opened = cancelling.chosen(results, name, point)
    titles = cancelling.ids(opened, point)
    if not titles:
        click.echo("No job is waiting or running; nothing to cancel.")
        return
    command = shlex.join(["scancel", *slurm.cluster_options(), *titles])
    if dry_run:
        click.echo(command)
        return
    cancelling.cancel(results, opened, point)
    for job_id, title in titles.items():
        click.echo(f"cancelled: {title}, job {job_id}")
    typed = shlex.quote(folder)
    if name is None and point is None:
        click.echo(f"Next: lockstep resume {typed}  # measures what is missing")
    else:
        click.echo(
            f"Next: lockstep status {typed}  # once its other jobs have ended, lockstep resume "
            "measures what is missing"
        )


def collect(folder: str, *, as_json: bool) -> None:
    """Make the JSON of each launch from its journal, and ask accounting about the jobs."""
    from lockstep.report.tracker import live
    from lockstep.slurm.status import collection

    results = results_of(folder)
    made = collection.collect(results, _say)
    live.tell(results.path, _say)
    if as_json:
        click.echo(json.dumps(made, indent=1))
        return
    click.echo(f"{counted(len(made['launches']), 'launch')} collected")
    for line in _account_lines(made["jobs"]):
        click.echo(line)
    click.echo(f"Next: lockstep report {shlex.quote(folder)}")


def _say(text: str) -> None:
    click.echo(text, err=True)


def _account_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the jobs cost together, and how many of them are not known of."""
    if not rows:
        return []
    accounts = [row["accounting"] for row in rows if row["accounting"]]
    measured = sum(row["measured_rank_hours"] or 0.0 for row in rows)
    sums = {unit: sum(a.get(key) or 0.0 for a in accounts) for key, unit in HOURS.items()}
    totals = [f"{hours:.3g} {unit}" for unit, hours in sums.items() if hours]
    lines = [f"accounting of {len(accounts)} of {counted(len(rows), 'job')}"]
    if totals:
        lines[0] += f": {', '.join(totals)}; {measured:.3g} rank-hours in timed regions"
    return lines
