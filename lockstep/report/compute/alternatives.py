"""Settings that may be compared, since all but one factor agree: ladders, rankings."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lockstep.core.studies import BUCKETS, STUDIES, WITHOUT_RANKING
from lockstep.report.compute.scaling import Point, Series, compute_gain
from lockstep.report.compute.statistics import CONFIDENCE, Interval, is_below_one, ratio_interval

# Default values of factors that make a case the reference.
USUAL = {
    "strategy": "ddp", "activation_checkpointing": False, "accumulation": 1, "optimizer": "sgd",
    "fused": False,
}  # fmt: skip

Cases = list[tuple[Series, Point]]
# Workload, world size, and the factors and layout that are not varied.
Key = tuple[str, int, str]


def groups(study: str, series: Sequence[Series]) -> list[tuple[Key, Cases]]:
    """Group points that may be compared: same workload, size, layout and other factors."""
    points: dict[Key, Cases] = {}
    known = STUDIES.get(study)
    kept = known.compared_with[0] if known and known.varies_one and known.compared_with else None
    for curve in series:
        factors = curve.row.factors.items() if kept else ()
        others = str(sorted((k, str(v)) for k, v in factors if k != kept)) if kept else ""
        for point in curve.points:
            key = curve.row.workload, point.world_size, others + curve.layout
            points.setdefault(key, []).append((curve, point))
    return sorted(points.items(), key=lambda item: item[0][:2])


def reference(study: str, cases: Cases) -> int:
    """Return the index of the reference case: the case with the most default factors."""
    known = STUDIES.get(study)
    usual = USUAL | dict([known.compared_with] if known and known.compared_with else [])

    def merit(index: int) -> int:
        factors = cases[index][0].row.factors
        return sum(name in factors and factors[name] == usual[name] for name in usual)

    return max(range(len(cases)), key=merit)


def references(
    study: str, sequence: Sequence[tuple[Key, Cases]]
) -> list[tuple[Series, Point] | None]:
    """Return the reference case of each group: the same setting at every size, None if missing.

    A user's own test has no default setting, so its reference is the quickest of each group.
    """
    every: dict[tuple[str, str], Cases] = {}
    for (workload, _, others), cases in sequence:
        every.setdefault((workload, others), []).extend(cases)
    chosen = {key: cases[reference(study, cases)][0] for key, cases in every.items()}
    return [
        max(cases, key=lambda case: case[1].rate)
        if cases[0][0].row.is_own_test
        else next((case for case in cases if case[0] is chosen[workload, others]), None)
        for (workload, _, others), cases in sequence
    ]


def drop_blocked(sequence: Sequence[tuple[Key, Cases]]) -> list[tuple[Key, Cases]]:
    """Return the groups without points that the check blocks."""
    kept = [(key, [case for case in cases if not case[1].blocked_by]) for key, cases in sequence]
    return [(key, cases) for key, cases in kept if cases]


def find_varied(cases: Cases) -> list[str]:
    """Return the factors that take more than one value among the cases."""
    names = list(dict.fromkeys(name for curve, _ in cases for name in curve.row.factors))
    return [n for n in names if len({str(curve.row.factors.get(n)) for curve, _ in cases}) > 1]


def independent(names: Sequence[str], cases: Cases) -> list[str]:
    """Return the factors whose values do not follow from those of an earlier factor."""
    kept: list[str] = []
    for name in names:
        values = [str(curve.row.factors.get(name)) for curve, _ in cases]
        befores = [[str(curve.row.factors.get(other)) for curve, _ in cases] for other in kept]
        if not any(len(set(zip(b, values, strict=True))) == len(set(b)) for b in befores):
            kept.append(name)
    return kept


@dataclass(frozen=True)
class FactorLadder:
    """A program over one factor such as threads; all other factors and the layout are equal.

    Attributes:
        label: The program, and the fixed factors.
        series: The series of the smallest value.
        points: A point for each value, the smallest first. Ratios are to the first point, and an
            error of the check about either point blocks them.
    """

    factor: str
    label: str
    world_size: int
    series: Series
    points: list[Point]

    @property
    def base(self) -> Point:
        """The point of the smallest value."""
        return self.points[0]

    def value(self, point: Point) -> float:
        """Return the factor's value at a point."""
        value: float = point.rows[0].factors[self.factor]
        return value

    @property
    def is_blocked(self) -> bool:
        """Whether an error of the check blocks a verdict."""
        return any(point.blocked_by for point in self.points)


