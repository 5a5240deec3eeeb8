"""The commands from a campaign to jobs: plan, render, submit and resume."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.campaign.campaign import Campaign
    from lockstep.slurm.site import Site
    from lockstep.slurm.submit.excess import Excess
    from lockstep.slurm.submit.job import JobSpec
    from lockstep.slurm.submit.submission import Sent, Work

Command = Callable[..., Any]
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Print what would be done, and do nothing."
)


def _with(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command several options."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_campaign_options = _with(
    click.argument("campaign"),
    click.option("--site", required=True, help="Site file, or a built-in one: example, testbed."),
    click.option(
        "--to",
        "root",
        type=click.Path(path_type=Path, file_okay=False),
        default="results",
        show_default=True,
        help="Folder of results, seen by all nodes; the campaign's name is added.",
    ),
    click.option("--partition", help="Another partition of the site."),
    click.option(
        "--budget",
        type=click.FloatRange(min=0),
        metavar="HOURS",
        help="GPU-hours (node-hours without GPUs) to stay within.",
    ),
)
_script_options = _with(
    click.option(
        "--profile",
        "profiler",
        type=click.Choice(["nsys", "ncu"]),
        help="Profile a few steps in place of measuring.",
    ),
    click.option("--debug-comm", is_flag=True, help="Let NCCL say all that it does; it is slow."),
)


def _work(
    campaign: str,
    site: str,
    root: Path,
    partition: str | None = None,
    budget: float | None = None,
    profiler: Literal["nsys", "ncu"] | None = None,
    debug_comm: bool = False,
) -> "Work":
    from lockstep.campaign import campaign as campaigns
    from lockstep.slurm import site as sites
    from lockstep.slurm.status.sent import Results
    from lockstep.slurm.submit.job import settle
    from lockstep.slurm.submit.submission import Work

    chosen, where = campaigns.load(campaign), sites.load(site)
    where = where.in_partition(partition) if partition else where
    results = Results((root / chosen.name).resolve())
    todo = Work(settle(chosen, where), where, results, profiler, debug_comm=debug_comm)
    if budget is None:
        return todo
    if not math.isfinite(budget):
        raise ValueError(f"--budget {budget} is no number of hours; leave it out for no limit")
    if profiler is not None:
        raise ValueError("--budget is about what is measured; give it without --profile")
    return todo.within(budget)


def _say_dropped(todo: "Work", budget: float | None) -> None:
    from lockstep.slurm.submit.budget import ORDER

    if todo.dropped:
        said = ", ".join(todo.dropped)
        click.echo(f"Dropped to stay within {budget:g} {todo.unit}: {said} ({ORDER}).", err=True)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


@click.command()
@_campaign_options
@click.option(
    "--overhead",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="FRACTION",
    help="To ask for so much more, 0.3 for 30 %: queues, failures, what is measured again.",
)
@as_json_option
def plan(overhead: float, budget: float | None, *, as_json: bool, **given: Any) -> None:
    """Show the jobs that CAMPAIGN still needs on a site, and what they may cost.

    On a login node also which of them a limit of the QOS or the account would hold or refuse.

    \b
    Examples:
      lockstep plan campaign.toml --site site.toml
      lockstep plan campaign.toml --site site.toml --budget 100 --overhead 0.3
    """
    from lockstep.vocabulary.inputs import MAX_RATE

    if not overhead <= MAX_RATE:  # nan, too
        raise ValueError(
            f"--overhead {overhead:g} is no fraction from 0 to {MAX_RATE}; write 0.3 for 30 %"
        )
    todo = _work(**given, budget=budget)
    _say_dropped(todo, budget)
    over = _over_limits(todo)
    if as_json:
        click.echo(json.dumps(_facts(todo, overhead, over), indent=1, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    # All of it before the first line: what does not fit the site is refused alone.
    points, table, summary = _points(todo), _table(todo.jobs), _summary(todo, overhead)
    console.print(points, "")
    console.print(table, "")
    for line in [*summary, *(one.text for one in over or ())]:
        console.print(line, markup=False)
    if todo.jobs:
        click.echo(f"Next: {_submission(budget=budget, **given)}")


def _over_limits(todo: "Work") -> "list[Excess] | None":
    """Return the jobs over a limit of QOS or account; None where no Slurm of the site answers."""
    from lockstep.slurm import associations
    from lockstep.slurm.submit.excess import excesses

    site, jobs = todo.site, todo.jobs  # what does not fit the site is refused alone
    try:
        found = associations.limits_of_jobs(site)
    except RuntimeError as error:
        click.echo(f"Limits of QOS and account are not known: {error}", err=True)
        return None
    return excesses(jobs, site, found)


def _submission(campaign: str, site: str, root: Path, budget: float | None, **options: Any) -> str:
    """Return the command that sends what was planned."""
    import shlex

    given = {"to": None if root == Path("results") else root, **options}
    given["budget"] = budget and f"{budget:g}"
    told = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return shlex.join(["lockstep", "submit", campaign, "--site", site, *told])


def _facts(todo: "Work", overhead: float, over: "list[Excess] | None") -> dict[str, Any]:
    amounts = {
        "node_hours": _node_hours(todo.jobs),
        "gpu_hours": _gpu_hours(todo.jobs),
        "cost": _cost(todo.jobs, todo.site),
    }
    more = {
        f"{name}_with_overhead": None if amount is None else amount * (1 + overhead)
        for name, amount in amounts.items()
    }
    return {
        "jobs": [_row(spec) for spec in todo.jobs],
        "points": [_point(todo, size) for size in sorted(todo.campaign.world_sizes)],
        "over_limits": None if over is None else [asdict(one) for one in over],
        "dropped": todo.dropped,
        "currency": todo.site.currency,
        "overhead": overhead,
        **amounts,
        **more,
    }


def _row(spec: "JobSpec") -> dict[str, Any]:
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
        "after": [one.job for one in spec.after],
    }


def _point(todo: "Work", world_size: int) -> dict[str, Any]:
    from lockstep.slurm.submit.resources import share

    own = share(todo.campaign, todo.site)
    return {
        "world_size": world_size,
        "num_nodes": own.num_nodes(world_size),
        "ranks_per_node": own.on_node(world_size),
        "num_launches": sum(one.world_size == world_size for one in todo.missing),
    }


def _node_hours(specs: "Sequence[JobSpec]") -> float:
    return sum(spec.node_hours for spec in specs)


def _gpu_hours(specs: "Sequence[JobSpec]") -> float:
    return sum(spec.gpu_hours for spec in specs)


def _cost(specs: "Sequence[JobSpec]", site: "Site") -> float | None:
    """Return what the jobs cost at most; None where the site says no price."""
    if site.cost_per_gpu_hour is not None:
        return site.cost_per_gpu_hour * _gpu_hours(specs)
    if site.cost_per_node_hour is not None:
        return site.cost_per_node_hour * _node_hours(specs)
    return None


def _points(todo: "Work") -> "Table":
    table = _empty("ranks", "nodes", "ranks a node", "launches", "cases of a launch")
    cases = _cases(todo)
    for world_size in sorted(todo.campaign.world_sizes):
        table.add_row(*(f"{value:,}" for value in _point(todo, world_size).values()), cases)
    return table


def _cases(todo: "Work") -> str:
    if todo.campaign.jobs.allocation == "array":
        return f"1 of {todo.campaign.num_cases():,}"
    found = todo.campaign.cases_of_studies()
    return ", ".join(f"{count} {study}" for study, count in found.items())


def _empty(*headings: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        is_text = heading in ("job", "after", "cases of a launch")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    return table


def _table(specs: "Sequence[JobSpec]") -> "Table":
    from lockstep.vocabulary.durations import clock

    table = _empty("job", "nodes", "time", "node-hours", "GPU-hours", "after")
    for spec in specs:
        name = spec.name if spec.kind != "array" else f"{spec.name} x {spec.num_elements:,}"
        after = "all above" if spec.kind == "collect" else ", ".join(d.job for d in spec.after)
        hours = (f"{spec.node_hours:,.2f}", f"{spec.gpu_hours:,.2f}")
        table.add_row(name, f"{spec.num_nodes:,}", clock(spec.time_s), *hours, after or "-")
    return table


def _summary(todo: "Work", overhead: float) -> list[str]:
    specs, site = todo.jobs, todo.site
    if not specs:
        return ["Nothing is missing."]
    cost = _cost(specs, site)
    amounts = [(_node_hours(specs), "node-hours"), (_gpu_hours(specs), "GPU-hours")]
    amounts += [] if cost is None else [(cost, str(site.currency))]
    lines = [
        f"{counted(sum(spec.num_elements for spec in specs), 'job')}, "
        f"{counted(len(todo.missing), 'launch', 'launches')}: at most {_said(amounts)}.",
        *_of_repeats(todo.campaign),
    ]
    if overhead:
        asked = [(amount * (1 + overhead), unit) for amount, unit in amounts]
        lines.append(f"With {overhead:.0%} overhead: {_said(asked)}.")
    if todo.campaign.jobs.launch_time:
        lines.append(f"A job's time is {todo.campaign.jobs.launch_time} for each of its launches.")
    return lines


def _of_repeats(campaign: "Campaign") -> list[str]:
    """Return how far the repeats are independent of each other, by the jobs that they are in."""
    if campaign.repeats == 1:
        return []
    if campaign.jobs.share_job:
        return ["The repeats share their jobs, so they are not independent; share_job says so."]
    what = {
        "ladder": "job",
        "job": "job for each world size",
        "array": "array element for each case",
    }[campaign.jobs.allocation]
    return [f"Each repeat has its own {what}, so they are independent."]


def _said(amounts: Sequence[tuple[float, str]]) -> str:
    return ", ".join(f"{amount:,.2f} {unit}" for amount, unit in amounts)


@click.command()
@_campaign_options
@_script_options
@click.option("--force", is_flag=True, help="Replace scripts that read otherwise.")
def render(budget: float | None, *, force: bool, **given: Any) -> None:
    """Write the batch scripts that CAMPAIGN still needs, to be sent by hand.

    \b
    Example:
      lockstep render campaign.toml --site site.toml
      sbatch results/campaign/jobs/campaign-r0.sh
    """
    from lockstep.slurm.submit.submission import write_scripts

    todo = _work(**given, budget=budget)
    _say_dropped(todo, budget)
    with todo.results.alone():
        for path in write_scripts(todo, force=force):
            click.echo(path)
    for number, spec in enumerate(todo.jobs):
        click.echo(("Next: " if number == 0 else "      ") + _command(spec), err=True)


def _command(spec: "JobSpec") -> str:
    """Return how a job is sent, with `<id of NAME>` for ids that are not known yet."""
    from lockstep.slurm.status import by_hand

    return by_hand.command(spec.script, [(one.job, one.how) for one in spec.after])


@click.command()
@_campaign_options
@_script_options
@dry_run_option
@as_json_option
def submit(budget: float | None, *, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Send the jobs that CAMPAIGN still needs; sent again, they measure only what is missing.

    \b
    Examples:
      lockstep submit campaign.toml --site site.toml --dry-run
      lockstep submit campaign.toml --site site.toml
    """
    todo = _work(**given, budget=budget)
    _say_dropped(todo, budget)
    _send(todo, dry_run=dry_run, as_json=as_json)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--site", help="Site file, where it has changed; the one of before by default.")
