"""The page of a comparison as plain data, in the form that `lockstep.report.page.render` draws.

The tables of a comparison: what differs around it, its points, what they have beside speed.

The figures of a comparison: changes with intervals, and a curve for each campaign over ranks.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from lockstep.core.formats import DASH, counted, listed, number, percent
from lockstep.core.metrics import GOOD_EFFICIENCY
from lockstep.core.studies import TITLES
from lockstep.report.check.checker import Finding
from lockstep.report.check.evidence import joined
from lockstep.report.compare import compare_wording, comparison, outcome
from lockstep.report.compare.comparison import LETTERS
from lockstep.report.compare.judging import BLOCKED, FASTER, SAME, SLOWER, UNKNOWN, Comparison
from lockstep.report.compare.outcome import (
    BARE,
    EQUAL,
    ONE_JOB,
    SHORT,
    JudgedPair,
    Line,
    change,
    change_span,
    counted_as,
)
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.compute.statistics import median_rate
from lockstep.report.load import layout
from lockstep.report.load.results import Results, Row
from lockstep.report.page import facts
from lockstep.report.page import parts as page_parts
from lockstep.report.page.curves import efficiency as efficiency_figure
from lockstep.report.page.parts import (
    MAX_ROWS,
    ORIGINS,
    Figure,
    Panel,
    Table,
    curve_figure,
    curve_of,
    panel,
    table,
)
from lockstep.report.words import method
from lockstep.report.words.lines import plain

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


def change_figure(
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
    text = "; ".join(item["text"] for curve in series for item in curve["items"] if item)
    return {
        "kind": "change", "id": key, "title": title, "rows": [name for _, name in chosen],
        "series": series, "margin": [1 / (1 + margin) - 1, margin], "ylabel": "",
        "xlabel": "\u2190 slower    change of throughput (%)    faster \u2192",
        "note": f"{HOW}{left}", "desc": f"Change of throughput. {text}.",
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
    span = f" ({outcome.change_span(judged.interval)})" if judged.interval else ""
    verdict = outcome.SHORT[counted_as(judged)]
    said = f"{outcome.change(judged.ratio)} %{span}, {verdict}"
    ends = [end - 1 for end in judged.interval] if judged.interval else None
    text = f"{called}, {name}: {said}"
    return {"value": judged.ratio - 1, "interval": ends, "kind": kind, "text": text}


def ladder_figures(lines: Sequence[Line], of: Sequence[str]) -> dict[str, list[Series]]:
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
            curves = [
                (replace(series_of(rows, min(common))[0], label=called))
                for called, rows in ladders.items()
            ]
            found |= {case: curves} if curves[0].is_compared else {}
    return found


def curve_figures(
    key: str, found: dict[str, list[Series]], called: Mapping[str, str]
) -> tuple[list[Figure], list[str]]:
    """Return efficiency and throughput of a rank over ranks for each case, and what has none."""
    figures = []
    for index, (case, series) in enumerate(list(found.items())[:MAX_CASES], start=1):
        name = called[case]
        efficiency = efficiency_figure(key, series, GOOD_EFFICIENCY, {})
        title = f"Parallel efficiency: {name}"
        figures += [
            efficiency | {"id": f"{key}-{index}-efficiency", "title": title},
            _per_rank(f"{key}-{index}-per-rank", f"Throughput of a rank: {name}", series),
        ]
    more = len(found) - MAX_CASES
    return figures, [f"{counted(more, 'further case')} have no curves here."] if more > 0 else []


def _per_rank(key: str, title: str, series: Sequence[Series]) -> Figure:
    unit = series[0].row.sample_unit
    curves = [
        curve_of(
            curve,
            _rate_of_a_rank,
            _interval_of_a_rank,
            lambda p: [r / p.world_size for r in p.rates],
        )
        for curve in series
    ]
    of = f"{unit}/s" if unit else "1/s"
    return curve_figure(key, title, f"Throughput of a rank ({of})", curves)


def _rate_of_a_rank(point: Point) -> float:
    return point.rate / point.world_size


def _interval_of_a_rank(point: Point) -> tuple[float, float] | None:
    ends = point.rate_interval
    return (ends[0] / point.world_size, ends[1] / point.world_size) if ends else None


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
        texts = [outcome.values(cell) for cell in (base, *cells)]
        rows.append([outcome.fact(name), *map(_cut, texts)])
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
    named = [name.partition(", ") for name in names(lines)][:MAX_ROWS]
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
    text = "; ".join(
        f"{made.sides[1]}: " + outcome.sentence(_outcome(lines, i), made.margin)
        for i, made in enumerate(comparisons)
        if any(line.cells[i] for line in lines)
    )
    made = table(title, ["Ranks", "Case", *columns], rows, note=note, finding=text, prints=True)
    for column in made["columns"]:
        column["text"] = column["label"] == "Case"
    return made


def _outcome(lines: Sequence[Line], index: int) -> outcome.Outcome:
    return outcome.outcome([cell for line in lines if (cell := line.cells[index])])


def _efficiency(rows: Sequence[Row], curve: Series) -> float | None:
    """Return the efficiency of a point; None where its layout is not that of the main series."""
    launches = {row.launch for row in rows}
    return next(
        (
            point.parallel_efficiency
            for point in curve.points
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
        (cell,) = line.cells
        assert cell is not None, "a line of one comparison has its point"
        pair, judged = cell
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
        [
            _rate(line.pair.a, unit),
            *(
                ([*_change(cell), compare_wording.memory(*cell) if cell else DASH])[i]
                for cell in line.cells
                for i in chosen
            ),
        ]
        for line in lines
    ]
    return columns, rows


def _rate(rows: Sequence[Row], unit: str) -> str:
    of = rows[0].sample_unit
    return number(median_rate([row.rate for row in rows])) + ("" if unit or not of else f" {of}/s")


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


MEANING = (
    "A point is a case at one world size; its change is the median over launches of the rate "
    "(samples, or other work, per second) against that of the first campaign, so a positive one is "
    "faster. Its interval is of geometric means over launches.",
    "Could show: the smallest change that the launches of a point would have shown nine times of "
    "ten. Too noisy: its interval holds both no change and one beyond the margin.",
)
SHARED = "Equal, as far as all say: "


def page(
    comparisons: Sequence[Comparison],
    names: Sequence[str],
    campaigns: Sequence[Results],
    findings: Sequence[Sequence[Finding]],
    command: str,
) -> dict[str, Any]:
    """Return everything a page of comparisons with one base, the first campaign, says."""
    called = _called(names)
    title = f"Comparison: {listed(called[1:])} against {called[0]}"
    lines = outcome.lines(comparisons)
    sections, figure = _studies(lines, comparisons, called)
    sections = [_differences(comparisons), *sections, *_around(comparisons, campaigns, findings)]
    page_parts.fold(sections)
    outcomes = [outcome.outcome(made.points) for made in comparisons]
    return {
        "title": title,
        "band": _cautions(comparisons),
        "summary": [_side(*one) for one in zip(LETTERS, names, campaigns, strict=False)],
        "errors": [
            f"{letter}: {text}"
            for letter, one in zip(LETTERS, findings, strict=False)
            for text in facts.error_lines(one)
        ],
        "headlines": [
            _headline(made, one, f"{name} against {called[0]}")
            for made, one, name in zip(comparisons, outcomes, called[1:], strict=True)
        ],
        "tiles": _tiles(outcomes[0], comparisons[0]) if len(outcomes) == 1 else [],
        "figure": figure,
        "verdicts": [],
        "card": None,
        "warnings": _warnings(comparisons),
        "checked": "",
        "next": _next(comparisons),
        "source": f"{title}. Made with: {command}",
        "sections": sections,
        "data": _data(comparisons, names),
    }


def _called(names: Sequence[str]) -> list[str]:
    """Return what campaigns are called: their folders' names, or all of their paths."""
    # Not what a link leads to: a bundle's results have one, by the name of its archive.
    short = [Path(os.path.abspath(name)).name for name in names]  # noqa: PTH100
    return short if len(set(short)) == len(short) else list(names)


