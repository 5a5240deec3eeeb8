"""Headlines of what has no ladder over ranks, as a page and a terminal say them.

They are of rankings, with the card of their settings: which values of the factors are best, and
which are no worse; of programs over a factor; and of one kind of device beside another.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.core.formats import capital, counted, number, percent, percent_span, ratio, span
from lockstep.core.metrics import GIGA
from lockstep.core.studies import LADDERS, NAMES, TITLES, WITHOUT_RANKING
from lockstep.report.compute import alternatives
from lockstep.report.compute.alternatives import (
    FactorLadder,
    Place,
    Ranking,
    factor_ladders,
    kind_of_device,
    rank,
    replaced,
)
from lockstep.report.compute.scaling import Series, reaches
from lockstep.report.page import parts
from lockstep.report.words.headline import TIMES
from lockstep.report.words.lines import numbers

ORIGINS = {"cited": "Cited", "target": "Target"}
BLOCKED = "no verdict, blocked by the check"
# Studies that measure settings of one step.
STUDIES = [name for name in NAMES if name not in (*LADDERS, *WITHOUT_RANKING)]
# Settings that are named in a sentence.
MOST_NAMED = 4


def entry(title: str, of: str, kind: str, *lines: str) -> dict[str, Any]:
    """Return a headline of what is no ladder over ranks; its text is the first of its lines."""
    return {
        "title": title, "of": of, "kind": kind, "text": lines[0], "lines": list(lines),
        "short": "", "others": [],
    }  # fmt: skip


def rate_lines(series: Sequence[Series]) -> list[str]:
    """Return a table for each factor that a program is laddered over; nothing without one."""
    lines = []
    for ladder in factor_ladders(series):
        rows = [[ladder.factor, "rate", "speed-up", "efficiency"]]
        for rung in ladder.rungs:
            both = [ratio(rung.speedup), f"{percent(rung.efficiency)} %"]
            shown = [parts.allowed(rung.point, text, ladder.base.point) for text in both]
            rate = f"{number(rung.point.rate)} {ladder.series.row.sample_unit}/s"
            is_base = rung is ladder.base
            rows.append([f"{rung.value:g}", rate, *(["baseline"] * 2 if is_base else shown)])
        ranks = counted(ladder.world_size, "rank")
        lines += ["", f"{ladder.label} over {ladder.factor}, {ranks}:", *numbers(rows)]
    return lines


def rate_headlines(series: Sequence[Series], threshold: float) -> list[dict[str, Any]]:
    """Return a headline for each ladder over a factor, as those of ladders over ranks are."""
    return [_rate_headline(factor_ladder, threshold) for factor_ladder in factor_ladders(series)]


def _rate_headline(ladder: FactorLadder, threshold: float) -> dict[str, Any]:
    above = ladder.rungs[1:]
    known = [
        reaches(one.efficiency, one.efficiency_interval, threshold, one.point.rows[0])
        for one in above
    ]
    good = [rung for rung, is_good in zip(above, known, strict=True) if is_good]
    best = good[-1] if good else max(above, key=lambda rung: rung.efficiency)
    ends = percent_span(best.efficiency_interval) if best.efficiency_interval else "no interval"
    base = f"{ladder.factor}={ladder.base.value:g} at {parts.absolute(ladder.base.point)}"
    text = (
        f"{ladder.factor}={best.value:g} gives {ratio(best.speedup)}{TIMES} the rate of {base} "
        f"({percent(best.efficiency)} % efficiency, {ends})"
    )
    kind = "good" if good else "open" if None in known else "below"
    if not good:
        sure = "not shown whether any" if kind == "open" else "no"
        text = f"{sure} value reaches {100 * threshold:.0f} % efficiency; at best {text}"
    if ladder.is_blocked:
        kind, text = "blocked", BLOCKED
    fewest = min(rung.point.num_launches for rung in ladder.rungs)
    trust = f"trust: at least {counted(fewest, 'launch')} a value"
    return entry(f"Scaling over {ladder.factor}", ladder.label, kind, text, trust)


def of_devices(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a headline for each device that a table sets beside a slower one."""
    made = []
    for one in replaced(series):
        kind, text = "good", (
            f"1 device of {one.other.label} gives {ratio(one.speedup)}{TIMES} the rate of "
            f"{kind_of_device(one.slowest)} at {parts.absolute(one.slowest.base)}"
        )  # fmt: skip
        if one.slowest.base.blocked_by or one.other.base.blocked_by:
            kind, text = "blocked", BLOCKED
        made.append(entry(ORIGINS[one.slowest.row.origin], one.slowest.label, kind, text))
    return made


