"""The commands about any job and its nodes: jobs, nodes, why, eff, top and shell."""

import json
import math
import os
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from lockstep.campaign import campaign as campaigns
from lockstep.core.formats import counted, parse_limit
from lockstep.slurm import client as slurm
from lockstep.slurm import site as sites
from lockstep.slurm.any_job import held, node_use
from lockstep.slurm.submit.cli_options import as_json_option, dry_run_option, site_option
from lockstep.slurm.submit.job_spec import share
from lockstep.slurm.submit.script import shell_in_image

USUAL_S = 3600  # limit of a shell
# Options of sbatch that salloc does not have.
OF_SCRIPTS = ("--signal=", "--open-mode=", "--output=", "--no-requeue")


def _print_json(**facts: Any) -> None:
    click.echo(json.dumps(facts, indent=1))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


@click.command()
@click.option("--user", metavar="NAME",
              help="Show the jobs of this user, if the cluster allows it.")  # fmt: skip
@click.option("--ended", type=click.FloatRange(min=0, min_open=True, max=24 * 366),
              metavar="HOURS",
              help="Also show jobs that ended within the last HOURS.")  # fmt: skip
@as_json_option
def jobs(user: str | None, ended: float | None, *, as_json: bool) -> None:
    """Show all your jobs, also jobs that Lockstep did not submit.

    The list says why each pending job waits, and how long each running job may still run.

    \b
    Examples:
      lockstep slurm jobs
      lockstep slurm jobs --ended 24
      lockstep slurm jobs --json
    """
    owner = user or slurm.own_name()
    queued = held.list_jobs(owner)
    shown = {job.job_id for job in queued}
    over = held.list_ended(owner, ended) if ended else {}
    over = {job_id: account for job_id, account in over.items() if job_id not in shown}
    if as_json:
        _print_json(jobs=[held.facts(job) for job in queued], ended=over)
        return
    _print_lines(map(held.job_line, queued))
    for job_id, account in over.items():
        click.echo("; ".join(line.strip() for line in held.end_lines(job_id, account)[:-1]))
    if not queued and not over:
        more = "; --ended 24 shows the jobs of the last day."
        if ended:
            more = (
                f", and none ended in the last {counted(math.ceil(ended), 'hour')}; --user NAME "
                "shows another user's jobs."
            )
        click.echo(f"user {owner} has no pending or running job{more}")
    waiting = next((job for job in queued if job.is_waiting), None)
    if waiting is not None:
        click.echo(f"Next: lockstep slurm why {waiting.array_id}  # shows why this job waits")


@click.command()
@as_json_option
def nodes(*, as_json: bool) -> None:
    """Show each node's state, used CPUs, memory and GPUs, its jobs, and why a node is drained.

    \b
    Examples:
      lockstep slurm nodes
      lockstep slurm nodes --json
    """
    shown = node_use.nodes()
    if as_json:
        _print_json(nodes=shown)
        return
    _print_lines(line for node in shown for line in node_use.node_lines(node))
    if not shown:
        click.echo("Slurm shows you no nodes; run lockstep doctor to see the partitions.")


@click.command()
@click.argument("job")
@as_json_option
def why(job: str, *, as_json: bool) -> None:
    """Show why JOB waits and when it may start. If JOB has begun, show its state or how it ended.

    \b
    Examples:
      lockstep slurm why 4711
      lockstep slurm why 4711_3
    """
    queued, ended = held.find_job(held.check_id(job)), dict[str, Any]()
    waits = [(each, held.wait(each) if each.is_waiting else None) for each in queued]
    if not queued:
        ended = {
            job_id: account | {"reason": held.reason_of_end(job_id, account["state"])}
            for job_id, account in held.read_accounts([job]).items()
        }
    if as_json and queued:
        _print_json(jobs=[held.facts(each) | {"wait": wait} for each, wait in waits])
    elif as_json:
        _print_json(ended=ended)
    else:
        for each, wait in waits:
            _print_lines([held.job_line(each)] if wait is None else held.wait_lines(each, wait))
        for job_id, account in ended.items():
            _print_lines(held.end_lines(job_id, account))


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
    accounts = held.read_accounts(list(job_ids))
    if as_json:
        _print_json(jobs={key: a | {"hints": held.hints(a)} for key, a in accounts.items()})
        return
    for job_id, account in accounts.items():
        _print_lines(held.use_lines(job_id, account))


@click.command()
@click.argument("job")
@click.option("--every", type=click.FloatRange(min=2, max=3600), metavar="SECONDS",
              help="Repeat every SECONDS until the job has ended.")  # fmt: skip
