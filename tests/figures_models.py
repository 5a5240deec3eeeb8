"""What models and predictions are worth on published tables, printed beside the goals.

    python tests/figures_models.py

Deterministic but for the time of the fits; no table is fetched.
"""

import math
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import click
import published

from reports.predict import models
from reports.predict.prediction import LEVEL, factor

NUM_FITS = 1000
GOAL_S = 2.0
GOAL_ERROR = 0.05
GOAL_COVERAGE = 0.9


def main() -> None:
    """Print the last size of every table, the calibration, and the time of the fits."""
    last = list(published.cases(is_last=True))
    _print_last(last)
    every = [case for case in published.cases() if case.is_near]
    _print_calibration(every)
    _print_fits()


def _print_last(cases: list[published.Case]) -> None:
    click.echo(f"{'table':50}   n {'at':>4} predicted   90 % interval         true   error  in")
    for case in cases:
        found = case.prediction
        low, high = (f"{end:.5g}" for end in (found.low or 0, found.high or 0))
        click.echo(
            f"{case.table:50} {len(case.sizes):3} {case.held_out:4} {found.value:9.5g}  "
            f"{low:>8} {high:>8} {case.true:9.5g} {100 * math.expm1(case.log_error):+6.1f} % "
            f"{'yes' if case.is_covered else 'NO '} {found.model}"
        )
    near = [abs(math.expm1(case.log_error)) for case in cases if case.is_near]
    covered = sum(case.is_covered for case in cases)
    widths = [(c.prediction.high or 0) / (c.prediction.value or 1) - 1 for c in cases]
    click.echo(
        f"\n{len(cases)} tables, {len(near)} of them with the last size within twice the others'"
    )
    click.echo(f"median error within twice   {statistics.median(near):.3f}   goal <= {GOAL_ERROR}")
    click.echo(f"coverage of 90 % intervals  {covered / len(cases):.3f}   goal >= {GOAL_COVERAGE}")
    click.echo(f"median upper half-width     {statistics.median(widths):.3f}")


def _print_calibration(cases: list[published.Case]) -> None:
    click.echo(f"\n{len(cases)} predictions within twice, from every first part of 4 sizes or more")
    for level in (0.5, 0.8, LEVEL, 0.95):
        share = sum(case.score <= factor(level) for case in cases) / len(cases)
        click.echo(f"level {level:.2f}: k = {factor(level):.2f} covers {share:.3f}")
    ranked = sorted(case.score for case in cases)
    quantile = ranked[math.ceil(LEVEL * len(ranked)) - 1]
    click.echo(f"{LEVEL} quantile of error / (s g): {quantile:.2f}, beside k({LEVEL}) above")
    inside = total = last = last_inside = 0
    for source in sorted({case.source for case in cases}):
        own = [case.score for case in cases if case.source == source]
        others = sorted(case.score for case in cases if case.source != source)
        k = others[min(len(others) - 1, math.ceil(LEVEL * (len(others) + 1)) - 1)]
        covered = sum(score <= k for score in own)
        inside, total = inside + covered, total + len(own)
        at_last = [case.score for case in cases if case.source == source and case.is_last]
        last, last_inside = last + len(at_last), last_inside + sum(one <= k for one in at_last)
        click.echo(f"  without {source[:50]:50} k = {k:.2f} covers {covered} of its {len(own)}")
    click.echo(f"coverage with a source left out: {inside / total:.3f} of all predictions,")
    click.echo(f"  {last_inside / last:.3f} of the last sizes, one per table")


def _print_fits() -> None:
    ladders = [published.ladder(table) for table in published.measured()]
    start = time.perf_counter()
    for index in range(NUM_FITS):
        ladder = ladders[index % len(ladders)]
        names = [n for n in models.NAMES if n != "two-level" or ladder.nodes]
        name = names[index // len(ladders) % len(names)]
        models.fit(name, ladder.sizes, ladder.times_s.tolist(), ladder.fixed, ladder.nodes)
    spent = time.perf_counter() - start
    click.echo(f"\n{NUM_FITS} fits over all models and tables: {spent:.2f} s   goal <= {GOAL_S} s")


if __name__ == "__main__":
    main()