def _side(letter: str, name: str, results: Results) -> str:
    sizes = sorted({row.world_size for row in results.rows})
    parts = [
        f"{counted(len(results.launches), 'launch')}" if results.launches else "",
        f"on {listed(sizes)} rank{'' if sizes == [1] else 's'}",
        listed(results.device_names, 3), method.days(results.days),
    ]  # fmt: skip
    return f"{letter}: {', '.join([name, *filter(None, parts)])}."


def _cautions(comparisons: Sequence[Comparison]) -> str | None:
    """Return each caution once, and which other campaigns it holds of in other words."""
    found: dict[tuple[Any, ...], dict[str, str]] = {}
    for made in comparisons:
        for caution in made.cautions:
            texts = found.setdefault((caution.kind, *caution.values.values()), {})
            texts.setdefault(compare_wording.caution(caution, made.sides), made.sides[1])
    said = []
    for texts in found.values():
        (text, _), *more = texts.items()
        said.append(f"{text[:1].upper()}{text[1:]}.")
        if more:
            said.append(f"Likewise for {listed(side for _, side in more)}.")
    return " ".join(said) or None


def _headline(made: Comparison, found: outcome.Outcome, title: str) -> dict[str, Any]:
    return {
        "title": title,
        "of": outcome.difference(made),
        "kind": found.kind,
        "text": outcome.sentence(found, made.margin),
        "short": "",
        "others": [],
    }


