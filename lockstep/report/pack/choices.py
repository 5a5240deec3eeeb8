"""What a pack is about: its ladders, its production point, and the node-hours it asks for.

    node-hours of a line = runs x repeats x hours of a run x nodes
    hours of a run       = steps x mean time of a step / 3600
    asked for            = sum x (1 + overhead) / (1 - failed share) x charge factor

The failed share is one of all node-hours, those of failed jobs included, hence the quotient.
The mean step counts here, not the median: a stall costs node-hours as well. A step time that nobody
measured on so many nodes is refused, never extrapolated.

The applicant plans in a TOML file of run types. What Slurm's accounting knows of the campaign's
jobs, and what forbids to hand results in as evidence, are read here too.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lockstep import content
from lockstep.core import inputs
from lockstep.core.formats import counted, listed
from lockstep.core.inputs import MAX_RATE, SchemaVersion
from lockstep.core.studies import LADDERS
from lockstep.report.check.checker import Finding, errors
from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.load import recorded
from lockstep.report.load.results import Results, Row
from lockstep.report.page import accounts

Count = Annotated[int, Field(ge=1, le=10**12)]
Amount = Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=MAX_RATE, allow_inf_nan=False)]
Lost = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Month = Annotated[int, Field(ge=1, le=60)]
Text = Annotated[str, Field(max_length=4000)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Run(_Table):
    """One line of the milestones."""

    type: Text = Field(description="purpose of the runs")
    code: Text = Field("", description="code of these runs, if not the file's `code`")
    runs: Count = Field(1, description="number of different runs")
    repeats: Count = Field(1, description="repeats of each run")
    nodes: Count | None = Field(None, description="nodes of a run")
    hours: Amount | None = Field(None, description="hours of a run")
    steps: Count | None = Field(None, description="optimizer updates of a run")
    step_s: Amount | None = Field(
        None, description="seconds per step; by default the mean measured on this number of nodes"
    )
    node_hours: Amount | None = Field(
        None, description=("node-hours of the whole line, if it is not a product")
    )
    start_month: Month | None = Field(None, description="first month of the work, from 1")
    months: Month = Field(1, description="duration in months")

    @model_validator(mode="after")
    def _one_way(self) -> "Run":
        given = [self.hours is not None, self.steps is not None, self.node_hours is not None]
        if sum(given) != 1:
            raise ValueError(f"run {self.type!r}: give one of hours, steps and node_hours")
        if self.node_hours is None and self.nodes is None:
            raise ValueError(f"run {self.type!r}: give the number of nodes")
        if self.step_s is not None and self.steps is None:
            raise ValueError(f"run {self.type!r}: step_s needs steps")
        return self


class Production(_Table):
    """The point that production runs will use."""

    study: Literal["strong", "weak"] = "strong"
    world_size: Count = Field(description="ranks")


class Work(_Table):
    """What is applied for."""

    schema_version: SchemaVersion = 1
    machine: Text = Field("", description="machine applied for")
    code: Text = Field("", description="the code's name")
    production: Production | None = None
    overhead: Share = Field(0.0, description="restarts, set-up and contingency, as a fraction")
    failed_share: Lost = Field(
        0.0, description="node-hours of failed jobs, as a fraction of all, below 1"
    )
    charge_factor: Amount = Field(1.0, description="price that the centre charges per node-hour")
    runs: tuple[Run, ...] = Field(default=(), description="run types")
    statements: dict[str, Text] = Field(
        default_factory=dict,
        description=("your own sentences, by the part of the text to which they are added"),
    )


FOLDER = content.ROOT / "reports" / "pack"
BUILT_IN = {"example": FOLDER / "example.work.toml"}


def read_planned_runs(source: str | None) -> Work:
    """Return what a file plans, or nothing planned without one.

    Raises:
        ValueError: The file cannot be read, or says something that is not allowed.
    """
    return inputs.load(source, Work, BUILT_IN) if source else Work.model_validate({})


def programmes() -> dict[str, Path]:
    """Return the programmes whose headings ship, name -> file."""
    return {
        path.stem: path for path in sorted(FOLDER.glob("*.toml")) if path not in BUILT_IN.values()
    }


MAX_SERIES = 2  # tables that two pages hold; the rest is in the numbers
MAX_NAMED = 6  # launches, or flags, that an objection names


@dataclass(frozen=True)
class Chosen:
    """What the text is about.

    Attributes:
        strong: Series of strong scaling, at most two; that of the production point is one.
        series: That of the production point.
        is_given: Whether the user named the production point; else it follows from the job size.
        largest_strong: The largest point of the first strong series that is shown to reach the
            threshold; None where none is.
        largest_weak: The largest such point of the first weak series beyond it.
        agreements: Steps that both ladders measured, the same work on the same ranks: world_size,
            and ratio, the strong ladder's step time over the weak one's.
    """

    strong: tuple[Series, ...]
    weak: tuple[Series, ...]
    num_others: int
    series: Series
    production: Point
    is_given: bool
    largest_strong: Point | None
    largest_weak: Point | None
    agreements: list[dict[str, Any]]

    @property
    def shown(self) -> list[Series]:
        """The series in the tables."""
        return [*self.strong, *self.weak]

    @property
    def points(self) -> list[Point]:
        """The points in the tables."""
        return [point for curve in self.shown for point in curve.points]


def choose(series: Sequence[Series], wanted: Production | None, threshold: float) -> Chosen:
    """Return what the pack is about.

    Raises:
        ValueError: Neither strong nor weak scaling was measured, or not the production point.
    """
    # The longest first, since that is what was asked; another layout is no ladder of its own.
    ladders = {
        study: sorted(
            (s for s in series
             if s.row.origin == "measured" and s.row.study == study and s.main is None),
            key=lambda curve: -len(curve.points),
        )
        for study in LADDERS
    }  # fmt: skip
    if not any(ladders.values()):
        raise ValueError(
            "these results hold no strong or weak scaling, which a proposal needs; measure the "
            "studies strong and weak"
        )
    named = None
    if wanted:
        points = [(curve, point) for curve in ladders[wanted.study] for point in curve.points]
        named = next((both for both in points if both[1].world_size == wanted.world_size), None)
        if named is None:
            raise ValueError(
                f"the production point, {wanted.study} at {wanted.world_size} ranks, was not "
                f"measured; measured sizes are {sorted({p.world_size for _, p in points})}"
            )
    shown = []
    for own in ladders.values():
        longest, others = own[:MAX_SERIES], own[MAX_SERIES:]
        if named and any(curve is named[0] for curve in others):
            longest = [*longest[:-1], named[0]]
        shown.append(tuple(longest))
    strong, weak = shown
    largest: list[Point | None] = []
    for curves in shown:
        good = [p for p in curves[0].good(threshold) if not p.blocked_by] if curves else []
        largest.append(good[-1] if good else None)
    largest_strong, largest_weak = largest
    if largest_strong and largest_weak and largest_weak.world_size <= largest_strong.world_size:
        largest_weak = None
    if named is None:
        first = (strong or weak)[0]
        production = largest_strong or (largest_weak if not strong else None) or first.base
    else:
        first, production = named
    steps = {_work(p): p.step_s for curve in weak for p in curve.points if p.step_s}
    agreements = {
        p.world_size: p.step_s / steps[_work(p)]
        for curve in strong for p in curve.points if p.step_s and _work(p) in steps
    }  # fmt: skip
    return Chosen(
        strong, weak, sum(map(len, ladders.values())) - len(strong) - len(weak), first, production,
        named is not None, largest_strong, largest_weak,
        [{"world_size": size, "ratio": ratio} for size, ratio in agreements.items()],
    )  # fmt: skip


def _work(point: Point) -> tuple[object, ...]:
    row = point.rows[0]
    return (point.world_size, row.num_nodes, row.workload, row.precision, row.local_batch,
            row.global_batch)  # fmt: skip


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


def plan_node_hours(work: Work, series: Series, production: Point) -> Budget | None:
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
    """Return the mean step time measured on as many nodes, and the point it comes from.

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


