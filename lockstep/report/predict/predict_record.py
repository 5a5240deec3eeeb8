"""The output of `lockstep predict`: a prediction, or the size to choose and the next to measure.

Only measured sizes (or rows of an imported table) are recommended; others are only predicted.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import (
    counted,
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
from lockstep.report.check.evidence import joined
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

# Each kind of rule with a limit -> the largest limit allowed.
LIMITS = {"efficiency": 1.0, "deadline": sys.float_info.max, "budget": sys.float_info.max}
RULES = "efficiency=FRACTION, deadline=HH:MM:SS, budget=DEVICE_HOURS or fastest"
# Efficiency below which an added rank, or a further size, is not worth its cost.
WORTHWHILE = 0.7


# A kind of rule, and its limit as a fraction, seconds or hours; `fastest` has none.
Criterion = tuple[str, float]


def parse(rule: str) -> Criterion:
    """Read the option --rule.

    Raises:
        ValueError: The rule is none of `RULES`, or its limit is out of range.
    """
    if rule == "fastest":
        return rule, 0.0
    name, _, limit = rule.partition("=")
    if name not in LIMITS:
        raise ValueError(f"--rule {rule} is not a rule of lockstep predict; give {RULES}")
    seconds = formats.parse_duration(limit) if name == "deadline" else None
    try:
        value = float(limit) if seconds is None else seconds
    except ValueError:
        value = math.nan
    if not 0 < value <= LIMITS[name]:
        allowed = "fraction above 0 and up to 1" if name == "efficiency" else "positive number"
        given = limit or "an empty limit"
        raise ValueError(f"--rule {rule}: {given} is not a {allowed}; give {RULES}")
    return name, value


def recommend(series: Series, criterion: Criterion, samples: float | None = None) -> dict[str, Any]:
    """Return the rule in words, the size that it selects (None if no size meets it), and why.

    `samples` are those of a whole run, for a deadline or budget where no run was measured.

    Raises:
        ValueError: A deadline or budget is requested, but the time of a run is not known.
    """
    kind, limit = criterion
    rule = {
        "fastest": "fastest",
        "efficiency": f"efficiency >= {trimmed(100 * limit)} %",
        "deadline": f"fewest ranks that finish in {in_words(limit)}",
        "budget": f"fastest within {trimmed(limit)} device-hours",
    }[kind]

    def pick(size: int | None, why: str) -> dict[str, Any]:
        return {"rule": rule, "world_size": size, "why": why}

    def speedup(point: Point) -> str:
        span = point.speedup_interval
        return f"speed-up {point.speedup:.2f}" + (f" ({ratio_span(span)})" if span else "")

    if kind == "fastest":
        fastest = max(series.points, key=lambda p: (p.rate, -p.world_size))
        return pick(fastest.world_size, speedup(fastest))
    if kind == "efficiency":
        # As in the report, a size is recommended only if its whole interval reaches the limit.
        good, unshown = series.good(limit), series.unshown(limit)
        if unshown and not good:
            best = max(unshown, key=lambda p: (p.parallel_efficiency >= limit, p.world_size))
            tried, launches = counted(best.world_size, series.noun), series.launches_to_show(limit)
            have = "has" if best.world_size == 1 else "have"
            shown = f"none is shown to reach it; {tried} {have} {_efficiency(best, limit)}"
            return pick(None, f"{shown}; {launches} would decide")
        if not good and series.base not in series.points:
            best = max(series.points, key=lambda p: p.parallel_efficiency)
            return pick(None, f"at best {_efficiency(best, limit)}")
        last = good[-1] if good else series.base
        why = f"{_efficiency(last, limit)}, {speedup(last)}"
        if larger := [p.world_size for p in unshown if p.world_size > last.world_size]:
            why += f"; {joined(larger)} {series.noun}s are not shown to reach the limit"
        return pick(last.world_size, why)
    times = _run_times_s(series, samples)
    if kind == "deadline":
        size = next((size for size in sorted(times) if times[size] <= limit), None)
        if size is None:
            return pick(None, f"the fastest takes {in_words(min(times.values()))}")
        return pick(size, f"takes {in_words(times[size])}")
    hours = {size: size * time_s / SECONDS_PER_HOUR for size, time_s in times.items()}
    affordable = [size for size in times if hours[size] <= limit]
    if not affordable:
        lowest = trimmed(min(hours.values()))
        return pick(None, f"the cheapest size costs {lowest} device-hours")
    size = min(affordable, key=lambda size: (times[size], size))
    return pick(size, f"{trimmed(hours[size])} device-hours, {in_words(times[size])}")


def _efficiency(point: Point, floor: float) -> str:
    """Return a point's efficiency with its interval, and whether it contains the floor."""
    text, span = f"efficiency {percent(point.parallel_efficiency)} %", point.efficiency_interval
    if span is None:
        return text
    text = f"{text} (95 % interval {percent_span(span)} %"
    note = ", which includes the limit" if span[0] < floor <= span[1] else ""
    return f"{text}{note})"


