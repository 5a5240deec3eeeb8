"""The bottleneck of a campaign's step as a card, and sentences on why a point falls short."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from lockstep.core.formats import capital, counted, number, percent
from lockstep.core.studies import LADDERS
from lockstep.measure.causes.bound import NAMES, Bound, Cause, Kind
from lockstep.measure.causes.card import (
    LATE_NEXT,
    NEXT_OWN,
    card,
    first_late,
    headline,
    late_text,
    next_text,
    next_with,
)
from lockstep.report.compute import quantities, slow
from lockstep.report.compute.quantities import Reason
from lockstep.report.compute.scaling import Point, Series, no_interval
from lockstep.report.compute.slow import Slowest
from lockstep.report.page.parts import MILLI, ms, ms_span, sound

# Most of the user's own tests that are judged, and most that are printed in full.
MOST_JUDGED, MOST_CARDS = 20, 4
ADVICE: dict[Cause, str] = {
    "exposed": "try a larger batch per rank, or another bucket_cap_mb",
    "imbalance": "look at the slow rank's device and clocks, and at other processes on its host",
    "input": "try more loader workers, pinned memory and prefetching",
    "fixed": "try a larger batch per rank, torch.compile or a CUDA graph, because a fixed cost "
    "does not shrink with the batch",
    "contention": "use a quiet machine or fewer ranks per host, because ranks share cores, caches, "
    "memory bandwidth or power with each other or with other processes",
    "own": "try a larger batch per rank, because a small batch may not fill the device, or use "
    "fewer ranks per host, because ranks may share cores and memory bandwidth",
    "ddp": "try a larger batch per rank, because DDP's own work takes as long at every size",
}


@dataclass(frozen=True)
class Judged:
    """A point and the bottleneck of its step."""

    series: Series
    point: Point
    bound: Bound

    @property
    def title(self) -> str:
        """The label and the world size of the point."""
        return f"{self.series.label} on {counted(self.point.world_size, 'rank')}"

    def lines(self, *, has_next: bool = True) -> list[str]:
        """Return the card's lines, with the next action if `has_next`."""
        hosts = self.point.rows[0].rank_hosts
        same = all(row.rank_hosts == hosts for row in self.point.rows)
        slowest = slow.slowest(self.point.rows) if self.bound.num_launches > 1 else None
        slow_rank, todo = slow_text(slowest) if slowest else "", self._next() if has_next else {}
        lines = card(self.bound, hosts if same else (), todo, slow_rank)
        if self.bound.kind == "open" and any(line.startswith(" ") for line in lines):
            noisy = "  the launches are too noisy to show the cause of the lost time"
            return [lines[0], noisy, *(line for line in lines[1:] if not line.startswith(" "))]
        return lines

    @property
    def advice(self) -> str:
        """The next action; empty if no cause is shown."""
        is_known = self.bound.named or first_late(self.bound)
        return next_text(self.bound, self._next()) if is_known else ""

    @property
    def is_own(self) -> bool:
        """Whether the step is that of a user's own test."""
        return self.series.row.is_own_test

    def _next(self) -> Mapping[Kind, str]:
        return NEXT_OWN if self.is_own else next_with(self.series.row.workload)


def judge(series: Sequence[Series], threshold: float) -> Judged | None:
    """Return the bottleneck of the point that a campaign is about; None if no variant was timed."""
    return next(iter(judge_all(series, threshold)), None)