def jobs(results: Results) -> dict[str, Any] | None:
    """Return how the campaign's jobs ended; None where accounting says nothing.

    Returns:
        outcomes: state, num_jobs and node_hours of the jobs that ended in each state; node_hours:
        what was allocated to all; failed_share: the share of them in jobs that did not complete;
        wait_s: median and 90th percentile of the queue wait, None where it is not known.

    Raises:
        ValueError: An accounting cannot be read.
    """
    known = [
        account for row in accounts.accounted(results) if (account := row.get("accounting"))
    ]  # fmt: skip
    if not known:
        return None

    def numbers(of: Iterable[dict[str, Any]], name: str) -> list[float]:
        values = (account.get(name) for account in of)
        return [value for value in values if isinstance(value, int | float)]

    outcomes: list[dict[str, Any]] = []
    for state in dict.fromkeys(str(account.get("state")) for account in known):
        own = [account for account in known if str(account.get("state")) == state]
        node_hours = math.fsum(numbers(own, "node_hours"))
        outcomes.append({"state": state, "num_jobs": len(own), "node_hours": node_hours})
    total = math.fsum(each["node_hours"] for each in outcomes)
    lost = math.fsum(each["node_hours"] for each in outcomes if each["state"] != "COMPLETED")
    waits = sorted(numbers(known, "queue_wait_s"))
    # The smallest value that so large a share of the values does not exceed.
    quantiles = [waits[max(math.ceil(q * len(waits)) - 1, 0)] for q in (0.5, 0.9) if waits]
    return {
        "outcomes": outcomes, "node_hours": total, "failed_share": lost / total if total else 0.0,
        "wait_s": quantiles or None,
    }  # fmt: skip


