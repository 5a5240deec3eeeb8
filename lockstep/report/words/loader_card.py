"""Whether a step waits for its data loader, as the card that a command shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.core.formats import counted, number, percent, percent_span
from lockstep.core.metrics import NOTABLE
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Series
from lockstep.report.compute.statistics import Interval

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
    settings = []
    for curve in series:
        point = curve.points[-1]
        idle = quantities.values(point.rows, "loader_idle")
        if curve.row.study != "loader" or not idle:
            continue
        # Factors that had no effect are left out.
        row = point.rows[0]
        unsaid = ("local_batch", *(row.details.get("ignored") or {}))
        factors = {
            name: value for name, value in row.factors.items()
            if name not in unsaid and (value or name == "num_workers")
        }  # fmt: skip
        share = quantities.centre(idle, "loader_idle")
        interval = quantities.interval(point.rows, "loader_idle")
        settings.append(
            Setting(factors, point.rate, share, interval, point.world_size, point.num_launches)
        )
    if not settings:
        return None
    settings.sort(key=lambda setting: setting.idle)
    best = settings[0]
    # A share that is cut off at 0 in every launch has no spread, and no interval.
    never = best.idle == 0 and best.num_launches > 1
    low, high = best.interval or ((0.0, 0.0) if never else (0.0, 1.0))
    kind: Kind = "keeps-up" if high < NOTABLE else "waits" if low >= NOTABLE else "open"
    return Loading(kind, tuple(settings))


def card(series: Sequence[Series]) -> list[str]:
    """Return what results say of loading; no line where they say nothing."""
    loading = judge(series)
    return lines(loading) if loading else []


def lines(loading: Loading) -> list[str]:
    """Return the card."""
    best = loading.settings[0]
    waits = f"{percent(best.idle)} % of a step waits for it with {_text(best)}"
    rows = []
    for setting in loading.settings:
        span = percent_span(setting.interval) if setting.interval else "no interval"
        rate = f"{number(setting.images_per_s)} images/s"
        waiting = f"{percent(setting.idle):>6} % waits   {span}"
        rows.append(f"  {_text(setting):<53}{rate:>16} {waiting}")
    todo = NEXT[loading.kind] or f"give your DataLoader {_options(best)}"
    where = f"a small model's step, {counted(best.num_ranks, 'rank')} loading at once"
    return [
        f"{SAID[loading.kind]} {waits}.", *rows, f"next      {todo}",
        f"trust     {where}; yours may eat more slowly",
    ]  # fmt: skip


def _text(setting: Setting) -> str:
    place = PLACES.get(str(setting.factors.get("dataset")), "")
    place += f", {setting.factors['cache']}" if setting.factors.get("cache") else ""
    return _options(setting) + (f" ({place})" if place else "")


def _options(setting: Setting) -> str:
    options = {name: value for name, value in setting.factors.items() if name not in NOT_OPTIONS}
    return ", ".join(f"{name}={value}" for name, value in options.items())
