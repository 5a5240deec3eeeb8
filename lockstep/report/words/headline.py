"""What a series says in a line: how far it scales, what is lost beyond, and what backs it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.core.formats import counted, listed, number, percent, percent_span, ratio
from lockstep.measure.causes.bound import Cause
from lockstep.measure.causes.division import LateInput
from lockstep.report.compute import quantities, slow
from lockstep.report.compute.quantities import Loss, Reason
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import Slowest
from lockstep.report.page import losses, parts
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
class Backing:
    """What a measured series rests on."""

    fewest: int
    most: int
    num_flagged: int
    num_warned: int
    num_points: int


@dataclass(frozen=True)
class Headline:
    """What is to be said of a series.

    Attributes:
        kind: `good`: a size above the baseline is shown to reach the threshold. `below`: no size
            does. `open`: none is, and of some it is not shown that they do not. `alone`: there is
            no size above the baseline.
            `blocked`: an error of the check forbids to say more.
        point: The largest good size, or the best where none is good.
        told: Where the loss is told: the smallest size below the threshold, or the largest.
        why: What is lost there, and to what; None where no variants were timed.
        slow: The host or rank that is slow there; None where none is shown.
    """

    kind: Kind
    series: Series
    threshold: float
    point: Point
    told: Point
    why: Reason | None
    slow: Slowest | None
    late: tuple[LateInput, str] | None
    why_blocked: str = ""

    @property
    def noun(self) -> str:
        """What the sizes count."""
        return "rank" if self.series.row.origin == "measured" else "device"


def judge(series: Series, threshold: float, why_blocked: str = "") -> Headline:
    """Return what is to be said of a series."""
    above, good = series.above, series.good(threshold)
    kind: Kind = "good" if good else "open" if series.unshown(threshold) else "below"
    best = max(above, key=lambda point: point.parallel_efficiency, default=series.points[-1])
    told = verdict_card.telling(series, threshold)
    return Headline(
        kind="blocked" if why_blocked else kind if above else "alone",
        series=series,
        threshold=threshold,
        point=good[-1] if good else best,
        told=told,
        why=quantities.reason(series, told),
        slow=slow.slowest(told.rows),
        late=slow.latest(told.rows),
        why_blocked=why_blocked,
    )


def sentence(headline: Headline) -> str:
    """Return the whole line: what the ranks give, what is lost, what backs it."""
    if headline.kind == "blocked":
        return headline.why_blocked
    texts = [gives(headline), loses(headline)]
    return f"{': '.join(filter(None, texts))}; trust: {trust(headline)}."


def lines(headline: Headline) -> list[str]:
    """Return what the ranks give, what is lost, and what backs it, each as a line."""
    if headline.kind == "blocked":
        return [headline.why_blocked]
    texts = [gives(headline), loses(headline), f"trust: {trust(headline)}"]
    return [line for line in texts if line]


def verdict(series: Series, threshold: float) -> str:
    """Say how far a series scales, or that an error of the check forbids to say it."""
    if any(point.blocked_by for point in series.points):
        return "an error of the check forbids a verdict"
    return gives(judge(series, threshold))


def gives(headline: Headline) -> str:
    """Say how far a series scales."""
    base, point = parts.baseline_text(headline.series), headline.point
    goal = f"{100 * headline.threshold:.0f} %"
    if headline.kind == "alone":
        return f"no size above the baseline, {base}"
    given = _given(headline, base)
    if headline.kind == "good":
        return given
    sure = "no size reaches" if headline.kind == "below" else "not shown whether any size reaches"
    near = "closest" if headline.kind == "below" else "as measured"
    closest = f"{near}, " if point.speedup >= 1 else ""
    return f"{sure} {goal} efficiency; {closest}{given}"


def _given(headline: Headline, base: str) -> str:
    point = headline.point
    size = counted(point.world_size, headline.noun)
    if point.speedup_interval and point.speedup_interval[1] < 1:
        return f"{size} are slower than {base}: {gain(point)} its rate ({achieved(point)})"
    verb = "gives" if point.world_size == 1 else "give"
    return f"{size} {verb} {gain(point)} the rate of {base} ({achieved(point)})"


def gain(point: Point) -> str:
    """Return a speed-up with its sign."""
    value = point.speedup
    return f"{ratio(value) if value < 10 else number(value)}{TIMES}"


def achieved(point: Point) -> str:
    """Return a point's efficiency with its interval."""
    interval = point.efficiency_interval
    span = percent_span(interval) if interval else "no interval"
    return f"{percent(point.parallel_efficiency)} % efficiency, {span}"


