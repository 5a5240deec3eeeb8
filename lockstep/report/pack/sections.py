"""From results to the text of a pack as plain data: headings, each with blocks.

A block is a dict of kind `text`, `lines`, `table` or `figure`. A part is what one heading of a
programme asks for; `reports/pack/*.toml` says which parts stand under which heading. A part of
which nothing is known gives no block, and a heading without blocks is left out.

The tables of a pack: cells of text, every number from a record that the pack's JSON holds.

The sentences of a pack, each from records; nothing else of the pack is in words.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lockstep.core import formats, record
from lockstep.core.formats import (
    counted,
    in_words,
    listed,
    number,
    percent,
    percent_span,
    ratio,
    span,
)
from lockstep.core.record import Basis
from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.load.results import Results
from lockstep.report.pack.choices import Agreement, Budget, Chosen, Objection, Outcomes, Run, Work
from lockstep.report.page import parts
from lockstep.report.page.parts import GIGA, MILLI, allowed, shown
from lockstep.report.words import method
from lockstep.report.words.method import span_of
from lockstep.report.words.verdict_card import Judged

Table = dict[str, Any]
COST_SAMPLES = 1e6
# A month in which something is done.
MARK = "\u25a0"


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0,
    bold: int | None = None, note: str = "",
) -> Table:  # fmt: skip
    """Return a table, its first `texts` columns text; columns of unknown cells are left out."""
    return parts.table(caption, columns, rows, texts, "", kind="table", bold=bold, note=note)


def scaling(series: Series, chosen: Chosen, noun: str, caption: str, note: str) -> Table:
    """Return the table of one ladder, its production row in bold."""
    unit = series.row.sample_unit or "samples"
    columns = (
        f"{noun}s", "Nodes", "Global batch", "Local batch", "Step (ms)", "95 % interval (ms)",
        "Mean step (ms)", f"Throughput ({unit}/s)", "Speed-up", "Efficiency (%)",
        "95 % interval (%)", "Memory (GB)", "Launches",
    )  # fmt: skip
    rows = [_scaling_row(point) for point in series.points]
    bold = next((i for i, p in enumerate(series.points) if p is chosen.production), None)
    return table(caption, columns, rows, bold=bold, note=note)


def _scaling_row(point: Point) -> list[str]:
    row = point.rows[0]
    return [
        str(point.world_size), shown(row.num_nodes), shown(row.global_batch),
        shown(row.local_batch), number(point.step_s, scale=MILLI),
        span(point.step_interval, MILLI), number(point.mean_step_s, scale=MILLI),
        number(point.throughput_samples_per_s), allowed(point, ratio(point.speedup)),
        allowed(point, percent(point.parallel_efficiency)),
        allowed(point, percent_span(point.efficiency_interval)),
        number(point.peak_memory_bytes, scale=1 / GIGA), str(point.num_launches),
    ]  # fmt: skip


def time_of_samples_s(point: Point) -> float | None:
    """Return the time that 10^6 samples take at the mean step."""
    rate, stalls = point.throughput_samples_per_s, point.mean_over_median or 1.0
    return None if rate is None else COST_SAMPLES / rate * stalls


def node_hours_of_samples(point: Point) -> float | None:
    """Return the node-hours that 10^6 samples take at the mean step."""
    seconds, nodes = time_of_samples_s(point), point.rows[0].num_nodes
    return None if seconds is None or not nodes else seconds * nodes / SECONDS_PER_HOUR


def unit_costs(series: Series, chosen: Chosen, noun: str, caption: str) -> Table:
    """Return what 10^6 samples cost at each size."""
    unit = series.row.sample_unit or "samples"
    per = f"per 10\u2076 {unit}"
    columns = (
        f"{noun}s", "Nodes", "Global batch", f"Time {per} (s)", f"Node-hours {per}",
        f"{noun}-hours {per}",
    )  # fmt: skip
    rows = [
        [str(p.world_size), shown(p.rows[0].num_nodes), shown(p.rows[0].global_batch),
         number(time_of_samples_s(p)), number(node_hours_of_samples(p)), number(p.device_hours)]
        for p in series.points
    ]  # fmt: skip
    bold = next((i for i, p in enumerate(series.points) if p is chosen.production), None)
    return table(caption, columns, rows, bold=bold)


def milestones(plan: Budget) -> Table:
    """Return the milestones, with the columns that EuroHPC's form has."""
    columns = (
        "Run type", "Code(s)", "No. of runs", "No. of nodes", "No. of steps per run",
        "Time per step (s)", "Hours per run", "Total node hours",
    )  # fmt: skip
    rows = [
        [
            milestone.type, milestone.code or formats.DASH, str(milestone.num_runs),
            shown(milestone.num_nodes), shown(milestone.num_steps), number(milestone.step_s),
            number(milestone.hours), exact(milestone.node_hours),
        ]
        for milestone in plan.milestones
    ]  # fmt: skip
    rows.append(["Sum", *([""] * (len(columns) - 2)), exact(plan.node_hours)])
    return table("Milestones", columns, rows, texts=2, bold=len(rows) - 1)


