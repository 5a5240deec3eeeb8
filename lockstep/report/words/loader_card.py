"""Whether a step waits for its data loader, as the card that a command shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.core.formats import counted, number, percent, percent_span
from lockstep.core.metrics import NOTABLE
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Series
from lockstep.report.compute.statistics import Interval
from lockstep.report.load.results import Row

Kind = Literal["keeps-up", "waits", "open"]

# Where a data set of the loader study lies.
PLACES = {"tensor": "images in memory", "memmap": "images in a file", "files": "a file an image"}

# Factors of the study that are no options of a DataLoader.
NOT_OPTIONS = ("dataset", "cache")
SAID: dict[Kind, str] = {
    "keeps-up": "The loader keeps up:",
    "waits": "Input-bound: the loader is too slow; at best",
    "open": "Not shown whether the loader keeps up; at best",
}
# What to try next; empty for the best setting.
NEXT: dict[Kind, str] = {
    "keeps-up": "",
    "waits": "more cores and workers a rank, cheaper decoding, or data stored as it is used",
    "open": "measure more launches: lockstep run --name loader --studies loader --repeats 5",
}


@dataclass(frozen=True)
class Setting:
    """One setting of a loader.

    Attributes:
        images_per_s: That the loaders of all ranks deliver.
        idle: Share of a step on its batches that waits for it.
        interval: Of that share, over launches.
        num_ranks: That loaded at once.
    """

    factors: dict[str, object]
    images_per_s: float | None
    idle: float
    interval: Interval | None
    num_ranks: int
    num_launches: int


@dataclass(frozen=True)
class Loading:
    """What the loader study says.

    Attributes:
        kind: `keeps-up`: the best setting is shown to leave less than `NOTABLE` of a step waiting.
            `waits`: it is shown to leave as much or more. `open`: launches show neither.
    """

    kind: Kind
    settings: tuple[Setting, ...]


def judge(series: Sequence[Series]) -> Loading | None:
    """Return what the loader study says; None where no step was fed by a loader."""
    settings = [
        setting for each in series if each.row.study == "loader" if (setting := _setting(each))
    ]
    if not settings:
        return None
    best_first = tuple(sorted(settings, key=lambda one: one.idle))
    return Loading(_kind(best_first[0]), best_first)


def _kind(best: Setting) -> Kind:
    # A share that is cut off at 0 in every launch has no spread, and no interval.
    never = best.idle == 0 and best.num_launches > 1
    low, high = best.interval or ((0.0, 0.0) if never else (0.0, 1.0))
    if high < NOTABLE:
        return "keeps-up"
    return "waits" if low >= NOTABLE else "open"


def _setting(series: Series) -> Setting | None:
    point = series.points[-1]
    idle = quantities.values(point.rows, "loader_idle")
    if not idle:
        return None
    return Setting(
        _options(point.rows[0]),
        point.rate,
        quantities.centre(idle, "loader_idle"),
        quantities.interval(point.rows, "loader_idle"),
        point.world_size,
        point.num_launches,
    )


def _options(row: Row) -> dict[str, object]:
    """Return the factors that had an effect."""
    ignored = row.details.get("ignored") or {}
    unsaid = ("local_batch", *ignored)
    said = {name: value for name, value in row.factors.items() if name not in unsaid}
    return {name: value for name, value in said.items() if value or name == "num_workers"}


def lines(loading: Loading) -> list[str]:
    """Return the card."""
    best = loading.settings[0]
    waits = f"{percent(best.idle)} % of a step waits for it with {_text(best)}"
    headline = f"{SAID[loading.kind]} {waits}."
    rows = [_row(each) for each in loading.settings]
    todo = NEXT[loading.kind] or f"give your DataLoader {_options_text(best)}"
    where = f"a small model's step, {counted(best.num_ranks, 'rank')} loading at once"
    return [headline, *rows, f"next      {todo}", f"trust     {where}; yours may eat more slowly"]


def _row(setting: Setting) -> str:
    span = percent_span(setting.interval) if setting.interval else "no interval"
    rate = f"{number(setting.images_per_s)} images/s"
    return f"  {_text(setting):<53}{rate:>16} {percent(setting.idle):>6} % waits   {span}"


def _text(setting: Setting) -> str:
    place = PLACES.get(str(setting.factors.get("dataset")), "")
    place += f", {setting.factors['cache']}" if setting.factors.get("cache") else ""
    return _options_text(setting) + (f" ({place})" if place else "")


def _options_text(setting: Setting) -> str:
    options = {name: value for name, value in setting.factors.items() if name not in NOT_OPTIONS}
    return ", ".join(f"{name}={value}" for name, value in options.items())


def card(series: Sequence[Series]) -> list[str]:
    """Return what results say of loading; no line where they say nothing."""
    loading = judge(series)
    return lines(loading) if loading else []
