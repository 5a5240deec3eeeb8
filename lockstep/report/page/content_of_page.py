"""The report as plain data: title, verdict, panels, and the numbers themselves.

This is the seam between computing and drawing: everything the page says is in the dict that
`page` returns, and it is JSON.
"""

import json
from collections.abc import Sequence
from typing import Any

from lockstep.report.check import checker
from lockstep.report.check.checker import Finding
from lockstep.report.compute import slow
from lockstep.report.compute.diagnosis import NOTABLE
from lockstep.report.compute.point_table import table
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.slow import Slowest
from lockstep.report.load.recorded import KEY as RECORDED
from lockstep.report.load.results import OTHER, Results, Row
from lockstep.report.page import checked, facts
from lockstep.report.page.panels import accounts, by_study, losses, parts
from lockstep.report.page.twelve_rules import twelve_panel
from lockstep.report.predict import prediction
from lockstep.report.words import recording_label, verdict_card
from lockstep.vocabulary.text import formats
from lockstep.vocabulary.text.formats import counted, percent, percent_span, ratio

# Data beyond this size stays out of the page; --json prints it.
MAX_EMBEDDED_BYTES = 300_000
# Sentences of verdict per study; the tables hold the rest.
MAX_VERDICTS = 3
WANTED_LAUNCHES = 3
# Studies that take training steps.
TRAINING = ("strong", "weak", "precision", "bucket", "sensitivity", "accumulation")
# The ratio of an interval's ends beyond which a point says little.
WIDE = 1.5
CPU_BAND = (
    "Measured on CPUs: the ranks share cores and memory bandwidth. This is a functional test, "
    "not a scaling result, and no evidence for a proposal."
)


def page(
    results: Results,
    series: Sequence[Series],
    threshold: float,
    command: str = "",
    findings: Sequence[Finding] | None = None,
) -> dict[str, Any]:
    """Return everything a report says.

    Args:
        results: What was loaded, what may not be pooled with it.
        series: The series of what may be pooled.
        threshold: Least parallel efficiency called good, a fraction.
        command: The command line that makes this report again, for the figures' metadata.
        findings: What the check has found in the results; it is run where this is None.
    """
    findings = checker.check(results) if findings is None else findings
    checked.mark(series, findings)
    errors = checker.errors(findings)
    on_cpus = results.on_cpus
    hours = "Rank-hours" if on_cpus else "GPU-hours"
    free, left_out = results.split()
    found = slow.slowest(row for row in free if row.origin == "measured")
    slowest = [found] if found else []
    verdicts = _verdicts(series, threshold, errors, left_out)
    judged = verdict_card.judge(series, threshold)
    sections = by_study.panels(
        results, series, threshold, hours, prediction.curves(by_study.ladders(series))
    )
    sections += _around(results, series, threshold, findings)
    return {
        "title": _title(results, series),
        "band": _band(results),
        "summary": _summary(results, series),
        "errors": checked.errors(findings),
        "verdicts": [*map(losses.slow_advice, slowest), *verdicts],
        "card": {"title": judged.title, "lines": judged.lines} if judged else None,
        "warnings": _warnings(results, series, left_out),
        "checked": checked.counts(findings),
        "next": checked.next_step(errors) or _next_step(results, series, threshold, slowest),
        "source": _source(_title(results, series), results, command),
        "sections": sections,
        "data": _data(series),
    }


def _band(results: Results) -> str | None:
    """Return what a reader must know before any number."""
    if facts_of := results.campaign.get(RECORDED):
        return recording_label.label(facts_of)
    return CPU_BAND if results.on_cpus else None


def _around(
    results: Results, series: Sequence[Series], threshold: float, findings: Sequence[Finding]
) -> list[dict[str, Any]]:
    """Return the sections behind those of the studies: what backs the numbers."""
    hours = "rank-hours" if results.on_cpus else "GPU-hours"
    around = (
        checked.findings_panel(findings),
        facts.flags(series),
        facts.not_measured(results),
        accounts.jobs(results, hours),
        facts.method(series, threshold),
        twelve_panel(results, series),
        facts.provenance(results),
    )
    return [section for section in around if section]


def _title(results: Results, series: Sequence[Series]) -> str:
    origins = {one.row.origin for one in series}
    name = _campaign_name(results)
    if origins and "measured" not in origins:
        words = " and ".join(sorted(origins))
        return f"Scaling numbers, {words}, not measured here"
    extra = sorted(origins - {"measured"})
    title = f"Scaling report: {name}" if name else "Scaling report"
    return f"{title} (measured, with {' and '.join(extra)} numbers)" if extra else title


