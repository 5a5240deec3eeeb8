"""What the commands about jobs share: options, the work that they ask for, facts of a job."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from lockstep.slurm.submit.spending import UNITS, Budget

if TYPE_CHECKING:
    from lockstep.slurm.submit.job import JobSpec
    from lockstep.slurm.submit.submission import Work

Command = Callable[..., Any]
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Print what would be done, and do nothing."
)


class BudgetType(click.ParamType[Budget]):
    """Hours to stay within: `100` in the site's unit, `500nh` node-hours, `100gh` GPU-hours."""

    name = "HOURS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Budget:
        """Return the budget that a text says."""
        number, suffix = value, ""
        for suffix in UNITS:
            if value.endswith(suffix):
                number = value.removesuffix(suffix)
                break
        try:
            hours = float(number)
        except ValueError:
            hours = math.nan
        if not 0 <= hours < math.inf:
            self.fail(f"{value!r} is no number of hours, such as 100, 500nh or 100gh", param, ctx)
        return Budget(hours, UNITS[suffix] if number != value else None)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command several options."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


campaign_options = with_options(
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
        type=BudgetType(),
        help="Stay within so many GPU-hours (node-hours without GPUs); 500nh: node-hours.",
    ),
)
script_options = with_options(
    click.option(
        "--profile",
        "profiler",
        type=click.Choice(["nsys", "ncu"]),
        help="Profile a few steps in place of measuring.",
    ),
    click.option("--debug-comm", is_flag=True, help="Let NCCL say all that it does; it is slow."),
)


def work_of(
    campaign: str,
    site: str,
    root: Path,
    partition: str | None = None,
    budget: Budget | None = None,
    profiler: Literal["nsys", "ncu"] | None = None,
    debug_comm: bool = False,
) -> "Work":
    """Return a campaign's work at a site, by the options of a command.

    Raises:
        ValueError: Campaign, site and options do not fit.
    """
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
    if profiler is not None:
        raise ValueError("--budget is about what is measured; give it without --profile")
    return todo.within(budget)


def say_dropped(todo: "Work", budget: Budget | None) -> None:
    """Name on standard error what a budget left out."""
    from lockstep.slurm.submit.budget import ORDER

    if budget and todo.dropped:
        changes, unit = ", ".join(todo.dropped), budget.unit or todo.unit
        click.echo(
            f"Dropped to stay within {budget.hours:g} {unit}: {changes} ({ORDER}).", err=True
        )


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


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
