"""The words of ratios that are not over ranks: over a factor, and over another kind of device."""

from collections.abc import Sequence
from typing import Any

from lockstep.core.formats import counted, number, percent, percent_span, ratio
from lockstep.report.compute.alternatives.factor_ladders import FactorLadder, factor_ladders
from lockstep.report.compute.alternatives.other_devices import Replaced, kind_of_device, replaced
from lockstep.report.compute.scaling import Series, reaches
from lockstep.report.page.panels import parts
from lockstep.report.words.headline import TIMES
from lockstep.report.words.lines import numbers

ORIGINS = {"cited": "Cited", "target": "Target"}
BLOCKED = "no verdict, blocked by the check"


def lines(series: Sequence[Series]) -> list[str]:
    """Return a table for each factor that a program is laddered over; nothing without one."""
    return [line for one in factor_ladders(series) for line in _lines(one)]


def headlines(series: Sequence[Series], threshold: float) -> list[dict[str, Any]]:
    """Return a headline for each ladder over a factor, as those of ladders over ranks are."""
    return [_headline(one, threshold) for one in factor_ladders(series)]


def _headline(ladder: FactorLadder, threshold: float) -> dict[str, Any]:
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
