"""What the rules of a check look at, and what they say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench.record import KEY
from reports.results import Launch, Results
from reports.scaling import Point, Series, series_of
from reports.sources import document

# Studies whose points are meant to be compared over world sizes.
LADDERS = ("strong", "weak", "imported")
# Launches of one point vary by a few per cent; a fastest so many times the slowest is another run.
APART = 1.25


@dataclass(frozen=True)
class Hit:
    """What a rule has found.

    Attributes:
        where: A file, a case, a table, a size; nothing where the launches say it all.
        action: What to do, in place of the rule's action.
        launches: In which launches; what differs in nothing else is one finding.
    """

    where: str
    fact: str
    action: str = ""
    launches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A case as its file has it, with the numbers that the file says follow from it."""

    launch: Launch
    case: str
    block: dict[str, Any]
    stats: dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """A set of results and its series, conflicts among them included."""

    results: Results

    @cached_property
    def series(self) -> list[Series]:
        """Return the series of all cases whose launches mean the same by them."""
        mixed = {conflict.case for conflict in self.results.conflicts}
        return series_of(row for row in self.results.rows if row.case not in mixed)

    @cached_property
    def measured(self) -> list[Series]:
        """Return the series that were measured by launches."""
        return [one for one in self.series if one.row.origin == "measured"]

    @cached_property
    def ladders(self) -> list[Series]:
        """Return the series of two sizes or more that are meant to show scaling."""
        return [one for one in self.series if one.row.study in LADDERS and len(one.points) > 1]

    def table(self, series: Series) -> dict[str, Any]:
        """Return what an imported table says of itself; empty where it has another name."""
        return self.results.tables.get(series.case, {})

    def entries(self) -> Iterator[Entry]:
        """Yield the cases of all launches as they are stored; the files are read once more.

        Raises:
            ValueError: A file can no longer be read.
        """
        for launch in self.results.launches:
            for entry in document(launch.path)["benchmarks"]:
                block = (entry.get("extra_info") or {}).get(KEY)
                if block:
                    yield Entry(launch, entry["name"], block, entry["stats"])


def at(series: Series, *sizes: int) -> str:
    """Name a case or a table, and world sizes of it."""
    name = series.case if series.row.origin == "measured" else f"table {series.case}"
    return f"{name} at world size {', '.join(map(str, sizes))}" if sizes else name


def are_apart(point: Point) -> bool:
    """Tell whether launches of one point are no repeats of one another, so far apart they lie."""
    return max(point.rates) > APART * min(point.rates)


def batches(series: Series, name: str) -> list[int]:
    """Return a batch at each size where all points know it, else nothing."""
    found = [getattr(point.rows[0], name) for point in series.points]
    return found if None not in found else []


def joined(values: Sequence[object]) -> str:
    """Return values as text: 1, 2 and 4."""
    texts = [str(value) for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
