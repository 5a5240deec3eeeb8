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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lockstep import content
from lockstep.core import inputs
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

    type: Text = Field(description="what the runs are for")
    code: Text = Field("", description="the code, where it is not the file's `code`")
    runs: Count = Field(1, description="how many different runs")
    repeats: Count = Field(1, description="how often each of them")
    nodes: Count | None = Field(None, description="nodes of a run")
    hours: Amount | None = Field(None, description="hours of a run")
    steps: Count | None = Field(None, description="optimizer updates of a run")
    step_s: Amount | None = Field(
        None, description="seconds of a step; by default the mean measured on so many nodes"
    )
    node_hours: Amount | None = Field(None, description="of the whole line, where it is no product")
    start_month: Month | None = Field(None, description="first month of the work, from 1")
    months: Month = Field(1, description="how many months it takes")

    @model_validator(mode="after")
    def _one_way(self) -> "Run":
        given = [self.hours is not None, self.steps is not None, self.node_hours is not None]
        if sum(given) != 1:
            raise ValueError(f"run {self.type!r}: give one of hours, steps and node_hours")
        if self.node_hours is None and self.nodes is None:
            raise ValueError(f"run {self.type!r}: say on how many nodes")
        if self.step_s is not None and self.steps is None:
            raise ValueError(f"run {self.type!r}: step_s goes with steps")
        return self


class Production(_Table):
    """The point that production runs will use."""

    study: Literal["strong", "weak"] = "strong"
    world_size: Count = Field(description="ranks")


