"""The whole page as one dict that is JSON: title, verdict, panels, and the numbers themselves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.core.formats import capital, counted, listed, percent, percent_span
from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import LADDERS, OTHER, TITLES, TRAINING
from lockstep.report.check import checker
from lockstep.report.check.curve_rules import tables_apart
from lockstep.report.check.evidence import Evidence, joined
from lockstep.report.columns import table
from lockstep.report.compute import learning, slow
from lockstep.report.compute.alternatives import drop_laddered
from lockstep.report.compute.evaluation import Evaluation
from lockstep.report.compute.scaling import WANTED_LAUNCHES, Series, no_interval
from lockstep.report.compute.slow import Slowest
from lockstep.report.compute.statistics import WIDE
from lockstep.report.load.recorded import KEY as RECORDED
from lockstep.report.load.results import Results
from lockstep.report.page import (
    accounts,
    by_study,
    collective_tables,
    curves,
    facts,
    parts,
    training_panel,
)
from lockstep.report.page.twelve_rules import twelve_panel
from lockstep.report.predict import prediction
from lockstep.report.words import headline, method, names, ranking_card, verdict_card
from lockstep.report.words.headline import Headline
from lockstep.report.words.lines import signs
from lockstep.report.words.verdict_card import Judged

CPU_BAND = (
    "These results were measured on CPUs, where ranks share cores and memory bandwidth. They show "
    "that the suite works, and are no evidence for a proposal."
)
KINDS = {name: TITLES[name] for name in LADDERS} | {"cited": "Cited", "target": "Target"}
UNMEASURED = "No case has a result: fix the reasons listed under Not measured, and run again."
CITED_ALONE = "Measure the same points on the machine you will use; cited numbers are no evidence."
RECORDED_ALONE = (
    "Measure your own machine with lockstep run. Install the extra [bench] for torch first."
)
ON_GPUS = "The suite works on this machine. Run the same campaign on the machine you will train on."
OWN_ON_GPUS = "Then measure the test on the machine you will train on."
THEN_ON_GPUS = "Then run the same campaign on the machine you will train on."
UNEXPLAINED = (
    "Pass the DDP model to lockstep.measure as ddp=model. The report then says how much time a "
    "step loses, and to which rank."
)
MORE_SEEDS = (
    f"Train every setting with at least {WANTED_LAUNCHES} seeds. With fewer seeds the accuracy has "
    "no interval, or a wide one."
)
TRAINED = "Change a setting, train again, and compare both trainings with lockstep compare."
# Most curves of the small figure beside the headlines.
MAX_CURVES = 4

Headlines = Mapping[str, Sequence[Headline]]


def page(evaluation: Evaluation, threshold: float, command: str = "") -> dict[str, Any]:
    """Return the content of the page."""
    results, findings = evaluation.results, evaluation.findings
    series, shared = names.short(worst_first(evaluation.series))
    predicted = prediction.curves(by_study.ladders(series), findings)
    sections = by_study.panels(results, series, threshold, predicted)
    method.put_basis(sections, results, series, _band(results))
    # Panels of evidence follow those of the studies.
    sections += filter(None, (
        facts.findings_panel(findings, results),
        facts.flags(series),
        collective_tables.panel_of(results, series),
        facts.gaps_panel(results),
        accounts.jobs(results),
        *facts.profile_panels(results),
        facts.method(results, series, threshold),
        twelve_panel(results, series),
        facts.provenance(results),
    ))  # fmt: skip
    parts.fold(sections)
    title, days = _title(results, series), method.days(results.days)
    source = (title, f"Measured {days}" if days else "", f"Made with: {command}" if command else "")
    return {
        "title": title,
        "band": _band(results),
        "summary": [
            *_summary(results, series, shared),
            *([f"Data: https://doi.org/{results.doi}"] if results.doi else []),
        ],
        "basis": method.basis_sentences([row for row in results.rows if row.origin == "measured"]),
        "errors": facts.error_lines(findings),
        **_top(evaluation, series, threshold),
        "source": ". ".join(filter(None, source)),
        "sections": sections,
        "data": {"schema": 1, "points": table(worst_first(evaluation.series))},
    }


def worst_first(series: Sequence[Series]) -> list[Series]:
    """Sort the user's own tests by efficiency, the worst first."""

    def efficiency(curve: Series) -> float:
        return curve.points[-1].parallel_efficiency if curve.row.is_own_test else 0.0

    return sorted(series, key=efficiency)


