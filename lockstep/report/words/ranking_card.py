"""The words of a ranking: which values of the factors are best, and which are no worse."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.compute.alternatives import compared
from lockstep.report.compute.alternatives.ranking import Place, Ranking, rank
from lockstep.report.compute.scaling import Series
from lockstep.report.page.panels.parts import TITLES
from lockstep.report.words.rate_cards import entry
from lockstep.vocabulary.metrics import GIGA
from lockstep.vocabulary.text.formats import counted, number, percent, percent_span, span

# Studies that measure settings of one step, of which one is the best.
STUDIES = ("bucket", "precision", "accumulation", "sensitivity", "loader")
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
    """Return the best setting of each study that measured several, as a page says it first."""
    made = []
    for study in STUDIES:
        own = [one for one in series if one.row.study == study and one.row.origin == "measured"]
        names = compared.varied([(one, one.base) for one in own])
        made += [_entry(study, one) for one in rank(own, names) if len(one.places) > 1]
    return made


def _entry(study: str, ranking: Ranking) -> dict[str, Any]:
    said = _headline(ranking)
    trust = f"trust: {counted(ranking.num_launches, 'launch')} of each setting"
    made = entry(TITLES[study], ", ".join(_about(ranking)), "good", said, trust)
    return made | {"text": f"{said} {trust.capitalize()}."}


def _about(ranking: Ranking) -> list[str]:
    """Return the workload and what else all settings share, as a series' label does."""
    shared = {key: value for key, value in ranking.common.items() if key != "workload"}
    return [ranking.workload, *map(_setting, shared.items())]


def _equal(ranking: Ranking) -> list[Place]:
    return [place for place in ranking.places if place.kind == "not_told_apart"]


def _headline(ranking: Ranking) -> str:
    """Name the best and whom it is not told apart from, or say why there is none."""
    equal = _equal(ranking)
    where = f"on {counted(ranking.world_size, 'rank')}"
    said = [f"Nothing to rank {where}."]
    if ranking.places:
        first = ranking.places[0]
        between = f" ({span(first.interval)})" if first.interval else ""
        said = [f"{_text(first)}, {number(first.rate)} {ranking.unit}/s{between}."]
        start = "Best" if first.kind == "best" else "No best setting, for only one was measured,"
        said[0] = f"{start} {where}: {said[0]}"
    if equal:
        said.append(f"Not shown to be slower: {_some([place.factors for place in equal])}.")
    if ranking.absent:
        said.append(f"Without a valid point there: {_some(ranking.absent)}.")
    return " ".join(said)


def _some(settings: Sequence[Mapping[str, object]]) -> str:
    """Name the first of some settings, and count the others."""
    named = "; ".join(map(_values, settings[:MOST_NAMED]))
    others = len(settings) - MOST_NAMED
    return f"{named}; and {counted(others, 'other')}" if others > 0 else named


def of_folder(folder: Path, names: Collection[str]) -> list[str]:
    """Return the cards of the results in a folder, for the factors of these names."""
    from lockstep.report.page.checked import series_in

    return [line for ranking in rank(series_in(folder), names) for line in lines(ranking)]


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
