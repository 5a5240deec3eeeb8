"""The card that shows whether a step waits for its data loader."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.core.formats import counted, number, percent, percent_span
from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import LOADERS
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Point, Series, no_interval
from lockstep.report.compute.statistics import Interval
from lockstep.report.words.names import factors_text

Kind = Literal["keeps-up", "waits", "open"]

# Data set of the loader study -> where its images lie.
PLACES = {
    "tensor": "images in memory",
    "memmap": "all images in one file",
    "files": "one file per image",
}

# Factors of the study that are no options of a DataLoader.
NOT_OPTIONS = ("dataset", "cache")
VERDICTS: dict[Kind, str] = {
    "keeps-up": "The loader keeps up: {percent} % of a step waits for the loader with {setting}.",
    "waits": "Input-bound: the loader is too slow; at best {percent} % of a step waits for the "
    "loader with {setting}.",
    "open": "It is not shown whether the loader keeps up; at best {percent} % of a step waits for "
    "the loader with {setting}.",
}
# Kind -> the next action; empty for the best setting.
NEXT: dict[Kind, str] = {
    "keeps-up": "",
    "waits": "use more cores and workers per rank, cheaper decoding, or data stored already "
    "decoded",
    "open": "measure more launches: lockstep run --name loader --studies loader --repeats 5",
}


@dataclass(frozen=True)
class Setting:
    """One setting of a loader: the factors with an effect, and the share of a step that waits.

    Attributes:
        idle: Share of a step on its batches that waits for the loader, with its interval.
    """

    factors: dict[str, object]
    point: Point
    idle: float
    interval: Interval | None


@dataclass(frozen=True)
class Loading:
    """The settings of the loader study, the best first.

    Attributes:
        kind: `keeps-up`: the best setting is shown to leave less than `NOTABLE` of a step waiting.
            `waits`: it is shown to leave as much or more. `open`: launches show neither.
    """

    kind: Kind
    settings: tuple[Setting, ...]


def judge(series: Sequence[Series]) -> Loading | None:
    """Return the verdict of the loader study; None if no step took a loader's batches."""
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
    kind: Kind = "keeps-up" if high < NOTABLE else "waits" if low >= NOTABLE else "open"
    return Loading(kind, tuple(settings))


def card(series: Sequence[Series]) -> list[str]:
    """Return the lines of the card; empty if no step took a loader's batches."""
    loading = judge(series)
    if loading is None:
        return []
    best = loading.settings[0]
    verdict = VERDICTS[loading.kind].format(percent=percent(best.idle), setting=_text(best))
    rows = []
    for setting in loading.settings:
        span = percent_span(setting.interval) if setting.interval else no_interval(setting.point)
        rate = f"{number(setting.point.rate)} images/s"
        waiting = f"{percent(setting.idle):>6} % waits   {span}"
        rows.append(f"  {_text(setting):<53}{rate:>16} {waiting}")
    todo = NEXT[loading.kind] or f"give your DataLoader {_options(best)}"
    ranks = counted(best.point.world_size, "rank")
    trust = (
        f"the step trains a small model, and {ranks} load at the same time; a larger model may "
        "need fewer images per second"
    )
    return [verdict, *rows, f"next      {todo}", f"trust     {trust}"]  # fmt: skip


def _text(setting: Setting) -> str:
    place = PLACES.get(str(setting.factors.get("dataset")), "")
    place += f", {setting.factors['cache']}" if setting.factors.get("cache") else ""
    return _options(setting) + (f" ({place})" if place else "")


def _options(setting: Setting) -> str:
    options = {name: value for name, value in setting.factors.items() if name not in NOT_OPTIONS}
    return factors_text(options)
