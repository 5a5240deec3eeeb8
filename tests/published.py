"""The published tables that predictions are held against, as `lockstep import` reads them.

What is learned from tables is learned by source: all tables of one source are left out together
where one of them is predicted, and every source counts alike, however many tables it has.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from lockstep.report.compute.scaling import series_of
from lockstep.report.compute.statistics import t_quantile
from lockstep.report.load import imports
from lockstep.report.load.results import Results, Row
from lockstep.report.predict import models as rules
from lockstep.report.predict import prediction
from lockstep.report.predict.prediction import (
    FARTHEST,
    FREEDOM,
    LEAST_SIZES,
    LEVEL,
    Ladder,
    Learned,
    Prediction,
    ladder_of,
)

TABLES = Path(__file__).parent / "data" / "published_scaling.csv"
# Curves that nobody measured on ranks: a computed one, and a load instead of processors.
NO_LADDERS = ("usl_oracle_exact", "usl_oracle_specsdm91")


class Case(NamedTuple):
    """One size of one table within twice the sizes below it, which predict it."""

    table: str
    source: str
    known: Ladder
    held_out: int
    rate: float
    true: float
    is_last: bool

    @property
    def is_refused(self) -> bool:
        return prediction.refusal(self.known, self.held_out, force=False) is not None

    def foretold(self, learned: Learned) -> Prediction:
        return prediction.foretell(self.known, self.held_out, LEVEL, learned)

    def error(self, found: Prediction) -> float:
        """Return predicted over true value, less 1."""
        return (found.value or math.nan) / self.true - 1

    def score(self, learned: Learned) -> float:
        """Return the error in the prediction's own spreads, which calibration ranks."""
        found = self.foretold(learned)
        return abs(math.log1p(self.error(found))) / (found.spread or math.nan)

    def ruler(self) -> float:
        """Return the error of the plainest rule: efficiency stays as last measured."""
        return rules.level(self.known.sizes, self.known.rates, self.held_out) / self.rate - 1


@lru_cache(maxsize=1)
def results() -> Results:
    tables = imports.read([TABLES], 50_000).tables
    rows = [Row(**row) for table in tables.values() for row in table["rows"]]
    return Results(rows=rows, tables=tables)


def rows_of(table: str) -> list[Row]:
    return [row for row in results().rows if row.case == table]


def source_of(table: str) -> str:
    return str(results().tables[table]["source"])


@lru_cache(maxsize=1)
def sources() -> list[str]:
    return sorted({source_of(table) for table in measured()})


def ladder(table: str, sizes: Sequence[int] | None = None) -> Ladder:
    """Return one table as predictions see it, or so many of its sizes."""
    rows = [row for row in rows_of(table) if sizes is None or row.world_size in sizes]
    return ladder_of(series_of(rows)[0], results().tables[table])


def measured() -> list[str]:
    """Return the tables that were measured at more sizes than a prediction is learned from."""
    sizes = {name: {row.world_size for row in rows_of(name)} for name in results().tables}
    return [
        name
        for name, table in results().tables.items()
        if table["origin"] == "cited" and len(sizes[name]) > LEAST_SIZES
        if name not in NO_LADDERS
    ]


@lru_cache(maxsize=1)
def cases() -> list[Case]:
    """Return every later size within twice what each first part of each table knows."""
    return [case for table in measured() for case in _cases(table)]


def _cases(table: str) -> Iterator[Case]:
    whole = ladder(table)
    count = len(whole.sizes)
    for cut in range(LEAST_SIZES, count):
        known = ladder(table, whole.sizes[:cut])
        for later in range(cut, count):
            at, rate = whole.sizes[later], whole.rates[later]
            if at <= FARTHEST * known.sizes[-1]:
                is_last = cut == later == count - 1
                true = whole.value(at, rate)
                yield Case(table, source_of(table), known, at, rate, true, is_last)


def own_errors(ladder: Ladder) -> dict[str, list[float]]:
    """Return how each rule, `between` among them, erred on the ladder's own sizes."""
    found = {name: list(prediction.errors_at_sizes(name, ladder).values()) for name in rules.RULES}
    return {**found, rules.BETWEEN: prediction.inner_errors(ladder)}


@lru_cache
def learned(without: str | None = None) -> Learned:
    """Return what all sources, or all but one, teach: first the rules' errors, then the scale."""
    start = Learned(_rule_errors(without), 1.0)
    scores = [
        (case.source, case.score(start))
        for case in cases()
        if case.source != without and not case.is_refused
    ]
    return Learned(start.errors, _quantile(scores, LEVEL) / t_quantile(FREEDOM, LEVEL))


def _rule_errors(without: str | None) -> Mapping[str, float]:
    """Return the mean error of each rule, over sources of the mean over their ladders' sizes."""
    found: dict[str, dict[str, list[float]]] = {}
    for table in measured():
        if (source := source_of(table)) != without:
            for rule, errors in own_errors(ladder(table)).items():
                found.setdefault(rule, {}).setdefault(source, []).extend(errors)
    return {
        rule: mean(mean(errors) for errors in by_source.values() if errors)
        for rule, by_source in found.items()
    }


def _quantile(scores: Sequence[tuple[str, float]], share: float) -> float:
    """Return the score that a share of all lies at or below, every source counting alike."""
    counts: dict[str, int] = {}
    for source, _ in scores:
        counts[source] = counts.get(source, 0) + 1
    total = 0.0
    for source, score in sorted(scores, key=lambda one: one[1]):
        total += 1 / counts[source] / len(counts)
        if total >= share - 1e-9:
            return score
    raise AssertionError("the weights of the scores add to 1")
