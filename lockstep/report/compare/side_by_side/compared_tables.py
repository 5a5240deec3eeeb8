"""The tables of a comparison: what differs around it, its points, what they have beside speed."""

from collections.abc import Mapping, Sequence

from lockstep.core.formats import DASH, counted, number, percent
from lockstep.report.check.wording import joined
from lockstep.report.compare import compare_wording, outcome, outcome_wording
from lockstep.report.compare.comparison import Comparison
from lockstep.report.compare.outcome import JudgedPair, Line
from lockstep.report.compare.outcome_wording import SHORT, change, change_span
from lockstep.report.compare.side_by_side import compared_figures
from lockstep.report.compute.scaling import Series
from lockstep.report.compute.statistics import median_rate
from lockstep.report.load.results import Row
from lockstep.report.page.panels.parts import MAX_ROWS, Table, table

Ladders = Mapping[str, Sequence[Series]]
MEMORY = "Peak memory {} / {}"
MAX_FACT, MOST_IN_FULL, MOST_WITH_MEMORY = 90, 4, 2
BASELINE = (
    "Efficiency: of each campaign, relative to its own throughput at the smallest size of the case "
    "here (ranks: {})."
)


def differences(comparisons: Sequence[Comparison]) -> Table:
    """Return what differs between campaigns, a column for each."""
    found = [outcome.changed(made) for made in comparisons]
    rows = []
    for name in dict.fromkeys(name for one in found for name in one):
        base = next(one[name][0] for one in found if name in one)
        cells = [one[name][1] if name in one else base for one in found]
        texts = [outcome_wording.values(cell) for cell in (base, *cells)]
        rows.append([outcome_wording.fact(name), *map(_cut, texts)])
    letters = ["A", *(made.sides[1] for made in comparisons)]
    return table("What differs", ["Fact", *letters], rows, len(letters) + 1)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_FACT else f"{text[: MAX_FACT - 1]}\u2026"


def points(
    title: str,
    lines: Sequence[Line],
    comparisons: Sequence[Comparison],
    ladders: Ladders,
) -> Table:
    """Return the points of a study, a lone campaign in full, several side by side."""
    units = {line.pair.a[0].sample_unit for line in lines}
    unit = f"{units.pop()}/s" if len(units) == 1 and "" not in units else ""
    shown = lines[:MAX_ROWS]
    named = [name.partition(", ") for name in compared_figures.names(lines)][:MAX_ROWS]
    if len(comparisons) == 1:
        columns, cells = _in_full(shown, comparisons[0], unit, ladders)
    else:
        columns, cells = _beside(shown, comparisons, unit)
    rows = [
        [str(line.pair.world_size), own, *of]
        for line, (_, _, own), of in zip(shown, named, cells, strict=True)
    ]
    left = len(lines) - len(shown)
    bases = sorted({curves[0].baseline for curves in ladders.values()})
    note = " ".join([
        *compare_wording.rule(*comparisons),
        *([BASELINE.format(joined(bases))] if bases and len(comparisons) == 1 else []),
        *([f"{counted(left, 'further point')} left out here; --json has all."] if left else []),
    ])  # fmt: skip
    said = "; ".join(
        f"{made.sides[1]}: " + outcome_wording.sentence(_outcome(lines, i), made.margin)
        for i, made in enumerate(comparisons)
        if any(line.cells[i] for line in lines)
    )
    made = table(title, ["Ranks", "Case", *columns], rows, note=note, finding=said, prints=True)
    for column in made["columns"]:
        column["text"] = column["label"] == "Case"
    return made


def _outcome(lines: Sequence[Line], index: int) -> outcome.Outcome:
    return outcome.outcome([cell for line in lines if (cell := line.cells[index])])


def _efficiency(rows: Sequence[Row], one: Series) -> float | None:
    """Return the efficiency of a point; None where its layout is not that of the main series."""
    launches = {row.launch for row in rows}
    return next(
        (
            point.parallel_efficiency
            for point in one.points
            if point.world_size == rows[0].world_size
            and {row.launch for row in point.rows} == launches
        ),
        None,
    )


