"""What a person sees of a ladder: what would be started, how long it takes, and how far it is.

How long launches will take is how long others took, and unknown where there are no others. On a
terminal a bar with the time left and the points so far; elsewhere one plain line per launch.
"""

import json
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from lockstep.campaign.campaign import Campaign, Launch, plan
from lockstep.campaign.folder import Folder, Outcome
from lockstep.campaign.ladder import Ladder
from lockstep.campaign.stages import Stages
from lockstep.core import journal
from lockstep.core.formats import counted, in_words, listed
from lockstep.core.processes import hostname

# Between two launches of one run lies no more than a start; a longer gap is another run.
LONGEST_START_S = 300.0
MAX_ROWS = 12
# case -> world size -> seconds per step of each launch
Times = dict[str, dict[int, list[float]]]


@dataclass(frozen=True)
class Needed:
    """What launches will take.

    Attributes:
        launches: Launch -> seconds.
        source: The folder whose launches say so.
        is_own: Whether that is the campaign's own.
    """

    launches: Mapping[str, float]
    source: Path
    is_own: bool


def estimate(
    campaign: Campaign, folder: Path, launches: Sequence[Launch], aside: Collection[str] = ()
) -> Needed | None:
    """Return what launches will take; None where no launch like them was made on this host.

    Those of the campaign itself count; without any, those of the newest other one beside it, or
    moved aside in it, that is of the same size and studies. Launches to move aside start anew.

    Raises:
        ValueError: A journal of the campaign itself is corrupt.
    """
    alike = []
    facts = campaign.facts()
    claims = folder.parent.glob("*/campaign.json"), folder.glob("replaced/*/campaign.json")
    for claim in chain(*claims):
        with suppress(ValueError, OSError):
            other = Folder(claim.parent).claimed() or {}
            keys = ("size", "studies", "tests", "workload", "device", "command")
            if claim.parent != folder and all(other.get(key) == facts[key] for key in keys):
                alike.append((claim.stat().st_mtime, claim.parent))
    for path in (folder, *(path for _, path in sorted(alike, reverse=True))):
        sessions: list[_Session] = []
        # What is wrong with another campaign's journal is no reason not to measure this one.
        with suppress(*() if path == folder else (ValueError, OSError)):
            sessions = [session for session in _sessions(Folder(path)) if session.num_cases]
        if not sessions:
            continue
        # From the end of one launch to the first line of the next.
        in_order = sorted(sessions, key=lambda session: session.begun_s)
        gaps = [after.begun_s - before.ended_s for before, after in pairwise(in_order)]
        start_s = median([gap for gap in gaps if 0 <= gap <= LONGEST_START_S] or [0.0])
        needed = {}
        for launch in launches:
            own = [each for each in sessions if each.world_size == launch.world_size] or sessions
            is_new = launch.name in aside
            outcome = Outcome(launch.name) if is_new else Folder(folder).outcome(launch.name)
            num_cases = campaign.num_cases() or max(session.num_cases for session in own)
            left = max(0, num_cases - outcome.measured - outcome.skipped)
            case_s = fmean((each.ended_s - each.begun_s) / each.num_cases for each in own)
            needed[launch.name] = start_s + left * case_s
        return Needed(needed, path, path == folder)
    return None


@dataclass(frozen=True)
class _Session:
    """A session of a launch that was made here: when its first and last lines were written."""

    world_size: int
    begun_s: float
    ended_s: float
    num_cases: int


def _sessions(folder: Folder) -> Iterator[_Session]:
    """Yield the sessions that this host made, as far as their lines have times."""
    for name in folder.names():
        block: list[Mapping[str, Any]] = []
        for entry in [*journal.read(folder.journal(name)), {"kind": "launch"}]:
            if entry.get("kind") == "launch":
                with suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):
                    head = block[0]["launch"]
                    if head["provenance"]["ranks"][0]["host"] == hostname():
                        times = [datetime.fromisoformat(block[i]["time"]) for i in (0, -1)]
                        begun_s, ended_s = (time.timestamp() for time in times)
                        num_cases = sum(line.get("kind") in journal.ENDS for line in block)
                        yield _Session(int(head["world_size"]), begun_s, ended_s, num_cases)
                block = []
            block.append(entry)


