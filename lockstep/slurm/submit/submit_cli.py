"""The commands that write and send jobs: submit and resume."""

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.core.formats import counted
from lockstep.slurm.submit.cli_options import (
    as_json_option,
    campaign_options,
    dry_run_option,
    job_facts,
    say_dropped,
    script_options,
    work_of,
)

if TYPE_CHECKING:
    from lockstep.slurm.site import Site
    from lockstep.slurm.submit.cli_options import Budget
    from lockstep.slurm.submit.job_spec import JobSpec
    from lockstep.slurm.submit.submission import Sent, Work


SENDING_FILE = "submit.sh"


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
@click.option("--by-hand", is_flag=True, help="Write the scripts, and send nothing.")
@click.option("--force", is_flag=True, help="With --by-hand: replace scripts that read otherwise.")
@as_json_option
def submit(
    budget: "Budget | None",
    *,
    dry_run: bool,
    by_hand: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Send the jobs that CAMPAIGN still needs; sent again, they measure only what is missing.

    \b
    Examples:
      lockstep submit campaign.toml --site site.toml --dry-run
      lockstep submit campaign.toml --site site.toml
      lockstep submit campaign.toml --site site.toml --by-hand
    """
    if by_hand and (dry_run or as_json):
        raise click.UsageError("--by-hand writes the scripts; give it without --dry-run and --json")
    todo = work_of(**options, budget=budget)
    say_dropped(todo, budget)
    if by_hand:
        _write(todo, force=force)
        return
    _send(todo, dry_run=dry_run, as_json=as_json)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--site", "changed", help="Site file, where it has changed.")
@click.option("--flagged", is_flag=True, help="Also measure again what has a flag.")
@dry_run_option
@as_json_option
def resume(
    folder: Path, changed: str | None, *, flagged: bool, dry_run: bool, as_json: bool
) -> None:
    """Send jobs for what FOLDER's campaign still lacks, at the site it was sent to.

    What is measured again is first moved to launches-set-aside/; nothing is deleted.

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
    from lockstep.slurm.submit.plan_cli import at_most
    from lockstep.slurm.submit.submission import submit as send

    if todo.jobs:
        click.echo(at_most(todo), err=True)
    if dry_run:
        _show(todo, as_json=as_json)
        _warn_of_unfinished(todo)
        return
    sent = []
    for one in send(todo):
        sent.append(one)
        if not as_json:
            click.echo(f"{one.spec.name}: job {one.id}, output {one.output}")
    if as_json:
        click.echo(json.dumps({"jobs": [_sent_facts(one) for one in sent]}, indent=1))
    elif not sent:
        click.echo(
            f"Nothing is missing.\nNext: lockstep status --collect {_quoted(todo.results.path)}"
        )
    else:
        click.echo("\n".join(_how_to_watch(todo, sent)))
        _say_unseen(todo.site)


def _warn_of_unfinished(todo: "Work") -> None:
    """Warn of jobs that may still measure what was shown as missing."""
    from lockstep.slurm.submit.submission import refuse_unfinished

    if todo.results.jobs_folder.exists() and shutil.which("squeue"):
        try:
            refuse_unfinished(todo.results)
        except (ValueError, RuntimeError) as error:
            click.echo(f"Warning: {error}", err=True)


def _say_unseen(site: "Site") -> None:
    """Warn of an image that is not on this machine: only the nodes may see it."""
    image = site.container.image if site.container else ""
    if image.startswith("/") and not Path(image).is_file():
        click.echo(
            f"Warning: container.image {image} is not a file on this machine; "
            "unless the nodes see it, every job will fail.",
            err=True,
        )


def _sent_facts(sent: "Sent") -> dict[str, Any]:
    after = [dependency.job for dependency in sent.spec.after]
    return {"job": sent.spec.name, "id": sent.id, "output": str(sent.output), "after": after}


def _show(todo: "Work", *, as_json: bool) -> None:
    if as_json:
        rows = [job_facts(spec) | {"command": _command(spec)} for spec in todo.jobs]
        click.echo(json.dumps({"jobs": rows}, indent=1))
        return
    for name in todo.again:
        click.echo(f"# set aside: {name}")
    for spec, text in zip(todo.jobs, todo.scripts(), strict=True):
        click.echo(f"# {_command(spec)}")
        click.echo(text)
    if not todo.jobs:
        click.echo("Nothing is missing.")


def _how_to_watch(todo: "Work", sent: "Sequence[Sent]") -> list[str]:
    """Return commands to copy, with the ids and paths of these jobs."""
    from lockstep.slurm import client as slurm

    folder = _quoted(todo.results.path)
    jobs = f"--jobs={','.join(one.id for one in sent)}"
    return [
        f"Watch: {shlex.join(['squeue', *slurm.cluster_options(), jobs])}",
        f"       tail -F {_quoted(sent[0].output)}",
        f"Next: lockstep status {folder}",
    ]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