def _tiles(found: outcome.Outcome, made: Comparison) -> list[dict[str, str]]:
    """Return how many points have which verdict, and the strongest of each."""
    least = outcome.seen(found)
    seen = f"would have shown {least}" if least else "no change would show"
    told = {
        kind: f"up to {outcome.change(points[0][1].ratio)} %, on "
        f"{counted(points[0][0].world_size, 'rank')}"
        for kind, points in ((SLOWER, found.slower), (FASTER, found.faster)) if points
    }  # fmt: skip
    told |= {SAME: f"within {100 * made.margin:g} %", UNKNOWN: seen, BARE: "no interval",
             EQUAL: "no interval", ONE_JOB: "nodes unknown", BLOCKED: "by the check"}  # fmt: skip
    rare = [kind for kind in (BARE, EQUAL, ONE_JOB, BLOCKED) if found.counts[kind]]
    kinds = [SLOWER, FASTER, SAME, UNKNOWN, *rare]
    return [
        {
            "label": outcome.SHORT[kind].capitalize(),
            "value": f"{found.counts[kind]} of {found.total}",
            "note": told.get(kind, "") if found.counts[kind] else "",
            "href": "",
        }
        for kind in kinds
    ]


def _warnings(comparisons: Sequence[Comparison]) -> list[str]:
    found = outcome.flagged(comparisons)
    flagged = len({(side, point) for (side, _), points in found.items() for point in points})
    kinds = {caution.kind for made in comparisons for caution in made.cautions}
    texts = [text for kind, text in compare_wording.CAUTIONS.items() if kind in kinds]
    texts += [f"{counted(flagged, 'point')} flagged"] if flagged else []
    for made in comparisons:
        for side, only in zip(made.sides, (made.only_in_a, made.only_in_b), strict=True):
            if only:
                texts.append(f"{counted(len(only), 'point')} only in {side}")
    return list(dict.fromkeys(texts))


def _next(comparisons: Sequence[Comparison]) -> str:
    said = [(made.sides[1], outcome.advice(made)) for made in comparisons]
    if len({advice for _, advice in said}) == 1:
        return said[0][1]
    return " ".join(f"{side}: {advice}" for side, advice in said)


def _differences(comparisons: Sequence[Comparison]) -> Panel:
    made = panel("differs", "What differs")
    equal = [
        outcome.fact(name) for name in comparisons[0].same_facts
        if all(name in one.same_facts for one in comparisons)
    ]  # fmt: skip
    made["lead"] = [f"{SHARED}{listed(equal, 12)}."] if equal else []
    found = differences(comparisons)
    made["tables"] = [found] if found["rows"] else []
    if not found["rows"]:
        made["lead"].insert(0, "Nothing that both sides say of software, machine and options.")
    return made


def _studies(
    lines: Sequence[Line], comparisons: Sequence[Comparison], called: Sequence[str]
) -> tuple[list[Panel], Figure | None]:
    """Return a section for each study, and the figure of changes at the top."""
    studies: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        row = line.pair.a[0]
        studies.setdefault((row.origin, row.study), []).append(line)
    names = [f"{letter}, {name}" for letter, name in zip(LETTERS, called, strict=False)]
    found = []
    for (origin, study), own in studies.items():
        key = study if origin == "measured" else f"{origin}-{study}"
        found.append(_study(key, study, origin, own, comparisons, names))
    told = [one for one in found if one["figures"][:1] and one["figures"][0]["kind"] == "change"]
    if not told:
        return found, None
    first = max(told, key=_num_shown)
    return found, first["figures"].pop(0)


