"""The figures of a comparison: changes with intervals, and a curve for each campaign over ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from lockstep.core.formats import counted
from lockstep.core.metrics import GOOD_EFFICIENCY
from lockstep.report.compare import outcome_wording
from lockstep.report.compare.judging import BLOCKED, FASTER, SAME, SLOWER
from lockstep.report.compare.outcome import JudgedPair, Line, counted_as
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.load import layout
from lockstep.report.load.results import Row
from lockstep.report.page.panels.parts import Figure, curve_figure, curve_of
from lockstep.report.page.plots import scaling_figures

# Changes of a figure, over all campaigns, and cases with curves; the table has all.
MAX_CHANGES, MAX_CASES = 32, 6
HOW = (
    "Bar: interval; shaded: the same within the margin; triangle: shown to be slower or faster; "
    "square: the same; hollow: too noisy to tell, or of unknown noise."
)


def names(lines: Sequence[Line]) -> list[str]:
    """Return what points of one study are called: ranks, and what tells cases and layouts apart."""
    labels = [line.pair.case_label.split(", ") for line in lines]
    shared = set.intersection(*map(set, labels)) if labels else set()
    cases = {line.pair.case for line in lines}
    found = []
    for line, parts in zip(lines, labels, strict=True):
        own = [part for part in parts if part not in shared] if len(cases) > 1 else []
        point = line.pair.case, line.pair.world_size
        rows = [one.pair.a[0] for one in lines if (one.pair.case, one.pair.world_size) == point]
        if len(rows) > 1:
            placed = layout.layout(line.pair.a[0], layout.differing(rows))
            own += [placed.text] if placed.text else []
        found.append(", ".join([counted(line.pair.world_size, "rank"), *own]))
    return found


def changes(
    key: str, title: str, lines: Sequence[Line], margin: float, of: Sequence[str]
) -> Figure | None:
    """Return the change at each point of a study, by ranks; None where all are blocked."""
    drawable = [
        (line, name) for line, name in zip(lines, names(lines), strict=True) if _strength(line)
    ]
    kept = _kept([line for line, _ in drawable], MAX_CHANGES // len(of))
    chosen = [one for one in drawable if any(one[0] is line for line in kept)]
    if not chosen:
        return None
    series: list[dict[str, Any]] = [
        {"label": called, "items": [_item(line.cells[i], name, called) for line, name in chosen]}
        for i, called in enumerate(of)
    ]
    missing = len(lines) - len(chosen)
    left = f" Not drawn, and in the table: {counted(missing, 'point')}." if missing else ""
    told = "; ".join(item["text"] for one in series for item in one["items"] if item)
    return {
        "kind": "change", "id": key, "title": title, "rows": [name for _, name in chosen],
        "series": series, "margin": [1 / (1 + margin) - 1, margin], "ylabel": "",
        "xlabel": "\u2190 slower    change of throughput (%)    faster \u2192",
        "note": f"{HOW}{left}", "desc": f"Change of throughput. {told}.",
    }  # fmt: skip


def _kept(lines: Sequence[Line], most: int) -> list[Line]:
    """Return as many points as a figure has room for: cases as a whole, the strongest first."""
    cases: dict[str, list[Line]] = {}
    for line in sorted(lines, key=_strength, reverse=True):
        cases.setdefault(line.pair.case, []).append(line)
    first = next(iter(cases.values()), [])
    kept: list[Line] = first[:most]
    for own in list(cases.values())[1:]:
        kept += own if len(kept) + len(own) <= most else []
    return kept


def _strength(line: Line) -> float:
    """Return how much a point has to say: what is shown first, then by the size of the change."""
    judged = [cell[1] for cell in line.cells if cell and cell[1].verdict != BLOCKED]
    return max(
        (abs(one.ratio - 1) + (1e9 if one.verdict in (SLOWER, FASTER) else 1) for one in judged),
        default=0,
    )


def _item(cell: JudgedPair | None, name: str, called: str) -> dict[str, Any] | None:
    if cell is None or cell[1].verdict == BLOCKED:
        return None
    judged = cell[1]
    kind = judged.verdict if judged.verdict in (SLOWER, FASTER, SAME) else "open"
    span = f" ({outcome_wording.change_span(judged.interval)})" if judged.interval else ""
    verdict = outcome_wording.SHORT[counted_as(judged)]
    said = f"{outcome_wording.change(judged.ratio)} %{span}, {verdict}"
    ends = [end - 1 for end in judged.interval] if judged.interval else None
    text = f"{called}, {name}: {said}"
    return {"value": judged.ratio - 1, "interval": ends, "kind": kind, "text": text}


def ladders(lines: Sequence[Line], of: Sequence[str]) -> dict[str, list[Series]]:
    """Return of each case the curve of every campaign, where several sizes can be compared."""
    found: dict[str, list[Series]] = {}
    for case in dict.fromkeys(line.pair.case for line in lines):
        own = [line for line in lines if line.pair.case == case]
        if any(cell and cell[1].verdict == BLOCKED for line in own for cell in line.cells):
            continue
        bases = [line.pair.a for line in own]
        others = [
            [cell[0].b for line in own if (cell := line.cells[i])] for i in range(len(of) - 1)
        ]
        ladders = {
            called: list(chain(*points))
            for called, points in zip(of, [bases, *others], strict=True)
            if len({rows[0].world_size for rows in points}) > 1
        }  # fmt: skip
        sizes = [{row.world_size for row in rows} for rows in ladders.values()]
        # Curves relative to different sizes say nothing of one another.
        if len(sizes) > 1 and (common := set.intersection(*sizes)):
            curves = [_main(rows, called, min(common)) for called, rows in ladders.items()]
            found |= {case: curves} if curves[0].is_compared else {}
    return found


def _main(rows: Sequence[Row], called: str, baseline: int) -> Series:
    """Return the main series that rows of one case are, under a campaign's name."""
    return replace(series_of(rows, baseline)[0], label=called)


def curves(
    key: str, found: dict[str, list[Series]], called: Mapping[str, str]
) -> tuple[list[Figure], list[str]]:
    """Return efficiency and throughput of a rank over ranks for each case, and what has none."""
    figures = []
    for number, (case, series) in enumerate(list(found.items())[:MAX_CASES], start=1):
        name = called[case]
        efficiency = scaling_figures.efficiency(key, series, GOOD_EFFICIENCY, {})
        title = f"Parallel efficiency: {name}"
        figures += [
            efficiency | {"id": f"{key}-{number}-efficiency", "title": title},
            _per_rank(f"{key}-{number}-per-rank", f"Throughput of a rank: {name}", series),
        ]
    more = len(found) - MAX_CASES
    return figures, [f"{counted(more, 'further case')} have no curves here."] if more > 0 else []


def _per_rank(key: str, title: str, series: Sequence[Series]) -> Figure:
    unit = series[0].row.sample_unit
    curves = [
        curve_of(
            one, _rate_of_a_rank, _interval_of_a_rank, lambda p: [r / p.world_size for r in p.rates]
        )
        for one in series
    ]
    of = f"{unit}/s" if unit else "1/s"
    return curve_figure(key, title, f"Throughput of a rank ({of})", curves)


def _rate_of_a_rank(point: Point) -> float:
    return point.rate / point.world_size


def _interval_of_a_rank(point: Point) -> tuple[float, float] | None:
    ends = point.rate_interval
    return (ends[0] / point.world_size, ends[1] / point.world_size) if ends else None
