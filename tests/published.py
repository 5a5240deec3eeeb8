"""The published tables that models are held against, as `lockstep import` reads them."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from reports import imports
from reports.predict.prediction import Ladder, Prediction, ladder_of, predict
from reports.results import Results, Row
from reports.scaling import series_of

TABLES = Path(__file__).parent / "data" / "published_scaling.csv"
LEAST_SIZES = 5
LEAST_FITTED = 4
# Curves that nobody measured on ranks: a computed one, and a load instead of processors.
NO_LADDERS = ("usl_oracle_exact", "usl_oracle_specsdm91")


class Case(NamedTuple):
    """One size of one table, predicted from the sizes below it."""

    table: str
    source: str
    sizes: list[int]
    held_out: int
    prediction: Prediction
    true: float
    is_last: bool

    @property
    def log_error(self) -> float:
        return math.log((self.prediction.value or math.nan) / self.true)

    @property
    def score(self) -> float:
        """Error in the prediction's own spreads, which calibration ranks."""
        return abs(self.log_error) / (self.prediction.spread or math.nan)

    @property
    def is_covered(self) -> bool:
        return (self.prediction.low or 0.0) <= self.true <= (self.prediction.high or 0.0)

    @property
    def is_near(self) -> bool:
        return self.held_out <= 2 * self.sizes[-1]


@lru_cache(maxsize=1)
def results() -> Results:
    """Return all tables as results."""
    tables = imports.read([TABLES], 50_000).tables
    rows = [Row(**row) for table in tables.values() for row in table["rows"]]
    return Results(rows=rows, tables=tables)


def rows_of(table: str) -> list[Row]:
    return [row for row in results().rows if row.case == table]


def ladder(table: str, sizes: Sequence[int] | None = None) -> Ladder:
    """Return one table as models see it, or so many of its sizes."""
    rows = [row for row in rows_of(table) if sizes is None or row.world_size in sizes]
    return ladder_of(series_of(rows)[0], results().tables[table])


def measured() -> list[str]:
    """Return the tables that were measured at five distinct sizes or more."""
    sizes = {name: {row.world_size for row in rows_of(name)} for name in results().tables}
    return [
        name
        for name, table in results().tables.items()
        if table["origin"] == "cited" and len(sizes[name]) >= LEAST_SIZES
        if name not in NO_LADDERS
    ]


def cases(is_last: bool = False) -> Iterator[Case]:
    """Yield what each first part of each table says of later sizes, the last of each, or all."""
    for table in measured():
        whole = ladder(table)
        count = len(whole.sizes)
        for cut in range(count - 1 if is_last else LEAST_FITTED, count):
            known = ladder(table, whole.sizes[:cut])
            for later in range(cut, count):
                yield _case(table, whole, known, later, is_last=cut == later == count - 1)


def _case(table: str, whole: Ladder, known: Ladder, later: int, is_last: bool) -> Case:
    at = whole.sizes[later]
    found = predict(known, at, force=True)
    true = whole.value(at, whole.rates[later])
    source = results().tables[table]["source"]
    return Case(table, source, known.sizes, at, found, true, is_last)
