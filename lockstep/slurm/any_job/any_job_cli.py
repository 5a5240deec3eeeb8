"""The commands about any job and its nodes: jobs, nodes, why, eff, top and shell."""

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import click

from lockstep.campaign.campaign import Campaign
from lockstep.core.formats import parse_limit
from lockstep.slurm.site import Site
from lockstep.slurm.submit.cli_options import (
    FoundSite,
    as_json_option,
    dry_run_option,
    say_site,
    site_option,
)
from lockstep.slurm.submit.job_spec import check_nodes, directives, limit_s, share
from lockstep.slurm.submit.script import shell_in_image


def _print_json(**facts: Any) -> None:
    click.echo(json.dumps(facts, indent=1))


@click.command()
@click.option(
    "--user", metavar="NAME", help="Show the jobs of this user, if the cluster allows it."
)
@click.option(
    "--ended",
    type=click.FloatRange(min=0, min_open=True, max=24 * 366),
    metavar="HOURS",
    help="Also show jobs that ended within the last HOURS.",
)
@as_json_option
def jobs(user: str | None, ended: float | None, *, as_json: bool) -> None:
    """Show your jobs, also those of other programs: why they wait, until when they run.

    \b
    Examples:
      lockstep slurm jobs
      lockstep slurm jobs --ended 24
      lockstep slurm jobs --json
    """
    from lockstep.slurm import client as slurm
    from lockstep.slurm.any_job import held

    whose = user or slurm.own_name()
    found = held.of_user(whose)
    shown = {job.job_id for job in found}
    over = held.lately(whose, ended) if ended else {}
    over = {job_id: account for job_id, account in over.items() if job_id not in shown}
    if as_json:
        _print_json(jobs=[held.facts(job) for job in found], ended=over)
        return
    for job in found:
        click.echo(held.job_line(job))
    for job_id, account in over.items():
        click.echo("; ".join(line.strip() for line in held.end_lines(job_id, account)[:-1]))
    if not found and not over:
        click.echo(
            f"{whose} has no pending or running job; --ended 24 shows the jobs of the last day."
        )
    waiting = next((job for job in found if job.is_waiting), None)
    if waiting is not None:
        click.echo(f"Next: lockstep slurm why {waiting.array_id}")


@click.command()
@as_json_option
def nodes(*, as_json: bool) -> None:
    """Show each node's state, used CPUs, memory and GPUs, its jobs, and why it is drained.

    \b
    Examples:
      lockstep slurm nodes
      lockstep slurm nodes --json
    """
    from lockstep.slurm.any_job import node_use

    shown = node_use.nodes()
    if as_json:
        _print_json(nodes=shown)
        return
    for line in (line for node in shown for line in node_use.node_lines(node)):
        click.echo(line)
    if not shown:
        click.echo("Slurm shows you no nodes; lockstep doctor shows the partitions.")


