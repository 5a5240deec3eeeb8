"""The commands that write and send jobs: submit and resume."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lockstep.campaign import campaign as campaigns
from lockstep.core import files
from lockstep.core.formats import counted
from lockstep.slurm import client as slurm
from lockstep.slurm import site as sites
from lockstep.slurm.remote import OverSsh
from lockstep.slurm.status.sent import Results
from lockstep.slurm.submit import submission
from lockstep.slurm.submit.cli_options import (
    DROP_ORDER,
    Budget,
    as_json_option,
    campaign_options,
    dry_run_option,
)
from lockstep.slurm.submit.job import settle
from lockstep.slurm.submit.job_spec import JobSpec, Profiler, sending_command, sending_script
from lockstep.slurm.submit.submission import Work, refuse_unfinished

SENDING_FILE = "submit.sh"


def work_of(
    campaign: str,
    site: str,
    root: Path,
    partition: str | None = None,
    budget: Budget | None = None,
    profiler: Profiler | None = None,
    debug_comm: bool = False,
    *,
    is_draft: bool = False,
    is_sent: bool = True,
) -> Work:
    """Return a campaign's work at a site, from the options of a command.

    Raises ValueError if the options do not fit together, or if the folder has other results. With
    `is_draft` other results only cause a warning, and without `is_sent`, when no script is sent or
    written, so do placeholders in the site file.
    """
    chosen, where = campaigns.load(campaign), sites.load(site, partition, is_draft=not is_sent)
    if where.to_fill_in and not is_draft:
        keys = " and ".join(where.to_fill_in)
        click.echo(
            f"Warning: fill in {keys} in {site}; until then lockstep submit refuses this file.",
            err=True,
        )
    slurm.set_cluster(where.cluster)
    results = Results((root / chosen.name).resolve())
    todo = Work(settle(chosen, where), where, results, profiler, debug_comm=debug_comm)
    if budget is not None:
        if profiler is not None:
            raise ValueError("--budget and --profile exclude each other; give one")
        todo = todo.fit_budget(budget)
    try:
        results.refuse(todo.campaign, todo.launches)
    except ValueError as error:
        if not is_draft:
            raise
        click.echo(f"Warning: lockstep submit would refuse this campaign: {error}", err=True)
    if budget and todo.dropped:
        unit, dropped = budget.unit or todo.unit, ", ".join(todo.dropped)
        click.echo(
            f"Left out to stay within {budget.hours:g} {unit}: {dropped}. {DROP_ORDER}",
            err=True,
        )
    return todo


def job_facts(spec: JobSpec) -> dict[str, Any]:
    return {
        "job": spec.name,
        "kind": spec.kind,
        "num_elements": spec.num_elements,
        "num_nodes": spec.num_nodes,
        "num_ranks": spec.num_ranks,
        "num_launches": len(spec.launches),
        "time_s": spec.time_s,
        "node_hours": spec.node_hours,
        "gpu_hours": spec.gpu_hours,
        "after": [dependency.job for dependency in spec.after],
    }


def _write(todo: Work, *, force: bool) -> None:
    """Write the batch scripts, and print the commands that submit them by hand."""
    path = todo.results.path / SENDING_FILE
    with todo.results.alone():
        for script in submission.write_scripts(todo, force=force):
            click.echo(script)
        if len(todo.jobs) > 1:
            files.write_atomically(path, sending_script(todo.jobs))
            click.echo(path)
    for number, spec in enumerate(todo.jobs):
        command = sending_command(spec.script, spec.after)
        click.echo(("Next: " if number == 0 else "      ") + command, err=True)
    if len(todo.jobs) > 1:
        click.echo(f"  or: bash {shlex.quote(str(path))}", err=True)


@click.command(cls=OverSsh)
@campaign_options
@click.option(
    "--profile",
    "profiler",
    type=click.Choice(["nsys", "ncu", "perf", "torch"]),
    help="Profile a few steps instead of measuring.",
)
@click.option(
    "--debug-comm", is_flag=True, help="Let NCCL print all debug output, which slows the job."
)
@dry_run_option
@click.option("--by-hand", is_flag=True, help="Write the scripts, and submit nothing.")
@click.option(
    "--force", is_flag=True, help="With --by-hand, also replace scripts that have other contents."
)
@as_json_option
def submit(
    budget: Budget | None,
    *,
    dry_run: bool,
    by_hand: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit the jobs of CAMPAIGN; a second submission measures only what is missing.

    \b
    Examples:
      lockstep submit campaign.toml --site site.toml --dry-run
      lockstep submit campaign.toml --site site.toml
      lockstep submit campaign.toml --site site.toml --by-hand
    """
    if by_hand and (dry_run or as_json):
        raise click.UsageError("--by-hand excludes --dry-run and --json")
    todo = work_of(**options, budget=budget, is_sent=not dry_run)
    if by_hand:
        _write(todo, force=force)
        return
    _send(todo, dry_run=dry_run, as_json=as_json)


