"""The words of a ladder over a factor, for a terminal."""

from collections.abc import Sequence

from lockstep.report.compute.factor_ladders import FactorLadder, factor_ladders
from lockstep.report.compute.scaling import Series
from lockstep.report.page.panels import parts
from lockstep.report.words.lines import numbers
from lockstep.vocabulary.text.formats import counted, number, percent, ratio


def lines(series: Sequence[Series]) -> list[str]:
    """Return a table for each factor that a program is laddered over; nothing without one."""
    return [line for one in factor_ladders(series) for line in _lines(one)]


def _lines(ladder: FactorLadder) -> list[str]:
    rows = [[ladder.factor, "rate", "speed-up", "efficiency"]]
    for rung in ladder.rungs:
        is_base = rung is ladder.base
        both = [ratio(rung.speedup), f"{percent(rung.efficiency)} %"]
        shown = [parts.allowed(rung.point, text) for text in both]
        rate = f"{number(rung.point.rate)} {ladder.series.row.sample_unit}/s"
        rows.append([number(rung.value), rate, *(["baseline"] * 2 if is_base else shown)])
    name = f"{ladder.label} over {ladder.factor}, {counted(ladder.world_size, 'rank')}:"
    return ["", name, *numbers(rows)]
