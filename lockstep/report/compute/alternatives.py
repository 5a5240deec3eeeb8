"""Settings that may be compared: cases of one workload, size and layout that differ in a factor.

Speed-up and efficiency of a program over one of its factors, such as threads.

With X(v) the rate of work at the value v of a factor, and v0 the smallest value measured:

    speedup(v)    = X(v) / X(v0)
    efficiency(v) = speedup(v) / (v / v0)

All else is equal within a ladder: the other factors, the world size and the layout.

The same work on one device of several kinds, as one source gives it: a CPU, then a GPU.

Speed-up and efficiency count devices of one kind. Between two kinds there is a ratio alone, of the
rates that one of each has, where all else that the table says of the work agrees.

Which values of the factors are best: cases that differ in nothing else, by their throughput.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lockstep.core.studies import STUDIES, WITHOUT_RANKING
from lockstep.report.compute.scaling import Point, Series, gained
from lockstep.report.compute.statistics import CONFIDENCE, Interval, ratio_interval

# Default values of factors.
USUAL = {"strategy": "ddp", "activation_checkpointing": False, "accumulation": 1}

Cases = list[tuple[Series, Point]]
# Workload, world size, and the factors and layout that are not varied.
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Cell:
    """A setting at one world size, compared with the reference setting at that size.

    Attributes:
        ratio: Throughput / throughput of the reference.
        interval: 95 % interval of the ratio; None without repeats and for the reference itself.
    """

    ratio: float
    interval: Interval | None

    @property
    def is_shown(self) -> bool:
        """Tell whether the interval excludes 1."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]


