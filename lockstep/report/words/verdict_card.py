"""What bounds the step of a campaign: the card that a page and a command show, and its sentences.

The sentences say why a point falls short of the ideal, which rank is slow, and what to do.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from lockstep.core.formats import counted, number, percent
from lockstep.core.studies import LADDERS
from lockstep.measure.causes.bound import NAMES, Bound, Cause, Kind
from lockstep.measure.causes.card import (
    LATE_NEXT,
    NEXT_OWN,
    card,
    headline,
    late_text,
    next_text,
    next_with,
)
from lockstep.measure.causes.division import LateInput
from lockstep.report.compute import quantities, slow
from lockstep.report.compute.quantities import Reason
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import Slowest
from lockstep.report.compute.statistics import Interval
from lockstep.report.page.parts import MILLI, ms, ms_span, sound

# Tests of one's own are steps of their own: so many are judged, and so many are printed in full.
MOST_JUDGED, MOST_CARDS = 20, 4
ADVICE: dict[Cause, str] = {
    "exposed": "try a larger batch per rank, and the bucket sizes",
    "imbalance": "look at its device, its clocks, and what else runs on its host",
    "input": "try more loader workers, pinned memory and prefetching",
    "fixed": "it does not shrink with the batch: try a larger batch per rank, torch.compile or a "
    "CUDA graph",
    "contention": "ranks wait for cores, or compute longer than a rank of the baseline does: they "
    "share cores, caches, memory bandwidth or power with each other or with other processes",
    "own": "each rank computes longer than its share of the baseline: its batch is too small to "
    "fill the device, or ranks share cores and memory bandwidth",
    "ddp": "it takes as long at every size: try a larger batch per rank",
}


@dataclass(frozen=True)
class Judged:
    """A point and what bounds its step."""

    series: Series
    point: Point
    bound: Bound

    @property
    def title(self) -> str:
        """Which point it is of."""
        return f"{self.series.label} on {counted(self.point.world_size, 'rank')}"

    @property
    def lines(self) -> list[str]:
        """The card's lines."""
        return self._lines(self._next())

    @property
    def measured(self) -> list[str]:
        """The card's lines without what to try next, for where that is shown apart."""
        return self._lines({})

    def _lines(self, todo: Mapping[Kind, str]) -> list[str]:
        hosts = self.point.rows[0].rank_hosts
        same = all(row.rank_hosts == hosts for row in self.point.rows)
        slowest = slow.slowest(self.point.rows) if self.bound.num_launches > 1 else None
        slow_rank = slow_text(slowest) if slowest else ""
        lines = card(self.bound, hosts if same else (), todo, slow_rank, self._latest())
        if self.bound.kind == "open" and any(line.startswith(" ") for line in lines):
            noisy = "  too noisy to say what a step loses, and to what"
            return [lines[0], noisy, *(line for line in lines[1:] if not line.startswith(" "))]
        return lines

    @property
    def advice(self) -> str:
        """What to try next; empty where no cause is shown."""
        text = next_text(self.bound.kind, self._next(), self._latest())
        return text if self.bound.named else ""

    @property
    def is_own(self) -> bool:
        """Whether the step is that of a test of one's own."""
        return self.series.row.is_own_test

    def _next(self) -> Mapping[Kind, str]:
        return NEXT_OWN if self.is_own else next_with(self.series.row.workload)

    def _latest(self) -> str:
        late = slow.latest(self.point.rows)
        return late_text(*late) if late else ""


def judge(series: Sequence[Series], threshold: float) -> Judged | None:
    """Return what bounds the point that a campaign is about; None where no variants were timed."""
    return next(iter(judge_all(series, threshold)), None)


