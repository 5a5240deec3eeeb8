"""What `lockstep predict` prints: records, and their text."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lockstep.core.formats import in_words, listed, number, percent, ratio, span, trimmed
from lockstep.report.check.evidence import of_break
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
        lines.append(f"{ladder.origin} there: {there} {ladder.unit}")
    return [*lines, *_assumed(ladder), *(f"warning: {warning}" for warning in prediction.warnings)]


def _assumed(ladder: Ladder) -> list[str]:
    """Say what is taken for granted of the work, where nothing states it."""
    if ladder.assumed is None:
        return []
    return [
        "assumed: the work of all ranks is fixed, since the table has neither a column scaling "
        "(strong, weak or fixed-epochs) nor one global_batch; add one where that is wrong"
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
    lines += [*numbers(rows), "gain: of speed-up per rank added since the size before"]
    if ladder.fixed == "local":
        lines.append(
            f"overhead: what the time of a {ladder.time_noun} has over the baseline's "
            f"{in_words(float(ladder.times_s[0]))}, as the work of a rank is the same"
        )
    if ranked:
        held_out = listed(ranked[0].held_out)
        tried = "on published ladders, since no size of this one could be held out"
        tried = f"at {held_out}, each held out, and on published ladders" if held_out else tried
        lines += ["", f"rules to continue the curve; error: the mean one doubling on, {tried}"]
        lines += [
            f"{'*' if each is ranked[0] else ' '} {each.rule:8} error {percent(each.error):>5} %   "
            f"{MEANINGS[each.rule]}"
            for each in ranked
        ]
        lines.append(f"* chosen by that error: {ranked[0].rule}")
        peak = record["peak_world_size"]
        if peak is None:
            lines.append(
                "no peak: the Universal Scalability Law's beta is not identifiable from these sizes"
            )
        elif peak > FARTHEST * ladder.sizes[-1]:
            lines.append(f"no peak within {FARTHEST} times the sizes measured")
        else:
            lines.append(f"peak by the Universal Scalability Law: {number(peak)} ranks")
    lines += ["", *(f"break at {each['world_size']}: {each['what']}" for each in record["breaks"])]
    expected, origin = record["expected"], ORIGINS[ladder.origin]
    if expected["refused"]:
        lines.append(f"{expected['at']} ranks are not predicted: {expected['refused']}")
    else:
        lines.append(
            f"expected at {expected['at']} (predicted, not measured): "
            f"{number(expected['value'], 4)} {expected['unit']}, "
            f"{trimmed(100 * expected['level'])} % interval "
            f"{span((expected['low'], expected['high']))}{origin}"
        )
    advice = record["recommendation"]
    size = "none" if advice["world_size"] is None else str(advice["world_size"])
    lines.append(f"recommended: {size} ({advice['rule']}): {advice['why']}{origin}")
    lines += [record["diminishing_returns"]] if record["diminishing_returns"] else []
    return [*lines, record["next_step"]["text"]]
