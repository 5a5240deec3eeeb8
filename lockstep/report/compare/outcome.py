"""What a comparison comes to and what differs between its sides: records and their sentences."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.formats import DASH, counted, listed, percent
from lockstep.report.check.evidence import joined
from lockstep.report.compare.judging import (
    BLOCKED,
    FASTER,
    SAME,
    SLOWER,
    UNKNOWN,
    Comparison,
    Judged,
    launches_needed,
)
from lockstep.report.compare.pairing import FIRST_FACTS, Pair

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
    changes = [judged.smallest_change for _, judged in points if counted_as(judged) == UNKNOWN]
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


def changed(comparison: Comparison) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return what differs between the sides, the factors of cases first: values of A and of B."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for pair, _ in comparison.points:
        for name, values in pair.changed.items():
            for side, value in zip(found.setdefault(name, ([], [])), values, strict=True):
                side += [value] if value not in side else []
    return found | comparison.environment


def notable(comparison: Comparison) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return of what differs that which one compares for: factors, software and devices."""
    factors = {name for pair, _ in comparison.points for name in pair.changed}
    return {k: v for k, v in changed(comparison).items() if k in factors or k in FIRST_FACTS}


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


def flagged(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], dict[Any, Pair]]:
    """Return letter of a campaign and flag -> its points, those of the common base once."""
    found: dict[tuple[str, str], dict[Any, Pair]] = {}
    for comparison in comparisons:
        called = dict(zip("AB", comparison.sides, strict=True))
        for pair, _ in comparison.points:
            for side, flag in pair.flags:
                launches = tuple(sorted(row.launch for row in (pair.a if side == "A" else pair.b)))
                points = found.setdefault((called[side], str(flag)), {})
                points.setdefault((pair.case, pair.world_size, launches), pair)
    return found


def lines(comparisons: Sequence[Comparison]) -> list[Line]:
    """Return the points of comparisons with one base, by the number of ranks."""
    found: dict[object, list[JudgedPair | None]] = {}
    for index, comparison in enumerate(comparisons):
        for pair, judged in comparison.points:
            launches = tuple(sorted(row.launch for row in pair.a))
            key = pair.case, pair.world_size, launches
            found.setdefault(key, [None] * len(comparisons))[index] = pair, judged
    made_of = [Line(tuple(cells)) for cells in found.values()]
    return sorted(made_of, key=lambda line: line.pair.world_size)


MOST_CHANGE = 10.0  # more than that is no change that anybody looks for
# A hash, whose first characters tell it from any other.
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")
# What differs, as a headline has room for.
MOST_NAMED, MOST_SIZES = 2, 6
# More launches a side are no advice.
MOST_SENSIBLE = 40
# In per cent, as a cell has room for.
LARGEST = 1000
_NAMES = {
    "image_sha256": "image", "project_commit": "commit", "project_dirty": "uncommitted changes",
    "git_commit": "commit of Lockstep",
    "device_names": "devices",
    "num_nodes": "nodes",
}  # fmt: skip
# In a cell; a verdict of the rule, and why there is none.
SHORT = {
    SLOWER: "slower", FASTER: "faster", SAME: "same", UNKNOWN: "too noisy", BARE: "no repeat",
    EQUAL: "no spread known", ONE_JOB: "one job", BLOCKED: "blocked",
}  # fmt: skip


def values(found: Sequence[Any]) -> str:
    """Return the values of a fact on one side."""
    if not found:
        return "nothing"
    texts = [listed(v, 4) if isinstance(v, list) else "unknown" if v is None else v for v in found]
    return listed([_HASH.sub(r"\1...", str(text)) for text in texts], 4)


def fact(name: str) -> str:
    """Return what a fact is called."""
    # As its user wrote it.
    is_own = name.startswith(("variable ", "source of ", "DDP ", "loader "))
    return name if is_own else _NAMES.get(name, name.replace("_", " "))


def difference(comparison: Comparison) -> str:
    """Say what was changed between the sides, as a sentence begins."""
    found = notable(comparison)
    others = len(changed(comparison)) - len(found)
    if not found:
        if others:
            names = [fact(name) for name in changed(comparison)]
            return f"Other {listed(names, MOST_NAMED)}"
        return "With nothing known to differ"
    texts = [f"{fact(k)} {values(b)} in place of {values(a)}" for k, (a, b) in found.items()]
    more = len(texts) - MOST_NAMED + others
    named = [*texts[:MOST_NAMED], *([counted(more, "other difference")] if more > 0 else [])]
    return f"With {joined(named)}"


def sentence(found: Outcome, margin: float) -> str:
    """Say what points come to: the strongest claims, then how many points have which verdict."""
    if found.kind == "differs":
        told = [points for points in (found.slower, found.faster) if points]
        claims = " and ".join(_claim(points, found.total > 1) for points in told)
    elif found.kind == "same":
        claims = f"no point differs by more than {100 * margin:g} %"
    elif found.kind == "blocked":
        claims = "no verdict"
    else:
        claims = "no difference is shown"
    return f"{claims}. {_counts(found, margin)}."


