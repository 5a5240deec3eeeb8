"""The words of a ranking: which values of the factors are best, and which are no worse.

The words of ratios that are not over ranks: over a factor, and over another kind of device.
"""

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
    Replaced,
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


def rate_lines(series: Sequence[Series]) -> list[str]:
    """Return a table for each factor that a program is laddered over; nothing without one."""
    return [line for factor_ladder in factor_ladders(series) for line in _lines(factor_ladder)]


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
    span = percent_span(best.efficiency_interval) if best.efficiency_interval else "no interval"
    base = f"{ladder.factor}={ladder.base.value:g} at {parts.absolute(ladder.base.point)}"
    given = (
        f"{ladder.factor}={best.value:g} gives {ratio(best.speedup)}{TIMES} the rate of {base} "
        f"({percent(best.efficiency)} % efficiency, {span})"
    )
    open_ = "not shown whether any" if None in known else "no"
    goal = f"{open_} value reaches {100 * threshold:.0f} % efficiency; at best "
    kind, text = ("good", given) if good else ("open" if None in known else "below", goal + given)
    if ladder.is_blocked:
        kind, text = "blocked", BLOCKED
    fewest = min(rung.point.num_launches for rung in ladder.rungs)
    trust = f"trust: at least {counted(fewest, 'launch')} a value"
    return entry(f"Scaling over {ladder.factor}", ladder.label, kind, text, trust)


def entry(title: str, of: str, kind: str, *lines: str) -> dict[str, Any]:
    """Return a headline of what is no ladder over ranks; its text is the first of its lines."""
    return {
        "title": title, "of": of, "kind": kind, "text": lines[0], "lines": list(lines),
        "short": "", "others": [],
    }  # fmt: skip


def _lines(ladder: FactorLadder) -> list[str]:
    rows = [[ladder.factor, "rate", "speed-up", "efficiency"]]
    for rung in ladder.rungs:
        is_base = rung is ladder.base
        both = [ratio(rung.speedup), f"{percent(rung.efficiency)} %"]
        shown = [parts.allowed(rung.point, text, ladder.base.point) for text in both]
        rate = f"{number(rung.point.rate)} {ladder.series.row.sample_unit}/s"
        rows.append([f"{rung.value:g}", rate, *(["baseline"] * 2 if is_base else shown)])
    name = f"{ladder.label} over {ladder.factor}, {counted(ladder.world_size, 'rank')}:"
    return ["", name, *numbers(rows)]


