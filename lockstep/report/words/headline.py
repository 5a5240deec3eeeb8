"""What a series says in a line: how far it scales, what is lost beyond, and what backs it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.core.formats import capital, counted, listed, number, percent, percent_span, ratio
from lockstep.measure.causes.bound import Cause
from lockstep.measure.causes.division import LateInput
from lockstep.report.compute import quantities, slow
from lockstep.report.compute.quantities import Loss, Reason
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import Slowest
from lockstep.report.page import parts
from lockstep.report.words import verdict_card

Kind = Literal["good", "below", "open", "alone", "blocked"]

TIMES = "\u00d7"
# What milliseconds of a step do that go to a cause.
PHRASES: dict[Cause, str] = {
    "exposed": "wait for communication",
    "imbalance": "wait for slow ranks",
    "input": "wait for input",
    "fixed": "are a fixed cost of each step",
    "contention": "go to ranks that share a machine",
    "own": "are own work that more ranks do not shorten",
    "ddp": "are DDP's own work",
}


@dataclass(frozen=True)
class Headline:
    """What is to be said of a series.

    Attributes:
        kind: `good`: a size above the baseline is shown to reach the threshold. `below`: no size
            does. `open`: none is, and of some it is not shown that they do not. `alone`: there is
            no size above the baseline.
            `blocked`: an error of the check forbids to say more.
        point: The largest good size, or the best where none is good.
        loss_point: The smallest size below the threshold, or the largest: its loss is named.
        why: What is lost there, and to what; None where no variants were timed.
        slow: The host or rank that is slow there; None where none is shown.
    """

    kind: Kind
    series: Series
    threshold: float
    point: Point
    loss_point: Point
    why: Reason | None
    slow: Slowest | None
    late: tuple[LateInput, str] | None
    why_blocked: str = ""

    @property
    def noun(self) -> str:
        """What the sizes count."""
        return "rank" if self.series.row.origin == "measured" else "device"

    @property
    def sentence(self) -> str:
        """What the ranks give, what is lost and what backs it, a sentence each."""
        if self.kind == "blocked":
            return self.why_blocked
        return " ".join(f"{capital(line)}." for line in self.lines)

    @property
    def lines(self) -> list[str]:
        """What the ranks give, what is lost, and what backs it, each as a line."""
        if self.kind == "blocked":
            return [self.why_blocked]
        return [line for line in (self.gives, self.loses, f"trust: {self.trust}") if line]

    @property
    def gives(self) -> str:
        """How far the series scales."""
        base, point = parts.baseline_text(self.series), self.point
        if self.kind == "alone":
            return f"no size above the baseline, {base}"
        size = counted(point.world_size, self.noun)
        interval = point.efficiency_interval
        span = percent_span(interval) if interval else "no interval"
        named = " efficiency" if self.kind == "good" else ""
        achieved = f"{percent(point.parallel_efficiency)} %{named}, {span}"
        given = f"{size} {'gives' if point.world_size == 1 else 'give'} {gain(point)} the rate of"
        given += f" {base} ({achieved})"
        if point.speedup_interval and point.speedup_interval[1] < 1:
            given = f"{size} are slower than {base}: {gain(point)} its rate ({achieved})"
        if self.kind == "good":
            return given
        sure = "no" if self.kind == "below" else "it is not shown that any"
        best = "at best " if point.speedup >= 1 else ""
        return f"{sure} size reaches {100 * self.threshold:.0f} % efficiency: {best}{given}"

    @property
    def loses(self) -> str:
        """What is lost where the threshold is lost; empty where nothing is known of it."""
        point = self.loss_point
        if point is self.series.base:
            return ""
        size = f"on {counted(point.world_size, self.noun)}"
        falls = f"{size} {percent(point.parallel_efficiency)} %" if point is not self.point else ""
        return ", ".join(filter(None, (falls, self.lost)))

    @property
    def lost(self) -> str:
        """Which of a step's milliseconds are lost, and to what; empty where nobody timed it."""
        why = self.why
        if why is None or why.kind == "little":
            return "little is lost" if why else ""
        if why.kind == "named":
            return f"{_ms_of_step(why.named[0].seconds, why.loss)} {self.cause}"
        if why.loss.seconds <= 0:
            return "no loss is shown"
        return f"{_ms_of_step(why.loss.seconds, why.loss)} are lost, no cause shown"

    @property
    def all_lost(self) -> str:
        """The milliseconds that are lost to all causes, of the step's, where there are some."""
        assert self.why
        loss = self.why.loss
        if loss.seconds <= 0:
            return "none shown"
        return f"{parts.ms(loss.seconds)} of {parts.ms(loss.step_s)} ms"

    @property
    def beyond_ideal(self) -> str:
        """What the milliseconds lost are lost to, and beyond which step."""
        assert self.why
        loss, named = self.why.loss, self.why.named
        took = f"{parts.ms(named[0].seconds)} ms " if self.why.kind == "named" else ""
        return f"ideal {parts.ms(loss.step_s - loss.seconds)} ms; {took}{self.cause}"

    @property
    def cause(self) -> str:
        """What the milliseconds lost do, and who is slow where that is known."""
        assert self.why
        if self.why.kind != "named":
            return "little is lost" if self.why.kind == "little" else "no cause shown"
        cause = self.why.named[0].cause
        return PHRASES[cause] + verdict_card.whose(self.slow, self.late).get(cause, "")

    @property
    def trust(self) -> str:
        """How many launches the series rests on, and how many of its points are flagged."""
        if self.series.row.origin != "measured":
            return "not measured here"
        return f"{self.launches} a size, {self.flagged}"

    @property
    def launches(self) -> str:
        """How many launches a size has."""
        counts = [point.num_launches for point in self.series.points]
        fewest, most = min(counts), counted(max(counts), "launch")
        return most if fewest == max(counts) else f"{fewest} to {most}"

    @property
    def flagged(self) -> str:
        """How many points are flagged, or warned of; the page counts those of all series."""
        points = self.series.points
        text = f"{num_flagged(points) or 'none'} of its {counted(len(points), 'point')} flagged"
        num_warned = sum(point.is_warned_of for point in points)
        return f"{text}, check warns of {num_warned}" if num_warned else text