def _claim(points: Sequence[JudgedPair], is_named: bool) -> str:
    """Say which sizes are slower, or faster, and by how much the first of the points is."""
    pair, judged = points[0]
    sizes = sorted({pair.world_size for pair, _ in points})
    sign = -1 if judged.verdict == SLOWER else 1
    ends = sorted(sign * (end - 1) for end in judged.interval or ())
    much = f"{percent(sign * (judged.ratio - 1))} %"
    span = f"({percent(ends[0])} to {percent(ends[1])} %)"
    where = f" in {pair.a[0].study} {pair.case_label}" if is_named else ""
    if len(sizes) > 1:
        ranks = joined(sizes) if len(sizes) <= MOST_SIZES else f"{sizes[0]} to {sizes[-1]}"
        return (
            f"{ranks} ranks are {judged.verdict}, by up to {much} {span}, on {pair.world_size}"
            f"{where}"
        )
    verb = "is" if sizes == [1] else "are"
    return f"{counted(sizes[0], 'rank')} {verb} {much} {judged.verdict} {span}{where}"


def _counts(found: Outcome, margin: float) -> str:
    words = {
        SLOWER: "slower",
        FASTER: "faster",
        SAME: f"the same within {100 * margin:g} %",
        UNKNOWN: f"too noisy to tell{_noise(found)}",
        BARE: "without the repeats to tell",
        EQUAL: "of unknown noise, as launches are equal to the last digit",
        ONE_JOB: "of unknown noise, as repeats share a job",
        BLOCKED: "blocked by the check",
    }
    if len(found.counts) > 1:
        said = [(found.counts[kind], text) for kind, text in words.items() if found.counts[kind]]
        (first, what), *rest = said
        verdicts = [
            f"{first} {'is' if first == 1 else 'are'} {what}",
            *(f"{n} {t}" for n, t in rest),
        ]
        return f"Of {counted(found.total, 'point')}, {joined(verdicts)}"
    (only,) = found.counts
    which = "The one point is" if found.total == 1 else f"All {found.total} points are"
    return f"{which} {words[only]}"


def _noise(found: Outcome) -> str:
    """Say which change the noisy points would have shown, with the power of that claim."""
    if least := seen(found):
        return f" (nine times of ten a change of {least} or more would have been seen)"
    return " (no change would have been seen)"


def seen(found: Outcome) -> str:
    """Return the smallest change that the noisy points would have shown; empty where none would."""
    least = found.smallest_change
    return "" if least is None or least > MOST_CHANGE else f"{100 * least:.2g} %"


def advice(comparison: Comparison) -> str:
    """Say the one thing to do next."""
    found = outcome(comparison.points)
    a, b = comparison.sides
    cautions = {caution.kind for caution in comparison.cautions}
    if found.counts[BLOCKED]:
        return "Mend what lockstep check says blocks the points, then compare again."
    if "copies" in cautions:
        return f"Measure {b} again: launches that both sides hold say nothing of a difference."
    if found.counts[BARE]:
        return "Measure five launches a side: without repeats the noise is unknown."
    if found.counts[EQUAL]:
        return "Give rates with more digits, of launches that are no copies: these show no noise."
    if found.counts[ONE_JOB]:
        return f"Measure the repeats of {a} and of {b} in several jobs: share_job = false."
    if found.kind == "differs" and "not-in-turn" in cautions:
        return f"Measure {a} and {b} in turn, {a} {b} {b} {a}: so far it may be a drift."
    if found.kind == "differs":
        names = [fact(name) for name in notable(comparison)]
        if len(names) > 1:
            return f"Change back one of {listed(names, 4)} and measure again, to tell which it is."
        return f"See where the time of {b} goes now: lockstep report."
    if found.counts[UNKNOWN]:
        return _more_launches(comparison)
    return "Nothing: what could have been seen is not there."


def _more_launches(comparison: Comparison) -> str:
    spread = max(
        judged.spread or 0.0 for _, judged in comparison.points if judged.verdict == UNKNOWN
    )
    needed = launches_needed(spread, comparison.margin, comparison.next_error)
    goal = f"a change of {100 * comparison.margin:.2g} % at the noisiest point"
    if needed is None or needed > MOST_SENSIBLE:
        number = "more than 1,000" if needed is None else str(needed)
        return (
            f"Find what disturbs the machine: launches vary by up to {percent(spread)} %, and "
            f"{number} a side would be needed to tell {goal}."
        )
    return f"Measure {needed} launches a side, to tell {goal} too."


def change(value: float | None) -> str:
    """Return a ratio as a signed change in per cent, without its unit."""
    if value is None:
        return DASH
    per_cent = round(100 * (value - 1), 1)
    if per_cent > LARGEST:
        return f"> +{LARGEST}"
    return f"{per_cent:+.1f}" if per_cent else "0.0"


def change_span(ends: tuple[float, float] | None) -> str:
    """Return an interval of a ratio as changes in per cent."""
    return DASH if ends is None else f"{change(ends[0])} to {change(ends[1])}"
