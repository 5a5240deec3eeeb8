"""The panel of training runs: accuracy and time of each size and setting, over epochs and time."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted, number
from lockstep.core.record import Epoch
from lockstep.core.studies import TITLES
from lockstep.report.compute import learning
from lockstep.report.compute.learning import Curve, Learned
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.page import parts
from lockstep.report.page.parts import CELLS, FLAGS, MAX_CURVES, Figure, Panel, ends
from lockstep.report.words import training_words
from lockstep.report.words.headline import entry

LEAD = "A row pools the runs that differ only in their seed and repeat."
CAPTION = "Results of each setting, the slowest device first"
NOTE = (
    "Epoch time and throughput are medians over runs, without the first epoch of a process. "
    "Accuracy is the mean over runs, with its interval over seeds."
)
ACCURACY, LOSS = "Validation accuracy (%)", "Validation loss"
BAND = "The line is the mean over runs, and the band is its 95 % interval over seeds."
SECONDS = " Training time excludes validation and checkpoints."


def training_panel(study: str, series: Sequence[Series]) -> Panel:
    """Return the panel of training runs."""
    own = training_words.ordered(series)
    learned, names = learning.learn(own), training_words.varied(own)
    rows = [
        [*(parts.shown(curve.row.factors.get(n)) for n in names), *line, CELLS[FLAGS](point)]
        for curve, lines in zip(own, training_words.cells(own, learned), strict=True)
        for point, line in zip(curve.points, lines, strict=True)
    ]
    note = f"All runs: {training_words.common(own, names)}. {NOTE}"
    bases = dict.fromkeys(counted(curve.baseline, "rank") for curve in own if len(curve.points) > 1)
    if bases:
        note += f" Speed-up is relative to {formats.listed(bases)} of the same setting."
    every = [row for curve in own for point in curve.points for row in point.rows]
    if not learning.have_same_target(every) and any(map(learning.best_accuracy, every)):
        note += (
            " No target was set, so the target is the highest whole percentage that all runs reach."
        )
    columns = [*names, *training_words.columns(learned), FLAGS]
    made = parts.table(CAPTION, columns, rows, len(names), note=note, folded=False)
    lead, drawn = [LEAD], figures(own, learned)
    return parts.panel(study, TITLES[study], lead=lead, figures=drawn, tables=[made])


def headlines(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return the headline of the most accurate setting, with those of the others."""
    sentences = training_words.sentences(series)
    return [
        entry(TITLES[series[0].row.study], label, "good", text,
              short=formats.listed((name for name, _ in sentences[1:]), 6),
              others=[f"{name}: {other}" for name, other in sentences[1:]])
        for label, text in sentences[:1]
    ]  # fmt: skip


def top_figure(series: Sequence[Series]) -> Figure | None:
    """Return the accuracy over epochs, which is drawn beside the headlines; None if unknown."""
    own = training_words.ordered(series)
    made = figures(own, learning.learn(own)) if own else []
    return made[0] | {"id": "top-accuracy"} if made else None


def figures(series: Sequence[Series], learned: Mapping[Point, Learned]) -> list[Figure]:
    """Return accuracy over epochs and time, with a goal if all share one, and loss over epochs."""
    names = training_words.varied(series)
    points = [
        (", ".join(filter(None, [label, counted(point.world_size, "rank")])), point)
        for curve in series
        for label in [training_words.label(curve, names)]
        for point in curve.points
    ]
    goals = {each.target for each in learned.values()}
    lines = [
        {"y": goal, "label": training_words.percent_of(goal)} for goal in goals if len(goals) == 1
        and goal is not None
    ]  # fmt: skip
    accuracy, loss = attrgetter("accuracy"), attrgetter("validation_loss")
    made = (
        _figure("train-accuracy", ACCURACY, points, accuracy, lines, whole=True),
        _figure("train-accuracy-time", ACCURACY, points, accuracy, lines, whole=False),
        _figure("train-loss", LOSS, points, loss, [], whole=True),
    )
    return [*filter(None, made)]


def _figure(
    key: str, ylabel: str, points: Sequence[tuple[str, Point]],
    value: Callable[[Epoch], float | None], lines: list[dict[str, Any]], *, whole: bool,
) -> Figure | None:  # fmt: skip
    """Return a figure of the first points whose runs have the value; None without one."""
    known = [(name, learning.curve(point.rows, value)) for name, point in points]
    drawn = [(name, curve) for name, curve in known if len(curve.epochs) > 1]
    if not drawn:
        return None
    first = drawn[:MAX_CURVES]
    against = "epochs" if whole else "time"
    num_curves = len(drawn)
    left_out = f" Only the first {MAX_CURVES} of {num_curves} curves are drawn."
    left_out = left_out if len(drawn) > len(first) else ""
    described = "; ".join(f"{name}: {number(c.values[-1].value)} at the end" for name, c in first)
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
    """Return a curve of a figure; the interval of a share is cut to 0 to 1."""
    bands = [ends(pooled.interval) for pooled in curve.values]
    if is_share:
        bands = [band and [max(band[0], 0.0), min(band[1], 1.0)] for band in bands]
    return {
        "label": name or formats.DASH,
        "x": curve.epochs if whole else curve.elapsed_s,
        "y": [pooled.value for pooled in curve.values],
        "band": bands,
    }
