"""The commands from a campaign to jobs: plan, render and submit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.campaign import Campaign
    from slurm_templates.job import JobSpec, Mode
    from slurm_templates.results import Results
    from slurm_templates.site import Site


def _campaign_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what names a campaign, a site and a folder."""
    options = [
        click.argument("campaign"),
        click.option("--site", required=True, help="Site file, or a built-in one: testbed."),
        click.option(
            "--to",
            "root",
            type=click.Path(path_type=Path, file_okay=False),
            default="results",
            show_default=True,
            help="Folder of results, seen by all nodes; the campaign's name is added.",
        ),
        click.option(
            "--mode",
            type=click.Choice(["ladder", "job"]),
            default="ladder",
            show_default=True,
            help="One allocation for the whole ladder, or one job per world size.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _read(campaign: str, site: str, root: Path) -> "tuple[Campaign, Site, Results]":
    from bench import campaign as campaigns
    from slurm_templates import site as sites
    from slurm_templates.results import Results

    chosen = campaigns.load(campaign)
    return chosen, sites.load(site), Results((root / chosen.name).resolve())


def _missing_jobs(
    campaign: "Campaign", site: "Site", results: "Results", mode: "Mode"
) -> "list[JobSpec]":
    from bench.campaign import plan as launches_of
    from slurm_templates.job import jobs, settle

    settled = settle(campaign, site)
    missing = results.missing(settled, launches_of(settled))
    return jobs(settled, site, results.path, mode, missing)


@click.command()
@_campaign_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def plan(campaign: str, site: str, root: Path, mode: "Mode", *, as_json: bool) -> None:
    """Show the jobs that CAMPAIGN still needs on a site, and what they may cost.

    \b
    Examples:
      lockstep plan campaign.toml --site site.toml
      lockstep plan campaign.toml --site site.toml --mode job --json
    """
    specs = _missing_jobs(*_read(campaign, site, root), mode)
    rows = [_row(spec) for spec in specs]
    if as_json:
        click.echo(json.dumps({"jobs": rows}, indent=1))
        return
    for row in rows:
        click.echo(
            f"{row['job']}: {row['num_nodes']} node(s), up to {row['num_ranks']} ranks, "
            f"{row['num_launches']} launches; at most {row['node_hours']:.2f} node-hours, "
            f"{row['gpu_hours']:.2f} GPU-hours"
        )
    total = sum(row["gpu_hours"] for row in rows)
    click.echo(f"{len(rows)} job(s), at most {total:.2f} GPU-hours in all")


def _row(spec: "JobSpec") -> dict[str, Any]:
    return {
        "job": spec.name,
        "num_nodes": spec.num_nodes,
        "num_ranks": spec.num_ranks,
        "num_launches": len(spec.steps),
        "time_s": spec.time_s,
        "node_hours": spec.node_hours,
        "gpu_hours": spec.gpu_hours,
    }


@click.command()
@_campaign_options
@click.option("--force", is_flag=True, help="Replace scripts that read otherwise.")
def render(campaign: str, site: str, root: Path, mode: "Mode", *, force: bool) -> None:
    """Write the batch scripts that CAMPAIGN still needs, to be sent by hand.

    \b
    Example:
      lockstep render campaign.toml --site site.toml
      sbatch results/campaign/jobs/campaign.sh
    """
    from slurm_templates.submission import prepare, write_scripts

    chosen, where, results = _read(campaign, site, root)
    with results.alone():
        specs = prepare(chosen, where, results, mode)
        for path in write_scripts(specs, where, force=force):
            click.echo(path)


@click.command()
@_campaign_options
@click.option("-n", "--dry-run", is_flag=True, help="Print scripts and commands, send none.")
def submit(campaign: str, site: str, root: Path, mode: "Mode", *, dry_run: bool) -> None:
    """Send the jobs that CAMPAIGN still needs; sent again, they measure only what is missing.

    \b
    Examples:
      lockstep submit campaign.toml --site site.toml --dry-run
      lockstep submit campaign.toml --site site.toml
    """
    from slurm_templates import submission
    from slurm_templates.job import render as script_of

    chosen, where, results = _read(campaign, site, root)
    if dry_run:
        for spec in _missing_jobs(chosen, where, results, mode):
            click.echo(f"# sbatch --parsable {results.jobs_folder / spec.name}.sh")
            click.echo(script_of(spec, where))
        return
    sent = 0
    for name, job_id in submission.submit(chosen, where, results, mode):
        click.echo(f"{name}: job {job_id}")
        sent += 1
    click.echo(f"Next: lockstep status {results.path}" if sent else "Nothing is missing.")
