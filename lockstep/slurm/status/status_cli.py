"""The commands `lockstep status` (as text, JSON or page, once or with --watch) and `cancel`."""

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.live import Live
from rich.text import Text

from lockstep.campaign.campaign import LeftOut
from lockstep.core import files
from lockstep.core.errors import EXIT_MACHINE
from lockstep.core.findings import SYMPTOMS
from lockstep.core.formats import counted, trimmed
from lockstep.core.record import ACCOUNTED
from lockstep.report.tracker import live
from lockstep.slurm import client as slurm
from lockstep.slurm.any_job import held
from lockstep.slurm.client import FailedError
from lockstep.slurm.remote import OverSsh
from lockstep.slurm.status import collection, status_page
from lockstep.slurm.status.sent import Open, Results, find_open
from lockstep.slurm.status.standing import Board, Campaign
from lockstep.slurm.status.status_record import Wanted, headlines, lines, record
from lockstep.slurm.submit import submission
from lockstep.slurm.submit.cli_options import add_options, as_json_option, dry_run_option
from lockstep.slurm.submit.job import launches_of

Look = tuple[Campaign, dict[str, Any]]
WATCH_S = 15.0
MAX_WATCH_S = 86_400  # a day
BACKING_OFF = 0.0  # the value of --watch without a number
# Without a number of seconds the pause doubles while nothing changes, up to this factor, to spare
# squeue.
MAX_BACK_OFF = 8
IN_FOLDER = "status.html"  # the value of --html without a file
# Option -> pattern of its value, and the value if none follows.
OPTIONAL = {"--watch": (r"[0-9]*\.?[0-9]+", BACKING_OFF), "--html": (r".*\.html", IN_FOLDER)}

expectation_options = add_options(
    click.option("--expect", type=click.Path(path_type=Path, exists=True, dir_okay=False),
                 metavar="FILE",
                 help="File of expected values: the record of lockstep predict --json, a "
                      "targets file of lockstep check --targets, or a table that lockstep "
                      "import reads.  [default: expected.json, expected.targets.toml or "
                      "expected.csv in the folder]"),
    click.option("--floor", type=click.FloatRange(0, 1),
                 help="Lowest parallel efficiency at which larger world sizes are measured.  "
                 "[default: until_efficiency of the campaign]"),
)  # fmt: skip


def results_of(folder: str) -> Results:
    """Return a folder's results, and set the cluster for Slurm's commands."""
    path, problem = Path(folder), "holds no campaign"
    results = Results(path.resolve())
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
    if not (results.claim_file.exists() or results.jobs_folder.exists() or results.names()):
        raise ValueError(f"{folder} {problem}; give the results folder, such as results/NAME")
    if (results.jobs_folder / submission.SITE_FILE).exists():
        with suppress(OSError, ValueError):  # then this machine's cluster is used
            slurm.set_cluster(submission.stored_site(results).cluster)
    slurm.set_cluster(results.cluster())  # may differ from the requested cluster
    return results


class Watching(OverSsh):
    """A command whose --watch and --html have an optional value, even before the folder."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join --watch and --html with the value that follows, or with the default, and parse."""
        words, joined = list(args), list[str]()
        while words:
            word = words.pop(0)
            if word in OPTIONAL:
                pattern, default = OPTIONAL[word]
                is_given = words and re.fullmatch(pattern, words[0])
                word = f"{word}={words.pop(0) if is_given else default}"
            joined.append(word)
        return super().parse_args(ctx, joined)


@click.command(cls=Watching)
@click.argument("folder")
@as_json_option
@click.option("--watch", type=float, metavar="[SECONDS]",
              help="Show the status again every SECONDS until every job has ended. Without a "
                   f"number, the pause is {WATCH_S:g} s, and grows to at most "
                   f"{MAX_BACK_OFF * WATCH_S:g} s while nothing changes."
              )  # fmt: skip
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False),
              metavar="[FILE.html]",
              help=f"Write the status as an HTML page, by default {IN_FOLDER} in the folder; with "
                   "--watch, write the page each time.")  # fmt: skip
