"""Options that several commands about jobs share."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

Command = Callable[..., Any]
Unit = Literal["node-hours", "GPU-hours"]
UNITS: dict[str, Unit] = {"nh": "node-hours", "gh": "GPU-hours"}
# Fewer launches give no interval worth reading, so points go before these repeats do.
MIN_REPEATS = 3
DROP_ORDER = f"repeats down to {MIN_REPEATS}, then the largest world sizes, then repeats down to 1"
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Print what would be done, but do nothing."
)


@dataclass(frozen=True)
class Budget:
    """Hours to stay within.

    Attributes:
        unit: Of what; None for GPU-hours where the site has GPUs, else node-hours.
    """

    hours: float
    unit: Unit | None = None

    def __str__(self) -> str:
        """Return it as the option takes it."""
        suffix = next((name for name, unit in UNITS.items() if unit == self.unit), "")
        return f"{self.hours:g}{suffix}"


def rounded_up(amount: float) -> str:
    """Return hours or a cost with two decimals that it does not exceed."""
    return f"{math.ceil(round(amount * 100, 6)) / 100:,.2f}"


class BudgetType(click.ParamType):  # type: ignore[type-arg]  # no generic before click 8.4
    """Hours to stay within: `100` in the site's unit, `500nh` node-hours, `100gh` GPU-hours."""

    name = "HOURS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Budget:
        """Return the budget that a text says."""
        unit = UNITS.get(value[-2:])
        try:
            hours = float(value[:-2] if unit else value)
        except ValueError:
            hours = math.nan
        if not 0 <= hours < math.inf:
            self.fail(
                f"{value!r} is not a number of hours, such as 100, 500nh or 100gh", param, ctx
            )
        return Budget(hours, unit)


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
    ctx: click.Context, parameter: click.Parameter, given: str | None
) -> FoundSite | None:
    if ctx.resilient_parsing:
        return None
    found_site = find_site(given, os.environ.get(SITE_VARIABLE), Path())
    if found_site is None and parameter.name == "site":
        raise click.MissingParameter(
            f"give a site file or a built-in site, set {SITE_VARIABLE}, or use a folder with "
            f"{SITE_FILE}",
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