def factor_ladders(series: Sequence[Series]) -> list[FactorLadder]:
    """Return the ladders over the factors that programs name in `over`, of two or more values."""
    groups: dict[tuple[str, Any, Any, str, int], list[tuple[float, Series, Point]]] = {}
    for curve, factor, value in _named(series):
        rest = tuple((name, str(v)) for name, v in curve.row.factors.items() if name != factor)
        for point in curve.points:
            key = (factor, curve.row.workload, rest, curve.layout, point.world_size)
            groups.setdefault(key, []).append((value, curve, point))
    ladders = []
    for (factor, *_, world_size), group in groups.items():
        (smallest, curve, base), *others = sorted(group, key=lambda rung: rung[0])
        alone: dict[str, Any] = {"speedup": 1.0, "parallel_efficiency": 1.0}
        alone |= {"speedup_interval": None, "efficiency_interval": None}
        points = [replace(base, **alone)]
        for value, _, point in others:
            gain = compute_gain(point.rate, point.units, base, value / smallest)
            blocked_by = [*point.blocked_by, *base.blocked_by]
            points.append(replace(point, blocked_by=blocked_by, **gain))
        if others:
            ladders.append(FactorLadder(factor, _label(curve, factor), world_size, curve, points))
    return ladders


def drop_laddered(series: Sequence[Series]) -> list[Series]:
    """Return the series that no factor ladder covers."""
    laddered = {(ladder.factor, ladder.label) for ladder in factor_ladders(series)}
    return [
        curve
        for curve in series
        if len(curve.points) > 1
        or not any((factor, _label(curve, factor)) in laddered for _, factor, _ in _named([curve]))
    ]


def _named(series: Sequence[Series]) -> Iterator[tuple[Series, str, float]]:
    """Yield each series with each factor of its program's `over`, and the factor's value."""
    for curve in series:
        for factor in curve.row.program.get("over", []):
            value = curve.row.factors.get(factor)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                yield curve, factor, value


def _label(series: Series, factor: str) -> str:
    fixed = [f"{name}={value}" for name, value in series.row.factors.items() if name != factor]
    return ", ".join([series.row.workload, *fixed, *filter(None, [series.layout])])


@dataclass(frozen=True)
class Replaced:
    """The speed-up of one device over the slowest kind of device, at the same work."""

    slowest: Series
    other: Series
    speedup: float


def compare_devices(series: Iterable[Series]) -> list[Replaced]:
    """Return the speed-up of each kind of device over the slowest one at the same work.

    Work is the same if tables agree in source, workload, precision, batch and samples.
    """
    groups: dict[tuple[object, ...], list[Series]] = {}
    for curve in series:
        row, time_s = curve.base.rows[0], curve.base.time_s
        source, rate = row.details.get("locator"), row.throughput_samples_per_s
        is_one = row.origin != "measured" and curve.baseline == 1 and kind_of_device(curve)
        if is_one and source and rate and time_s:
            batch, samples = row.global_batch, round(rate * time_s)
            work = row.origin, source, row.workload, row.precision, batch, samples
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
    return str(series.base.rows[0].details.get("accelerator", ""))


PlaceKind = Literal["best", "slower", "not_shown_slower", "too_noisy", "same_buckets", "alone"]
# Whether a setting is shown to be slower than the best -> its kind.
KINDS: dict[bool | None, PlaceKind] = {True: "slower", False: "not_shown_slower", None: "too_noisy"}


@dataclass(frozen=True)
class Place:
    """One setting in a ranking.

    Attributes:
        kind: `slower`: the ratio's interval is below 1; `not_shown_slower`: it contains 1;
            `too_noisy`: it contains 1 and is wide, or there is none; `same_buckets`: buckets equal
            the best's; `alone`: there is no other setting.
        ratio: Rate / rate of the best.
        interval: Interval of the ratio; None for the best.
    """

    kind: PlaceKind
    factors: dict[str, object]
    point: Point
    ratio: float = 1.0
    interval: Interval | None = None