def headlines(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return what each study of settings found the quickest, as a page says it first.

    A test of one's own that is parametrized is such a study, at its largest world size.
    """
    groups: dict[tuple[str, str], list[Series]] = {}
    for curve in series:
        row = curve.row
        if row.origin == "measured" and (row.study in STUDIES or row.is_own_test):
            groups.setdefault((row.study, row.workload), []).append(curve)
    order = {study: place for place, study in enumerate(STUDIES)}
    found = [
        ranking
        for _, own in sorted(groups.items(), key=lambda one: order.get(one[0][0], len(STUDIES)))
        for ranking in rank(own, alternatives.varied([(one, one.base) for one in own]))
        if len(ranking.places) > 1
    ]
    # What all settings of a study share is said of all series.
    count = Counter(ranking.study for ranking in found)
    alone = {study for study in STUDIES if count[study] == 1}
    return [_entry(one, "" if one.study in alone else _about(one)) for one in found]


def _entry(ranking: Ranking, of: str) -> dict[str, Any]:
    text = _headline(ranking)
    flagged = f"{ranking.num_flagged or 'none'} of its {len(ranking.places)} settings flagged"
    trust = f"trust: at least {counted(ranking.num_launches, 'launch')} of each setting, {flagged}"
    kind = "open" if ranking.is_one or _of_kind(ranking, "not_shown_slower") else "good"
    title = TITLES[ranking.study] if ranking.study in STUDIES else "Settings"
    made = entry(title, of, kind, text, trust)
    return made | {"text": f"{text} {capital(trust)}."}


def lines(ranking: Ranking) -> list[str]:
    """Return the card: a headline, then a line for each setting."""
    rows = []
    for place in ranking.places:
        beside = ""
        if place.kind not in ("best", "alone"):
            known = percent_span(place.interval) if place.interval else "no interval"
            beside = f"{percent(place.ratio):>6} % of the best   {known}"
        memory = f"{number(place.memory_bytes / GIGA):>7} GB" if place.memory_bytes else ""
        rate = f"{number(place.rate):>10} {ranking.unit}/s"
        rows.append(f"  {_values(place.factors):<32}{rate}{memory} {beside}".rstrip())
    trust = counted(ranking.num_launches, "launch")
    tied = _of_kind(ranking, "not_shown_slower")
    hint = "; more --repeats tell closer settings apart" if tied else ""
    return [
        _headline(ranking),
        *rows,
        f"trust     {ranking.study}, {_about(ranking)}; {trust} of each setting{hint}",
    ]


def _about(ranking: Ranking) -> str:
    """Return the workload and what else all settings share."""
    shared = _values({key: value for key, value in ranking.common.items() if key != "workload"})
    return ", ".join(filter(None, (ranking.workload, shared)))


def _of_kind(ranking: Ranking, kind: str) -> list[Place]:
    return [place for place in ranking.places if place.kind == kind]


def _headline(ranking: Ranking) -> str:
    """Name the best and what is not shown to be slower, or say why there is none."""
    where = f"on {counted(ranking.world_size, 'rank')}"
    tied = _of_kind(ranking, "not_shown_slower")
    if ranking.is_one:
        return f"Nothing to choose {where}: all settings made the same buckets."
    texts = [f"Nothing to rank {where}."]
    if ranking.places:
        first = ranking.places[0]
        between = f" ({span(first.interval)})" if first.interval else ""
        best = "Fastest as measured" if tied else "Best"
        if ranking.study not in STUDIES:  # whose values may change what a step does
            best = "Quickest, if all do the same work,"
        start = best if first.kind == "best" else "No best setting, for only one was measured,"
        rate = f"{number(first.rate)} {ranking.unit}/s{between}"
        texts = [f"{start} {where}: {_values(first.factors)}, {rate}."]
    others = []
    if tied:
        others.append(f"statistically tied with it: {_some([place.factors for place in tied])}")
    if same := _of_kind(ranking, "same_buckets"):
        others.append(f"the same buckets: {_some([place.factors for place in same])}")
    if ranking.absent:
        others.append(f"without a valid point {where}: {_some(ranking.absent)}")
    texts += [f"{capital('; '.join(others))}."] if others else []
    return " ".join(texts)


def _some(settings: Sequence[Mapping[str, object]]) -> str:
    """Name the first of some settings, and count the others."""
    first, *more = settings[:MOST_NAMED]
    is_one = len(first) == 1 and all(other.keys() == first.keys() for other in more)
    rest = [", ".join(map(str, other.values())) if is_one else _values(other) for other in more]
    named = (", " if is_one else "; ").join([_values(first), *rest])
    others = len(settings) - MOST_NAMED
    return f"{named}; and {counted(others, 'other')}" if others > 0 else named


def _values(factors: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in factors.items())


def of_folder(folder: Path, names: Collection[str]) -> list[str]:
    """Return the cards of the results in a folder, for the factors of these names."""
    from lockstep.report.compute.evaluation import evaluate_folder

    series = evaluate_folder(folder).series
    return [line for ranking in rank(series, names) for line in lines(ranking)]
