"""The sentences of a pack, each from records; nothing else of the pack is in words."""

from collections.abc import Iterable, Sequence

from lockstep.core.formats import counted, in_words, listed, number, percent, percent_span, ratio
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.pack import pack_tables as cells
from lockstep.report.pack.chosen import Agreement, Chosen
from lockstep.report.pack.node_hours import Budget
from lockstep.report.pack.objections import Objection
from lockstep.report.pack.outcomes import Outcomes
from lockstep.report.page.panels.parts import GIGA, MILLI
from lockstep.report.words.method import span_of

# Beyond it, stalls cost node-hours that a median does not show.
STALLS = 1.05
# Objections of one kind that a text names.
MAX_NAMED = 6
PRECISIONS = {
    "fp32": "IEEE single precision throughout",
    "tf32": "parameters in single precision, matrix products in TF32",
    "bf16": "parameters in single precision, autocast to bfloat16",
    "fp16": "parameters in single precision, autocast to half precision with a loss scale",
}


def caption(series: Series) -> str:
    """Say what the rows of a ladder share."""
    row = series.row
    fixed = ("global batch", row.global_batch) if row.study == "strong" else (
        "local batch", row.local_batch
    )  # fmt: skip
    batch = f", {fixed[0]} {fixed[1]}" if fixed[1] else ""
    return f"{row.study.capitalize()} scaling: {row.workload}, {row.precision}{batch}"


def relative_to(series: Series, noun: str) -> str:
    """Name the baseline with its absolute performance and its batch."""
    base = series.base
    row = base.rows[0]
    nodes = f" ({counted(row.num_nodes, 'node')})" if row.num_nodes else ""
    is_smallest = all(point.world_size >= base.world_size for point in series.points)
    which = "the smallest allocation of this ladder" if is_smallest else "the baseline chosen"
    return (
        f"Speed-up and efficiency are relative to {counted(base.world_size, noun)}{nodes}, "
        f"{which}, with {number(base.throughput_samples_per_s)} "
        f"{row.sample_unit}/s at global batch {row.global_batch}."
    )


def production(chosen: Chosen, noun: str) -> str:
    """Name the production row."""
    row = chosen.production.rows[0]
    how = "which follows from the job size below"
    if chosen.is_given:
        how = "named by the applicant"
    elif chosen.production is chosen.series.base:
        how = "the baseline, since no larger size qualifies"
    return (
        f"The row in bold is the production size: {counted(chosen.production.world_size, noun)} "
        f"at global batch {row.global_batch} ({chosen.series.row.study} scaling), {how}."
    )


def job_size(chosen: Chosen, threshold: float, noun: str) -> str:
    """Say why this job size: the largest that each ladder speaks for."""
    size, goal = chosen.job_size, f"{100 * threshold:.0f} %"
    if size.strong is None and size.weak is None:
        return f"No size above the baseline is shown to reach {goal} efficiency."
    said = []
    if size.strong is not None:
        said.append(
            f"{counted(size.strong.world_size, noun)} is the largest size above {goal} strong "
            f"efficiency at global batch {size.strong.rows[0].global_batch}: "
            f"{efficiency(size.strong)}"
        )
    if size.weak is not None:
        only = " is used only" if size.strong else " is the largest size"
        said.append(
            f"{counted(size.weak.world_size, noun)}{only} with global batch "
            f"{size.weak.rows[0].global_batch}, where weak efficiency is {efficiency(size.weak)}"
        )
    return f"{'. '.join(said)}."


def efficiency(point: Point) -> str:
    """Return a point's efficiency with its interval."""
    interval = point.efficiency_interval
    found = f"95 % interval {percent_span(interval)} %" if interval else "no interval"
    return f"{percent(point.parallel_efficiency)} % ({found})"


def agreement(found: Sequence[Agreement], noun: str) -> str:
    """Say how well the two ladders agree where they measured the same step."""
    said = listed(
        f"{100 * (one.ratio - 1):+.1f} % on {counted(one.world_size, noun)}" for one in found
    )
    return f"Both ladders measured the same step at some sizes; strong differs from weak by {said}."


def stalls(series: Iterable[Series], noun: str) -> str:
    """Name the points whose mean step is far above the median; empty where none is."""
    said = [
        f"{ratio(point.mean_over_median)} times in {one.row.study} scaling on "
        f"{counted(point.world_size, noun)}"
        for one in series for point in one.points
        if (point.mean_over_median or 1.0) > STALLS
    ]  # fmt: skip
    if not said:
        return ""
    return (
        f"Single rounds stall, so that the mean step is above the median: {listed(said)}. "
        "Node-hours follow from the mean."
    )


def precision(chosen: Chosen) -> str:
    """Say in which precision the tables are."""
    found = dict.fromkeys(one.row.precision for one in chosen.shown)
    return " ".join(
        f"The tables hold {name}: {PRECISIONS.get(str(name), 'as PyTorch defines it')}."
        for name in found
    )


