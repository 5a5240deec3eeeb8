"""Node-hours of what is planned.

    node-hours of a line = runs x repeats x hours of a run x nodes
    hours of a run       = steps x mean time of a step / 3600
    asked for            = sum x (1 + overhead) / (1 - failed share) x charge factor

The failed share is one of all node-hours, those of failed jobs with them, hence the quotient.
The mean step counts here, not the median: a stall costs node-hours as well. A step time that nobody
measured on so many nodes is refused, never extrapolated.
"""

from dataclasses import dataclass
from typing import Literal

from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.pack.planned_runs import Run, Work

Source = Literal["measured", "given", "hours", "lump"]


@dataclass(frozen=True)
class Milestone:
    """One line of the milestones with what it costs.

    Attributes:
        source: Where the time comes from: steps at the measured or at a given time, given hours,
            or given node-hours.
        step_s: Mean time of a step.
        world_size: Ranks on which it was measured.
    """

    type: str
    code: str
    source: Source
    num_runs: int
    num_nodes: int | None
    num_steps: int | None
    step_s: float | None
    hours: float | None
    node_hours: float
    world_size: int | None = None
    case: str | None = None
    global_batch: int | None = None


@dataclass(frozen=True)
class Budget:
    """All lines, and what is asked for.

    Attributes:
        with_losses: With overhead and failed share.
        charged: With the centre's charge factor.
    """

    milestones: tuple[Milestone, ...]
    overhead: float
    failed_share: float
    charge_factor: float
    node_hours: float
    with_losses: float
    charged: float


def budget(work: Work, series: Series, production: Point) -> Budget | None:
    """Return what the planned runs cost; None where none is planned.

    The production point counts before others on as many nodes; all are of its ladder, for a step of
    another is of another model or batch.

    Raises:
        ValueError: A step time was not measured on so many nodes, and none is given.
    """
    if not work.runs:
        return None
    lines = tuple(_milestone(run, work, series, production) for run in work.runs)
    total = sum(line.node_hours for line in lines)
    losses = total * (1 + work.overhead) / (1 - work.failed_share)
    return Budget(
        lines, work.overhead, work.failed_share, work.charge_factor, total, losses,
        losses * work.charge_factor,
    )  # fmt: skip


def _milestone(run: Run, work: Work, series: Series, production: Point) -> Milestone:
    num_runs, code = run.runs * run.repeats, run.code or work.code
    if run.node_hours is not None:
        return Milestone(run.type, code, "lump", num_runs, None, None, None, None, run.node_hours)
    assert run.nodes is not None
    source: Source = "hours" if run.steps is None else "given"
    step_s, hours, point = run.step_s, run.hours, None
    if run.steps is not None:
        if step_s is None:
            source, (step_s, point) = "measured", _measured_step(run, series, production)
        hours = run.steps * step_s / SECONDS_PER_HOUR
    assert hours is not None
    return Milestone(
        run.type, code, source, num_runs, run.nodes, run.steps, step_s, hours,
        num_runs * hours * run.nodes, point.world_size if point else None,
        series.case if point else None, point.rows[0].global_batch if point else None,
    )  # fmt: skip


def _measured_step(run: Run, series: Series, production: Point) -> tuple[float, Point]:
    """Return the mean step on as many nodes, and where it was measured.

    The production point counts first, then the most ranks of its ladder on these nodes.
    """
    points = series.points
    for point in [production, *reversed(points)]:
        if point.rows[0].num_nodes == run.nodes and (step_s := point.mean_step_s):
            return step_s, point
    known = sorted({point.rows[0].num_nodes or 0 for point in points} - {0})
    raise ValueError(
        f"run {run.type!r}: no step was measured on {run.nodes} nodes in the production series "
        f"{series.case}, only on {known}; give step_s, name "
        "another production point, or measure that size"
    )