@click.command()
@click.argument("job")
@as_json_option
def why(job: str, *, as_json: bool) -> None:
    """Show why JOB waits and when it may start, its state, or how it ended.

    \b
    Examples:
      lockstep slurm why 4711
      lockstep slurm why 4711_3
    """
    from lockstep.slurm.any_job import held

    found = held.of_job(held.checked(job))
    if found:
        waits = [(each, held.wait(each) if each.is_waiting else None) for each in found]
        if as_json:
            _print_json(jobs=[held.facts(each) | {"wait": wait} for each, wait in waits])
            return
        for each, wait in waits:
            lines = [held.job_line(each)] if wait is None else held.wait_lines(each, wait)
            click.echo("\n".join(lines))
        return
    ended = {
        job_id: account | {"reason": held.reason_of_end(job_id, account["state"])}
        for job_id, account in held.ended([job]).items()
    }
    if as_json:
        _print_json(ended=ended)
        return
    for job_id, account in ended.items():
        click.echo("\n".join(held.end_lines(job_id, account)))


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@as_json_option
def eff(job_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Show how well each JOB used its CPUs, memory and time, as seff does, and what to request.

    \b
    Examples:
      lockstep slurm eff 4711
      lockstep slurm eff 4711 4712_3 --json
    """
    from lockstep.slurm.any_job import held

    accounts = held.ended(list(job_ids))
    if as_json:
        _print_json(jobs={key: one | {"hints": held.hints(one)} for key, one in accounts.items()})
        return
    for job_id, account in accounts.items():
        click.echo("\n".join(held.use_lines(job_id, account)))


@click.command()
@click.argument("job")
@click.option(
    "--every",
    type=click.FloatRange(min=2, max=3600),
    metavar="SECONDS",
    help="Repeat every SECONDS until the job has ended.",
)
@click.option(
    "--csv",
    "table",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also append a row per GPU to this table: use, memory, power, temperature.",
)
@as_json_option
def top(job: str, every: float | None, table: Path | None, *, as_json: bool) -> None:
    """Show what the nodes of a running JOB do now: GPUs, CPUs, memory, your processes.

    An extra step (srun --overlap) reads them and takes no resources from the job's own steps; if it
    cannot start, the numbers come from sstat.

    \b
    Examples:
      lockstep slurm top 4711
      lockstep slurm top 4711 --every 10 --csv use.csv
    """
    from lockstep.slurm.any_job import held, node_use

    found = held.of_job(held.checked(job))
    running = [one for one in found if one.state.name == "RUNNING"]
    if not running:
        state = f"it {found[0].state.meaning}" if found else "it is not in squeue"
        raise ValueError(
            f"job {job} is not running: {state}; lockstep slurm why {job} shows the reason"
        )
    while running:  # of an array the first element
        nodes, steps = [], []
        try:
            nodes = node_use.look(running[0].job_id, running[0].num_nodes or 1)
        except RuntimeError as error:
            click.echo(f"Cannot read the nodes, so sstat is used: {error}", err=True)
            steps = node_use.steps(running[0].job_id)
        if table is not None:
            node_use.add_to_table(table, time.strftime("%Y-%m-%dT%H:%M:%S%z"), nodes)
        if as_json:
            _print_json(nodes=nodes, steps=steps)
        else:
            click.echo(f"{time.strftime('%H:%M:%S')} {held.job_line(running[0])}")
            for line in node_use.look_lines(nodes, steps):
                click.echo(line)
        if every is None:
            return
        time.sleep(every)
        running = [one for one in held.of_job(job) if one.state.name == "RUNNING"]


@click.command()
@click.argument("campaign")
@site_option("site", "Site file, or a built-in one: example, lumi-g ...")
@click.option("--partition", help="Use another partition of the site.")
@click.option(
    "--world-size",
    type=click.IntRange(min=1),
    help="World size of the point; the smallest by default.",
)
@click.option("--time", "limit", metavar="HH:MM:SS", help="Time limit; an hour by default.")
@dry_run_option
def shell(
    campaign: str,
    site: FoundSite,
    partition: str | None,
    world_size: int | None,
    limit: str | None,
    *,
    dry_run: bool,
) -> None:
    """Open a shell in an allocation like that of a point of CAMPAIGN, in the site's image.

    \b
    Examples:
      lockstep slurm shell ladder --site example --world-size 8 --dry-run
    """
    from lockstep.campaign import campaign as campaigns
    from lockstep.slurm import client as slurm
    from lockstep.slurm import site as sites

    say_site(site)
    chosen, where = campaigns.load(campaign), sites.load(site.source)
    where = where.in_partition(partition) if partition else where
    slurm.on_cluster(where.cluster)
    size = world_size or min(chosen.world_sizes)
    time_s = None if limit is None else parse_limit(limit)
    command = shell_command(chosen, where, size, time_s, Path.cwd())
    click.echo(shlex.join(command), err=not dry_run)
    if not dry_run:
        slurm.require("salloc")
        os.execvpe(command[0], command, slurm.environment())  # noqa: S606, without a shell


# Options of sbatch that salloc does not know.
OF_SCRIPTS = ("--signal=", "--open-mode=", "--output=", "--no-requeue")
USUAL_S = 3600
NAME = "lockstep-shell"


def shell_command(
    campaign: Campaign, site: Site, world_size: int, time_s: int | None, folder: Path
) -> tuple[str, ...]:
    """Return the command that opens the shell on the first node of the allocation.

    It is salloc, which holds the whole allocation, around one `srun --pty`: within the shell
    `srun --overlap` then starts as many ranks as the point has. The time limit is an hour by
    default, or what the site gives if that is less. The image sees the folder, too.

    Raises:
        ValueError: Campaign, site and world size do not fit.
    """
    resources = share(campaign, site)
    check_nodes(resources, site, world_size)
    most_s = min(parse_limit(site.time), limit_s(site) or parse_limit(site.time))
    asked_s = min(USUAL_S, most_s) if time_s is None else time_s
    wanted = directives(site, resources, NAME, world_size, asked_s, "/dev/null")
    options = [one for one in wanted if not one.startswith(OF_SCRIPTS)]
    task = ["--overlap", "--pty", "--nodes=1", "--ntasks=1"]
    task += [f"--cpus-per-task={resources.cpus_per_task * resources.on_node(world_size)}"]
    if site.container is not None:
        shell: tuple[str, ...] = (
            *shell_in_image(site, str(folder), is_gpu=resources.is_gpu),
            "bash",
        )
    else:
        lines = [f"module load {shlex.quote(module)}" for module in site.modules]
        lines += [f". {shlex.quote(site.venv + '/bin/activate')}"] if site.venv else []
        shell = ("bash", "--login", "-c", " && ".join([*lines, "exec bash -i"]))
    return ("salloc", *options, "srun", *task, "--export=ALL", *shell)
