"""The headline of a series: how far it scales, its loss, the evidence, and sizes by purpose."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from lockstep.core.formats import capital, counted, listed, number, percent, percent_span, ratio
from lockstep.core.studies import LADDERS
from lockstep.measure.causes.bound import Cause
from lockstep.report.check.evidence import joined
from lockstep.report.compute import quantities
from lockstep.report.compute.quantities import Loss, Part, Reason
from lockstep.report.compute.scaling import (
    Point,
    Series,
    compute_gain,
    launches_to_show,
    no_interval,
)
from lockstep.report.compute.statistics import is_below_one
from lockstep.report.page import parts
from lockstep.report.words import verdict_card

Kind = Literal["good", "below", "open", "alone", "blocked"]

TIMES = "\u00d7"
# A clause on the milliseconds that are lost to a cause.
PHRASES: dict[Cause, str] = {
    "exposed": "{milliseconds} are spent waiting for communication",
    "imbalance": "{milliseconds} are spent waiting for slow ranks",
    "input": "{milliseconds} are spent waiting for input",
    "fixed": "{milliseconds} are a fixed cost of each step",
    "contention": "{milliseconds} are lost because ranks share a machine",
    "own": "{milliseconds} are compute time that more ranks do not shorten",
    "ddp": "{milliseconds} are DDP's own work",
}


@dataclass(frozen=True)
class Headline:
    """How far a series scales, and its loss at the size where it stops.

    Attributes:
        kind: `good`: a size above the baseline is shown to reach the threshold; `below`: each is
            shown not to; `open`: neither; `alone`: no size is above the baseline; `blocked`: an
            error of the check forbids a verdict.
        point: The largest good size, or the most efficient size if none is good.
        loss_point: The smallest size below the threshold, or the largest; the loss is of this size.
    """

    kind: Kind
    series: Series
    threshold: float
    point: Point
    loss_point: Point
    why: Reason | None
    why_blocked: str = ""

    @cached_property
    def sentence(self) -> str:
        """The lines as sentences."""
        is_blocked = self.kind == "blocked"
        return self.why_blocked if is_blocked else " ".join(f"{capital(x)}." for x in self.lines)

    @property
    def lines(self) -> list[str]:
        """Speed-up, loss and evidence, a line each."""
        if self.kind == "blocked":
            return [self.why_blocked]
        return [line for line in (self.gives, self.loses, f"trust: {self.trust}") if line]

    @property
    def gives(self) -> str:
        """How far the series scales."""
        base, point = counted(self.series.baseline, self.series.noun), self.point
        if self.kind == "alone":
            return f"no size above the baseline, {parts.baseline_text(self.series)}, was measured"
        size, interval = counted(point.world_size, self.series.noun), point.efficiency_interval
        named = " efficiency" if self.kind == "good" else ""
        span = percent_span(interval) if interval else no_interval(point, self.series.base)
        achieved = f"{percent(point.parallel_efficiency)} %{named}, {span}"
        verb = "gives" if point.world_size == 1 else "give"
        speedup = f"{gain(point)} {parts.rate_text(self.series.base, base)} ({achieved})"
        is_slower = point.speedup_interval and point.speedup_interval[1] < 1
        text = f"{size} {verb} {speedup}"
        if is_slower:
            text = f"{size} are slower than {base} and give {speedup}"
        if self.kind == "good":
            return text
        goal = f"{100 * self.threshold:.0f} % efficiency"
        best = "at best " if point.speedup >= 1 else ""
        none = f"no size reaches {goal}"
        if self.kind == "open":
            none = f"no size is shown to reach {goal}"
        return f"{none}: {best}{text}"

    @property
    def loses(self) -> str:
        """The efficiency, the milliseconds lost and their cause; empty if unknown."""
        point = self.loss_point
        if point is self.series.base:
            return ""
        efficiency = f"{percent(point.parallel_efficiency)} %"
        if point.efficiency_interval:
            efficiency += f" ({percent_span(point.efficiency_interval)})"
        falls = f"on {counted(point.world_size, self.series.noun)} {efficiency}"
        return "; ".join(filter(None, (falls if point is not self.point else "", self.lost)))

    @property
    def lost(self) -> str:
        """The milliseconds lost and their cause; empty if unknown, and at the baseline."""
        why = self.why
        if why is None or self.loss_point is self.series.base:
            return ""
        cause = (
            self.cause(f"{_span(why.named[0])} of them")
            if why.named
            else "the cause of the lost time is not shown"
        )
        step_ms, lost_ms = parts.ms(why.loss.step_s), _span(why.loss)
        lost = f"a step takes {step_ms} ms, {lost_ms} longer than the ideal step; {cause}"
        if why.kind == "little":
            lost = "little is lost"
        elif why.kind == "open" and why.loss.seconds <= 0:
            lost = "no lost time against the baseline is shown"
        if part := why.as_baseline:
            phrase = PHRASES[part.cause].format(milliseconds=_span(part))
            lost += f"; {phrase}, at the baseline as well"
        return lost

    def cause(self, time: str) -> str:
        """The cause of the lost time, and the slow host or rank if known."""
        assert self.why
        if self.why.kind != "named":
            return "little is lost" if self.why.kind == "little" else "no cause shown"
        cause, culprits = self.why.named[0].cause, verdict_card.culprits(self.loss_point)
        return PHRASES[cause].format(milliseconds=time) + culprits.get(cause, "")

    @property
    def trust(self) -> str:
        """The numbers of launches and of flagged points."""
        is_measured = self.series.row.origin == "measured"
        return f"{self.launches} a size, {self.flagged}" if is_measured else "not measured here"

    @property
    def launches(self) -> str:
        """The number of launches per size."""
        counts = [point.num_launches for point in self.series.points]
        fewest, most = min(counts), counted(max(counts), "launch")
        return most if fewest == max(counts) else f"{fewest} to {most}"

    @property
    def flagged(self) -> str:
        """The number of points that are flagged, or warned of by the check."""
        points = self.series.points
        text = f"{num_flagged(points) or 'none'} of its {counted(len(points), 'point')} flagged"
        num_warned = sum(point.world_size in self.series.warned for point in points)
        warned = f", check warns about {counted(num_warned, 'point')}"
        return text + warned * bool(num_warned)


def judge(series: Series, threshold: float, why_blocked: str = "") -> Headline:
    """Return the headline of a series."""
    above, good = series.above, series.good(threshold)
    kind: Kind = "good" if good else "open" if series.unshown(threshold) else "below"
    best = max(above, key=lambda point: point.parallel_efficiency, default=series.points[-1])
    loss_point = verdict_card.loss_point(series, threshold)
    return Headline(
        "blocked" if why_blocked else kind if above else "alone", series, threshold,
        good[-1] if good else best, loss_point, quantities.reason(series, loss_point),
        why_blocked,
    )  # fmt: skip


def entry(
    title: str, of: str, kind: str, *lines: str, text: str = "", short: str = "",
    others: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return a headline of the page; `text` defaults to the first line."""
    return {
        "title": title, "of": of, "kind": kind, "text": text or lines[0], "lines": list(lines),
        "short": short, "others": list(others),
    }  # fmt: skip