def _top(evaluation: Evaluation, series: Sequence[Series], threshold: float) -> dict[str, Any]:
    results, findings = evaluation.results, evaluation.findings
    checked = checker.counts(findings, results) if findings else ""
    errors = checker.errors(findings)
    slowest = slow.slowest(row for row in results.split()[0] if row.origin == "measured")
    judged = verdict_card.judge(series, threshold)
    ladders = headlines(
        drop_laddered(tables_apart(Evidence(results, list(series)))), threshold,
        lambda curve: facts.why_blocked(curve, errors, evaluation.left_out),
    )  # fmt: skip
    every = [each for own in ladders.values() for each in own]
    # The tiles are about the first headline that is not blocked.
    first = next((each for each in every if each.kind != "blocked"), every[0] if every else None)
    todo = next_step(results, series, threshold, slowest, judged)
    if errors:
        todo = f"Fix the errors of lockstep check. Begin with {errors[0].rule}: {errors[0].action}."
    return {
        "headlines": [
            *ranking_card.rate_headlines(series, threshold),
            *(
                headline.entry(
                    KINDS[kind], names.within(first.series), first.kind, *first.lines,
                    text=first.sentence, short=headline.summarise(others),
                    others=[f"{each.series.label}: {each.sentence}" for each in others],
                )
                for kind, (first, *others) in ladders.items()
            ),
            *ranking_card.device_headlines(series),
            *ranking_card.headlines(series),
            *training_panel.headlines(series),
        ],
        "tiles": tiles(first, checked),
        "figure": _top_figure(ladders, threshold) or training_panel.top_figure(series),
        "verdicts": [*([verdict_card.slow_advice(slowest)] if slowest else []),
                     *_verdicts(ladders)],
        "card": judged and {"title": judged.title,
                            "lines": [signs(line) for line in judged.lines(has_next=False)]},
        "warnings": _warnings(evaluation),
        "checked": checked,
        "next": todo,
    }  # fmt: skip


def headlines(
    series: Sequence[Series], threshold: float, blocked: Callable[[Series], str]
) -> dict[str, list[Headline]]:
    """Return the headlines of every series, by study and origin, the measured ladders first.

    `blocked` returns why a series has no verdict; empty if it has one.
    """
    ladders: dict[str, list[Headline]] = {kind: [] for kind in KINDS}
    for curve in series:
        row = curve.row
        is_table = row.study != OTHER and len(curve.points) > 1
        kind = row.study if row.origin == "measured" else row.origin if is_table else ""
        if kind in ladders:
            ladders[kind].append(headline.judge(curve, threshold, blocked(curve)))
    for own in ladders.values():
        own.sort(key=lambda each: each.series.row.is_own_test and each.kind == "blocked")
    return {kind: own for kind, own in ladders.items() if own}


def tiles(about: Headline | None, checked: str) -> list[dict[str, str]]:
    """Return the four numbers that a reader looks for first, each with its link."""
    if about is None or about.kind == "blocked":
        return []
    is_measured, points = about.series.row.origin == "measured", about.series.points
    home = f"#{about.series.row.study}" if is_measured else ""
    made = _scaling_tiles(about, home)
    if why := about.why:
        loss = why.loss
        ideal = f"ideal {parts.ms(loss.step_s - loss.seconds)} ms, from the baseline's step"
        lost = f"{parts.ms(loss.seconds)} of {parts.ms(loss.step_s)} ms"
        largest = f"{parts.ms(why.named[0].seconds)} ms" if why.kind == "named" else ""
        made.append((
            f"Lost on {counted(about.loss_point.world_size, about.series.noun)}",
            lost if loss.seconds > 0 else "none shown", f"{ideal}; {about.cause(largest)}", home,
        ))  # fmt: skip
    # The launches and flags of this series alone; the page's warnings count those of all series.
    href = "#check" if checked else "#method"
    if is_measured:
        href = "#flags" if headline.num_flagged(points) else href
        note = "; ".join(filter(None, (about.flagged, checked)))
        made.append(("Trust", about.launches, note, href))
    else:
        made.append(("Trust", about.trust, checked, href))
    return [dict(zip(("label", "value", "note", "href"), tile, strict=True)) for tile in made]