@dataclass(frozen=True)
class Objection:
    """A reason against handing results in.

    Attributes:
        text: A sentence without its full stop.
        facts: What the pack's numbers hold of it beside the kind.
    """

    kind: Literal["check", "flagged", "cpus", "left-out", "no-interval", "recorded", "example"]
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def objections(
    results: Results, chosen: Chosen, findings: Sequence[Finding], left_out: Sequence[Row],
    is_example: bool = False,
) -> Iterator[Objection]:  # fmt: skip
    """Yield all that speaks against handing results in; nothing where they are evidence."""
    if results.on_cpus:
        yield Objection(
            "cpus",
            "measured on CPUs, where ranks share cores and memory bandwidth: a functional test",
        )
    if recorded.KEY in results.campaign:
        yield Objection(
            "recorded",
            "a recorded campaign that ships with Lockstep, not a measurement of the applicant",
        )
    for finding in errors(findings):
        text = f"{finding.rule}: {finding.where}: {finding.message}"
        yield Objection("check", text, finding.record())
    if left_out:
        names = list(dict.fromkeys(row.launch for row in left_out))
        num_points = len({row.point for row in left_out})
        yield Objection(
            "left-out",
            f"{counted(len(names), 'launch')} may not be pooled with the others of "
            f"{counted(num_points, 'point')}: {listed(names, MAX_NAMED)}",
            {"launches": names, "num_points": num_points},
        )
    alone = [p for p in chosen.points if not (p.step_interval or p.efficiency_interval)]
    if alone:
        yield Objection(
            "no-interval",
            f"{counted(len(alone), 'point')} without an interval, so that nobody knows how far "
            "another launch would differ: measure 3 repeats or more",
            {"num_points": len(alone)},
        )
    flagged = [point for point in chosen.points if point.flags]
    if flagged:
        kinds = list(dict.fromkeys(str(flag) for point in flagged for flag in point.flags))
        yield Objection(
            "flagged",
            f"{counted(len(flagged), 'point')} flagged: {listed(kinds, MAX_NAMED)}",
            {"num_points": len(flagged), "flags": kinds},
        )
    if is_example:
        yield Objection(
            "example",
            "the planned runs are the example's that ships with Lockstep, not the applicant's",
        )
