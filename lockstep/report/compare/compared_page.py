"""The page of a comparison as plain data, in the form that `lockstep.report.page.render` draws."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.core.formats import DASH, capital, counted, listed, number, percent, trimmed
from lockstep.core.metrics import GOOD_EFFICIENCY
from lockstep.core.studies import TITLES
from lockstep.report.check.evidence import joined
from lockstep.report.compare import comparison, outcome
from lockstep.report.compare.comparison import Campaign, Comparison
from lockstep.report.compare.judging import BLOCKED, FASTER, SAME, SLOWER, Judged
from lockstep.report.compare.outcome import JudgedPair, change, interval
from lockstep.report.compute.scaling import Series, series_of
from lockstep.report.compute.statistics import median_rate
from lockstep.report.load import layout
from lockstep.report.load.results import Row
from lockstep.report.page import curves, facts
from lockstep.report.page.parts import ORIGINS, Figure, Panel, Table, fold, panel, table
from lockstep.report.words import method
from lockstep.report.words.lines import plain

# Most changes in a figure, and most cases with curves; tables have all.
MAX_CHANGES, MAX_CASES = 32, 6
MAX_FACT = 90  # characters of a cell
HOW = (
    "Bars are intervals, and the shaded band is the margin. A triangle is a slower or faster "
    "point, a square is a point that is the same, and a hollow marker is a point that is too "
    "noisy or of unknown noise."
)
BASELINE = (
    "Efficiency is relative to the campaign's own throughput at the smallest size that all "
    "campaigns measured (ranks: {ranks})."
)
MEANING = (
    "A point is a case at one world size. Its change compares the median rate over launches "
    "(samples or other work per second) with the median rate of the first campaign. The point is "
    "faster if the change is positive. The interval is that of the geometric mean over launches.",
    "The column Could show gives the smallest changes, slower and faster, that the launches of a "
    "point would detect 9 times in 10. A point is too noisy if its interval contains both no "
    "change and a change beyond the margin.",
)
Ladders = Mapping[str, Sequence[Series]]


def page(made: Comparison, campaigns: tuple[Campaign, Campaign], command: str) -> dict[str, Any]:
    a, b = names = [each.name for each in campaigns]
    # Links are not resolved: the results of a bundle are a link named after its archive.
    short = [Path(os.path.abspath(name)).name for name in names]  # noqa: PTH100
    called = short if len(set(short)) == len(short) else names
    title = f"Comparison: {called[1]} against {called[0]}"
    studies, figure = _studies(made, called)
    sections = [_differences(made), *studies, *_appendix(made, campaigns)]
    fold(sections)
    summary = outcome.outcome(made.points)
    return {
        "title": title,
        "band": " ".join(f"{capital(each.text)}." for each in made.cautions) or None,
        "summary": [*map(_summary, "AB", campaigns)],
        "errors": [
            f"{letter}: {text}" for letter, each in zip("AB", campaigns, strict=True)
            for text in facts.error_lines(each.findings)
        ],
        "headlines": [{
            "title": f"{called[1]} against {called[0]}", "of": outcome.difference(made),
            "kind": summary.kind, "text": outcome.sentence(summary, made.margin), "short": "",
            "others": [],
        }],
        "tiles": [], "figure": figure, "verdicts": [], "card": None, "warnings": _warnings(made),
        "checked": "",
        "next": outcome.advice(made),
        "source": f"{title}. Made with: {command}",
        "sections": sections,
        "data": {"schema": 1, "points": [
            {"a": a, "b": b} | point for point in comparison.document(made, (a, b))["points"]
        ]},
    }  # fmt: skip


def _summary(letter: str, campaign: Campaign) -> str:
    results = campaign.results
    sizes = sorted({row.world_size for row in results.rows})
    noun = "rank" if sizes == [1] else "ranks"
    parts = [
        campaign.name,
        f"{counted(len(results.launches), 'launch')}" if results.launches else "",
        f"on {listed(sizes)} {noun}",
        listed(results.device_names, 3), method.days(results.days),
    ]  # fmt: skip
    return f"{letter}: {', '.join(filter(None, parts))}."


def _warnings(made: Comparison) -> list[str]:
    flagged = sum(len({side for side, _ in pair.flags}) for pair, _ in made.points)
    texts = [f"{counted(flagged, 'point')} flagged"] if flagged else []
    for side, only in zip("AB", (made.only_in_a, made.only_in_b), strict=True):
        texts += [f"{counted(len(only), 'point')} only in {side}"] if only else []
    return texts


def _differences(comparison: Comparison) -> Panel:
    made = panel("differs", "What differs")
    equal = [*map(outcome.fact, comparison.same_facts)]
    rows = []
    for name, sides in comparison.environment.items():
        texts = map(outcome.values, sides)
        cut = [t if len(t) <= MAX_FACT else f"{t[: MAX_FACT - 1]}\u2026" for t in texts]
        rows.append([outcome.fact(name), *cut])
    if rows:
        made["tables"] = [table("What differs", ["Fact", "A", "B"], rows, 3)]
    else:
        made["lead"] = ["A and B differ in no recorded fact on software, machine or options."]
    made["lead"] += (
        [f"These facts are equal wherever they are recorded: {listed(equal, 12)}."] if equal else []
    )
    return made


def _studies(made: Comparison, called: Sequence[str]) -> tuple[list[Panel], Figure | None]:
    """Return a section for each study, and the figure of changes at the top.

    The figure is of the study with the most points that are slower or faster.
    """
    studies: dict[tuple[str, str], list[JudgedPair]] = {}
    for pair, judged in made.points:
        row = pair.a[0]
        studies.setdefault((row.origin, row.study), []).append((pair, judged))
    names = [f"{letter}, {name}" for letter, name in zip("AB", called, strict=True)]
    sections = [_study(*key, own, made, names) for key, own in studies.items()]

    def num_shown(section: Panel) -> int:
        return sum(item["kind"] in (SLOWER, FASTER) for item in section["figures"][0]["items"])

    drawn = [s for s in sections if s["figures"] and s["figures"][0]["kind"] == "change"]
    return sections, max(drawn, key=num_shown)["figures"].pop(0) if drawn else None


def _study(
    origin: str, study: str, points: Sequence[JudgedPair], comparison: Comparison,
    names: Sequence[str],
) -> Panel:  # fmt: skip
    key = study if origin == "measured" else f"{origin}-{study}"
    title = TITLES.get(study, study) if origin == "measured" else ORIGINS[origin]
    made = panel(key, title, origin)
    ladders = _ladders(points, names)
    about = f"{title}: change against {names[0]}"
    changes = _change_figure(f"{key}-change", about, points, comparison.margin, names[1])
    cases = {pair.case: pair.case_label for pair, _ in points}
    made["figures"] = [changes] if changes else []
    for index, (case, series) in enumerate(list(ladders.items())[:MAX_CASES], start=1):
        made["figures"].append(curves.efficiency(key, series, GOOD_EFFICIENCY, {}) | {
            "id": f"{key}-{index}-efficiency", "title": f"Parallel efficiency: {cases[case]}"
        })  # fmt: skip
    if (more := len(ladders) - MAX_CASES) > 0:
        other_cases = counted(more, "more case")
        made["notes"] = [f"No curves are drawn here for {other_cases}."]
    texts = method.basis_sentences([row for pair, _ in points for row in (*pair.a, *pair.b)])
    for figure in made["figures"]:
        figure["basis"] = texts
    which = next(iter(cases.values())) if len(cases) == 1 else counted(len(cases), "case")
    made["tables"] = [_points(f"{title} by ranks: {which}", points, comparison, ladders)]
    return made


def _appendix(made: Comparison, campaigns: Sequence[Campaign]) -> list[Panel]:
    """Return the panels of other quantities, of the method and of points left out."""

    def say(notes: Iterable[str]) -> list[str]:
        return [plain(f"{capital(text)}.") for text in notes]

    beside = panel("beside", "Other quantities")
    for aside in outcome.asides(made):
        shown = table(aside.caption, aside.columns, aside.rows, 1, "--json", note=aside.note,
                      folded=True, prints=True)  # fmt: skip
        shown["columns"][-1]["text"] = True
        beside["tables"].append(shown)
    judged = panel("method", "How points are judged", lead=[*outcome.rule(made), *MEANING])
    judged["notes"] = say([made.look.sentence] if made.has_interval else [])
    flags = panel("flags", "Flags", notes=say(outcome.flag_notes(made)))
    left = panel("left-out", "Left out")
    left["notes"] = [
        *say(outcome.omissions(made)),
        *(f"Not read: {why}" for each in campaigns for why in each.results.unread),
    ]
    checked = {
        letter: own
        for letter, each in zip("AB", campaigns, strict=True)
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


def _names(points: Sequence[JudgedPair]) -> list[str]:
    """Return names of a study's points: ranks, and what distinguishes cases and layouts."""
    pairs = [pair for pair, _ in points]
    labels = [pair.case_label.split(", ") for pair in pairs]
    shared = set.intersection(*map(set, labels)) if labels else set()
    has_cases = len({pair.case for pair in pairs}) > 1
    names = []
    for pair, parts in zip(pairs, labels, strict=True):
        own = [part for part in parts if part not in shared] if has_cases else []
        point = pair.case, pair.world_size
        rows = [each.a[0] for each in pairs if (each.case, each.world_size) == point]
        if len(rows) > 1:
            placed = layout.layout(pair.a[0], layout.list_differing(rows))
            own += [placed.text] if placed.text else []
        names.append(", ".join([counted(pair.world_size, "rank"), *own]))
    return names


