"""The commands about jobs that were sent: status, cancel and collect."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from slurm_templates.results import Results
    from slurm_templates.standing import Board, Campaign

EXIT_BAD = 1
WATCH_S = 15.0
# Where nothing changes, the wait doubles up to so many times the first: squeue is everybody's.
MAX_BACK_OFF = 8


def _results(folder: str) -> "Results":
    """Return the results that a folder holds.

    Raises:
        ValueError: It is no folder, or holds no campaign.
    """
    from slurm_templates.results import Results

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
    """A command whose --watch may stand before a folder, with or without its seconds."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, --watch with the number that follows it, if one does."""
        joined: list[str] = []
        for word in args:
            if joined and joined[-1] == "--watch" and _is_number(word):
                joined[-1] = f"--watch={word}"
            else:
                joined.append(word)
        words = [f"--watch={WATCH_S:g}" if word == "--watch" else word for word in joined]
        return super().parse_args(ctx, words)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


@click.command(cls=Watching)
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option(
    "--watch",
    type=click.FloatRange(min=1),
    metavar="[SECONDS]",
    help=f"Look again every so often [{WATCH_S:g}], until every job has ended.",
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
    from slurm_templates.standing import Board

    board = Board(_results(folder))
    show = _as_json if as_json else _as_text

    def text(campaign: "Campaign") -> str:
        return show(campaign, board.results, folder)

    if watch is None:
        campaign = board.look()
        click.echo(text(campaign))
    else:
        campaign = _watch(board, text, watch, is_live=sys.stdout.isatty() and not as_json)
    for error in campaign.errors:
        click.echo(f"not all is known: {error}", err=True)
    return EXIT_BAD if campaign.is_bad else 0


def _as_json(campaign: "Campaign", results: "Results", folder: str) -> str:
    from slurm_templates import overview

    return json.dumps(overview.facts(campaign, results, folder), indent=1)


def _as_text(campaign: "Campaign", results: "Results", folder: str) -> str:
    from slurm_templates import overview

    return "\n".join(overview.lines(campaign, results, folder))


def _watch(
    board: "Board", text: Callable[["Campaign"], str], every_s: float, *, is_live: bool
) -> "Campaign":
    """Show a campaign until all its jobs have ended, and return how it stands then."""
    from rich.live import Live
    from rich.text import Text

    shown, wait_s = "", every_s
    with Live(auto_refresh=False, transient=False) if is_live else _Plain() as screen:
        while True:
            campaign = board.look()
            said = text(campaign)
            screen.update(Text(said) if is_live else said, refresh=True)
            if campaign.has_ended:
                return campaign
            is_new = said != shown and not campaign.errors
            wait_s = every_s if is_new else min(2 * wait_s, MAX_BACK_OFF * every_s)
            shown = said
            time.sleep(wait_s)


class _Plain:
    """What is not a terminal: told what has changed, and nothing twice."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, said: Any, *, refresh: bool) -> None:  # noqa: ARG002, Live's signature
        """Print the lines that were not there before."""
        lines = str(said).splitlines()
        for line in lines:
            if line not in self._shown:
                click.echo(line)
        self._shown = set(lines)


@click.command()
@click.argument("folder")
@click.option("--job", "name", metavar="NAME", help="Only the job of this name.")
@click.option(
    "--point", type=click.IntRange(min=0), metavar="K", help="Only element K of an array."
)
@click.option("-n", "--dry-run", is_flag=True, help="Print what would be cancelled.")
def cancel(folder: str, *, name: str | None, point: int | None, dry_run: bool) -> None:
    """Cancel the jobs of a campaign's FOLDER that have not ended.

    \b
    Examples:
      lockstep cancel results/campaign --dry-run
      lockstep cancel results/campaign --job campaign-w8
      lockstep cancel results/campaign --point 3
    """
    from slurm_templates import slurm
    from slurm_templates.standing import open_ids

    found = open_ids(_results(folder), name, point)
    if not found:
        click.echo("No job is waiting or running; nothing to cancel.")
        return
    command = shlex.join(["scancel", *found])
    if dry_run:
        click.echo(command)
        return
    slurm.scancel(found)
    for job_id, title in found.items():
        click.echo(f"cancelled: {title}, job {job_id}")
    click.echo(f"Next: lockstep resume {shlex.quote(folder)}  # measures what is missing")


@click.command()
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="Print the jobs' rows as JSON.")
def collect(folder: str, *, as_json: bool) -> None:
    """Make the JSON of each launch in FOLDER from its journal, and ask accounting about the jobs.

    \b
    Example:
      lockstep collect results/campaign
    """
    from slurm_templates import collection

    made = collection.collect(_results(folder), lambda text: click.echo(text, err=True))
    if as_json:
        click.echo(json.dumps(made, indent=1))
        return
    click.echo(f"{_counted(len(made['launches']), 'launch', 'launches')} collected")
    for line in _account_lines(made["jobs"]):
        click.echo(line)
    click.echo(f"Next: lockstep report {shlex.quote(folder)}")


def _account_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the jobs cost together, and how many of them are not known of."""
    if not rows:
        return []
    known = [row["accounting"] for row in rows if row["accounting"]]
    billed = sum(one["billed_gpu_hours"] or 0.0 for one in known)
    measured = sum(
        row["measured_rank_hours"] or 0.0
        for row in rows
        if row["accounting"] and row["accounting"]["billed_gpu_hours"]
    )
    lines = [f"accounting of {len(known)} of {_counted(len(rows), 'job', 'jobs')}"]
    if billed:
        lines[0] += f": {billed:.2f} GPU-hours billed, {measured:.2f} of them in timed regions"
    return lines


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
