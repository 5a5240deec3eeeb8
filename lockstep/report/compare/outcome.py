"""What a comparison comes to: its sentences, and the text of `lockstep compare`."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from lockstep.report.check.evidence import blocked, joined
from lockstep.report.compare.comparison import (
    FIRST_FACTS,
    Comparison,
    Pair,
    ambiguity,
    other_quantities,
    times,
)
from lockstep.report.compare.judging import (
    BLOCKED,
    FASTER,
    SAME,
    SLOWER,
    UNKNOWN,
    Judged,
    launches_needed,
)
from lockstep.report.words import escapes, lines

JudgedPair = tuple[Pair, Judged]
# Why the noise of a point without evidence is unknown: a side has no repeats, the launches are
# equal to the last digit, or a side's repeats share a job.
BARE, EQUAL, ONE_JOB = "no-interval", "no-spread", "one-job"
# Kind of a point -> in a cell, and in a sentence that counts points.
KINDS = {
    SLOWER: ("slower", "slower"),
    FASTER: ("faster", "faster"),
    SAME: ("same", "the same within {margin:g} %"),
    UNKNOWN: ("too noisy", "too noisy to tell ({seen})"),
    BARE: ("no repeat", "without the repeats to tell"),
    EQUAL: ("no spread known", "of unknown noise, as launches are equal to the last digit"),
    ONE_JOB: ("one job", "of unknown noise, as repeats share a job"),
    BLOCKED: ("blocked", "blocked by the check"),
}
MOST_CHANGE = 10.0  # more than that is no change that anybody looks for
MOST_SENSIBLE = 40  # more launches a side are no advice
MOST_NAMED, MOST_SIZES = 2, 6  # what differs, and sizes, as a headline has room for
LARGEST = 1000  # in per cent, as a cell has room for
# A hash, whose first characters tell it from any other.
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")
_NAMES = {
    "image_sha256": "image", "project_commit": "commit", "project_dirty": "uncommitted changes",
    "git_commit": "commit of Lockstep", "device_names": "devices", "num_nodes": "nodes",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What the points of a comparison come to.

    Attributes:
        kind: "differs": a point is shown to be slower or faster; "same": all points are the same
            within the margin; "blocked": errors of the check block all of them; "unshown": else.
        counts: How many points are of each kind of `KINDS`.
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
    by_ratio = sorted(points, key=lambda point: point[1].ratio)
    slower = [point for point in by_ratio if point[1].verdict == SLOWER]
    faster = [point for point in reversed(by_ratio) if point[1].verdict == FASTER]
    changes = [judged.smallest_change for _, judged in points if counted_as(judged) == UNKNOWN]
    finite = [change for change in changes if change is not None]
    least = max(finite) if finite and len(finite) == len(changes) else None
    kind = "unshown"
    if slower or faster:
        kind = "differs"
    elif len(counts) == 1:
        kind = {BLOCKED: "blocked", SAME: "same"}.get(next(iter(counts)), kind)
    return Outcome(kind, counts, slower, faster, least)


def counted_as(judged: Judged) -> str:
    """Return a point's verdict, or `BARE`, `EQUAL` or `ONE_JOB` where its noise is unknown."""
    if judged.in_one_job:
        return ONE_JOB
    if judged.verdict != UNKNOWN or judged.interval:
        return judged.verdict
    return EQUAL if judged.is_repeated else BARE


def short(judged: Judged) -> str:
    """Return what a point comes to, as a cell has it."""
    return KINDS[counted_as(judged)][0]


def changed(comparison: Comparison) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return what differs between the sides, the factors of cases first: values of A and of B."""
    made: dict[str, tuple[list[Any], list[Any]]] = {}
    for pair, _ in comparison.points:
        for name, both in pair.changed.items():
            for side, value in zip(made.setdefault(name, ([], [])), both, strict=True):
                side += [value] if value not in side else []
    return made | comparison.environment


def notable(comparison: Comparison) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return of what differs that which one compares for: factors, software and devices."""
    factors = {name for pair, _ in comparison.points for name in pair.changed}
    return {k: v for k, v in changed(comparison).items() if k in factors or k in FIRST_FACTS}


