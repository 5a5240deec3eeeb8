"""The summary of a comparison: its sentences, and the text of `lockstep compare`."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from lockstep.core.formats import (
    DASH,
    capital,
    counted,
    listed,
    number,
    percent,
    percent_span,
    ratio_span,
    trimmed,
)
from lockstep.core.formats import ratio as as_ratio
from lockstep.measure.causes.bound import NAMES
from lockstep.report.check.evidence import blocked_text, joined
from lockstep.report.compare.comparison import (
    FIRST_FACTS,
    Both,
    Comparison,
    Pair,
    ambiguity,
    changed_causes,
    other_quantities,
    times,
)
from lockstep.report.compare.judging import BLOCKED, FASTER, SAME, SLOWER, UNKNOWN, Judged
from lockstep.report.compute.scaling import WIDEST
from lockstep.report.compute.statistics import CONFIDENCE, launches_needed
from lockstep.report.words import lines

JudgedPair = tuple[Pair, Judged]
# Why the noise of a point is unknown: a side has no repeats, the launches are equal to the last
# digit, or the repeats of a side share a job.
BARE, EQUAL, ONE_JOB = "no-interval", "no-spread", "one-job"
# Kind of a point -> text of a cell, and of a sentence that counts points.
KINDS = {
    SLOWER: ("slower", "slower"),
    FASTER: ("faster", "faster"),
    SAME: ("same", "the same within {margin:g} %"),
    UNKNOWN: ("too noisy", "too noisy ({seen})"),
    BARE: ("no repeat", "without repeats"),
    EQUAL: ("equal launches", "of unknown noise, because the launches are equal to the last digit"),
    ONE_JOB: ("one job", "of unknown noise, because the repeats share a job"),
    BLOCKED: ("blocked", "blocked by errors that lockstep check reports"),
}
MOST_CHANGE = 10.0  # factor; larger changes are obvious
MOST_SENSIBLE = 40  # launches per side; nobody will measure more
MOST_NAMED, MOST_SIZES = 2, 6  # differences and sizes that fit in a headline
LARGEST = 1000  # per cent that fit in a cell
TOO_WIDE = "too wide"
# A hash; texts show its first characters.
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")
_NAMES = {
    "image_sha256": "image", "project_commit": "commit", "project_dirty": "uncommitted changes",
    "git_commit": "commit of Lockstep", "device_names": "devices", "num_nodes": "nodes",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The summary of the points of a comparison.

    Attributes:
        kind: "differs" if a point is slower or faster, "same" or "blocked" if all points are,
            else "unshown".
        counts: Number of points of each kind of `KINDS`.
        slower: The slower points, the largest change first; `faster` has the faster ones.
        seen: A clause on the change that noisy points would have detected; may be empty.
    """

    kind: str
    counts: Counter[str]
    slower: Sequence[JudgedPair]
    faster: Sequence[JudgedPair]
    seen: str


def outcome(points: Sequence[JudgedPair]) -> Outcome:
    """Return the summary of the points of a comparison, or of one study of it."""
    counts = Counter(kind_of(judged) for _, judged in points)
    by_ratio = sorted(points, key=lambda point: point[1].ratio)
    slower = [point for point in by_ratio if point[1].verdict == SLOWER]
    faster = [point for point in reversed(by_ratio) if point[1].verdict == FASTER]
    changes = sorted(
        MOST_CHANGE + 1 if judged.smallest_change is None else judged.smallest_change
        for _, judged in points
        if kind_of(judged) == UNKNOWN
    )
    seen = ""
    if changes and (usual := median_high(changes)) <= MOST_CHANGE:
        seen = f"a point {both_ways(usual)} would have been detected 9 times in 10"
        if (most := changes[-1]) > usual:
            more = "" if most <= MOST_CHANGE else "more than "
            worst = f"{more}{both_ways(min(most, MOST_CHANGE))}"
            seen += f" at the noise of the median point, and {worst} at that of the noisiest"
    kind = "unshown"
    if slower or faster:
        kind = "differs"
    elif len(counts) == 1:
        kind = {BLOCKED: "blocked", SAME: "same"}.get(next(iter(counts)), kind)
    return Outcome(kind, counts, slower, faster, seen)


