"""The command `lockstep predict`."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from reports.predict.models import Fit
    from reports.predict.prediction import Candidate, Ladder, Prediction
    from reports.results import Results
    from reports.scaling import Series

# Names of series in a message.
MOST_NAMES = 40
LARGEST_SIZE = 10_000_000
RULE = "efficiency=0.7"

PREDICT_EXAMPLES = """
\b
Examples:
  lockstep predict results/node --at 16
  lockstep predict results/node --case "strong mlp" --at 16 --json
  lockstep predict results/cited --case kempner --rule efficiency=0.8
  lockstep predict results/node --rule deadline=02:00:00 --samples 1.2e8

\b
Rules: efficiency=FRACTION, deadline=HH:MM:SS (or seconds), budget=DEVICE_HOURS, fastest.
A size below the smallest or beyond twice the largest measured is refused (exit code 1) unless
--force is given.
"""


@click.command("predict", epilog=PREDICT_EXAMPLES)
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--at", type=int, help="World size to predict.")
@click.option("--case", help="Series, by its name or a part that no other name has.")
@click.option("--rule", help=f"What a size must meet, without --at.  [default: {RULE}]")
@click.option(
    "--samples", type=float,
    help="Samples of the whole run, for a deadline or budget over measured throughputs.",
)  # fmt: skip
@click.option(
    "--level", type=float, default=0.9, show_default=True,
    help="Share of truths that the interval shall contain.",
)  # fmt: skip
@click.option(
    "--force", is_flag=True,
    help="With --at: predict below the smallest and beyond twice the largest size measured.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def predict(
    path: Path,
    at: int | None,
    case: str | None,
    rule: str | None,
    samples: float | None,
    level: float,
    force: bool,
    as_json: bool,
) -> int:
    """Predict a world size nobody measured, or say which measured one to take.

    DIR is what `lockstep report` reads: a campaign folder, pytest-benchmark files, or a folder
    that `lockstep import` wrote. With --at, one size is predicted with its interval; without it,
    all models are shown with their errors at the sizes held out, and a size is recommended.
    """
    from reports.load import load
    from reports.predict.prediction import ladder_of
    from reports.predict.prediction import predict as predicted
    from reports.predict.recommendation import parse, recommend

    _refuse_ignored(at, rule, samples, force)
    _refuse_numbers(at, samples, level)
    chosen_rule = parse(rule or RULE)
    results = load([path])
    for why in results.unread:
        click.echo(f"left out: {why}", err=True)
    series = _chosen(results, case)
    ladder = ladder_of(series, results.tables.get(series.case, {}))
    if at is None:
        _print_all(series, ladder, recommend(series, chosen_rule, samples), level, as_json)
        return 0
    found = predicted(ladder, at, level, force)
    click.echo(json.dumps(found.record())) if as_json else _print_lines(_said(found, ladder))
    return 1 if found.refused else 0


def _refuse_ignored(at: int | None, rule: str | None, samples: float | None, force: bool) -> None:
    """Refuse options that would change nothing."""
    if at is None and force:
        raise ValueError("--force allows sizes far from those measured; add --at, or leave it out")
    if at is not None and (rule is not None or samples is not None):
        given = "--samples" if rule is None else "--rule"
        raise ValueError(f"{given} chooses of the sizes measured; leave it out, or leave out --at")
    if samples is not None and not (rule or "").startswith(("deadline", "budget")):
        raise ValueError("--samples serves a deadline or a budget; add --rule with one of them")


def _refuse_numbers(at: int | None, samples: float | None, level: float) -> None:
    """Refuse what is no size, no count and no share; a NaN passes every range."""
    if at is not None and not 1 <= at <= LARGEST_SIZE:
        raise ValueError(f"--at {at} is no world size; give one from 1 to {LARGEST_SIZE}")
    if samples is not None and not 0 < samples < float("inf"):
        raise ValueError(f"--samples {samples:g} is no positive number; give the samples of a run")
    if not 0 < level < 1:
        raise ValueError(f"--level {level:g} is no share; give one between 0 and 1, as 0.9")


def _chosen(results: "Results", case: str | None) -> "Series":
    """Return the one series that a name, or a part of it, picks."""
    from reports.predict.prediction import can_be_modelled
    from reports.scaling import series_of

    series = [one for one in series_of(results.rows) if can_be_modelled(one)]
    if not series:
        raise ValueError(
            "no series is a ladder of strong or weak scaling; measure one, or import a table"
        )
    wanted = case or ""
    exact = [one for one in series if wanted in (one.case, one.label, _name(one))]
    found = exact or [one for one in series if wanted in f"{one.case} {_name(one)}"]
    if len(found) == 1:
        return found[0]
    if not found:
        known = _names(series)
        raise ValueError(f"no series has {wanted!r} in its name; choose --case from: {known}")
    said = f"{len(found)} series have {wanted!r} in their names" if case else "several series"
    raise ValueError(f"{said}; choose one by --case: {_names(found)}")


def _names(series: "list[Series]") -> str:
    """Return the names parted by semicolons, since a name may hold commas; a shared one in full."""
    uses = Counter(map(_name, series))
    names = [_name(one) if uses[_name(one)] == 1 else one.case for one in series]
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return "; ".join([*names[:MOST_NAMES], *more])


def _name(series: "Series") -> str:
    measured = series.row.origin == "measured"
    return f"{series.row.study} {series.label}" if measured else series.label


def _print_lines(texts: list[str]) -> None:
    from reports.lines import sentence

    for text in texts:
        for line in sentence(text) or [""]:
            click.echo(line)


def _said(found: "Prediction", ladder: "Ladder") -> list[str]:
    from reports.formats import listed, number, span, trimmed

    if found.refused:
        return [f"not predicted: {found.refused}"]
    assert found.low is not None and found.high is not None
    lines = [
        f"{ladder.case}: {number(found.value, 4)} {found.unit} at {found.at} "
        f"({found.metric}; predicted, not measured)",
        f"{trimmed(100 * found.level)} % interval: {span((found.low, found.high))} {found.unit}",
        f"model: {found.model}, chosen by its error at the largest sizes held out, "
        f"of {listed(ladder.sizes)}",
    ]
    if found.at in ladder.sizes:
        rate = ladder.rates[ladder.sizes.index(found.at)]
        lines.append(f"measured there: {number(ladder.value(found.at, rate), 4)} {found.unit}")
    return lines + [f"warning: {warning}" for warning in found.warnings]


def _print_all(
    series: "Series", ladder: "Ladder", advice: Any, level: float, as_json: bool
) -> None:
    from reports.predict.prediction import LEAST_SIZES, candidates

    ranked = candidates(ladder) if len(ladder.sizes) >= LEAST_SIZES else []
    if as_json:
        click.echo(json.dumps(_record(series, ladder, ranked, advice, level), allow_nan=False))
        return
    _print_lines(_points(series, ladder, ranked))
    _print_lines(["", *_models(ladder, ranked)])
    _print_lines(["", *_advice(series, ladder, advice, level)])


def _record(
    series: "Series", ladder: "Ladder", ranked: "list[Candidate]", advice: Any, level: float
) -> dict[str, Any]:
    from dataclasses import asdict

    from reports.predict import models
    from reports.predict.prediction import FARTHEST, predict
    from reports.predict.recommendation import diminishing, next_step

    return {
        "case": ladder.case, "metric": ladder.metric, "unit": ladder.unit,
        "fixed_work": ladder.fixed, "time_of": ladder.time_noun,
        "points": _point_records(series, ladder, ranked),
        "models": [
            models.as_record(c.fit)
            | {"held_out_error": c.error, "residual": c.residual, "aicc": c.aicc}
            for c in ranked
        ],
        "chosen": ranked[0].fit.model if ranked else None,
        "peak_world_size": _peak(ranked),
        "breaks": [
            {"world_size": size, "what": what}
            for size, what in ladder.breaks
        ],
        "expected": predict(ladder, FARTHEST * ladder.sizes[-1], level).record(),
        "recommendation": asdict(advice),
        "diminishing_returns": diminishing(series),
        "next_step": next_step(series),
    }  # fmt: skip


def _point_records(
    series: "Series", ladder: "Ladder", ranked: "list[Candidate]"
) -> list[dict[str, Any]]:
    """Return the points; expected is what the chosen model gives, deviation what it misses."""
    from reports.predict.models import karp_flatt, marginal_efficiencies

    gains = {q: gain for _, q, gain in marginal_efficiencies(ladder.sizes, ladder.rates)}
    times = ladder.times_s.tolist()
    local = ladder.fixed == "local"
    expected = ranked[0].fit.times(ladder.sizes, ladder.nodes).tolist() if ranked else times
    return [
        {
            "world_size": p.world_size, "value": ladder.value(p.world_size, p.rate),
            "speedup": p.speedup, "parallel_efficiency": p.parallel_efficiency,
            "karp_flatt": karp_flatt(p.speedup, p.world_size / series.baseline),
            "marginal_efficiency": gains.get(p.world_size),
            "time_s": time_s, "overhead_s": time_s - times[0] if local else None,
            "expected": ladder.value(p.world_size, ladder.rate(p.world_size, modelled_s))
            if ranked else None,
            "deviation": time_s / modelled_s - 1 if ranked else None,
        }
        for p, time_s, modelled_s in zip(series.points, times, expected, strict=True)
    ]  # fmt: skip


def _points(series: "Series", ladder: "Ladder", ranked: "list[Candidate]") -> list[str]:
    from reports.formats import duration, number, percent, ratio
    from reports.lines import numbers

    kept = "the work of all ranks" if ladder.fixed == "global" else "the work of each rank"
    lines = [
        f"{_name(series)} [{series.row.origin}]: {ladder.metric} in {ladder.unit}; {kept} is fixed"
    ]
    header = ["ranks", ladder.metric, "by model", "off %", "speed-up", "efficiency %"]
    rows = [[*header, "Karp-Flatt", "gain %", "overhead %"]]
    for one in _point_records(series, ladder, ranked):
        over = one["overhead_s"]
        fraction = one["karp_flatt"]
        rows.append([
            str(one["world_size"]), number(one["value"], 4), number(one["expected"], 4),
            percent(one["deviation"]), ratio(one["speedup"]),
            percent(one["parallel_efficiency"]),
            number(None) if fraction is None else f"{fraction:.4f}",
            percent(one["marginal_efficiency"]),
            percent(over / ladder.times_s[0] if over is not None else None),
        ])  # fmt: skip
    lines += numbers(rows)
    if ranked:
        lines.append(f"off: time over that of the model chosen, {ranked[0].fit.model}")
    lines.append("gain: of speed-up per rank added since the size before")
    if ladder.fixed == "local":
        lines.append(
            f"overhead: what the time of a {ladder.time_noun} has over the baseline's "
            f"{duration(float(ladder.times_s[0]))}, as the work of a rank is the same"
        )
    return lines


def _models(ladder: "Ladder", ranked: "list[Candidate]") -> list[str]:
    from reports.formats import counted, listed, percent

    if not ranked:
        sizes = f"{counted(len(ladder.sizes), 'distinct size')} ({listed(ladder.sizes)})"
        return [f"no model and no prediction: {sizes} cannot tell one model from another"]
    lines = [
        f"models of the time of a {ladder.time_noun}, in s; error: at the largest sizes held out"
    ]
    for index, one in enumerate(ranked):
        mark = "*" if index == 0 else " "
        told = "-" if one.aicc is None else f"{one.aicc:.1f}"
        lines.append(f"{mark} {one.fit.model:10} error {percent(one.error):>5} %   AICc {told}")
        lines += [f"      {text}" for text in _coefficients(one.fit, _moved_bytes(ladder))]
    lines.append(f"* chosen by that error, never by the fit to all sizes: {ranked[0].fit.model}")
    lines.append(
        "AICc: of the relative residuals at all sizes, counting coefficients at their bound; usl "
        "is fitted to the throughput instead, so its own is too large beside the others'"
    )
    return [*lines, _peak_text(_peak(ranked), ladder)]


def _moved_bytes(ladder: "Ladder") -> float | None:
    """Return the bytes behind the transfer terms; with the work fixed, they hold serial work."""
    return ladder.gradient_bytes if ladder.fixed == "local" else None


def _coefficients(fitted: "Fit", moved_bytes: float | None) -> list[str]:
    from reports.formats import number

    lines = []
    for name, value in fitted.coefficients.items():
        error = fitted.errors[name]
        if value == 0:
            lines.append(f"{name}: not identifiable (at its bound of 0)")
        else:
            line = f"{name} = {number(value)}" + (f" +- {number(error)}" if error else "")
            if moved_bytes and name.endswith("transfer_s"):
                line += f" (at most {number(moved_bytes / value / 1e9)} GB/s)"
            lines.append(line)
    return lines


def _peak(ranked: "list[Candidate]") -> float | None:
    """Return where the usl's throughput is largest, or None where its beta was not found."""
    from reports.predict.models import USL, scalability

    usl = next((one.fit for one in ranked if one.fit.model == USL), None)
    interval = usl.interval("beta") if usl else None
    return scalability(usl).peak_size if usl and interval and interval[0] > 0 else None


