"""What `lockstep predict` prints: a prediction, or which size to take, and whether to go on.

Only measured sizes (or the rows of an imported table) are recommended: another size is
predicted with an interval, and taken after it was measured.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from lockstep.core import formats
from lockstep.core.formats import (
    in_words,
    listed,
    number,
    percent,
    percent_span,
    ratio,
    ratio_span,
    span,
    trimmed,
)
from lockstep.report.check.evidence import joined, of_break
from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.predict.models import (
    COEFFICIENTS,
    fit_usl,
    karp_flatt,
    marginal_efficiencies,
    peak_size,
)
from lockstep.report.predict.prediction import (
    FARTHEST,
    Candidate,
    Ladder,
    Prediction,
    doublings_between,
    predict,
    used_from,
)
from lockstep.report.words.lines import numbers

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
            "deadline": f"fewest ranks that finish in {in_words(self.limit)}",
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
        raise ValueError(f"--rule {text} is not a rule; give {RULES}")
    kind, largest = LIMITED[name]
    seconds = formats.parse_duration(limit) if kind == "deadline" else None
    try:
        value = float(limit) if seconds is None else seconds
    except ValueError:
        value = math.nan
    if not 0 < value <= largest:
        allowed = "fraction above 0 and up to 1" if kind == "efficiency" else "positive number"
        raise ValueError(f"--rule {text}: {limit or 'nothing'} is not a {allowed}; give {RULES}")
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
    return text + (", which includes the limit)" if span[0] < floor <= span[1] else ")")


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
            (
                f"{series.case}: a deadline or budget needs the time of a whole run, which this "
                "series lacks; give --samples, the samples of the run, or choose another rule"
            )
            if samples is None
            else (
                f"{series.case}: --samples needs a throughput in samples, which this series "
                "lacks; choose the rule efficiency or fastest"
            )
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
    why += f"; too uncertain to tell from {goal}" if straddles else f", under {goal}"
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


def record(
    series: Series,
    ladder: Ladder,
    ranked: Sequence[Candidate],
    advice: Recommendation,
    level: float,
) -> dict[str, Any]:
    """Return the measured sizes, the ways to continue the curve, and what is recommended.

    Times of the points are in seconds.
    """
    step = next_step(series)
    gains = {q: gain for _, q, gain in marginal_efficiencies(ladder.sizes, ladder.rates)}
    times = ladder.times_s.tolist()
    peak = None  # of the Universal Scalability Law, where its beta was found
    if len(ladder.sizes) > len(COEFFICIENTS):
        usl = fit_usl(ladder.sizes, ladder.rates)
        interval = usl.interval("beta")
        peak = peak_size(usl) if interval and interval[0] > 0 else None
    return {
        "case": ladder.case, "origin": ladder.origin, "metric": ladder.metric, "unit": ladder.unit,
        "fixed_work": ladder.fixed, "assumed_work": ladder.assumed, "time_of": ladder.time_noun,
        "points": [
            {
                "world_size": p.world_size, "value": ladder.value(p.world_size, p.rate),
                "speedup": p.speedup, "parallel_efficiency": p.parallel_efficiency,
                "karp_flatt": karp_flatt(p.speedup, p.world_size / series.baseline),
                "marginal_efficiency": gains.get(p.world_size), "time_s": time_s,
                "overhead_s": time_s - times[0] if ladder.fixed == "local" else None,
            }
            for p, time_s in zip(series.points, times, strict=True)
        ],
        "models": [
            {"model": each.rule, "error": each.error, "held_out": dict(each.held_out)}
            for each in ranked
        ],
        "chosen": ranked[0].rule if ranked else None,
        "peak_world_size": peak,
        "breaks": [
            {"world_size": break_.world_size, "kind": break_.kind, "what": of_break(break_)}
            for break_ in ladder.breaks
        ],
        "expected": predict(ladder, FARTHEST * ladder.sizes[-1], level).record(),
        "recommendation": asdict(advice), "blocked_by": [],
        "diminishing_returns": diminishing(series),
        "next_step": asdict(step) | {"text": step.text},
    }  # fmt: skip


MEANINGS = {
    "level": "efficiency stays at the last measured value",
    "halfway": "efficiency falls half as fast as between the last two sizes",
    "falling": "efficiency keeps falling as between the last two sizes",
    "amdahl": "part of the work is serial (Amdahl)",
    "between": "on the line through the sizes on either side",
}


# where a ladder's numbers come from -> what is said of all that follows from them
ORIGINS = {
    "measured": "",
    "cited": "; from cited numbers, not measured here",
    "target": "; from targets, not measured",
}


def name_of(series: Series) -> str:
    """Return the name by which --case picks a series."""
    measured = series.row.origin == "measured"
    return f"{series.row.study} {series.label}" if measured else series.label


def prediction_text(prediction: Prediction) -> list[str]:
    """Return what is predicted of one size, or why it is not."""
    ladder, at = prediction.ladder, prediction.at
    if prediction.refusal:
        return [f"not predicted: {prediction.refusal.text}", *_assumed(ladder)]
    assert prediction.low is not None
    assert prediction.high is not None
    used = ladder.sizes[used_from(ladder) :] if at > ladder.sizes[-1] else ladder.sizes
    lines = [
        f"{ladder.case}: {number(prediction.value, 4)} {ladder.unit} at {at} "
        f"({ladder.metric}; predicted, not measured{ORIGINS[ladder.origin]})",
        f"{trimmed(100 * prediction.level)} % interval: "
        f"{span((prediction.low, prediction.high))} {ladder.unit}",
        f"rule: {prediction.model}, {MEANINGS[prediction.model or '']}, from {listed(used)}",
    ]
    if at in ladder.sizes:
        there = number(ladder.value(at, ladder.rates[ladder.sizes.index(at)]), 4)
        lines.append(f"{ladder.origin} at this size: {there} {ladder.unit}")
    return [*lines, *_assumed(ladder), *(f"warning: {warning}" for warning in prediction.warnings)]


def _assumed(ladder: Ladder) -> list[str]:
    """Say what is taken for granted of the work, where nothing states it."""
    if ladder.assumed is None:
        return []
    return [
        "assumed: the total work is fixed, since the table has neither a column scaling (strong, "
        "weak or fixed-epochs) nor a column global_batch; add one if this is wrong"
    ]


def text(
    series: Series, ladder: Ladder, ranked: Sequence[Candidate], record: Mapping[str, Any]
) -> list[str]:
    """Return in words what a record holds: sizes, ways to continue the curve, what is recommended.

    Args:
        series: The ladder's.
        ladder: What the record is of.
        ranked: The rules, the chosen one first; none where the sizes are too few.
        record: The record.
    """
    kept = "the work of all ranks" if ladder.fixed == "global" else "the work of each rank"
    name = f"{name_of(series)} [{series.row.origin}]"
    lines = [f"{name}: {ladder.metric} in {ladder.unit}; {kept} is fixed", *_assumed(ladder)]
    header = ["ranks", ladder.metric, "speed-up", "efficiency %"]
    rows = [[*header, "Karp-Flatt", "gain %", "overhead %"]]
    for point in record["points"]:
        over, fraction = point["overhead_s"], point["karp_flatt"]
        rows.append([
            str(point["world_size"]), number(point["value"], 4), ratio(point["speedup"]),
            percent(point["parallel_efficiency"]),
            number(None) if fraction is None else f"{fraction:.4f}",
            percent(point["marginal_efficiency"]),
            percent(over / ladder.times_s[0] if over is not None else None),
        ])  # fmt: skip
    lines += [*numbers(rows), "gain: speed-up per rank added since the previous size"]
    if ladder.fixed == "local":
        lines.append(
            f"overhead: time of a {ladder.time_noun} above the baseline's "
            f"{in_words(float(ladder.times_s[0]))}, at equal work per rank"
        )
    if ranked:
        held_out = listed(ranked[0].held_out)
        tried = "on published curves, since no size of this one could be held out"
        tried = f"at {held_out}, each held out, and on published curves" if held_out else tried
        lines += ["", f"rules to continue the curve; error: mean error one doubling ahead, {tried}"]
        lines += [
            f"{'*' if each is ranked[0] else ' '} {each.rule:8} error {percent(each.error):>5} %   "
            f"{MEANINGS[each.rule]}"
            for each in ranked
        ]
        lines.append(f"* smallest error, so chosen: {ranked[0].rule}")
        peak = record["peak_world_size"]
        if peak is None:
            lines.append(
                "no peak: these sizes do not determine beta of the Universal Scalability Law"
            )
        elif peak > FARTHEST * ladder.sizes[-1]:
            lines.append(f"no peak up to {FARTHEST} times the largest measured size")
        else:
            lines.append(f"peak by the Universal Scalability Law: {number(peak)} ranks")
    lines += ["", *(f"break at {each['world_size']}: {each['what']}" for each in record["breaks"])]
    expected, origin = record["expected"], ORIGINS[ladder.origin]
    if expected["refused"]:
        lines.append(f"{expected['at']} ranks are not predicted: {expected['refused']}")
    else:
        lines.append(
            f"expected on {expected['at']} ranks (predicted, not measured): "
            f"{number(expected['value'], 4)} {expected['unit']}, "
            f"{trimmed(100 * expected['level'])} % interval "
            f"{span((expected['low'], expected['high']))}{origin}"
        )
    advice = record["recommendation"]
    size = "none" if advice["world_size"] is None else str(advice["world_size"])
    lines.append(f"recommended: {size} ({advice['rule']}): {advice['why']}{origin}")
    lines += [record["diminishing_returns"]] if record["diminishing_returns"] else []
    return [*lines, record["next_step"]["text"]]