def judge(series: Series, threshold: float, why_blocked: str = "") -> Headline:
    """Return what is to be said of a series."""
    above, good = series.above, series.good(threshold)
    kind: Kind = "good" if good else "open" if series.unshown(threshold) else "below"
    best = max(above, key=lambda point: point.parallel_efficiency, default=series.points[-1])
    loss_point = verdict_card.telling(series, threshold)
    return Headline(
        kind="blocked" if why_blocked else kind if above else "alone",
        series=series,
        threshold=threshold,
        point=good[-1] if good else best,
        loss_point=loss_point,
        why=quantities.reason(series, loss_point),
        slow=slow.slowest(loss_point.rows),
        late=slow.latest(loss_point.rows),
        why_blocked=why_blocked,
    )


def verdict(series: Series, threshold: float) -> str:
    """Say how far a series scales, or that an error of the check forbids to say it."""
    if any(point.blocked_by for point in series.points):
        return "an error of the check forbids a verdict"
    return judge(series, threshold).gives


def gain(point: Point) -> str:
    """Return a speed-up with its sign."""
    value = point.speedup
    return f"{ratio(value) if value < 10 else number(value)}{TIMES}"


def _ms_of_step(seconds: float, lost: Loss) -> str:
    return f"{parts.ms(seconds)} ms of a {parts.ms(lost.step_s)} ms step"


def num_flagged(points: Iterable[Point]) -> int:
    """Return how many points have a flag of their own or of a launch."""
    return sum(bool(point.flags) for point in points)


def in_short(headlines: Sequence[Headline]) -> str:
    """Name series in few words: up to which size each is good."""
    texts = {
        "below": "nowhere good", "open": "not shown", "alone": "at one size", "blocked": "blocked",
    }  # fmt: skip
    return listed((f"{one.series.label} {texts.get(one.kind, f'good to {one.point.world_size}')}"
                   for one in headlines), 6)  # fmt: skip