def _campaign_name(results: Results) -> str:
    if results.campaign.get("name"):
        return str(results.campaign["name"])
    names = [str(one.facts["campaign"]) for one in results.launches if one.facts.get("campaign")]
    return " + ".join(dict.fromkeys(names))


def _summary(results: Results, series: Sequence[Series]) -> list[str]:
    sentences = []
    if results.launches:
        sentences.append(_measured_summary(results, series))
        sentences += _basis(series)
    for origin in ("cited", "target"):
        chosen = [one for one in series if one.row.origin == origin]
        points = sum(len(one.points) for one in chosen)
        if chosen:
            sentences.append(
                f"{counted(points, 'point')} in {counted(len(chosen), 'table')} "
                f"{'are cited' if origin == 'cited' else 'are targets, not measured'}."
            )
    return sentences


def _measured_summary(results: Results, series: Sequence[Series]) -> str:
    measured = [one for one in series if one.row.origin == "measured"]
    points = sum(len(one.points) for one in measured)
    sizes = sorted({point.world_size for one in measured for point in one.points})
    devices = dict.fromkeys(
        str(name) for one in results.launches for name in one.provenance.get("device_names") or []
    )
    days = _days(results)
    nodes = max((row.num_nodes or 1 for row in results.rows), default=1)
    text = (
        f"{counted(points, 'point')} of {counted(len(measured), 'case')} from "
        f"{counted(len(results.launches), 'launch')}, at world size {formats.listed(sizes)}"
        f" on up to {counted(nodes, 'node')}"
    )
    text += f" with {formats.listed(devices, 4)}" if devices else ""
    return f"{text}, {days}." if days else f"{text}."


def _basis(series: Sequence[Series]) -> list[str]:
    """Say on what data and with which optimizer the training steps were measured."""
    rows = [row for one in series for point in one.points for row in point.rows]
    steps = [row for row in rows if row.origin == "measured" and row.study in TRAINING]
    given = [row.details.get("basis") for row in steps]
    facts_of = dict.fromkeys(
        formats.listed(f"{name} {value}" for name, value in one.items()) if isinstance(one, dict)
        else f"{formats.DASH} (an older release did not record it)"
        for one in given
    )  # fmt: skip
    if not facts_of:
        return []
    bound = "; reading real data takes its time beside this" if any(given) else ""
    return [f"Basis of the training steps: {'; '.join(facts_of)}{bound}."]


def _days(results: Results) -> str:
    """Return the days on which the launches started, from first to last."""
    days = sorted(
        str(one.facts["started"])[:10] for one in results.launches if one.facts.get("started")
    )
    if not days:
        return ""
    return days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def _source(title: str, results: Results, command: str) -> str:
    """Say where a figure comes from, for one that is saved apart from its page."""
    days = _days(results)
    said = [title, f"Measured {days}" if days else "", f"Made with: {command}" if command else ""]
    return ". ".join(part for part in said if part)


def _verdicts(
    series: Sequence[Series], threshold: float, errors: Sequence[Finding], left_out: Sequence[Row]
) -> list[str]:
    def blocked(one: Series) -> str:
        return checked.blocked(one, errors, left_out)

    def verdict(one: Series) -> str:
        return blocked(one) or _verdict(one, threshold)

    sentences = []
    for wanted, title in (("strong", "Strong scaling"), ("weak", "Weak scaling")):
        chosen = [s for s in series if s.row.study == wanted and s.row.origin == "measured"]
        sentences += [f"{title}, {verdict(one)}" for one in chosen[:MAX_VERDICTS]]
        sound = [one for one in chosen[:MAX_VERDICTS] if not blocked(one)]
        sentences += [why for one in sound if (why := _why(one))]
    for origin, title in (("cited", "Cited"), ("target", "Target")):
        chosen = [s for s in series if s.row.origin == origin and s.row.study != OTHER]
        chosen = [one for one in chosen if len(one.points) > 1]
        sentences += [f"{title}, {verdict(one)}" for one in chosen[:MAX_VERDICTS]]
    return sentences