def judge_all(series: Sequence[Series], threshold: float) -> list[Judged]:
    """Return what bounds the point that a campaign is about; of one's own tests, that of each.

    That is the smallest size whose efficiency is below the threshold, else the largest, of the
    strong series where there is one, else of the weak, else of the quickest setting. Of one's own
    tests the one that scales worst is the first, as in the headlines. A series with an error of the
    check has no verdict, and none of this either.
    """

    def place(curve: Series) -> tuple[int, float]:
        if curve.row.study not in LADDERS:
            return len(LADDERS), -curve.points[-1].rate
        efficiency = curve.points[-1].parallel_efficiency
        return LADDERS.index(curve.row.study), efficiency if curve.row.is_own_test else 0.0

    def judged() -> Iterator[Judged]:
        for curve in sorted(sound(series), key=place):
            point = telling(curve, threshold)
            if bound := quantities.judged(curve, point):
                yield Judged(curve, point, bound)

    found = judged()
    first = next(found, None)
    if first is None or not first.is_own:
        return [first] if first else []

    def worst(one: Judged) -> tuple[float, float]:
        lost_s = max((share.seconds for share in one.bound.named), default=0.0)
        return one.series.points[-1].parallel_efficiency, -lost_s / one.bound.step_s

    own = [first, *(one for one in islice(found, MOST_JUDGED - 1) if one.is_own)]
    return sorted(own, key=worst)


def printed(series: Sequence[Series], threshold: float, *, has_next: bool = True) -> list[str]:
    """Return the cards as lines; of more than a few tests of one's own the headline alone."""
    cards = judge_all(series, threshold)
    lines = []
    for judged in cards[:MOST_CARDS]:
        lines += ["", f"{judged.title}:", *(judged.lines if has_next else judged.measured)]
    further = [f"{judged.title}: {headline(judged.bound)}" for judged in cards[MOST_CARDS:]]
    return [*lines, *[""] * bool(further), *further]


def telling(series: Series, threshold: float) -> Point:
    """Return the smallest size whose efficiency is below the threshold, else the largest."""
    below = (point for point in series.points if point.parallel_efficiency < threshold)
    return next(below, series.points[-1])


def why_short(series: Series, point: Point, why: Reason | None) -> str | None:
    """Return in a sentence why a point falls short and what to do; None without a cause."""
    if why is None or why.kind != "named":
        return None
    lost = why.loss
    start = (
        f"{series.label} on {counted(point.world_size, 'rank')}: a step takes "
        f"{number(lost.step_s * MILLI)} ms where {number((lost.step_s - lost.seconds) * MILLI)} ms "
        f"are ideal"
    )
    who = whose(slow.slowest(point.rows), slow.latest(point.rows))
    first, *others = (
        f"{ms(part.seconds)} ms{_brackets(part.interval)} go to {NAMES[part.cause]}"
        f"{who.get(part.cause, '')}"
        for part in why.named
    )
    beside = f"; beside it {' and '.join(others)}" if others else ""
    cause = why.named[0].cause
    advice = f"look at {LATE_NEXT}" if cause == "input" and cause in who else ADVICE[cause]
    return f"{start}; of it {first}: {advice}{beside}."


def _brackets(interval: Interval | None) -> str:
    return f" ({ms_span(interval)})" if interval else " (no interval)"


def whose(slowest: Slowest | None, late: tuple[LateInput, str] | None) -> dict[Cause, str]:
    """Return by cause whom the others wait for, in brackets, where that is shown."""
    names: dict[Cause, str] = {"imbalance": f" ({slow_text(slowest)})"} if slowest else {}
    return names | ({"input": f" ({late_text(*late)})"} if late else {})


def slow_text(slowest: Slowest) -> str:
    """Name the host or rank that is slowest in most launches, with how much slower it is."""
    who = slowest.host if slowest.rank is None else f"rank {slowest.rank}"
    who += f" on {slowest.host}" if slowest.rank is not None and slowest.host else ""
    low, high = (percent(end - 1) for end in slowest.interval)
    return (
        f"{who} is the slowest in {slowest.num_seen} of {slowest.num_launches} launches, by "
        f"{percent(slowest.ratio - 1)} % ({low} to {high} %)"
    )


def slow_advice(slowest: Slowest) -> str:
    """Say what to do about a slow host or rank."""
    away = (
        f"measure again without it (sbatch --exclude={slowest.host}), and have it looked at"
        if slowest.is_elsewhere and slowest.host
        else ADVICE["imbalance"]
    )
    return f"{slow_text(slowest)}: {away}."
