"""The panels of programs: speed-up over a factor such as threads, and what else they printed."""

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lockstep.core.formats import counted, number, percent, percent_span, ratio, ratio_span, span
from lockstep.report.compute import replicates
from lockstep.report.compute.alternatives.factor_ladders import FactorLadder, Rung, factor_ladders
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import log_interval
from lockstep.report.page.panels.parts import (
    MAX_CURVES,
    Figure,
    Panel,
    Table,
    absolute,
    allowed,
    curve_figure,
    ends,
    flagged,
    panel,
    table,
)

IDEAL = "ideal, from the smallest value"


def programs_panels(series: Sequence[Series]) -> list[Panel]:
    """Return a panel for each factor that programs are laddered over, and one of their metrics."""
    found: dict[str, list[FactorLadder]] = {}
    for one in factor_ladders(series):
        found.setdefault(one.factor, []).append(one)
    made = [_over(factor, own) for factor, own in found.items()]
    metrics = [of_one for one in series if (of_one := _metrics(one))]
    if metrics:
        lead = "What the program printed: of each launch the median over its runs."
        made.append(panel("metrics", "Metrics of programs", lead=[lead], tables=metrics))
    return made


def _over(factor: str, ladders: Sequence[FactorLadder]) -> Panel:
    made = panel(_id(factor), f"Scaling over {factor}")
    sound = [one for one in ladders if not one.is_blocked]
    made["figures"] = [_figure(factor, sound[:MAX_CURVES])] if sound else []
    made["tables"] = [_table(one) for one in ladders]
    if len(sound) > MAX_CURVES:
        made["notes"] = [f"The figure shows the first {MAX_CURVES} of {len(sound)} ladders."]
    return made


def _id(factor: str) -> str:
    """Return what names a factor's panel and files, whatever a stranger called the factor."""
    return f"over-{re.sub(r'[^A-Za-z0-9_]+', '-', factor)}"


def _figure(factor: str, ladders: Sequence[FactorLadder]) -> Figure:
    curves = [_curve(one) for one in ladders]
    return curve_figure(
        f"{_id(factor)}-speedup", f"Speed-up over {factor}", "Speed-up", curves, ylog=True,
        xlabel=factor, ideal=IDEAL, nodes=[],
    )  # fmt: skip


def _curve(ladder: FactorLadder) -> dict[str, Any]:
    base, rungs = ladder.base, ladder.rungs
    dots = [
        [rung.value, rate / base.point.rate]
        for rung in rungs for rate in rung.point.rates if len(rung.point.rates) > 1
    ]  # fmt: skip
    return {
        "label": f"{ladder.label}, {counted(ladder.world_size, 'rank')}",
        "x": [rung.value for rung in rungs],
        "y": [rung.speedup for rung in rungs],
        "intervals": [ends(rung.speedup_interval) for rung in rungs],
        "dots": dots,
        "ideal": [[rung.value, rung.value / base.value] for rung in rungs],
        "nodes": [],
    }


def _table(ladder: FactorLadder) -> Table:
    unit = ladder.series.row.sample_unit
    columns = (
        ladder.factor, "Launches", f"Rate ({unit}/s)", "Speed-up", "95 % interval",
        "Efficiency (%)", "95 % interval (%)", "Flags",
    )  # fmt: skip
    base = ladder.base
    note = f"Ratios are relative to {ladder.factor}={base.value:g} at {absolute(base.point)}."
    caption = f"{ladder.label} on {counted(ladder.world_size, 'rank')}"
    return table(caption, columns, [_row(rung, base) for rung in ladder.rungs], note=note)


def _row(rung: Rung, base: Rung) -> list[str]:
    point = rung.point
    ratios = [
        ratio(rung.speedup), ratio_span(rung.speedup_interval),
        percent(rung.efficiency), percent_span(rung.efficiency_interval),
    ]  # fmt: skip
    return [
        f"{rung.value:g}", str(point.num_launches), number(point.rate),
        *(allowed(point, text, base.point) for text in ratios), flagged(point),
    ]  # fmt: skip


def _metrics(series: Series) -> Table | None:
    """Return the table of a program's metrics; None where it is measured by its wall time alone."""
    known = series.row.program.get("metrics", {})
    if len(known) < 2:
        return None
    columns = ("Metric", "Ranks", "Launches", "Median", "95 % interval", "Unit", "Better")
    rows = [
        _metric_row(name, facts, point) for name, facts in known.items() for point in series.points
    ]
    return table(series.label, columns, rows, 1)


def _metric_row(name: str, facts: Mapping[str, Any], point: Point) -> list[str]:
    launches = [median(row.program["metrics"][name]["values"]) for row in point.rows]
    units = replicates.independent(point.rows, launches) if min(launches) > 0 else []
    interval = log_interval(units)
    return [
        name, str(point.world_size), str(point.num_launches), number(median(launches)),
        span(interval), str(facts.get("unit")), str(facts.get("better")),
    ]  # fmt: skip
