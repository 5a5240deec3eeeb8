"""The report as plain data: title, verdict, panels, and the numbers themselves.

This is the seam between computing and drawing: everything the page says is in the dict that
`page` returns, and it is JSON.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.core.formats import capital, counted, listed, number, percent, percent_span
from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import LADDERS, OTHER, TITLES, TRAINING
from lockstep.report.check import checker
from lockstep.report.check.checker import Finding
from lockstep.report.check.evidence import joined
from lockstep.report.columns import table
from lockstep.report.compute import learning, slow
from lockstep.report.compute.alternatives import without_laddered
from lockstep.report.compute.evaluation import Evaluation
from lockstep.report.compute.scaling import Series
from lockstep.report.load.recorded import KEY as RECORDED
from lockstep.report.load.results import Results
from lockstep.report.page import accounts, by_study, collective_tables, curves, facts, parts
from lockstep.report.page.panels import training_panel
from lockstep.report.page.twelve_rules import twelve_panel
from lockstep.report.predict import prediction
from lockstep.report.words import headline, method, names, next_step, ranking_card, verdict_card
from lockstep.report.words.headline import Headline
from lockstep.report.words.lines import signs

BIT_PER_MBIT = 1e6
CPU_BAND = (
    "Measured on CPUs, where ranks share cores and memory bandwidth: a test that the suite works, "
    "and no evidence for a proposal."
)
KINDS = {name: TITLES[name] for name in LADDERS} | {"cited": "Cited", "target": "Target"}
# In a figure as small as the one beside the headlines.
MAX_CURVES = 4

Headlines = Mapping[str, Sequence[Headline]]


def page(evaluation: Evaluation, threshold: float, command: str = "") -> dict[str, Any]:
    """Return everything a report says."""
    results, findings = evaluation.results, evaluation.findings
    series, shared = names.short(worst_first(evaluation.series))
    hours = "Rank-hours" if results.on_cpus else "GPU-hours"
    predicted = prediction.curves(by_study.ladders(series))
    sections = by_study.panels(results, series, threshold, hours, predicted)
    method.put_basis(sections, results, series)
    sections += _around(results, series, threshold, findings)
    parts.fold(sections)
    title, days = _title(results, series), method.days(results.days)
    source = (title, f"Measured {days}" if days else "", f"Made with: {command}" if command else "")
    return {
        "title": title,
        "band": _band(results),
        "summary": _summary(results, series, shared),
        "basis": method.basis_sentences([row for row in results.rows if row.origin == "measured"]),
        "errors": facts.error_lines(findings),
        **_top(evaluation, series, threshold),
        "source": ". ".join(filter(None, source)),
        "sections": sections,
        "data": {"schema": 1, "points": table(worst_first(evaluation.series))},
    }


def worst_first(series: Sequence[Series]) -> list[Series]:
    """Order tests of one's own so that the one that scales worst is the first; others stay."""
    return sorted(
        series, key=lambda one: one.points[-1].parallel_efficiency if one.row.is_own_test else 0.0
    )


def _top(evaluation: Evaluation, series: Sequence[Series], threshold: float) -> dict[str, Any]:
    """Return what the page says first: headlines, tiles, a figure, causes, and what to do next."""
    results, findings = evaluation.results, evaluation.findings
    checked = checker.counts(findings) if findings else ""
    errors = checker.errors(findings)
    slowest = slow.slowest(row for row in results.split()[0] if row.origin == "measured")
    judged = verdict_card.judge(series, threshold)
    found = headlines(
        without_laddered(series), threshold,
        lambda curve: facts.why_blocked(curve, errors, evaluation.left_out),
    )  # fmt: skip
    return {
        "headlines": [
            *ranking_card.rate_headlines(series, threshold),
            *lines(found),
            *ranking_card.of_devices(series),
            *ranking_card.headlines(series),
            *training_panel.headlines(series),
        ],
        "tiles": tiles(first_of(found), checked),
        "figure": _top_figure(found, threshold) or training_panel.top_figure(series),
        "verdicts": [*([verdict_card.slow_advice(slowest)] if slowest else []), *_verdicts(found)],
        "card": {"title": judged.title, "lines": [signs(line) for line in judged.measured]}
        if judged
        else None,
        "warnings": _warnings(evaluation),
        "checked": checked,
        "next": facts.mend_first_error(errors)
        or next_step.next_step(results, series, threshold, slowest, judged),
    }


