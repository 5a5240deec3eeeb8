"""The terminal's view of a ladder: launches to start, their estimated time, and progress."""

import json
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from lockstep.campaign.campaign import Campaign, Launch, plan
from lockstep.campaign.folder import Folder, Outcome
from lockstep.campaign.ladder import Ladder
from lockstep.campaign.stages import Stages
from lockstep.core import journal
from lockstep.core.formats import about, counted, listed
from lockstep.core.processes import hostname
from lockstep.core.sizes import FEWEST_STEPS
from lockstep.core.studies import TRAININGS

# Seconds until a launch begins its first case, as in the campaign laptop on two idle cores.
START_S = 10.0
# Two launches with a longer gap between them belong to two runs of the command.
LONGEST_START_S = 300.0


def estimate(
    campaign: Campaign, folder: Path, launches: Sequence[Launch], aside: Collection[str] = ()
) -> dict[str, float]:
    """Return launch -> expected seconds, from the campaign's earlier launches on this host.

    If there are none, launches that `--replace` moved count. Launches in `aside` start anew.
    """
    moved = sorted(folder.glob("replaced/*"), reverse=True)
    in_folders = (list(_sessions(Folder(path))) for path in (folder, *moved))
    sessions = next((ended for ended in in_folders if ended), [])
    # From the end of one launch to the first line of the next.
    in_order = sorted(sessions, key=lambda session: session.begun_s)
    gaps = [after.begun_s - before.ended_s for before, after in pairwise(in_order)]
    start_s = median([gap for gap in gaps if 0 <= gap <= LONGEST_START_S] or [0.0])
    needed = {}
    for launch in launches if sessions else ():
        own = [each for each in sessions if each.world_size == launch.world_size] or sessions
        is_new = launch.name in aside
        outcome = Outcome(launch.name) if is_new else Folder(folder).outcome(launch.name)
        num_cases = campaign.num_cases() or max(session.num_cases for session in own)
        left = max(0, num_cases - outcome.measured - outcome.skipped)
        case_s = fmean((each.ended_s - each.begun_s) / each.num_cases for each in own)
        needed[launch.name] = start_s + left * case_s
    return needed


class _Session(NamedTuple):
    world_size: int
    begun_s: float
    ended_s: float
    num_cases: int


def _sessions(folder: Folder) -> Iterator[_Session]:
    """Yield the sessions that ran on this host and ended a case, if their lines have times."""
    for name in folder.names():
        block: list[Mapping[str, Any]] = []
        entries: list[dict[str, Any]] = []
        with suppress(ValueError):  # an estimate does without a corrupt journal
            entries = journal.read(folder.journal(name))
        for entry in [*entries, {"kind": "launch"}]:
            if entry.get("kind") == "launch":
                with suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):
                    head = block[0]["launch"]
                    if head["provenance"]["ranks"][0]["host"] == hostname():
                        times = [datetime.fromisoformat(block[i]["time"]) for i in (0, -1)]
                        begun_s, ended_s = (time.timestamp() for time in times)
                        if num_cases := sum(line.get("kind") in journal.ENDS for line in block):
                            yield _Session(int(head["world_size"]), begun_s, ended_s, num_cases)
                block = []
            block.append(entry)


def show(ladder: Ladder, aside: Sequence[str], *, as_json: bool) -> None:
    """Print the launches that would move, the stages and launches that would start; or as JSON."""
    missing = ladder.missing(aside)
    commands = {launch.name: ladder.command(launch) for launch in missing}
    needed = estimate(ladder.campaign, ladder.folder, missing, aside)
    stages = Stages(ladder.campaign.jobs.stage, ladder.results, click.echo)
    if as_json:
        facts = {
            "folder": str(ladder.folder), "moved": list(aside), "launches": commands,
            "expected_s": sum(needed.values()) if needed else None,
            "stages": [stage.name for stage in stages.stages],
        }  # fmt: skip
        click.echo(json.dumps(facts, indent=1))
        return
    if aside:
        num_moved = counted(len(aside), "launch")
        click.echo(f"{num_moved} would move to {ladder.folder / 'replaced'}: {listed(aside, 3)}")
    click.echo(summary(ladder.campaign, missing, needed))
    for stage in stages.select("before"):
        click.echo(f"# stage {stage.name}{', done' if stages.is_done(stage) else ''}")
        click.echo(stage.command)
    for command in commands.values():
        click.echo(shlex.join(command))
    for stage in stages.select("after"):
        click.echo(f"# stage {stage.name}, {stage.dependency}\n{stage.command}")