def _scaling_tiles(about: Headline, home: str) -> list[tuple[str, str, str, str]]:
    point, noun, good = about.point, about.series.noun, about.kind == "good"
    size = counted(point.world_size, noun)
    if about.kind == "alone":
        return [("Measured at", size, parts.absolute(point), home)]
    note = f"{about.series.label}: {100 * about.threshold:.0f} % efficiency or more"
    if unshown := about.series.unshown(about.threshold):
        sizes = joined([each.world_size for each in unshown])
        needed = about.series.launches_to_show(about.threshold)
        note += f"; {sizes} {noun}s are not shown to reach this: measure {needed}"
    interval = point.efficiency_interval
    span = f"{percent_span(interval)} %" if interval else no_interval(point, about.series.base)
    gain = f"{headline.gain(point)} {counted(about.series.baseline, noun)}"
    lacking = "none" if about.kind == "below" else "not shown"
    return [
        ("Largest good size", size if good else lacking, note, home),
        ("Efficiency at largest good size" if good else f"Best efficiency, at {size}",
         f"{percent(point.parallel_efficiency)} %", f"{span}; {gain}", home),
    ]  # fmt: skip


def _top_figure(ladders: Headlines, threshold: float) -> dict[str, Any] | None:
    for kind, own in ladders.items():
        drawn = [each.series for each in own if each.kind not in ("blocked", "alone")][:MAX_CURVES]
        if drawn:
            left = f"First {len(drawn)} of {len(own)} series. " if len(own) > len(drawn) else ""
            return curves.efficiency(kind, drawn, threshold, {}) | {
                "id": "top-efficiency", "title": f"{KINDS[kind]}: parallel efficiency",
                "note": left, "xlabel": f"{own[0].series.noun.capitalize()}s",
            }  # fmt: skip
    return None


def _verdicts(ladders: Headlines) -> list[str]:
    sentences: list[str] = []
    noisy: list[Series] = []
    for kind, own in ladders.items():
        for each in own:
            title = ", ".join(filter(None, (KINDS[kind], names.within(each.series))))
            sentences.append(f"{title}: {each.sentence}")
        sound = [each for each in own if each.kind != "blocked"]
        whys = (verdict_card.why_short(each.series, each.loss_point, each.why) for each in sound)
        sentences += filter(None, whys)
        noisy += [each.series for each in sound if each.why and each.why.kind == "open"]
    if noisy:
        fewest = min(point.num_launches for curve in noisy for point in curve.points)
        sentences.append(
            f"Noise hides the cause of the lost time in {listed((s.label for s in noisy), 4)}. "
            "Measure again on a quiet machine, and each size in at least "
            f"{max(fewest + 1, WANTED_LAUNCHES)} launches."
        )
    return sentences


def _band(results: Results) -> str | None:
    """Return the warning above all numbers: results of CPUs, or of a recording; else None."""
    texts = method.recorded(results)
    if not texts:
        is_training = any(not row.program for row in results.rows)
        return CPU_BAND if results.on_cpus and is_training else None
    no_evidence = "These results are no evidence for a proposal."
    return " ".join([*texts, *[no_evidence] * (len(texts) > 1)])


def _title(results: Results, series: Sequence[Series]) -> str:
    origins = {curve.row.origin for curve in series}
    imported = " and ".join(sorted(origins - {"measured"}))
    if origins and "measured" not in origins:
        return f"Scaling numbers ({imported}, not measured here)"
    campaigns = filter(None, (launch.facts.get("campaign") for launch in results.launches))
    name = str(results.campaign.get("name") or " + ".join(dict.fromkeys(map(str, campaigns))))
    kind = "Training report" if series and all(c.row.training for c in series) else "Scaling report"
    title = f"{kind}: {name}" if name else kind
    return f"{title} (measured, with {imported} numbers)" if imported else title


