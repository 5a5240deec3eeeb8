"""The commands that write and send jobs: submit and resume."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.core.formats import counted
from lockstep.slurm.submit.cli_options import (
    DROP_ORDER,
    Budget,
    FoundSite,
    as_json_option,
    campaign_options,
    dry_run_option,
    say_site,
    script_options,
)

if TYPE_CHECKING:
    from lockstep.slurm.submit.job_spec import JobSpec, Profiler
    from lockstep.slurm.submit.submission import Work


SENDING_FILE = "submit.sh"


def work_of(
    campaign: str,
    site: FoundSite,
    root: Path,
    partition: str | None = None,
    budget: Budget | None = None,
    profiler: "Profiler | None" = None,
    debug_comm: bool = False,
    *,
    is_draft: bool = False,
) -> "Work":
    """Return a campaign's work at a site, by the options of a command.

    With `is_draft` keys of the site may still be to be filled in.

    Raises:
        ValueError: Campaign, site and options do not fit, or results were measured otherwise.
    """
    from lockstep.campaign import campaign as campaigns
    from lockstep.slurm import client as slurm
    from lockstep.slurm import site as sites
    from lockstep.slurm.status.sent import Results
    from lockstep.slurm.submit.job import settle
    from lockstep.slurm.submit.submission import Work

    say_site(site)
    chosen, where = campaigns.load(campaign), sites.load(site.source, is_draft=is_draft)
    where = where.in_partition(partition) if partition else where
    slurm.on_cluster(where.cluster)
    results = Results((root / chosen.name).resolve())
    todo = Work(settle(chosen, where), where, results, profiler, debug_comm=debug_comm)
    if budget is not None:
        if profiler is not None:
            raise ValueError("--budget and --profile exclude each other; give one")
        todo = todo.within(budget)
    try:
        results.refuse(todo.campaign, todo.launches)
    except ValueError as error:
        if not is_draft:
            raise
        click.echo(f"Warning: lockstep submit would refuse this: {error}", err=True)
    return todo


def say_dropped(todo: "Work", budget: Budget | None) -> None:
    """Print to stderr what a budget left out."""
    if budget and todo.dropped:
        changes, unit = ", ".join(todo.dropped), budget.unit or todo.unit
        click.echo(
            f"Left out to stay within {budget.hours:g} {unit}: {changes} (order: {DROP_ORDER}).",
            err=True,
        )


def job_facts(spec: "JobSpec") -> dict[str, Any]:
    """Return what JSON says of a job."""
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


def _write(todo: "Work", *, force: bool) -> None:
    """Write the batch scripts, and how each is sent by hand."""
    from lockstep.core import files
    from lockstep.slurm.submit.job_spec import sending_script
    from lockstep.slurm.submit.submission import write_scripts

    path = todo.results.path / SENDING_FILE
    with todo.results.alone():
        for script in write_scripts(todo, force=force):
            click.echo(script)
        if len(todo.jobs) > 1:
            sends_all = sending_script((job.name, job.script, job.after) for job in todo.jobs)
            files.write_atomically(path, sends_all)
            click.echo(path)
    for number, spec in enumerate(todo.jobs):
        click.echo(("Next: " if number == 0 else "      ") + _command(spec), err=True)
    if len(todo.jobs) > 1:
        click.echo(f"  or: bash {_quoted(path)}", err=True)


def _command(spec: "JobSpec") -> str:
    """Return how a job is sent, with `<id of NAME>` for ids that are not known yet."""
    from lockstep.slurm.submit.job_spec import sending_command

    return sending_command(spec.script, spec.after)


@click.command()
@campaign_options
@script_options
@dry_run_option
@click.option("--by-hand", is_flag=True, help="Write the scripts, and submit nothing.")
@click.option("--force", is_flag=True, help="With --by-hand: replace scripts with other contents.")
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
    """Submit the jobs of CAMPAIGN; run again, it measures only what is missing.

    \b
    Examples:
      lockstep submit campaign.toml --site site.toml --dry-run
      lockstep submit campaign.toml --site site.toml
      lockstep submit campaign.toml --site site.toml --by-hand
    """
    if by_hand and (dry_run or as_json):
        raise click.UsageError("--by-hand excludes --dry-run and --json")
    todo = work_of(**options, budget=budget)
    say_dropped(todo, budget)
    if by_hand:
        _write(todo, force=force)
        return
    _send(todo, dry_run=dry_run, as_json=as_json)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--site", "changed", help="Site file, if it has changed.")
@click.option("--flagged", is_flag=True, help="Also measure launches with a flag again.")
@dry_run_option
@as_json_option
def resume(
    folder: Path, changed: str | None, *, flagged: bool, dry_run: bool, as_json: bool
) -> None:
    """Submit jobs for the missing launches of FOLDER's campaign, at its last site.

    Launches to measure again are moved to launches-set-aside/; nothing is deleted.

    \b
    Examples:
      lockstep resume results/campaign --dry-run
      lockstep resume results/campaign --site site.toml
      lockstep resume results/campaign --flagged
    """
    from lockstep.slurm import client as slurm
    from lockstep.slurm import site as sites
    from lockstep.slurm.status.sent import Results
    from lockstep.slurm.submit import submission

    results = Results(folder.resolve())
    campaign, before = submission.stored(results)
    todo = submission.Work(campaign, sites.load(changed) if changed else before, results)
    slurm.on_cluster(todo.site.cluster or results.cluster())
    if flagged:
        again = submission.flagged(results, todo.launches)
        todo = replace(todo, again=tuple(again))
        click.echo(f"{counted(len(again), 'flagged launch')}.", err=True)
    _send(todo, dry_run=dry_run, as_json=as_json)


def _send(todo: "Work", *, dry_run: bool, as_json: bool) -> None:
    """Say what the jobs may cost and send them, or show them."""
    from lockstep.slurm import client as slurm
    from lockstep.slurm.submit.submission import submit as send

    if todo.jobs:
        click.echo(todo.at_most, err=True)
    if dry_run:
        _show(todo, as_json=as_json)
        return
    sent = []
    for job in send(todo):
        sent.append(job)
        if not as_json:
            click.echo(f"{job.spec.name}: job {job.id}, output {job.output}")
    if as_json:
        rows = [
            {"job": job.spec.name, "id": job.id, "output": str(job.output),
             "after": [dependency.job for dependency in job.spec.after]}
            for job in sent
        ]  # fmt: skip
        click.echo(json.dumps({"jobs": rows}, indent=1))
        return
    folder = _quoted(todo.results.path)
    if not sent:
        click.echo(f"Nothing is missing.\nNext: lockstep status --collect {folder}")
        return
    # Commands to copy, with the ids and paths of these jobs.
    jobs = f"--jobs={','.join(job.id for job in sent)}"
    click.echo(f"Watch: {shlex.join(['squeue', *slurm.cluster_options(), jobs])}")
    click.echo(f"       tail -F {_quoted(sent[0].output)}")
    click.echo(f"Next: lockstep status {folder}")
    image = todo.site.container.image if todo.site.container else ""
    if image.startswith("/") and not Path(image).is_file():
        click.echo(
            f"Warning: container.image {image} is not a file on this machine; "
            "every job will fail unless the nodes see it.",
            err=True,
        )


def _show(todo: "Work", *, as_json: bool) -> None:
    """Show the jobs that would be sent, and warn of those that may still measure the same."""
    from lockstep.slurm.submit.submission import refuse_unfinished

    if as_json:
        rows = [job_facts(spec) | {"command": _command(spec)} for spec in todo.jobs]
        click.echo(json.dumps({"jobs": rows}, indent=1))
    else:
        for name in todo.again:
            click.echo(f"# set aside: {name}")
        for spec, text in zip(todo.jobs, todo.scripts(), strict=True):
            click.echo(f"# {_command(spec)}")
            click.echo(text)
        if not todo.jobs:
            click.echo("Nothing is missing.")
    if todo.results.jobs_folder.exists() and shutil.which("squeue"):
        try:
            refuse_unfinished(todo.results)
        except (ValueError, RuntimeError) as error:
            click.echo(f"Warning: {error}", err=True)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
