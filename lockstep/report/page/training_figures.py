"""The figures of training runs: accuracy and loss over epochs and over time."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted, number
from lockstep.core.record import Epoch
from lockstep.report.compute import learning
from lockstep.report.compute.learning import Curve, Targets
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page.parts import MAX_CURVES, Figure, ends
from lockstep.report.words import training_words

ACCURACY, LOSS = "Validation accuracy (%)", "Validation loss"
BAND = "Line: mean over runs; band: its 95 % interval over seeds."
SECONDS = " Time of training, validation and checkpoints left aside."

Named = tuple[str, Point]


def figures(series: Sequence[Series], targets: Targets) -> list[Figure]:
    """Return accuracy over epochs and time, with a goal that all share, and loss over epochs."""
    points = named(series)
    goals = {targets.get(learning.learns(curve)) for curve in series}
    lines = [
        {"y": goal, "label": training_words.percent_of(goal)} for goal in goals if len(goals) == 1
        and goal is not None
    ]  # fmt: skip
    right, loss = attrgetter("accuracy"), attrgetter("validation_loss")
    made = [
        _figure("train-accuracy", ACCURACY, points, right, lines, whole=True),
        _figure("train-accuracy-time", ACCURACY, points, right, lines, whole=False),
        _figure("train-loss", LOSS, points, loss, [], whole=True),
    ]
    return [one for one in made if one]


def named(series: Sequence[Series]) -> list[Named]:
    """Return every point with what tells it from the others."""
    names = training_words.varied(series)
    found = []
    for curve in series:
        for point in curve.points:
            size = counted(point.world_size, "rank")
            texts = [training_words.label(curve, names), size]
            found.append((", ".join(filter(None, texts)), point))
    return found


def _figure(
    key: str, ylabel: str, points: Sequence[Named], value: Callable[[Epoch], float | None],
    lines: list[dict[str, Any]], *, whole: bool,
) -> Figure | None:  # fmt: skip
    """Return a figure of the first points whose runs know the value; None where none does."""
    known = [(name, learning.curve(point.rows, value)) for name, point in points]
    drawn = [(name, curve) for name, curve in known if len(curve.epochs) > 1]
    if not drawn:
        return None
    shown = drawn[:MAX_CURVES]
    against = "epochs" if whole else "time"
    left_out = f" The first {len(shown)} of {len(drawn)}." if len(drawn) > len(shown) else ""
    described = "; ".join(f"{name}: {number(c.values[-1].value)} at last" for name, c in shown)
    return {
        "kind": "band", "id": key, "title": f"{ylabel.partition(' (')[0]} over {against}",
        "xlabel": "Epoch" if whole else "Training time (s)", "ylabel": ylabel, "whole": whole,
        "percent": ylabel is ACCURACY, "lines": lines,
        "series": [_curve(name, curve, is_share=ylabel is ACCURACY, whole=whole)
                   for name, curve in shown],
        "note": BAND + ("" if whole else SECONDS) + left_out,
        "desc": f"{ylabel} against {against}. {described}.",
    }  # fmt: skip


def _curve(name: str, curve: Curve, *, is_share: bool, whole: bool) -> dict[str, Any]:
    """Return a curve of a figure; the interval of a share ends where shares do."""
    bands = [ends(pooled.interval) for pooled in curve.values]
    if is_share:
        bands = [band and [max(band[0], 0.0), min(band[1], 1.0)] for band in bands]
    return {
        "label": name or formats.DASH,
        "x": curve.epochs if whole else curve.elapsed_s,
        "y": [pooled.value for pooled in curve.values],
        "band": bands,
    }
