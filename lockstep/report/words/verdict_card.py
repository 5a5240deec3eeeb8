"""What bounds the step of a campaign, as the card that a page and a command show."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.causes.bound import Bound
from lockstep.causes.card import NEXT, card
from lockstep.report.compute import attribution
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page.panels.parts import sound
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
        return card(self.bound, self._hosts)

    @property
    def measured(self) -> list[str]:
        """The card's lines without what to try next, for where that stands apart."""
        return card(self.bound, self._hosts, {})

    @property
    def advice(self) -> str:
        """What to try next; empty where no cause is shown."""
        return NEXT[self.bound.kind] if self.bound.named else ""

    @property
    def _hosts(self) -> Sequence[str]:
        hosts = self.point.rows[0].rank_hosts
        return hosts if all(row.rank_hosts == hosts for row in self.point.rows) else ()


def judge(series: Sequence[Series], threshold: float) -> Judged | None:
    """Return what bounds the point that a campaign is about; None where no variants were timed.

    That is the smallest size whose efficiency is below the threshold, else the largest, of the
    strong series where there is one, else of the weak, else of the first. A series with an error of
    the check has no verdict, and none of this either.
    """
    order = {study: number for number, study in enumerate(STUDIES)}
    for one in sorted(sound(series), key=lambda each: order.get(each.row.study, len(order))):
        point = telling(one, threshold)
        if found := attribution.judged(one, point):
            return Judged(one, point, found)
    return None


def of_folder(folder: Path, threshold: float = GOOD_EFFICIENCY) -> Judged | None:
    """Return what bounds the step of the results in a folder; None where they do not say."""
    from lockstep.report.page.checked import series_in

    return judge(series_in(folder), threshold)


def telling(series: Series, threshold: float) -> Point:
    """Return the smallest size whose efficiency is below the threshold, else the largest."""
    below = (point for point in series.points if point.parallel_efficiency < threshold)
    return next(below, series.points[-1])