def _in_full(
    lines: Sequence[Line], made: Comparison, unit: str, ladders: Ladders
) -> tuple[list[str], list[list[str]]]:
    a, b = made.sides
    of = f" ({unit})" if unit else ""
    columns = [
        f"{a}{of}", f"{b}{of}", "Change (%)", "Interval (%)", "Verdict", MEMORY.format(b, a),
        "Could show (%)", f"Efficiency {a} (%)", f"Efficiency {b} (%)", "Launches",
    ]  # fmt: skip
    rows = []
    for line in lines:
        pair, judged = _only(line)
        curves = ladders.get(pair.case, ())
        both = [_efficiency(rows, of) for rows, of in zip((pair.a, pair.b), curves, strict=False)]
        least = None if judged.smallest_change is None else 100 * judged.smallest_change
        rows.append([
            _rate(pair.a, unit), _rate(pair.b, unit), *_change(line.cells[0]),
            compare_wording.memory(pair, judged),
            DASH if least is None else f"{least:.2g}" if least < 100 else "> 100",
            *map(percent, both or (None, None)), f"{len(pair.a)} + {len(pair.b)}",
        ])  # fmt: skip
    return columns, rows


def _only(line: Line) -> JudgedPair:
    (cell,) = line.cells
    assert cell is not None, "a line of one comparison has its point"
    return cell


def _beside(
    lines: Sequence[Line], comparisons: Sequence[Comparison], unit: str
) -> tuple[list[str], list[list[str]]]:
    columns = [f"A ({unit})" if unit else "A"]
    # More than these have no room beside each other; the figure has the intervals, --json all.
    full = [0, 1, 2, 3] if len(comparisons) <= MOST_WITH_MEMORY else [0, 1, 2]
    chosen = full if len(comparisons) <= MOST_IN_FULL else [0, 2]
    for made in comparisons:
        b = made.sides[1]
        names = [f"{b} change (%)", f"{b} interval (%)", f"{b} verdict",
                 MEMORY.format(b, "A")]  # fmt: skip
        columns += [names[i] for i in chosen]
    rows = [
        [_rate(line.pair.a, unit), *(_beside_a(cell)[i] for cell in line.cells for i in chosen)]
        for line in lines
    ]
    return columns, rows


def _rate(rows: Sequence[Row], unit: str) -> str:
    of = rows[0].sample_unit
    return number(median_rate([row.rate for row in rows])) + ("" if unit or not of else f" {of}/s")


def _beside_a(cell: JudgedPair | None) -> list[str]:
    return [*_change(cell), compare_wording.memory(*cell) if cell else DASH]


def _change(cell: JudgedPair | None) -> list[str]:
    if cell is None:
        return [DASH, DASH, DASH]
    judged = cell[1]
    ratio = None if judged.blocked_by else judged.ratio
    return [change(ratio), change_span(judged.interval), SHORT[outcome.counted_as(judged)]]


def others(comparisons: Sequence[Comparison]) -> list[Table]:
    """Return what points have beside their speed: shares, and the times of trainings."""
    made = []
    for one in comparisons:
        a, b = one.sides
        if rows := compare_wording.quantity_rows(one):
            columns = ("Quantity", "Ranks", f"{a} (%)", f"{b} (%)", f"{b} - {a} (points)",
                       "95 % interval (points)", "Case")  # fmt: skip
            made.append(_folded("Shares", columns, rows, compare_wording.QUANTITIES_NOTE))
        if rows := compare_wording.time_rows(one):
            columns = (
                "Time",
                "Ranks",
                f"{a} (s)",
                f"{b} (s)",
                f"{b} / {a}",
                "95 % interval",
                "Case",
            )
            note = compare_wording.TIMES_NOTE.format(b)
            made.append(_folded("Training time", columns, rows, note))
    return made


def _folded(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str
) -> Table:
    made = table(caption, columns, rows, 1, "--json", note=note, folded=True, prints=True)
    made["columns"][-1]["text"] = True
    return made