def verdict(series: Series, threshold: float) -> str:
    """Return how far a series scales, or that an error of the check forbids a verdict."""
    if any(point.blocked_by for point in series.points):
        return "there is no verdict, because lockstep check found an error"
    return judge(series, threshold).gives


def gain(point: Point) -> str:
    """Return a speed-up with a sign of times."""
    value = point.speedup
    return f"{ratio(value) if value < 10 else number(value)}{TIMES}"


def num_flagged(points: Iterable[Point]) -> int:
    """Return how many points have a flag of their own or of a launch."""
    return sum(bool(point.flags) for point in points)


def summarise(headlines: Sequence[Headline]) -> str:
    """Return a summary: each series with its largest good size."""
    texts = {
        "below": "nowhere good", "open": "not shown", "alone": "at one size", "blocked": "blocked",
    }  # fmt: skip
    named = (f"{each.series.label} {texts.get(each.kind, f'good to {each.point.world_size}')}"
             for each in headlines)  # fmt: skip
    return listed(named, 6)


# Ladders whose choices of a size are printed.
MAX_PRINTED = 3


@dataclass(frozen=True)
class Choice:
    """The size for a purpose, None where no measured one is shown to suit, and the reason."""

    purpose: str
    world_size: int | None
    why: str
    lacking: str = "not shown"  # in place of a size
    beside: str = ""  # the sizes that are tied with it


