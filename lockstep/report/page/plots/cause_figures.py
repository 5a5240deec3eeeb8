"""The figure of where a step's time goes: by cause over ranks, and what of it is lost."""

from collections.abc import Sequence
from typing import Any

from lockstep.core.formats import capital, number
from lockstep.core.studies import TITLES
from lockstep.measure.causes.bound import NAMES, Cause
from lockstep.report.compute.lost_time import attribution
from lockstep.report.compute.lost_time.attribution import Part
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page.panels.parts import MILLI, Figure

# From the foot of a bar to its top: the work itself, then what is added to it.
STACKED: tuple[Cause, ...] = (
    "own", "ddp", "fixed", "contention", "input", "imbalance", "exposed"
)  # fmt: skip
# Series of a study that have a figure of their own; tables have the others.
MAX_SPLIT = 2


def causes(study: str, series: Sequence[Series]) -> tuple[list[Figure], list[str]]:
    """Return a figure for each of the first series with timed variants, a note on the others."""
    found = [(one, bars) for one in series if len(bars := _bars(one)) > 1]
    made = [_figure(f"{study}-causes-{i}", *each) for i, each in enumerate(found[:MAX_SPLIT])]
    if len(found) > MAX_SPLIT:
        return made, [f"Where a step's time goes is drawn of {MAX_SPLIT} of {len(found)} series."]
    return made, []


def _figure(key: str, series: Series, bars: list[dict[str, Any]]) -> Figure:
    used = {part["cause"] for bar in bars for part in (*bar["parts"], *bar["lost"])}
    names = {cause: capital(NAMES[cause]) for cause in STACKED if cause in used}
    described = "; ".join(
        f"{bar['ranks']} ranks: {number(bar['total'])} ms, "
        + ", ".join(f"{NAMES[part['cause']]} {number(part['ms'])}" for part in bar["parts"])
        for bar in bars
    )
    return {
        "kind": "stack", "id": key, "bars": bars, "names": names, "xlabel": "Ranks",
        "title": f"{TITLES[series.row.study]}: where a step's time goes, {series.label}",
        "ylabel": "Step time (ms)", "lost_label": "Longer than the ideal step, by cause (ms)",
        "desc": f"Step time in ms by cause against ranks. {described}.",
        "note": "Below, what a step takes longer than its ideal; negative is time gained.",
    }  # fmt: skip


def _bars(series: Series) -> list[dict[str, Any]]:
    """Return each size's step by cause, of the sizes at which it is known."""
    return [bar for point in series.points if (bar := _bar(series, point))]


def _bar(series: Series, point: Point) -> dict[str, Any] | None:
    parts = attribution.parts(point)
    if parts is None:
        return None
    total = sum(part.seconds for part in parts) * MILLI
    bar: dict[str, Any] = {
        "ranks": point.world_size, "total": total, "ideal": total, "parts": list(map(_part, parts)),
        "lost": [], "net": None, "net_interval": None,
    }  # fmt: skip
    lost = attribution.loss(series, point)
    if lost is None:
        return bar
    return bar | {
        "ideal": (lost.step_s - lost.seconds) * MILLI,
        "lost": list(map(_part, lost.parts)),
        "net": lost.seconds * MILLI,
        "net_interval": lost.interval and [end * MILLI for end in lost.interval],
    }


def _part(part: Part) -> dict[str, Any]:
    return {"cause": part.cause, "ms": part.seconds * MILLI}