def _run_times_s(series: Series, samples: float | None) -> dict[int, float]:
    """Return the time of a whole run by world size.

    In weak scaling a run's work grows with the ranks, so its time follows from `samples` alone.
    """
    if samples is not None:
        # As costs do, these use the mean step, which is longer than the median if rounds stall.
        times = {
            p.world_size: samples / p.throughput_samples_per_s * (p.mean_over_median or 1.0)
            for p in series.points if p.throughput_samples_per_s
        }  # fmt: skip
        lacks = (
            "--samples needs a throughput in samples, which this series lacks; choose the rule "
            "efficiency or fastest"
        )
    else:
        same_work = series.row.scaling != "weak"
        times = {p.world_size: p.time_s for p in series.points if p.time_s and same_work}
        lacks = (
            "a deadline or budget needs the time of a whole run, which this series lacks; pass "
            "the samples of the run by --samples, or choose another rule"
        )
    if len(times) < len(series.points):
        raise ValueError(f"{series.case}: {lacks}")
    return times


def diminishing(series: Series) -> str | None:
    """Return a sentence on the first size whose added ranks gain too little, or None."""
    sizes = series.sizes
    for below, size, gain in marginal_efficiencies(sizes, [p.rate for p in series.points]):
        if gain < WORTHWHILE:
            return (
                f"diminishing returns from {below} to {size} ranks: each added rank adds only "
                f"{100 * gain:.0f} % of a baseline rank's speed, less than {100 * WORTHWHILE:.0f} "
                "%; the efficiency is higher, because it is the mean over all ranks"
            )
    return None


def next_step(series: Series) -> dict[str, Any]:
    """Return which sizes to measure next, the efficiency that decides (`why`), and both as text.

    The kind is "larger" if the last size is efficient enough; "launches" if only more launches
    show whether it is; "between" if it is not, and sizes between it and the last efficient size
    were not measured; else "stop".
    """

    def step(kind: str, sizes: Sequence[int], why: str, launches: str = "") -> dict[str, Any]:
        what = launches or (f"{joined(sizes)} ranks" if sizes else "no larger size")
        text = f"measure {what}: {why}"
        return {"kind": kind, "world_sizes": sizes, "why": why, "text": text}

    last = series.points[-1]
    why = f"{counted(last.world_size, series.noun)} have {_efficiency(last, WORTHWHILE)}"
    reaches = last is series.base or last.reaches(WORTHWHILE)
    if reaches is None:
        return step("launches", [], why, series.launches_to_show(WORTHWHILE))
    if reaches:
        return step("larger", [2 * last.world_size], why)
    why += f", under {100 * WORTHWHILE:.0f} %"
    # A size between the last efficient one and the next may still be good. The baseline comes
    # first, since the series of another layout may share it without having its size.
    good, bad = next(
        (p.world_size, q.world_size)
        for p, q in pairwise([series.base, *series.points])
        if q.reaches(WORTHWHILE) is False
    )
    if untried := doublings_between(good, bad):
        return step("between", untried, f"{why}; no size between {good} and {bad} was measured")
    return step("stop", [], why)