def choices(series: Series, threshold: float) -> list[Choice]:
    """Return the size for each purpose; empty for one size, and where nothing is concluded."""
    points = series.points
    if not series.above or series.main or any(point.blocked_by for point in points):
        return []
    # Work costs least per device where the efficiency is highest.
    cheap = max(points, key=lambda point: (point.parallel_efficiency, point.world_size))
    fast = max(points, key=lambda point: (point.rate, -point.world_size))
    good, unshown = series.good(threshold), series.unshown(threshold)
    lacking = "no size above the baseline reaches this efficiency"
    if unshown:
        lacking = f"{series.launches_to_show(threshold)} would decide"
    return [
        _smallest_tied("fewest device-hours", series, cheap, is_per_rank=True),
        Choice(
            f"{100 * threshold:.0f} % efficiency or more", good[-1].world_size if good else None,
            _why(good[-1]) if good else lacking, "not shown" if unshown else "none",
        ),
        _smallest_tied("shortest time", series, fast, is_per_rank=False),
    ]  # fmt: skip


def _smallest_tied(purpose: str, series: Series, best: Point, is_per_rank: bool) -> Choice:
    """Return the smallest size that is tied with the best, by the rate or by the rate per rank."""
    size, slower = best.world_size, dict[Point, bool | None]()
    limits = {p: p.world_size / size if is_per_rank else 1.0 for p in series.points if p != best}
    for point, limit in limits.items():
        made = compute_gain(point.rate, point.units, best, limit)
        slower[point] = is_below_one(made["efficiency_interval"])
        if point.rows[0].origin != "measured":
            slower[point] = made["parallel_efficiency"] < 1
    if open_ := {point: limits[point] for point, known in slower.items() if known is None}:
        return Choice(purpose, None, f"{launches_to_show(best, open_, or_tied=True)} would decide")
    equal, *others = (point for point in series.points if not slower.get(point))
    sizes = joined([each.world_size for each in (others if equal is best else [best])])
    beside = f"statistically tied with {sizes} {series.noun}s" if others else ""
    why = "; ".join(filter(None, ("" if is_per_rank else _why(equal), beside)))
    why = why or "every other size is shown to be less efficient"
    return Choice(purpose, equal.world_size, why, beside=beside)


def choice_sentences(series: Sequence[Series], threshold: float) -> list[str]:
    """Return the choices of the first ladders, a sentence each."""
    lines = list[str]()
    for curve in series:
        if len(lines) == MAX_PRINTED:
            break
        if curve.row.study in LADDERS and (made := choices(curve, threshold)):
            sizes = "; ".join(
                f"{choice.purpose}: {counted(choice.world_size, curve.noun)}"
                + (f" ({choice.beside})" if choice.beside else "")
                if choice.world_size else f"{choice.purpose}: {choice.lacking} ({choice.why})"
                for choice in made
            )  # fmt: skip
            lines.append(f"{curve.label}, size by purpose: {sizes}")
    return lines


def _span(time: Part | Loss) -> str:
    interval = parts.ms_span(time.interval) if time.interval else "no interval"
    return f"{parts.ms(time.seconds)} ms ({interval})"


def _why(point: Point) -> str:
    span = point.efficiency_interval
    text = f"{gain(point)} the rate, {percent(point.parallel_efficiency)} % efficiency"
    return f"{text} ({percent_span(span)} %)" if span else text
