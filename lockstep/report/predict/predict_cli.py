"""The command `lockstep predict`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.report.bundle import opening

if TYPE_CHECKING:
    from lockstep.report.check.checker import Finding
    from lockstep.report.compute.scaling import Series
    from lockstep.report.load.results import Results

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
With --at, a size is refused (exit code 1) if fewer than three sizes were measured. Without --force,
a size is also refused if it is below the smallest or above twice the largest measured size, if the
curve breaks on the way to it, or if `lockstep check` forbids a curve. The reason names the sizes to
measure.
Without --at, the exit code is 1 and nothing is recommended if `lockstep check` finds an error in
the series.
"""


@click.command("predict", epilog=PREDICT_EXAMPLES)
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--at", type=click.IntRange(1, LARGEST_SIZE), help="World size to predict.")
@click.option("--case", help="Name of the series, or a part of its name that no other series has.")
@click.option("--rule", help=f"Rule for the recommended size, without --at.  [default: {RULE}]")
@click.option(
    "--samples", type=click.FloatRange(0, min_open=True),
    help="Samples of the whole run; the rules deadline and budget divide them by the throughput.",
)  # fmt: skip
@click.option(
    "--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.9,
    show_default=True, help="Confidence level of the interval.",
)  # fmt: skip
@click.option(
    "--force", is_flag=True, help="With --at: predict the size even if Lockstep refuses it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@opening.accept_bundles()
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
    """Predict an unmeasured world size, or recommend a measured one.

    DIR is what `lockstep report` reads: a campaign folder, pytest-benchmark files, or a folder
    that `lockstep import` wrote. With --at, one size is predicted with its interval. Without
    --at, all rules to continue the curve are shown with their errors at held-out sizes, and a size
    is recommended.
    """
    from lockstep.report.check import checker
    from lockstep.report.check.evidence import blocked_text
    from lockstep.report.load.reading import load
    from lockstep.report.predict import predict_record, prediction
    from lockstep.report.words.lines import sentence

    criterion = predict_record.parse(rule or RULE)
    results = load([path])
    checker.say_unread(results)
    findings = checker.check(results)
    series = _choose(results, findings, case)
    ladder = prediction.ladder_of(series, results.tables.get(series.case, {}), findings)
    wrong = checker.errors(ladder.forbidding)
    checker.say_errors(wrong)
    code = 0
    if at is not None:
        predicted = prediction.predict(ladder, at, level, force)
        record = predict_record.prediction_record(series, predicted)
        texts = predict_record.prediction_text(series, predicted)
        code = 1 if predicted.refusal else 0
    elif wrong:
        rules = list(dict.fromkeys(finding.rule for finding in wrong))
        record = {"case": ladder.case, "recommendation": None, "blocked_by": rules}
        name = predict_record.name_of(series)
        reason = blocked_text(rules)
        texts = [f"{name}: there is no prediction and no recommendation ({reason})"]
        code = 1
    else:
        is_enough = len(ladder.sizes) >= prediction.LEAST_SIZES
        ranked = prediction.candidates(ladder) if is_enough else []
        advice = predict_record.recommend(series, criterion, samples)
        record = predict_record.record(series, ladder, ranked, advice, level)
        texts = predict_record.text(series, ladder, ranked, record)
    if as_json:
        click.echo(json.dumps(record, allow_nan=False))
        return code
    for text in texts:
        for line in sentence(text) or [""]:
            click.echo(line)
    return code


def _choose(results: "Results", findings: "list[Finding]", case: str | None) -> "Series":
    """Return the series selected by its name or by a unique part of it."""
    from lockstep.report.compute.evaluation import finish
    from lockstep.report.compute.scaling import series_of
    from lockstep.report.predict.predict_record import name_of
    from lockstep.report.predict.prediction import can_be_modelled

    def listed(curves: "list[Series]") -> str:
        # Semicolons, since names contain commas; a name of several series is printed in full.
        names = [name_of(curve) for curve in curves]
        both = zip(curves, names, strict=True)
        return "; ".join(curve.case if names.count(name) > 1 else name for curve, name in both)

    curves = finish(series_of(results.rows), findings)
    series = [curve for curve in curves if can_be_modelled(curve)]
    if not series:
        raise ValueError(
            "no series has several sizes of strong or weak scaling; measure one, or import a table"
        )
    wanted = case or ""
    exact = [curve for curve in series if wanted in (curve.case, curve.label, name_of(curve))]
    matching = exact or [curve for curve in series if wanted in f"{curve.case} {name_of(curve)}"]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise ValueError(
            f"no series has {wanted!r} in its name; choose --case from: {listed(series)}"
        )
    reason = "there are several series"
    if case:
        reason = f"{len(matching)} series have {wanted!r} in their names"
    names = listed(matching)
    raise ValueError(f"{reason}; choose one with --case and a unique part of its name: {names}")