@dataclass(frozen=True)
class Ranking:
    """Settings by throughput at one world size, the best first.

    Attributes:
        smaller: The rankings at smaller sizes with several settings, the largest size first.
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
    smaller: "tuple[Ranking, ...]" = ()


def rank(series: Sequence[Series], names: Collection[str]) -> list[Ranking]:
    """Return a ranking of each group of cases that differ only in these factors.

    It is at the group's largest world size, and holds those at smaller sizes.
    """
    groups: dict[tuple[object, ...], list[Series]] = {}
    for curve in series:
        row = curve.row
        own = {*names} & {*row.factors}
        if own and curve.main is None and row.study not in WITHOUT_RANKING:
            rest = tuple((key, value) for key, value in row.factors.items() if key not in own)
            key = (row.study, row.workload, row.sample_unit, rest)
            groups.setdefault(key, []).append(curve)
    rankings = []
    for group in groups.values():
        sizes = sorted({p.world_size for curve in group for p in curve.points}, reverse=True)
        largest, *smaller = (_rank_at(size, group, names) for size in sizes)
        smaller = [ranking for ranking in smaller if len(ranking.places) > 1]
        rankings.append(replace(largest, smaller=tuple(smaller)))
    return rankings


def _rank_at(world_size: int, group: Sequence[Series], names: Collection[str]) -> Ranking:
    row, absent = group[0].row, list[dict[str, object]]()
    points: list[Point] = []
    for curve in group:
        here = [p for p in curve.points if p.world_size == world_size and not p.blocked_by]
        points += here
        absent += [] if here else [_values(curve.points[0], names)]
    return Ranking(
        row.study, row.workload,
        {name: value for name, value in row.factors.items() if name not in names},
        world_size,
        num_launches=min((point.num_launches for point in points), default=0),
        num_flagged=sum(bool(point.flags) for point in points),
        is_one=len(points) > 1 and all(_are_alike(point, points[0]) for point in points),
        unit=row.sample_unit or "samples", places=places(points, names), absent=tuple(absent),
    )  # fmt: skip


def _are_alike(point: Point, other: Point) -> bool:
    """Tell whether two settings of the bucket size gave the same buckets."""
    first, second = (each.rows[0].details.get("bucket_bytes") for each in (point, other))
    return point.rows[0].study in BUCKETS and bool(first) and first == second


def _values(point: Point, names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in point.rows[0].factors.items() if name in names}


def places(points: Sequence[Point], names: Collection[str]) -> tuple[Place, ...]:
    """Return the places of points that differ only in these factors, the best first.

    The best of k settings is chosen from the same rates, so each interval is corrected for all
    k (k - 1) / 2 pairs (Bonferroni).
    """
    if not points:
        return ()
    best, *others = sorted(points, key=lambda point: -point.rate)
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(points) * (len(points) - 1) // 2)
    ranked = [Place("best" if others else "alone", _values(best, names), best)]
    for point in others:
        interval = ratio_interval(point.units, best.units, confidence)
        kind = "same_buckets" if _are_alike(point, best) else KINDS[is_below_one(interval)]
        ratio = point.rate / best.rate
        ranked.append(Place(kind, _values(point, names), point, ratio, interval))
    return tuple(ranked)


def equal_buckets(series: Sequence[Series]) -> list[tuple[str, list[str], list[int]]]:
    """Return (workload, values of bucket_cap_mb, world sizes) of settings with equal buckets."""
    equal: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for (workload, world_size, _), cases in groups(series[0].row.study, series) if series else ():
        same: dict[str, list[str]] = {}
        for curve, point in cases:
            if real := point.rows[0].details.get("bucket_bytes"):
                same.setdefault(str(real), []).append(str(curve.row.factors.get("bucket_cap_mb")))
        for caps in same.values():
            if len(caps) > 1:
                equal.setdefault((workload, tuple(caps)), []).append(world_size)
    return [(workload, list(caps), sizes) for (workload, caps), sizes in equal.items()]