@click.option("--flagged", is_flag=True, help="Also measure again what has a flag.")
@dry_run_option
@as_json_option
def resume(folder: Path, site: str | None, *, flagged: bool, dry_run: bool, as_json: bool) -> None:
    """Send jobs for what FOLDER's campaign still lacks, at the site it was sent to.

    What is measured again is first moved to launches-set-aside/; nothing is deleted.

    \b
    Examples:
      lockstep resume results/campaign --dry-run
      lockstep resume results/campaign --site site.toml
      lockstep resume results/campaign --flagged
    """
    from lockstep.slurm import site as sites
    from lockstep.slurm.status.sent import Results
    from lockstep.slurm.submit import submission

    results = Results(folder.resolve())
    campaign, before = submission.stored(results)
    todo = submission.Work(campaign, sites.load(site) if site else before, results)
    if flagged:
        again = submission.flagged(results, todo.launches)
        todo = replace(todo, again=tuple(again))
        click.echo(f"{counted(len(again), 'flagged launch', 'flagged launches')}.", err=True)
    _send(todo, dry_run=dry_run, as_json=as_json)


def _send(todo: "Work", *, dry_run: bool, as_json: bool) -> None:
    """Send the jobs, or show them."""
    from lockstep.slurm.submit.submission import submit as send

    if dry_run:
        _show(todo, as_json=as_json)
        return
    sent = []
    for one in send(todo):
        sent.append(one)
        if not as_json:
            click.echo(f"{one.spec.name}: job {one.id}, output {one.output}")
    if as_json:
        click.echo(json.dumps({"jobs": [_sent_facts(one) for one in sent]}, indent=1))
    elif not sent:
        click.echo(f"Nothing is missing.\nNext: lockstep collect {_quoted(todo.results.path)}")
    else:
        click.echo("\n".join(_how_to_watch(todo, sent)))
        _say_unseen(todo.site)


def _say_unseen(site: "Site") -> None:
    """Warn of an image that only the nodes may see, or nobody."""
    if site.container and not Path(site.container.image).is_file():
        click.echo(
            f"Warning: container.image {site.container.image} is not a file on this machine; "
            "unless the nodes see it, every job will fail.",
            err=True,
        )


def _sent_facts(one: "Sent") -> dict[str, Any]:
    after = [dependency.job for dependency in one.spec.after]
    return {"job": one.spec.name, "id": one.id, "output": str(one.output), "after": after}


def _show(todo: "Work", *, as_json: bool) -> None:
    if as_json:
        rows = [_row(spec) | {"command": _command(spec)} for spec in todo.jobs]
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
    folder = _quoted(todo.results.path)
    return [
        f"Watch: squeue --jobs={','.join(one.id for one in sent)}",
        f"       tail -F {_quoted(sent[0].output)}",
        f"Next: lockstep status {folder}",
    ]


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))