def headlines(
    series: Sequence[Series], threshold: float, blocked: Callable[[Series], str]
) -> dict[str, list[Headline]]:
    """Return what is to be said of every series, by study and origin, the measured ladders first.

    `blocked` gives why nothing is concluded of a series, which is empty where something is.
    """
    found: dict[str, list[Headline]] = {kind: [] for kind in KINDS}
    for curve in series:
        row = curve.row
        is_table = row.study != OTHER and len(curve.points) > 1
        kind = row.study if row.origin == "measured" else row.origin if is_table else ""
        if kind in found:
            found[kind].append(headline.judge(curve, threshold, blocked(curve)))
    for own in found.values():
        own.sort(key=lambda one: one.series.row.is_own_test and one.kind == "blocked")
    return {kind: own for kind, own in found.items() if own}


def lines(found: Headlines) -> list[dict[str, Any]]:
    """Return the headline of each study, with those of its other series."""
    return [
        {
            "title": KINDS[kind],
            "of": names.within(first.series),
            "kind": first.kind,
            "text": first.sentence,
            "lines": first.lines,
            "short": headline.in_short(others),
            "others": [f"{one.series.label}: {one.sentence}" for one in others],
        }
        for kind, (first, *others) in found.items()
    ]


def first_of(found: Headlines) -> Headline | None:
    """Return the headline that the page is about: the first that nothing blocks."""
    every = [one for own in found.values() for one in own]
    return next((one for one in every if one.kind != "blocked"), every[0] if every else None)


def tiles(about: Headline | None, checked: str) -> list[dict[str, str]]:
    """Return the four figures that a reader looks for first, each with where it leads."""
    if about is None or about.kind == "blocked":
        return []
    home = "" if about.noun != "rank" else f"#{about.series.row.study}"
    lost, cause = "", ""
    if about.why is not None:
        lost, cause = about.all_lost, about.beyond_ideal
    at = f"Lost on {counted(about.loss_point.world_size, about.noun)}"
    made = [*_scaling_tiles(about), (at, lost, cause, home)]
    # What the series rests on; the page's warnings count what is flagged elsewhere.
    points, href = about.series.points, "#check" if checked else "#method"
    if about.noun != "rank":
        made.append(("Trust", about.trust, checked, href))
    else:
        href = "#flags" if headline.num_flagged(points) else href
        note = "; ".join(filter(None, (about.flagged, checked)))
        made.append(("Trust", about.launches, note, href))
    keys = ("label", "value", "note", "href")
    return [dict(zip(keys, tile, strict=True)) for tile in made if tile[1]]


def _scaling_tiles(about: Headline) -> list[tuple[str, str, str, str]]:
    point, noun = about.point, about.noun
    home = "" if noun != "rank" else f"#{about.series.row.study}"
    size = counted(point.world_size, noun)
    if about.kind == "alone":
        return [("Measured at", size, parts.absolute(point), home)]
    good = about.kind == "good"
    note = f"{about.series.label}: {100 * about.threshold:.0f} % efficiency or more"
    if unshown := about.series.unshown(about.threshold):
        sizes = joined([one.world_size for one in unshown])
        shows = "more launches" if all(one.efficiency_interval for one in unshown) else (
            f"at least {next_step.WANTED_LAUNCHES} launches of each size"
        )  # fmt: skip
        note += f"; at {sizes} {noun}s not shown, {shows} would show it"
    interval = point.efficiency_interval
    span = f"{percent_span(interval)} %" if interval else "no interval"
    gain = f"{headline.gain(point)} {counted(about.series.baseline, noun)}"
    lacking = "none" if about.kind == "below" else "not shown"
    return [
        ("Largest good size", size if good else lacking, note, home),
        (f"Efficiency {'there' if good else f'at best, {size}'}",
         f"{percent(point.parallel_efficiency)} %", f"{span}; {gain}", home),
    ]  # fmt: skip


