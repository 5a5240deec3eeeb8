"""What a person sees while a ladder is measured: a bar with the time left, and the points so far.

Where the output is no terminal, one plain line per launch.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from types import MappingProxyType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from lockstep.campaign.campaign import Launch, plan
from lockstep.campaign.folder import Outcome
from lockstep.campaign.local.ladder import Ladder, step_times
from lockstep.core.formats import counted, in_words

MAX_ROWS = 12
# case -> world size -> seconds per step of each launch
Times = dict[str, dict[int, list[float]]]


class TimeLeft:
    """When all launches will have ended, by those that have; never a time that has passed.

    Args:
        launches: The launches still to make.
        begun_s: When the first of them begins, on the clock of the readings that follow.
        expected_s: Launch -> its seconds, as far as earlier ones tell; those that end tell better.
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
        self._share = 0.0

    def advance(self, share: float) -> None:
        """Note which share of the running launch's cases has ended."""
        self._share = share

    def end(self, now_s: float) -> None:
        """Note that the running launch has ended, and the next one begins."""
        launch = self._left.pop(0)
        self._durations.setdefault(launch.world_size, []).append(now_s - self._begun_s)
        self._begun_s, self._share = now_s, 0.0

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds that are left; None while nothing tells them."""
        known = [duration for durations in self._durations.values() for duration in durations]
        spent_s = now_s - self._begun_s
        if not known and not self._share and not self._expected_s:
            return None
        usual = fmean(known) if known else spent_s / (self._share or 1.0)
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
            return Text("time left unknown yet")
        return Text(f"about {left_s // 60:.0f}:{left_s % 60:02.0f} left")


class View:
    """A live view of a ladder, on stderr.

    Args:
        ladder: What is measured.
        launches: The launches still to make.
        expected_s: Launch -> its seconds, as far as earlier ones tell.
    """

    def __init__(
        self, ladder: Ladder, launches: list[Launch], expected_s: Mapping[str, float]
    ) -> None:
        self._ladder = ladder
        self._console = Console(stderr=True)
        self._time_left = TimeLeft(launches, time.monotonic(), expected_s)
        self._has_told = bool(expected_s)
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
        self._times = step_times(ladder, settled)

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
            self._time_left.advance(min(1.0, new / total))
        self._show(self._done + new, outcome.skipped)
        if self._live.is_started:
            self._draw(_merged(self._times, step_times(self._ladder, [launch])))
        elif new and not self._has_told:
            self._has_told = True
            first = _first(step_times(self._ladder, [launch]))
            text = f"launch {launch.name}{first}{self._left_in_words()}"
            self._console.print(text, highlight=False, soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        """Count a launch as made and show its points."""
        launch = self._left[0]
        own = self._num_cases - outcome.skipped if self._ladder.campaign.studies else 1
        self._done += max(0, own - self._already[outcome.name])
        self._left = self._left[1:]
        self._time_left.end(time.monotonic())
        self._show(self._done, outcome.skipped)
        self._times = _merged(self._times, step_times(self._ladder, [launch]))
        if self._live.is_started:
            self._draw(self._times)
            return
        state = "done" if outcome.complete else "not complete"
        self._console.print(
            f"launch {outcome.name}: {counted(outcome.measured, 'case')} measured, "
            f"{outcome.skipped} skipped, {state}{self._left_in_words()}",
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


def _merged(one: Times, other: Times) -> Times:
    """Return the times of both."""
    merged = {case: {size: list(times) for size, times in own.items()} for case, own in one.items()}
    for case, own in other.items():
        for size, times in own.items():
            merged.setdefault(case, {}).setdefault(size, []).extend(times)
    return merged


def short_names(cases: list[str]) -> dict[str, str]:
    """Return case -> what tells it from the other cases of its test, for a narrow column."""
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
    found = ((case, step_s) for case, by_size in times.items() for step_s in by_size.values())
    case, step_s = next(found, ("", []))
    what = f": {short_names(list(times))[case].strip()}" if step_s else ""
    return what and f"{what} takes {_cell(step_s).partition(' ')[0]} ms a step"


def _cell(step_s: list[float]) -> str:
    return f"{median(step_s) * 1e3:.3g} ({len(step_s)})" if step_s else "-"
