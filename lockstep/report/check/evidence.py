"""What the rules of a check look at, and the record of what they find."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lockstep.core import metrics
from lockstep.core.record import KEY, case_name
from lockstep.core.studies import IMPORTED, LADDERS
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.load.results import Conflict, Launch, Results

# Case and world size.
Place = tuple[str, int]
# Studies whose points are meant to be compared over world sizes.
# Launches of one point vary by a few per cent; a fastest so many times the slowest is another run.
APART = 1.25
# No noise and no fault makes a launch so many times as fast as another; a unit does.
UNIT = 100.0


@dataclass(frozen=True)
class Hit:
    """What a rule has found, as a record; `lockstep.report.check.wording` turns it into a sentence.

    Attributes:
        kind: Which fact it is, a key of `wording.FACTS`.
        values: The numbers and names of the fact, by the names that its sentence uses.
        cases: Cases or tables concerned; empty where all of the launches or sizes are.
        world_sizes: World sizes concerned; empty where all are.
        launches: Launches concerned; empty where all are. Hits that differ in nothing else are one.
        path: The file concerned, where no launch is.
        doubts: Whether it casts doubt on a ratio, where its rule's warnings do.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = ()
    launches: tuple[str, ...] = ()
    is_table: bool = False
    path: str = ""
    doubts: bool = True


@dataclass(frozen=True)
class Entry:
    """A case as its file has it, with the numbers that the file says follow from it."""

    launch: Launch
    case: str
    block: dict[str, Any]
    stats: dict[str, Any]

    @cached_property
    def round_s(self) -> list[float]:
        """Return each round's duration: that of its slowest rank."""
        return metrics.slowest_rank(self.block["rank_round_s"])

    @property
    def point(self) -> Place:
        """Its case and world size."""
        return self.case, int(self.block["world_size"])

    def hit(self, kind: str, **values: Any) -> Hit:
        """Return what was found in the case, in this launch alone."""
        case, size = self.point
        return Hit(kind, values, (case,), (size,), (self.launch.name,))


@dataclass(frozen=True)
class Evidence:
    """A set of results and its series, conflicts among them included.

    Attributes:
        known: The series of all rows; None where they are still to be formed.
    """

    results: Results
    known: list[Series] | None = None

    @cached_property
    def series(self) -> list[Series]:
        """Return the series of all points whose launches mean the same by their case."""
        if self.known is not None:
            return self.known
        mixed = [one for one in self.results.conflicts if one.case is not None]
        return series_of(replace(self.results, conflicts=mixed).split()[0])

    @property
    def points(self) -> Iterator[tuple[Series, Point]]:
        """Yield each point of each series."""
        return ((one, point) for one in self.series for point in one.points)

    @cached_property
    def measured(self) -> list[Series]:
        """Return the series that were measured by launches."""
        return [one for one in self.series if one.row.origin == "measured"]

    @cached_property
    def ladders(self) -> list[Series]:
        """Return the series of two sizes or more that are meant to show scaling."""
        return [
            one
            for one in self.series
            if one.row.study in (*LADDERS, IMPORTED) and len(one.points) > 1
        ]

    def table(self, series: Series) -> dict[str, Any]:
        """Return what an imported table says of itself; empty where it has another name."""
        return self.results.tables.get(series.case, {})

    def places(self, found: Hit) -> frozenset[Place]:
        """Return the points that a hit concerns."""
        sizes, launches = self._points
        if found.launches and not (found.cases or found.world_sizes):
            return frozenset(place for name in found.launches for place in launches.get(name, ()))
        return frozenset(
            (case, size)
            for case in found.cases or sizes
            for size in sizes.get(case, ())
            if size in found.world_sizes or not found.world_sizes
        )

    @cached_property
    def _points(self) -> tuple[dict[str, set[int]], dict[str, set[Place]]]:
        """Return the world sizes of each case, and the points of each launch."""
        sizes: dict[str, set[int]] = {}
        launches: dict[str, set[Place]] = {}
        for row in self.results.rows:
            sizes.setdefault(row.case, set()).add(row.world_size)
            launches.setdefault(row.launch, set()).add((row.case, row.world_size))
        return sizes, launches

    @cached_property
    def entries(self) -> list[Entry]:
        """Return the cases of all launches as they are stored."""
        cases = {(row.launch, row.recorded_case): row.case for row in self.results.rows}
        return [
            Entry(launch, case, block, entry["stats"])
            for launch in self.results.launches
            for entry in launch.entries
            if isinstance(entry, dict)
            and (case := cases.get((launch.name, case_name(entry))))
            and (block := (entry.get("extra_info") or {}).get(KEY))
        ]


def hit(kind: str, series: Series, *sizes: int, launches: Sequence[str] = (), **values: Any) -> Hit:
    """Return what was found in a series, at these world sizes or at all."""
    is_table = series.row.origin != "measured"
    return Hit(kind, values, (series.case,), sizes, tuple(launches), is_table)


def difference(conflict: Conflict) -> Hit:
    """Return what a conflict says of its fact."""
    usual, value = conflict.values
    values = {"fact": conflict.fact, "value": value, "usual": usual, "launch": conflict.usual}
    cases = () if conflict.case is None else (conflict.case,)
    kind = "differ" if conflict.is_tie else "differs"
    return Hit(kind, values, cases, conflict.world_sizes, conflict.launches)


def are_apart(point: Point) -> bool:
    """Tell whether launches of one point are no repeats of one another, so far apart they lie."""
    return max(point.rates) > APART * min(point.rates)


def batches(series: Series, name: str) -> list[int]:
    """Return a batch at each size where all points know it, else nothing."""
    found = [getattr(point.rows[0], name) for point in series.points]
    return found if None not in found else []