def both_ways(change: float) -> str:
    """Return a change that noise would hide as text: by how much faster, and by how much slower."""
    more = f"{trimmed(100 * change, 2)} % faster" if change < 1 else (
        f"{trimmed(1 + change, 2)} times as fast")  # fmt: skip
    return f"{more} or {trimmed(100 * change / (1 + change), 2)} % slower"


def kind_of(judged: Judged) -> str:
    """Return a point's verdict, or `BARE`, `EQUAL` or `ONE_JOB` if its noise is unknown."""
    if judged.in_one_job:
        return ONE_JOB
    if judged.verdict != UNKNOWN or judged.interval:
        return judged.verdict
    return EQUAL if judged.is_repeated else BARE


def short(judged: Judged) -> str:
    return KINDS[kind_of(judged)][0]


def main_differences(comparison: Comparison) -> dict[str, Both]:
    """Return the differing factors, software and devices, the subjects of most comparisons."""
    names = {name for pair, _ in comparison.points for name in pair.changed} | {*FIRST_FACTS}
    return {name: both for name, both in comparison.environment.items() if name in names}


def values(of_side: Sequence[Any]) -> str:
    if not of_side:
        return "nothing"
    texts = [
        listed(v, 4) if isinstance(v, list) else "unknown" if v is None else v for v in of_side
    ]
    return listed([_HASH.sub(r"\1...", str(text)) for text in texts], 4)


def fact(name: str) -> str:
    """Return the display name of a fact; users' own facts keep their name."""
    is_own = name.startswith(("variable ", "source of ", "DDP ", "loader "))
    return name if is_own else _NAMES.get(name, name.replace("_", " "))


def difference(comparison: Comparison) -> str:
    """Return the start of a sentence that names what differs between A and B."""
    main, every = main_differences(comparison), comparison.environment
    if copies := [own for own in comparison.cautions if own.kind == "copies"]:
        shared = counted(copies[0].values["count"], "launch")
        return f"A and B share {shared}, which cannot show a difference"
    own = dict(every)
    if "loader num_workers" in every:  # others follow from it
        own.pop("steps_per_round", None)
        if any(None in side for side in every.get("loader prefetch_factor", ())):
            del own["loader prefetch_factor"]
    if not main and len(own) == 1:
        main = every = own
    if not main and every:
        return f"Other {listed([fact(name) for name in every], MOST_NAMED)}"
    if not main:
        return "A and B have no recorded difference"
    texts = [f"{fact(k)} {values(b)} instead of {values(a)}" for k, (a, b) in main.items()]
    more = len(every) - min(len(texts), MOST_NAMED)
    named = [*texts[:MOST_NAMED], *([counted(more, "other difference")] if more else [])]
    return f"With {joined(named)}"


def sentence(summary: Outcome, margin: float) -> str:
    """Return the summary as text: the strongest claims, then the number of points per kind."""
    total = summary.counts.total()
    claims = {
        "differs": " and ".join(
            _claim(points, is_named=total > 1)
            for points in (summary.slower, summary.faster)
            if points
        ),
        "same": f"no point differs by more than {100 * margin:g} %",
        "blocked": "no verdict",
        "unshown": "no difference is shown",
    }[summary.kind]
    noise = summary.seen or "even a large change could have gone undetected"
    counts = {
        text.format(margin=100 * margin, seen=noise): summary.counts[kind]
        for kind, (_, text) in KINDS.items()
        if summary.counts[kind]
    }
    (text, first), *rest = counts.items()
    if not rest:
        subject = f"All {total} points are" if total > 1 else "The point is"
        return f"{claims}. {subject} {text}."
    verb = "is" if first == 1 else "are"
    parts = [f"{first} {verb} {text}", *(f"{count} {other}" for other, count in rest)]
    return f"{claims}. Of {counted(total, 'point')}, {joined(parts)}."


