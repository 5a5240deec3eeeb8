"""The words of a ladder over a factor, for a terminal."""

from collections.abc import Sequence
from typing import Any

from lockstep.report.compute.alternatives.factor_ladders import FactorLadder, factor_ladders
from lockstep.report.compute.scaling import Series
from lockstep.report.page.panels import parts
from lockstep.report.words.headline import TIMES
from lockstep.report.words.lines import numbers
from lockstep.vocabulary.text.formats import counted, number, percent, percent_span, ratio


def lines(series: Sequence[Series]) -> list[str]:
    """Return a table for each factor that a program is laddered over; nothing without one."""
    return [line for one in factor_ladders(series) for line in _lines(one)]


def headlines(series: Sequence[Series], threshold: float) -> list[dict[str, Any]]:
    """Return a headline for each ladder over a factor, as those of ladders over ranks are."""
    return [_headline(one, threshold) for one in factor_ladders(series)]


def _headline(ladder: FactorLadder, threshold: float) -> dict[str, Any]:
    above = ladder.rungs[1:]
    good = [rung for rung in above if rung.efficiency >= threshold]
    best = good[-1] if good else max(above, key=lambda rung: rung.efficiency)
    span = percent_span(best.efficiency_interval) if best.efficiency_interval else "no interval"
    base = f"{ladder.factor}={ladder.base.value:g} at {parts.absolute(ladder.base.point)}"
    given = (
        f"{ladder.factor}={best.value:g} gives {ratio(best.speedup)}{TIMES} the rate of {base} "
        f"({percent(best.efficiency)} % efficiency, {span})"
    )
    goal = f"no value reaches {100 * threshold:.0f} % efficiency; at best "
    kind, text = ("good", given) if good else ("below", goal + given)
    if ladder.is_blocked:
        kind, text = "blocked", "no verdict, blocked by the check"
    fewest = min(rung.point.num_launches for rung in ladder.rungs)
    return {
        "title": f"Scaling over {ladder.factor}", "of": ladder.label,
        "kind": kind, "text": text,
        "lines": [text, f"trust: at least {counted(fewest, 'launch')} a value"],
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