def gantt(runs: Sequence[Run]) -> Table:
    """Return which run types take which months."""
    spans = [range(run.start_month or 1, (run.start_month or 1) + run.months) for run in runs]
    months = range(1, max(span.stop for span in spans))
    rows = [
        [run.type, *(MARK if month in own else " " for month in months)]
        for run, own in zip(runs, spans, strict=True)
    ]
    return table("Work plan by month", ("Run type", *map(str, months)), rows, texts=1)


def exact(hours: float) -> str:
    """Return node-hours with two decimals at most, since a form's sums are checked."""
    return f"{hours:.2f}".rstrip("0").rstrip(".")


def outcomes(known: Outcomes) -> Table:
    """Return how the jobs ended."""
    rows = [
        [outcome.state, str(outcome.num_jobs), number(outcome.node_hours)]
        for outcome in known.outcomes
    ]
    return table("Jobs of this campaign, as Slurm accounts for them",
                 ("State", "Jobs", "Node-hours"), rows, texts=1)  # fmt: skip


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


def describe_figure(series: Series) -> str:
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


def describe_production(chosen: Chosen, noun: str) -> str:
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


def describe_job_size(chosen: Chosen, threshold: float, noun: str) -> str:
    """Say why this job size: the largest that each ladder speaks for."""
    size, goal = chosen.job_size, f"{100 * threshold:.0f} %"
    if size.strong is None and size.weak is None:
        return f"No size above the baseline is shown to reach {goal} efficiency."
    said = []
    if size.strong is not None:
        said.append(
            f"{counted(size.strong.world_size, noun)} is the largest size above {goal} strong "
            f"efficiency at global batch {size.strong.rows[0].global_batch}: "
            f"{describe_efficiency(size.strong)}"
        )
    if size.weak is not None:
        only = " is used only" if size.strong else " is the largest size"
        said.append(
            f"{counted(size.weak.world_size, noun)}{only} with global batch "
            f"{size.weak.rows[0].global_batch}, where weak efficiency is "
            f"{describe_efficiency(size.weak)}"
        )
    return f"{'. '.join(said)}."


def describe_efficiency(point: Point) -> str:
    """Return a point's efficiency with its interval."""
    interval = point.efficiency_interval
    found = f"95 % interval {percent_span(interval)} %" if interval else "no interval"
    return f"{percent(point.parallel_efficiency)} % ({found})"


def describe_agreement(agreements: Sequence[Agreement], noun: str) -> str:
    """Say how well the two ladders agree where they measured the same step."""
    text = listed(
        f"{100 * (agreement.ratio - 1):+.1f} % on {counted(agreement.world_size, noun)}"
        for agreement in agreements
    )
    return f"Both ladders measured the same step at some sizes; strong differs from weak by {text}."


def describe_stalls(series: Iterable[Series], noun: str) -> str:
    """Name the points whose mean step is far above the median; empty where none is."""
    texts = [
        f"{ratio(point.mean_over_median)} times in {curve.row.study} scaling on "
        f"{counted(point.world_size, noun)}"
        for curve in series for point in curve.points
        if (point.mean_over_median or 1.0) > STALLS
    ]  # fmt: skip
    if not texts:
        return ""
    return (
        f"Single rounds stall, so that the mean step is above the median: {listed(texts)}. "
        "Node-hours follow from the mean."
    )


