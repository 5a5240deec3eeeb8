"""The command `lockstep predict`."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lockstep.report.compute.scaling import Series
    from lockstep.report.load.results import Results
    from lockstep.report.predict.known import Ladder
    from lockstep.report.predict.prediction import Candidate, Prediction

# Names of series in a message.
MOST_NAMES = 40
LARGEST_SIZE = 10_000_000
RULE = "efficiency=0.7"
MEANINGS = {
    "level": "efficiency stays as last measured",
    "halfway": "efficiency falls half as fast as between the last two sizes",
    "falling": "efficiency falls on as between the last two sizes",
    "amdahl": "a part of the work is serial",
    "between": "on the line through the sizes on either side",
}

PREDICT_EXAMPLES = """
\b
Examples:
  lockstep predict results/node --case strong
  lockstep predict results/node --case strong --at 16
  lockstep predict results/node --case strong --rule efficiency=0.8 --json
  lockstep predict results/node --case strong --rule deadline=02:00:00 --samples 1.2e8

\b
Rules: efficiency=FRACTION, deadline=HH:MM:SS (or seconds), budget=DEVICE_HOURS, fastest.
With --at, a size is refused (exit code 1) where fewer than four sizes were measured, and, unless
--force is given, where it lies below the smallest or beyond twice the largest, the curve breaks
on the way to it, or `lockstep check` forbids a curve. The reason says which sizes to measure.
Without --at, nothing is recommended, and the exit code is 1, where `lockstep check` finds an error
in the series.
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
    help="With --at: predict though the sizes measured speak against it.",
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
    all ways to continue the curve are shown with their errors at the sizes held out, and a size
    is recommended.
    """
    from lockstep.report.check import terminal
    from lockstep.report.check.checker import check, errors
    from lockstep.report.load.reading import load
    from lockstep.report.predict.known import ladder_of
    from lockstep.report.predict.prediction import predict as predicted
    from lockstep.report.predict.recommendation import parse, recommend

    _refuse_ignored(at, rule, samples, force)
    _refuse_numbers(at, samples, level)
    chosen_rule = parse(rule or RULE)
    results = load([path])
    for why in results.unread:
        click.echo(f"left out: {why}", err=True)
    series = _chosen(results, case)
    ladder = ladder_of(series, results.tables.get(series.case, {}), check(results))
    wrong = errors(ladder.forbidding)
    terminal.say_errors(wrong)
    if at is None and wrong:
        _print_blocked(ladder.case, list(dict.fromkeys(one.rule for one in wrong)), as_json)
        return 1
    if at is None:
        _print_all(series, ladder, recommend(series, chosen_rule, samples), level, as_json)
        return 0
    found = predicted(ladder, at, level, force)
    click.echo(json.dumps(found.record())) if as_json else _print_lines(_said(found, ladder))
    return 1 if found.refusal else 0


def _print_blocked(case: str, rules: list[str], as_json: bool) -> None:
    from lockstep.report.check.wording import blocked

    if as_json:
        click.echo(json.dumps({"case": case, "recommendation": None, "blocked_by": rules}))
    else:
        _print_lines([f"{case}: nothing is predicted or recommended, {blocked(rules)}"])


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
    from lockstep.report.compute.scaling import series_of
    from lockstep.report.predict.known import can_be_modelled

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
    from lockstep.report.words.lines import sentence

    for text in texts:
        for line in sentence(text) or [""]:
            click.echo(line)


def _said(found: "Prediction", ladder: "Ladder") -> list[str]:
    from lockstep.report.predict.prediction import used_from
    from lockstep.vocabulary.formats import listed, number, span, trimmed

    if found.refusal:
        return [f"not predicted: {found.refusal.text}", *_assumed(ladder)]
    assert found.low is not None and found.high is not None
    used = ladder.sizes[used_from(ladder) :] if found.at > ladder.sizes[-1] else ladder.sizes
    lines = [
        f"{ladder.case}: {number(found.value, 4)} {found.unit} at {found.at} "
        f"({found.metric}; predicted, not measured)",
        f"{trimmed(100 * found.level)} % interval: {span((found.low, found.high))} {found.unit}",
        f"rule: {found.model}, {MEANINGS[found.model or '']}, from {listed(used)}",
    ]
    if found.at in ladder.sizes:
        rate = ladder.rates[ladder.sizes.index(found.at)]
        lines.append(f"measured there: {number(ladder.value(found.at, rate), 4)} {found.unit}")
    return [*lines, *_assumed(ladder), *(f"warning: {warning}" for warning in found.warnings)]


def _assumed(ladder: "Ladder") -> list[str]:
    """Say what is taken for granted of the work, where nothing states it."""
    if ladder.assumed is None:
        return []
    return [
        "assumed: the work of all ranks is fixed, since the table has neither a column scaling "
        "(strong, weak or fixed-epochs) nor one global_batch; add one where that is wrong"
    ]


def _print_all(
    series: "Series", ladder: "Ladder", advice: Any, level: float, as_json: bool
) -> None:
    from lockstep.report.predict.prediction import candidates
    from lockstep.report.predict.unpredictable import LEAST_SIZES

    ranked = candidates(ladder) if len(ladder.sizes) >= LEAST_SIZES else []
    if as_json:
        click.echo(json.dumps(_record(series, ladder, ranked, advice, level), allow_nan=False))
        return
    _print_lines(_points(series, ladder))
    if ranked:
        _print_lines(["", *_rules(ranked), _peak_text(_peak(ladder), ladder)])
    _print_lines(["", *_advice(series, ladder, advice, level)])


def _record(
    series: "Series", ladder: "Ladder", ranked: "list[Candidate]", advice: Any, level: float
) -> dict[str, Any]:
    from dataclasses import asdict

    from lockstep.report.predict.prediction import predict
    from lockstep.report.predict.recommendation import diminishing, next_step
    from lockstep.report.predict.unpredictable import FARTHEST

    step = next_step(series)
    return {
        "case": ladder.case, "metric": ladder.metric, "unit": ladder.unit,
        "fixed_work": ladder.fixed, "assumed_work": ladder.assumed, "time_of": ladder.time_noun,
        "points": _point_records(series, ladder),
        "models": [
            {"model": one.rule, "error": one.error, "held_out": dict(one.held_out)}
            for one in ranked
        ],
        "chosen": ranked[0].rule if ranked else None,
        "peak_world_size": _peak(ladder),
        "breaks": [
            {"world_size": size, "what": what}
            for size, what in ladder.breaks
        ],
        "expected": predict(ladder, FARTHEST * ladder.sizes[-1], level).record(),
        "recommendation": asdict(advice), "blocked_by": [],
        "diminishing_returns": diminishing(series),
        "next_step": asdict(step) | {"text": step.text},
    }  # fmt: skip


def _point_records(series: "Series", ladder: "Ladder") -> list[dict[str, Any]]:
    from lockstep.report.predict.models import karp_flatt, marginal_efficiencies

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


def _points(series: "Series", ladder: "Ladder") -> list[str]:
    from lockstep.report.words.lines import numbers
    from lockstep.vocabulary.durations import in_words
    from lockstep.vocabulary.formats import number, percent, ratio

    kept = "the work of all ranks" if ladder.fixed == "global" else "the work of each rank"
    lines = [
        f"{_name(series)} [{series.row.origin}]: {ladder.metric} in {ladder.unit}; {kept} is fixed",
        *_assumed(ladder),
    ]
    header = ["ranks", ladder.metric, "speed-up", "efficiency %"]
    rows = [[*header, "Karp-Flatt", "gain %", "overhead %"]]
    for one in _point_records(series, ladder):
        over = one["overhead_s"]
        fraction = one["karp_flatt"]
        rows.append([
            str(one["world_size"]), number(one["value"], 4), ratio(one["speedup"]),
            percent(one["parallel_efficiency"]),
            number(None) if fraction is None else f"{fraction:.4f}",
            percent(one["marginal_efficiency"]),
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


def _rules(ranked: "list[Candidate]") -> list[str]:
    from lockstep.vocabulary.formats import listed, percent

    held_out = listed(ranked[0].held_out)
    tried = (
        f"at {held_out}, each held out, and on published ladders"
        if held_out
        else ("on published ladders, since no size of this one could be held out")
    )
    lines = [f"rules to continue the curve; error: the mean one doubling on, {tried}"]
    for index, one in enumerate(ranked):
        mark = "*" if index == 0 else " "
        lines.append(f"{mark} {one.rule:8} error {percent(one.error):>5} %   {MEANINGS[one.rule]}")
    return [*lines, f"* chosen by that error: {ranked[0].rule}"]


def _peak(ladder: "Ladder") -> float | None:
    """Return where throughput is largest by the law of `models`, where its beta was found."""
    from lockstep.report.predict.models import fit_usl, scalability
    from lockstep.report.predict.unpredictable import LEAST_SIZES

    if len(ladder.sizes) < LEAST_SIZES:
        return None
    usl = fit_usl(ladder.sizes, ladder.rates)
    interval = usl.interval("beta")
    return scalability(usl).peak_size if interval and interval[0] > 0 else None


def _peak_text(peak: float | None, ladder: "Ladder") -> str:
    from lockstep.report.predict.unpredictable import FARTHEST
    from lockstep.vocabulary.formats import number

    if peak is None:
        return "no peak: the Universal Scalability Law's beta is not identifiable from these sizes"
    if peak > FARTHEST * ladder.sizes[-1]:
        return f"no peak within {FARTHEST} times the sizes measured"
    return f"peak by the Universal Scalability Law: {number(peak)} ranks"


def _advice(series: "Series", ladder: "Ladder", advice: Any, level: float) -> list[str]:
    from lockstep.report.predict.recommendation import diminishing, next_step

    size = "none" if advice.world_size is None else str(advice.world_size)
    lines = [f"break at {size}: {what}" for size, what in ladder.breaks]
    lines.append(_next(ladder, level))
    lines.append(f"recommended: {size} ({advice.rule}): {advice.why}")
    lines += [verdict] if (verdict := diminishing(series)) else []
    return [*lines, next_step(series).text]


def _next(ladder: "Ladder", level: float) -> str:
    """Say what twice the largest size would give, or why that is not predicted."""
    from lockstep.report.predict.prediction import predict
    from lockstep.report.predict.unpredictable import FARTHEST
    from lockstep.vocabulary.formats import number, span, trimmed

    found = predict(ladder, FARTHEST * ladder.sizes[-1], level)
    if found.refusal:
        return f"{found.at} ranks are not predicted: {found.refusal.text}"
    assert found.low is not None and found.high is not None
    return (
        f"expected at {found.at} (predicted, not measured): {number(found.value, 4)} {found.unit}, "
        f"{trimmed(100 * level)} % interval {span((found.low, found.high))}"
    )