def record(
    series: Series,
    ladder: Ladder,
    ranked: Sequence[Candidate],
    advice: Mapping[str, Any],
    level: float,
) -> dict[str, Any]:
    gains = {q: gain for _, q, gain in marginal_efficiencies(ladder.sizes, ladder.rates)}
    times = ladder.times_s.tolist()
    peak = None  # of the Universal Scalability Law; None unless its beta is above 0
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
            {"model": c.rule, "error": c.error, "held_out": dict(c.held_out)} for c in ranked
        ],
        "chosen": ranked[0].rule if ranked else None,
        "peak_world_size": peak,
        "breaks": [
            {"world_size": break_.world_size, "kind": break_.kind, "what": break_.text}
            for break_ in ladder.breaks
        ],
        "expected": prediction_record(
            series, predict(ladder, FARTHEST * ladder.sizes[-1], level)
        ),
        "recommendation": dict(advice), "blocked_by": [],
        "diminishing_returns": diminishing(series),
        "next_step": next_step(series),
    }  # fmt: skip


MEANINGS = {
    "level": "efficiency stays at the last measured value",
    "halfway": "efficiency falls half as fast as between the last two sizes",
    "falling": "efficiency keeps falling as between the last two sizes",
    "amdahl": "part of the work is serial (Amdahl)",
    "between": "the value lies on the line between the measured sizes on either side",
}


# Origin of a ladder's numbers -> text added to every prediction from them.
ORIGINS = {
    "measured": "",
    "cited": "; computed from cited numbers",
    "target": "; computed from unmeasured targets",
}


def name_of(series: Series) -> str:
    measured = series.row.origin == "measured"
    return f"{series.row.study} {series.label}" if measured else series.label


def _ratios(series: Series, prediction: Prediction) -> dict[str, list[float]]:
    """Return speed-up, efficiency and step time (if known): the value, then its interval."""
    ladder, at = prediction.ladder, prediction.at
    if prediction.refusal:
        return {}
    assert prediction.value and prediction.low and prediction.high
    rates = [ladder.rate(at, x) for x in (prediction.value, prediction.low, prediction.high)]
    rates = [rates[0], min(rates), max(rates)]
    gains = [rate / series.base.rate for rate in rates]
    found = {
        "speedup": gains, "parallel_efficiency": [gain * series.baseline / at for gain in gains]
    }  # fmt: skip
    if ladder.value_work is None and ladder.time_noun == "step":
        work = 1 if ladder.fixed == "global" else at
        step_s, slow, fast = (work / rate * ladder.time_scale_s for rate in rates)
        found["step_s"] = [step_s, fast, slow]
    return found


