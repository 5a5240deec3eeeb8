"""What bounds the step of a campaign, as the card that a page and a command show."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from lockstep.core.studies import LADDERS
from lockstep.measure.causes.bound import Bound, Kind
from lockstep.measure.causes.card import NEXT_OWN, card, headline, late_text, next_text, next_with
from lockstep.report.compute import quantities, slow
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page import losses
from lockstep.report.page.parts import sound

# The first of these that was measured is what a card is of.
# Tests of one's own are steps of their own: so many are judged, and so many are printed in full.
MOST_JUDGED, MOST_CARDS = 20, 4


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
        return card(self.bound, self._hosts, self._todo, self._slowest, self._latest)

    @property
    def measured(self) -> list[str]:
        """The card's lines without what to try next, for where that is shown apart."""
        return card(self.bound, self._hosts, {}, self._slowest, self._latest)

    @property
    def advice(self) -> str:
        """What to try next; empty where no cause is shown."""
        text = next_text(self.bound.kind, self._todo, self._latest)
        return text if self.bound.named else ""

    @property
    def is_own(self) -> bool:
        """Whether the step is that of a test of one's own."""
        return self.series.row.is_own_test

    @property
    def lost_share(self) -> float:
        """Share of the step that the largest cause shown takes; 0 without one."""
        return max((share.seconds for share in self.bound.named), default=0.0) / self.bound.step_s

    @property
    def _todo(self) -> Mapping[Kind, str]:
        return NEXT_OWN if self.is_own else next_with(self.series.row.workload)

    @property
    def _slowest(self) -> str:
        slowest = slow.slowest(self.point.rows) if self.bound.num_launches > 1 else None
        return losses.slow_text(slowest) if slowest else ""

    @property
    def _latest(self) -> str:
        found = slow.latest(self.point.rows)
        return late_text(*found) if found else ""

    @property
    def _hosts(self) -> Sequence[str]:
        hosts = self.point.rows[0].rank_hosts
        return hosts if all(row.rank_hosts == hosts for row in self.point.rows) else ()


def judge(series: Sequence[Series], threshold: float) -> Judged | None:
    """Return what bounds the point that a campaign is about; None where no variants were timed."""
    return next(iter(judge_all(series, threshold)), None)


def judge_all(series: Sequence[Series], threshold: float) -> list[Judged]:
    """Return what bounds the point that a campaign is about; of one's own tests, that of each.

    That is the smallest size whose efficiency is below the threshold, else the largest, of the
    strong series where there is one, else of the weak, else of the quickest setting. Of one's own
    tests the one that scales worst is the first. A series with an error of the check has no
    verdict, and none of this either.
    """
    found = _judged(series, threshold)
    first = next(found, None)
    if first is None or not first.is_own:
        return [first] if first else []
    own = [first, *(judged for judged in islice(found, MOST_JUDGED - 1) if judged.is_own)]
    # As the headlines, so that the page is about one test.
    return sorted(
        own, key=lambda judged: (judged.series.points[-1].parallel_efficiency, -judged.lost_share)
    )


def printed(series: Sequence[Series], threshold: float, *, has_next: bool = True) -> list[str]:
    """Return the cards as lines; of more than a few tests of one's own the headline alone."""
    cards = judge_all(series, threshold)
    lines = []
    for judged in cards[:MOST_CARDS]:
        lines += ["", f"{judged.title}:", *(judged.lines if has_next else judged.measured)]
    further = [f"{one.title}: {headline(one.bound)}" for one in cards[MOST_CARDS:]]
    return [*lines, *[""] * bool(further), *further]


def _judged(series: Sequence[Series], threshold: float) -> Iterator[Judged]:
    for curve in sorted(sound(series), key=_place):
        point = telling(curve, threshold)
        if bound := quantities.judged(curve, point):
            yield Judged(curve, point, bound)


def _place(series: Series) -> tuple[int, float]:
    """Put ladders first, as `LADDERS` has them, then the quickest setting of all others.

    Of tests of one's own the one that scales worst comes first, as in the headlines.
    """
    if series.row.study in LADDERS:
        efficiency = series.points[-1].parallel_efficiency
        return LADDERS.index(series.row.study), efficiency if series.row.is_own_test else 0.0
    return len(LADDERS), -series.points[-1].rate


def telling(series: Series, threshold: float) -> Point:
    """Return the smallest size whose efficiency is below the threshold, else the largest."""
    below = (point for point in series.points if point.parallel_efficiency < threshold)
    return next(below, series.points[-1])
