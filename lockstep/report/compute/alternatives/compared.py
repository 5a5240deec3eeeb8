"""Settings that may be compared: cases of one workload, size and layout that differ in a factor."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.studies import STUDIES
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval, ratio_interval

# What a step does where nobody asks for another.
USUAL = {"strategy": "ddp", "activation_checkpointing": False, "accumulation": 1}

Cases = list[tuple[Series, Point]]
# Workload, world size, and the factors and layout that are not varied.
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Cell:
    """A setting at one world size, beside the reference there.

    Attributes:
        ratio: Of its throughput to the reference's.
        interval: Of the ratio, 95 %; None without repeats, and of the reference itself.
    """

    ratio: float
    interval: Interval | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]


@dataclass(frozen=True)
class Grid:
    """Settings over world sizes, each beside the reference of its own size.

    Attributes:
        series: One of the series, for what all share.
        names: Factors that vary.
        sizes: World sizes, ascending.
        cells: Values of the factors -> world size -> cell; none where the reference failed at that
            size, or an error of the check forbids the ratio.
    """

    series: Series
    names: list[str]
    sizes: list[int]
    cells: dict[tuple[str, ...], dict[int, Cell]]
    reference: tuple[str, ...]


def groups(study: str, series: Sequence[Series]) -> list[tuple[Key, Cases]]:
    """Group points that may be compared: same workload, size, layout and other factors."""
    found: dict[Key, Cases] = {}
    for one in series:
        others = ""
        if (known := STUDIES.get(study)) and known.varies_one and known.compared_with:
            kept = known.compared_with[0]
            others = str(sorted((k, str(v)) for k, v in one.row.factors.items() if k != kept))
        others += one.layout
        for point in one.points:
            found.setdefault((one.row.workload, point.world_size, others), []).append((one, point))
    return sorted(found.items(), key=lambda item: item[0][:2])


def reference(study: str, cases: Cases) -> int:
    """Return the index of the case the others are compared with: the most usual one."""
    known = STUDIES.get(study)
    usual = USUAL | dict([known.compared_with] if known and known.compared_with else [])

    def merit(index: int) -> int:
        factors = cases[index][0].row.factors
        return sum(name in factors and factors[name] == usual[name] for name in usual)

    return max(range(len(cases)), key=merit)


def references(study: str, found: Sequence[tuple[Key, Cases]]) -> list[tuple[Series, Point] | None]:
    """Return the case that each group is compared with: the same setting at every size.

    It is None where that setting was measured at other sizes alone: the ratio to another setting
    would be another quantity.
    """
    every: dict[tuple[str, str], Cases] = {}
    for (workload, _, others), cases in found:
        every.setdefault((workload, others), []).extend(cases)
    chosen = {key: cases[reference(study, cases)][0] for key, cases in every.items()}
    return [
        next((case for case in cases if case[0] is chosen[workload, others]), None)
        for (workload, _, others), cases in found
    ]


def without_blocked(found: Sequence[tuple[Key, Cases]]) -> list[tuple[Key, Cases]]:
    """Return the groups without the points whose ratios an error of the check forbids."""
    kept = [(key, [case for case in cases if not case[1].blocked_by]) for key, cases in found]
    return [(key, cases) for key, cases in kept if cases]


def varied(cases: Cases) -> list[str]:
    """Return the factors that take more than one value among the cases."""
    names = list(dict.fromkeys(name for one, _ in cases for name in one.row.factors))
    return [n for n in names if len({str(one.row.factors.get(n)) for one, _ in cases}) > 1]


def independent(names: Sequence[str], cases: Cases) -> list[str]:
    """Return the factors that no factor before them already determines."""
    kept: list[str] = []
    for name in names:
        values = [str(one.row.factors.get(name)) for one, _ in cases]
        befores = [[str(one.row.factors.get(other)) for one, _ in cases] for other in kept]
        if not any(len(set(zip(b, values, strict=True))) == len(set(b)) for b in befores):
            kept.append(name)
    return kept


def grids(study: str, found: Sequence[tuple[Key, Cases]]) -> list[Grid]:
    """Return the groups that differ in their size alone as one grid each."""
    joined: dict[tuple[str, str], list[tuple[Key, Cases]]] = {}
    for key, cases in found:
        if len(cases) > 1:
            joined.setdefault((key[0], key[2]), []).append((key, cases))
    return [_grid(study, sizes) for sizes in joined.values()]


def _grid(study: str, sizes: list[tuple[Key, Cases]]) -> Grid:
    every = [case for _, cases in sizes for case in cases]
    names = independent(varied(every), every)
    cells: dict[tuple[str, ...], dict[int, Cell]] = {}
    for ((_, world_size, _), cases), base in zip(sizes, references(study, sizes), strict=True):
        for one, point in cases:
            row = cells.setdefault(_values(one, names), {})
            if base and not (point.blocked_by or base[1].blocked_by):
                row[world_size] = _cell(point, base[1])
    named = _values(every[reference(study, every)][0], names)
    return Grid(every[0][0], names, [size for (_, size, _), _ in sizes], cells, named)


def _cell(point: Point, base: Point) -> Cell:
    between = None if point is base else ratio_interval(point.units, base.units)
    return Cell(point.rate / base.rate, between)


def _values(series: Series, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(series.row.factors.get(name)) for name in names) or (series.label,)