def loses(headline: Headline) -> str:
    """Say what is lost where the threshold is lost; empty where nothing is known of it."""
    point = headline.told
    if point is headline.series.base:
        return ""
    where = f"on {counted(point.world_size, headline.noun)} " if point is not headline.point else ""
    falls = f"{where}{percent(point.parallel_efficiency)} %" if where else ""
    known = lost_text(headline)
    return ", ".join(filter(None, (falls, known)))


def lost_text(headline: Headline) -> str:
    """Say which of a step's milliseconds are lost, and to what; empty where nobody timed it."""
    why = headline.why
    if why is None:
        return ""
    if why.kind == "little":
        return "little is lost"
    if why.kind == "open":
        if why.loss.seconds <= 0:
            return "no loss is shown"
        return f"{lost_ms(headline)} over the ideal, no cause shown"
    return f"{lost_ms(headline)} {cause_text(headline)}"


def lost_ms(headline: Headline) -> str:
    """Return the milliseconds that go to the largest cause shown, or are lost, of the step's."""
    assert headline.why
    why = headline.why
    seconds = why.named[0].seconds if why.kind == "named" else why.loss.seconds
    return _ms_of_step(seconds, why.loss)


def all_lost_ms(headline: Headline) -> str:
    """Return the milliseconds that are lost to all causes, of the step's, where there are some."""
    assert headline.why
    if headline.why.loss.seconds <= 0:
        return "none shown"
    return _ms_of_step(headline.why.loss.seconds, headline.why.loss)


def _ms_of_step(seconds: float, lost: Loss) -> str:
    return f"{number(seconds * parts.MILLI)} of {number(lost.step_s * parts.MILLI)} ms"


def cause_text(headline: Headline) -> str:
    """Say what the milliseconds lost do, and who is slow where that is known."""
    assert headline.why
    if headline.why.kind != "named":
        return "little is lost" if headline.why.kind == "little" else "no cause shown"
    cause = headline.why.named[0].cause
    return PHRASES[cause] + losses.whose(headline.slow, headline.late).get(cause, "")


def trust(headline: Headline) -> str:
    """Say how many launches a series rests on, and how many of its points are flagged."""
    backed = backing(headline)
    if backed is None:
        return "not measured here"
    return f"{launches_text(backed)} a size, {flags_text(backed)}"


def backing(headline: Headline) -> Backing | None:
    """Return what a series rests on; None where it was not measured here."""
    if headline.series.row.origin != "measured":
        return None
    points = headline.series.points
    counts = [point.num_launches for point in points]
    num_warned = sum(point.is_warned_of for point in points)
    return Backing(min(counts), max(counts), num_flagged(points), num_warned, len(points))


def launches_text(backed: Backing) -> str:
    """Say how many launches a size has."""
    if backed.fewest == backed.most:
        return counted(backed.fewest, "launch")
    return f"{backed.fewest} to {counted(backed.most, 'launch')}"


def flags_text(backed: Backing) -> str:
    """Say how many points of a series are flagged, or warned of; the page counts all series."""
    text = f"{backed.num_flagged or 'none'} of its {counted(backed.num_points, 'point')} flagged"
    return f"{text}, check warns of {backed.num_warned}" if backed.num_warned else text


def num_flagged(points: Iterable[Point]) -> int:
    """Return how many points have a flag of their own or of a launch."""
    return sum(bool(point.flags) for point in points)


def in_short(headlines: Sequence[Headline]) -> str:
    """Name series in few words: up to which size each is good."""
    return listed((f"{headline.series.label} {_short(headline)}" for headline in headlines), 6)


def _short(headline: Headline) -> str:
    if headline.kind == "good":
        return f"good to {headline.point.world_size}"
    return {
        "below": "nowhere good", "open": "not shown", "alone": "at one size", "blocked": "blocked",
    }[headline.kind]  # fmt: skip
