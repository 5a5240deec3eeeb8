"""The panel of training runs: what each size and setting reaches, from a CPU to many nodes."""

from collections.abc import Sequence
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted
from lockstep.core.studies import TITLES
from lockstep.report.compute import learning
from lockstep.report.compute.scaling import Series
from lockstep.report.page import training_figures
from lockstep.report.page.parts import Figure, Panel, flagged, panel, shown, table
from lockstep.report.words import training_words

LEAD = (
    "A row has the runs that agree in everything but their seed and repeat; nothing else is pooled."
)
CAPTION = "What each setting reaches, the slowest device first"
NOTE = (
    "Epoch time and throughput: median over runs, the first epoch of a process left aside; "
    "accuracy: mean over runs, its interval over seeds."
)


def training_panel(study: str, series: Sequence[Series]) -> Panel:
    """Return the panel of training runs."""
    own = training_words.ordered(series)
    targets = learning.targets(own)
    names = training_words.varied(own)
    made = panel(study, TITLES[study], lead=[LEAD])
    made["figures"] = training_figures.figures(own, targets)
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
    made = training_figures.figures(own, learning.targets(own)) if own else []
    return made[0] | {"id": "top-accuracy"} if made else None