@expectation_options
@click.option("--cancel-below", is_flag=True,
              help="If a world size has less parallel efficiency than --floor, cancel the "
                   "pending jobs of larger world sizes and leave out these world sizes. Stages "
                   "that wait for these jobs by afterok do not start."
              )  # fmt: skip
@click.option("--collect", "collects", is_flag=True,
              help="Write the JSON of each launch from its journal, save the jobs' accounting, and "
              "send new results to the tracker, if there is one.")  # fmt: skip
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

    Exit code: 0 if no launch is lost, 1 if a job failed and no other job will measure its launches,
    3 if Slurm does not answer and no job's state is known.

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
            raise click.UsageError("--collect excludes every other option except --json")
        _collect(folder, as_json=as_json)
        return 0
    if watch is not None and not (watch == BACKING_OFF or 1 <= watch <= MAX_WATCH_S):  # or is nan
        raise ValueError(
            f"--watch {watch:g} is out of range; give a number of seconds from 1 to {MAX_WATCH_S}"
        )
    board, typed = Board(results_of(folder)), shlex.quote(folder)
    claimed = board.results.read_claim() or {}
    if "recorded" in claimed:
        raise ValueError(
            f"{folder} holds a recorded campaign, which has no jobs; run lockstep report {typed} "
            "to make its page"
        )
    if cancel_below and floor is None and claimed.get("until_efficiency") is None:
        raise ValueError(
            "--cancel-below needs a floor, but the campaign file has no until_efficiency; "
            "give --floor"
        )
    is_all = as_json or page is not None or cancel_below
    wanted = Wanted(expect, floor, inventory=page is not None) if is_all else None
    if str(page) == IN_FOLDER:
        page = board.results.path / IN_FOLDER

    def look() -> Look:
        """Return the campaign's state and record; cancel jobs below the floor; write the page."""
        campaign = board.look()
        facts = record(campaign, board.results, folder, wanted)
        if cancel_below:
            try:
                for name in end_ladder(campaign, board.results, facts["measured"]):
                    click.echo(
                        f"cancelled {name}, because a smaller world size is below the floor of "
                        "parallel efficiency",
                        err=True,
                    )
            except (RuntimeError, ValueError) as error:  # the next look may succeed
                click.echo(f"not cancelled: {error}", err=True)
        if page is not None:
            html = status_page.html(facts, None if campaign.has_ended else WATCH_S)
            files.write_atomically(page, html)
        return campaign, facts

    is_live = watch is not None and not as_json and sys.stdout.isatty()
    if watch is None:
        campaign, facts = look()
    else:
        campaign, facts = _watch(look, watch, as_json=as_json, is_live=is_live)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    elif not is_live:
        click.echo("\n".join(lines(facts)))
    for error in campaign.errors:
        click.echo(f"Warning: incomplete status: {error}", err=True)
    if page is not None and not as_json:
        click.echo(f"page: {page}")
    if campaign.errors and {standing.state.name for standing in campaign.jobs} == {"unknown"}:
        return EXIT_MACHINE
    if campaign.is_bad and not as_json:
        click.echo(SYMPTOMS, err=True)
    return int(campaign.is_bad)


def _watch(look: Callable[[], Look], every_s: float, *, as_json: bool, is_live: bool) -> Look:
    """Call `look` until all jobs have ended, print the changes, and return the last answer.

    With `every_s` = 0 the pause grows while nothing changes.
    """
    before: list[str] = []
    longest_s = every_s or MAX_BACK_OFF * WATCH_S
    first_s = wait_s = every_s or WATCH_S
    with Live(auto_refresh=False) if is_live else nullcontext() as screen:
        while True:
            campaign, facts = look()
            now = headlines(facts)
            if screen is not None:
                screen.update(Text("\n".join(lines(facts))), refresh=True)
            elif not as_json:
                for line in (line for line in now if line not in before):
                    click.echo(f"{time.strftime('%H:%M:%S')} {line}")
            if campaign.has_ended:
                return campaign, facts
            is_new = now != before and not campaign.errors
            wait_s = first_s if is_new else min(2 * wait_s, longest_s)
            before = now
            time.sleep(wait_s)