def of_devices(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a headline for each device that a table sets beside a slower one."""
    return [_beside(one) for one in replaced(series)]


def _beside(found: Replaced) -> dict[str, Any]:
    """Say how much faster one device of the other kind does the work."""
    title, of = ORIGINS[found.slowest.row.origin], found.slowest.label
    if found.slowest.base.blocked_by or found.other.base.blocked_by:
        return entry(title, of, "blocked", BLOCKED)
    text = (
        f"1 device of {found.other.label} gives {ratio(found.speedup)}{TIMES} the rate of "
        f"{kind_of_device(found.slowest)} at {parts.absolute(found.slowest.base)}"
    )
    return entry(title, of, "good", text)


# Studies that measure settings of one step.
STUDIES = [name for name in NAMES if name not in (*LADDERS, *WITHOUT_RANKING)]
# Settings that are named in a sentence.
MOST_NAMED = 4


def lines(ranking: Ranking) -> list[str]:
    """Return the card: a headline, then a line for each setting."""
    equal = _equal(ranking)
    trust = counted(ranking.num_launches, "launch")
    hint = "; more --repeats tell closer settings apart" if equal else ""
    about = _values({"workload": ranking.workload} | ranking.common)
    return [
        _headline(ranking),
        *(_row(place, ranking.unit) for place in ranking.places),
        f"trust     {ranking.study}, {about}; {trust} of each setting{hint}",
    ]


def headlines(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return what each study of settings found the quickest, as a page says it first.

    A test of one's own that is parametrized is such a study, at its largest world size.
    """
    groups: dict[tuple[str, str], list[Series]] = {}
    for curve in series:
        row = curve.row
        if row.origin == "measured" and (row.study in STUDIES or row.is_own_test):
            groups.setdefault((row.study, row.workload), []).append(curve)
    return [
        _entry(ranking)
        for _, own in sorted(groups.items(), key=_place_of_study)
        for ranking in rank(own, alternatives.varied([(one, one.base) for one in own]))
        if len(ranking.places) > 1
    ]


def _place_of_study(group: tuple[tuple[str, str], object]) -> int:
    study = group[0][0]
    return STUDIES.index(study) if study in STUDIES else len(STUDIES)


def _entry(ranking: Ranking) -> dict[str, Any]:
    text = _headline(ranking)
    flagged = f"{ranking.num_flagged or 'none'} of its {len(ranking.places)} settings flagged"
    trust = f"trust: at least {counted(ranking.num_launches, 'launch')} of each setting, {flagged}"
    kind = "open" if ranking.is_one or _equal(ranking) else "good"
    title = TITLES[ranking.study] if ranking.study in STUDIES else "Settings"
    made = entry(title, ", ".join(_about(ranking)), kind, text, trust)
    return made | {"text": f"{text} {capital(trust)}."}


def _about(ranking: Ranking) -> list[str]:
    """Return the workload and what else all settings share, as a series' label does."""
    shared = {key: value for key, value in ranking.common.items() if key != "workload"}
    return [ranking.workload, *map(_setting, shared.items())]


def _equal(ranking: Ranking) -> list[Place]:
    return _of_kind(ranking, "not_shown_slower")


def _of_kind(ranking: Ranking, kind: str) -> list[Place]:
    return [place for place in ranking.places if place.kind == kind]


def _headline(ranking: Ranking) -> str:
    """Name the best and what is not shown to be slower, or say why there is none."""
    where = f"on {counted(ranking.world_size, 'rank')}"
    equal = _equal(ranking)
    if ranking.is_one:
        return f"Nothing to choose {where}: all settings made the same buckets."
    texts = [f"Nothing to rank {where}."]
    if ranking.places:
        first = ranking.places[0]
        between = f" ({span(first.interval)})" if first.interval else ""
        best = "Fastest as measured" if equal else "Best"
        if ranking.study not in STUDIES:  # whose values may change what a step does
            best = "Quickest, if all do the same work,"
        start = best if first.kind == "best" else "No best setting, for only one was measured,"
        rate = f"{number(first.rate)} {ranking.unit}/s{between}"
        texts = [f"{start} {where}: {_values(first.factors)}, {rate}."]
    if same := _of_kind(ranking, "same_buckets"):
        texts.append(f"The same buckets: {_some([place.factors for place in same])}.")
    if equal:
        texts.append(f"Statistically tied with it: {_some([place.factors for place in equal])}.")
    if ranking.absent:
        texts.append(f"Without a valid point {where}: {_some(ranking.absent)}.")
    return " ".join(texts)


def _some(settings: Sequence[Mapping[str, object]]) -> str:
    """Name the first of some settings, and count the others."""
    named = "; ".join(map(_values, settings[:MOST_NAMED]))
    others = len(settings) - MOST_NAMED
    return f"{named}; and {counted(others, 'other')}" if others > 0 else named


def of_folder(folder: Path, names: Collection[str]) -> list[str]:
    """Return the cards of the results in a folder, for the factors of these names."""
    from lockstep.report.compute.evaluation import evaluate_folder

    series = evaluate_folder(folder).series
    return [line for ranking in rank(series, names) for line in lines(ranking)]


def _row(place: Place, unit: str) -> str:
    beside = ""
    if place.kind not in ("best", "alone"):
        known = percent_span(place.interval) if place.interval else "no interval"
        beside = f"{percent(place.ratio):>6} % of the best   {known}"
    memory = f"{number(place.memory_bytes / GIGA):>7} GB" if place.memory_bytes else ""
    return f"  {_text(place):<32}{number(place.rate):>10} {unit}/s{memory} {beside}".rstrip()


def _text(place: Place) -> str:
    return _values(place.factors)


def _values(factors: Mapping[str, object]) -> str:
    return ", ".join(map(_setting, factors.items()))


def _setting(named: tuple[str, object]) -> str:
    return f"{named[0]}={named[1]}"