def _num_shown(section: Panel) -> int:
    """Return how many changes of a section are shown to be one."""
    series = section["figures"][0]["series"]
    items = [item for curve in series for item in curve["items"] if item]
    return sum(item["kind"] in (SLOWER, FASTER) for item in items)


def _study(
    key: str, study: str, origin: str, lines: Sequence[Line],
    comparisons: Sequence[Comparison], names: Sequence[str],
) -> Panel:  # fmt: skip
    title = TITLES.get(study, study) if origin == "measured" else ORIGINS[origin]
    made = panel(key, title, origin)
    ladders = ladder_figures(lines, names)
    changes = change_figure(
        f"{key}-change", f"{title}: change against {names[0]}", lines, comparisons[0].margin,
        names[1:],
    )  # fmt: skip
    cases = {line.pair.case: line.pair.case_label for line in lines}
    curves, made["notes"] = curve_figures(key, ladders, cases)
    made["figures"] = [*([changes] if changes else []), *curves]
    cells = [cell for line in lines for cell in line.cells if cell]
    texts = method.basis_sentences([row for pair, _ in cells for row in (*pair.a, *pair.b)])
    for one in made["figures"]:
        one["basis"] = texts
    which = next(iter(cases.values())) if len(cases) == 1 else counted(len(cases), "case")
    caption = f"{title} by ranks: {which}"
    made["tables"] = [points(caption, lines, comparisons, ladders)]
    return made


def _around(
    comparisons: Sequence[Comparison],
    campaigns: Sequence[Results],
    findings: Sequence[Sequence[Finding]],
) -> list[Panel]:
    beside = panel("beside", "Beside speed", tables=others(comparisons))
    judged = panel("method", "How it is judged")
    judged["lead"] = [
        *compare_wording.rule(*comparisons),
        *MEANING,
    ]  # fmt: skip
    judged["notes"] = _by_side(comparisons, compare_wording.judging_notes)
    left = panel("left-out", "Left out")
    left["notes"] = [
        *_by_side(comparisons, compare_wording.left_out),
        *(f"Not read: {why}" for results in campaigns for why in results.unread),
    ]  # fmt: skip
    notes = compare_wording.flag_notes(*comparisons)
    flags = panel(
        "flags", "Flags", notes=[plain(f"{text[:1].upper()}{text[1:]}.") for text in notes]
    )
    return [
        *([beside] if beside["tables"] else []), judged,
        *(one for one in (flags, left) if one["notes"]),
        *_checked(findings),
    ]  # fmt: skip


def _checked(findings: Sequence[Sequence[Finding]]) -> list[Panel]:
    """Return one section of what the check finds in each campaign, where it finds something."""
    found = {
        letter: one
        for letter, own in zip(LETTERS, findings, strict=False)
        if (one := facts.findings_panel(own))
    }
    made = [one | {"title": "What the check finds"} for one in list(found.values())[:1]]
    for one in made:
        one["lead"] = [f"{letter}: {text}" for letter, own in found.items() for text in own["lead"]]
        one["tables"] = [
            table | {"caption": f"{letter}: {table['caption']}", "folded": True}
            for letter, own in found.items() for table in own["tables"]
        ]  # fmt: skip
    return made


def _by_side(comparisons: Sequence[Comparison], notes: Any) -> list[str]:
    several = len(comparisons) > 1
    return [
        plain(f"{made.sides[1]}: {text}" if several else f"{text[:1].upper()}{text[1:]}.")
        for made in comparisons for text in notes(made)
    ]  # fmt: skip


def _data(comparisons: Sequence[Comparison], names: Sequence[str]) -> dict[str, Any]:
    points = []
    for made, name in zip(comparisons, names[1:], strict=True):
        of_one = comparison.document(made, (names[0], name))
        points += [{"a": names[0], "b": name} | point for point in of_one["points"]]
    return {"schema": 1, "points": points}
