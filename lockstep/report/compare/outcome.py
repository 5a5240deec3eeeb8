"""What a comparison comes to, what differs between its sides, and points of several beside another.

These are records; `outcome_wording` has their sentences.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.report.compare.circumstances import FIRST_FACTS
from lockstep.report.compare.judging import BLOCKED, FASTER, SAME, SLOWER, UNKNOWN, Judged
from lockstep.report.compare.pairing import Pair

if TYPE_CHECKING:
    from lockstep.report.compare.comparison import Comparison

JudgedPair = tuple[Pair, Judged]
# Of the points without enough evidence, those whose noise is unknown: without repeats on a side,
# with repeats that are equal to the last digit, and with repeats that share a job.
BARE, EQUAL, ONE_JOB = "no-interval", "no-spread", "one-job"


@dataclass(frozen=True)
class Outcome:
    """What the points of a comparison come to.

    Attributes:
        kind: "differs": a point is shown to be slower or faster; "same": all points are the same
            within the margin; "blocked": errors of the check block all of them; "unshown": else.
        counts: How many points have each verdict, `BARE`, `EQUAL`, `ONE_JOB` among them.
        slower: The points shown to be slower, the one that lost most first.
        faster: The points shown to be faster, the one that gained most first.
        smallest_change: The relative change that each point without enough evidence would have
            shown nine times of ten; None where there is none, or no change would do.
    """

    kind: str
    counts: Counter[str]
    slower: Sequence[JudgedPair]
    faster: Sequence[JudgedPair]
    smallest_change: float | None

    @property
    def total(self) -> int:
        """The number of points."""
        return sum(self.counts.values())


def outcome(points: Sequence[JudgedPair]) -> Outcome:
    """Return what points come to, those of a comparison or of one study of it."""
    counts = Counter(counted_as(judged) for _, judged in points)
    slower = [point for point in points if point[1].verdict == SLOWER]
    faster = [point for point in points if point[1].verdict == FASTER]
    changes = [one.smallest_change for _, one in points if counted_as(one) == UNKNOWN]
    finite = [change for change in changes if change is not None]
    return Outcome(
        _kind(counts),
        counts,
        sorted(slower, key=lambda point: point[1].ratio),
        sorted(faster, key=lambda point: -point[1].ratio),
        max(finite) if finite and len(finite) == len(changes) else None,
    )


def _kind(counts: Mapping[str, int]) -> str:
    if SLOWER in counts or FASTER in counts:
        return "differs"
    if counts.keys() == {BLOCKED}:
        return "blocked"
    return "same" if counts.keys() == {SAME} else "unshown"


def counted_as(judged: Judged) -> str:
    """Return a point's verdict, or `BARE`, `EQUAL` or `ONE_JOB` where its noise is unknown."""
    if judged.in_one_job:
        return ONE_JOB
    if judged.verdict != UNKNOWN or judged.interval:
        return judged.verdict
    return EQUAL if judged.is_repeated else BARE


def changed(made: "Comparison") -> dict[str, tuple[list[Any], list[Any]]]:
    """Return what differs between the sides, the factors of cases first: values of A and of B."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for pair, _ in made.points:
        for name, values in pair.changed.items():
            for side, value in zip(found.setdefault(name, ([], [])), values, strict=True):
                side += [value] if value not in side else []
    return found | made.environment


def notable(made: "Comparison") -> dict[str, tuple[list[Any], list[Any]]]:
    """Return of what differs that which one compares for: factors, software and devices."""
    factors = {name for pair, _ in made.points for name in pair.changed}
    return {k: v for k, v in changed(made).items() if k in factors or k in FIRST_FACTS}


@dataclass(frozen=True)
class Line:
    """One point of the first campaign beside those of the others.

    Attributes:
        cells: One for each comparison, None where it lacks the point.
    """

    cells: tuple[JudgedPair | None, ...]

    @property
    def pair(self) -> Pair:
        """A pair that has the point."""
        return next(cell[0] for cell in self.cells if cell)


def flagged(comparisons: Sequence["Comparison"]) -> dict[tuple[str, str], dict[Any, Pair]]:
    """Return letter of a campaign and flag -> its points, those of the common base once."""
    found: dict[tuple[str, str], dict[Any, Pair]] = {}
    for made in comparisons:
        called = dict(zip("AB", made.sides, strict=True))
        for pair, _ in made.points:
            for side, flag in pair.flags:
                launches = tuple(sorted(row.launch for row in (pair.a if side == "A" else pair.b)))
                points = found.setdefault((called[side], str(flag)), {})
                points.setdefault((pair.case, pair.world_size, launches), pair)
    return found


def lines(comparisons: Sequence["Comparison"]) -> list[Line]:
    """Return the points of comparisons with one base, by the number of ranks."""
    found: dict[object, list[JudgedPair | None]] = {}
    for index, made in enumerate(comparisons):
        for pair, judged in made.points:
            launches = tuple(sorted(row.launch for row in pair.a))
            key = pair.case, pair.world_size, launches
            found.setdefault(key, [None] * len(comparisons))[index] = pair, judged
    made_of = [Line(tuple(cells)) for cells in found.values()]
    return sorted(made_of, key=lambda line: line.pair.world_size)
