"""The report as plain data: title, verdict, panels, and the numbers themselves.

This is the seam between computing and drawing: everything the page says is in the dict that
`page` returns, and it is JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import counted, number
from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import TRAINING
from lockstep.report.check import checker
from lockstep.report.check.checker import Finding
from lockstep.report.columns import table
from lockstep.report.compute import learning, slow
from lockstep.report.compute.alternatives import without_laddered
from lockstep.report.compute.evaluation import Evaluation
from lockstep.report.compute.scaling import Series
from lockstep.report.load.recorded import KEY as RECORDED
from lockstep.report.load.results import Results
from lockstep.report.page import (
    accounts,
    by_study,
    collective_tables,
    facts,
    losses,
    parts,
    plots,
    top,
)
from lockstep.report.page import facts as page_facts
from lockstep.report.page.panels import training_panel
from lockstep.report.page.twelve_rules import twelve_panel
from lockstep.report.predict import prediction
from lockstep.report.words import headline, method, ranking_card, verdict_card
from lockstep.report.words.headline import Headline
from lockstep.report.words.next_step import WIDE, is_wide, next_step

BIT_PER_MBIT = 1e6
CPU_BAND = (
    "Measured on CPUs: the ranks share cores and memory bandwidth. This is a functional test, "
    "not a scaling result, and no evidence for a proposal."
)


def page(evaluation: Evaluation, threshold: float, command: str = "") -> dict[str, Any]:
    """Return everything a report says."""
    results, findings = evaluation.results, evaluation.findings
    series = top.worst_first(evaluation.series)
    hours = "Rank-hours" if results.on_cpus else "GPU-hours"
    predicted = prediction.curves(by_study.ladders(series))
    sections = by_study.panels(results, series, threshold, hours, predicted)
    plots.put_basis(sections, results, series)
    sections += _around(results, series, threshold, findings)
    parts.fold(sections)
    return {
        "title": _title(results, series),
        "band": _band(results),
        "summary": _summary(results, series),
        "errors": page_facts.error_lines(findings),
        **_top(evaluation, series, threshold, checker.counts(findings) if findings else ""),
        "source": _source(_title(results, series), results, command),
        "sections": sections,
        "data": ({"schema": 1, "points": table(series)}),
    }


def _top(
    evaluation: Evaluation, series: Sequence[Series], threshold: float, text: str
) -> dict[str, Any]:
    """Return what the page says first: headlines, tiles, a figure, causes, and what to do next."""
    results, left_out = evaluation.results, evaluation.left_out
    errors = checker.errors(evaluation.findings)
    found = slow.slowest(row for row in results.split()[0] if row.origin == "measured")
    slowest = [found] if found else []
    judged = verdict_card.judge(series, threshold)
    told_of = without_laddered(series)
    headlines = top.headlines(
        told_of, threshold, lambda curve: page_facts.why_blocked(curve, errors, left_out)
    )
    return {
        "headlines": [
            *ranking_card.rate_headlines(series, threshold),
            *top.lines(headlines),
            *ranking_card.of_devices(series),
            *ranking_card.headlines(series),
            *training_panel.headlines(series),
        ],
        "tiles": top.tiles(top.first_of(headlines), text),
        "figure": top.figure(headlines, threshold) or training_panel.top_figure(series),
        "verdicts": [*map(losses.slow_advice, slowest), *_verdicts(headlines)],
        "card": {"title": judged.title, "lines": judged.measured} if judged else None,
        "warnings": _warnings(evaluation),
        "checked": text,
        "next": page_facts.mend_first_error(errors)
        or next_step(results, series, threshold, slowest, judged),
    }


def _band(results: Results) -> str | None:
    """Return what a reader must know before any number."""
    if recorded := results.campaign.get(RECORDED):
        return _recorded(recorded)
    is_training = any(not row.program for row in results.rows)
    return CPU_BAND if results.on_cpus and is_training else None


def _recorded(facts: Mapping[str, Any]) -> str:
    """Say what was measured in a recording, and what is a stand-in there."""
    begin = "A recorded campaign, not measured on this machine"
    if facts.get("kind") != "links":
        return f"{begin}."
    nodes = counted(int(facts["num_nodes"]), "node")
    rate = number(float(facts["rate_bit_per_s"]) / BIT_PER_MBIT)
    text = f"{begin}: {nodes} made on one machine, joined by links of {rate} Mbit/s."
    if wait := facts.get("ms_per_item"):
        text += (
            f" Ranks, DDP, all-reduce and network are real; each rank's device is a stand-in that "
            f"waits {number(float(wait))} ms a sample in place of computing."
        )
    return f"{text} It shows what a page says, and is no evidence for a proposal."


def _around(
    results: Results, series: Sequence[Series], threshold: float, findings: Sequence[Finding]
) -> list[dict[str, Any]]:
    """Return the sections behind those of the studies: what backs the numbers."""
    hours = "rank-hours" if results.on_cpus else "GPU-hours"
    around = (
        page_facts.findings_panel(findings),
        facts.flags(series),
        collective_tables.panel_of(results, series),
        facts.not_measured(results),
        accounts.jobs(results, hours),
        facts.method(results, series, threshold),
        twelve_panel(results, series),
        facts.provenance(results),
    )
    return [section for section in around if section]


def _title(results: Results, series: Sequence[Series]) -> str:
    origins = {curve.row.origin for curve in series}
    name = _campaign_name(results)
    if origins and "measured" not in origins:
        words = " and ".join(sorted(origins))
        return f"Scaling numbers, {words}, not measured here"
    extra = sorted(origins - {"measured"})
    kind = "Training report" if series and all(o.row.training for o in series) else "Scaling report"
    title = f"{kind}: {name}" if name else kind
    return f"{title} (measured, with {' and '.join(extra)} numbers)" if extra else title


def _campaign_name(results: Results) -> str:
    if results.campaign.get("name"):
        return str(results.campaign["name"])
    names = [
        str(launch.facts["campaign"]) for launch in results.launches if launch.facts.get("campaign")
    ]
    return " + ".join(dict.fromkeys(names))


def _summary(results: Results, series: Sequence[Series]) -> list[str]:
    sentences = []
    if results.launches or learning.trained(series):
        sentences.append(_measured_summary(results, series))
        rows = [row for curve in series for point in curve.points for row in point.rows]
        sentences += plots.basis_sentences([row for row in rows if row.origin == "measured"])
    for origin in ("cited", "target"):
        chosen = [curve for curve in series if curve.row.origin == origin]
        points = sum(len(curve.points) for curve in chosen)
        if chosen:
            sentences.append(
                f"{counted(points, 'point')} in {counted(len(chosen), 'table')} "
                f"{'are cited' if origin == 'cited' else 'are targets, not measured'}."
            )
    return sentences


def _measured_summary(results: Results, series: Sequence[Series]) -> str:
    measured = [curve for curve in series if curve.row.origin == "measured"]
    points = sum(len(curve.points) for curve in measured)
    sizes = sorted({point.world_size for curve in measured for point in curve.points})
    trained_on = (row.training.device_name for row in results.rows if row.training)
    devices = dict.fromkeys([*results.device_names, *trained_on])
    days = method.days(results.days)
    steps = (curve for curve in measured if curve.row.study in TRAINING)
    workloads = dict.fromkeys(curve.row.workload for curve in steps)
    what = formats.listed(workloads or ["Benchmarks"], 4)
    ranks = f"{formats.listed(sizes)} rank{'' if sizes == [1] else 's'}"
    text = f"{what} on {ranks}, {method.nodes(results.rows)}"
    text += f" with {formats.listed(devices, 4)}" if devices else ""
    text += (
        f": {counted(points, 'point')} of {counted(len(measured), 'case')} from {_sources(results)}"
    )
    return f"{text}, {days}." if days else f"{text}."


def _sources(results: Results) -> str:
    """Count the launches, and the training runs that are none."""
    names = {launch.name for launch in results.launches}
    runs = sum(row.training is not None and row.launch not in names for row in results.rows)
    known = [(len(names), "launch"), (runs, "training run")]
    return " and ".join(counted(number, noun) for number, noun in known if number)


def _source(title: str, results: Results, command: str) -> str:
    """Say where a figure comes from, for one that is saved apart from its page."""
    days = method.days(results.days)
    texts = [title, f"Measured {days}" if days else "", f"Made with: {command}" if command else ""]
    return ". ".join(part for part in texts if part)


def _verdicts(found: Mapping[str, Sequence[Headline]]) -> list[str]:
    """Return every headline with its study, and why each series falls short where that is known."""
    sentences = []
    for kind, own in found.items():
        title = top.KINDS[kind]
        sentences += [f"{title}, {one.series.label}: {headline.sentence(one)}" for one in own]
        sound = [one for one in own if one.kind != "blocked"]
        whys = (losses.sentence(one.series, one.told, one.why) for one in sound)
        sentences += [why for why in whys if why]
    return sentences


def _warnings(evaluation: Evaluation) -> list[str]:
    """Count what a reader must know before trusting the page."""
    results, series = evaluation.results, evaluation.series
    points = [point for curve in series for point in curve.points]
    flagged = headline.num_flagged(points)
    single = sum(p.num_launches == 1 for p in points if p.rows[0].origin == "measured")
    unequal = sum(any(f.kind == "unequal-threads" for f in curve.base.flags) for curve in series)
    wide = sum(is_wide(point) for point in points)
    broken = sum(not launch.complete for launch in results.launches)
    skewed = sum(abs((point.mean_over_median or 1.0) - 1) > NOTABLE for point in points)
    lost = facts.gaps(results, lambda gap: gap.can_be_filled)
    lines = [
        (len(evaluation.left_out), evaluation.not_pooled),
        (flagged, f"{flagged} of {counted(len(points), 'point')} flagged"),
        (unequal, f"{unequal} series with ranks of unequal strength"),
        (single, f"{counted(single, 'point')} without repeat"),
        (wide, f"{counted(wide, 'interval')} wider than a factor of {WIDE:g}"),
        (
            skewed,
            f"{counted(skewed, 'point')} with a mean step {100 * NOTABLE:.0f} % off the median",
        ),
        (broken, f"{counted(broken, 'launch')} incomplete"),
        (len(results.unread), f"{len(results.unread)} unreadable"),
        (len(lost), counted(len(lost), "gap")),
    ]
    return [text for count, text in lines if count]