def describe_precision(chosen: Chosen) -> str:
    """Say in which precision the tables are."""
    found = dict.fromkeys(curve.row.precision for curve in chosen.shown)
    return " ".join(
        f"The tables hold {name}: {PRECISIONS.get(str(name), 'as PyTorch defines it')}."
        for name in found
    )


def describe_time_to_solution(chosen: Chosen, plan: Budget | None) -> str:
    """Say how long the production step, and what is planned, takes."""
    point = chosen.production
    unit = point.rows[0].sample_unit or "samples"
    text = (
        "At the production size an optimizer update takes "
        f"{number(point.step_s, scale=MILLI)} ms in the median and "
        f"{number(point.mean_step_s, scale=MILLI)} ms in the mean; 10\u2076 {unit} take "
        f"{number(time_of_samples_s(point))} s."
    )
    for milestone in plan.milestones if plan else ():
        if milestone.num_steps is not None:
            hours = number(milestone.hours)
            text += f" {milestone.type}: a run of {milestone.num_steps} steps takes {hours} h."
    return text


def describe_scale(chosen: Chosen, noun: str) -> str:
    """Say how large the machine was that was measured."""
    sizes = sorted({point.world_size for point in chosen.points})
    nodes = [point.rows[0].num_nodes for point in chosen.points]
    where = f", on {span_of(nodes)} {'node' if set(nodes) == {1} else 'nodes'}"
    if not all(nodes):
        where = "; on how many nodes is not recorded for every size"
    per_node = chosen.production.rows[0].ranks_per_node
    text = f"Measured from {sizes[0]} to {counted(sizes[-1], noun)} ({listed(sizes)}){where}."
    return f"{text} A node takes {counted(per_node, noun)} of the job." if per_node else text


def describe_intervals(points: Sequence[Point]) -> str:
    """Say what intervals are; empty where no point has one."""
    if not any(point.step_interval or point.efficiency_interval for point in points):
        return ""
    return (
        "Intervals are 95 % Student t on the logarithm of one value a launch, those of ratios "
        "Welch's, which hold the baseline's uncertainty."
    )


def describe_memory(chosen: Chosen, on_cpus: bool) -> str:
    """Say how much memory a rank needs."""
    what = "resident memory of the process" if on_cpus else "memory that PyTorch allocated"
    needed = chosen.production.peak_memory_bytes
    if needed is None:
        return "Memory was not recorded."
    return (
        f"The rank that needs most has a peak of {number(needed / GIGA)} GB at the "
        f"production size ({what}); the tables have it for every size."
    )


def describe_peak(mfu: float) -> str:
    """Say which share of the peak is used."""
    return (
        f"The model's floating-point operations are {percent(mfu)} % of the datasheet's dense peak "
        "of the devices at the production size."
    )


def describe_budget(plan: Budget, known: Outcomes | None) -> list[str]:
    """Say how the node-hours come about, which input is measured and which is planned."""
    measured = [
        f"{milestone.type} on {counted(milestone.world_size or 0, 'rank')} at global batch "
        f"{milestone.global_batch} of the production series"
        for milestone in plan.milestones if milestone.source == "measured"
    ]  # fmt: skip
    source = (
        f"times per step are measured ({listed(measured)})" if measured
        else "all times are the applicant's own"
    )  # fmt: skip
    texts = [
        f"Node-hours are runs x hours of a run x nodes; {source}, the numbers of runs, steps and "
        f"nodes are planned. With {percent(plan.overhead)} % for overhead and "
        f"{percent(plan.failed_share)} % of all node-hours lost to failed jobs, "
        f"{exact(plan.node_hours)} become {exact(plan.with_losses)} node-hours."
    ]
    if plan.charge_factor != 1:
        texts.append(f"At a charge factor of {plan.charge_factor:g} that is {exact(plan.charged)}.")
    if known is not None:
        texts.append(
            f"Jobs of this campaign that did not complete took {percent(known.failed_share)} % of "
            "its node-hours."
        )
    return texts


