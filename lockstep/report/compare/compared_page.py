"""The page of a comparison as plain data, in the form that `lockstep.report.page.render` draws."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from lockstep.core.formats import DASH, capital, counted, listed, number, percent
from lockstep.core.metrics import GOOD_EFFICIENCY
from lockstep.core.studies import TITLES
from lockstep.report.check.evidence import joined
from lockstep.report.compare import comparison, outcome
from lockstep.report.compare.comparison import LETTERS, Campaign, Comparison, Pair
from lockstep.report.compare.judging import BLOCKED, FASTER, SAME, SLOWER, Judged
from lockstep.report.compare.outcome import JudgedPair, Line, change, interval
from lockstep.report.compute.scaling import Series, series_of
from lockstep.report.compute.statistics import median_rate
from lockstep.report.load import layout
from lockstep.report.load.results import Row
from lockstep.report.page import curves, facts
from lockstep.report.page.parts import ORIGINS, Figure, Panel, Table, fold, panel, table
from lockstep.report.words import method
from lockstep.report.words.lines import plain

# Most changes in a figure, over all campaigns, and most cases with curves; tables have all.
MAX_CHANGES, MAX_CASES = 32, 6
# Most campaigns for which a table has room for intervals, and for memory; --json has all.
MOST_IN_FULL, MOST_WITH_MEMORY = 4, 2
MAX_FACT = 90  # characters of a cell
HOW = (
    "A bar is the interval, and the shaded band is the margin. Triangles are slower or faster, "
    "squares are the same, and hollow markers are too noisy or of unknown noise."
)
BASELINE = (
    "Efficiency is relative to the campaign's own throughput at the smallest size that all "
    "campaigns measured (ranks: {})."
)
MEANING = (
    "A point is a case at one world size. Its change compares the median rate over launches "
    "(samples or other work per second) with that of the first campaign. A positive change is "
    "faster. The interval is that of the geometric mean over launches.",
    "The column Could show gives the smallest change that the launches of a point would detect 9 "
    "times in 10. A point is too noisy if its interval contains both no change and a change beyond "
    "the margin.",
)
Ladders = Mapping[str, Sequence[Series]]


def page(
    comparisons: Sequence[Comparison], campaigns: Sequence[Campaign], command: str
) -> dict[str, Any]:
    """Return the content of a page that compares campaigns with the first one."""
    names = [each.name for each in campaigns]
    # Links are not resolved: the results of a bundle are a link named after its archive.
    short = [Path(os.path.abspath(name)).name for name in names]  # noqa: PTH100
    called = short if len(set(short)) == len(short) else names
    title = f"Comparison: {listed(called[1:])} against {called[0]}"
    lines = outcome.align(comparisons)
    studies, figure = _studies(lines, comparisons, called)
    sections = [_differences(comparisons), *studies, *_appendix(comparisons, campaigns)]
    fold(sections)
    cautions = [f"{capital(each.text)}." for made in comparisons for each in made.cautions]
    advices = {made.sides[1]: outcome.advice(made) for made in comparisons}
    headlines, points = [], []
    for made, name, short_name in zip(comparisons, names[1:], called[1:], strict=True):
        summary = outcome.outcome(made.points)
        headlines.append({
            "title": f"{short_name} against {called[0]}", "of": outcome.difference(made),
            "kind": summary.kind, "text": outcome.sentence(summary, made.margin), "short": "",
            "others": [],
        })  # fmt: skip
        document = comparison.document(made, (names[0], name))
        points += [{"a": names[0], "b": name} | point for point in document["points"]]
    return {
        "title": title,
        "band": " ".join(dict.fromkeys(cautions)) or None,
        "summary": [*map(_summary, campaigns)],
        "errors": [
            f"{each.letter}: {text}" for each in campaigns
            for text in facts.error_lines(each.findings)
        ],
        "headlines": headlines, "tiles": [], "figure": figure, "verdicts": [], "card": None,
        "warnings": _warnings(comparisons),
        "checked": "",
        "next": next(iter(advices.values())) if len(set(advices.values())) == 1
        else " ".join(f"{side}: {advice}" for side, advice in advices.items()),
        "source": f"{title}. Made with: {command}",
        "sections": sections,
        "data": {"schema": 1, "points": points},
    }  # fmt: skip


def _summary(campaign: Campaign) -> str:
    results = campaign.results
    sizes = sorted({row.world_size for row in results.rows})
    parts = [
        campaign.name,
        f"{counted(len(results.launches), 'launch')}" if results.launches else "",
        f"on {listed(sizes)} rank{'' if sizes == [1] else 's'}",
        listed(results.device_names, 3), method.days(results.days),
    ]  # fmt: skip
    return f"{campaign.letter}: {', '.join(filter(None, parts))}."


def _warnings(comparisons: Sequence[Comparison]) -> list[str]:
    flags = outcome.flag_points(comparisons)
    flagged = {(side, point) for (side, _), points in flags.items() for point in points}
    texts = [f"{counted(len(flagged), 'point')} flagged"] if flagged else []
    for made in comparisons:
        for side, only in zip(made.sides, (made.only_in_a, made.only_in_b), strict=True):
            texts += [f"{counted(len(only), 'point')} only in {side}"] if only else []
    return list(dict.fromkeys(texts))


def _differences(comparisons: Sequence[Comparison]) -> Panel:
    """Return the table of differing facts, a column per campaign, and the equal facts."""
    made = panel("differs", "What differs")
    equal = [
        outcome.fact(name) for name in comparisons[0].same_facts
        if all(name in each.same_facts for each in comparisons)
    ]  # fmt: skip
    changed = [outcome.differences(each) for each in comparisons]
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
        made["lead"] = ["No recorded fact of software, machine or options differs."]
    made["lead"] += (
        [f"These facts are equal wherever they are recorded: {listed(equal, 12)}."] if equal else []
    )
    return made


def _studies(
    lines: Sequence[Line], comparisons: Sequence[Comparison], called: Sequence[str]
) -> tuple[list[Panel], Figure | None]:
    """Return a section for each study, and the figure of changes at the top.

    The figure is of the study with the most points that are slower or faster.
    """
    studies: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        row = line.pair.a[0]
        studies.setdefault((row.origin, row.study), []).append(line)
    names = [f"{letter}, {name}" for letter, name in zip(LETTERS, called, strict=False)]
    sections = [_study(*key, own, comparisons, names) for key, own in studies.items()]

    def num_shown(section: Panel) -> int:
        items = [item for curve in section["figures"][0]["series"] for item in curve["items"]]
        return sum(item["kind"] in (SLOWER, FASTER) for item in items if item)

    drawn = [s for s in sections if s["figures"] and s["figures"][0]["kind"] == "change"]
    return sections, max(drawn, key=num_shown)["figures"].pop(0) if drawn else None


def _study(
    origin: str, study: str, lines: Sequence[Line], comparisons: Sequence[Comparison],
    names: Sequence[str],
) -> Panel:  # fmt: skip
    key = study if origin == "measured" else f"{origin}-{study}"
    title = TITLES.get(study, study) if origin == "measured" else ORIGINS[origin]
    made = panel(key, title, origin)
    ladders = _ladders(lines, names)
    about = f"{title}: change against {names[0]}"
    changes = _change_figure(f"{key}-change", about, lines, comparisons[0].margin, names[1:])
    cases = {line.pair.case: line.pair.case_label for line in lines}
    made["figures"] = [changes] if changes else []
    for index, (case, series) in enumerate(list(ladders.items())[:MAX_CASES], start=1):
        made["figures"].append(curves.efficiency(key, series, GOOD_EFFICIENCY, {}) | {
            "id": f"{key}-{index}-efficiency", "title": f"Parallel efficiency: {cases[case]}"
        })  # fmt: skip
    if (more := len(ladders) - MAX_CASES) > 0:
        made["notes"] = [f"No curves are drawn here for {counted(more, 'more case')}."]
    cells = [cell for line in lines for cell in line.cells if cell]
    texts = method.basis_sentences([row for pair, _ in cells for row in (*pair.a, *pair.b)])
    for figure in made["figures"]:
        figure["basis"] = texts
    which = next(iter(cases.values())) if len(cases) == 1 else counted(len(cases), "case")
    made["tables"] = [_points(f"{title} by ranks: {which}", lines, comparisons, ladders)]
    return made


def _appendix(comparisons: Sequence[Comparison], campaigns: Sequence[Campaign]) -> list[Panel]:
    """Return the panels of other quantities, of the method and of points left out."""

    def say(notes: Iterable[tuple[str, str]]) -> list[str]:
        is_alone = len(comparisons) == 1
        return [
            plain(f"{capital(text)}." if is_alone or not side else f"{side}: {text}")
            for side, text in notes
        ]

    beside = panel("beside", "Other quantities")
    for aside in (aside for made in comparisons for aside in outcome.asides(made)):
        shown = table(aside.caption, aside.columns, aside.rows, 1, "--json", note=aside.note,
                      folded=True, prints=True)  # fmt: skip
        shown["columns"][-1]["text"] = True
        beside["tables"].append(shown)
    judged = panel("method", "How points are judged", lead=[*outcome.rule(comparisons), *MEANING])
    judged["notes"] = say((m.sides[1], m.look.sentence) for m in comparisons if m.has_interval)
    flags = panel("flags", "Flags", notes=say(("", t) for t in outcome.flag_notes(comparisons)))
    left = panel("left-out", "Left out")
    left["notes"] = [
        *say((made.sides[1], text) for made in comparisons for text in outcome.omissions(made)),
        *(f"Not read: {why}" for each in campaigns for why in each.results.unread),
    ]
    checked = {
        each.letter: own
        for each in campaigns
        if (own := facts.findings_panel(each.findings, each.results))
    }
    of_check = [next(iter(checked.values())) | {
        "title": "Findings of the check",
        "lead": [f"{letter}: {text}" for letter, own in checked.items() for text in own["lead"]],
        "tables": [
            each | {"caption": f"{letter}: {each['caption']}", "folded": True}
            for letter, own in checked.items() for each in own["tables"]
        ],
    }] if checked else []  # fmt: skip
    optional = [each for each in (flags, left) if each["notes"]]
    return [*([beside] if beside["tables"] else []), judged, *optional, *of_check]


def _names(lines: Sequence[Line]) -> list[str]:
    """Return names of a study's points: ranks, and what distinguishes cases and layouts."""
    labels = [line.pair.case_label.split(", ") for line in lines]
    shared = set.intersection(*map(set, labels)) if labels else set()
    has_cases = len({line.pair.case for line in lines}) > 1
    names = []
    for line, parts in zip(lines, labels, strict=True):
        own = [part for part in parts if part not in shared] if has_cases else []
        point = line.pair.case, line.pair.world_size
        rows = [each.pair.a[0] for each in lines if (each.pair.case, each.pair.world_size) == point]
        if len(rows) > 1:
            placed = layout.layout(line.pair.a[0], layout.list_differing(rows))
            own += [placed.text] if placed.text else []
        names.append(", ".join([counted(line.pair.world_size, "rank"), *own]))
    return names


