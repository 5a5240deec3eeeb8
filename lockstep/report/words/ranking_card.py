"""The words of a ranking: which values of the factors are best, and which are no worse."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from lockstep.report.compute.alternatives.ranking import Place, Ranking, rank
from lockstep.vocabulary.metrics import GIGA
from lockstep.vocabulary.text.formats import counted, number, percent, percent_span, span


def lines(ranking: Ranking) -> list[str]:
    """Return the card: a headline, then a line for each setting."""
    equal = [place for place in ranking.places if place.kind == "not_told_apart"]
    trust = counted(ranking.num_launches, "launch")
    hint = "; more --repeats tell closer settings apart" if equal else ""
    common = {"workload": ranking.workload} | ranking.common
    about = ", ".join(f"{key}={value}" for key, value in common.items())
    return [
        _headline(ranking, equal),
        *(_row(place, ranking.unit) for place in ranking.places),
        f"trust     {ranking.study}, {about}; {trust} of each setting{hint}",
    ]


def _headline(ranking: Ranking, equal: Sequence[Place]) -> str:
    """Name the best and whom it is not told apart from, or say why there is none."""
    where = f"on {counted(ranking.world_size, 'rank')}"
    said = [f"Nothing to rank {where}."]
    if ranking.places:
        first = ranking.places[0]
        between = f" ({span(first.interval)})" if first.interval else ""
        said = [f"{_text(first)}, {number(first.rate)} {ranking.unit}/s{between}."]
        start = "Best" if first.kind == "best" else "No best setting, for only one was measured,"
        said[0] = f"{start} {where}: {said[0]}"
    if equal:
        said.append(f"Not told apart from it: {'; '.join(map(_text, equal))}.")
    if ranking.absent:
        said.append(f"Without a valid point there: {'; '.join(map(_values, ranking.absent))}.")
    return " ".join(said)


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
    return ", ".join(f"{name}={value}" for name, value in factors.items())
