"""What bounds the step of a campaign, as the card that a page and a command show."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.causes.bound import Bound
from lockstep.causes.card import card
from lockstep.report.compute import attribution
from lockstep.report.compute.scaling import Point, Series
from lockstep.vocabulary.metrics import GOOD_EFFICIENCY

# The first of these that was measured is what a card is of.
STUDIES = ("strong", "weak")


@dataclass(frozen=True)
class Judged:
    """A point and what bounds its step."""

    series: Series
    point: Point
    bound: Bound

    @property
    def title(self) -> str:
        """Which point it is of."""
        ranks = "rank" if self.point.world_size == 1 else "ranks"
        return f"{self.series.label} on {self.point.world_size} {ranks}"

    @property
    def lines(self) -> list[str]:
        """The card's lines."""
        hosts = self.point.rows[0].rank_hosts
        known = hosts if all(row.rank_hosts == hosts for row in self.point.rows) else ()
        return card(self.bound, known)


def judge(series: Sequence[Series], threshold: float) -> Judged | None:
    """Return what bounds the point that a campaign is about; None where no variants were timed.

    That is the smallest size whose efficiency is below the threshold, else the largest, of the
    strong series where there is one, else of the weak, else of the first.
    """
    order = {study: number for number, study in enumerate(STUDIES)}
    for one in sorted(series, key=lambda each: order.get(each.row.study, len(order))):
        point = _telling(one, threshold)
        if found := attribution.judged(one, point):
            return Judged(one, point, found)
    return None


def of_folder(folder: Path, threshold: float = GOOD_EFFICIENCY) -> Judged | None:
    """Return what bounds the step of the results in a folder; None where they do not say."""
    from lockstep.report.compute.scaling import series_of
    from lockstep.report.load.reading import load

    kept, _ = load([folder]).split()
    return judge(series_of(kept), threshold)


def _telling(series: Series, threshold: float) -> Point:
    below = (
        point
        for point in series.points
        if point.parallel_efficiency is not None and point.parallel_efficiency < threshold
    )
    return next(below, series.points[-1])
