"""The figures of strong and weak scaling: throughput, speed-up, efficiency and step time."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import percent, percent_span
from lockstep.core.studies import TITLES
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page.panels.parts import (
    MAX_CURVES,
    MAX_NAMED,
    MILLI,
    ORIGINS,
    Figure,
    baseline_text,
    curve_figure,
    curve_of,
    step_interval_ms,
    step_ms,
)
from lockstep.report.predict.prediction import Curve

# Units of throughput that have a figure of their own; of further ones the speed-up tells.
MAX_UNITS = 2
IDEAL = "ideal, from the baseline"
# What weak scaling is held to: an efficiency, and a step time over the baseline's.
WEAK_EFFICIENCY, WEAK_LONGER, LONGER_TEXT = 0.9, 1.1, "+10 %"
# An efficiency beyond the larger of these is no scaling: it is named at the edge, and the axis is
# made for the others. The second is times the median of all points.
CAP, CAP_OF_MEDIAN = 1.5, 1.5


def throughput(series: Sequence[Series]) -> list[Figure]:
    """Return a figure of throughput for each unit, on log axes with the ideal."""
    units = list(dict.fromkeys(one.row.sample_unit for one in series))
    made = []
    for index, unit in enumerate(units[:MAX_UNITS]):
        chosen = [one for one in series if one.row.sample_unit == unit][:MAX_CURVES]
        curves = list(map(_throughput_curve, chosen))
        key = "strong-throughput" + (f"-{index + 1}" if index else "")
        of = f" in {unit}/s" if len(units) > 1 else ""
        made.append(curve_figure(
            key, f"Strong scaling: throughput{of}", f"Throughput ({unit}/s)", curves, ylog=True,
            ideal=IDEAL,
        ))  # fmt: skip
    if len(units) > MAX_UNITS:
        left_out = formats.listed(f"{unit}/s" for unit in units[MAX_UNITS:])
        made[-1]["note"] = f"Not drawn: series in {left_out}; the speed-up has them."
    return made


def _throughput_curve(one: Series) -> dict[str, Any]:
    curve = curve_of(one, lambda p: p.rate, lambda p: p.rate_interval, lambda p: p.rates)
    per_rank = one.base.rate / one.base.world_size
    return curve | {"ideal": [[p.world_size, per_rank * p.world_size] for p in one.points]}


def speedup(study: str, series: Sequence[Series]) -> Figure:
    """Return speed-up over world sizes on log axes, with the ideal from each baseline."""
    curves = []
    for one in series[:MAX_CURVES]:
        base = one.base

        def repeats(point: Point, base: Point = base) -> list[float]:
            return [rate / base.rate for rate in point.rates]

        curve = curve_of(one, lambda p: p.speedup, lambda p: p.speedup_interval, repeats)
        curve["ideal"] = [[p.world_size, p.world_size / base.world_size] for p in one.points]
        curves.append(curve)
    return curve_figure(
        f"{study}-speedup", f"{_title(study)}: speed-up", "Speed-up", curves, ylog=True,
        binary=True, ideal=IDEAL, note=_relative(series),
    )  # fmt: skip


def efficiency(
    study: str, series: Sequence[Series], threshold: float, predicted: Mapping[str, Curve]
) -> Figure:
    """Return parallel efficiency over world sizes, with lines at what it is held to."""
    curves = []
    for one in series[:MAX_CURVES]:
        base = one.base.rate / one.base.world_size

        def repeats(point: Point, base: float = base) -> list[float]:
            return [rate / point.world_size / base for rate in point.rates]

        curves.append(
            curve_of(one, lambda p: p.parallel_efficiency, lambda p: p.efficiency_interval, repeats)
        )
        curves[-1]["model"] = _model(predicted.get(one.name), base)
    values = [y for curve in curves for y in curve["y"]]
    return curve_figure(
        f"{study}-efficiency", f"{_title(study)}: parallel efficiency", "Parallel efficiency (%)",
        curves, percent=True, cap=max(CAP, CAP_OF_MEDIAN * median(values)),
        lines=_efficiency_lines(study, threshold),
        note=f"{_relative(series)}{_modelled_text(curves)}",
    )  # fmt: skip


def _efficiency_lines(study: str, threshold: float) -> list[dict[str, Any]]:
    heights = {1.0, threshold, *([WEAK_EFFICIENCY] if study == "weak" else [])}
    return [{"y": y, "label": f"{100 * y:.0f} %"} for y in sorted(heights, reverse=True)]


def step_time(study: str, series: Sequence[Series]) -> Figure:
    """Return step time over world sizes, each with its baseline's as the ideal and +10 %."""
    curves = []
    for one in series[:MAX_CURVES]:
        curve = curve_of(one, step_ms, step_interval_ms, _steps_ms)
        for name, factor in (("ideal", 1.0), ("limit", WEAK_LONGER)):
            curve[name] = [[p.world_size, factor * step_ms(one.base)] for p in one.points]
        curves.append(curve)
    return curve_figure(
        f"{study}-step-time", f"{_title(study)}: step time", "Step time (ms)", curves, ideal=IDEAL,
        limit=LONGER_TEXT,
    )  # fmt: skip


def _steps_ms(point: Point) -> list[float]:
    return [row.step_s * MILLI for row in point.rows if row.step_s is not None]


def _title(study: str) -> str:
    return (TITLES | ORIGINS).get(study, study)


def _relative(series: Sequence[Series]) -> str:
    bases = dict.fromkeys(baseline_text(one) for one in series[:MAX_CURVES])
    return f"Relative to {'; '.join(bases)}."


def _model(found: Curve | None, ideal: float) -> dict[str, Any] | None:
    """Return a predicted curve as efficiency, the last point with its interval."""
    if found is None:
        return None
    last = found.points[-1][0]
    return {
        "name": found.model,
        "points": [[size, rate / size / ideal] for size, rate in found.points],
        "interval": [rate / last / ideal for rate in found.interval],
    }


def _modelled_text(curves: list[dict[str, Any]]) -> str:
    """Say what of a figure is modelled, and what it predicts."""
    texts = []
    for curve in curves:
        if model := curve["model"]:
            (size, value), interval = model["points"][-1], model["interval"]
            texts.append(
                f"{curve['label']}, {model['name']}: {percent(value)} % at {size}, "
                f"90 % interval {percent_span(tuple(interval))}"
            )
    if len(texts) > MAX_NAMED:
        texts[MAX_NAMED:] = [f"and {len(texts) - MAX_NAMED} more"]
    legend = "Dotted with a hollow mark: by the rule chosen, predicted and not measured"
    return f" {legend} ({'; '.join(texts)})." if texts else ""