def _claim(points: Sequence[JudgedPair], *, is_named: bool) -> str:
    """Return which sizes are slower, or faster, and the change of the first point."""
    pair, judged = points[0]
    sizes = sorted({pair.world_size for pair, _ in points})
    sign = -1 if judged.verdict == SLOWER else 1
    ends = sorted(sign * (end - 1) for end in judged.interval or ())
    much = f"{percent(sign * (judged.ratio - 1))} %"
    span = f"({percent(ends[0])} to {percent(ends[1])} %)"
    where = f" in {pair.a[0].study} {pair.case_label}" if is_named else ""
    if len(sizes) > 1:
        ranks = joined(sizes) if len(sizes) <= MOST_SIZES else f"{sizes[0]} to {sizes[-1]}"
        largest = counted(pair.world_size, "rank")
        most = f"up to {much} {span} on {largest}{where}"
        return f"{ranks} ranks are {judged.verdict}, by {most}"
    verb = "is" if sizes == [1] else "are"
    return f"{counted(sizes[0], 'rank')} {verb} {much} {judged.verdict} {span}{where}"


def advice(comparison: Comparison) -> str:
    summary = outcome(comparison.points)
    cautions = {caution.kind for caution in comparison.cautions}
    if summary.counts[BLOCKED]:
        rules = dict.fromkeys(rule for _, judged in comparison.points for rule in judged.blocked_by)
        return (
            f"Fix the errors that lockstep check reports for these points ({joined(rules)}), then "
            "compare again."
        )
    if "copies" in cautions:
        return "Measure B again: launches that are in both A and B cannot show a difference."
    unknown = {
        BARE: "Measure five launches per side: without repeats the noise is unknown.",
        EQUAL: "Give the rate of each launch with more digits: equal rates show no noise.",
        ONE_JOB: (
            "Measure the repeats of A and of B in several jobs: set share_job = false under "
            "[jobs] in both campaign files."
        ),
    }
    if all(pair and "measured" not in {pair.a[0].origin, pair.b[0].origin}
           for pair, _ in comparison.points):  # fmt: skip
        unknown[BARE] = (
            "Read the ratios without a verdict: imported values have no repeats, so their "
            "noise is unknown."
        )
    for kind in filter(summary.counts.__getitem__, unknown):
        return unknown[kind]
    if summary.kind == "differs":
        if "busy" in cautions:
            return "Measure again on a quiet machine, in the order A B B A."
        if "not-in-turn" in cautions:
            return "Measure again in the order A B B A: the machine may have drifted."
        names = [fact(name) for name in main_differences(comparison)]
        if len(names) > 1:
            return (
                f"Set only one of {listed(names, 4)} back to its value in A, and measure again to "
                "find the cause."
            )
        return "Run lockstep report to see where the time of B goes."
    noisy = [
        (judged.spread or 0.0, judged.ratio)
        for _, judged in comparison.points
        if judged.verdict == UNKNOWN
    ]
    if not noisy:
        return "Nothing is left to do: all points are the same within the margin."
    # At the error rate of the next look at more launches.
    error = comparison.error * comparison.look.next_share / comparison.look.share
    (most, ratio), goal = max(noisy), trimmed(100 * comparison.margin, 2)
    goal, change = f"detect a change of {goal} %", comparison.margin
    if (measured := max(ratio, 1 / ratio) - 1) > change:
        goal, change = f"detect a true ratio of {as_ratio(ratio)}", measured
    needed = launches_needed(most, change, error)
    if needed is None or needed > MOST_SENSIBLE:
        number_needed = needed or "more than 1,000"
        return (
            f"Find what disturbs the machine: launches vary by up to {percent(most)} %, so "
            f"{number_needed} launches per side are needed to {goal} at the noisiest point."
        )
    return f"Measure {needed} launches per side to {goal} at the noisiest point."


