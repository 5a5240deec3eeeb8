"""The command `lockstep status`: once, again and again, as text, JSON or a page."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.slurm.status.jobs_cli import collect, results_of
from lockstep.slurm.submit.cli_options import as_json_option, with_options

if TYPE_CHECKING:
    from lockstep.slurm.status.sent import Results
    from lockstep.slurm.status.standing import Board, Campaign
    from lockstep.slurm.status.status_record import Wanted


EXIT_BAD = 1
EXIT_UNKNOWN = 3
WATCH_S = 15.0
MAX_WATCH_S = 86_400  # a day
BACKING_OFF = 0.0  # the value of --watch without a number
# Without a number of seconds the wait doubles up to so many times while nothing changes, for squeue
# is everybody's.
MAX_BACK_OFF = 8
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
        collect(folder, as_json=as_json)
        return 0
    from lockstep.slurm.status.standing import Board
    from lockstep.slurm.status.status_record import Wanted

    _refuse_interval(watch)
    board = Board(results_of(folder))
    _refuse(board.results.claimed() or {}, folder, needs_floor=cancel_below and floor is None)
    wanted = Wanted(expect, floor, inventory=page is not None)
    if page is not None and str(page) == IN_FOLDER:
        page = board.results.path / IN_FOLDER
    view = _View(board.results, folder, wanted, page, as_json=as_json, cancels_below=cancel_below)
    campaign = view.show(board.look()) if watch is None else view.watch(board, watch)
    if as_json or watch is None or not sys.stdout.isatty():
        click.echo(view.text(campaign))
    for error in campaign.errors:
        click.echo(f"not all is known: {error}", err=True)
    if page is not None and not as_json:
        click.echo(f"page: {page}")
    if campaign.is_unknown:
        return EXIT_UNKNOWN
    return EXIT_BAD if campaign.is_bad else 0


def _refuse_interval(watch: float | None) -> None:
    if watch is not None and not (watch == BACKING_OFF or 1 <= watch <= MAX_WATCH_S):  # nan, too
        raise ValueError(
            f"--watch {watch:g} is no number of seconds; give one from 1 to {MAX_WATCH_S}"
        )


def _refuse(claimed: dict[str, Any], folder: str, *, needs_floor: bool) -> None:
    """Refuse a recording, and a campaign without the floor that is needed."""
    if "recorded" in claimed:
        raise ValueError(
            f"{folder} holds a recorded campaign, of which nothing is left to measure; "
            f"lockstep report {shlex.quote(folder)} makes its page"
        )
    if needs_floor and claimed.get("until_efficiency") is None:
        raise ValueError("--cancel-below needs a floor, which this campaign has not; give --floor")


class _View:
    """One way to show a campaign: on the terminal, as JSON, and as a page beside.

    Args:
        folder: The folder as it was typed.
        page: Where the page is written; None for none.
        cancels_below: Whether jobs of sizes beyond one that misses the floor are cancelled.
    """

    def __init__(
        self,
        results: "Results",
        folder: str,
        wanted: "Wanted",
        page: Path | None,
        *,
        as_json: bool,
        cancels_below: bool,
    ) -> None:
        self.results = results
        self.folder = folder
        self.wanted = wanted
        self.page = page
        self.as_json = as_json
        self.cancels_below = cancels_below
        self._last: tuple[Campaign, dict[str, Any]] | None = None

    def record(self, campaign: "Campaign") -> dict[str, Any]:
        """Return the record of a look, the same for the terminal and the page."""
        from lockstep.slurm.status import status_record

        if self._last is None or self._last[0] is not campaign:
            made = status_record.record(campaign, self.results, self.folder, self.wanted)
            self._last = campaign, made
        return self._last[1]

    def text(self, campaign: "Campaign") -> str:
        """Return what the terminal gets."""
        from lockstep.slurm.status import overview, status_record

        if self.as_json:
            return json.dumps(self.record(campaign), indent=1)
        facts = overview.facts(campaign, self.results, self.folder)
        status_record.at(facts, self.results, time.time())
        return "\n".join(overview.lines(facts, campaign, self.results, self.folder))

    def show(self, campaign: "Campaign") -> "Campaign":
        """Write the page, where there is one, and return what it was given."""
        if self.cancels_below:
            self._end_ladder(campaign)
        if self.page is not None:
            from lockstep.core import files
            from lockstep.slurm.status import status_page

            html = status_page.html(self.record(campaign), None if campaign.has_ended else WATCH_S)
            files.write_atomically(self.page, html)
        return campaign

    def _end_ladder(self, campaign: "Campaign") -> None:
        """Cancel what waits for sizes that are not worth it; where that fails, at the next look."""
        from lockstep.slurm.status import cancelling

        try:
            names = cancelling.end(campaign, self.results, self.record(campaign)["measured"])
        except (RuntimeError, ValueError) as error:
            click.echo(f"not cancelled: {error}", err=True)
        else:
            for name in names:
                click.echo(f"cancelled: {name}, for a smaller size misses the floor", err=True)

    def watch(self, board: "Board", every_s: float) -> "Campaign":
        """Show a campaign until all its jobs have ended, and return its state then."""
        if self.as_json:
            return follow(board, self.show, every_s)
        if sys.stdout.isatty():
            return self._watch_live(board, every_s)
        told = _Told(self.results, self.folder)
        return follow(board, lambda campaign: told(self.show(campaign)), every_s)

    def _watch_live(self, board: "Board", every_s: float) -> "Campaign":
        from rich.live import Live
        from rich.text import Text

        with Live(auto_refresh=False) as screen:

            def show(campaign: "Campaign") -> None:
                screen.update(Text(self.text(self.show(campaign))), refresh=True)

            return follow(board, show, every_s)


def follow(board: "Board", show: Callable[["Campaign"], object], every_s: float) -> "Campaign":
    """Show a campaign until all its jobs have ended, and return its state then.

    With `every_s` of 0 the looks come ever more seldom while nothing changes.
    """
    from lockstep.slurm.status import overview

    before: list[str] = []
    longest_s = every_s or MAX_BACK_OFF * WATCH_S
    first_s = wait_s = every_s or WATCH_S
    while True:
        campaign = board.look()
        show(campaign)
        if campaign.has_ended:
            return campaign
        now = overview.headlines(campaign, board.results, "")
        is_new = now != before and not campaign.errors
        wait_s = first_s if is_new else min(2 * wait_s, longest_s)
        before = now
        time.sleep(wait_s)


class _Told:
    """Prints each change of a campaign once."""

    def __init__(self, results: "Results", folder: str) -> None:
        self.results = results
        self.folder = folder
        self.before: set[str] = set()

    def __call__(self, campaign: "Campaign") -> None:
        from lockstep.slurm.status import overview

        now = overview.headlines(campaign, self.results, self.folder)
        for line in now:
            if line not in self.before:
                click.echo(f"{time.strftime('%H:%M:%S')} {line}")
        self.before = set(now)