def _summary(results: Results, series: Sequence[Series], shared: str) -> list[str]:
    is_measured = results.launches or learning.select_trainings(series)
    sentences = [_measured_summary(results, series, shared)] if is_measured else []
    for origin, text in (("cited", "are cited"), ("target", "are unmeasured targets")):
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
    # A training run may be recorded without a launch.
    launches = {launch.name for launch in results.launches}
    runs = sum(row.training is not None and row.launch not in launches for row in results.rows)
    sources = [(len(launches), "launch"), (runs, "training run")]
    text = f"{capital(shared)}. On" if shared else f"{listed(workloads or ['Benchmarks'], 4)} on"
    text += f" {listed(sizes)} rank{'' if sizes == [1] else 's'}"
    text += f", {method.nodes(results.rows)}"
    text += f" with {listed(devices, 4)}" if devices else ""
    text += f": {counted(points, 'point')} of {counted(len(measured), 'case')} from "
    text += " and ".join(counted(number, noun) for number, noun in sources if number)
    return f"{', '.join(filter(None, (text, method.days(results.days))))}."


def _warnings(evaluation: Evaluation) -> list[str]:
    results, series = evaluation.results, evaluation.series
    points = [point for curve in series for point in curve.points]
    flagged = headline.num_flagged(points)
    single = sum(p.num_launches == 1 for p in points if p.rows[0].origin == "measured")
    unequal = sum(any(f.kind == "unequal-threads" for f in curve.base.flags) for curve in series)
    wide = [curve.row.study for curve in series for p in curve.points if p.is_noisy]
    broken = sum(not launch.complete for launch in results.launches)
    skewed = [
        curve.row.study for curve in series for point in curve.points
        if abs((point.mean_over_median or 1.0) - 1) > NOTABLE
    ]  # fmt: skip
    intervals = counted(len(wide), "interval")
    studies = listed(dict.fromkeys(wide), 4)
    too_wide = f"{intervals} wider than a factor of {WIDE:g} (in {studies})"
    if len(wide) > len(points) / 2:
        too_wide = f"most points are too noisy: {too_wide}"
    skewed_points, studies = counted(len(skewed), "point"), listed(dict.fromkeys(skewed), 4)
    lost = facts.gaps(results, lambda gap: gap.can_be_filled)
    limit = f"{100 * NOTABLE:.0f} %"
    texts = [
        (len(evaluation.left_out), evaluation.not_pooled),
        (flagged, f"{flagged} of {counted(len(points), 'point')} flagged"),
        (unequal, f"{unequal} series with different numbers of threads per rank"),
        (single, f"{counted(single, 'point')} without repeat"),
        (len(wide), too_wide),
        (len(skewed), f"{skewed_points} with a mean step time more than {limit} off the median "
         f"(in {studies})"),
        (broken, f"{counted(broken, 'launch')} incomplete"),
        (len(results.unread), f"{len(results.unread)} unreadable"),
        (len(lost), counted(len(lost), "gap")),
    ]  # fmt: skip
    return [text for count, text in texts if count]


def next_step(
    results: Results, series: Sequence[Series], threshold: float, slowest: Slowest | None,
    judged: Judged | None,
) -> str:  # fmt: skip
    """Return the most useful next action; it contradicts no study of the page."""
    measured = [curve for curve in series if curve.row.origin == "measured"]
    if not measured:
        return UNMEASURED if results.launches else CITED_ALONE
    if results.campaign.get(RECORDED):
        return RECORDED_ALONE
    if results.on_cpus and not all(row.program for row in results.rows):
        if first := _of_own_tests(measured, threshold, judged):
            return f"{first} {OWN_ON_GPUS}"
        first = _more_launches(measured) or _undecided(measured, threshold)
        return f"{first} {THEN_ON_GPUS}" if first else ON_GPUS
    if slowest:
        return verdict_card.slow_advice(slowest)
    points = [point for curve in measured for point in curve.points]
    if all(curve.row.training for curve in measured):
        seeds = min(len({learning.seed(row) for row in point.rows}) for point in points)
        return MORE_SEEDS if seeds < WANTED_LAUNCHES else TRAINED
    if flagged := next((p.flags[0] for p in points if p.flags), None):
        return (
            "Remove the causes of the flags (warnings), then measure the flagged points again. The "
            "first flag: "
            f"{flagged}."
        )
    if first := _more_launches(measured) or _of_own_tests(measured, threshold, judged):
        return first
    if not drop_laddered(measured):
        return "Change the program, measure it again, and compare both with lockstep compare."
    return _undecided(measured, threshold) or _after_ladders(measured, threshold, judged)