def _change_figure(
    key: str, title: str, lines: Sequence[Line], margin: float, names: Sequence[str]
) -> Figure | None:
    """Return the figure of the largest changes of a study; None if all points are blocked."""

    def strength(line: Line) -> float:
        judged = [cell[1] for cell in line.cells if cell and cell[1].verdict != BLOCKED]
        sizes = (abs(j.ratio - 1) + (1e9 if j.verdict in (SLOWER, FASTER) else 1) for j in judged)
        return max(sizes, default=0)

    def item(cell: JudgedPair | None, name: str, side: str) -> dict[str, Any] | None:
        if cell is None or cell[1].verdict == BLOCKED:
            return None
        judged = cell[1]
        kind = judged.verdict if judged.verdict in (SLOWER, FASTER, SAME) else "open"
        span = f" ({interval(judged, change)})" if judged.interval else ""
        text = f"{side}, {name}: {change(judged.ratio)} %{span}, {outcome.short(judged)}"
        ends = [end - 1 for end in judged.interval] if judged.interval else None
        return {"value": judged.ratio - 1, "interval": ends, "kind": kind, "text": text}

    largest = sorted(filter(strength, lines), key=strength, reverse=True)
    kept = [*map(id, largest[: MAX_CHANGES // len(names)])]
    if not kept:
        return None
    drawn = [each for each in zip(lines, _names(lines), strict=True) if id(each[0]) in kept]
    series: list[dict[str, Any]] = [
        {"label": side, "items": [item(line.cells[i], name, side) for line, name in drawn]}
        for i, side in enumerate(names)
    ]
    missing = len(lines) - len(drawn)
    left = f" The table has {counted(missing, 'more point')}." if missing else ""
    text = "; ".join(item["text"] for curve in series for item in curve["items"] if item)
    return {
        "kind": "change", "id": key, "title": title, "rows": [name for _, name in drawn],
        "series": series, "margin": [1 / (1 + margin) - 1, margin], "ylabel": "",
        "xlabel": "\u2190 slower    change of throughput (%)    faster \u2192",
        "note": f"{HOW}{left}", "desc": f"Change of throughput. {text}.",
    }  # fmt: skip


def _ladders(lines: Sequence[Line], names: Sequence[str]) -> Ladders:
    """Return the curve of every campaign for each case with several common sizes."""
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
        # Curves relative to different sizes cannot be compared.
        if len(sizes) > 1 and (common := set.intersection(*sizes)):
            series = [
                replace(series_of(rows, min(common))[0], label=name)
                for name, rows in curves.items()
            ]
            ladders |= {case: series} if series[0].is_compared else {}
    return ladders


def _points(
    title: str, lines: Sequence[Line], comparisons: Sequence[Comparison], ladders: Ladders
) -> Table:
    """Return the table of a study: one comparison in full, several side by side."""
    units = {line.pair.a[0].sample_unit for line in lines}
    unit = f"{units.pop()}/s" if len(units) == 1 and "" not in units else ""
    columns = {
        "Ranks": [str(line.pair.world_size) for line in lines],
        "Case": [name.partition(", ")[2] for name in _names(lines)],
        f"A ({unit})" if unit else "A": [_rate(line.pair.a, unit) for line in lines],
    }
    for i, made in enumerate(comparisons):
        for head, text in _columns(made, len(comparisons), unit, ladders).items():
            columns[head] = [text(*cell) if (cell := line.cells[i]) else DASH for line in lines]
    bases = sorted({curves[0].baseline for curves in ladders.values()})
    base = [BASELINE.format(joined(bases))] if bases and len(comparisons) == 1 else []
    note = " ".join([*outcome.rule(comparisons), *base])
    finding = "; ".join(
        f"{made.sides[1]}: {outcome.sentence(outcome.outcome(points), made.margin)}"
        for i, made in enumerate(comparisons)
        if (points := [cell for line in lines if (cell := line.cells[i])])
    )
    rows = list(zip(*columns.values(), strict=True))
    points_table = table(title, [*columns], rows, 0, "--json", note=note, finding=finding,
                         prints=True)  # fmt: skip
    for column in points_table["columns"]:
        column["text"] = column["label"] == "Case"
    return points_table


def _columns(
    made: Comparison, count: int, unit: str, ladders: Ladders
) -> dict[str, Callable[[Pair, Judged], str]]:
    """Return heading -> text of a cell, for one of `count` comparisons; many have fewer columns."""
    a, b = made.sides
    own: dict[str, Callable[[Pair, Judged], str]] = {
        "change (%)": lambda _, judged: change(None if judged.blocked_by else judged.ratio),
        "interval (%)": lambda _, judged: interval(judged, change),
        "verdict": lambda _, judged: outcome.short(judged),
    }
    memory = {f"Peak memory {b} / A": outcome.memory} if count <= MOST_WITH_MEMORY else {}
    if count > MOST_IN_FULL:
        del own["interval (%)"]
    if count > 1:
        return {f"{b} {name}": text for name, text in own.items()} | memory
    return {
        f"{b} ({unit})" if unit else b: lambda pair, _: _rate(pair.b, unit),
        **{name.capitalize(): text for name, text in own.items()}, **memory,
        "Could show (%)": lambda _, judged: _least(judged.smallest_change),
        f"Efficiency {a} (%)": lambda pair, _: _efficiency(pair.a, ladders.get(pair.case), 0),
        f"Efficiency {b} (%)": lambda pair, _: _efficiency(pair.b, ladders.get(pair.case), 1),
        "Launches": lambda pair, _: f"{len(pair.a)} + {len(pair.b)}",
    }  # fmt: skip


def _rate(rows: Sequence[Row], unit: str) -> str:
    of = rows[0].sample_unit
    return number(median_rate([row.rate for row in rows])) + ("" if unit or not of else f" {of}/s")


def _least(change: float | None) -> str:
    if change is None:
        return DASH
    return f"{100 * change:.2g}" if change < 1 else "> 100"


def _efficiency(rows: Sequence[Row], curves: Sequence[Series] | None, side: int) -> str:
    """Return a point's efficiency; a dash if its layout is not that of the main series."""
    launches = {row.launch for row in rows}
    for point in curves[side].points if curves else ():
        is_here = point.world_size == rows[0].world_size
        if is_here and {row.launch for row in point.rows} == launches:
            return percent(point.parallel_efficiency)
    return DASH