def values(of_side: Sequence[Any]) -> str:
    """Return the values of a fact on one side."""
    if not of_side:
        return "nothing"
    texts = [
        listed(v, 4) if isinstance(v, list) else "unknown" if v is None else v for v in of_side
    ]
    return listed([_HASH.sub(r"\1...", str(text)) for text in texts], 4)


def fact(name: str) -> str:
    """Return what a fact is called; of a user's own, as its user wrote it."""
    is_own = name.startswith(("variable ", "source of ", "DDP ", "loader "))
    return name if is_own else _NAMES.get(name, name.replace("_", " "))


def difference(comparison: Comparison) -> str:
    """Return the start of a sentence that names what differs between A and B."""
    main = notable(comparison)
    others = len(changed(comparison)) - len(main)
    if not main and others:
        return f"Other {listed([fact(name) for name in changed(comparison)], MOST_NAMED)}"
    if not main:
        return "With nothing known to differ"
    texts = [f"{fact(k)} {values(b)} in place of {values(a)}" for k, (a, b) in main.items()]
    more = len(texts) - MOST_NAMED + others
    named = [*texts[:MOST_NAMED], *([counted(more, "other difference")] if more > 0 else [])]
    return f"With {joined(named)}"


def sentence(summary: Outcome, margin: float) -> str:
    """Say what points come to: the strongest claims, then how many points are of which kind."""
    claims = {
        "differs": " and ".join(
            _claim(points, is_named=summary.total > 1)
            for points in (summary.slower, summary.faster)
            if points
        ),
        "same": f"no point differs by more than {100 * margin:g} %",
        "blocked": "no verdict",
        "unshown": "no difference is shown",
    }[summary.kind]
    least = seen(summary)
    noise = f"nine times of ten a change of {least} or more would have been seen"
    noise = noise if least else "no change would have been seen"
    counts = {
        text.format(margin=100 * margin, seen=noise): summary.counts[kind]
        for kind, (_, text) in KINDS.items()
        if summary.counts[kind]
    }
    if len(counts) == 1:
        which = "The one point is" if summary.total == 1 else f"All {summary.total} points are"
        return f"{claims}. {which} {next(iter(counts))}."
    (text, first), *rest = counts.items()
    verb = "is" if first == 1 else "are"
    parts = [f"{first} {verb} {text}", *(f"{count} {other}" for other, count in rest)]
    return f"{claims}. Of {counted(summary.total, 'point')}, {joined(parts)}."


def _claim(points: Sequence[JudgedPair], *, is_named: bool) -> str:
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


def seen(summary: Outcome) -> str:
    """Return the smallest change that the noisy points would have shown; empty where none would."""
    least = summary.smallest_change
    return "" if least is None or least > MOST_CHANGE else f"{100 * least:.2g} %"