def _collect(folder: str, *, as_json: bool) -> None:
    results, say = results_of(folder), partial(click.echo, err=True)
    collected = collection.collect(results, say)
    live.send_collected(results.path)
    if as_json:
        click.echo(json.dumps(collected, indent=1))
        return
    click.echo(f"{counted(len(collected['launches']), 'launch')} collected")
    if rows := collected["jobs"]:
        accounts = [row["accounting"] for row in rows if row["accounting"]]
        measured_hours = trimmed(sum(row["measured_rank_hours"] or 0.0 for row in rows))
        sums = {unit: sum(a.get(key) or 0.0 for a in accounts) for key, unit in ACCOUNTED.items()}
        totals = ", ".join(f"{trimmed(hours)} {unit}" for unit, hours in sums.items() if hours)
        jobs = counted(len(rows), "job")
        num_known = len(accounts)
        click.echo(f"accounting is known for {num_known} of {jobs}")
        if totals:
            click.echo(
                f"the jobs took {totals}; the timed regions took {measured_hours} rank-hours"
            )
    click.echo(f"Next: lockstep report {shlex.quote(folder)}")


@click.command(cls=OverSsh)
@click.argument("folder", metavar="FOLDER|JOB")
@click.option("--job", "name", metavar="NAME", help="Cancel only the job of this name.")
@click.option(
    "--point", type=click.IntRange(min=0), metavar="K", help="Cancel only element K of the array."
)
@dry_run_option
def cancel(folder: str, *, name: str | None, point: int | None, dry_run: bool) -> None:
    """Cancel the jobs of a campaign's FOLDER that have not ended, or any JOB by its id.

    \b
    Examples:
      lockstep cancel results/campaign --dry-run
      lockstep cancel results/campaign --job campaign-w8-r0
      lockstep cancel results/campaign --point 3
      lockstep cancel 4711 --dry-run
    """
    if name is None and point is None and held.is_id(folder) and not Path(folder).exists():
        jobs = held.find_job(folder)
        if not jobs:
            raise ValueError(
                f"job {folder} is not in squeue; lockstep slurm why {folder} shows the job's end"
            )
        for job in jobs:
            click.echo(f"{held.job_line(job)}; owner: {job.user}")
        if dry_run:
            click.echo(shlex.join(["scancel", *slurm.cluster_options(), folder]))
        else:
            _scancel([folder], {job.user for job in jobs})
            click.echo(f"cancelled: job {folder}")
        return
    results = results_of(folder)
    opened = open_jobs(results, name, point)
    names = {job.scancel_id(point): job.name for job in opened}
    if not names:
        click.echo("No job is pending or running; nothing to cancel.")
        return
    if dry_run:
        click.echo(shlex.join(["scancel", *slurm.cluster_options(), *names]))
        return
    cancel_jobs(results, opened, point)
    for job_id, title in names.items():
        click.echo(f"cancelled: {title}, job {job_id}")
    typed = shlex.quote(folder)
    if name is None and point is None:
        click.echo(f"Next: lockstep resume {typed}  # measures the missing launches")
    else:
        then = "once the other jobs have ended, run lockstep resume"
        click.echo(f"Next: lockstep status {typed}  # {then}")


def open_jobs(results: Results, name: str | None = None, point: int | None = None) -> list[Open]:
    """Return the folder's pending and running jobs, optionally of one name or array element."""
    sent, opened = results.submissions(), list(find_open(results))
    names = dict.fromkeys([*(entry["job"] for entry in sent), *(job.name for job in opened)])
    if name is not None and name not in names:
        choices = ", ".join(names) or "none"
        raise ValueError(f"{results.path} has no job {name!r}; choose from {choices}")
    opened = [job for job in opened if name in (None, job.name)]
    if point is None:
        return opened
    opened = [job for job in opened if job.element == point]
    arrays = dict.fromkeys(
        entry["job"]
        for entry in sent
        if entry.get("kind") == "array"
        and point < len(entry.get("launches", ()))
        and name in (None, entry["job"])
    ) | dict.fromkeys(job.name for job in opened)
    if not arrays:
        raise ValueError(
            f"no array in this folder has an element {point}; leave out --point to cancel whole "
            "jobs"
        )
    if len(arrays) > 1:
        listed = ", ".join(arrays)
        raise ValueError(f"several arrays have an element {point}; choose one with --job: {listed}")
    return opened