@dataclass(frozen=True)
class Grid:
    """Settings over world sizes, each compared with the reference at its size.

    Attributes:
        series: One of the series, for facts that all share.
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
    points: dict[Key, Cases] = {}
    for curve in series:
        others = ""
        if (known := STUDIES.get(study)) and known.varies_one and known.compared_with:
            kept = known.compared_with[0]
            others = str(sorted((k, str(v)) for k, v in curve.row.factors.items() if k != kept))
        others += curve.layout
        for point in curve.points:
            points.setdefault((curve.row.workload, point.world_size, others), []).append(
                (curve, point)
            )
    return sorted(points.items(), key=lambda item: item[0][:2])


def reference(study: str, cases: Cases) -> int:
    """Return the index of the reference case: the one with most default factors."""
    known = STUDIES.get(study)
    usual = USUAL | dict([known.compared_with] if known and known.compared_with else [])

    def merit(index: int) -> int:
        factors = cases[index][0].row.factors
        return sum(name in factors and factors[name] == usual[name] for name in usual)

    return max(range(len(cases)), key=merit)


def references(
    study: str, sequence: Sequence[tuple[Key, Cases]]
) -> list[tuple[Series, Point] | None]:
    """Return the reference case of each group: the same setting at every size.

    It is None if that setting was not measured at the size, since ratios to different settings
    are not comparable.
    """
    every: dict[tuple[str, str], Cases] = {}
    for (workload, _, others), cases in sequence:
        every.setdefault((workload, others), []).extend(cases)
    chosen = {key: cases[reference(study, cases)][0] for key, cases in every.items()}
    return [
        next((case for case in cases if case[0] is chosen[workload, others]), None)
        for (workload, _, others), cases in sequence
    ]


def without_blocked(sequence: Sequence[tuple[Key, Cases]]) -> list[tuple[Key, Cases]]:
    """Return the groups without points that errors of the check block."""
    kept = [(key, [case for case in cases if not case[1].blocked_by]) for key, cases in sequence]
    return [(key, cases) for key, cases in kept if cases]


def varied(cases: Cases) -> list[str]:
    """Return the factors that take more than one value among the cases."""
    names = list(dict.fromkeys(name for curve, _ in cases for name in curve.row.factors))
    return [n for n in names if len({str(curve.row.factors.get(n)) for curve, _ in cases}) > 1]


def independent(names: Sequence[str], cases: Cases) -> list[str]:
    """Return the factors that no factor before them already determines."""
    kept: list[str] = []
    for name in names:
        values = [str(curve.row.factors.get(name)) for curve, _ in cases]
        befores = [[str(curve.row.factors.get(other)) for curve, _ in cases] for other in kept]
        if not any(len(set(zip(b, values, strict=True))) == len(set(b)) for b in befores):
            kept.append(name)
    return kept


def grids(study: str, sequence: Sequence[tuple[Key, Cases]]) -> list[Grid]:
    """Return one grid for the groups that differ only in world size."""
    joined: dict[tuple[str, str], list[tuple[Key, Cases]]] = {}
    for key, cases in sequence:
        if len(cases) > 1:
            joined.setdefault((key[0], key[2]), []).append((key, cases))
    return [_grid(study, sizes) for sizes in joined.values()]


def _grid(study: str, sizes: list[tuple[Key, Cases]]) -> Grid:
    every = [case for _, cases in sizes for case in cases]
    names = independent(varied(every), every)

    def values(curve: Series) -> tuple[str, ...]:
        return tuple(str(curve.row.factors.get(name)) for name in names) or (curve.label,)

    cells: dict[tuple[str, ...], dict[int, Cell]] = {}
    for ((_, world_size, _), cases), base in zip(sizes, references(study, sizes), strict=True):
        for curve, point in cases:
            row = cells.setdefault(values(curve), {})
            if base and not (point.blocked_by or base[1].blocked_by):
                is_base = point is base[1]
                between = None if is_base else ratio_interval(point.units, base[1].units)
                row[world_size] = Cell(point.rate / base[1].rate, between)
    named = values(every[reference(study, every)][0])
    return Grid(every[0][0], names, [size for (_, size, _), _ in sizes], cells, named)


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
        """Return the rung of the smallest value, with which the others are compared."""
        return self.rungs[0]

    @property
    def is_blocked(self) -> bool:
        """Tell whether an error of the check blocks a verdict."""
        return any(rung.point.blocked_by for rung in self.rungs)


def factor_ladders(series: Sequence[Series]) -> list[FactorLadder]:
    """Return the ladders of two values or more over the factors that programs name for it."""
    groups: dict[tuple[str, Any, Any, str, int], list[tuple[float, Series, Point]]] = {}
    for curve, factor, value in _named(series):
        rest = tuple((name, str(v)) for name, v in curve.row.factors.items() if name != factor)
        for point in curve.points:
            key = (factor, curve.row.workload, rest, curve.layout, point.world_size)
            groups.setdefault(key, []).append((value, curve, point))
    ladders = []
    for (factor, *_), group in groups.items():
        (smallest, curve, base), *others = sorted(group, key=lambda rung: rung[0])
        rungs = (Rung(v, point, *gained(point, base, v / smallest)) for v, _, point in others)
        if others:
            label = _label(curve, factor)
            whole = (Rung(smallest, base), *rungs)
            ladders.append(FactorLadder(factor, label, base.world_size, curve, whole))
    return ladders


def without_laddered(series: Sequence[Series]) -> list[Series]:
    """Return the series that factor ladders do not cover: over ranks, or of no ladder."""
    laddered = {(ladder.factor, ladder.label) for ladder in factor_ladders(series)}
    return [
        curve
        for curve in series
        if len(curve.points) > 1
        or not any((factor, _label(curve, factor)) in laddered for _, factor, _ in _named([curve]))
    ]


def _named(series: Sequence[Series]) -> Iterator[tuple[Series, str, float]]:
    """Yield each series with each factor that its program is measured over, and its value."""
    for curve in series:
        for factor in curve.row.program.get("over", []):
            value = curve.row.factors.get(factor)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                yield curve, factor, value


def _label(series: Series, factor: str) -> str:
    """Return the label of a ladder over a factor: the program and the fixed factors."""
    fixed = [f"{name}={value}" for name, value in series.row.factors.items() if name != factor]
    return ", ".join([series.row.workload, *fixed, *filter(None, [series.layout])])


KIND_OF_DEVICE = "accelerator"
SOURCE = "locator"


@dataclass(frozen=True)
class Replaced:
    """A run on the slowest device, and the same work on another kind of device."""

    slowest: Series
    other: Series
    speedup: float


def replaced(series: Iterable[Series]) -> list[Replaced]:
    """Return the speed-up of each kind of device over the slowest one at the same work."""
    groups: dict[tuple[object, ...], list[Series]] = {}
    for curve in series:
        if work := _work(curve):
            groups.setdefault(work, []).append(curve)
    replacements = []
    for group in groups.values():
        slowest = min(group, key=lambda curve: curve.base.rate)
        replacements += [
            Replaced(slowest, other, other.base.rate / slowest.base.rate)
            for other in group
            if kind_of_device(other) != kind_of_device(slowest)
        ]
    return replacements


def kind_of_device(series: Series) -> str:
    """Return the name of a table's device; empty if the table has none."""
    return str(series.base.rows[0].details.get(KIND_OF_DEVICE, ""))


def _work(series: Series) -> tuple[object, ...]:
    """Return the work of one device and its source; empty if either is unknown."""
    row, time_s = series.base.rows[0], series.base.time_s
    source, through = row.details.get(SOURCE), row.throughput_samples_per_s
    if row.origin == "measured" or series.baseline != 1 or not kind_of_device(series):
        return ()
    if not (source and through and time_s):
        return ()
    samples = round(through * time_s)
    return row.origin, source, row.workload, row.precision, row.global_batch, samples


PlaceKind = Literal["best", "slower", "not_shown_slower", "same_buckets", "alone"]