def describe_waits(known: Outcomes) -> str:
    """Say how long jobs waited."""
    if known.wait_s is None:
        return "How long jobs waited is not known."
    return (
        f"Jobs waited {in_words(known.wait_s[0])} in the median, {in_words(known.wait_s[1])} at "
        "the 90th percentile. A job that did not complete may still hold valid measurements: each "
        "case is on disk when it ends."
    )


def describe_objection(objection: Objection) -> str:
    """Return one objection as a sentence without its full stop."""
    if objection.finding is not None:
        return f"{objection.finding.rule}: {objection.finding.where}: {objection.finding.message}"
    if objection.kind == "cpus":
        return "measured on CPUs, where ranks share cores and memory bandwidth: a functional test"
    if objection.kind == "recorded":
        return "a recorded campaign that ships with Lockstep, not a measurement of the applicant"
    if objection.kind == "no-interval":
        return (
            f"{counted(objection.num_points, 'point')} without an interval, so that nobody knows "
            "how far another launch would differ: measure 3 repeats or more"
        )
    if objection.kind == "example":
        return "the planned runs are the example's that ships with Lockstep, not the applicant's"
    if objection.kind == "left-out":
        return (
            f"{counted(len(objection.launches), 'launch')} may not be pooled with the others of "
            f"{counted(objection.num_points, 'point')}: {listed(objection.launches, MAX_NAMED)}"
        )
    return f"{counted(objection.num_points, 'point')} flagged: {listed(objection.flags, MAX_NAMED)}"


def describe_despite(objections: Sequence[Objection]) -> str:
    """Say at the head of a text what speaks against it."""
    text = "; ".join(describe_objection(objection) for objection in objections[:MAX_NAMED])
    more = f"; and {len(objections) - MAX_NAMED} more" if len(objections) > MAX_NAMED else ""
    return (
        "No proposal evidence. This text was written despite "
        f"{counted(len(objections), 'objection')}: {text}{more}."
    )


Block = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """All that a text is made of.

    Attributes:
        known: What accounting says of the campaign's jobs.
        against: What forbids to hand the results in.
        card: What bounds the step; None where no variants were timed.
    """

    results: Results
    chosen: Chosen
    work: Work
    plan: Budget | None
    known: Outcomes | None
    threshold: float
    figures: Mapping[str, dict[str, Any]]
    against: Sequence[Objection]
    card: Judged | None = None

    @property
    def noun(self) -> str:
        """What a rank computes on."""
        return "rank" if self.results.on_cpus else "GPU"

    @property
    def title_noun(self) -> str:
        """The same as a column begins with it."""
        return "Rank" if self.results.on_cpus else "GPU"

    @property
    def basis(self) -> list[Basis]:
        """What the measured steps read, each kind once."""
        rows = [row for point in self.chosen.points for row in point.rows]
        return list(dict.fromkeys(basis for row in rows if (basis := record.basis_of(row.details))))

    @property
    def said_basis(self) -> str:
        """The same as a sentence."""
        return method.basis(self.basis)


def document(facts: Facts, programme: Path) -> dict[str, Any]:
    """Return the text: a title, what speaks against it, and sections of blocks."""
    form = tomllib.loads(programme.read_text(encoding="utf-8"))
    made = [_section(one, facts) for one in form["sections"]]
    return {
        "title": form["title"],
        "slides": form.get("slides", False),
        "against": describe_despite(facts.against) if facts.against else "",
        "sections": [one for one in made if one["blocks"]],
    }


