"""The panel of training runs: what each size and setting reaches, and how, over epochs and time."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted, number
from lockstep.core.record import Epoch
from lockstep.core.studies import TITLES
from lockstep.report.compute import learning
from lockstep.report.compute.learning import Curve, Targets
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page.parts import (
    MAX_CURVES,
    Figure,
    Panel,
    ends,
    flagged,
    panel,
    shown,
    table,
)
from lockstep.report.words import training_words

LEAD = (
    "A row has the runs that agree in everything but their seed and repeat; nothing else is pooled."
)
CAPTION = "What each setting reaches, the slowest device first"
NOTE = (
    "Epoch time and throughput: median over runs, the first epoch of a process left aside; "
    "accuracy: mean over runs, its interval over seeds."
)


ACCURACY, LOSS = "Validation accuracy (%)", "Validation loss"
BAND = "Line: mean over runs; band: its 95 % interval over seeds."
SECONDS = " Time of training, validation and checkpoints left aside."


def training_panel(study: str, series: Sequence[Series]) -> Panel:
    """Return the panel of training runs."""
    own = training_words.ordered(series)
    targets = learning.targets(own)
    names = training_words.varied(own)
    made = panel(study, TITLES[study], lead=[LEAD])
    made["figures"] = figures(own, targets)
    lines = training_words.cells(own, targets)
    rows = [
        [*(shown(curve.row.factors.get(name)) for name in names), *line, flagged(point)]
        for curve, cells in zip(own, lines, strict=True)
        for point, line in zip(curve.points, cells, strict=True)
    ]
    columns = [*names, *training_words.columns(own, targets), "Flags"]
    shared = f"All runs: {training_words.common(own, names)}. "
    note = shared + NOTE + _basis(own)
    made["tables"] = [table(CAPTION, columns, rows, len(names), note=note, folded=False)]
    return made


def _basis(series: Sequence[Series]) -> str:
    """Name what ratios are relative to, and where the accuracy to reach is from."""
    bases = dict.fromkeys(
        counted(curve.baseline, "rank") for curve in series if len(curve.points) > 1
    )
    text = f" Speed-up is over {formats.listed(bases)} of the same setting." if bases else ""
    rows = [row for curve in series for point in curve.points for row in point.rows]
    if not learning.are_given(rows) and any(learning.best_accuracy(row) for row in rows):
        text += " The time is to the highest whole per cent that all runs reach; none was set."
    return text


def headlines(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return what the page says first: of the most accurate setting, with the others'."""
    found = training_words.sentences(series)
    if not found:
        return []
    (label, first), *others = found
    texts = [f"{name}: {text}" for name, text in others]
    short = formats.listed((name for name, _ in others), 6)
    return [{"title": TITLES["train"], "of": label, "kind": "good", "text": first,
             "lines": [first], "short": short, "others": texts}]  # fmt: skip


def top_figure(series: Sequence[Series]) -> Figure | None:
    """Return the accuracy over epochs, for beside the headlines; None where none is known."""
    own = training_words.ordered(series)
    made = figures(own, learning.targets(own)) if own else []
    return made[0] | {"id": "top-accuracy"} if made else None


def figures(series: Sequence[Series], targets: Targets) -> list[Figure]:
    """Return accuracy over epochs and time, with a goal that all share, and loss over epochs."""
    names = training_words.varied(series)
    points = [
        (", ".join(filter(None, [label, counted(point.world_size, "rank")])), point)
        for curve in series
        for label in [training_words.label(curve, names)]
        for point in curve.points
    ]
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


def _figure(
    key: str,
    ylabel: str,
    points: Sequence[tuple[str, Point]],
    value: Callable[[Epoch], float | None],
    lines: list[dict[str, Any]],
    *,
    whole: bool,
) -> Figure | None:
    """Return a figure of the first points whose runs know the value; None where none does."""
    known = [(name, learning.curve(point.rows, value)) for name, point in points]
    drawn = [(name, curve) for name, curve in known if len(curve.epochs) > 1]
    if not drawn:
        return None
    first = drawn[:MAX_CURVES]
    against = "epochs" if whole else "time"
    left_out = (
        f" Only the first {len(first)} of {len(drawn)} curves are drawn."
        if len(drawn) > len(first)
        else ""
    )
    described = "; ".join(f"{name}: {number(c.values[-1].value)} at last" for name, c in first)
    return {
        "kind": "band", "id": key, "title": f"{ylabel.partition(' (')[0]} over {against}",
        "xlabel": "Epoch" if whole else "Training time (s)", "ylabel": ylabel, "whole": whole,
        "percent": ylabel is ACCURACY, "lines": lines,
        "series": [_curve(name, curve, is_share=ylabel is ACCURACY, whole=whole)
                   for name, curve in first],
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