def _change_figure(
    key: str, title: str, points: Sequence[JudgedPair], margin: float, side: str
) -> Figure | None:
    """Return the figure of the largest changes of a study; None if all points are blocked."""

    def strength(point: JudgedPair) -> float:
        judged = point[1]
        is_shown = judged.verdict in (SLOWER, FASTER)
        return abs(judged.ratio - 1) + (1e9 if is_shown else 1) if judged.verdict != BLOCKED else 0

    def item(judged: Judged, name: str) -> dict[str, Any]:
        kind = judged.verdict if judged.verdict in (SLOWER, FASTER, SAME) else "open"
        span = f" ({interval(judged, change)})" if judged.interval else ""
        text = f"{side}, {name}: {change(judged.ratio)} %{span}, {outcome.short(judged)}"
        ends = [end - 1 for end in judged.interval] if judged.interval else None
        return {"value": judged.ratio - 1, "interval": ends, "kind": kind, "text": text}

    largest = sorted(filter(strength, points), key=strength, reverse=True)
    kept = [*map(id, largest[:MAX_CHANGES])]
    if not kept:
        return None
    drawn = [each for each in zip(points, _names(points), strict=True) if id(each[0]) in kept]
    items = [item(judged, name) for (_, judged), name in drawn]
    missing = len(points) - len(drawn)
    left = f" The table has {counted(missing, 'more point')}." if missing else ""
    text = "; ".join(item["text"] for item in items)
    return {
        "kind": "change", "id": key, "title": title, "rows": [name for _, name in drawn],
        "items": items, "margin": [1 / (1 + margin) - 1, margin], "ylabel": "",
        "xlabel": "\u2190 slower    change of throughput (%)    faster \u2192",
        "note": f"{HOW}{left}", "desc": f"Change of throughput. {text}.",
    }  # fmt: skip


