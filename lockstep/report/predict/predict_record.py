"""What `lockstep predict` prints without --at, as a record.

The text of `lockstep predict`: from the records of a prediction to English and tables.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep.core.formats import in_words, listed, number, percent, ratio, span, trimmed
from lockstep.report.check.evidence import blocked, of_break
from lockstep.report.compute.scaling import Series
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
    predict,
    used_from,
)
from lockstep.report.predict.recommendation import Recommendation, diminishing, next_step
from lockstep.report.words.lines import numbers


def record(
    series: Series,
    ladder: Ladder,
    ranked: Sequence[Candidate],
    advice: Recommendation,
    level: float,
) -> dict[str, Any]:
    """Return the measured sizes, the ways to continue the curve, and what is recommended."""
    step = next_step(series)
    return {
        "case": ladder.case, "origin": ladder.origin, "metric": ladder.metric, "unit": ladder.unit,
        "fixed_work": ladder.fixed, "assumed_work": ladder.assumed, "time_of": ladder.time_noun,
        "points": point_records(series, ladder),
        "models": [
            {
                "model": candidate.rule,
                "error": candidate.error,
                "held_out": dict(candidate.held_out),
            }
            for candidate in ranked
        ],
        "chosen": ranked[0].rule if ranked else None,
        "peak_world_size": peak(ladder),
        "breaks": [
            {"world_size": break_.world_size, "kind": break_.kind, "what": of_break(break_)}
            for break_ in ladder.breaks
        ],
        "expected": predict(ladder, FARTHEST * ladder.sizes[-1], level).record(),
        "recommendation": asdict(advice), "blocked_by": [],
        "diminishing_returns": diminishing(series),
        "next_step": asdict(step) | {"text": step.text},
    }  # fmt: skip


def point_records(series: Series, ladder: Ladder) -> list[dict[str, Any]]:
    """Return each measured size with its ratios; times in seconds."""
    gains = {q: gain for _, q, gain in marginal_efficiencies(ladder.sizes, ladder.rates)}
    times = ladder.times_s.tolist()
    local = ladder.fixed == "local"
    return [
        {
            "world_size": p.world_size, "value": ladder.value(p.world_size, p.rate),
            "speedup": p.speedup, "parallel_efficiency": p.parallel_efficiency,
            "karp_flatt": karp_flatt(p.speedup, p.world_size / series.baseline),
            "marginal_efficiency": gains.get(p.world_size),
            "time_s": time_s, "overhead_s": time_s - times[0] if local else None,
        }
        for p, time_s in zip(series.points, times, strict=True)
    ]  # fmt: skip


def peak(ladder: Ladder) -> float | None:
    """Return where throughput is largest by the law of `models`, where its beta was found."""
    if len(ladder.sizes) <= len(COEFFICIENTS):
        return None
    usl = fit_usl(ladder.sizes, ladder.rates)
    interval = usl.interval("beta")
    return peak_size(usl) if interval and interval[0] > 0 else None


MEANINGS = {
    "level": "efficiency stays as last measured",
    "halfway": "efficiency falls half as fast as between the last two sizes",
    "falling": "efficiency falls on as between the last two sizes",
    "amdahl": "a part of the work is serial",
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


def prediction_text(prediction: Prediction, ladder: Ladder) -> list[str]:
    """Return what is predicted of one size, or why it is not."""
    if prediction.refusal:
        return [f"not predicted: {prediction.refusal.text}", *_assumed(ladder)]
    assert prediction.low is not None and prediction.high is not None
    used = ladder.sizes[used_from(ladder) :] if prediction.at > ladder.sizes[-1] else ladder.sizes
    lines = [
        f"{ladder.case}: {number(prediction.value, 4)} {prediction.unit} at {prediction.at} "
        f"({prediction.metric}; predicted, not measured{ORIGINS[ladder.origin]})",
        f"{trimmed(100 * prediction.level)} % interval: "
        f"{span((prediction.low, prediction.high))} {prediction.unit}",
        f"rule: {prediction.model}, {MEANINGS[prediction.model or '']}, from {listed(used)}",
    ]
    if prediction.at in ladder.sizes:
        rate = ladder.rates[ladder.sizes.index(prediction.at)]
        there = number(ladder.value(prediction.at, rate), 4)
        lines.append(f"{ladder.origin} there: {there} {prediction.unit}")
    return [*lines, *_assumed(ladder), *(f"warning: {warning}" for warning in prediction.warnings)]


def _assumed(ladder: Ladder) -> list[str]:
    """Say what is taken for granted of the work, where nothing states it."""
    if ladder.assumed is None:
        return []
    return [
        "assumed: the work of all ranks is fixed, since the table has neither a column scaling "
        "(strong, weak or fixed-epochs) nor one global_batch; add one where that is wrong"
    ]


def _points(series: Series, ladder: Ladder) -> list[str]:
    kept = "the work of all ranks" if ladder.fixed == "global" else "the work of each rank"
    name = f"{name_of(series)} [{series.row.origin}]"
    lines = [f"{name}: {ladder.metric} in {ladder.unit}; {kept} is fixed", *_assumed(ladder)]
    header = ["ranks", ladder.metric, "speed-up", "efficiency %"]
    rows = [[*header, "Karp-Flatt", "gain %", "overhead %"]]
    for point_record in point_records(series, ladder):
        over = point_record["overhead_s"]
        fraction = point_record["karp_flatt"]
        rows.append([
            str(point_record["world_size"]),
            number(point_record["value"], 4),
            ratio(point_record["speedup"]),
            percent(point_record["parallel_efficiency"]),
            number(None) if fraction is None else f"{fraction:.4f}",
            percent(point_record["marginal_efficiency"]),
            percent(over / ladder.times_s[0] if over is not None else None),
        ])  # fmt: skip
    lines += numbers(rows)
    lines.append("gain: of speed-up per rank added since the size before")
    if ladder.fixed == "local":
        lines.append(
            f"overhead: what the time of a {ladder.time_noun} has over the baseline's "
            f"{in_words(float(ladder.times_s[0]))}, as the work of a rank is the same"
        )
    return lines


def _rules(ranked: Sequence[Candidate]) -> list[str]:
    held_out = listed(ranked[0].held_out)
    tried = (
        f"at {held_out}, each held out, and on published ladders"
        if held_out
        else ("on published ladders, since no size of this one could be held out")
    )
    lines = [f"rules to continue the curve; error: the mean one doubling on, {tried}"]
    for index, candidate in enumerate(ranked):
        mark = "*" if index == 0 else " "
        lines.append(
            f"{mark} {candidate.rule:8} error {percent(candidate.error):>5} %   "
            f"{MEANINGS[candidate.rule]}"
        )
    return [*lines, f"* chosen by that error: {ranked[0].rule}"]


def _peak_text(peak: float | None, ladder: Ladder) -> str:
    if peak is None:
        return "no peak: the Universal Scalability Law's beta is not identifiable from these sizes"
    if peak > FARTHEST * ladder.sizes[-1]:
        return f"no peak within {FARTHEST} times the sizes measured"
    return f"peak by the Universal Scalability Law: {number(peak)} ranks"


def _advice(series: Series, ladder: Ladder, advice: Recommendation, level: float) -> list[str]:
    size = "none" if advice.world_size is None else str(advice.world_size)
    lines = [f"break at {break_.world_size}: {of_break(break_)}" for break_ in ladder.breaks]
    lines.append(_next(ladder, level))
    given = ORIGINS[ladder.origin]
    lines.append(f"recommended: {size} ({advice.rule}): {advice.why}{given}")
    lines += [verdict] if (verdict := diminishing(series)) else []
    return [*lines, next_step(series).text]


def _next(ladder: Ladder, level: float) -> str:
    """Say what twice the largest size would give, or why that is not predicted."""
    prediction = predict(ladder, FARTHEST * ladder.sizes[-1], level)
    if prediction.refusal:
        return f"{prediction.at} ranks are not predicted: {prediction.refusal.text}"
    assert prediction.low is not None and prediction.high is not None
    return (
        f"expected at {prediction.at} (predicted, not measured): "
        f"{number(prediction.value, 4)} {prediction.unit}, {trimmed(100 * level)} % interval "
        f"{span((prediction.low, prediction.high))}{ORIGINS[ladder.origin]}"
    )


def blocked_text(ladder: Ladder, rules: Sequence[str]) -> str:
    """Return that nothing is concluded from a series that errors of the check touch."""
    return f"{ladder.case}: nothing is predicted or recommended, {blocked(rules)}"


def text(
    series: Series,
    ladder: Ladder,
    ranked: Sequence[Candidate],
    advice: Recommendation,
    level: float,
) -> list[str]:
    """Return the measured sizes, the ways to continue the curve, and what is recommended."""
    ways = ["", *_rules(ranked), _peak_text(peak(ladder), ladder)] if ranked else []
    return [*_points(series, ladder), *ways, "", *_advice(series, ladder, advice, level)]
