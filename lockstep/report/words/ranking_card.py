"""The words of a ranking: which values of the factors are best, and which are no worse."""

from collections.abc import Collection
from pathlib import Path

from lockstep.report.compute.ranking import Place, Ranking, rank
from lockstep.vocabulary.text.formats import counted, number, percent, percent_span, span


def lines(ranking: Ranking) -> list[str]:
    """Return the card: a headline, then a line for each setting."""
    best, *others = ranking.places
    equal = [place for place in others if place.kind == "not_told_apart"]
    between = f" ({span(best.interval)})" if best.interval else ""
    headline = (
        f"Best on {counted(ranking.world_size, 'rank')}: {_text(best)}, "
        f"{number(best.rate)} {ranking.unit}/s{between}."
    )
    if equal:
        headline += f" Not told apart from it: {'; '.join(map(_text, equal))}."
    trust = counted(ranking.num_launches, "launch")
    hint = "; more --repeats tell closer settings apart" if equal else ""
    about = ", ".join(f"{key}={value}" for key, value in ranking.common.items())
    return [
        headline,
        *(_row(place, ranking.unit) for place in ranking.places),
        f"trust     {ranking.study}, {about}; {trust} of each setting{hint}",
    ]


def of_folder(folder: Path, names: Collection[str]) -> list[str]:
    """Return the cards of the results in a folder, for the factors of these names."""
    from lockstep.report.compute.scaling import series_of
    from lockstep.report.load.reading import load

    kept, _ = load([folder]).split()
    return [line for ranking in rank(series_of(kept), names) for line in lines(ranking)]


def _row(place: Place, unit: str) -> str:
    beside = ""
    if place.kind != "best":
        known = percent_span(place.interval) if place.interval else "no interval"
        beside = f"{percent(place.ratio):>6} % of the best   {known}"
    return f"  {_text(place):<32}{number(place.rate):>10} {unit}/s {beside}".rstrip()


def _text(place: Place) -> str:
    return ", ".join(f"{name}={value}" for name, value in place.factors.items())
