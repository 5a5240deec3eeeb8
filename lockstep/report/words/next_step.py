"""The most useful next action; it contradicts no study of the page."""

from collections.abc import Sequence

from lockstep.core.formats import counted, listed, percent, percent_span
from lockstep.core.studies import LADDERS
from lockstep.report.compute import learning
from lockstep.report.compute.alternatives import drop_laddered
from lockstep.report.compute.scaling import WANTED_LAUNCHES, Series, no_interval
from lockstep.report.compute.slow import Slowest
from lockstep.report.load.recorded import KEY as RECORDED
from lockstep.report.load.results import Results
from lockstep.report.words import verdict_card
from lockstep.report.words.names import name_of
from lockstep.report.words.verdict_card import Judged

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


def next_step(
    results: Results, series: Sequence[Series], threshold: float, slowest: Slowest | None,
    judged: Judged | None = None,
) -> str:  # fmt: skip
    """Return the most useful next action, by the results."""
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
                f"in {name_of(curve)} ({span})."
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
            f"Measure more than {size}: the largest size of {name_of(worst)} still has "
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
        largest, names = max(curve.points[-1].world_size for curve in kept), map(name_of, kept)
        advice += f" At {largest} ranks, the efficiency of {listed(names, 3)} is still good."
    return advice


def _falls(series: Series, threshold: float) -> bool:
    point = verdict_card.loss_point(series, threshold)
    return point is not series.base and point.parallel_efficiency < threshold