def time_to_solution(chosen: Chosen, plan: Budget | None) -> str:
    """Say how long the production step, and what is planned, takes."""
    point = chosen.production
    unit = point.rows[0].sample_unit or "samples"
    text = (
        "At the production size an optimizer update takes "
        f"{number(point.step_s, scale=MILLI)} ms in the median and "
        f"{number(point.mean_step_s, scale=MILLI)} ms in the mean; 10\u2076 {unit} take "
        f"{number(cells.time_of_samples_s(point))} s."
    )
    for one in plan.milestones if plan else ():
        if one.num_steps is not None:
            text += f" {one.type}: a run of {one.num_steps} steps takes {number(one.hours)} h."
    return text


def scale(chosen: Chosen, noun: str) -> str:
    """Say how large the machine was that was measured."""
    sizes = sorted({point.world_size for point in chosen.points})
    nodes = [point.rows[0].num_nodes for point in chosen.points]
    where = f", on {span_of(nodes)} {'node' if set(nodes) == {1} else 'nodes'}"
    if not all(nodes):
        where = "; on how many nodes is not recorded for every size"
    per_node = chosen.production.rows[0].ranks_per_node
    text = f"Measured from {sizes[0]} to {counted(sizes[-1], noun)} ({listed(sizes)}){where}."
    return f"{text} A node takes {counted(per_node, noun)} of the job." if per_node else text


def intervals(points: Sequence[Point]) -> str:
    """Say what intervals are; empty where no point has one."""
    if not any(one.step_interval or one.efficiency_interval for one in points):
        return ""
    return (
        "Intervals are 95 % Student t on the logarithm of one value a launch, those of ratios "
        "Welch's, which hold the baseline's uncertainty."
    )


def memory(chosen: Chosen, on_cpus: bool) -> str:
    """Say how much memory a rank needs."""
    what = "resident memory of the process" if on_cpus else "memory that PyTorch allocated"
    needed = chosen.production.peak_memory_bytes
    if needed is None:
        return "Memory was not recorded."
    return (
        f"The rank that needs most has a peak of {number(needed / GIGA)} GB at the "
        f"production size ({what}); the tables have it for every size."
    )


def peak(mfu: float) -> str:
    """Say which share of the peak is used."""
    return (
        f"The model's floating-point operations are {percent(mfu)} % of the datasheet's dense peak "
        "of the devices at the production size."
    )


def budget(plan: Budget, known: Outcomes | None) -> list[str]:
    """Say how the node-hours come about, which input is measured and which is planned."""
    measured = [
        f"{one.type} on {counted(one.world_size or 0, 'rank')} at global batch "
        f"{one.global_batch} of the production series"
        for one in plan.milestones if one.source == "measured"
    ]  # fmt: skip
    source = (
        f"times per step are measured ({listed(measured)})" if measured
        else "all times are the applicant's own"
    )  # fmt: skip
    said = [
        f"Node-hours are runs x hours of a run x nodes; {source}, the numbers of runs, steps and "
        f"nodes are planned. With {percent(plan.overhead)} % for overhead and "
        f"{percent(plan.failed_share)} % of all node-hours lost to failed jobs, "
        f"{cells.exact(plan.node_hours)} become {cells.exact(plan.with_losses)} node-hours."
    ]
    if plan.charge_factor != 1:
        said.append(
            f"At a charge factor of {plan.charge_factor:g} that is {cells.exact(plan.charged)}."
        )
    if known is not None:
        said.append(
            f"Jobs of this campaign that did not complete took {percent(known.failed_share)} % of "
            "its node-hours."
        )
    return said


def waits(known: Outcomes) -> str:
    """Say how long jobs waited."""
    if known.wait_s is None:
        return "How long jobs waited is not known."
    return (
        f"Jobs waited {in_words(known.wait_s[0])} in the median, {in_words(known.wait_s[1])} at "
        "the 90th percentile. A job that did not complete may still hold valid measurements: each "
        "case is on disk when it ends."
    )


def objection(one: Objection) -> str:
    """Return one objection as a sentence without its full stop."""
    if one.finding is not None:
        return f"{one.finding.rule}: {one.finding.where}: {one.finding.message}"
    if one.kind == "cpus":
        return "measured on CPUs, where ranks share cores and memory bandwidth: a functional test"
    if one.kind == "recorded":
        return "a recorded campaign that ships with Lockstep, not a measurement of the applicant"
    if one.kind == "no-interval":
        return (
            f"{counted(one.num_points, 'point')} without an interval, so that nobody knows how far "
            "another launch would differ: measure 3 repeats or more"
        )
    if one.kind == "example":
        return "the planned runs are the example's that ships with Lockstep, not the applicant's"
    if one.kind == "left-out":
        return (
            f"{counted(len(one.launches), 'launch')} may not be pooled with the others of "
            f"{counted(one.num_points, 'point')}: {listed(one.launches, MAX_NAMED)}"
        )
    return f"{counted(one.num_points, 'point')} flagged: {listed(one.flags, MAX_NAMED)}"


def despite(found: Sequence[Objection]) -> str:
    """Say at the head of a text what speaks against it."""
    said = "; ".join(objection(one) for one in found[:MAX_NAMED])
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return (
        f"No proposal evidence. This text was written despite {counted(len(found), 'objection')}: "
        f"{said}{more}."
    )
