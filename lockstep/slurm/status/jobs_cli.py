"""The commands about jobs that were sent: status, cancel and collect."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.slurm.submit.cli_options import as_json_option, counted, dry_run_option

if TYPE_CHECKING:
    from lockstep.slurm.status.sent import Results
    from lockstep.slurm.status.standing import Board, Campaign

EXIT_BAD = 1
WATCH_S = 15.0
MAX_WATCH_S = 86_400  # a day
# what accounting counts -> its unit; the last is what Slurm bills, before a QOS's usage factor
HOURS = {
    "node_hours": "node-hours",
    "cpu_hours": "CPU-hours",
    "gpu_hours": "GPU-hours",
    "billing_hours": "hours of TRES billing",
}
BACKING_OFF = 0.0  # the value of --watch without a number
# Without a number of seconds the wait doubles up to so many times while nothing changes, for squeue
# is everybody's.
MAX_BACK_OFF = 8


def _results(folder: str) -> "Results":
    """Return the results that a folder holds.

    Raises:
        ValueError: It is no folder, or holds no campaign.
    """
    from lockstep.slurm.status.sent import Results

    path = Path(folder)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"{folder} {what}; give the results folder, such as results/NAME")
    results = Results(path.resolve())
    if not (results.claim_file.exists() or results.jobs_folder.exists() or results.names()):
        raise ValueError(
            f"{folder} holds no campaign; give the results folder, such as results/NAME"
        )
    return results


class Watching(click.Command):
    """A command whose --watch may come before a folder, with or without its seconds."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, --watch with the number that follows it, if one does."""
        joined: list[str] = []
        for word in args:
            if joined and joined[-1] == "--watch" and _is_number(word):
                joined[-1] = f"--watch={word}"
            else:
                joined.append(word)
        words = [f"--watch={BACKING_OFF}" if word == "--watch" else word for word in joined]
        return super().parse_args(ctx, words)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


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
def status(folder: str, *, as_json: bool, watch: float | None) -> int:
    """Say how the jobs and launches of a campaign's FOLDER stand, and what to do.

    Exit code 1 says that a job ended and left what no other job will make, 0 that all is well or
    under way.

    \b
    Examples:
      lockstep status results/campaign
      lockstep status results/campaign --watch
      lockstep status results/campaign --json
    """
    from lockstep.slurm.status.standing import Board

    if watch is not None and not (watch == BACKING_OFF or 1 <= watch <= MAX_WATCH_S):  # nan, too
        raise ValueError(
            f"--watch {watch:g} is no number of seconds; give one from 1 to {MAX_WATCH_S}"
        )
    board = Board(_results(folder))
    if watch is None:
        campaign = board.look()
    elif as_json:
        campaign = _watch(board, lambda _: None, watch)
    elif sys.stdout.isatty():
        campaign = _watch_live(board, folder, watch)
    else:
        campaign = _watch(board, _Told(board.results, folder), watch)
    if as_json or watch is None or not sys.stdout.isatty():
        click.echo(_text(campaign, board.results, folder, as_json=as_json))
    for error in campaign.errors:
        click.echo(f"not all is known: {error}", err=True)
    return EXIT_BAD if campaign.is_bad else 0


def _text(campaign: "Campaign", results: "Results", folder: str, *, as_json: bool) -> str:
    from lockstep.slurm.status import overview

    if as_json:
        return json.dumps(overview.facts(campaign, results, folder), indent=1)
    return "\n".join(overview.lines(campaign, results, folder))


def _watch(board: "Board", show: Callable[["Campaign"], None], every_s: float) -> "Campaign":
    """Show a campaign until all its jobs have ended, and return its state then.

    Args:
        board: The campaign.
        show: Called with each state.
        every_s: Seconds between two looks; 0 for ever longer ones while nothing changes.
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


def _watch_live(board: "Board", folder: str, every_s: float) -> "Campaign":
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as screen:

        def show(campaign: "Campaign") -> None:
            text = _text(campaign, board.results, folder, as_json=False)
            screen.update(Text(text), refresh=True)

        return _watch(board, show, every_s)


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


@click.command()
@click.argument("folder")
@click.option("--job", "name", metavar="NAME", help="Only the job of this name.")
@click.option(
    "--point", type=click.IntRange(min=0), metavar="K", help="Only element K of an array."
)
@dry_run_option
def cancel(folder: str, *, name: str | None, point: int | None, dry_run: bool) -> None:
    """Cancel the jobs of a campaign's FOLDER that have not ended.

    \b
    Examples:
      lockstep cancel results/campaign --dry-run
      lockstep cancel results/campaign --job campaign-w8-r0
      lockstep cancel results/campaign --point 3
    """
    from lockstep.slurm.status import cancelling

    results = _results(folder)
    opened = cancelling.chosen(results, name, point)
    titles = cancelling.ids(opened, point)
    if not titles:
        click.echo("No job is waiting or running; nothing to cancel.")
        return
    command = shlex.join(["scancel", *titles])
    if dry_run:
        click.echo(command)
        return
    cancelling.cancel(results, opened, point)
    for job_id, title in titles.items():
        click.echo(f"cancelled: {title}, job {job_id}")
    typed = shlex.quote(folder)
    if name is None and point is None:
        click.echo(f"Next: lockstep resume {typed}  # measures what is missing")
    else:
        click.echo(
            f"Next: lockstep status {typed}  # once its other jobs have ended, lockstep resume "
            "measures what is missing"
        )


@click.command()
@click.argument("folder")
@as_json_option
def collect(folder: str, *, as_json: bool) -> None:
    """Make the JSON of each launch in FOLDER from its journal, and ask accounting about the jobs.

    \b
    Example:
      lockstep collect results/campaign
    """
    from lockstep.slurm.status import collection

    made = collection.collect(_results(folder), lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(json.dumps(made, indent=1))
        return
    click.echo(f"{counted(len(made['launches']), 'launch', 'launches')} collected")
    for line in _account_lines(made["jobs"]):
        click.echo(line)
    click.echo(f"Next: lockstep report {shlex.quote(folder)}")


def _account_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the jobs cost together, and how many of them are not known of."""
    if not rows:
        return []
    accounts = [row["accounting"] for row in rows if row["accounting"]]
    measured = sum(row["measured_rank_hours"] or 0.0 for row in rows)
    sums = {unit: sum(a.get(key) or 0.0 for a in accounts) for key, unit in HOURS.items()}
    totals = [f"{hours:.3g} {unit}" for unit, hours in sums.items() if hours]
    lines = [f"accounting of {len(accounts)} of {counted(len(rows), 'job')}"]
    if totals:
        lines[0] += f": {', '.join(totals)}; {measured:.3g} rank-hours in timed regions"
    return lines