def summary(campaign: Campaign, missing: Sequence[Launch], needed: Mapping[str, float]) -> str:
    """Return a line about the missing launches, and a line about the time that they take."""
    if not missing:
        again = "run the same command with --replace to measure all again and compare"
        num_launches = counted(len(plan(campaign)), "launch")
        return f"{campaign.name}: all {num_launches} are complete; {again}."
    by_size = Counter(launch.world_size for launch in missing)
    sizes = ", ".join(f"{by_size[n]} at {counted(n, 'rank')}" for n in sorted(by_size))
    cases = "all tests"
    if campaign.studies:
        least, most = (campaign.num_cases(find(by_size)) for find in (min, max))
        cases = f"{counted(most, 'case')}" if least == most else f"{least} to {most} cases"
    size, usual = campaign.measured_size(), Campaign.model_fields["repeats"].default
    total_s, why = sum(needed.values()), "estimated from earlier launches of this campaign"
    if not needed and not (campaign.command or campaign.tests):
        counts = [campaign.num_cases(launch.world_size) for launch in missing]
        total_s = sum(START_S + size.case_s * count for count in counts)
        why = f"if each case takes {size.case_s:g} s; the first case gives a better estimate"
    duration = "The time needed is unknown until the first case has ended on this machine."
    if total_s:
        duration = f"The time needed is {about(total_s)}, {why}."
        if campaign.repeats < usual:
            num_more = (usual - campaign.repeats) * len(campaign.world_sizes)
            more_s = total_s + num_more * total_s / len(missing)
            duration += f" Intervals need --repeats {usual}: {about(more_s)}."
    steps = size.rounds * size.steps_per_round
    times_steps = campaign.tests or {*campaign.studies} - {*TRAININGS, "command"}
    if steps < FEWEST_STEPS and times_steps:
        duration += (
            f"\nThese measurements are only a trial: a launch times {steps} steps of a case. For "
            "results that prove something, choose a larger --size, or more --rounds."
        )
    launches, studies = counted(len(missing), "launch"), campaign.studies or campaign.tests
    studies_or_tests = ", ".join(studies)
    return (
        f"{campaign.name}: {launches} to measure ({sizes}), each with {cases} of "
        f"{studies_or_tests}\n{duration}"
    )


@dataclass
class TimeLeft:
    """The time until all launches have ended, estimated from ended launches; never negative."""

    launches: list[Launch]  # launches that have not ended; the first of them runs
    begun_s: float  # start of the running launch, on the caller's clock
    expected_s: Mapping[str, float] = field(default_factory=dict)  # launch -> estimate, if known
    share: float = 0.0  # share of the running launch's cases that have ended
    durations_s: dict[int, list[float]] = field(default_factory=dict)  # by world size

    def end(self, now_s: float) -> None:
        launch = self.launches.pop(0)
        self.durations_s.setdefault(launch.world_size, []).append(now_s - self.begun_s)
        self.begun_s, self.share = now_s, 0.0

    def left_s(self, now_s: float) -> float | None:
        known = [duration_s for own in self.durations_s.values() for duration_s in own]
        spent_s = now_s - self.begun_s
        if not (known or self.share or self.expected_s):
            return None
        start_s = min(START_S, spent_s)  # once in a launch, not in each of its cases
        first_s = start_s + (spent_s - start_s) / (self.share or 1.0)
        usual_s = fmean(known) if known else first_s
        expected = []
        for launch in self.launches:
            like_it = [self.expected_s.get(launch.name, usual_s)]
            expected.append(fmean(self.durations_s.get(launch.world_size, like_it)))
        return max(0.0, sum(expected) - min(spent_s, expected[0])) if expected else 0.0


class View:
    """Progress on stderr: a line for each launch, and on a terminal a bar below the lines."""

    def __init__(
        self, ladder: Ladder, launches: Sequence[Launch], expected_s: Mapping[str, float]
    ) -> None:
        self._ladder = ladder
        self._time_left = TimeLeft(list(launches), time.monotonic(), expected_s)
        self._shows_first_step = not expected_s
        self._before = {launch.name: ladder.outcome(launch).measured for launch in launches}
        self._num_ended, self._num_launches = 0, len(launches)
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("launches{task.fields[left]}"),
            console=console, transient=True, refresh_per_second=1, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("starting", total=len(launches), left="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, launch: Launch) -> None:
        self._progress.update(self._task, description=f"launch {launch.name}")

    def advance(self, launch: Launch, outcome: Outcome) -> None:
        """Show the progress of a launch and, once, the step time of the first case."""
        before, campaign = self._before[launch.name], self._ladder.campaign
        new = outcome.measured + len(outcome.failed) - before
        total = campaign.num_cases() - outcome.skipped - before  # of own tests unknown, so <= 0
        if campaign.studies and new > 0 and total > 0:
            self._time_left.share = min(1.0, new / total)
        self._update()
        if self._shows_first_step and new > 0 and (first := self._ladder.first_step(launch)):
            self._shows_first_step = False
            self._print(f"launch {launch.name}: {first}")

    def end(self, launch: Launch, outcome: Outcome) -> None:
        self._num_ended += 1
        self._time_left.end(time.monotonic())
        self._update()
        campaign = self._ladder.campaign
        num_early = campaign.num_cases() - campaign.num_cases(launch.world_size)
        num_early = min(outcome.skipped, num_early)
        counts = {"need more ranks": num_early, "skipped": outcome.skipped - num_early}
        others = "".join(f", {count} {what}" for what, count in counts.items() if count)
        state = "done" if outcome.complete else "not complete"
        measured = counted(outcome.measured, "case")
        ended = f"{self._num_ended} of {counted(self._num_launches, 'launch')} ended"
        self._print(f"launch {launch.name} {state}: {measured} measured{others}; {ended}")

    def _left_in_words(self) -> str:
        left_s = self._time_left.left_s(time.monotonic())
        return f", {about(left_s)} left" if left_s else ""

    def _update(self) -> None:
        completed = self._num_ended + min(0.99, self._time_left.share)
        self._progress.update(self._task, completed=completed, left=self._left_in_words())

    def _print(self, text: str) -> None:
        text += self._left_in_words()
        self._progress.console.print(text, highlight=False, soft_wrap=True, markup=False)
