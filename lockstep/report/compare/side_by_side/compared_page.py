"""The page of a comparison as plain data, in the form that `lockstep.report.page.render` draws."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.core.formats import counted, listed
from lockstep.core.studies import TITLES
from lockstep.report.check.checker import Finding
from lockstep.report.compare import compare_wording, comparison, outcome, outcome_wording
from lockstep.report.compare.comparison import LETTERS, Comparison
from lockstep.report.compare.judging import BLOCKED, FASTER, SAME, SLOWER, UNKNOWN
from lockstep.report.compare.outcome import BARE, EQUAL, ONE_JOB, Line
from lockstep.report.compare.side_by_side import compared_figures, compared_tables
from lockstep.report.load.results import Results
from lockstep.report.page import checked, folding
from lockstep.report.page.panels.parts import ORIGINS, Figure, Panel, panel
from lockstep.report.page.plots import basis
from lockstep.report.words import method
from lockstep.report.words.lines import plain

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
    folding.fold(sections)
    found = [outcome.outcome(made.points) for made in comparisons]
    return {
        "title": title,
        "band": _cautions(comparisons),
        "summary": [_side(*one) for one in zip(LETTERS, names, campaigns, strict=False)],
        "errors": [
            f"{letter}: {text}"
            for letter, one in zip(LETTERS, findings, strict=False)
            for text in checked.errors(one)
        ],
        "headlines": [
            _headline(made, one, f"{name} against {called[0]}")
            for made, one, name in zip(comparisons, found, called[1:], strict=True)
        ],
        "tiles": _tiles(found[0], comparisons[0]) if len(found) == 1 else [],
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


def _side(letter: str, name: str, one: Results) -> str:
    sizes = sorted({row.world_size for row in one.rows})
    parts = [
        f"{counted(len(one.launches), 'launch')}" if one.launches else "",
        f"on {listed(sizes)} rank{'' if sizes == [1] else 's'}",
        listed(one.device_names, 3), method.days(one.days),
    ]  # fmt: skip
    return f"{letter}: {', '.join([name, *filter(None, parts)])}."


def _cautions(comparisons: Sequence[Comparison]) -> str | None:
    """Return each caution once, and which other campaigns it holds of in other words."""
    found: dict[tuple[Any, ...], dict[str, str]] = {}
    for made in comparisons:
        for one in made.cautions:
            texts = found.setdefault((one.kind, *one.values.values()), {})
            texts.setdefault(compare_wording.caution(one, made.sides), made.sides[1])
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
        "of": outcome_wording.difference(made),
        "kind": found.kind,
        "text": outcome_wording.sentence(found, made.margin),
        "short": "",
        "others": [],
    }


def _tiles(found: outcome.Outcome, made: Comparison) -> list[dict[str, str]]:
    """Return how many points have which verdict, and the strongest of each."""
    least = outcome_wording.seen(found)
    seen = f"would have shown {least}" if least else "no change would show"
    told = {
        kind: f"up to {outcome_wording.change(points[0][1].ratio)} %, on "
        f"{counted(points[0][0].world_size, 'rank')}"
        for kind, points in ((SLOWER, found.slower), (FASTER, found.faster)) if points
    }  # fmt: skip
    told |= {SAME: f"within {100 * made.margin:g} %", UNKNOWN: seen, BARE: "no interval",
             EQUAL: "no interval", ONE_JOB: "nodes unknown", BLOCKED: "by the check"}  # fmt: skip
    rare = [kind for kind in (BARE, EQUAL, ONE_JOB, BLOCKED) if found.counts[kind]]
    kinds = [SLOWER, FASTER, SAME, UNKNOWN, *rare]
    return [
        {
            "label": outcome_wording.SHORT[kind].capitalize(),
            "value": f"{found.counts[kind]} of {found.total}",
            "note": told.get(kind, "") if found.counts[kind] else "",
            "href": "",
        }
        for kind in kinds
    ]


def _warnings(comparisons: Sequence[Comparison]) -> list[str]:
    found = outcome.flagged(comparisons)
    flagged = len({(side, point) for (side, _), points in found.items() for point in points})
    kinds = {one.kind for made in comparisons for one in made.cautions}
    said = [text for kind, text in compare_wording.CAUTIONS.items() if kind in kinds]
    said += [f"{counted(flagged, 'point')} flagged"] if flagged else []
    for made in comparisons:
        for side, only in zip(made.sides, (made.only_in_a, made.only_in_b), strict=True):
            if only:
                said.append(f"{counted(len(only), 'point')} only in {side}")
    return list(dict.fromkeys(said))


def _next(comparisons: Sequence[Comparison]) -> str:
    said = [(made.sides[1], outcome_wording.advice(made)) for made in comparisons]
    if len({advice for _, advice in said}) == 1:
        return said[0][1]
    return " ".join(f"{side}: {advice}" for side, advice in said)


def _differences(comparisons: Sequence[Comparison]) -> Panel:
    made = panel("differs", "What differs")
    equal = [
        outcome_wording.fact(name) for name in comparisons[0].same_facts
        if all(name in one.same_facts for one in comparisons)
    ]  # fmt: skip
    made["lead"] = [f"{SHARED}{listed(equal, 12)}."] if equal else []
    found = compared_tables.differences(comparisons)
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
    items = [item for one in series for item in one["items"] if item]
    return sum(item["kind"] in (SLOWER, FASTER) for item in items)


def _study(
    key: str, study: str, origin: str, lines: Sequence[Line],
    comparisons: Sequence[Comparison], names: Sequence[str],
) -> Panel:  # fmt: skip
    title = TITLES.get(study, study) if origin == "measured" else ORIGINS[origin]
    made = panel(key, title, origin)
    ladders = compared_figures.ladders(lines, names)
    changes = compared_figures.changes(
        f"{key}-change", f"{title}: change against {names[0]}", lines, comparisons[0].margin,
        names[1:],
    )  # fmt: skip
    cases = {line.pair.case: line.pair.case_label for line in lines}
    curves, made["notes"] = compared_figures.curves(key, ladders, cases)
    made["figures"] = [*([changes] if changes else []), *curves]
    cells = [cell for line in lines for cell in line.cells if cell]
    said = basis.sentences([row for pair, _ in cells for row in (*pair.a, *pair.b)])
    for one in made["figures"]:
        one["basis"] = said
    which = next(iter(cases.values())) if len(cases) == 1 else counted(len(cases), "case")
    caption = f"{title} by ranks: {which}"
    made["tables"] = [compared_tables.points(caption, lines, comparisons, ladders)]
    return made


def _around(
    comparisons: Sequence[Comparison],
    campaigns: Sequence[Results],
    findings: Sequence[Sequence[Finding]],
) -> list[Panel]:
    beside = panel("beside", "Beside speed", tables=compared_tables.others(comparisons))
    judged = panel("method", "How it is judged")
    judged["lead"] = [
        *compare_wording.rule(*comparisons),
        *MEANING,
    ]  # fmt: skip
    judged["notes"] = _by_side(comparisons, compare_wording.judging_notes)
    left = panel("left-out", "Left out")
    left["notes"] = [
        *_by_side(comparisons, compare_wording.left_out),
        *(f"Not read: {why}" for one in campaigns for why in one.unread),
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
        if (one := checked.findings_panel(own))
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