def _of_own_tests(measured: Sequence[Series], threshold: float, judged: Judged | None) -> str:
    if judged and judged.is_own:
        return f"For {judged.title}: {judged.advice}." if judged.advice else ""
    for curve in measured:
        point = verdict_card.loss_point(curve, threshold)
        # Without variants and buckets the step was measured without its model in DDP.
        if curve.row.is_own_test and _falls(curve, threshold) and not point.blocked_by and not any(
            row.rank_variant_s or row.details.get("bucket_bytes")
            or "own-waits" in {flag.kind for flag in row.flags} for row in point.rows
        ):  # fmt: skip
            return UNEXPLAINED
    return ""


def _more_launches(measured: Sequence[Series]) -> str:
    # Ladders come first: a noisy collective asks for nothing if the ladders are precise.
    ladders = [curve for curve in measured if curve.row.study in LADDERS]
    points = [point for curve in ladders or measured for point in curve.points]
    if min(point.num_launches for point in points) < WANTED_LAUNCHES:
        return f"Measure every point in at least {WANTED_LAUNCHES} launches, for tight intervals."
    if any(point.is_noisy for point in points):
        return "Measure more launches on quiet nodes: some intervals are too wide to compare."
    return ""


def _main_ladders(measured: Sequence[Series]) -> list[Series]:
    return [curve for curve in measured if curve.row.study in LADDERS and curve.main is None]


def _undecided(measured: Sequence[Series], threshold: float) -> str:
    for curve in _main_ladders(measured):
        good, unshown = curve.good(threshold), curve.unshown(threshold)
        # Between a good size and a bad size, the end of the ladder is known well enough.
        if unshown and not (good and len(good) + len(unshown) < len(curve.above)):
            size, interval = counted(unshown[0].world_size, "rank"), unshown[0].efficiency_interval
            why = no_interval(unshown[0], curve.base)
            span = f"{percent_span(interval)} %" if interval else why
            more_launches, goal = curve.launches_to_show(threshold), f"{100 * threshold:.0f} %"
            return (
                f"Measure {more_launches}: it is not shown whether {size} reach {goal} efficiency "
                f"in {names.name_of(curve)} ({span})."
            )
    return ""


def _after_ladders(measured: Sequence[Series], threshold: float, judged: Judged | None) -> str:
    ladders = _main_ladders(measured)
    if not ladders or all(len(curve.points) == 1 for curve in ladders):
        return "Measure at least three world sizes, so that scaling can be judged."
    falling = [curve for curve in ladders if _falls(curve, threshold)]
    if not falling:
        size = counted(min(curve.points[-1].world_size for curve in ladders), "rank")
        worst = min(ladders, key=lambda curve: curve.points[-1].parallel_efficiency)
        efficiency = percent(worst.points[-1].parallel_efficiency)
        return (
            f"Measure more than {size}: the largest size of {names.name_of(worst)} still has "
            f"{efficiency} % efficiency."
        )
    if judged and judged.advice and _falls(judged.series, threshold):
        return f"For {judged.title}: {judged.advice}."
    studies = listed(dict.fromkeys(curve.row.study for curve in falling))
    advice = (
        f"Use the sizes named above: no larger size is shown to reach {100 * threshold:.0f} % "
        f"efficiency in {studies} scaling."
    )
    if kept := [curve for curve in ladders if curve not in falling]:
        largest = max(curve.points[-1].world_size for curve in kept)
        of_kept = listed(map(names.name_of, kept), 3)
        advice += f" At {largest} ranks, the efficiency of {of_kept} is still good."
    return advice


def _falls(series: Series, threshold: float) -> bool:
    point = verdict_card.loss_point(series, threshold)
    return point is not series.base and point.parallel_efficiency < threshold
