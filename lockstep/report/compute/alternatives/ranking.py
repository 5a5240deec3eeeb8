"""Which values of the factors are best: cases that differ in nothing else, by their throughput."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.core.studies import WITHOUT_RANKING
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import CONFIDENCE, Interval, ratio_interval

# A collective's work is its bytes, so its cases at several sizes do not compete; a training's rate
# and seed are chosen for what is learned.


@dataclass(frozen=True)
class Place:
    """One setting in a ranking.

    Attributes:
        kind: `best`: of the highest throughput; `slower`: its interval lies below the best's;
            `not_shown_slower`: it does not, or too few launches say so; `same_buckets`: both made
            the same; `alone`: there is no other.
        rate: Median over launches, in samples per second.
        ratio: Of its rate to the best's.
        interval: Of that ratio, over launches; of the best, of its rate.
        memory_bytes: Peak of the rank that needs most; None where unknown.
    """

    kind: Literal["best", "slower", "not_shown_slower", "same_buckets", "alone"]
    factors: dict[str, object]
    rate: float
    ratio: float
    interval: Interval | None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Ranking:
    """The settings of one question, the best first.

    Attributes:
        world_size: The largest one, which is ranked.
        num_launches: The fewest that any of them has; 0 where none is ranked.
        num_flagged: How many of the ranked settings are flagged.
        is_one: Whether all made the same buckets, so that there is nothing to choose from.
        absent: Settings that have no point at this size, or one that the check forbids to compare.
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
    """Return a ranking of each group of cases that differ in these factors alone.

    Rates of two workloads, or of two units, are no contest: each has a ranking of its own. The best
    of k was picked by these very rates, so that any two of them may have been compared: the
    confidence of each comparison is that of all k (k - 1) / 2 together (Bonferroni).
    """
    groups: dict[tuple[object, ...], list[Series]] = {}
    for one in series:
        row = one.row
        own = {*names} & {*row.factors}
        if own and one.main is None and row.study not in WITHOUT_RANKING:
            rest = tuple((key, value) for key, value in row.factors.items() if key not in own)
            key = (row.study, row.workload, row.sample_unit, rest)
            groups.setdefault(key, []).append(one)
    return [_ranking(group, names) for group in groups.values()]


def _ranking(group: Sequence[Series], names: Collection[str]) -> Ranking:
    row = group[0].row
    world_size = max(one.points[-1].world_size for one in group)
    points: list[Point] = []
    absent: list[dict[str, object]] = []
    for one in group:
        last = one.points[-1]
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
    """Tell whether two settings of the bucket size made the same buckets."""
    made = [point.rows[0].details.get("bucket_bytes") for point in (one, other)]
    return one.rows[0].study == "bucket" and bool(made[0]) and made[0] == made[1]


def places(points: Sequence[Point], names: Collection[str]) -> tuple[Place, ...]:
    """Return the places of points that differ in these factors alone, the best first."""
    if not points:
        return ()
    best, *others = sorted(points, key=lambda point: -point.rate)
    comparisons = max(1, len(points) * (len(points) - 1) // 2)
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    kind: Literal["best", "alone"] = "best" if others else "alone"
    own = _values(best, names), best.rate, 1.0, best.rate_interval, best.peak_memory_bytes
    first = Place(kind, *own)
    return (first, *(_place(point, best, names, confidence) for point in others))


def _place(point: Point, best: Point, names: Collection[str], confidence: float) -> Place:
    interval = ratio_interval(point.units, best.units, confidence)
    is_slower = interval is not None and interval[1] < 1
    kind: Literal["slower", "not_shown_slower", "same_buckets"]
    kind = "slower" if is_slower else "not_shown_slower"
    if _are_alike(point, best):
        kind = "same_buckets"
    ratio = point.rate / best.rate
    memory_bytes = point.peak_memory_bytes
    return Place(kind, _values(point, names), point.rate, ratio, interval, memory_bytes)


def _values(point: Point, names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in point.rows[0].factors.items() if name in names}
