"""What the commands about jobs share: options, the work that they ask for, facts of a job."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from lockstep.slurm.submit.budget import UNITS, Budget

if TYPE_CHECKING:
    from lockstep.slurm.submit.job_spec import JobSpec, Profiler
    from lockstep.slurm.submit.submission import Work

Command = Callable[..., Any]
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Print what would be done, and do nothing."
)


class BudgetType(click.ParamType):  # type: ignore[type-arg]  # no generic before click 8.4
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


SITE_VARIABLE = "LOCKSTEP_SITE"
SITE_FILE = "site.toml"


@dataclass(frozen=True)
class FoundSite:
    """Which site a command is about.

    Attributes:
        kind: Who says so: the option, the variable, or the folder where the command is given.
    """

    source: str
    kind: Literal["option", "variable", "folder"]


def find_site(given: str | None, variable: str | None, folder: Path) -> FoundSite | None:
    """Return the site of an option, else of the variable, else the folder's file; None for none."""
    if given:
        return FoundSite(given, "option")
    if variable:
        return FoundSite(variable, "variable")
    return FoundSite(SITE_FILE, "folder") if (folder / SITE_FILE).is_file() else None


def say_site(found_site: FoundSite) -> None:
    """Name on standard error a site that no option names, and why it is that one."""
    if found_site.kind != "option":
        why = "this folder's" if found_site.kind == "folder" else f"by ${SITE_VARIABLE}"
        click.echo(f"Site: {found_site.source} ({why}).", err=True)


def _found_site(
    ctx: click.Context,
    parameter: click.Parameter,
    given: str | None,
) -> FoundSite | None:
    if ctx.resilient_parsing:
        return None
    found_site = find_site(given, os.environ.get(SITE_VARIABLE), Path())
    if found_site is None and parameter.name == "site":
        raise click.MissingParameter(
            f"give a site file or a built-in one, set {SITE_VARIABLE}, or go where {SITE_FILE} is",
            ctx,
            parameter,
        )
    return found_site


def site_option(name: str, of: str) -> Callable[[Command], Command]:
    """Return the option --site, whose value is a `FoundSite`."""
    where = f"{of}; ${SITE_VARIABLE} or ./{SITE_FILE} by default."
    return click.option("--site", name, callback=_found_site, help=where)


campaign_options = with_options(
    click.argument("campaign"),
    site_option("site", "Site file, or a built-in one: example, lumi-g ..."),
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
        type=click.Choice(["nsys", "ncu", "torch"]),
        help="Profile a few steps in place of measuring.",
    ),
    click.option("--debug-comm", is_flag=True, help="Let NCCL say all that it does; it is slow."),
)


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
            raise ValueError("--budget is about what is measured; give it without --profile")
        todo = todo.within(budget)
    try:
        results.refuse(todo.campaign, todo.launches)
    except ValueError as error:
        if not is_draft:
            raise
        click.echo(f"Submit would refuse this: {error}", err=True)
    return todo


def say_dropped(todo: "Work", budget: Budget | None) -> None:
    """Name on standard error what a budget left out."""
    from lockstep.slurm.submit.budget import ORDER

    if budget and todo.dropped:
        changes, unit = ", ".join(todo.dropped), budget.unit or todo.unit
        click.echo(
            f"Dropped to stay within {budget.hours:g} {unit}: {changes} ({ORDER}).", err=True
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