def _peak_text(peak: float | None, ladder: "Ladder") -> str:
    from reports.formats import number
    from reports.predict.prediction import FARTHEST

    if peak is None:
        return "no peak: the usl's beta is not identifiable from these sizes"
    if peak > FARTHEST * ladder.sizes[-1]:
        return f"no peak within {FARTHEST} times the sizes measured"
    return f"peak by usl: {number(peak)} ranks"


def _advice(series: "Series", ladder: "Ladder", advice: Any, level: float) -> list[str]:
    from reports.predict.recommendation import diminishing, next_step

    size = "none" if advice.world_size is None else str(advice.world_size)
    lines = [f"break at {size}: {what}" for size, what in ladder.breaks]
    lines += _next(ladder, level)
    lines.append(f"recommended: {size} ({advice.rule}): {advice.why}")
    lines += [verdict] if (verdict := diminishing(series)) else []
    return [*lines, next_step(series)]


def _next(ladder: "Ladder", level: float) -> list[str]:
    """Say what twice the largest size would give, where that can be predicted."""
    from reports.formats import number, span, trimmed
    from reports.predict.prediction import FARTHEST, predict

    found = predict(ladder, FARTHEST * ladder.sizes[-1], level)
    if found.value is None or found.low is None or found.high is None:
        return []
    return [
        f"expected at {found.at} (predicted, not measured): {number(found.value, 4)} {found.unit}, "
        f"{trimmed(100 * level)} % interval {span((found.low, found.high))}"
    ]