def _top_figure(found: Headlines, threshold: float) -> dict[str, Any] | None:
    """Return the efficiency of the first study that has a curve; None where none has."""
    for kind, own in found.items():
        drawn = [one.series for one in own if one.kind not in ("blocked", "alone")][:MAX_CURVES]
        if drawn:
            left = f"First {len(drawn)} of {len(own)} series. " if len(own) > len(drawn) else ""
            return curves.efficiency(kind, drawn, threshold, {}) | {
                "id": "top-efficiency", "title": f"{KINDS[kind]}: parallel efficiency",
                "note": left, "xlabel": "Ranks" if own[0].noun == "rank" else "Devices",
            }  # fmt: skip
    return None


def _verdicts(found: Headlines) -> list[str]:
    """Return every headline with its study, and why each series falls short where that is known."""
    sentences, noisy = [], []
    for kind, own in found.items():
        titles = [[KINDS[kind], names.within(one.series)] for one in own]
        sentences += [f"{', '.join(filter(None, title))}: {one.sentence}"
                      for title, one in zip(titles, own, strict=True)]  # fmt: skip
        sound = [one for one in own if one.kind != "blocked"]
        whys = (verdict_card.why_short(one.series, one.loss_point, one.why) for one in sound)
        sentences += [why for why in whys if why]
        noisy += [one.series.label for one in sound if one.why and one.why.kind == "open"]
    if noisy:
        sentences.append(
            f"Too noisy to say what is lost to which cause in {listed(noisy, 4)}: measure each "
            f"size in more launches, at least {next_step.WANTED_LAUNCHES}."
        )
    return sentences


def _band(results: Results) -> str | None:
    """Return what a reader must know before any number."""
    recorded = results.campaign.get(RECORDED)
    if not recorded:
        is_training = any(not row.program for row in results.rows)
        return CPU_BAND if results.on_cpus and is_training else None
    begin = "Recorded, not measured on this machine"
    if recorded.get("kind") != "links":
        return f"{begin}."
    nodes = counted(int(recorded["num_nodes"]), "node")
    rate = number(float(recorded["rate_bit_per_s"]) / BIT_PER_MBIT)
    text = f"{begin}: {nodes} made on one, with links of {rate} Mbit/s."
    if wait := recorded.get("ms_per_item"):
        text += (
            f" Ranks, DDP and network are real; each device waits {number(float(wait))} ms a "
            "sample in place of computing."
        )
    return f"{text} No evidence for a proposal."


def _around(
    results: Results, series: Sequence[Series], threshold: float, findings: Sequence[Finding]
) -> list[dict[str, Any]]:
    """Return the sections behind those of the studies: what backs the numbers."""
    around = (
        facts.findings_panel(findings),
        facts.flags(series),
        collective_tables.panel_of(results, series),
        facts.not_measured(results),
        accounts.jobs(results, "rank-hours" if results.on_cpus else "GPU-hours"),
        facts.method(results, series, threshold),
        twelve_panel(results, series),
        facts.provenance(results),
    )
    return [section for section in around if section]