@dataclass(frozen=True)
class Place:
    """One setting in a ranking.

    Attributes:
        kind: `best`: highest throughput; `slower`: the interval of the ratio is below 1;
            `not_shown_slower`: it is not, or there are too few launches; `same_buckets`: equal
            buckets to the best's; `alone`: there is no other setting.
        rate: Median over launches, in samples per second.
        ratio: Rate / rate of the best.
        interval: Interval of the ratio over launches; for the best, of its rate.
        memory_bytes: Peak of the rank that needs most; None where unknown.
    """

    kind: PlaceKind
    factors: dict[str, object]
    rate: float
    ratio: float
    interval: Interval | None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Ranking:
    """The settings of one question, the best first.

    Attributes:
        world_size: The largest world size, at which settings are ranked.
        num_launches: Smallest number of launches of a setting; 0 if none is ranked.
        num_flagged: Number of ranked settings with flags.
        is_one: Whether all settings gave the same buckets, so that there is no choice.
        absent: Settings without a point at this size, or blocked by the check.
    """

    study: str
    workload: str
    common: dict[str, object]
    world_size: int
    num_launches: int
    num_flagged: int
    is_one: bool
    unit: str
    places: tuple[Place, ...]
    absent: tuple[dict[str, object], ...] = ()


def rank(series: Sequence[Series], names: Collection[str]) -> list[Ranking]:
    """Return a ranking of each group of cases that differ only in these factors.

    Each workload and unit has its own ranking. Since the best of k settings is chosen by the same
    rates, each comparison is corrected for all k (k - 1) / 2 pairs (Bonferroni).
    """
    groups: dict[tuple[object, ...], list[Series]] = {}
    for curve in series:
        row = curve.row
        own = {*names} & {*row.factors}
        if own and curve.main is None and row.study not in WITHOUT_RANKING:
            rest = tuple((key, value) for key, value in row.factors.items() if key not in own)
            key = (row.study, row.workload, row.sample_unit, rest)
            groups.setdefault(key, []).append(curve)
    return [_ranking(group, names) for group in groups.values()]


def _ranking(group: Sequence[Series], names: Collection[str]) -> Ranking:
    row = group[0].row
    world_size = max(curve.points[-1].world_size for curve in group)
    points: list[Point] = []
    absent: list[dict[str, object]] = []
    for last in (curve.points[-1] for curve in group):
        if last.world_size == world_size and not last.blocked_by:
            points.append(last)
        else:
            absent.append(_values(last, names))
    return Ranking(
        row.study,
        row.workload,
        {name: value for name, value in row.factors.items() if name not in names},
        world_size,
        min((point.num_launches for point in points), default=0),
        sum(bool(point.flags) for point in points),
        len(points) > 1 and all(_are_alike(point, points[0]) for point in points),
        row.sample_unit or "samples",
        places(points, names),
        tuple(absent),
    )


def _are_alike(one: Point, other: Point) -> bool:
    """Tell whether two settings of the bucket size gave the same buckets."""
    made = [point.rows[0].details.get("bucket_bytes") for point in (one, other)]
    return one.rows[0].study == "bucket" and bool(made[0]) and made[0] == made[1]


def _values(point: Point, names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in point.rows[0].factors.items() if name in names}


def places(points: Sequence[Point], names: Collection[str]) -> tuple[Place, ...]:
    """Return the places of points that differ only in these factors, the best first."""
    if not points:
        return ()
    best, *others = sorted(points, key=lambda point: -point.rate)
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(points) * (len(points) - 1) // 2)
    kind: PlaceKind = "best" if others else "alone"
    own = _values(best, names), best.rate, 1.0, best.rate_interval, best.peak_memory_bytes
    ranked = [Place(kind, *own)]
    for point in others:
        interval = ratio_interval(point.units, best.units, confidence)
        kind = "slower" if interval and interval[1] < 1 else "not_shown_slower"
        kind = "same_buckets" if _are_alike(point, best) else kind
        ratio, memory_bytes = point.rate / best.rate, point.peak_memory_bytes
        ranked.append(Place(kind, _values(point, names), point.rate, ratio, interval, memory_bytes))
    return tuple(ranked)


def equal_buckets(series: Sequence[Series]) -> list[tuple[str, list[str], list[int]]]:
    """Return settings with equal buckets: (workload, values of bucket_cap_mb, world sizes)."""
    equal: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for (workload, world_size, _), cases in groups("bucket", series):
        same: dict[str, list[str]] = {}
        for curve, point in cases:
            real = point.rows[0].details.get("bucket_bytes")
            if real:
                same.setdefault(str(real), []).append(str(curve.row.factors.get("bucket_cap_mb")))
        for caps in same.values():
            if len(caps) > 1:
                equal.setdefault((workload, tuple(caps)), []).append(world_size)
    return [(workload, list(caps), sizes) for (workload, caps), sizes in equal.items()]
