"""The text of `lockstep compare`: from the records of a comparison to English and tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lockstep.core.formats import (
    DASH,
    counted,
    listed,
    number,
    percent,
    percent_span,
    ratio,
    ratio_span,
    trimmed,
)
from lockstep.report.check.evidence import blocked
from lockstep.report.compare import outcome, pairing
from lockstep.report.compare.judging import (
    MOST_LAUNCHES,
    UNKNOWN,
    Comparison,
    Judged,
    launches_needed,
    other_quantities,
)
from lockstep.report.compare.outcome import MOST_CHANGE, SHORT, values
from lockstep.report.compare.pairing import Caution, Pair, Times, ambiguity
from lockstep.report.words import escapes, lines

# Of each kind, in short.
CAUTIONS = {
    "copies": "both sides hold the same launches",
    "not-in-turn": "not measured in turn",
    "one-job": "repeats of one job alone",
}
_HEADER = ["verdict", "ranks", "launches", "ratio", "interval", "memory", "case"]
TIMES_NOTE = (
    "Medians over runs, validation left aside; below 1, {} is quicker. Not corrected for the "
    "number of points."
)
QUANTITIES_NOTE = "The intervals of these quantities are not corrected for the number of points."


@dataclass(frozen=True)
class Form:
    """What a comparison is written as.

    Attributes:
        redacted: What takes names out of texts, before any is wrapped or escaped.
    """

    is_markdown: bool = False
    redacted: Callable[[Any], Any] = list

    def table(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """Return rows, the header first, as lines."""
        return (lines.markdown if self.is_markdown else lines.table)(self.redacted(rows))

    def listed(self, texts: Sequence[str]) -> list[str]:
        """Return sentences as lines, in Markdown as a list."""
        if self.is_markdown:
            return [f"- {escapes.markdown(text)}" for text in self.redacted(texts)]
        return [line for text in self.redacted(texts) for line in lines.sentence(text)]


def text(comparison: Comparison, names: tuple[str, str], form: Form) -> list[str]:
    """Return the comparison as lines: what surrounds it first, then the points and their notes."""
    a, b = comparison.sides
    quantities = quantity_rows(comparison)
    found = outcome.outcome(comparison.points)
    parts = [
        form.listed(
            [
                *(f"{side}: {name}" for side, name in zip(comparison.sides, names, strict=True)),
                f"ratio: rate of {b} / rate of {a}; above 1, {b} is faster",
                f"memory: peak of {b} / peak of {a}, of the rank that needs most; not judged",
            ],
        ),
        form.listed(
            [f"{outcome.difference(comparison)}: {outcome.sentence(found, comparison.margin)}"],
        ),
        form.listed(_circumstances(comparison)),
        form.table([_HEADER, *(_row(*point) for point in comparison.points)]),
        form.listed(rule(comparison)),
    ]
    if quantities:
        head = ["quantity, %", "ranks", a, b, f"{b} - {a}", "95 % interval", "case"]
        parts.append(form.table([head, *quantities]))
        parts.append(form.listed([QUANTITIES_NOTE]))
    if times := time_rows(comparison):
        head = ["training time, s", "ranks", a, b, f"{b} / {a}", "95 % interval", "case"]
        parts.append(form.table([head, *times]))
        parts.append(form.listed([TIMES_NOTE.format(b)]))
    parts.append(
        form.listed([*judging_notes(comparison), *flag_notes(comparison), *left_out(comparison)])
    )
    return [lines.plain(line) for part in parts if part for line in (*part, "")][:-1]


def several(comparisons: Sequence[Comparison], names: Sequence[str], form: Form) -> list[str]:
    """Return comparisons with one base as lines: all side by side, then each of them as `text`."""
    if len(comparisons) == 1:
        return text(comparisons[0], (names[0], names[1]), form)
    others = [made.sides[1] for made in comparisons]
    rows = [
        [str(line.pair.world_size), *map(_cell, line.cells), line.pair.name]
        for line in outcome.lines(comparisons)
    ]
    head = form.listed(["ratio of each to A; below, each beside A with its intervals"])
    parts = [[*form.table([["ranks", *others, "case"], *rows]), ""], [*head, ""]]
    for comparison, name in zip(comparisons, names[1:], strict=True):
        parts.append([*text(comparison, (names[0], name), form), ""])
    return [lines.plain(line) for line in chain.from_iterable(parts)][:-1]


def _cell(cell: outcome.JudgedPair | None) -> str:
    if cell is None:
        return DASH
    verdict = SHORT[outcome.counted_as(cell[1])]
    return verdict if cell[1].blocked_by else f"{cell[1].ratio:.3f} {verdict}"


def caution(one: Caution, sides: tuple[str, str] = ("A", "B")) -> str:
    """Return what makes a difference between the sides doubtful, in a sentence."""
    found, called = one.values, dict(zip("AB", sides, strict=True))
    a, b = sides
    if one.kind == "copies":
        verb = "is" if found["count"] == 1 else "are"
        return (
            f"{counted(found['count'], 'launch')} of {a} {verb} in {b} too: what both sides share "
            f"says nothing about a difference; measure {b} again"
        )
    if one.kind == "one-job":
        return (
            f"the launches of {counted(found['count'], 'point')} of {called[found['side']]} ran in "
            "one job each: a difference may be that of the nodes; repeat in several jobs, or say "
            "is_machine = true under [jobs] of both campaigns where these nodes are meant"
        )
    share = found["share"]
    return (
        f"{share} launches of {called[found['first']]} were made before {share} of "
        f"{called[found['last']]}, so a drift of the machine would look like a difference; measure "
        f"them in turn, {a} {b} {b} {a}, to rule it out"
    )


def _circumstances(comparison: Comparison) -> list[str]:
    """Say what differs around the numbers, then what is equal, then what to beware of."""
    texts = [
        f"differs: {name}: {values(a)} in {comparison.sides[0]}, "
        f"{values(b)} in {comparison.sides[1]}"
        for name, (a, b) in comparison.environment.items()
    ]
    if comparison.same_facts:
        texts.append(f"equal: {listed(comparison.same_facts, 8)}")
    elif not comparison.environment:
        texts.append("environment: neither side says what it was measured on")
    return texts + [f"warning: {caution(one, comparison.sides)}" for one in comparison.cautions]


def _row(pair: Pair, judged: Judged) -> list[str]:
    why = f"; {blocked(judged.blocked_by)}" if judged.blocked_by else ""
    span = "{:.3f} to {:.3f}".format(*judged.interval) if judged.interval else DASH
    ratio = DASH if why else f"{judged.ratio:.3f}"
    launches = f"{len(pair.a)} + {len(pair.b)}"
    numbers = [str(pair.world_size), launches, ratio, span, memory(pair, judged)]
    return [judged.verdict, *numbers, f"{pair.label}{why}"]


def memory(pair: Pair, judged: Judged) -> str:
    """Return the ratio of peak memory as a cell; a dash where it is unknown or blocked."""
    found = None if judged.blocked_by else pair.memory_ratio
    return DASH if found is None else f"{found:.3f}"


def rule(*comparisons: Comparison) -> list[str]:
    """Say how the intervals are drawn and what each verdict means; nothing without an interval."""
    levels = {}
    for comparison in comparisons:
        if tested := sum(judged.interval is not None for _, judged in comparison.points):
            level = (
                f"{100 * (1 - comparison.error):.3g} %, corrected for {counted(tested, 'point')}"
            )
            levels[comparison.sides[1]] = level
    if not levels:
        return []
    margin, number = comparisons[0].margin, comparisons[0].comparisons
    low, high = 1 / (1 + margin), 1 + margin
    if len(comparisons) == 1:
        drawn = next(iter(levels.values()))
    else:
        drawn = ", ".join(f"{level} ({side})" for side, level in levels.items())
    also = ", each also corrected for" if len(levels) > 1 else " and"
    beside = f"{also} {number} comparisons" if number > 1 else ""
    return [
        f"Intervals at {drawn}{beside}; "
        f"same: within {low:.3f} to {high:.3f}; faster, slower: else, and without 1."
    ]


def quantity_rows(comparison: Comparison) -> list[list[str]]:
    """Return the rows of what the points have in addition to their speed."""
    rows = []
    for pair, judged in comparison.points:
        for name, found in other_quantities(pair, judged.blocked_by).items():
            low, high = found["low"], found["high"]
            span = percent_span(None if low is None or high is None else (low, high))
            numbers = [percent(found[key]) for key in ("a", "b", "difference")]
            rows.append([name, str(pair.world_size), *numbers, span, pair.label])
    return rows


def time_rows(comparison: Comparison) -> list[list[str]]:
    """Return the rows of what training takes: an epoch, and until an accuracy is reached."""
    return [
        [_time_name(time_), str(pair.world_size), number(time_.a), number(time_.b),
         ratio(time_.ratio), ratio_span(time_.interval), pair.label]
        for pair, judged in comparison.points if not judged.blocked_by
        for time_ in pairing.times(pair)
    ]  # fmt: skip


def _time_name(times: Times) -> str:
    if times.accuracy is None:
        return times.kind
    return f"to {trimmed(100 * times.accuracy)} %"


def judging_notes(comparison: Comparison) -> list[str]:
    """Say which look it is, where there is an interval, and what would settle the open points."""
    look = [comparison.look.sentence] if comparison.has_interval else []
    return [*look, *_without_interval(comparison), *_remedy(comparison)]


def flag_notes(*comparisons: Comparison) -> list[str]:
    """Say which points are flagged, and why."""
    return [
        f"flag: {side}: {flag}: "
        + listed([f"{pair.label} at {pair.world_size}" for pair in points.values()], 3)
        for (side, flag), points in outcome.flagged(comparisons).items()
    ]


def left_out(comparison: Comparison) -> list[str]:
    """Say which points have no partner, or several, and what --allow would pair."""
    texts = []
    for side, only in zip(
        comparison.sides, (comparison.only_in_a, comparison.only_in_b), strict=True
    ):
        if only:
            cases = listed(map(str, only), 3)
            texts.append(f"only in {side}: {counted(len(only), 'point')}: {cases}")
    if comparison.ambiguous:
        texts.append(f"not compared: {ambiguity(comparison.ambiguous, comparison.sides)}")
    return texts + [
        f"--allow {name} would compare {counted(number, 'point')} more"
        for name, number in comparison.allowing.items()
    ]


def _without_interval(comparison: Comparison) -> list[str]:
    """Say which points cannot be judged at all, and what would be enough."""
    counts = outcome.outcome(comparison.points).counts
    alone, equal = counts[outcome.BARE], counts[outcome.EQUAL]
    texts = []
    if alone:
        texts.append(
            f"cannot be judged: {counted(alone, 'point')} with one launch on a side, so the noise "
            "is unknown; two launches a side are the least, measure five"
        )
    if equal:
        texts.append(
            f"cannot be judged: {counted(equal, 'point')} with launches equal to the "
            "last digit, which are rounded or copied; measure five launches a side"
        )
    return texts


def _remedy(comparison: Comparison) -> list[str]:
    """Say which change the open points could have shown, and how many launches would be enough."""
    unsure = [
        judged
        for _, judged in comparison.points
        if outcome.counted_as(judged) == UNKNOWN and judged.spread
    ]
    if not unsure:
        return []
    spread = max(judged.spread or 0.0 for judged in unsure)
    changes = [judged.smallest_change for judged in unsure]
    finite = [change for change in changes if change is not None]
    is_known = len(finite) == len(changes) and max(finite) < MOST_CHANGE
    largest = f"a change of {100 * max(finite):.2g} % or more" if is_known else "no change"
    needed = launches_needed(spread, comparison.margin, comparison.next_error)
    launches = f"more than {MOST_LAUNCHES}" if needed is None else str(needed)
    return [
        f"cannot be judged: {counted(len(unsure), 'point')}, whose launches vary by up to "
        f"{percent(spread)} %: nine times of ten they show {largest}; to show "
        f"{100 * comparison.margin:.2g} % (--margin) takes {launches} launches a side"
    ]
