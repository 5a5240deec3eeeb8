"""What a person sees while a ladder is measured: a bar with the time left, and the points so far.

Where the output is no terminal, one plain line per launch.
"""

from statistics import median
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from lockstep.campaign.campaign import Launch
from lockstep.campaign.folder import Outcome
from lockstep.campaign.ladder import Ladder, step_times

MAX_ROWS = 12


class View:
    """A live view of a ladder, on stderr.

    Args:
        ladder: What is measured.
        launches: The launches still to make.
    """

    def __init__(self, ladder: Ladder, launches: list[Launch]) -> None:
        self._ladder = ladder
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cases," if ladder.campaign.studies else "launches,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self._console,
        )
        # The user's own tests are counted as they run: a launch of them counts as one case.
        self._num_cases = ladder.campaign.num_cases() or 1
        self._already = {launch.name: ladder.outcome(launch).measured for launch in launches}
        total = self._num_cases * len(launches) - sum(self._already.values())
        self._task = self._progress.add_task("starting", total=total)
        self._done = 0
        self._live = Live(console=self._console, refresh_per_second=1, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
            self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live.is_started:
            self._live.stop()
            self._console.print(self._table())

    def begin(self, launch: Launch) -> None:
        """Show which launch runs now."""
        self._progress.update(self._task, description=f"launch {launch.name}")

    def advance(self, launch: Launch, num_ended: int) -> None:
        """Show how many of a launch's cases have ended."""
        new = max(0, num_ended - self._already[launch.name])
        self._progress.update(self._task, completed=self._done + new)

    def end(self, outcome: Outcome) -> None:
        """Count a launch as made and show its points."""
        self._done += self._num_cases - self._already[outcome.name]
        self._progress.update(self._task, completed=self._done)
        if self._live.is_started:
            self._draw()
            return
        state = "done" if outcome.complete else "not complete"
        self._console.print(
            f"launch {outcome.name}: {outcome.measured} cases measured, "
            f"{outcome.skipped} skipped, {state}",
            highlight=False,
        )

    def _draw(self) -> None:
        self._live.update(Group(self._table(), self._progress))

    def _table(self) -> Table:
        table = Table(title="Median step time in ms (launches)", box=None)
        table.add_column("case", overflow="fold")
        world_sizes = sorted(self._ladder.campaign.world_sizes)
        for world_size in world_sizes:
            table.add_column(f"{world_size} rank{'s' if world_size > 1 else ''}", justify="right")
        times = step_times(self._ladder)
        names = short_names(list(times))
        for case, by_size in list(times.items())[:MAX_ROWS]:
            table.add_row(Text(names[case]), *(_cell(by_size.get(n, [])) for n in world_sizes))
        if len(times) > MAX_ROWS:
            table.add_row(f"and {len(times) - MAX_ROWS} more cases")
        return table


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


def _cell(step_s: list[float]) -> str:
    return f"{median(step_s) * 1e3:.3g} ({len(step_s)})" if step_s else "-"