def change(value: float | None) -> str:
    """Return a ratio as a signed change in per cent, without the unit."""
    if value is None:
        return DASH
    per_cent = round(100 * (value - 1), 1)
    if per_cent > LARGEST:
        return f"> +{LARGEST}"
    return f"{per_cent:+.1f}" if per_cent else "0.0"


def interval(judged: Judged, end: Callable[[float], str] = "{:.3f}".format) -> str:
    """Return a point's interval as a cell; `end` prints each end of it."""
    if judged.interval is None:
        return DASH
    low, high = judged.interval
    return TOO_WIDE if high > WIDEST * low else f"{end(low)} to {end(high)}"


def memory(pair: Pair, judged: Judged) -> str:
    """Return the ratio of peak memory as a cell; a dash if it is unknown or blocked."""
    value = None if judged.blocked_by else pair.memory_ratio
    return DASH if value is None else f"{value:.3f}"


def flag_notes(comparison: Comparison) -> list[str]:
    """Return a sentence for each flag, with its points."""
    flags: dict[tuple[str, str], list[str]] = {}
    for pair, _ in comparison.points:
        for side, flag in pair.flags:
            places = flags.setdefault((side, str(flag)), [])
            places.append(f"{pair.label} at {pair.world_size}")
    return [f"flag: {side}: {flag}: {listed(own, 3)}" for (side, flag), own in flags.items()]


def omissions(comparison: Comparison) -> list[str]:
    """Return sentences on points without a partner or with several, and on --allow."""
    only = zip("AB", (comparison.only_in_a, comparison.only_in_b), strict=True)
    texts = [
        f"only in {side}: {counted(len(keys), 'point')}: {listed(map(str, keys), 3)}"
        for side, keys in only
        if keys
    ]
    if comparison.ambiguous:
        texts.append(f"not compared: {ambiguity(comparison.ambiguous)}")
    return texts + [
        f"--allow {name} would compare {counted(count, 'more point')}"
        for name, count in comparison.allowing.items()
    ]


def rule(comparison: Comparison) -> list[str]:
    """Return sentences on the level of the intervals and the verdicts; none without intervals."""
    tested = sum(judged.interval is not None for _, judged in comparison.points)
    if not tested:
        return []
    level, share = 100 * (1 - comparison.error), 100 * comparison.look.share
    corrected = f", corrected for {tested} points" if tested > 1 else ""
    low, high = 1 / (1 + comparison.margin), 1 + comparison.margin
    text = (
        f"Confidence level of the intervals: {level:.3g} %{corrected}; this look uses "
        f"{share:.3g} % of the {100 * (1 - CONFIDENCE):g} % risk of a false claim. A point is the "
        f"same if its interval lies within {low:.3f} to {high:.3f}. A point is faster or slower if "
        "its interval goes beyond this range and excludes 1."
    )
    if any(interval(judged) == TOO_WIDE for _, judged in comparison.points):
        text += (
            " An interval is too wide if the launches are too few and too different to "
            "exclude any change."
        )
    return [text]


