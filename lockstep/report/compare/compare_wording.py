"""The text of `lockstep compare`: from the records of a comparison to English and tables."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.report.check.wording import blocked
from lockstep.report.compare.judging import MOST_LAUNCHES, UNKNOWN, launches_needed
from lockstep.report.compare.pairing import ambiguity
from lockstep.report.words import lines
from lockstep.vocabulary.text.formats import (
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

if TYPE_CHECKING:
    from lockstep.report.compare.circumstances import Caution
    from lockstep.report.compare.comparison import Comparison
    from lockstep.report.compare.judging import Judged
    from lockstep.report.compare.pairing import Pair
    from lockstep.report.compare.training_times import Times

MOST_CHANGE = 10.0  # more than that is no change that anybody looks for
_HEADER = ["verdict", "ranks", "launches", "ratio", "interval", "case"]
_QUANTITIES = ["quantity, %", "ranks", "A", "B", "B - A", "95 % interval", "case"]
_TIMES = ["training time, s", "ranks", "A", "B", "B / A", "95 % interval", "case"]
TIMES_NOTE = (
    "Medians over runs, validation left aside; below 1, B is quicker. Not corrected for the number "
    "of points."
)
# A hash, whose first characters tell it from any other.
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


def text(made: "Comparison", names: tuple[str, str], as_markdown: bool) -> list[str]:
    """Return the comparison as lines: what surrounds it first, then the points and their notes."""
    table = lines.markdown if as_markdown else lines.table
    quantities = _quantity_rows(made)
    parts = [
        _listed(
            [
                *(f"{side}: {name}" for side, name in zip("AB", names, strict=True)),
                "ratio: rate of B / rate of A; above 1, B is faster",
            ],
            as_markdown,
        ),
        _listed(_circumstances(made), as_markdown),
        table([_HEADER, *(_row(*point) for point in made.points)]),
        _listed(_rule(made), as_markdown),
    ]
    if quantities:
        parts.append(table([_QUANTITIES, *quantities]))
        note = "The intervals of these quantities are not corrected for the number of points."
        parts.append(_listed([note], as_markdown))
    if times := _time_rows(made):
        parts.append(table([_TIMES, *times]))
        parts.append(_listed([TIMES_NOTE], as_markdown))
    parts.append(_listed(_notes(made), as_markdown))
    return [lines.plain(line) for part in parts if part for line in (*part, "")][:-1]


def _listed(texts: Sequence[str], as_markdown: bool) -> list[str]:
    """Return sentences as lines, in Markdown as a list."""
    if as_markdown:
        return [f"- {text}" for text in texts]
    return [line for text in texts for line in lines.sentence(text)]


def caution(one: "Caution") -> str:
    """Return what makes a difference between the sides doubtful, in a sentence."""
    values = one.values
    if one.kind == "copies":
        verb = "is" if values["count"] == 1 else "are"
        return (
            f"{counted(values['count'], 'launch')} of A {verb} in B too: what both sides share "
            "says nothing about a difference; measure B again"
        )
    if one.kind == "one-job":
        return (
            f"the launches of {counted(values['count'], 'point')} of {values['side']} ran in one "
            "job each: a difference may be that of the nodes; repeat in several jobs"
        )
    share = values["share"]
    return (
        f"{share} launches of {values['first']} were made before {share} of {values['last']}, so a "
        "drift of the machine would look like a difference; measure them in turn, A B B A, to rule "
        "it out"
    )


def _circumstances(made: "Comparison") -> list[str]:
    """Say what differs around the numbers, then what is equal, then what to beware of."""
    texts = [
        f"differs: {name}: {_values(a)} in A, {_values(b)} in B"
        for name, (a, b) in made.environment.items()
    ]
    if made.same_facts:
        texts.append(f"equal: {listed(made.same_facts, 8)}")
    elif not made.environment:
        texts.append("environment: neither side says what it was measured on")
    return texts + [f"warning: {caution(one)}" for one in made.cautions]


def _values(values: list[Any]) -> str:
    if not values:
        return "nothing"
    texts = [listed(v, 4) if isinstance(v, list) else "unknown" if v is None else v for v in values]
    return listed([_HASH.sub(r"\1...", str(text)) for text in texts], 4)


def _row(pair: "Pair", judged: "Judged") -> list[str]:
    why = f"; {blocked(judged.blocked_by)}" if judged.blocked_by else ""
    span = "{:.3f} to {:.3f}".format(*judged.interval) if judged.interval else DASH
    ratio = DASH if why else f"{judged.ratio:.3f}"
    launches = f"{len(pair.a)} + {len(pair.b)}"
    return [judged.verdict, str(pair.world_size), launches, ratio, span, f"{pair.label}{why}"]


def _rule(made: "Comparison") -> list[str]:
    tested = sum(judged.interval is not None for _, judged in made.points)
    if not tested:
        return []
    low, high = 1 / (1 + made.margin), 1 + made.margin
    return [
        f"Intervals at {100 * (1 - made.error):.3g} %, corrected for {counted(tested, 'point')}; "
        f"same: within {low:.3f} to {high:.3f}; faster, slower: else, and without 1."
    ]


def _quantity_rows(made: "Comparison") -> list[list[str]]:
    """Return the rows of what the points have in addition to their speed."""
    from lockstep.report.compare.comparison import other_quantities

    rows = []
    for pair, judged in made.points:
        for name, values in () if judged.blocked_by else other_quantities(pair).items():
            low, high = values["low"], values["high"]
            span = percent_span(None if low is None or high is None else (low, high))
            numbers = [percent(values[key]) for key in ("a", "b", "difference")]
            rows.append([name, str(pair.world_size), *numbers, span, pair.label])
    return rows


def _time_rows(made: "Comparison") -> list[list[str]]:
    """Return the rows of what training takes: an epoch, and until an accuracy is reached."""
    from lockstep.report.compare import training_times

    return [
        [_time_name(one), str(pair.world_size), number(one.a), number(one.b), ratio(one.ratio),
         ratio_span(one.interval), pair.label]
        for pair, judged in made.points if not judged.blocked_by
        for one in training_times.times(pair)
    ]  # fmt: skip


def _time_name(times: "Times") -> str:
    if times.accuracy is None:
        return times.kind
    return f"to {trimmed(100 * times.accuracy)} %"


def _notes(made: "Comparison") -> list[str]:
    """Say what would settle the open points, which are flagged, and which have no partner."""
    flagged: dict[str, list[str]] = {}
    for pair, _ in made.points:
        for side, flag in pair.flags:
            flagged.setdefault(f"{side}: {flag}", []).append(f"{pair.label} at {pair.world_size}")
    texts = [*_without_interval(made), *_remedy(made)]
    texts += [f"flag: {flag}: {listed(where, 3)}" for flag, where in flagged.items()]
    for side, only in (("A", made.only_in_a), ("B", made.only_in_b)):
        if only:
            cases = listed(map(str, only), 3)
            texts.append(f"only in {side}: {counted(len(only), 'point')}: {cases}")
    if made.ambiguous:
        texts.append(f"not compared: {ambiguity(made.ambiguous)}")
    return texts + [
        f"--allow {name} would compare {counted(number, 'point')} more"
        for name, number in made.allowing.items()
    ]


def _without_interval(made: "Comparison") -> list[str]:
    """Say which points cannot be judged at all, and what would be enough."""
    points = [pair for pair, one in made.points if not (one.blocked_by or one.interval)]
    alone = sum(min(len(pair.a), len(pair.b)) == 1 for pair in points)
    texts = []
    if alone:
        texts.append(
            f"cannot be judged: {counted(alone, 'point')} with one launch on a side, so the noise "
            "is unknown; two launches a side are the least, measure five"
        )
    if len(points) > alone:
        texts.append(
            f"cannot be judged: {counted(len(points) - alone, 'point')} with launches equal to the "
            "last digit, which are rounded or copied; measure five launches a side"
        )
    return texts


def _remedy(made: "Comparison") -> list[str]:
    """Say which change the open points could have shown, and how many launches would be enough."""
    unsure = [one for _, one in made.points if one.verdict == UNKNOWN and one.spread]
    if not unsure:
        return []
    spread = max(one.spread or 0.0 for one in unsure)
    changes = [one.smallest_change for one in unsure]
    finite = [change for change in changes if change is not None]
    is_known = len(finite) == len(changes) and max(finite) < MOST_CHANGE
    largest = f"a change of {100 * max(finite):.2g} % or more" if is_known else "no change"
    needed = launches_needed(spread, made.margin, made.error)
    launches = f"more than {MOST_LAUNCHES}" if needed is None else str(needed)
    return [
        f"cannot be judged: {counted(len(unsure), 'point')}, whose launches vary by up to "
        f"{percent(spread)} %: nine times of ten they show {largest}; to show "
        f"{100 * made.margin:.2g} % (--margin) takes {launches} launches a side"
    ]