def show(ladder: Ladder, aside: Sequence[str], *, as_json: bool) -> None:
    """Print what would be moved aside and started, stages and launches, or all of it as JSON."""
    missing = ladder.missing(aside)
    commands = {launch.name: ladder.command(launch) for launch in missing}
    needed = estimate(ladder.campaign, ladder.folder, missing, aside)
    stages = Stages(ladder.campaign.jobs.stage, ladder.results, click.echo)
    if as_json:
        facts = {
            "folder": str(ladder.folder),
            "moved": list(aside),
            "launches": commands,
            "expected_s": needed and sum(needed.launches.values()),
            "stages": [stage.name for stage in stages.stages],
        }
        click.echo(json.dumps(facts, indent=1))
        return
    if aside:
        num_moved = counted(len(aside), "launch")
        click.echo(f"{num_moved} would move to {ladder.folder / 'replaced'}: {listed(aside, 3)}")
    click.echo(summary(ladder.campaign, missing, needed))
    for stage in stages.of("before"):
        click.echo(f"# stage {stage.name}{', done' if stages.is_done(stage) else ''}")
        click.echo(stage.command)
    for command in commands.values():
        click.echo(shlex.join(command))
    for stage in stages.of("after"):
        click.echo(f"# stage {stage.name}, {stage.dependency}\n{stage.command}")


def summary(campaign: Campaign, missing: Sequence[Launch], needed: Needed | None) -> str:
    """Return in two lines what is to be measured and how long it takes; in one where nothing is."""
    if not missing:
        again = "the same command with --replace measures all again and compares"
        num_launches = counted(len(plan(campaign)), "launch")
        return f"{campaign.name}: nothing is missing of its {num_launches}; {again}."
    by_size = Counter(launch.world_size for launch in missing)
    sizes = ", ".join(f"{by_size[n]} at {counted(n, 'rank')}" for n in sorted(by_size))
    cases = "all tests"
    if campaign.studies:
        least, most = (campaign.num_cases(find(by_size)) for find in (min, max))
        cases = f"{counted(most, 'case')}" if least == most else f"{least} to {most} cases"
    if needed is None:
        duration = "How long it takes is unknown until the first case has ended here."
    else:
        whose = "this campaign" if needed.is_own else needed.source
        total_s = sum(needed.launches.values())
        duration = f"It takes about {in_words(total_s)}, as launches of {whose} took here."
    return (
        f"{campaign.name}: {counted(len(missing), 'launch')} to make ({sizes}), each with {cases} "
        f"of {', '.join(campaign.studies or campaign.tests)}\n{duration}"
    )


class TimeLeft:
    """When all launches will have ended, by those that have; never a time that has passed.

    Args:
        launches: The launches still to make.
        begun_s: When the first of them begins, on the clock of the readings that follow.
        expected_s: Launch -> its seconds, as far as known; those of launches that end count more.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        begun_s: float,
        expected_s: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._left = list(launches)
        self._durations: dict[int, list[float]] = {}
        self._begun_s = begun_s
        self._expected_s = expected_s
        self.share = 0.0  # of the running launch's cases, which has ended

    def end(self, now_s: float) -> None:
        """Note that the running launch has ended, and the next one begins."""
        launch = self._left.pop(0)
        self._durations.setdefault(launch.world_size, []).append(now_s - self._begun_s)
        self._begun_s, self.share = now_s, 0.0

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds that are left; None while they are unknown."""
        known = [duration for durations in self._durations.values() for duration in durations]
        spent_s = now_s - self._begun_s
        if not known and not self.share and not self._expected_s:
            return None
        usual = fmean(known) if known else spent_s / (self.share or 1.0)
        expected = [
            fmean(
                self._durations.get(launch.world_size, [self._expected_s.get(launch.name, usual)])
            )
            for launch in self._left
        ]
        return max(0.0, sum(expected) - min(spent_s, expected[0])) if expected else 0.0


class _TimeLeftColumn(ProgressColumn):
    """The time left, which falls between two readings."""

    def __init__(self, left: TimeLeft) -> None:
        super().__init__()
        self._time_left = left

    def render(self, task: Task) -> Text:  # noqa: ARG002, rich's signature
        """Return minutes and seconds."""
        left_s = self._time_left.left_s(time.monotonic())
        if left_s is None:
            return Text("time left: not known yet")
        return Text(f"about {left_s // 60:.0f}:{left_s % 60:02.0f} left")