def _title(results: Results, series: Sequence[Series]) -> str:
    origins = {curve.row.origin for curve in series}
    if origins and "measured" not in origins:
        words = " and ".join(sorted(origins))
        return f"Scaling numbers, {words}, not measured here"
    known = (launch.facts.get("campaign") for launch in results.launches)
    name = str(results.campaign.get("name") or "")
    name = name or " + ".join(dict.fromkeys(str(one) for one in known if one))
    extra = sorted(origins - {"measured"})
    kind = "Training report" if series and all(o.row.training for o in series) else "Scaling report"
    title = f"{kind}: {name}" if name else kind
    return f"{title} (measured, with {' and '.join(extra)} numbers)" if extra else title


def _summary(results: Results, series: Sequence[Series], shared: str) -> list[str]:
    sentences = []
    if results.launches or learning.trained(series):
        sentences.append(_measured_summary(results, series, shared))
    for origin, text in (("cited", "are cited"), ("target", "are targets, not measured")):
        if chosen := [curve for curve in series if curve.row.origin == origin]:
            points = counted(sum(len(curve.points) for curve in chosen), "point")
            sentences.append(f"{points} in {counted(len(chosen), 'table')} {text}.")
    return sentences


def _measured_summary(results: Results, series: Sequence[Series], shared: str) -> str:
    measured = [curve for curve in series if curve.row.origin == "measured"]
    points = sum(len(curve.points) for curve in measured)
    sizes = sorted({point.world_size for curve in measured for point in curve.points})
    trained_on = (row.training.device_name for row in results.rows if row.training)
    devices = dict.fromkeys([*results.device_names, *trained_on])
    steps = (curve for curve in measured if curve.row.study in TRAINING)
    workloads = dict.fromkeys(curve.row.workload for curve in steps)
    # Training runs need not be launches.
    launches = {launch.name for launch in results.launches}
    runs = sum(row.training is not None and row.launch not in launches for row in results.rows)
    sources = [(len(launches), "launch"), (runs, "training run")]
    text = f"{capital(shared)}. On" if shared else f"{listed(workloads or ['Benchmarks'], 4)} on"
    text += f" {listed(sizes)} rank{'' if sizes == [1] else 's'}"
    text += f", {method.nodes(results.rows)}"
    text += f" with {listed(devices, 4)}" if devices else ""
    text += f": {counted(points, 'point')} of {counted(len(measured), 'case')} from "
    text += " and ".join(counted(number, noun) for number, noun in sources if number)
    days = method.days(results.days)
    return f"{text}, {days}." if days else f"{text}."


def _warnings(evaluation: Evaluation) -> list[str]:
    """Count what a reader must know before trusting the page."""
    results, series = evaluation.results, evaluation.series
    points = [point for curve in series for point in curve.points]
    flagged = headline.num_flagged(points)
    single = sum(p.num_launches == 1 for p in points if p.rows[0].origin == "measured")
    unequal = sum(any(f.kind == "unequal-threads" for f in curve.base.flags) for curve in series)
    wide = sum(next_step.is_wide(point) for point in points)
    broken = sum(not launch.complete for launch in results.launches)
    skewed = sum(abs((point.mean_over_median or 1.0) - 1) > NOTABLE for point in points)
    wide_text = f"{counted(wide, 'interval')} wider than a factor of {next_step.WIDE:g}"
    if wide > len(points) / 2:
        wide_text = f"too noisy to say more, with {wide_text}"
    lost = facts.gaps(results, lambda gap: gap.can_be_filled)
    off = f"with a mean step {100 * NOTABLE:.0f} % off the median"
    texts = [
        (len(evaluation.left_out), evaluation.not_pooled),
        (flagged, f"{flagged} of {counted(len(points), 'point')} flagged"),
        (unequal, f"{unequal} series with ranks of unequal strength"),
        (single, f"{counted(single, 'point')} without repeat"),
        (wide, wide_text),
        (skewed, f"{counted(skewed, 'point')} {off}"),
        (broken, f"{counted(broken, 'launch')} incomplete"),
        (len(results.unread), f"{len(results.unread)} unreadable"),
        (len(lost), counted(len(lost), "gap")),
    ]
    return [text for count, text in texts if count]
