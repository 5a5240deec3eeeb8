"""The top of the page: a headline for each study, four tiles and one figure, as plain data."""

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.core.formats import counted, percent, percent_span
from lockstep.core.studies import LADDERS, OTHER, TITLES
from lockstep.report.check.evidence import joined
from lockstep.report.compute.scaling import Series
from lockstep.report.page import parts, plots
from lockstep.report.words import headline, next_step
from lockstep.report.words.headline import Headline

KINDS = {name: TITLES[name] for name in LADDERS} | {"cited": "Cited", "target": "Target"}
# In a figure as small as the one beside the headlines.
MAX_CURVES = 4

Why = Callable[[Series], str]


def headlines(
    series: Sequence[Series], threshold: float, blocked: Why
) -> dict[str, list[Headline]]:
    """Return what is to be said of every series, by study and origin, the measured ladders first.

    `blocked` gives why nothing is concluded of a series, which is empty where something is.
    """
    found: dict[str, list[Headline]] = {}
    for kind in KINDS:
        chosen = [curve for curve in series if _kind(curve) == kind]
        if made := [headline.judge(curve, threshold, blocked(curve)) for curve in chosen]:
            found[kind] = sorted(made, key=_is_blocked_test)
    return found


def worst_first(series: Sequence[Series]) -> list[Series]:
    """Order tests of one's own so that the one that scales worst is the first; others stay."""
    return sorted(series, key=_efficiency_of_test)


def _efficiency_of_test(series: Series) -> float:
    return series.points[-1].parallel_efficiency if series.row.is_own_test else 0.0


def _is_blocked_test(one: Headline) -> bool:
    return one.series.row.is_own_test and one.kind == "blocked"


def _kind(series: Series) -> str:
    row = series.row
    if row.origin == "measured":
        return row.study
    return row.origin if row.study != OTHER and len(series.points) > 1 else ""


def lines(found: dict[str, list[Headline]]) -> list[dict[str, Any]]:
    """Return the headline of each study, with those of its other series."""
    return [
        {
            "title": KINDS[kind],
            "of": first.series.label,
            "kind": first.kind,
            "text": headline.sentence(first),
            "lines": headline.lines(first),
            "short": headline.in_short(others),
            "others": [f"{one.series.label}: {headline.sentence(one)}" for one in others],
        }
        for kind, (first, *others) in found.items()
    ]


def first_of(found: dict[str, list[Headline]]) -> Headline | None:
    """Return the headline that the page is about: the first that nothing blocks."""
    every = [one for own in found.values() for one in own]
    return next((one for one in every if one.kind != "blocked"), every[0] if every else None)


def tiles(about: Headline | None, checked: str) -> list[dict[str, str]]:
    """Return the four figures that a reader looks for first, each with where it leads."""
    if about is None or about.kind == "blocked":
        return []
    key = about.series.row.study if about.series.row.origin == "measured" else about.noun
    made = [*_scaling(about), _lost(about), _trust(about, checked)]
    home = "" if about.noun != "rank" else f"#{key}"
    return [{"href": home} | one for one in made if one["value"]]


def _scaling(about: Headline) -> list[dict[str, str]]:
    point, goal = about.point, f"{100 * about.threshold:.0f} %"
    if about.kind == "alone":
        return [_tile("Measured at", counted(point.world_size, about.noun), parts.absolute(point))]
    good = about.kind == "good"
    lacking = "none" if about.kind == "below" else "not shown"
    size = counted(point.world_size, about.noun) if good else lacking
    note = f"{about.series.label}, {goal} efficiency or more"
    if open_sizes := about.series.unshown(about.threshold):
        sizes = joined([one.world_size for one in open_sizes])
        shows = "more launches" if all(one.efficiency_interval for one in open_sizes) else (
            f"at least {next_step.WANTED_LAUNCHES} launches of each size"
        )  # fmt: skip
        note += f"; at {sizes} {about.noun}s not shown, {shows} would show it"
    interval = point.efficiency_interval
    span = f"{percent_span(interval)} %" if interval else "no interval"
    where = "there" if good else f"at best, {counted(point.world_size, about.noun)}"
    gain = f"{headline.gain(point)} {counted(about.series.baseline, about.noun)}"
    return [
        _tile("Largest good size", size, note),
        _tile(f"Efficiency {where}", f"{percent(point.parallel_efficiency)} %", f"{span}; {gain}"),
    ]


def _lost(about: Headline) -> dict[str, str]:
    """Return all that is lost at the size of which it is told, and what most of it goes to."""
    at = f"Lost on {counted(about.told.world_size, about.noun)}"
    if about.why is None:
        return _tile(at, "", "")
    if about.why.kind == "named":
        return _tile(at, headline.all_lost_ms(about), headline.lost_text(about))
    return _tile(at, headline.all_lost_ms(about), headline.cause_text(about))


def _trust(about: Headline, checked: str) -> dict[str, str]:
    """Return what the series rests on; the page's warnings count what is flagged elsewhere."""
    backed = headline.backing(about)
    if backed is None:
        value, notes = headline.trust(about), [checked]
    else:
        value, notes = headline.launches_text(backed), [headline.flags_text(backed), checked]
    href = "#flags" if backed and backed.num_flagged else "#check" if checked else "#method"
    return _tile("Trust", value, "; ".join(filter(None, notes))) | {"href": href}


def _tile(label: str, value: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def figure(found: dict[str, list[Headline]], threshold: float) -> dict[str, Any] | None:
    """Return the efficiency of the first study that has a curve; None where none has."""
    for kind, own in found.items():
        drawn = [one.series for one in own if one.kind not in ("blocked", "alone")][:MAX_CURVES]
        if drawn:
            made = plots.efficiency(kind, drawn, threshold, {})
            title = f"{KINDS[kind]}: parallel efficiency"
            left = f"First {len(drawn)} of {len(own)} series. " if len(own) > len(drawn) else ""
            noun = "Ranks" if own[0].noun == "rank" else "Devices"
            return made | {"id": "top-efficiency", "title": title, "note": left, "xlabel": noun}
    return None
