"""Which world size to take, under a rule, and whether to go on to a larger one.

Only measured sizes (or the rows of an imported table) are recommended: another size is
predicted with an interval, and taken after it was measured.
"""

import math
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from lockstep.core import formats
from lockstep.core.formats import in_words, percent, percent_span, ratio_span, trimmed
from lockstep.report.check.evidence import joined
from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.predict.models import marginal_efficiencies
from lockstep.report.predict.prediction import doublings_between

Kind = Literal["efficiency", "deadline", "budget", "fastest"]
# Each kind with a limit, and the largest one.
LIMITED: dict[str, tuple[Kind, float]] = {
    "efficiency": ("efficiency", 1.0),
    "deadline": ("deadline", sys.float_info.max),
    "budget": ("budget", sys.float_info.max),
}
RULES = "efficiency=FRACTION, deadline=HH:MM:SS, budget=DEVICE_HOURS or fastest"
# Under it an added rank, or a further size, is not worth its cost.
WORTHWHILE = 0.7


@dataclass(frozen=True)
class Criterion:
    """What a size must meet: the kind, and its limit as a fraction, seconds or device-hours."""

    kind: Kind
    limit: float | None = None

    @property
    def text(self) -> str:
        """The rule in words."""
        if self.kind == "fastest" or self.limit is None:
            return "fastest"
        return {
            "efficiency": f"efficiency >= {trimmed(100 * self.limit)} %",
            "deadline": f"fewest ranks done in {in_words(self.limit)}",
            "budget": f"fastest within {trimmed(self.limit)} device-hours",
        }[self.kind]


@dataclass(frozen=True)
class Recommendation:
    """A size, or None where no size meets the rule, and why."""

    rule: str
    world_size: int | None
    why: str


def parse(text: str) -> Criterion:
    """Read a rule as it is typed.

    Raises:
        ValueError: It is none of `RULES`, or its limit is no positive number.
    """
    if text == "fastest":
        return Criterion("fastest")
    name, _, limit = text.partition("=")
    if name not in LIMITED:
        raise ValueError(f"--rule {text} is no rule; give {RULES}")
    kind, largest = LIMITED[name]
    seconds = formats.parse_duration(limit) if kind == "deadline" else None
    try:
        value = float(limit) if seconds is None else seconds
    except ValueError:
        value = math.nan
    if not 0 < value <= largest:
        allowed = "fraction above 0 and up to 1" if kind == "efficiency" else "positive number"
        raise ValueError(f"--rule {text}: {limit or 'nothing'} is no {allowed}; give {RULES}")
    return Criterion(kind, value)


def recommend(series: Series, criterion: Criterion, samples: float | None = None) -> Recommendation:
    """Return the size that a rule asks for; `samples` are of a whole run, where none was measured.

    Raises:
        ValueError: A deadline or budget is asked for, and the run's length is not known.
    """
    rule, limit = criterion.text, criterion.limit

    def speedup(point: Point) -> str:
        span = point.speedup_interval
        return f"speed-up {point.speedup:.2f}" + (f" ({ratio_span(span)})" if span else "")

    if limit is None:
        fastest = max(series.points, key=lambda p: (p.rate, -p.world_size))
        return Recommendation(rule, fastest.world_size, speedup(fastest))
    if criterion.kind == "efficiency":
        good = [p for p in series.points if p.parallel_efficiency >= limit]
        if not good:  # of a layout that has no baseline of its own
            best = max(series.points, key=lambda p: p.parallel_efficiency)
            return Recommendation(rule, None, f"at best {_efficiency(best, limit)}")
        why = f"{_efficiency(good[-1], limit)}, {speedup(good[-1])}"
        return Recommendation(rule, good[-1].world_size, why)
    times = _run_times_s(series, samples)
    if criterion.kind == "deadline":
        in_time = [size for size in sorted(times) if times[size] <= limit]
        if not in_time:
            return Recommendation(rule, None, f"the fastest takes {in_words(min(times.values()))}")
        return Recommendation(rule, in_time[0], f"takes {in_words(times[in_time[0]])}")
    hours = {size: size * time_s / SECONDS_PER_HOUR for size, time_s in times.items()}
    affordable = [size for size in times if hours[size] <= limit]
    if not affordable:
        least = trimmed(min(hours.values()))
        return Recommendation(rule, None, f"the cheapest costs {least} device-hours")
    size = min(affordable, key=lambda size: (times[size], size))
    why = f"{trimmed(hours[size])} device-hours, {in_words(times[size])}"
    return Recommendation(rule, size, why)