def _ladders(points: Sequence[JudgedPair], names: Sequence[str]) -> Ladders:
    """Return the curves of both campaigns for each case with several common sizes."""
    ladders: dict[str, list[Series]] = {}
    for case in dict.fromkeys(pair.case for pair, _ in points):
        own = [(pair, judged) for pair, judged in points if pair.case == case]
        sizes = {pair.world_size for pair, _ in own}
        if len(sizes) < 2 or any(judged.verdict == BLOCKED for _, judged in own):
            continue
        sides = (
            [row for pair, _ in own for row in pair.a],
            [row for pair, _ in own for row in pair.b],
        )
        # Both relative to the same size, since others could not be compared.
        series = [
            replace(series_of(rows, min(sizes))[0], label=name)
            for name, rows in zip(names, sides, strict=True)
        ]
        ladders |= {case: series} if series[0].is_compared else {}
    return ladders


def _points(
    title: str, points: Sequence[JudgedPair], comparison: Comparison, ladders: Ladders
) -> Table:
    units = {pair.a[0].sample_unit for pair, _ in points}
    unit = f"{units.pop()}/s" if len(units) == 1 and "" not in units else ""
    a, b = (f"{letter} ({unit})" if unit else letter for letter in "AB")
    columns = (
        "Ranks", "Case", a, b, "Change (%)", "Interval (%)", "Verdict", "Peak memory B / A",
        "Could show (%)", "Efficiency A (%)", "Efficiency B (%)", "Launches",
    )  # fmt: skip
    rows = [
        [
            str(pair.world_size), name.partition(", ")[2], _rate(pair.a, unit), _rate(pair.b, unit),
            change(None if judged.blocked_by else judged.ratio), interval(judged, change),
            outcome.short(judged), outcome.memory(pair, judged), _least(judged.smallest_change),
            _efficiency(pair.a, ladders.get(pair.case), 0),
            _efficiency(pair.b, ladders.get(pair.case), 1), f"{len(pair.a)} + {len(pair.b)}",
        ]
        for (pair, judged), name in zip(points, _names(points), strict=True)
    ]  # fmt: skip
    bases = sorted({curves[0].baseline for curves in ladders.values()})
    base = [BASELINE.format(ranks=joined(bases))] if bases else []
    finding = f"B: {outcome.sentence(outcome.outcome(points), comparison.margin)}"
    made = table(title, columns, rows, 0, "--json",
                 note=" ".join([*outcome.rule(comparison), *base]), finding=finding,
                 prints=True)  # fmt: skip
    for column in made["columns"]:
        column["text"] = column["label"] == "Case"
    return made


def _rate(rows: Sequence[Row], unit: str) -> str:
    of = rows[0].sample_unit
    return number(median_rate([row.rate for row in rows])) + ("" if unit or not of else f" {of}/s")


def _least(change: float | None) -> str:
    if change is None:
        return DASH
    slower, faster = (trimmed(100 * each, 2) for each in (change / (1 + change), change))
    return f"-{slower} or +{faster}" if change <= outcome.MOST_CHANGE else f"> +{outcome.LARGEST}"


def _efficiency(rows: Sequence[Row], curves: Sequence[Series] | None, side: int) -> str:
    """Return a point's efficiency; a dash if its layout is not that of the main series."""
    launches = {row.launch for row in rows}
    for point in curves[side].points if curves else ():
        is_here = point.world_size == rows[0].world_size
        if is_here and {row.launch for row in point.rows} == launches:
            return percent(point.parallel_efficiency)
    return DASH
