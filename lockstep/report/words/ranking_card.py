"""Headlines of rankings of settings, of programs over a factor, and of kinds of devices.

Also the card that shows whether a step waits for its data loader.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from lockstep.core.formats import (
    capital,
    counted,
    number,
    percent,
    percent_span,
    ratio,
    ratio_span,
    span,
)
from lockstep.core.metrics import GIGA, NOTABLE
from lockstep.core.studies import LADDERS, LOADERS, NAMES, TITLES, WITHOUT_RANKING
from lockstep.report.compute import alternatives, quantities
from lockstep.report.compute.alternatives import PlaceKind, Ranking, factor_ladders, rank
from lockstep.report.compute.scaling import Point, Series, no_interval
from lockstep.report.compute.statistics import Interval
from lockstep.report.page import parts
from lockstep.report.words.headline import TIMES, entry
from lockstep.report.words.lines import numbers
from lockstep.report.words.names import factors_text

BLOCKED = "there is no verdict, because lockstep check found an error"
# Studies that measure settings of one step.
STUDIES = [name for name in NAMES if name not in (*LADDERS, *WITHOUT_RANKING)]
VERDICTS: dict[PlaceKind, str] = {
    "best": "quickest", "slower": "slower", "not_shown_slower": "statistically tied",
    "too_noisy": "too noisy to rank", "same_buckets": "the same buckets", "alone": "",
}  # fmt: skip
# Settings that are named in a sentence.
MOST_NAMED = 4


def rate_lines(series: Sequence[Series]) -> list[str]:
    """Return a table for each factor that a program is laddered over."""
    lines = []
    for ladder in factor_ladders(series):
        rows = [[ladder.factor, "rate", "speed-up", "efficiency"]]
        for point in ladder.points:
            ratios = ["baseline", "baseline"]
            if point is not ladder.base:
                texts = ratio(point.speedup), parts.efficiency_cell(point)
                ratios = [parts.ratio_cell(point, text) for text in texts]
            rate = f"{number(point.rate)} {ladder.series.row.sample_unit}/s"
            rows.append([f"{ladder.value(point):g}", rate, *ratios])
        ranks = counted(ladder.world_size, "rank")
        lines += ["", f"{ladder.label} over {ladder.factor}, {ranks}:", *numbers(rows)]
    return lines


def rate_headlines(series: Sequence[Series], threshold: float) -> list[dict[str, Any]]:
    """Return a headline for each ladder over a factor."""
    made = []
    for ladder in factor_ladders(series):
        above, factor = ladder.points[1:], ladder.factor
        good = [point for point in above if point.reaches(threshold)]
        best = good[-1] if good else max(above, key=lambda point: point.parallel_efficiency)
        ends = best.efficiency_interval
        span = percent_span(ends) if ends else no_interval(best, ladder.base)
        base = parts.rate_text(ladder.base, f"{factor}={ladder.value(ladder.base):g}")
        text = (
            f"{factor}={ladder.value(best):g} gives {ratio(best.speedup)}{TIMES} {base} "
            f"({percent(best.parallel_efficiency)} % efficiency, {span})"
        )
        kind = "good"
        if not good:
            kind = "open" if any(point.reaches(threshold) is None for point in above) else "below"
            goal = f"{100 * threshold:.0f} % efficiency; at best {text}"
            text = f"no value reaches {goal}"
            if kind == "open":
                text = f"no value is shown to reach {goal}"
        if ladder.is_blocked:
            kind, text = "blocked", BLOCKED
        fewest = min(point.num_launches for point in ladder.points)
        launches = counted(fewest, "launch")
        trust = f"trust: each value has at least {launches}"
        made.append(entry(f"Scaling over {factor}", ladder.label, kind, text, trust))
    return made


def device_headlines(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a headline for each device that a table lists beside a slower device."""
    made = []
    for pair in alternatives.compare_devices(series):
        slow, fast = pair.slowest, pair.other
        kind, text = "good", (
            f"1 device of {fast.label} gives {ratio(pair.speedup)}{TIMES} "
            f"{parts.rate_text(slow.base, alternatives.kind_of_device(slow))}"
        )  # fmt: skip
        if slow.base.blocked_by or fast.base.blocked_by:
            kind, text = "blocked", BLOCKED
        made.append(entry(slow.row.origin.capitalize(), slow.label, kind, text))
    return made


def rankings(series: Sequence[Series]) -> list[Ranking]:
    """Return the ranking of each study's settings at its largest size, with those at smaller sizes.

    A parametrized test of the user's own is such a study.
    """
    groups: dict[tuple[str, str], list[Series]] = {}
    for curve in series:
        row = curve.row
        if row.origin == "measured" and (row.study in STUDIES or row.is_own_test):
            groups.setdefault((row.study, row.workload), []).append(curve)
    order = {study: place for place, study in enumerate(STUDIES)}
    return [
        ranking
        for _, own in sorted(groups.items(), key=lambda item: order.get(item[0][0], len(STUDIES)))
        for ranking in rank(own, alternatives.find_varied([(curve, curve.base) for curve in own]))
        if len(ranking.places) > 1
    ]