class Work(_Table):
    """What is applied for."""

    schema_version: SchemaVersion = 1
    machine: Text = Field("", description="the machine that is applied for")
    code: Text = Field("", description="the code's name")
    production: Production | None = None
    overhead: Share = Field(0.0, description="restarts, set-up and contingency, as a fraction")
    failed_share: Lost = Field(
        0.0, description="node-hours of failed jobs, as a fraction of all, below 1"
    )
    charge_factor: Amount = Field(1.0, description="what the centre charges for a node-hour")
    runs: tuple[Run, ...] = Field(default=(), description="run types")
    statements: dict[str, Text] = Field(
        default_factory=dict, description="your own sentences, by the part of the text they join"
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


# Tables that two pages hold; the rest is in the numbers.
MAX_SERIES = 2


@dataclass(frozen=True)
class JobSize:
    """The largest size that strong scaling speaks for, and the largest that weak scaling does.

    Attributes:
        strong: The largest point of the strong series that is shown to reach the threshold.
        weak: The largest such point of the weak series beyond it, or None.
    """

    strong: Point | None
    weak: Point | None


@dataclass(frozen=True)
class Agreement:
    """A step that both ladders measured: the same work on the same ranks.

    Attributes:
        ratio: The strong ladder's step time over the weak one's.
    """

    world_size: int
    ratio: float


@dataclass(frozen=True)
class Chosen:
    """What the text is about.

    Attributes:
        strong: Series of strong scaling, at most two; that of the production point is one.
        is_given: Whether the user named it; else it follows from the job size.
    """

    strong: tuple[Series, ...]
    weak: tuple[Series, ...]
    num_others: int
    series: Series
    production: Point
    is_given: bool
    job_size: JobSize
    agreements: tuple[Agreement, ...]

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
    ladders = {study: _ladders(series, study) for study in LADDERS}
    if not any(ladders.values()):
        raise ValueError(
            "no strong or weak scaling was measured in these results, and a proposal rests on it; "
            "measure the studies strong and weak"
        )
    named = _named(ladders[wanted.study], wanted) if wanted else None
    strong, weak = (_shown(own, named and named[0]) for own in ladders.values())
    size = _job_size(strong, weak, threshold)
    if named is None:
        first = (strong or weak)[0]
        point = size.strong or (size.weak if not strong else None) or first.base
    else:
        first, point = named
    others = sum(map(len, ladders.values())) - len(strong) - len(weak)
    return Chosen(
        strong, weak, others, first, point, wanted is not None, size, _agreements(strong, weak)
    )


def _ladders(series: Sequence[Series], study: str) -> list[Series]:
    measured = [s for s in series if s.row.origin == "measured" and s.row.study == study]
    # The longest first, since that is what was asked; another layout is no ladder of its own.
    return sorted((s for s in measured if s.main is None), key=lambda curve: -len(curve.points))


def _shown(ladders: Sequence[Series], production: Series | None) -> tuple[Series, ...]:
    """Return the longest ladders, the last of them for the one that production is of."""
    longest, others = ladders[:MAX_SERIES], ladders[MAX_SERIES:]
    if any(curve is production for curve in others):
        return (*longest[:-1], *(curve for curve in others if curve is production))
    return tuple(longest)


def _named(ladders: Sequence[Series], wanted: Production) -> tuple[Series, Point]:
    for curve in ladders:
        for point in curve.points:
            if point.world_size == wanted.world_size:
                return curve, point
    known = sorted({point.world_size for one in ladders for point in one.points})
    raise ValueError(
        f"the production point, {wanted.study} at {wanted.world_size} ranks, was not measured; "
        f"measured sizes are {known}"
    )


def _job_size(strong: Sequence[Series], weak: Sequence[Series], threshold: float) -> JobSize:
    first = _largest(strong[0], threshold) if strong else None
    beyond = _largest(weak[0], threshold) if weak else None
    if first and beyond and beyond.world_size <= first.world_size:
        beyond = None
    return JobSize(first, beyond)


def _largest(series: Series, threshold: float) -> Point | None:
    """Return the largest size above the baseline that is good, and no error forbids to say so."""
    good = [point for point in series.good(threshold) if not point.blocked_by]
    return good[-1] if good else None


def _agreements(strong: Sequence[Series], weak: Sequence[Series]) -> tuple[Agreement, ...]:
    """Compare the points that both ladders have: one step, measured twice."""
    steps = {_work(p): p.step_s for curve in weak for p in curve.points if p.step_s}
    found = {
        point.world_size: point.step_s / steps[_work(point)]
        for curve in strong for point in curve.points
        if point.step_s and _work(point) in steps
    }  # fmt: skip
    return tuple(Agreement(size, ratio) for size, ratio in found.items())


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


GOOD = "COMPLETED"


@dataclass(frozen=True)
class Outcome:
    """The jobs that ended in one state."""

    state: str
    num_jobs: int
    node_hours: float


@dataclass(frozen=True)
class Outcomes:
    """All jobs.

    Attributes:
        node_hours: What was allocated to all.
        failed_share: Share of them in jobs that did not complete.
        wait_s: Median and 90th percentile of the queue wait; None where it is not known.
    """

    outcomes: tuple[Outcome, ...]
    node_hours: float
    failed_share: float
    wait_s: tuple[float, float] | None


def outcomes(results: Results) -> Outcomes | None:
    """Return how the jobs ended; None where accounting says nothing.

    Raises:
        ValueError: An accounting cannot be read.
    """
    known = [
        account for row in accounts.accounted(results) if (account := row.get("accounting"))
    ]  # fmt: skip
    if not known:
        return None
    states = dict.fromkeys(str(one.get("state")) for one in known)
    made = tuple(_outcome(state, known) for state in states)
    total = math.fsum(outcome.node_hours for outcome in made)
    lost = math.fsum(outcome.node_hours for outcome in made if outcome.state != GOOD)
    waits = sorted(_numbers(known, "queue_wait_s"))
    return Outcomes(
        made, total, lost / total if total else 0.0,
        (_quantile(waits, 0.5), _quantile(waits, 0.9)) if waits else None,
    )  # fmt: skip


def _outcome(state: str, known: Sequence[dict[str, Any]]) -> Outcome:
    own = [one for one in known if str(one.get("state")) == state]
    return Outcome(state, len(own), math.fsum(_numbers(own, "node_hours")))


def _numbers(known: Iterable[dict[str, Any]], name: str) -> list[float]:
    values = (one.get(name) for one in known)
    return [value for value in values if isinstance(value, int | float)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of the values does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


Kind = Literal["check", "flagged", "cpus", "left-out", "no-interval", "recorded", "example"]


@dataclass(frozen=True)
class Objection:
    """One reason."""

    kind: Kind
    finding: Finding | None = None
    launches: tuple[str, ...] = ()
    num_points: int = 0
    flags: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return it as the pack's numbers hold it."""
        known = {
            "launches": list(self.launches), "num_points": self.num_points,
            "flags": list(self.flags),
        }  # fmt: skip
        facts = {name: value for name, value in known.items() if value}
        return {"kind": self.kind} | facts | (self.finding.record() if self.finding else {})


def objections(
    results: Results, chosen: Chosen, findings: Sequence[Finding], left_out: Sequence[Row],
    is_example: bool = False,
) -> list[Objection]:  # fmt: skip
    """Return all that speaks against handing results in; nothing where they are evidence."""
    found = list(_objections(results, chosen, findings, left_out))
    return [*found, Objection("example")] if is_example else found


def _objections(
    results: Results, chosen: Chosen, findings: Sequence[Finding], left_out: Sequence[Row]
) -> Iterator[Objection]:
    if results.on_cpus:
        yield Objection("cpus")
    if recorded.KEY in results.campaign:
        yield Objection("recorded")
    for finding in errors(findings):
        yield Objection("check", finding=finding)
    if left_out:
        names = tuple(dict.fromkeys(row.launch for row in left_out))
        yield Objection("left-out", launches=names, num_points=len({r.point for r in left_out}))
    alone = [p for p in chosen.points if not (p.step_interval or p.efficiency_interval)]
    if alone:
        yield Objection("no-interval", num_points=len(alone))
    flagged = [point for point in chosen.points if point.flags]
    if flagged:
        kinds = tuple(dict.fromkeys(str(flag) for point in flagged for flag in point.flags))
        yield Objection("flagged", num_points=len(flagged), flags=kinds)
