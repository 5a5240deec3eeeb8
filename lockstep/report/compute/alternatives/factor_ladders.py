"""Speed-up and efficiency of a program over one of its factors, such as threads.

With X(v) the rate of work at the value v of a factor, and v0 the smallest value measured:

    speedup(v)    = X(v) / X(v0)
    efficiency(v) = speedup(v) / (v / v0)

All else is equal within a ladder: the other factors, the world size and the layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.report.compute.scaling import Point, Series, gained
from lockstep.report.compute.statistics import Interval


@dataclass(frozen=True)
class Rung:
    """One value of the factor.

    Attributes:
        speedup: Rate over that at the smallest value.
        speedup_interval: None at the smallest value, and without repeats.
        efficiency: Speed-up over the ratio of the values.
    """

    value: float
    point: Point
    speedup: float = 1.0
    speedup_interval: Interval | None = None
    efficiency: float = 1.0
    efficiency_interval: Interval | None = None


@dataclass(frozen=True)
class FactorLadder:
    """A program over one factor.

    Attributes:
        label: The program, and the factors that are fixed.
        series: The series of the smallest value.
    """

    factor: str
    label: str
    world_size: int
    series: Series
    rungs: tuple[Rung, ...]

    @property
    def base(self) -> Rung:
        """What the others are compared with."""
        return self.rungs[0]

    @property
    def is_blocked(self) -> bool:
        """Whether an error of the check forbids a verdict."""
        return any(rung.point.blocked_by for rung in self.rungs)


def factor_ladders(series: Sequence[Series]) -> list[FactorLadder]:
    """Return the ladders of two values or more over the factors that programs name for it."""
    groups: dict[tuple[object, ...], list[tuple[float, Series, Point]]] = {}
    for one, factor, value in _named(series):
        rest = tuple((name, str(v)) for name, v in one.row.factors.items() if name != factor)
        for point in one.points:
            key = (factor, one.row.workload, rest, one.layout, point.world_size)
            groups.setdefault(key, []).append((value, one, point))
    found = [_ladder(str(key[0]), group) for key, group in groups.items()]
    return [one for one in found if len(one.rungs) > 1]


def without_laddered(series: Sequence[Series]) -> list[Series]:
    """Return the series that say something beside the ladders: over ranks, or of no ladder."""
    told = {(one.factor, one.label) for one in factor_ladders(series)}
    return [
        one
        for one in series
        if len(one.points) > 1
        or not any((factor, _label(one, factor)) in told for _, factor, _ in _named([one]))
    ]


def _named(series: Sequence[Series]) -> Iterator[tuple[Series, str, float]]:
    """Yield each series with a factor that its program is laddered over, and its value."""
    for one in series:
        for factor in one.row.program.get("over", []):
            value = one.row.factors.get(factor)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                yield one, factor, value


def _ladder(factor: str, group: list[tuple[float, Series, Point]]) -> FactorLadder:
    group.sort(key=lambda rung: rung[0])
    smallest, series, base = group[0]
    others = (Rung(value, p, *gained(p, base, value / smallest)) for value, _, p in group[1:])
    rungs = (Rung(smallest, base), *others)
    return FactorLadder(factor, _label(series, factor), base.world_size, series, rungs)


def _label(series: Series, factor: str) -> str:
    """Return the program with the factors that a ladder over one of them keeps."""
    fixed = [f"{name}={value}" for name, value in series.row.factors.items() if name != factor]
    return ", ".join([series.row.workload, *fixed, *filter(None, [series.layout])])