@dataclass(frozen=True)
class Aside:
    """A table of quantities other than speed, with its caption, headings and note."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    note: str


def asides(comparison: Comparison) -> list[Aside]:
    """Return the tables of quantities other than speed: shares, and times of trainings."""
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
            cells = [number(time["a"]), number(time["b"]), as_ratio(time["ratio"])]
            spent.append([name, ranks, *cells, ratio_span(time["interval"]), pair.label])
    tables = [
        Aside(
            "Shares",
            ["Quantity", "Ranks", "A (%)", "B (%)", "B - A (points)", "95 % interval (points)",
             "Case"], shares,
            "The intervals of these quantities are not corrected for the number of points.",
        ),
        Aside(
            "Training time",
            ["Time", "Ranks", "A (s)", "B (s)", "B / A", "95 % interval", "Case"], spent,
            "Times are medians over runs, and leave out validation. A ratio below 1 means that B "
            "is faster. The intervals are not corrected for the number of points.",
        ),
    ]  # fmt: skip
    return [aside for aside in tables if aside.rows]


def text(
    comparison: Comparison, names: tuple[str, str], redacted: Callable[[Any], Any] = list, *,
    is_markdown: bool = False,
) -> list[str]:  # fmt: skip
    """Return the comparison as lines: the circumstances, then the points and their notes.

    `redacted` removes names before texts are wrapped.
    """

    def table(rows: Sequence[Sequence[str]]) -> list[str]:
        return (lines.markdown_table if is_markdown else lines.table)(redacted(rows))

    def say(texts: Sequence[str]) -> list[str]:
        if is_markdown:
            return [f"- {lines.markdown(text)}" for text in redacted(texts)]
        return [line for text in redacted(texts) for line in lines.sentence(text)]

    circumstances = [
        f"differs: {fact(name)}: {in_a} in A, {in_b} in B"
        for name, sides in comparison.environment.items()
        for in_a, in_b in [map(values, sides)]
    ]
    if same := comparison.same_facts:
        circumstances = circumstances or ["differs: none of the recorded facts"]
        circumstances.append(f"equal: {listed([fact(name) for name in same], 8)}")
    elif not comparison.environment:
        circumstances.append("environment: neither A nor B recorded an environment")
    cautions = [f"warning: {own.text}" for own in comparison.cautions]
    points = [["verdict", "ranks", "launches", "A (ms)", "B (ms)", "ratio", "interval", "memory",
               "case"]]  # fmt: skip
    for pair, judged in comparison.points:
        why = f"; {blocked_text(judged.blocked_by)}" if judged.blocked_by else ""
        points.append([
            judged.verdict, str(pair.world_size), f"{len(pair.a)} + {len(pair.b)}",
            *(DASH if why else number(step_s, scale=1e3) for step_s in pair.step_s),
            DASH if why else f"{judged.ratio:.3f}", interval(judged), memory(pair, judged),
            f"{pair.label}{why}",
        ])  # fmt: skip
    is_timed = any(cell != DASH for row in points[1:] for cell in row[3:5])
    timed = ["A (ms), B (ms): median time of a step"] if is_timed else []
    summary = outcome(comparison.points)
    parts = [
        say([
            f"A: {names[0]}", f"B: {names[1]}", "ratio: rate of B / rate of A, so B is faster if "
                                                "the ratio is above 1",
            *timed,
            "memory: peak memory of B / peak memory of A, on the rank with the most; no verdict "
            "uses this ratio",
        ]),
        say([f"{difference(comparison)}: {sentence(summary, comparison.margin)}"]),
        say([*cautions, *circumstances]),
        table(points),
        say(rule(comparison)),
    ]  # fmt: skip
    for aside in asides(comparison):
        parts += [table([aside.columns, *aside.rows]), say([aside.note])]
    causes = [
        f"{capital(NAMES[cause])} {'grew' if b > a else 'shrank'} on "
        f"{counted(pair.world_size, 'rank')} from {number(a, scale=1e3)} to {number(b, scale=1e3)} "
        f"ms per step: {pair.label}. The 95 % intervals of A and of B do not overlap."
        for pair, judged in comparison.points if not (judged.blocked_by or judged.in_one_job)
        for cause, a, b in changed_causes(pair)
    ]  # fmt: skip
    look = [comparison.look.sentence] if comparison.has_interval else []
    notes = [*causes, *look, *flag_notes(comparison), *omissions(comparison)]
    parts.append(say([*notes, f"next: {advice(comparison)}"]))
    return [lines.plain(line) for part in parts if part for line in (*part, "")][:-1]