def _efficiency(point: Point, floor: float) -> str:
    """Return a point's efficiency with its interval, and whether that straddles a floor."""
    text, span = f"efficiency {percent(point.parallel_efficiency)} %", point.efficiency_interval
    if span is None:
        return text
    text += f" (95 % interval {percent_span(span)} %"
    return text + (", which straddles the floor)" if span[0] < floor <= span[1] else ")")


def _run_times_s(series: Series, samples: float | None) -> dict[int, float]:
    """Return the time of a whole run by world size.

    With the work of a rank fixed, sizes do different work in one run: then samples are needed.
    """
    same_work = series.row.scaling != "weak"
    times = {p.world_size: p.time_s for p in series.points if p.time_s is not None and same_work}
    if samples is not None:
        rates = {p.world_size: p.throughput_samples_per_s for p in series.points}
        times = {size: samples / rate for size, rate in rates.items() if rate}
    if len(times) < len(series.points):
        raise ValueError(
            f"{series.case}: a deadline or budget needs the time of a whole run, which this series "
            "does not give; add --samples with the samples of the run, or choose another rule"
            if samples is None
            else f"{series.case}: no throughput in samples is known, so --samples gives no time; "
            "choose the rule efficiency or fastest"
        )
    return times


def diminishing(series: Series) -> str | None:
    """Return the verdict on the first size whose added ranks gain too little, or None."""
    sizes = [p.world_size for p in series.points]
    for below, size, gain in marginal_efficiencies(sizes, [p.rate for p in series.points]):
        if gain < WORTHWHILE:
            return (
                f"diminishing returns from {below} to {size}: each added rank gains "
                f"{100 * gain:.0f} % of a baseline rank, under {100 * WORTHWHILE:.0f} %"
            )
    return None


@dataclass(frozen=True)
class NextStep:
    """Which sizes to measure next, and why.

    Attributes:
        kind: "larger" where the last size is still worth its ranks; "between" where it is not, and
            sizes below it, where the efficiency was lost, were never measured; else "stop".
        why: The efficiency that decides it, in words.
    """

    kind: Literal["larger", "between", "stop"]
    world_sizes: tuple[int, ...]
    why: str

    @property
    def text(self) -> str:
        """What to measure, and why, in one sentence."""
        if self.kind == "stop":
            return f"measure no larger size: {self.why}"
        return f"measure {joined(self.world_sizes)} ranks next: {self.why}"


def next_step(series: Series) -> NextStep:
    """Say which sizes to measure next."""
    last = series.points[-1]
    why = f"at {last.world_size} {_efficiency(last, WORTHWHILE)}"
    if last.parallel_efficiency >= WORTHWHILE:
        return NextStep("larger", (2 * last.world_size,), why)
    span = last.efficiency_interval
    straddles = span is not None and span[0] < WORTHWHILE <= span[1]
    goal = f"{100 * WORTHWHILE:.0f} %"
    why += f"; not shown whether it reaches {goal}" if straddles else f", under {goal}"
    # Where efficiency first falls below what is worthwhile, a size between may still be good. A
    # further layout may have fallen below the baseline that it shares with the main one at once.
    good, bad = next(
        (p.world_size, q.world_size)
        for p, q in pairwise([series.base, *series.points])
        if q.parallel_efficiency < WORTHWHILE
    )
    if untried := doublings_between(good, bad):
        return NextStep(
            "between", tuple(untried), f"{why}, and no size between {good} and {bad} was measured"
        )
    return NextStep("stop", (), why)
