"""The figures of settings: ratios over all sizes where there are several, else one size's rates."""

from collections.abc import Sequence

from lockstep.core.formats import counted, number, ratio
from lockstep.core.studies import TITLES
from lockstep.report.compute.alternatives import compared
from lockstep.report.compute.alternatives.compared import Cases, Grid, Key
from lockstep.report.page.panels.parts import MAX_ITEMS, Figure, ends

# Sizes from which on a study has a grid; of fewer, each has a figure with intervals.
GRID_FROM = 3
MAX_FIGURES = 2
MAX_GRID_ROWS, MAX_GRID_COLUMNS = 16, 12


def settings(study: str, groups: Sequence[tuple[Key, Cases]]) -> tuple[list[Figure], list[str]]:
    """Return the figures of a study's settings, and a note on what is not drawn."""
    compare = [(key, cases) for key, cases in groups if len(cases) > 1]
    if len({size for (_, size, _), _ in compare}) >= GRID_FROM:
        grids = compared.grids(study, compare)
        made = [_grid(study, index, one) for index, one in enumerate(grids[:MAX_FIGURES])]
        return made, _note(len(grids))
    # The largest size first: it is what a campaign was made for.
    compare.sort(key=lambda item: -item[0][1])
    made = [_rates(study, i, key[1], c) for i, (key, c) in enumerate(compare[:MAX_FIGURES])]
    return made, _note(len(compare))


def _note(count: int) -> list[str]:
    if count <= MAX_FIGURES:
        return []
    return [f"Figures show the first {MAX_FIGURES} of {count} groups of settings."]


def _grid(study: str, index: int, grid: Grid) -> Figure:
    one = grid.series
    beside = f", {one.layout}" if one.layout else ""
    rows = list(grid.cells)[:MAX_GRID_ROWS]
    sizes = grid.sizes[-MAX_GRID_COLUMNS:]
    cells = [[grid.cells[row].get(size) for size in sizes] for row in rows]
    reference = ", ".join(
        f"{name}={value}" for name, value in zip(grid.names, grid.reference, strict=False)
    )
    described = "; ".join(
        f"{', '.join(row)}: "
        + ", ".join(f"{ratio(c.ratio)} at {s}" for c, s in zip(each, sizes, strict=True) if c)
        for row, each in zip(rows, cells, strict=True)
    )
    left_out = len(grid.cells) - len(rows), len(grid.sizes) - len(sizes)
    note = (
        f"Throughput over that of {reference} at the same size. Bold: its 95 % interval leaves "
        "out 1. Blue: quicker, orange: slower."
    )
    if any(left_out):
        note += f" Not drawn: {left_out[0]} settings, {left_out[1]} smaller sizes."
    return {
        "kind": "grid", "id": f"{study}-{index}", "note": note,
        "title": f"{TITLES.get(study, study)}: {one.row.workload}{beside}, all sizes",
        "rows": [", ".join(row) for row in rows], "columns": [str(size) for size in sizes],
        "cells": [[None if c is None else {"ratio": c.ratio, "interval": ends(c.interval),
                                           "is_shown": c.is_shown} for c in each]
                  for each in cells],
        "xlabel": "Ranks", "ylabel": ", ".join(grid.names),
        "desc": f"Throughput by {', '.join(grid.names)} over that of {reference}. {described}.",
    }  # fmt: skip


def _rates(study: str, index: int, world_size: int, cases: Cases) -> Figure:
    """Return the throughput of the settings of one size, with intervals."""
    names = compared.independent(compared.varied(cases), cases)
    first = cases[0][0]
    items = [
        {
            "label": ", ".join(str(one.row.factors.get(name)) for name in names) or one.label,
            "value": point.rate,
            "interval": ends(point.rate_interval),
            "dots": point.rates if len(point.rates) > 1 else [],
        }
        for one, point in cases[:MAX_ITEMS]
    ]
    beside = f", {first.layout}" if first.layout else ""
    title = f"{TITLES.get(study, study)}: {first.row.workload} on {counted(world_size, 'rank')}"
    title += beside
    if len(cases) > MAX_ITEMS:
        title += f" (first {MAX_ITEMS} of {len(cases)} settings)"
    described = "; ".join(f"{item['label']}: {number(point.rate)}"
                          for item, (_, point) in zip(items, cases, strict=False))  # fmt: skip
    return {
        "kind": "category", "id": f"{study}-{index}", "title": title, "items": items,
        "xlabel": f"Throughput ({first.row.sample_unit}/s)", "ylabel": ", ".join(names),
        "desc": f"Throughput by {', '.join(names)}. {described}.",
    }  # fmt: skip
