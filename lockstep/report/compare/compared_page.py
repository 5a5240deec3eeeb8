"""The page of a comparison as plain data, in the form that `lockstep.report.page.render` draws."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from lockstep.core.formats import DASH, counted, listed, number, percent
from lockstep.core.metrics import GOOD_EFFICIENCY
from lockstep.core.studies import TITLES
from lockstep.report.check.checker import Finding
from lockstep.report.check.evidence import joined
from lockstep.report.compare import comparison, outcome
from lockstep.report.compare.comparison import LETTERS, Comparison
from lockstep.report.compare.judging import BLOCKED, FASTER, SAME, SLOWER, UNKNOWN
from lockstep.report.compare.outcome import (
    BARE,
    EQUAL,
    ONE_JOB,
    JudgedPair,
    Line,
    change,
    change_span,
)
from lockstep.report.compute.scaling import Series, series_of
from lockstep.report.compute.statistics import median_rate
from lockstep.report.load import layout
from lockstep.report.load.results import Results, Row
from lockstep.report.page import curves, facts
from lockstep.report.page import parts as page_parts
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
# More columns have no room beside each other; the figure has the intervals, --json all.
MOST_IN_FULL, MOST_WITH_MEMORY = 4, 2
MAX_FACT = 90  # characters of a cell
HOW = (
    "Bar: interval; shaded: the margin; triangle: slower or faster; square: the same; hollow: too "
    "noisy, or of unknown noise."
)
BASELINE = (
    "Efficiency: relative to the campaign's own throughput at the smallest common size of the case "
    "(ranks: {})."
)
MEANING = (
    "A point is a case at one world size. Its change compares the median rate over launches "
    "(samples or other work per second) with that of the first campaign; positive is faster. The "
    "interval is of geometric means over launches.",
    "Could show: the smallest change that the launches of a point would detect 9 times in 10. Too "
    "noisy: the interval contains both no change and a change beyond the margin.",
)
Ladders = Mapping[str, Sequence[Series]]


def page(
    comparisons: Sequence[Comparison],
    names: Sequence[str],
    campaigns: Sequence[Results],
    findings: Sequence[Sequence[Finding]],
    command: str,
) -> dict[str, Any]:
    """Return everything a page of comparisons with one base, the first campaign, says."""
    # Not what a link leads to: a bundle's results have one, by the name of its archive.
    short = [Path(os.path.abspath(name)).name for name in names]  # noqa: PTH100
    called = short if len(set(short)) == len(short) else list(names)
    title = f"Comparison: {listed(called[1:])} against {called[0]}"
    lines = outcome.side_by_side(comparisons)
    studies, figure = _studies(lines, comparisons, called)
    sections = [_differences(comparisons), *studies, *_around(comparisons, campaigns, findings)]
    page_parts.fold(sections)
    outcomes = [outcome.outcome(made.points) for made in comparisons]
    advices = {made.sides[1]: outcome.advice(made) for made in comparisons}
    data = [
        {"a": names[0], "b": name} | point
        for made, name in zip(comparisons, names[1:], strict=True)
        for point in comparison.document(made, (names[0], name))["points"]
    ]
    return {
        "title": title,
        "band": _cautions(comparisons),
        "summary": [_side(*side) for side in zip(LETTERS, names, campaigns, strict=False)],
        "errors": [
            f"{letter}: {text}"
            for letter, of_side in zip(LETTERS, findings, strict=False)
            for text in facts.error_lines(of_side)
        ],
        "headlines": [
            {
                "title": f"{name} against {called[0]}",
                "of": outcome.difference(made),
                "kind": summary.kind,
                "text": outcome.sentence(summary, made.margin),
                "short": "",
                "others": [],
            }
            for made, summary, name in zip(comparisons, outcomes, called[1:], strict=True)
        ],
        "tiles": _tiles(outcomes[0], comparisons[0]) if len(outcomes) == 1 else [],
        "figure": figure,
        "verdicts": [],
        "card": None,
        "warnings": _warnings(comparisons),
        "checked": "",
        "next": next(iter(advices.values())) if len(set(advices.values())) == 1
        else " ".join(f"{side}: {advice}" for side, advice in advices.items()),
        "source": f"{title}. Made with: {command}",
        "sections": sections,
        "data": {"schema": 1, "points": data},
    }  # fmt: skip


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
    cautions: dict[tuple[Any, ...], dict[str, str]] = {}
    for made in comparisons:
        for caution in made.cautions:
            texts = cautions.setdefault((caution.kind, *caution.values.values()), {})
            texts.setdefault(caution.sentence(made.sides), made.sides[1])
    said = []
    for texts in cautions.values():
        (text, _), *more = texts.items()
        said.append(f"{text[:1].upper()}{text[1:]}.")
        if more:
            said.append(f"The same holds for {listed(side for _, side in more)}.")
    return " ".join(said) or None


def _tiles(summary: outcome.Outcome, made: Comparison) -> list[dict[str, str]]:
    """Return how many points are of which kind, and the strongest of each."""
    least = outcome.seen(summary)
    notes = {
        kind: f"up to {change(points[0][1].ratio)} %, on {counted(points[0][0].world_size, 'rank')}"
        for kind, points in ((SLOWER, summary.slower), (FASTER, summary.faster)) if points
    }  # fmt: skip
    notes |= {
        SAME: f"within {100 * made.margin:g} %",
        UNKNOWN: f"would have detected {least}" if least else "would detect no change",
        BARE: "no interval", EQUAL: "no interval", ONE_JOB: "nodes unknown",
        BLOCKED: "by the check",
    }  # fmt: skip
    usual = (SLOWER, FASTER, SAME, UNKNOWN)
    return [
        {
            "label": short.capitalize(),
            "value": f"{summary.counts[kind]} of {summary.total}",
            "note": notes.get(kind, "") if summary.counts[kind] else "",
            "href": "",
        }
        for kind, (short, _) in outcome.KINDS.items()
        if kind in usual or summary.counts[kind]
    ]


def _warnings(comparisons: Sequence[Comparison]) -> list[str]:
    flags = outcome.flagged(comparisons)
    flagged = {(side, point) for (side, _), points in flags.items() for point in points}
    kinds = {caution.kind for made in comparisons for caution in made.cautions}
    texts = [text for kind, text in comparison.CAUTIONS.items() if kind in kinds]
    texts += [f"{counted(len(flagged), 'point')} flagged"] if flagged else []
    for made in comparisons:
        for side, only in zip(made.sides, (made.only_in_a, made.only_in_b), strict=True):
            texts += [f"{counted(len(only), 'point')} only in {side}"] if only else []
    return list(dict.fromkeys(texts))


def _differences(comparisons: Sequence[Comparison]) -> Panel:
    """Return what differs between campaigns, a column for each, and what is equal in all."""
    made = panel("differs", "What differs")
    equal = [
        outcome.fact(name) for name in comparisons[0].same_facts
        if all(name in each.same_facts for each in comparisons)
    ]  # fmt: skip
    changed = [outcome.changed(each) for each in comparisons]
    rows = []
    for name in dict.fromkeys(name for each in changed for name in each):
        base = next(each[name][0] for each in changed if name in each)
        cells = [base, *(each[name][1] if name in each else base for each in changed)]
        texts = [outcome.values(cell) for cell in cells]
        cut = [t if len(t) <= MAX_FACT else f"{t[: MAX_FACT - 1]}\u2026" for t in texts]
        rows.append([outcome.fact(name), *cut])
    letters = ["A", *(each.sides[1] for each in comparisons)]
    if rows:
        made["tables"] = [table("What differs", ["Fact", *letters], rows, len(letters) + 1)]
    else:
        made["lead"] = ["Nothing in the recorded software, machine and options."]
    made["lead"] += [f"Equal where all record it: {listed(equal, 12)}."] if equal else []
    return made


def _studies(
    lines: Sequence[Line], comparisons: Sequence[Comparison], called: Sequence[str]
) -> tuple[list[Panel], Figure | None]:
    """Return a section for each study, and the figure of changes at the top.

    That is of the study in which most changes are shown to be one.
    """
    studies: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        row = line.pair.a[0]
        studies.setdefault((row.origin, row.study), []).append(line)
    names = [f"{letter}, {name}" for letter, name in zip(LETTERS, called, strict=False)]
    sections = [_study(*key, own, comparisons, names) for key, own in studies.items()]
    drawn = [
        one for one in sections if one["figures"][:1] and one["figures"][0]["kind"] == "change"
    ]

    def num_shown(section: Panel) -> int:
        items = [item for curve in section["figures"][0]["series"] for item in curve["items"]]
        return sum(item["kind"] in (SLOWER, FASTER) for item in items if item)

    return sections, max(drawn, key=num_shown)["figures"].pop(0) if drawn else None


def _study(
    origin: str, study: str, lines: Sequence[Line], comparisons: Sequence[Comparison],
    names: Sequence[str],
) -> Panel:  # fmt: skip
    key = study if origin == "measured" else f"{origin}-{study}"
    title = TITLES.get(study, study) if origin == "measured" else ORIGINS[origin]
    made = panel(key, title, origin)
    ladders = _ladders(lines, names)
    changes = _change_figure(
        f"{key}-change", f"{title}: change against {names[0]}", lines, comparisons[0].margin,
        names[1:],
    )  # fmt: skip
    cases = {line.pair.case: line.pair.case_label for line in lines}
    made["figures"] = [changes] if changes else []
    for index, (case, series) in enumerate(list(ladders.items())[:MAX_CASES], start=1):
        efficiency = curves.efficiency(key, series, GOOD_EFFICIENCY, {})
        efficiency |= {
            "id": f"{key}-{index}-efficiency", "title": f"Parallel efficiency: {cases[case]}"
        }  # fmt: skip
        made["figures"] += [efficiency, _per_rank(f"{key}-{index}-per-rank", cases[case], series)]
    if (more := len(ladders) - MAX_CASES) > 0:
        made["notes"] = [f"{counted(more, 'more case')} without curves here."]
    cells = [cell for line in lines for cell in line.cells if cell]
    texts = method.basis_sentences([row for pair, _ in cells for row in (*pair.a, *pair.b)])
    for figure in made["figures"]:
        figure["basis"] = texts
    which = next(iter(cases.values())) if len(cases) == 1 else counted(len(cases), "case")
    made["tables"] = [_points(f"{title} by ranks: {which}", lines, comparisons, ladders)]
    return made


def _around(
    comparisons: Sequence[Comparison],
    campaigns: Sequence[Results],
    findings: Sequence[Sequence[Finding]],
) -> list[Panel]:
    """Return what points have beside speed, how they are judged, and what is not among them."""

    def noted(notes: Iterable[tuple[str, str]]) -> list[str]:
        is_alone = len(comparisons) == 1
        return [
            plain(f"{text[:1].upper()}{text[1:]}." if is_alone or not side else f"{side}: {text}")
            for side, text in notes
        ]

    beside = panel("beside", "Other quantities")
    for made in comparisons:
        a, b = made.sides
        for aside in outcome.asides(made):
            what, of, unit = aside.head
            unit_of_sides = what.partition(", ")[2]
            suffix = f" ({unit})" if unit else ""
            columns = ("Quantity" if unit else "Time", "Ranks", f"{a} ({unit_of_sides})",
                f"{b} ({unit_of_sides})", f"{of}{suffix}", f"95 % interval{suffix}",
                "Case")  # fmt: skip
            shown = table(aside.caption, columns, aside.rows, 1, "--json", note=aside.note,
                folded=True, prints=True)  # fmt: skip
            shown["columns"][-1]["text"] = True
            beside["tables"].append(shown)
    judged = panel("method", "How it is judged", lead=[*outcome.rule(comparisons), *MEANING])
    judged["notes"] = noted((m.sides[1], m.look.sentence) for m in comparisons if m.has_interval)
    flags = panel("flags", "Flags", notes=noted(("", t) for t in outcome.flag_notes(comparisons)))
    left = panel("left-out", "Left out")
    left["notes"] = [
        *noted((made.sides[1], text) for made in comparisons for text in outcome.left_out(made)),
        *(f"Not read: {why}" for results in campaigns for why in results.unread),
    ]
    checked = {
        letter: own
        for letter, of_side in zip(LETTERS, findings, strict=False)
        if (own := facts.findings_panel(of_side))
    }
    made_of_check = [next(iter(checked.values())) | {
        "title": "Findings of the check",
        "lead": [f"{letter}: {text}" for letter, own in checked.items() for text in own["lead"]],
        "tables": [
            each | {"caption": f"{letter}: {each['caption']}", "folded": True}
            for letter, own in checked.items() for each in own["tables"]
        ],
    }] if checked else []  # fmt: skip
    return [
        *([beside] if beside["tables"] else []), judged,
        *(each for each in (flags, left) if each["notes"]), *made_of_check,
    ]  # fmt: skip


def _names(lines: Sequence[Line]) -> list[str]:
    """Return what points of one study are called: ranks, and what tells cases and layouts apart."""
    labels = [line.pair.case_label.split(", ") for line in lines]
    shared = set.intersection(*map(set, labels)) if labels else set()
    has_cases = len({line.pair.case for line in lines}) > 1
    names = []
    for line, parts in zip(lines, labels, strict=True):
        own = [part for part in parts if part not in shared] if has_cases else []
        point = line.pair.case, line.pair.world_size
        rows = [each.pair.a[0] for each in lines if (each.pair.case, each.pair.world_size) == point]
        if len(rows) > 1:
            placed = layout.layout(line.pair.a[0], layout.differing(rows))
            own += [placed.text] if placed.text else []
        names.append(", ".join([counted(line.pair.world_size, "rank"), *own]))
    return names


def _change_figure(
    key: str, title: str, lines: Sequence[Line], margin: float, names: Sequence[str]
) -> Figure | None:
    """Return the change at each point of a study, by ranks; None where all are blocked.

    Where there is no room for all, cases are kept as a whole, the strongest first.
    """

    def strength(line: Line) -> float:
        judged = [cell[1] for cell in line.cells if cell and cell[1].verdict != BLOCKED]
        sizes = (abs(j.ratio - 1) + (1e9 if j.verdict in (SLOWER, FASTER) else 1) for j in judged)
        return max(sizes, default=0)

    def item(cell: JudgedPair | None, name: str, side: str) -> dict[str, Any] | None:
        if cell is None or cell[1].verdict == BLOCKED:
            return None
        judged = cell[1]
        kind = judged.verdict if judged.verdict in (SLOWER, FASTER, SAME) else "open"
        span = f" ({change_span(judged.interval)})" if judged.interval else ""
        text = f"{side}, {name}: {change(judged.ratio)} %{span}, {outcome.short(judged)}"
        ends = [end - 1 for end in judged.interval] if judged.interval else None
        return {"value": judged.ratio - 1, "interval": ends, "kind": kind, "text": text}

    most = MAX_CHANGES // len(names)
    cases: dict[str, list[Line]] = {}
    for line in sorted(filter(strength, lines), key=strength, reverse=True):
        cases.setdefault(line.pair.case, []).append(line)
    if not cases:
        return None
    first, *others = cases.values()
    kept = first[:most]
    for own in others:
        kept += own if len(kept) + len(own) <= most else []
    drawn = [
        (line, name) for line, name in zip(lines, _names(lines), strict=True)
        if any(line is each for each in kept)
    ]  # fmt: skip
    series: list[dict[str, Any]] = [
        {"label": side, "items": [item(line.cells[i], name, side) for line, name in drawn]}
        for i, side in enumerate(names)
    ]
    missing = len(lines) - len(drawn)
    left = f" In the table only: {counted(missing, 'point')}." if missing else ""
    text = "; ".join(item["text"] for curve in series for item in curve["items"] if item)
    return {
        "kind": "change", "id": key, "title": title, "rows": [name for _, name in drawn],
        "series": series, "margin": [1 / (1 + margin) - 1, margin], "ylabel": "",
        "xlabel": "\u2190 slower    change of throughput (%)    faster \u2192",
        "note": f"{HOW}{left}", "desc": f"Change of throughput. {text}.",
    }  # fmt: skip


def _ladders(lines: Sequence[Line], names: Sequence[str]) -> dict[str, list[Series]]:
    """Return of each case the curve of every campaign, where several sizes can be compared."""
    ladders: dict[str, list[Series]] = {}
    for case in dict.fromkeys(line.pair.case for line in lines):
        own = [line for line in lines if line.pair.case == case]
        if any(cell and cell[1].verdict == BLOCKED for line in own for cell in line.cells):
            continue
        sides = [[line.pair.a for line in own]] + [
            [cell[0].b for line in own if (cell := line.cells[i])] for i in range(len(names) - 1)
        ]
        curves = {
            name: list(chain(*points))
            for name, points in zip(names, sides, strict=True)
            if len({rows[0].world_size for rows in points}) > 1
        }
        sizes = [{row.world_size for row in rows} for rows in curves.values()]
        # Curves relative to different sizes say nothing of one another.
        if len(sizes) > 1 and (common := set.intersection(*sizes)):
            series = [
                replace(series_of(rows, min(common))[0], label=name)
                for name, rows in curves.items()
            ]
            ladders |= {case: series} if series[0].is_compared else {}
    return ladders


def _per_rank(key: str, case: str, series: Sequence[Series]) -> Figure:
    unit = series[0].row.sample_unit
    curves = [
        curve_of(
            curve,
            lambda p: p.rate / p.world_size,
            lambda p: (
                p.rate_interval
                and (p.rate_interval[0] / p.world_size, p.rate_interval[1] / p.world_size)
            ),
            lambda p: [r / p.world_size for r in p.rates],
        )
        for curve in series
    ]
    of = f"{unit}/s" if unit else "1/s"
    return curve_figure(key, f"Throughput per rank: {case}", f"Throughput per rank ({of})", curves)


def _points(
    title: str, lines: Sequence[Line], comparisons: Sequence[Comparison], ladders: Ladders
) -> Table:
    """Return the points of a study: a lone campaign in full, several side by side."""
    units = {line.pair.a[0].sample_unit for line in lines}
    unit = f"{units.pop()}/s" if len(units) == 1 and "" not in units else ""
    is_alone = len(comparisons) == 1
    kept = ["change (%)", "interval (%)", "verdict", "memory"]
    if len(comparisons) > MOST_WITH_MEMORY:
        kept.remove("memory")
    if len(comparisons) > MOST_IN_FULL:
        kept.remove("interval (%)")
    suffix = f" ({unit})" if unit else ""
    columns = ["Ranks", "Case", f"A{suffix}"]
    rows = [
        [str(line.pair.world_size), name.partition(", ")[2], _rate(line.pair.a, unit)]
        for line, name in zip(lines[:MAX_ROWS], _names(lines), strict=False)
    ]
    for i, made in enumerate(comparisons):
        a, b = made.sides
        memory = f"Peak memory {b} / A"
        if is_alone:
            columns += [f"{b}{suffix}", "Change (%)", "Interval (%)", "Verdict", memory,
                "Could show (%)", f"Efficiency {a} (%)", f"Efficiency {b} (%)",
                "Launches"]  # fmt: skip
        else:
            columns += [memory if name == "memory" else f"{b} {name}" for name in kept]
        for line, row in zip(lines, rows, strict=False):
            cell = line.cells[i]
            cells = dict.fromkeys(kept, DASH) if cell is None else {
                "change (%)": change(None if cell[1].blocked_by else cell[1].ratio),
                "interval (%)": change_span(cell[1].interval),
                "verdict": outcome.short(cell[1]),
                "memory": outcome.memory(*cell),
            }  # fmt: skip
            if is_alone and cell:
                row += [_rate(cell[0].b, unit), *cells.values(), *_rest(cell, ladders)]
            else:
                row += [cells[name] for name in kept]
    left = len(lines) - len(rows)
    bases = sorted({curves[0].baseline for curves in ladders.values()})
    note = " ".join([
        *outcome.rule(comparisons),
        *([BASELINE.format(joined(bases))] if bases and is_alone else []),
        *([f"{counted(left, 'more point')} in --json only."] if left else []),
    ])  # fmt: skip
    sides = [[cell for line in lines if (cell := line.cells[i])] for i in range(len(comparisons))]
    finding = "; ".join(
        f"{made.sides[1]}: {outcome.sentence(outcome.outcome(points), made.margin)}"
        for made, points in zip(comparisons, sides, strict=True)
        if points
    )
    points = table(title, columns, rows, note=note, finding=finding, prints=True)
    for column in points["columns"]:
        column["text"] = column["label"] == "Case"
    return points


def _rate(rows: Sequence[Row], unit: str) -> str:
    of = rows[0].sample_unit
    return number(median_rate([row.rate for row in rows])) + ("" if unit or not of else f" {of}/s")


def _rest(cell: JudgedPair, ladders: Ladders) -> list[str]:
    """Return what a point could show, its efficiencies and the number of its launches.

    The efficiency of a layout that is not that of the main series is unknown.
    """
    pair, judged = cell
    efficiencies: list[float | None] = [None, None]
    for i, (rows, curve) in enumerate(
        zip((pair.a, pair.b), ladders.get(pair.case, ()), strict=False)
    ):
        launches = {row.launch for row in rows}
        for point in curve.points:
            is_same = {row.launch for row in point.rows} == launches
            if point.world_size == pair.world_size and is_same:
                efficiencies[i] = point.parallel_efficiency
    least = None if judged.smallest_change is None else 100 * judged.smallest_change
    return [
        DASH if least is None else f"{least:.2g}" if least < 100 else "> 100",
        *map(percent, efficiencies), f"{len(pair.a)} + {len(pair.b)}",
    ]  # fmt: skip
