"""The tables of a pack: cells of text, every number from a record that the pack's JSON holds."""

from collections.abc import Sequence
from typing import Any

from lockstep.core import formats
from lockstep.core.formats import number, percent, percent_span, ratio, span
from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.pack.chosen import Chosen
from lockstep.report.pack.node_hours import Budget
from lockstep.report.pack.outcomes import Outcomes
from lockstep.report.pack.planned_runs import Run
from lockstep.report.page.panels import parts
from lockstep.report.page.panels.parts import GIGA, MILLI, allowed, shown

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
            one.type, one.code or formats.DASH, str(one.num_runs), shown(one.num_nodes),
            shown(one.num_steps), number(one.step_s), number(one.hours), exact(one.node_hours),
        ]
        for one in plan.milestones
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
    rows = [[one.state, str(one.num_jobs), number(one.node_hours)] for one in known.outcomes]
    return table("Jobs of this campaign, as Slurm accounts for them",
                 ("State", "Jobs", "Node-hours"), rows, texts=1)  # fmt: skip