class View:
    """A live view of a ladder, on stderr.

    Args:
        ladder: What is measured.
        launches: The launches still to make.
        expected_s: Launch -> its seconds, as far as earlier launches show.
    """

    def __init__(
        self, ladder: Ladder, launches: list[Launch], expected_s: Mapping[str, float]
    ) -> None:
        self._ladder = ladder
        self._console = Console(stderr=True)
        self._time_left = TimeLeft(launches, time.monotonic(), expected_s)
        self._has_shown = bool(expected_s)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cases," if ladder.campaign.studies else "launches,"),
            _TimeLeftColumn(self._time_left),
            console=self._console,
        )
        # The user's own tests are counted as they run: a launch of them counts as one case.
        self._num_cases = ladder.campaign.num_cases() or 1
        self._already = {launch.name: ladder.outcome(launch).measured for launch in launches}
        self._left = list(launches)
        self._task = self._progress.add_task("starting", total=self._num_left(0))
        self._done = 0
        self._live = Live(console=self._console, refresh_per_second=1, transient=True)
        settled = [launch for launch in plan(ladder.campaign) if launch not in launches]
        self._times = ladder.step_times(settled)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
            self._draw(self._times)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._live.stop()
            self._console.print(self._table(self._times))

    def begin(self, launch: Launch) -> None:
        """Show which launch runs now."""
        self._progress.update(self._task, description=f"launch {launch.name}")

    def advance(self, launch: Launch, outcome: Outcome) -> None:
        """Show how far a launch has come, and the median of each case as it ends."""
        new = max(0, outcome.measured + len(outcome.failed) - self._already[launch.name])
        total = self._num_cases - outcome.skipped - self._already[launch.name]
        if self._ladder.campaign.studies and total > 0:
            self._time_left.share = min(1.0, new / total)
        self._show(self._done + new, outcome.skipped)
        if self._live.is_started:
            self._draw(_merge(self._times, self._ladder.step_times([launch])))
        elif new and not self._has_shown:
            self._has_shown = True
            first = _first(self._ladder.step_times([launch]))
            text = f"launch {launch.name}{first}{self._left_in_words()}"
            self._console.print(text, highlight=False, soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        """Count a launch as made and show its points."""
        own = self._num_cases - outcome.skipped if self._ladder.campaign.studies else 1
        self._done += max(0, own - self._already[outcome.name])
        launch = self._left.pop(0)
        times = self._ladder.step_times([launch])
        self._times = _merge(self._times, times)
        self._time_left.end(time.monotonic())
        self._show(self._done, outcome.skipped)
        if self._live.is_started:
            self._draw(self._times)
            return
        campaign = self._ladder.campaign
        num_early = campaign.num_cases() - campaign.num_cases(launch.world_size)
        num_early = min(outcome.skipped, num_early)
        counts = {"need more ranks": num_early, "skipped": outcome.skipped - num_early}
        others = [f", {count} {what}" for what, count in counts.items() if count]
        state = "done" if outcome.complete else "not complete"
        self._console.print(
            f"launch {outcome.name}: {counted(outcome.measured, 'case')} measured"
            f"{''.join(others)}, {state}{self._left_in_words()}",
            highlight=False,
        )

    def _left_in_words(self) -> str:
        left_s = self._time_left.left_s(time.monotonic())
        return f", about {in_words(left_s)} left" if left_s else ""

    def _num_left(self, num_skipped: int) -> int:
        """Return how many cases the launches still to end have, if each skips so many."""
        own = self._num_cases - num_skipped if self._ladder.campaign.studies else 1
        return sum(max(0, own - self._already[launch.name]) for launch in self._left)

    def _show(self, completed: int, num_skipped: int) -> None:
        """Show the count; what one launch skips, the others skip as well, and none counts it."""
        total = self._done + self._num_left(num_skipped)
        self._progress.update(self._task, completed=completed, total=total)

    def _draw(self, times: Times) -> None:
        self._live.update(Group(self._table(times), self._progress))

    def _table(self, times: Times) -> Table:
        table = Table(title="Median step time in ms (launches)", box=None)
        table.add_column("case", overflow="fold")
        world_sizes = sorted(self._ladder.campaign.world_sizes)
        for world_size in world_sizes:
            table.add_column(f"{world_size} rank{'s' if world_size > 1 else ''}", justify="right")
        names = short_names(list(times))
        for case, by_size in list(times.items())[:MAX_ROWS]:
            table.add_row(Text(names[case]), *(_cell(by_size.get(n, [])) for n in world_sizes))
        if len(times) > MAX_ROWS:
            table.add_row(f"and {len(times) - MAX_ROWS} more cases")
        return table


def _merge(times: Times, more: Times) -> Times:
    """Return the times of both."""
    merged: Times = {}
    for part in (times, more):
        for case, by_size in part.items():
            for size, step_s in by_size.items():
                own = merged.setdefault(case, {})
                own[size] = [*own.get(size, []), *step_s]
    return merged


def short_names(cases: list[str]) -> dict[str, str]:
    """Return case -> the factors that only it has among the cases of its test, in short."""
    factors = {case: case.partition("[")[2].rstrip("]").split("-") for case in cases}
    names = {}
    for case in cases:
        test = case.partition("[")[0]
        others = [factors[o] for o in cases if o != case and o.partition("[")[0] == test]
        own = [f for f in factors[case] if not others or any(f not in other for other in others)]
        names[case] = f"{test.removeprefix('test_')} {', '.join(own)}"
    return names


def _first(times: Times) -> str:
    """Return the first step time of a launch in words; empty where a case has none."""
    for case, by_size in times.items():
        for step_s in by_size.values():
            name = short_names(list(times))[case].strip()
            return f": {name} takes {_cell(step_s).partition(' ')[0]} ms a step"
    return ""


def _cell(step_s: list[float]) -> str:
    return f"{median(step_s) * 1e3:.3g} ({len(step_s)})" if step_s else "-"
