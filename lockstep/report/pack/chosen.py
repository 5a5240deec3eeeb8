"""What a pack is about: the ladders, the production point, and the job size that they speak for."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.studies import LADDERS
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.pack.planned_runs import Production

# Tables that two pages hold; the rest is in the numbers.
MAX_SERIES = 2


@dataclass(frozen=True)
class JobSize:
    """The largest size that strong scaling speaks for, and the largest that weak scaling does.

    Attributes:
        strong: The largest point of the strong series that is shown to reach the threshold.
        weak: The largest such point of the weak series beyond it, or None.
    """

    strong: Point | None
    weak: Point | None


@dataclass(frozen=True)
class Agreement:
    """A step that both ladders measured: the same work on the same ranks.

    Attributes:
        ratio: The strong ladder's step time over the weak one's.
    """

    world_size: int
    ratio: float


@dataclass(frozen=True)
class Chosen:
    """What the text is about.

    Attributes:
        strong: Series of strong scaling, at most two; that of the production point is one.
        is_given: Whether the user named it; else it follows from the job size.
    """

    strong: tuple[Series, ...]
    weak: tuple[Series, ...]
    num_others: int
    series: Series
    production: Point
    is_given: bool
    job_size: JobSize
    agreements: tuple[Agreement, ...]

    @property
    def shown(self) -> list[Series]:
        """The series in the tables."""
        return [*self.strong, *self.weak]

    @property
    def points(self) -> list[Point]:
        """The points in the tables."""
        return [point for one in self.shown for point in one.points]


def choose(series: Sequence[Series], wanted: Production | None, threshold: float) -> Chosen:
    """Return what the pack is about.

    Raises:
        ValueError: Neither strong nor weak scaling was measured, or not the production point.
    """
    ladders = {study: _ladders(series, study) for study in LADDERS}
    if not any(ladders.values()):
        raise ValueError(
            "no strong or weak scaling was measured in these results, and a proposal rests on it; "
            "measure the studies strong and weak"
        )
    named = _named(ladders[wanted.study], wanted) if wanted else None
    strong, weak = (_shown(own, named and named[0]) for own in ladders.values())
    size = _job_size(strong, weak, threshold)
    if named is None:
        first = (strong or weak)[0]
        point = size.strong or (size.weak if not strong else None) or first.base
    else:
        first, point = named
    others = sum(map(len, ladders.values())) - len(strong) - len(weak)
    return Chosen(
        strong, weak, others, first, point, wanted is not None, size, _agreements(strong, weak)
    )


def _ladders(series: Sequence[Series], study: str) -> list[Series]:
    measured = [s for s in series if s.row.origin == "measured" and s.row.study == study]
    # The longest first, since that is what was asked; another layout is no ladder of its own.
    return sorted((s for s in measured if s.main is None), key=lambda one: -len(one.points))


def _shown(ladders: Sequence[Series], production: Series | None) -> tuple[Series, ...]:
    """Return the longest ladders, the last of them for the one that production is of."""
    longest, others = ladders[:MAX_SERIES], ladders[MAX_SERIES:]
    if any(one is production for one in others):
        return (*longest[:-1], *(one for one in others if one is production))
    return tuple(longest)


def _named(ladders: Sequence[Series], wanted: Production) -> tuple[Series, Point]:
    for one in ladders:
        for point in one.points:
            if point.world_size == wanted.world_size:
                return one, point
    known = sorted({point.world_size for one in ladders for point in one.points})
    raise ValueError(
        f"the production point, {wanted.study} at {wanted.world_size} ranks, was not measured; "
        f"measured sizes are {known}"
    )


def _job_size(strong: Sequence[Series], weak: Sequence[Series], threshold: float) -> JobSize:
    first = _largest(strong[0], threshold) if strong else None
    beyond = _largest(weak[0], threshold) if weak else None
    if first and beyond and beyond.world_size <= first.world_size:
        beyond = None
    return JobSize(first, beyond)


def _largest(series: Series, threshold: float) -> Point | None:
    """Return the largest size above the baseline that is good, and no error forbids to say so."""
    good = [point for point in series.good(threshold) if not point.blocked_by]
    return good[-1] if good else None


def _agreements(strong: Sequence[Series], weak: Sequence[Series]) -> tuple[Agreement, ...]:
    """Compare the points that both ladders have: one step, measured twice."""
    steps = {_work(p): p.step_s for one in weak for p in one.points if p.step_s}
    found = {
        point.world_size: point.step_s / steps[_work(point)]
        for one in strong for point in one.points
        if point.step_s and _work(point) in steps
    }  # fmt: skip
    return tuple(Agreement(size, ratio) for size, ratio in found.items())


def _work(point: Point) -> tuple[object, ...]:
    row = point.rows[0]
    return (point.world_size, row.num_nodes, row.workload, row.precision, row.local_batch,
            row.global_batch)  # fmt: skip
