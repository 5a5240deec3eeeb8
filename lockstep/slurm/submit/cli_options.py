"""Options that several commands about jobs share."""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from lockstep.core.files import default_folder

Command = Callable[..., Any]
Unit = Literal["node-hours", "GPU-hours"]
UNITS: dict[str, Unit] = {"nh": "node-hours", "gh": "GPU-hours"}
# With fewer launches an interval is useless, so a budget drops world sizes before these repeats.
MIN_REPEATS = 3
DROP_ORDER = (
    f"A budget first leaves out repeats down to {MIN_REPEATS}, then the largest world sizes, then "
    "repeats down to 1."
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Print what would be done, but do nothing."
)


class Budget(NamedTuple):
    """The most hours that the jobs of a campaign may take."""

    text: str  # the value of the option
    hours: float
    unit: Unit | None  # None for GPU-hours if the site has GPUs, else node-hours


def round_up(amount: float) -> str:
    """Return hours or a cost with two decimals, rounded up."""
    return f"{math.ceil(round(amount * 100, 6)) / 100:,.2f}"


def _budget(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Budget | None:
    """Parse a budget: `100` in the site's unit, `500nh` (node-hours) or `100gh` (GPU-hours)."""
    if text is None:
        return None
    unit, hours = UNITS.get(text[-2:]), math.nan
    with suppress(ValueError):
        hours = float(text[:-2] if unit else text)
    if not 0 <= hours < math.inf:
        reason = f"{text!r} is not a number of hours, such as 100, 500nh or 100gh"
        raise click.BadParameter(reason, ctx, parameter)
    return Budget(text, hours, unit)


def add_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    return lambda command: reduce(lambda own, option: option(own), reversed(options), command)


SITE_VARIABLE = "LOCKSTEP_SITE"
SITE_FILE = "site.toml"


def _choose_site(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the site of --site, else of $LOCKSTEP_SITE, else ./site.toml.

    A site that does not come from --site is printed on standard error.
    """
    if value or ctx.resilient_parsing:
        return value
    if source := os.environ.get(SITE_VARIABLE):
        origin = f"by ${SITE_VARIABLE}"
    elif Path(SITE_FILE).is_file():
        source, origin = SITE_FILE, "this folder's"
    elif parameter.name != "site":
        return None
    else:
        raise click.MissingParameter(
            f"give a site file or a built-in site, set {SITE_VARIABLE}, or run in a folder with "
            f"{SITE_FILE}",
            ctx,
            parameter,
        )
    click.echo(f"Site: {source} ({origin}).", err=True)
    return source


def site_option(name: str, of: str) -> Callable[[Command], Command]:
    """Return the option --site; with the parameter name `site` a command requires a site."""
    where = f"{of}; ${SITE_VARIABLE} or ./{SITE_FILE} by default."
    return click.option("--site", name, callback=_choose_site, help=where)


campaign_options = add_options(
    click.argument("campaign"),
    site_option("site", "Site file, or the name of a built-in site, such as example or lumi-g."),
    click.option(
        "--to",
        "root",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_folder("results"),
        show_default=True,
        help="Folder of results, which all nodes must see; each campaign has a subfolder in it.",
    ),
    click.option("--partition", help="Use another partition of the site."),
    click.option(
        "--budget",
        callback=_budget,
        metavar="HOURS",
        help=(
            "Plan at most HOURS GPU-hours, or node-hours if the site has no GPUs; 500nh means 500 "
            "node-hours."
        ),
    ),
)