def judge_all(series: Sequence[Series], threshold: float) -> list[Judged]:
    """Judge the loss point of the strong series, else of the weak, else of the quickest.

    Each of the user's own tests is judged, the test that scales worst first. A series that an
    error of the check touches has no verdict.
    """

    def place(curve: Series) -> tuple[int, float]:
        if curve.row.study not in LADDERS:
            return len(LADDERS), -curve.points[-1].rate
        efficiency = curve.points[-1].parallel_efficiency
        return LADDERS.index(curve.row.study), efficiency if curve.row.is_own_test else 0.0

    def cards() -> Iterator[Judged]:
        for curve in sorted(sound(series), key=place):
            point = loss_point(curve, threshold)
            if bound := quantities.find_bottleneck(curve, point):
                late = slow.latest(point.rows)
                yield Judged(
                    curve, point, replace(bound, late=bound.late or (late[0] if late else None))
                )

    def worst(card: Judged) -> tuple[float, float]:
        lost_s = max((share.seconds for share in card.bound.named), default=0.0)
        return card.series.points[-1].parallel_efficiency, -lost_s / card.bound.step_s

    remaining = cards()
    first = list(islice(remaining, 1))
    if not (first and first[0].is_own):
        return first
    own = [card for card in islice(remaining, MOST_JUDGED - 1) if card.is_own]
    return sorted([*first, *own], key=worst)


def printed(series: Sequence[Series], threshold: float, *, has_next: bool = True) -> list[str]:
    """Return the cards as lines; beyond `MOST_CARDS` only the headline of a card."""
    cards = judge_all(series, threshold)
    lines = []
    for judged in cards[:MOST_CARDS]:
        lines += ["", f"{judged.title}:", *judged.lines(has_next=has_next)]
    further = [f"{judged.title}: {headline(judged.bound)}" for judged in cards[MOST_CARDS:]]
    return [*lines, *[""] * bool(further), *further]


def loss_point(series: Series, threshold: float) -> Point:
    """Return the smallest size whose efficiency is below the threshold, else the largest."""
    below = (point for point in series.points if point.parallel_efficiency < threshold)
    return next(below, series.points[-1])


def why_short(series: Series, point: Point, why: Reason | None) -> str | None:
    """Return a sentence on why a point falls short and what to do; None without a cause."""
    if why is None or why.kind != "named":
        return None
    lost, size = why.loss, counted(point.world_size, "rank")
    step_ms, ideal_ms = number(lost.step_s * MILLI), number((lost.step_s - lost.seconds) * MILLI)
    who = culprits(point)
    losses = []
    for part in why.named:
        span = ms_span(part.interval) if part.interval else no_interval(point, series.base)
        cause = f"{NAMES[part.cause]}{who.get(part.cause, '')}"
        losses.append(f"{ms(part.seconds)} ms ({span}) are lost to {cause}")
    lost_to, first = " and ".join(losses), why.named[0].cause
    is_late = first == "input" and first in who
    advice = capital(f"look at {LATE_NEXT}" if is_late else ADVICE[first])
    return (
        f"{series.label} on {size}: a step takes {step_ms} ms instead of the ideal {ideal_ms} ms; "
        f"{lost_to}. {advice}."
    )


def culprits(point: Point) -> dict[Cause, str]:
    """Return cause -> the slow host or rank in brackets, if one is shown."""
    slowest, late = slow.slowest(point.rows), slow.latest(point.rows)
    names: dict[Cause, str] = {"imbalance": f" ({slow_text(slowest)})"} if slowest else {}
    return names | ({"input": f" ({late_text(*late)})"} if late else {})


def slow_text(slowest: Slowest) -> str:
    """Return the host or rank that is slowest in most launches, and by how much, as text."""
    who = slowest.host if slowest.rank is None else f"rank {slowest.rank}"
    who += f" on {slowest.host}" if slowest.rank is not None and slowest.host else ""
    low, high = (percent(end - 1) for end in slowest.interval)
    return (
        f"{who} is the slowest in {slowest.num_seen} of {slowest.num_launches} launches, by "
        f"{percent(slowest.ratio - 1)} % ({low} to {high} %)"
    )


def slow_advice(slowest: Slowest) -> str:
    """Return what to do about a slow host or rank."""
    advice = ADVICE["imbalance"]
    if slowest.is_elsewhere and slowest.host:
        advice = (
            f"measure without this host (sbatch --exclude={slowest.host}), and have the host "
            "checked"
        )
    return f"{slow_text(slowest)}: {advice}."