def advice(comparison: Comparison) -> str:
    """Say the one thing to do next."""
    summary = outcome(comparison.points)
    a, b = comparison.sides
    cautions = {caution.kind for caution in comparison.cautions}
    if summary.counts[BLOCKED]:
        return "Mend what lockstep check says blocks the points, then compare again."
    if "copies" in cautions:
        return f"Measure {b} again: launches that both sides hold say nothing of a difference."
    unknown = {
        BARE: "Measure five launches a side: without repeats the noise is unknown.",
        EQUAL: "Give rates with more digits, of launches that are no copies: these show no noise.",
        ONE_JOB: f"Measure the repeats of {a} and of {b} in several jobs: share_job = false.",
    }
    for kind, text in unknown.items():
        if summary.counts[kind]:
            return text
    if summary.kind == "differs" and "not-in-turn" in cautions:
        return f"Measure {a} and {b} in turn, {a} {b} {b} {a}: so far it may be a drift."
    if summary.kind == "differs":
        names = [fact(name) for name in notable(comparison)]
        if len(names) > 1:
            return f"Change back one of {listed(names, 4)} and measure again, to tell which it is."
        return f"See where the time of {b} goes now: lockstep report."
    if not summary.counts[UNKNOWN]:
        return "Nothing: what could have been seen is not there."
    noisy = [judged for _, judged in comparison.points if judged.verdict == UNKNOWN]
    spread = max(judged.spread or 0.0 for judged in noisy)
    needed = launches_needed(spread, comparison.margin, comparison.next_error)
    goal = f"a change of {100 * comparison.margin:.2g} % at the noisiest point"
    if needed is None or needed > MOST_SENSIBLE:
        return (
            f"Find what disturbs the machine: launches vary by up to {percent(spread)} %, and "
            f"{needed or 'more than 1,000'} a side would be needed to tell {goal}."
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


def memory(pair: Pair, judged: Judged) -> str:
    """Return the ratio of peak memory as a cell; a dash where it is unknown or blocked."""
    value = None if judged.blocked_by else pair.memory_ratio
    return DASH if value is None else f"{value:.3f}"


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


def side_by_side(comparisons: Sequence[Comparison]) -> list[Line]:
    """Return the points of comparisons with one base, by the number of ranks."""
    made: dict[object, list[JudgedPair | None]] = {}
    for index, comparison in enumerate(comparisons):
        for pair, judged in comparison.points:
            launches = tuple(sorted(row.launch for row in pair.a))
            key = pair.case, pair.world_size, launches
            made.setdefault(key, [None] * len(comparisons))[index] = pair, judged
    rows = [Line(tuple(cells)) for cells in made.values()]
    return sorted(rows, key=lambda line: line.pair.world_size)


def flagged(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], dict[Any, Pair]]:
    """Return letter of a campaign and flag -> its points, those of the common base once."""
    flags: dict[tuple[str, str], dict[Any, Pair]] = {}
    for comparison in comparisons:
        letters = dict(zip("AB", comparison.sides, strict=True))
        for pair, _ in comparison.points:
            for side, flag in pair.flags:
                launches = tuple(sorted(row.launch for row in (pair.a if side == "A" else pair.b)))
                points = flags.setdefault((letters[side], str(flag)), {})
                points.setdefault((pair.case, pair.world_size, launches), pair)
    return flags