def headlines(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a headline for each ranking: its best setting, and those at smaller sizes."""
    ranked = rankings(series)
    count = Counter(ranking.study for ranking in ranked)
    made = []
    for ranking in ranked:
        is_study, text = ranking.study in STUDIES, _headline(ranking)
        num_settings = len(ranking.places)
        flagged = f"{ranking.num_flagged} of the {num_settings} settings are flagged"
        launches = counted(ranking.num_launches, "launch")
        trust = f"trust: each setting has at least {launches}; {flagged}"
        made.append(entry(
            TITLES[ranking.study] if is_study else "Settings",
            # If only one study is ranked, the summary of all series names the shared settings.
            "" if is_study and count[ranking.study] == 1 else _about(ranking),
            "open" if ranking.is_one or _unsure(ranking) else "good",
            text, trust, text=f"{text} {capital(trust)}.",
            short="; ".join(f"{counted(each.world_size, 'rank')} {factors_text(best.factors)}"
                            for each in ranking.smaller for best in each.places[:1]),
            others=[*map(_headline, ranking.smaller)],
        ))  # fmt: skip
    return made


def lines(ranking: Ranking) -> list[str]:
    """Return the card: a headline, then a table of the settings, the quickest first."""
    rows = [
        ["", "step time", "throughput", "memory", "ratio to the best", "95 % over all pairs", ""]
    ]
    for place in ranking.places:
        point, memory = place.point, place.point.peak_memory_bytes
        rows.append([
            factors_text(place.factors),
            f"{number(point.step_s, scale=parts.MILLI)} ms" if point.step_s else "",
            f"{number(point.rate)} {ranking.unit}/s",
            f"{number(memory / GIGA)} GB" if memory else "",
            "" if place.kind in ("best", "alone") else ratio(place.ratio),
            ratio_span(place.interval) if place.interval else "",
            VERDICTS[place.kind],
        ])  # fmt: skip
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    trust = counted(ranking.num_launches, "launch")
    hint = "; use more --repeats to tell these settings apart" if _unsure(ranking) else ""
    return [
        _headline(ranking),
        *(f"  {line}" for line in numbers([*zip(*kept, strict=True)])),
        f"trust     {ranking.study}, {_about(ranking)}; {trust} of each setting{hint}",
    ]


def _about(ranking: Ranking) -> str:
    shared = factors_text(
        {key: value for key, value in ranking.common.items() if key != "workload"}
    )
    return ", ".join(filter(None, (ranking.workload, shared)))


def _unsure(ranking: Ranking) -> bool:
    return any(place.kind in ("not_shown_slower", "too_noisy") for place in ranking.places)


def _of_kind(ranking: Ranking, kind: PlaceKind) -> list[dict[str, object]]:
    return [place.factors for place in ranking.places if place.kind == kind]


def _headline(ranking: Ranking) -> str:
    where = f"on {counted(ranking.world_size, 'rank')}"
    if ranking.is_one:
        return f"All settings made the same buckets {where}, so there is nothing to choose."
    text = f"No setting has a valid point {where}."
    if ranking.places:
        first = ranking.places[0]
        fastest = "Fastest as measured" if _unsure(ranking) else "Fastest"
        best = fastest if _unsure(ranking) else "Best"
        condition = ""
        if ranking.study not in STUDIES:  # a user's values may change the work of a step
            best, condition = fastest, ", if all settings do the same work"
        if first.kind != "best":
            best, condition = "Only one setting was measured", ""
        rate, interval = f"{number(first.point.rate)} {ranking.unit}/s", first.point.rate_interval
        rate += f" ({span(interval)})" if interval else ""
        text = f"{best} {where}{condition}: {factors_text(first.factors)}, {rate}."
    others = {
        f"{VERDICTS['not_shown_slower']} with it": _of_kind(ranking, "not_shown_slower"),
        VERDICTS["too_noisy"]: _of_kind(ranking, "too_noisy"),
        VERDICTS["same_buckets"]: _of_kind(ranking, "same_buckets"),
        f"settings without a valid point {where}": ranking.absent,
    }
    more = "; ".join(f"{what}: {_some(own)}" for what, own in others.items() if own)
    return f"{text} {capital(more)}." if more else text


def _some(settings: Sequence[Mapping[str, object]]) -> str:
    first, *more = settings[:MOST_NAMED]
    is_same = len(first) == 1 and all(other.keys() == first.keys() for other in more)
    rest = [
        ", ".join(map(str, other.values())) if is_same else factors_text(other) for other in more
    ]
    named = (", " if is_same else "; ").join([factors_text(first), *rest])
    others = len(settings) - MOST_NAMED
    return f"{named}; and {counted(others, 'other')}" if others > 0 else named


def cards(series: Sequence[Series], names: Collection[str]) -> list[str]:
    """Return the lines of the cards of all rankings by the factors of these names."""
    return [line for ranking in rank(series, names) for line in lines(ranking)]


def own_cards(series: Sequence[Series]) -> list[str]:
    """Return the lines of the cards of the user's own parametrized tests, at each world size."""
    own = [curve for curve in series if curve.row.is_own_test]
    ranked = (each for first in rankings(own) for each in (first, *first.smaller))
    return [line for ranking in ranked for line in ["", *lines(ranking)]]


Loading = Literal["keeps-up", "waits", "open"]
# Data set of the loader study -> where its images lie.
PLACES = {
    "tensor": "images in memory",
    "memmap": "all images in one file",
    "files": "one file per image",
}
# Factors of the study that are no options of a DataLoader.
NOT_OPTIONS = ("dataset", "cache")
LOADER_VERDICTS: dict[Loading, str] = {
    "keeps-up": (
        "The loader keeps up: with {setting}, a step waits for the loader for {percent} % of its "
        "time."
    ),
    "waits": (
        "Input-bound: the loader is too slow. At best, with {setting}, a step waits for the loader "
        "for {percent} % of its time."
    ),
    "open": (
        "It is not shown whether the loader keeps up. At best, with {setting}, a step waits for "
        "the loader for {percent} % of its time."
    ),
}
# What to do next; if the loader keeps up, use its best setting.
LOADER_NEXT = {
    "waits": "use more cores and workers per rank, use a faster decoder, or store the data decoded",
    "open": "measure more launches: lockstep run --name loader --studies loader --repeats 5",
}


class Setting(NamedTuple):
    """A loader's factors with an effect, and the share of a step that waits for its batches."""

    factors: dict[str, object]
    point: Point
    idle: float
    interval: Interval | None


def judge_loader(series: Sequence[Series]) -> tuple[Loading, list[Setting]] | None:
    """Return the verdict of the loader study and its settings, the best first.

    `keeps-up`: the best setting is shown to leave less than `NOTABLE` of a step waiting. `waits`:
    it is shown to leave as much or more. `open`: launches show neither. None if no step took a
    loader's batches.
    """
    settings = []
    for curve in series:
        point = curve.points[-1]
        share, interval = quantities.pool(point.rows, "loader_idle")
        if curve.row.study not in LOADERS or share is None:
            continue
        row = point.rows[0]
        ignored = ("local_batch", *(row.details.get("ignored") or {}))
        factors = {
            name: value for name, value in row.factors.items()
            if name not in ignored and (value or name == "num_workers")
        }  # fmt: skip
        settings.append(Setting(factors, point, share, interval))
    if not settings:
        return None
    settings.sort(key=lambda setting: setting.idle)
    best = settings[0]
    # A share of 0 in every launch has no spread, and no interval.
    never = best.idle == 0 and best.point.num_launches > 1
    low, high = best.interval or ((0.0, 0.0) if never else (0.0, 1.0))
    return "keeps-up" if high < NOTABLE else "waits" if low >= NOTABLE else "open", settings


def loader_card(series: Sequence[Series]) -> list[str]:
    """Return the lines of the loader's card; empty if no step took a loader's batches."""
    judged = judge_loader(series)
    if judged is None:
        return []
    kind, settings = judged
    best = settings[0]
    verdict = LOADER_VERDICTS[kind].format(percent=percent(best.idle), setting=_text(best))
    rows = []
    for setting in settings:
        span = percent_span(setting.interval) if setting.interval else no_interval(setting.point)
        rate = f"{number(setting.point.rate)} images/s"
        waiting = f"{percent(setting.idle):>6} % waits   {span}"
        rows.append(f"  {_text(setting):<53}{rate:>16} {waiting}")
    todo = LOADER_NEXT.get(kind, f"give your DataLoader {_options(best)}")
    ranks = counted(best.point.world_size, "rank")
    trust = (
        f"the step trains a small model, and {ranks} load at the same time; a larger model may "
        "need fewer images per second"
    )
    return [verdict, *rows, f"next      {todo}", f"trust     {trust}"]


def _text(setting: Setting) -> str:
    place = PLACES.get(str(setting.factors.get("dataset")), "")
    place += f", {setting.factors['cache']}" if setting.factors.get("cache") else ""
    return _options(setting) + (f" ({place})" if place else "")


def _options(setting: Setting) -> str:
    return factors_text({k: v for k, v in setting.factors.items() if k not in NOT_OPTIONS})