@click.option("--csv", "table", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Also append a row per GPU to this CSV file, with the GPU's use, memory, "
                   "power and temperature.")  # fmt: skip
@as_json_option
def top(job: str, every: float | None, table: Path | None, *, as_json: bool) -> None:
    """Show how busy the nodes of a running JOB are now: GPUs, CPUs, memory, your processes.

    An extra step of the job (srun --overlap) reads the nodes and takes no resources from the
    job. If this step cannot start, the numbers come from sstat.

    \b
    Examples:
      lockstep slurm top 4711
      lockstep slurm top 4711 --every 10 --csv use.csv
    """
    queued = held.find_job(held.check_id(job))
    running = [each for each in queued if each.state.name == "RUNNING"]
    if not running:
        if queued and queued[0].state.name not in slurm.ENDED:
            raise ValueError(
                f"job {job} is not running: {held.job_line(queued[0])}; lockstep slurm why {job} "
                "shows the reason"
            )
        reason = "the job has ended" if queued else "the job has ended or never existed"
        raise ValueError(
            f"job {job} is not running: {reason}; lockstep slurm eff {job} shows what the job used"
        )
    while running:  # for an array, only the first element is shown
        nodes, steps = [], []
        try:
            nodes = node_use.look(running[0].job_id, running[0].num_nodes or 1)
        except RuntimeError as error:
            click.echo(
                f"The numbers come from sstat, because the nodes cannot be read: {error}", err=True
            )
            steps = node_use.steps(running[0].job_id)
        if table is not None:
            node_use.add_to_table(table, time.strftime("%Y-%m-%dT%H:%M:%S%z"), nodes)
        if as_json:
            _print_json(nodes=nodes, steps=steps)
        else:
            click.echo(f"{time.strftime('%H:%M:%S')} {held.job_line(running[0])}")
            _print_lines(node_use.look_lines(nodes, steps))
        if every is None:
            return
        time.sleep(every)
        running = [each for each in held.find_job(job) if each.state.name == "RUNNING"]


@click.command()
@click.argument("campaign")
@site_option("site", "Site file, or the name of a built-in site, such as example or lumi-g.")
@click.option("--partition", help="Use another partition of the site.")
@click.option("--world-size", type=click.IntRange(min=1),
              help="World size that decides the number of nodes; by default the smallest world "
                   "size of CAMPAIGN.")  # fmt: skip
@click.option(
    "--time", "limit", metavar="HH:MM:SS", help="Time limit of the shell; one hour by default."
)
@dry_run_option
def shell(
    campaign: str,
    site: str,
    partition: str | None,
    world_size: int | None,
    limit: str | None,
    *,
    dry_run: bool,
) -> None:
    """Open a shell in the site's image, on as many nodes as CAMPAIGN needs for one world size.

    \b
    Examples:
      lockstep slurm shell ladder --site example --world-size 8 --dry-run
    """
    chosen, where = campaigns.load(campaign), sites.load(site, partition, is_draft=dry_run)
    slurm.set_cluster(where.cluster)
    size, resources = world_size or min(chosen.world_sizes), share(chosen, where)
    resources.check_nodes(size)
    limit_s = min(USUAL_S, where.time_s) if limit is None else parse_limit(limit)
    wanted = resources.directives("lockstep-shell", size, limit_s, "/dev/null")
    options = [option for option in wanted if not option.startswith(OF_SCRIPTS)]
    # salloc holds the allocation, and runs the shell on its first node. In the shell,
    # `srun --overlap` starts as many ranks as the point has.
    task = ["--overlap", "--pty", "--nodes=1", "--ntasks=1"]
    task += [f"--cpus-per-task={resources.cpus_per_task * resources.ranks_on_node(size)}"]
    if where.container is not None:  # the image sees this folder, too
        inside = [*shell_in_image(where, str(Path.cwd()), is_gpu=resources.is_gpu), "bash"]
    else:
        lines = [f"module load {shlex.quote(module)}" for module in where.modules]
        lines += [f". {shlex.quote(where.venv + '/bin/activate')}"] if where.venv else []
        inside = ["bash", "--login", "-c", " && ".join([*lines, "exec bash -i"])]
    command = ("salloc", *options, "srun", *task, "--export=ALL", *inside)
    click.echo(shlex.join(command), err=not dry_run)
    if not dry_run:
        slurm.require("salloc")
        os.execvpe(command[0], command, slurm.environment())  # noqa: S606, without a shell
