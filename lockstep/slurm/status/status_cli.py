"""The command `lockstep status`: once, again and again, as text, JSON or a page."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.core.formats import counted
from lockstep.slurm.status.jobs_cli import end_ladder, results_of
from lockstep.slurm.submit.cli_options import as_json_option, with_options

if TYPE_CHECKING:
    from lockstep.slurm.status.standing import Board, Campaign
    from lockstep.slurm.status.status_record import Wanted

    Look = tuple[Campaign, dict[str, Any]]

EXIT_BAD = 1
EXIT_UNKNOWN = 3
WATCH_S = 15.0
MAX_WATCH_S = 86_400  # a day
BACKING_OFF = 0.0  # the value of --watch without a number
# Without a number of seconds the wait doubles up to so many times while nothing changes, for squeue
# is everybody's.
MAX_BACK_OFF = 8
# what accounting counts -> its unit; the last is what Slurm bills, before a QOS's usage factor
HOURS = {
    "node_hours": "node-hours",
    "cpu_hours": "CPU-hours",
    "gpu_hours": "GPU-hours",
    "billing_hours": "hours of TRES billing",
}
IN_FOLDER = "status.html"  # the value of --html without a file

expectation_options = with_options(
    click.option(
        "--expect",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="What is expected: the record of lockstep predict --json, a targets file of lockstep "
        "check --targets, or a table as lockstep import reads it.  [default: expected.json, "
        "expected.targets.toml or expected.csv in the folder]",
    ),
    click.option(
        "--floor",
        type=click.FloatRange(0, 1),
        help="Least parallel efficiency that is worth a larger world size.  "
        "[default: until_efficiency of the campaign]",
    ),
)


class Watching(click.Command):
    """A command whose --watch and --html may stand before a folder, with or without a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, --watch and --html with the value that follows, if one does."""
        joined: list[str] = []
        for word in args:
            last = joined[-1] if joined else ""
            is_value = (last == "--watch" and (word.replace(".", "", 1).isdecimal())) or (
                last == "--html" and word.endswith(".html")
            )
            if is_value:
                joined[-1] = f"{last}={word}"
            else:
                joined.append(word)
        plain = {"--watch": f"--watch={BACKING_OFF}", "--html": f"--html={IN_FOLDER}"}
        return super().parse_args(ctx, [plain.get(word, word) for word in joined])


@click.command(cls=Watching)
@click.argument("folder")
@as_json_option
@click.option(
    "--watch",
    type=float,
    metavar="[SECONDS]",
    help=f"Look again every SECONDS until every job has ended. Without a number every "
    f"{WATCH_S:g}, up to {MAX_BACK_OFF * WATCH_S:g} while nothing changes.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="[FILE.html]",
    help=f"Write the page of it, by default {IN_FOLDER} in the folder; with --watch, at each look.",
)
@expectation_options
@click.option(
    "--cancel-below",
    is_flag=True,
    help="Cancel the jobs that wait to measure larger sizes than one that misses the floor, and "
    "leave these out; `after` stages that need their good end do not begin then.",
)
@click.option(
    "--collect",
    "collects",
    is_flag=True,
    help="Make the JSON of each launch from its journal, ask accounting about the jobs, and send "
    "what is new to the tracker, if there is one.",
)
def status(
    folder: str,
    *,
    as_json: bool,
    watch: float | None,
    page: Path | None,
    expect: Path | None,
    floor: float | None,
    cancel_below: bool,
    collects: bool,
) -> int:
    """Say what a campaign's jobs in FOLDER do, what is measured, and what to do next.

    Exit code 1 says that a job ended and left what no other job will make, 3 that Slurm is silent
    and no job's state is known, 0 that all is well or under way.

    \b
    Examples:
      lockstep status results/campaign
      lockstep status results/campaign --watch
      lockstep status results/campaign --watch --html
      lockstep status results/campaign --watch --floor 0.6 --cancel-below
      lockstep status results/campaign --json
      lockstep status results/campaign --collect
    """
    if collects:
        if watch is not None or page is not None or cancel_below or expect or floor is not None:
            raise click.UsageError("--collect goes with no other option than --json")
        _collect(folder, as_json=as_json)
        return 0
    if watch is not None and not (watch == BACKING_OFF or 1 <= watch <= MAX_WATCH_S):  # nan, too
        raise ValueError(
            f"--watch {watch:g} is no number of seconds; give one from 1 to {MAX_WATCH_S}"
        )
    from lockstep.slurm.status.standing import Board
    from lockstep.slurm.status.status_record import Wanted, lines

    board = Board(results_of(folder))
    needs_floor = cancel_below and floor is None
    _refuse(board.results.claimed() or {}, folder, needs_floor=needs_floor)
    is_all = as_json or page is not None or cancel_below
    wanted = Wanted(expect, floor, inventory=page is not None) if is_all else None
    if str(page) == IN_FOLDER:
        page = board.results.path / IN_FOLDER
    look = partial(_look, board, folder, wanted, page, cancel_below=cancel_below)
    is_live = watch is not None and not as_json and sys.stdout.isatty()
    if watch is None:
        campaign, record = look()
    else:
        campaign, record = _watch(look, watch, as_json=as_json, is_live=is_live)
    if as_json:
        click.echo(json.dumps(record, indent=1))
    elif not is_live:
        click.echo("\n".join(lines(record)))
    for error in campaign.errors:
        click.echo(f"not all is known: {error}", err=True)
    if page is not None and not as_json:
        click.echo(f"page: {page}")
    if campaign.is_unknown:
        return EXIT_UNKNOWN
    return EXIT_BAD if campaign.is_bad else 0


def _refuse(claimed: dict[str, Any], folder: str, *, needs_floor: bool) -> None:
    if "recorded" in claimed:
        raise ValueError(
            f"{folder} holds a recorded campaign, of which nothing is left to measure; "
            f"lockstep report {shlex.quote(folder)} makes its page"
        )
    if needs_floor and claimed.get("until_efficiency") is None:
        raise ValueError("--cancel-below needs a floor, which this campaign has not; give --floor")


def _look(
    board: "Board", folder: str, wanted: "Wanted | None", page: Path | None, *, cancel_below: bool
) -> "Look":
    """Return what a look sees and its record; cancel what is not worth it, and write the page."""
    from lockstep.slurm.status.status_record import record

    campaign = board.look()
    facts = record(campaign, board.results, folder, wanted)
    if cancel_below:
        try:
            for name in end_ladder(campaign, board.results, facts["measured"]):
                click.echo(f"cancelled: {name}, for a smaller size misses the floor", err=True)
        except (RuntimeError, ValueError) as error:  # perhaps at the next look
            click.echo(f"not cancelled: {error}", err=True)
    if page is not None:
        from lockstep.core import files
        from lockstep.slurm.status.status_page import html

        files.write_atomically(page, html(facts, None if campaign.has_ended else WATCH_S))
    return campaign, facts


def _watch(look: "Callable[[], Look]", every_s: float, *, as_json: bool, is_live: bool) -> "Look":
    """Look until all jobs have ended, show what changes, and return the last look.

    With `every_s` of 0 the looks come ever more seldom while nothing changes.
    """
    from rich.live import Live
    from rich.text import Text

    from lockstep.slurm.status.status_record import headlines, lines

    before: list[str] = []
    longest_s = every_s or MAX_BACK_OFF * WATCH_S
    first_s = wait_s = every_s or WATCH_S
    with Live(auto_refresh=False) if is_live else nullcontext() as screen:
        while True:
            campaign, record = look()
            now = headlines(record)
            if screen is not None:
                screen.update(Text("\n".join(lines(record))), refresh=True)
            elif not as_json:
                for line in (line for line in now if line not in before):
                    click.echo(f"{time.strftime('%H:%M:%S')} {line}")
            if campaign.has_ended:
                return campaign, record
            is_new = now != before and not campaign.errors
            wait_s = first_s if is_new else min(2 * wait_s, longest_s)
            before = now
            time.sleep(wait_s)


def _collect(folder: str, *, as_json: bool) -> None:
    """Make the JSON of each launch from its journal, and ask accounting about the jobs."""
    from lockstep.report.tracker import live
    from lockstep.slurm.status import collection

    def say(text: str) -> None:
        click.echo(text, err=True)

    results = results_of(folder)
    made = collection.collect(results, say)
    live.tell(results.path, say)
    if as_json:
        click.echo(json.dumps(made, indent=1))
        return
    click.echo(f"{counted(len(made['launches']), 'launch')} collected")
    if rows := made["jobs"]:  # what they cost together, and how many of them are not known of
        accounts = [row["accounting"] for row in rows if row["accounting"]]
        measured = sum(row["measured_rank_hours"] or 0.0 for row in rows)
        sums = {unit: sum(a.get(key) or 0.0 for a in accounts) for key, unit in HOURS.items()}
        totals = ", ".join(f"{hours:.3g} {unit}" for unit, hours in sums.items() if hours)
        totals = totals and f": {totals}; {measured:.3g} rank-hours in timed regions"
        click.echo(f"accounting of {len(accounts)} of {counted(len(rows), 'job')}{totals}")
    click.echo(f"Next: lockstep report {shlex.quote(folder)}")
