"""The figure of parallel efficiency: measured points, and the next one by the chosen rule."""

from typing import Any

from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page.panels.parts import (
    MAX_CURVES,
    MAX_NAMED,
    TITLES,
    Figure,
    baseline_text,
    curve_figure,
    curve_of,
)
from lockstep.report.predict import prediction
from lockstep.vocabulary.text.formats import percent, percent_span


def efficiency_figure(study: str, series: list[Series], threshold: float) -> Figure:
    """Return parallel efficiency over world sizes, with lines at 100 % and the threshold."""
    curves = []
    for one in series[:MAX_CURVES]:
        base = one.base.rate / one.base.world_size

        def repeats(point: Point, base: float = base) -> list[float]:
            return [rate / point.world_size / base for rate in point.rates]

        curves.append(
            curve_of(one, lambda p: p.parallel_efficiency, lambda p: p.efficiency_interval, repeats)
        )
        curves[-1]["model"] = _modelled_efficiency(one)
    lines = [{"y": 1.0, "label": "100 %"}, {"y": threshold, "label": f"{100 * threshold:.0f} %"}]
    title = f"{TITLES.get(study, 'Imported tables')}: parallel efficiency"
    bases = dict.fromkeys(baseline_text(one) for one in series[:MAX_CURVES])
    return curve_figure(
        f"{study}-efficiency", title, "Parallel efficiency (%)", curves, lines=lines, percent=True,
        note=f"Relative to {'; '.join(bases)}.{_modelled_text(curves)}",
    )  # fmt: skip


def _modelled_efficiency(series: Series) -> dict[str, Any] | None:
    """Return the efficiency by the rule chosen, the last point predicted with its interval."""
    # A model of targets would predict what was never measured.
    model = None if series.row.origin == "target" else prediction.curve(series)
    if model is None:
        return None
    ideal = series.base.rate / series.base.world_size
    last = model.points[-1][0]
    return {
        "name": model.model,
        "points": [[size, rate / size / ideal] for size, rate in model.points],
        "interval": [rate / last / ideal for rate in model.interval],
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
    legend = "Dashed with a hollow mark: by the rule chosen, predicted and not measured"
    return f" {legend} ({'; '.join(texts)})." if texts else ""