def _scancel(job_ids: Iterable[str], users: set[str], *, only_waiting: bool = False) -> None:
    """Cancel jobs by their ids; an error names the users to whom they belong."""
    try:
        slurm.scancel(job_ids, only_waiting=only_waiting)
    except FailedError as error:
        others = sorted(users - {slurm.own_name()})
        if not others:
            raise
        owners = " and ".join(others)
        raise RuntimeError(
            f"{error}; these jobs belong to {owners}; ask {owners} to cancel these jobs"
        ) from None


def cancel_jobs(
    results: Results,
    opened: Sequence[Open],
    point: int | None = None,
    below_floor: Mapping[str, Any] | None = None,
) -> list[Open]:
    """Cancel jobs, record that, and return the cancelled jobs.

    The record is needed because Slurm forgets an array element that never started. `below_floor`
    names the world size that missed the floor; then only pending jobs are cancelled.
    """
    ids = dict.fromkeys(job.scancel_id(point) for job in opened)
    users = {job.queued.user for job in opened}
    _scancel(ids, users, only_waiting=below_floor is not None)
    if below_floor is not None:  # a job that started meanwhile was not cancelled
        still = {(job.queued.array_id, job.element) for job in find_open(results)}
        opened = [job for job in opened if (job.queued.array_id, job.element) not in still]
    numbers: dict[str, list[int]] = {}
    for job in opened:
        if job.uuid is not None:
            numbers.setdefault(job.uuid, []).append(job.element or 0)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    why = {"below_floor": dict(below_floor)} if below_floor else {}
    for uuid, cancelled in numbers.items():
        results.note({"uuid": uuid, "cancelled": cancelled, "cancelled_at": now, **why})
    return list(opened)


def end_ladder(campaign: Campaign, results: Results, measured: Mapping[str, Any]) -> list[str]:
    """Cancel pending jobs of world sizes above the size that misses the floor; return their names.

    The reason is recorded, and the campaign leaves out these sizes. Nothing is cancelled before
    every launch of the size that misses the floor is complete or abandoned.
    """
    below, names = measured["below_floor"], set(measured["not_worth_it"])
    if not names:
        return []
    judged = {
        launch["name"]
        for launch in (results.read_claim() or {}).get("launches", ())
        if launch.get("world_size") == below[0]["world_size"]
    }
    if not all(map(campaign.is_complete, judged - set(campaign.abandoned))):
        return []
    with results.alone():
        waiting = [job for job in open_jobs(results) if job.name in names and job.queued.is_waiting]
        if waiting:
            waiting = cancel_jobs(results, waiting, below_floor=below[0])
            _leave_out(results, waiting, campaign)
    return list(dict.fromkeys(job.name for job in waiting))


def _leave_out(results: Results, cancelled: Sequence[Open], campaign: Campaign) -> None:
    ended = {(job.name, job.element) for job in cancelled}
    gone, coming = set[str](), set[str]()
    for standing in campaign.jobs:
        is_gone = (standing.job.name, standing.job.element) in ended
        if is_gone or not standing.has_ended:
            (gone if is_gone else coming).update(standing.job.launches)
    gone = {name for name in gone - coming if not results.journal(name).exists()}
    own, claimed = submission.read_stored(results)[0], results.read_claim() or {}
    names = {launch["name"] for launch in claimed["launches"]} - gone
    launches = launches_of(own)
    kept = [launch for launch in launches if launch.name in names]
    beyond = {launch.world_size for launch in launches if launch.name in gone}
    beyond -= {launch.world_size for launch in kept}
    left_out = [LeftOut(size, kind="below_floor") for size in sorted(beyond)]
    results.claim(own, kept, [*results.below_floor(), *left_out])