@click.command(cls=OverSsh)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--site", "changed", help="Site file to use instead of the site file that was used last."
)
@click.option("--flagged", is_flag=True, help="Also repeat launches that have a warning flag.")
@dry_run_option
@as_json_option
def resume(
    folder: Path, changed: str | None, *, flagged: bool, dry_run: bool, as_json: bool
) -> None:
    """Submit jobs for the missing launches of FOLDER's campaign, on the site that was used last.

    Results that will be measured again are moved to launches-set-aside/; nothing is deleted.

    \b
    Examples:
      lockstep resume results/campaign --dry-run
      lockstep resume results/campaign --site site.toml
      lockstep resume results/campaign --flagged
    """
    results = Results(folder.resolve())
    campaign, before = submission.read_stored(results)
    todo = Work(campaign, sites.load(changed) if changed else before, results)
    slurm.set_cluster(todo.site.cluster or results.cluster())
    if flagged:
        again = submission.find_flagged(results, todo.launches)
        todo = replace(todo, again=tuple(again))
        click.echo(f"{counted(len(again), 'flagged launch')}.", err=True)
    _send(todo, dry_run=dry_run, as_json=as_json)


def _send(todo: Work, *, dry_run: bool, as_json: bool) -> None:
    """Print the most that the jobs can use, then submit the jobs or show them."""
    if todo.jobs:
        click.echo(todo.at_most, err=True)
    if dry_run:
        _show(todo, as_json=as_json)
        return
    rows = []
    for job, job_id in submission.submit(todo):
        output, after = str(job.output(job_id)), [dependency.job for dependency in job.after]
        rows.append({"job": job.name, "id": job_id, "output": output, "after": after})
        if not as_json:
            click.echo(f"{job.name}: job {job_id}, output {output}")
    folder = shlex.quote(str(todo.results.path))
    if as_json:
        click.echo(json.dumps({"jobs": rows}, indent=1))
    elif not rows:
        click.echo(f"Nothing is missing.\nNext: lockstep status --collect {folder}")
    else:
        jobs = f"--jobs={','.join(str(row['id']) for row in rows)}"
        click.echo(f"Watch: {shlex.join(['squeue', *slurm.cluster_options(), jobs])}")
        click.echo(f"       tail -F {shlex.quote(str(rows[0]['output']))}")
        click.echo(f"Next: lockstep status {folder}")
        image = todo.site.container.image if todo.site.container else ""
        if image.startswith("/") and not Path(image).is_file():
            click.echo(
                f"Warning: container.image {image} is not a file on this machine; every job will "
                "fail unless the nodes see this file.",
                err=True,
            )


def _show(todo: Work, *, as_json: bool) -> None:
    """Print the jobs that would be submitted; warn of unfinished jobs that may measure the same."""
    commands = [sending_command(spec.script, spec.after) for spec in todo.jobs]
    if as_json:
        rows = zip(map(job_facts, todo.jobs), commands, strict=True)
        jobs = [facts | {"command": command} for facts, command in rows]
        click.echo(json.dumps({"jobs": jobs}, indent=1))
    else:
        for name in todo.again:
            click.echo(f"# set aside: {name}")
        for command, text in zip(commands, todo.scripts(), strict=True):
            click.echo(f"# {command}\n{text}")
        if not todo.jobs:
            click.echo("Nothing is missing.")
    if todo.results.jobs_folder.exists() and shutil.which("squeue"):
        try:
            refuse_unfinished(todo.results)
        except (ValueError, RuntimeError) as error:
            click.echo(f"Warning: {error}", err=True)
