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

from lockstep.core.findings import SYMPTOMS
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
# Without a number of seconds the wait doubles while nothing changes, up to this factor, to spare
# squeue.
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
        help="Expected values: the record of lockstep predict --json, a targets file of lockstep "
        "check --targets, or a table as lockstep import reads it.  [default: expected.json, "
        "expected.targets.toml or expected.csv in the folder]",
    ),
    click.option(
        "--floor",
        type=click.FloatRange(0, 1),
        help="Least parallel efficiency at which larger world sizes are still measured.  "
        "[default: until_efficiency of the campaign]",
    ),
)


class Watching(click.Command):
    """A command whose --watch and --html take an optional value, also before the folder."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join --watch and --html with their value, if one follows, and parse the arguments."""
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
    help=f"Write the HTML page, by default {IN_FOLDER} in the folder; with --watch, at each look.",
)
@expectation_options
@click.option(
    "--cancel-below",
    is_flag=True,
    help="Cancel pending jobs of larger world sizes than one that misses the floor, and leave out "
    "those sizes; stages that depend on these jobs by afterok do not start.",
)
@click.option(
    "--collect",
    "collects",
    is_flag=True,
    help="Write the JSON of each launch from its journal, ask accounting about the jobs, and send "
    "new results to the tracker, if there is one.",
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
    """Show the jobs of a campaign's FOLDER, what is measured, and what to do next.

    Exit code: 0 if all is well or under way, 1 if a job failed and no other job will measure its
    launches, 3 if Slurm does not answer and no job's state is known.

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
            raise click.UsageError("--collect excludes every other option but --json")
        _collect(folder, as_json=as_json)
        return 0
    if watch is not None and not (watch == BACKING_OFF or 1 <= watch <= MAX_WATCH_S):  # nan, too
        raise ValueError(
            f"--watch {watch:g} is not a number of seconds; give one from 1 to {MAX_WATCH_S}"
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
        click.echo(f"Warning: incomplete status: {error}", err=True)
    if page is not None and not as_json:
        click.echo(f"page: {page}")
    if campaign.is_unknown:
        return EXIT_UNKNOWN
    if campaign.is_bad and not as_json:
        click.echo(SYMPTOMS, err=True)
    return EXIT_BAD if campaign.is_bad else 0


def _refuse(claimed: dict[str, Any], folder: str, *, needs_floor: bool) -> None:
    if "recorded" in claimed:
        raise ValueError(
            f"{folder} holds a recorded campaign, which has no jobs; "
            f"lockstep report {shlex.quote(folder)} makes its page"
        )
    if needs_floor and claimed.get("until_efficiency") is None:
        raise ValueError(
            "--cancel-below needs a floor, but this campaign has no until_efficiency; give --floor"
        )


def _look(
    board: "Board", folder: str, wanted: "Wanted | None", page: Path | None, *, cancel_below: bool
) -> "Look":
    """Return the campaign's state and its record; cancel jobs below the floor; write the page."""
    from lockstep.slurm.status.status_record import record

    campaign = board.look()
    facts = record(campaign, board.results, folder, wanted)
    if cancel_below:
        try:
            for name in end_ladder(campaign, board.results, facts["measured"]):
                click.echo(
                    f"cancelled: {name}, because a smaller world size misses the floor", err=True
                )
        except (RuntimeError, ValueError) as error:  # perhaps at the next look
            click.echo(f"not cancelled: {error}", err=True)
    if page is not None:
        from lockstep.core import files
        from lockstep.slurm.status.status_page import html

        files.write_atomically(page, html(facts, None if campaign.has_ended else WATCH_S))
    return campaign, facts


def _watch(look: "Callable[[], Look]", every_s: float, *, as_json: bool, is_live: bool) -> "Look":
    """Look until all jobs have ended, show changes, and return the last look.

    With `every_s` of 0 the pause grows while nothing changes.
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
    """Write the JSON of each launch from its journal, and ask accounting about the jobs."""
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
    if rows := made["jobs"]:
        accounts = [row["accounting"] for row in rows if row["accounting"]]
        measured = sum(row["measured_rank_hours"] or 0.0 for row in rows)
        sums = {unit: sum(a.get(key) or 0.0 for a in accounts) for key, unit in HOURS.items()}
        totals = ", ".join(f"{hours:.3g} {unit}" for unit, hours in sums.items() if hours)
        totals = totals and f": {totals}; {measured:.3g} rank-hours in timed regions"
        click.echo(f"accounting of {len(accounts)} of {counted(len(rows), 'job')}{totals}")
    click.echo(f"Next: lockstep report {shlex.quote(folder)}")
