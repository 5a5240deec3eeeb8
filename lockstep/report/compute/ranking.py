"""Which values of the factors are best: cases that differ in nothing else, by their throughput."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import CONFIDENCE, Interval, ratio_interval

# A collective's work is its bytes, so its cases at several sizes do not compete.
WITHOUT_RANKING = ("collective",)


@dataclass(frozen=True)
class Place:
    """One setting in a ranking.

    Attributes:
        kind: `best`: of the highest throughput; `slower`: its interval lies below the best's;
            `not_told_apart`: it does not, or too few launches say so.
        factors: Factor -> value.
        rate: Median over launches, in samples per second.
        ratio: Of its rate to the best's.
        interval: Of that ratio, over launches; of the best, of its rate.
    """

    kind: Literal["best", "slower", "not_told_apart"]
    factors: dict[str, object]
    rate: float
    ratio: float
    interval: Interval | None


@dataclass(frozen=True)
class Ranking:
    """The settings of one question, the best first.

    Attributes:
        study: Whose cases they are.
        common: The factors in which the cases agree.
        world_size: The largest one, which is ranked.
        num_launches: The fewest that any of them has.
        unit: What a sample is.
        places: In order.
    """

    study: str
    common: dict[str, object]
    world_size: int
    num_launches: int
    unit: str
    places: tuple[Place, ...]


def rank(series: Sequence[Series], names: Collection[str]) -> list[Ranking]:
    """Return a ranking of each group of cases that differ in these factors alone.

    The best was picked among several, so the confidence of each comparison with it is that of all
    of them together (Bonferroni).
    """
    groups: dict[tuple[str, tuple[tuple[str, object], ...]], list[Series]] = {}
    for one in series:
        row = one.row
        own = {*names} & {*row.factors}
        if own and one.main is None and row.study not in WITHOUT_RANKING:
            rest = tuple((key, value) for key, value in row.factors.items() if key not in own)
            groups.setdefault((row.study, rest), []).append(one)
    return [_ranking(study, dict(rest), own, names) for (study, rest), own in groups.items()]


def _ranking(
    study: str, common: dict[str, object], group: Sequence[Series], names: Collection[str]
) -> Ranking:
    world_size = max(one.points[-1].world_size for one in group)
    points = [point for one in group for point in one.points if point.world_size == world_size]
    points.sort(key=lambda point: -point.rate)
    best, confidence = points[0], 1 - (1 - CONFIDENCE) / max(1, len(points) - 1)
    first = Place("best", _values(best, names), best.rate, 1.0, best.rate_interval)
    return Ranking(
        study,
        common,
        world_size,
        min(point.num_launches for point in points),
        best.rows[0].sample_unit or "samples",
        (first, *(_place(point, best, names, confidence) for point in points[1:])),
    )


def _place(point: Point, best: Point, names: Collection[str], confidence: float) -> Place:
    interval = ratio_interval(point.units, best.units, confidence)
    is_slower = interval is not None and interval[1] < 1
    kind: Literal["slower", "not_told_apart"] = "slower" if is_slower else "not_told_apart"
    return Place(kind, _values(point, names), point.rate, point.rate / best.rate, interval)


def _values(point: Point, names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in point.rows[0].factors.items() if name in names}