def _verdict(series: Series, threshold: float) -> str:
    measured = series.row.origin == "measured"
    noun, verb = ("rank", "measured") if measured else ("device", "stated")
    largest = series.points[-1]
    if largest.world_size == series.baseline:
        return f"{series.label}: no size above the baseline, {parts.baseline_text(series)}."
    above = [p for p in series.points if p.world_size > series.baseline]
    good = [p for p in above if p.parallel_efficiency >= threshold]
    if not good:
        best = max(above, key=lambda p: p.parallel_efficiency)
        open_at = [p.world_size for p in above if measured and not _shown_below(p, threshold)]
        said = (
            f"it is not shown whether {formats.listed(open_at)} {noun}s reach"
            if open_at
            else "no size reaches"
        )
        return (
            f"{series.label}: {said} {_goal(threshold)} efficiency; the best is "
            f"{_achieved(best)} on {counted(best.world_size, noun)}, relative to "
            f"{parts.baseline_text(series)}."
        )
    best = good[-1]
    unsure = best.efficiency_interval and best.efficiency_interval[0] < threshold
    return (
        f"{series.label}: the largest size {verb} at {_goal(threshold)} efficiency or more is "
        f"{counted(best.world_size, noun)}, with {_achieved(best)} and {ratio(best.speedup)} times "
        f"the rate of {parts.baseline_text(series)}"
        + (f"; its interval reaches below {_goal(threshold)}." if unsure else ".")
    )


def _shown_below(point: Point, threshold: float) -> bool:
    """Tell whether the whole interval of a point's efficiency misses the threshold."""
    return point.efficiency_interval is not None and point.efficiency_interval[1] < threshold


def _why(series: Series) -> str | None:
    """Return why the largest size falls short, where its loss can be split."""
    return losses.sentence(series, series.points[-1])


def _goal(threshold: float) -> str:
    return f"{100 * threshold:.0f} %"


def _achieved(point: Point) -> str:
    interval = point.efficiency_interval
    text = f"{percent(point.parallel_efficiency)} %"
    return f"{text} ({percent_span(interval)} %)" if interval else f"{text} (no interval)"


def _warnings(results: Results, series: Sequence[Series], left_out: Sequence[Row]) -> list[str]:
    """Count what a reader must know before trusting the page."""
    points = [point for one in series for point in one.points]
    flagged = sum(bool(point.flags) for point in points)
    single = sum(p.num_launches == 1 for p in points if p.rows[0].origin == "measured")
    unequal = sum(any(f.kind == "unequal-threads" for f in one.base.flags) for one in series)
    wide = sum(_is_wide(point) for point in points)
    broken = sum(not launch.complete for launch in results.launches)
    skewed = sum(abs((point.mean_over_median or 1.0) - 1) > NOTABLE for point in points)
    lost = facts.lost(results)
    lines = [
        (len(left_out), checked.not_pooled(left_out)),
        (flagged, f"{counted(flagged, 'point')} flagged"),
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


def _is_wide(point: Point) -> bool:
    if point.rate_interval is None:
        return len(set(point.rates)) > 1
    return point.rate_interval[1] > WIDE * point.rate_interval[0]


def _next_step(
    results: Results, series: Sequence[Series], threshold: float, slowest: Sequence[Slowest]
) -> str:
    """Return the most useful next action that the data call for."""
    measured = [one for one in series if one.row.origin == "measured"]
    if not measured and not results.launches:
        return "Measure the same points on the machine you will use; cited numbers are no evidence."
    if results.on_cpus:
        return "Run the same campaign on the GPUs you will use: the suite works on this machine."
    if slowest:
        return losses.slow_advice(slowest[0])
    return _next_measurement(measured, threshold)


def _next_measurement(measured: Sequence[Series], threshold: float) -> str:
    points = [point for one in measured for point in one.points]
    flagged = next((p.flags[0] for p in points if p.flags), None)
    if flagged:
        return f"Remove the cause of the flags and measure those points again, first: {flagged}."
    if min(point.num_launches for point in points) < WANTED_LAUNCHES:
        return f"Measure every point in at least {WANTED_LAUNCHES} launches, for tight intervals."
    if any(map(_is_wide, points)):
        return "Measure more launches on quiet nodes: some intervals are too wide to compare."
    ladders = [one for one in measured if one.row.study in ("strong", "weak")]
    ends = [one for one in ladders if one.points[-1].parallel_efficiency >= threshold]
    if not ladders or all(len(one.points) == 1 for one in ladders):
        return "Measure at least three world sizes, so that scaling can be judged."
    if ends:
        size = ends[0].points[-1].world_size
        return (
            f"Measure more than {size} ranks: {ends[0].label} is still at "
            f"{percent(ends[0].points[-1].parallel_efficiency)} % there."
        )
    return f"Use the sizes named above: every larger one falls below {_goal(threshold)} efficiency."


def _data(series: Sequence[Series]) -> dict[str, Any] | None:
    data = {"schema": 1, "points": table(series)} if len(series) < MAX_EMBEDDED_BYTES // 500 else {}
    small = data and len(json.dumps(data)) <= MAX_EMBEDDED_BYTES
    return data if small else None