def flag_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Say which points are flagged, and why."""
    return [
        f"flag: {side}: {flag}: "
        + listed([f"{pair.label} at {pair.world_size}" for pair in points.values()], 3)
        for (side, flag), points in flagged(comparisons).items()
    ]


def left_out(comparison: Comparison) -> list[str]:
    """Say which points have no partner, or several, and what --allow would pair."""
    only = zip(comparison.sides, (comparison.only_in_a, comparison.only_in_b), strict=True)
    texts = [
        f"only in {side}: {counted(len(keys), 'point')}: {listed(map(str, keys), 3)}"
        for side, keys in only
        if keys
    ]
    if comparison.ambiguous:
        texts.append(f"not compared: {ambiguity(comparison.ambiguous, comparison.sides)}")
    return texts + [
        f"--allow {name} would compare {counted(count, 'point')} more"
        for name, count in comparison.allowing.items()
    ]


def rule(comparisons: Sequence[Comparison]) -> list[str]:
    """Say how the intervals are drawn and what each verdict means; nothing without an interval."""
    levels = {}
    for comparison in comparisons:
        if tested := sum(judged.interval is not None for _, judged in comparison.points):
            levels[comparison.sides[1]] = (
                f"{100 * (1 - comparison.error):.3g} %, corrected for {counted(tested, 'point')}"
            )
    if not levels:
        return []
    margin, count = comparisons[0].margin, comparisons[0].comparisons
    drawn = ", ".join(
        level if len(comparisons) == 1 else f"{level} ({side})" for side, level in levels.items()
    )
    also = ", each also corrected for" if len(levels) > 1 else " and"
    beside = f"{also} {count} comparisons" if count > 1 else ""
    return [
        f"Intervals at {drawn}{beside}; same: within {1 / (1 + margin):.3f} to {1 + margin:.3f}; "
        "faster, slower: else, and without 1."
    ]


@dataclass(frozen=True)
class Aside:
    """A table of what points have beside their speed.

    Attributes:
        head: Of what, its unit, and the units of the difference and its interval.
        rows: What, ranks, A, B, the difference, its interval, and the case.
    """

    caption: str
    head: tuple[str, str, str]
    rows: list[list[str]]
    note: str


def asides(comparison: Comparison) -> list[Aside]:
    """Return what points have beside their speed: shares, and the times of trainings."""
    shares: list[list[str]] = []
    spent: list[list[str]] = []
    for pair, judged in comparison.points:
        ranks = str(pair.world_size)
        for name, quantity in other_quantities(pair, judged.blocked_by).items():
            low, high = quantity["low"], quantity["high"]
            span = percent_span(None if low is None or high is None else (low, high))
            cells = [percent(quantity[key]) for key in ("a", "b", "difference")]
            shares.append([name, ranks, *cells, span, pair.label])
        for time in times(pair) if not judged.blocked_by else ():
            goal = time["accuracy"]
            name = time["kind"] if goal is None else f"to {trimmed(100 * goal)} %"
            cells = [number(time["a"]), number(time["b"]), ratio(time["ratio"])]
            spent.append([name, ranks, *cells, ratio_span(time["interval"]), pair.label])
    a, b = comparison.sides
    made = [
        Aside(
            "Shares", ("quantity, %", f"{b} - {a}", "points"), shares,
            "The intervals of these quantities are not corrected for the number of points.",
        ),
        Aside(
            "Training time", ("training time, s", f"{b} / {a}", ""), spent,
            f"Medians over runs, validation left aside; below 1, {b} is quicker. Not corrected for "
            "the number of points.",
        ),
    ]  # fmt: skip
    return [aside for aside in made if aside.rows]


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
    circumstances = [
        f"differs: {name}: {values(of_a)} in {a}, {values(of_b)} in {b}"
        for name, (of_a, of_b) in comparison.environment.items()
    ]
    if comparison.same_facts:
        circumstances.append(f"equal: {listed(comparison.same_facts, 8)}")
    elif not comparison.environment:
        circumstances.append("environment: neither side says what it was measured on")
    cautions = [f"warning: {one.sentence(comparison.sides)}" for one in comparison.cautions]
    points = [["verdict", "ranks", "launches", "ratio", "interval", "memory", "case"]]
    for pair, judged in comparison.points:
        why = f"; {blocked(judged.blocked_by)}" if judged.blocked_by else ""
        points.append([
            judged.verdict, str(pair.world_size), f"{len(pair.a)} + {len(pair.b)}",
            DASH if why else f"{judged.ratio:.3f}",
            "{:.3f} to {:.3f}".format(*judged.interval) if judged.interval else DASH,
            memory(pair, judged), f"{pair.label}{why}",
        ])  # fmt: skip
    summary = outcome(comparison.points)
    parts = [
        form.listed([
            f"{a}: {names[0]}", f"{b}: {names[1]}",
            f"ratio: rate of {b} / rate of {a}; above 1, {b} is faster",
            f"memory: peak of {b} / peak of {a}, of the rank that needs most; not judged",
        ]),
        form.listed([f"{difference(comparison)}: {sentence(summary, comparison.margin)}"]),
        form.listed([*circumstances, *cautions]),
        form.table(points),
        form.listed(rule([comparison])),
    ]  # fmt: skip
    for aside in asides(comparison):
        what, of, _ = aside.head
        head = [what, "ranks", a, b, of, "95 % interval", "case"]
        parts += [form.table([head, *aside.rows]), form.listed([aside.note])]
    look = [comparison.look.sentence] if comparison.has_interval else []
    notes = [*look, *flag_notes([comparison]), *left_out(comparison)]
    parts.append(form.listed([*notes, f"next: {advice(comparison)}"]))
    return [lines.plain(line) for part in parts if part for line in (*part, "")][:-1]


def several(comparisons: Sequence[Comparison], names: Sequence[str], form: Form) -> list[str]:
    """Return comparisons with one base as lines: all side by side, then each of them as `text`."""
    each = [
        text(comparison, (names[0], name), form)
        for comparison, name in zip(comparisons, names[1:], strict=True)
    ]
    if len(each) == 1:
        return each[0]
    rows = [["ranks", *(made.sides[1] for made in comparisons), "case"]]
    for line in side_by_side(comparisons):
        cells = [
            DASH if cell is None
            else f"{'' if cell[1].blocked_by else f'{cell[1].ratio:.3f} '}{short(cell[1])}"
            for cell in line.cells
        ]  # fmt: skip
        rows.append([str(line.pair.world_size), *cells, line.pair.name])
    head = form.listed(["ratio of each to A; below, each beside A with its intervals"])
    parts = [form.table(rows), head, *each]
    return [lines.plain(line) for part in parts for line in (*part, "")][:-1]
