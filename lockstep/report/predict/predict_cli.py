"""The command `lockstep predict`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.report.bundle import opening

if TYPE_CHECKING:
    from lockstep.report.compute.scaling import Series
    from lockstep.report.load.results import Results
    from lockstep.report.predict.prediction import Ladder
    from lockstep.report.predict.recommendation import Criterion

LARGEST_SIZE = 10_000_000
RULE = "efficiency=0.7"

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
@click.option("--at", type=click.IntRange(1, LARGEST_SIZE), help="World size to predict.")
@click.option("--case", help="Series, by its name or a part that no other name has.")
@click.option("--rule", help=f"What a size must meet, without --at.  [default: {RULE}]")
@click.option(
    "--samples", type=click.FloatRange(0, min_open=True),
    help="Samples of the whole run, for a deadline or budget over measured throughputs.",
)  # fmt: skip
@click.option(
    "--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.9,
    show_default=True, help="Share of truths that the interval shall contain.",
)  # fmt: skip
@click.option(
    "--force", is_flag=True,
    help="With --at: predict though the sizes measured speak against it.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@opening.of_bundles()
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
    """Predict a world size that was not measured, or recommend one that was.

    DIR is what `lockstep report` reads: a campaign folder, pytest-benchmark files, or a folder
    that `lockstep import` wrote. With --at, one size is predicted with its interval; without it,
    all ways to continue the curve are shown with their errors at the sizes held out, and a size
    is recommended.
    """
    from lockstep.report.check import checker
    from lockstep.report.check.checker import check, errors
    from lockstep.report.predict import predict_record, prediction
    from lockstep.report.predict.prediction import ladder_of
    from lockstep.report.predict.recommendation import parse

    criterion = parse(rule or RULE)
    results = _loaded(path)
    series = _chosen(results, case)
    ladder = ladder_of(series, results.tables.get(series.case, {}), check(results))
    wrong = errors(ladder.forbidding)
    checker.say_errors(wrong)
    if at is not None:
        found = prediction.predict(ladder, at, level, force)
        _print(found.record(), predict_record.prediction_text(found, ladder), as_json)
        return 1 if found.refusal else 0
    if wrong:
        rules = list(dict.fromkeys(finding.rule for finding in wrong))
        record = {"case": ladder.case, "recommendation": None, "blocked_by": rules}
        _print(record, [predict_record.blocked_text(ladder, rules)], as_json)
        return 1
    _print(*_recommended(series, ladder, criterion, samples, level), as_json)
    return 0


def _loaded(path: Path) -> "Results":
    from lockstep.report.check import checker
    from lockstep.report.load.reading import load

    results = load([path])
    checker.say_unread(results)
    return results


def _recommended(
    series: "Series", ladder: "Ladder", criterion: "Criterion", samples: float | None, level: float
) -> tuple[Mapping[str, object], list[str]]:
    """Return the record and the text of all ways to continue a curve, and of the size to choose."""
    from lockstep.report.predict import predict_record, prediction
    from lockstep.report.predict.prediction import LEAST_SIZES
    from lockstep.report.predict.recommendation import recommend

    ranked = prediction.candidates(ladder) if len(ladder.sizes) >= LEAST_SIZES else []
    shown = series, ladder, ranked, recommend(series, criterion, samples), level
    return predict_record.record(*shown), predict_record.text(*shown)


def _print(record: Mapping[str, object], texts: list[str], as_json: bool) -> None:
    from lockstep.report.words.lines import sentence

    if as_json:
        click.echo(json.dumps(record, allow_nan=False))
        return
    for text in texts:
        for line in sentence(text) or [""]:
            click.echo(line)


def _chosen(results: "Results", case: str | None) -> "Series":
    """Return the one series that a name, or a part of it, picks."""
    from lockstep.report.compute.scaling import series_of
    from lockstep.report.predict.predict_record import name_of
    from lockstep.report.predict.prediction import can_be_modelled

    series = [curve for curve in series_of(results.rows) if can_be_modelled(curve)]
    if not series:
        raise ValueError(
            "no series is a ladder of strong or weak scaling; measure one, or import a table"
        )
    wanted = case or ""
    exact = [curve for curve in series if wanted in (curve.case, curve.label, name_of(curve))]
    matching = exact or [curve for curve in series if wanted in f"{curve.case} {name_of(curve)}"]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        known = _names(series)
        raise ValueError(f"no series has {wanted!r} in its name; choose --case from: {known}")
    several = f"{len(matching)} series have {wanted!r} in their names" if case else "several series"
    raise ValueError(f"{several}; choose one by --case: {_names(matching)}")


def _names(series: "list[Series]") -> str:
    """Return the names, separated by semicolons since they hold commas; a shared one in full."""
    from lockstep.report.predict.predict_record import name_of

    names = [name_of(curve) for curve in series]
    return "; ".join(
        curve.case if names.count(name) > 1 else name
        for curve, name in zip(series, names, strict=True)
    )
