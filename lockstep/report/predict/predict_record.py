"""What `lockstep predict` prints without --at, as a record."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep.report.check.wording import of_break
from lockstep.report.compute.scaling import Series
from lockstep.report.predict.known import Ladder
from lockstep.report.predict.models import (
    COEFFICIENTS,
    fit_usl,
    karp_flatt,
    marginal_efficiencies,
    peak_size,
)
from lockstep.report.predict.prediction import Candidate, predict
from lockstep.report.predict.recommendation import Recommendation, diminishing, next_step
from lockstep.report.predict.unpredictable import FARTHEST


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
            {"model": one.rule, "error": one.error, "held_out": dict(one.held_out)}
            for one in ranked
        ],
        "chosen": ranked[0].rule if ranked else None,
        "peak_world_size": peak(ladder),
        "breaks": [
            {"world_size": one.world_size, "kind": one.kind, "what": of_break(one)}
            for one in ladder.breaks
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