def _section(form: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    parts = form.get("parts", [])
    blocks = [block for part in parts for block in _part(part, facts)]
    return {
        "heading": form["heading"], "level": form.get("level", 2),
        "annex": form.get("annex", False), "blocks": blocks,
    }  # fmt: skip


def _part(name: str, facts: Facts) -> list[Block]:
    own = facts.work.statements.get(name)
    # A part that only its author can write has a place, and no words of ours.
    made = PARTS[name](facts) if name in PARTS else []
    return made + (_texts(own) if own else [])


def _texts(*sentences: str) -> list[Block]:
    return [{"kind": "text", "text": sentence} for sentence in sentences if sentence]


def source(facts: Facts) -> str:
    """Say where a figure comes from that is saved apart from its text."""
    return f"{_measured_on(facts)}. {facts.said_basis}"


def _measured_on(facts: Facts) -> str:
    launches = facts.results.launches
    when = method.days(facts.results.days) or "on an unknown day"
    return (
        f"Measured on {listed(facts.results.device_names, 4) or formats.DASH}, {when}, in "
        f"{counted(len(launches), 'launch')}"
    )


def _testing(facts: Facts) -> list[Block]:
    found = facts.results.provenance
    software = listed(
        f"{title} {found[name]}".strip() for name, title in SOFTWARE.items() if found.get(name)
    )
    wanted = f"Requested machine: {facts.work.machine}. " if facts.work.machine else ""
    image = found.get("image_sha256")
    held = f"Container image with SHA-256 {image}" if image else "No container image"
    # No record tells the machine of a call from another; the applicant's own words do.
    open_question = "Whether that is the requested machine is for the applicant to say. "
    text = "" if facts.work.statements.get("testing") else open_question
    return _texts(f"{wanted}{_measured_on(facts)}. {text}Software: {software}. {held}.")


SOFTWARE = {
    "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "driver": "driver",
    "python": "Python", "os": "",
}  # fmt: skip


def _scalability(facts: Facts) -> list[Block]:
    tables = [_table(facts, curve) for curve in facts.chosen.shown]
    return [*tables, *_job_size(facts), *_drawn(facts)]


def _main_table(facts: Facts) -> list[Block]:
    size = describe_job_size(facts.chosen, facts.threshold, facts.noun)
    return [_table(facts, facts.chosen.series), *_texts(size)]


def _table(facts: Facts, curve: Series) -> Block:
    caption, note = describe_figure(curve), relative_to(curve, facts.noun)
    return scaling(curve, facts.chosen, facts.title_noun, caption, note)


def _job_size(facts: Facts) -> list[Block]:
    chosen, noun, more = facts.chosen, facts.noun, facts.chosen.num_others
    return _texts(
        describe_production(chosen, noun),
        describe_job_size(chosen, facts.threshold, noun),
        describe_agreement(chosen.agreements, noun) if chosen.agreements else "",
        describe_stalls(chosen.shown, noun),
        f"{counted(more, 'further ladder')} of these results: numbers.json." if more else "",
    )


def _drawn(facts: Facts) -> list[Block]:
    figures = (
        {name: spec.get(name, "") for name in ("id", "title", "note")}
        for spec in facts.figures.values()
    )
    return [{"kind": "figure"} | figure for figure in figures]


def _abstract(facts: Facts) -> list[Block]:
    noun = facts.noun
    return _texts(
        f"{_measured_on(facts)}: data-parallel training of {facts.chosen.series.row.workload}. "
        f"{describe_scale(facts.chosen, noun)} "
        f"{describe_job_size(facts.chosen, facts.threshold, noun)} "
        f"{facts.said_basis}"
    )


def _bottleneck(facts: Facts) -> list[Block]:
    card = facts.card
    return [{"kind": "lines", "title": card.title, "lines": card.lines}] if card else []


def _gantt(facts: Facts) -> list[Block]:
    dated = [run for run in facts.work.runs if run.start_month is not None]
    return [gantt(dated)] if dated else []


def _mechanism(facts: Facts) -> list[Block]:
    version = str(facts.results.provenance.get("lockstep_version", formats.DASH))
    warmup = [launch.facts.get("warmup_rounds") for launch in facts.results.launches]
    planned = bool(facts.results.campaign.get("launches"))
    points = facts.chosen.points
    texts = method.timing(points, version, warmup, planned)
    return _texts(*texts, describe_intervals(points))


def _peak(facts: Facts) -> list[Block]:
    known = [row.mfu for row in facts.chosen.production.rows if row.mfu is not None]
    return _texts(describe_peak(median(known))) if known else []


def _milestones(facts: Facts) -> list[Block]:
    if facts.plan is None:
        return []
    return [
        milestones(facts.plan),
        *_texts(*describe_budget(facts.plan, facts.known)),
    ]


def _unit_costs(facts: Facts) -> list[Block]:
    return [
        unit_costs(curve, facts.chosen, facts.title_noun, describe_figure(curve))
        for curve in facts.chosen.shown
    ]


def _outcomes(facts: Facts) -> list[Block]:
    if facts.known is None:
        return []
    return [outcomes(facts.known), *_texts(describe_waits(facts.known))]


def _parallel(facts: Facts) -> list[Block]:
    backend = facts.results.provenance.get("backend") or formats.DASH
    return _texts(
        "Data parallel training with PyTorch DistributedDataParallel: one process for each "
        "device, each with a replica of the model and its share of the global batch. "
        "Gradients are summed over all ranks by bucketed all-reduce operations that overlap with "
        f"the backward pass (back end {backend})."
    )


def _io(facts: Facts) -> list[Block]:
    known = {basis.times_input for basis in facts.basis}
    text = "may read files: what they read is not recorded"
    if known in ({True}, {False}):
        text = "read their input" if known == {True} else "read and write no files"
    return _texts(f"The measured steps {text}; checkpoints are outside the timed steps.")


def _workflow(facts: Facts) -> list[Block]:
    name = facts.results.campaign.get("name")
    planned = len(facts.results.campaign.get("launches", [])) or len(facts.results.launches)
    resumed = sum(len(launch.facts.get("sessions") or []) > 1 for launch in facts.results.launches)
    return _texts(
        f"Lockstep runs the ladder{f' {name}' if name else ''} as {counted(planned, 'launch')}, "
        "each a process group of one world size. A launch that is killed loses no finished case."
        + (f" Resumed where they ended: {counted(resumed, 'launch')}." if resumed else "")
    )


def _data(facts: Facts) -> list[Block]:
    kept = {"versions": facts.results.provenance, "Slurm's accounting": facts.known}
    beside = listed(name for name, known in kept.items() if known)
    return _texts(
        f"Every rank's time of every round is kept as JSON{f', with {beside}' if beside else ''}; "
        "lockstep bundle makes one archive of the folder, with the checksum of every file."
    )


def _conditions(facts: Facts) -> list[Block]:
    row = facts.chosen.production.rows[0]
    basis = facts.basis[0] if facts.basis else Basis()
    timed = {True: "timed", False: "not timed", None: ""}[basis.times_input]
    known = {"Data": basis.data, "Input": timed, "Optimizer": basis.optimizer}
    rows = [
        ["Model", row.workload], ["Precision", str(row.precision)],
        ["Global batch", str(row.global_batch)],
        *([name, value] for name, value in known.items() if value),
        ["Checkpoints", "none in a timed step"],
    ]  # fmt: skip
    columns = ("Condition", "As measured")
    return [table("Conditions of the measurement", columns, rows, texts=2)]


PARTS: dict[str, Callable[[Facts], list[Block]]] = {
    "testing": _testing,
    "abstract": _abstract,
    "scalability": _scalability,
    "main_table": _main_table,
    "figures": _drawn,
    "bottleneck": _bottleneck,
    "gantt": _gantt,
    "precision": lambda facts: _texts(describe_precision(facts.chosen)),
    "time": lambda facts: _texts(describe_time_to_solution(facts.chosen, facts.plan)),
    "scale": lambda facts: _texts(describe_scale(facts.chosen, facts.noun)),
    "mechanism": _mechanism,
    "basis": lambda facts: _texts(facts.said_basis),
    "memory": lambda facts: _texts(describe_memory(facts.chosen, facts.results.on_cpus)),
    "peak": _peak,
    "milestones": _milestones,
    "unit_costs": _unit_costs,
    "outcomes": _outcomes,
    "parallel": _parallel,
    "io": _io,
    "workflow": _workflow,
    "data": _data,
    "conditions": _conditions,
}