def prediction_record(series: Series, prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON, with its speed-up, efficiency and step time."""
    ratios = _ratios(series, prediction)
    return prediction.record() | {
        name + suffix: ratios[name][index] if name in ratios else None
        for name in ("speedup", "parallel_efficiency", "step_s")
        for index, suffix in enumerate(("", "_low", "_high"))
    }


def prediction_text(series: Series, prediction: Prediction) -> list[str]:
    """Return the lines that state the prediction of one size, or why it is refused."""
    ladder, at = prediction.ladder, prediction.at
    if prediction.refusal:
        return [f"not predicted: {prediction.refusal.text}", *_assumed(ladder)]
    assert prediction.value and prediction.low and prediction.high and prediction.model
    ratios = _ratios(series, prediction)
    (gain, *gains), (share, *shares) = ratios["speedup"], ratios["parallel_efficiency"]
    base = counted(series.baseline, series.noun)
    also = [
        f"speed-up over {base}: {ratio(gain)} ({ratio_span((gains[0], gains[1]))})",
        f"parallel efficiency: {percent(share)} % ({percent_span((shares[0], shares[1]))})",
    ]
    if "step_s" in ratios:
        step_s, fast, slow = ratios["step_s"]
        also.append(f"step time: {number(step_s, scale=1e3)} ms ({span((fast, slow), 1e3)})")
    used = ladder.sizes[used_from(ladder) :] if at > ladder.sizes[-1] else ladder.sizes
    lines = [
        f"{name_of(series)}: {number(prediction.value, 4)} {ladder.unit} at {at} "
        f"({ladder.metric}; predicted, not measured{ORIGINS[ladder.origin]})",
        f"{trimmed(100 * prediction.level)} % interval: "
        f"{span((prediction.low, prediction.high))} {ladder.unit}",
        *also,
        f"rule: {prediction.model}, {MEANINGS[prediction.model]}, from {listed(used)}",
    ]
    if at in ladder.sizes:
        known = number(ladder.value(at, ladder.rates[ladder.sizes.index(at)]), 4)
        lines.append(f"{ladder.origin} at this size: {known} {ladder.unit}")
    return [*lines, *_assumed(ladder), *(f"warning: {warning}" for warning in prediction.warnings)]


def _assumed(ladder: Ladder) -> list[str]:
    """Return the assumption on the fixed work, if neither scaling nor batches state it."""
    text = (
        "assumed: the total work is the same at all sizes, because the table has neither a "
        "column scaling (strong, weak or fixed-epochs) nor a column global_batch; add one of "
        "them if the assumption is wrong"
    )
    return [text] if ladder.assumed else []


def text(
    series: Series, ladder: Ladder, ranked: Sequence[Candidate], record: Mapping[str, Any]
) -> list[str]:
    """Return a record as lines: sizes, rules that continue the curve, the recommendation."""
    workers = "all ranks together" if ladder.fixed == "global" else "each rank"
    series_and_unit = f"{name_of(series)} [{series.row.origin}]: {ladder.metric} in {ladder.unit}"
    lines = [f"{series_and_unit}; the work of {workers} is fixed", *_assumed(ladder)]
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
    lines += [
        *numbers(rows),
        "gain: increase of the speed-up per rank added since the previous size",
    ]
    if ladder.fixed == "local":
        lines.append(
            f"overhead: extra time of a {ladder.time_noun} over the baseline's "
            f"{in_words(float(ladder.times_s[0]))}, at equal work per rank"
        )
    if ranked:
        held_out = listed(ranked[0].held_out)
        curves = "published curves"
        if held_out:
            sizes = counted(len(ranked[0].held_out), "held-out size").partition(" ")[2]
            curves = f"published curves and the {sizes} {held_out}"
        lines.append("")
        lines.append(
            "each rule below continues the curve; its error is its mean error in predicting twice "
            f"the ranks, on {curves}"
        )
        for c in ranked:
            mark = "*" if c is ranked[0] else " "
            lines.append(f"{mark} {c.rule:8} error {percent(c.error):>5} %   {MEANINGS[c.rule]}")
        lines.append(f"* the rule {ranked[0].rule} has the smallest error and is used")
        peak = record["peak_world_size"]
        if peak is None:
            lines.append(
                "no peak is given, because these sizes do not determine the parameter beta of the "
                "Universal Scalability Law"
            )
        elif peak > FARTHEST * ladder.sizes[-1]:
            lines.append(
                f"the throughput has no peak up to {FARTHEST} times the largest measured size"
            )
        else:
            lines.append(
                f"the throughput has its peak at {number(peak)} ranks by the Universal "
                "Scalability Law"
            )
    lines += ["", *(f"break at {b['world_size']}: {b['what']}" for b in record["breaks"])]
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
    best = advice["world_size"]
    size = "no size" if best is None else counted(best, series.noun)
    lines.append(f"recommended: {size} ({advice['rule']}): {advice['why']}{origin}")
    note = record["diminishing_returns"]
    return [*lines, f"next: {record['next_step']['text']}", *([f"note: {note}"] if note else [])]
