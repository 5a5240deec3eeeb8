"""The ladders of a pack, its production point, and the node-hours it asks for.

    node-hours of a line = runs x repeats x hours of a run x nodes
    hours of a run       = steps x mean time of a step / 3600
    requested            = sum x (1 + overhead) / (1 - failed share) x charge factor

The failed share is a fraction of all node-hours, those of failed jobs included, hence the quotient.
The step is the mean, not the median, since a stall costs node-hours as well. A step time that was
not measured on that number of nodes is refused, never extrapolated.
"""

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lockstep import content
from lockstep.core import inputs
from lockstep.core.formats import counted, listed
from lockstep.core.inputs import MAX_RATE, SchemaVersion
from lockstep.core.studies import LADDERS, WorkScaling
from lockstep.report.check import checker
from lockstep.report.check.checker import errors
from lockstep.report.check.evidence import FLAGGED, Finding
from lockstep.report.compute.evaluation import Evaluation
from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.compute.statistics import ratio_interval
from lockstep.report.load import recorded
from lockstep.report.load.results import Results
from lockstep.report.page import accounts
from lockstep.report.predict import predict_record, prediction

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
    code: Text = Field(
        "", description="name of the code of these runs; by default the key `code` of the file"
    )
    runs: Count = Field(1, description="number of different runs")
    repeats: Count = Field(1, description="repeats of each run")
    nodes: Count | None = Field(None, description="number of nodes of a run")
    hours: Amount | None = Field(None, description="hours that a run takes")
    steps: Count | None = Field(None, description="optimizer updates of a run")
    step_s: Amount | None = Field(
        None, description="seconds per step; by default the mean measured on this number of nodes"
    )
    predicted: bool = Field(
        False, description="predict the time of a step on this number of nodes, not measured"
    )
    node_hours: Amount | None = Field(
        None, description="node-hours of all these runs, in place of hours or steps"
    )
    start_month: Month | None = Field(
        None, description="month in which the work begins, counted from 1"
    )
    months: Month = Field(1, description="duration in months")

    @model_validator(mode="after")
    def _one_way(self) -> "Run":
        if [self.hours, self.steps, self.node_hours].count(None) != 2:
            raise ValueError(f"run {self.type!r}: give exactly one of hours, steps and node_hours")
        if self.node_hours is None and self.nodes is None:
            raise ValueError(f"run {self.type!r}: set nodes to the number of nodes of a run")
        if self.step_s is not None and self.steps is None:
            raise ValueError(f"run {self.type!r}: step_s needs steps")
        if self.predicted and (self.steps is None or self.step_s is not None):
            raise ValueError(f"run {self.type!r}: predicted needs steps, and no step_s")
        return self


class Production(_Table):
    """The point that production runs will use."""

    study: WorkScaling = "strong"
    world_size: Count = Field(description="ranks")


class Work(_Table):
    """The application: machine, code and planned runs."""

    schema_version: SchemaVersion = 1
    machine: Text = Field("", description="machine applied for")
    code: Text = Field("", description="the code's name")
    production: Production | None = None
    overhead: Share = Field(
        0.0,
        description="node-hours for restarts, set-up and contingency, divided by the node-hours of "
        "the runs",
    )
    failed_share: Lost = Field(
        0.0, description="node-hours of failed jobs, as a fraction of all node-hours"
    )
    charge_factor: Amount = Field(1.0, description="price that the centre charges per node-hour")
    runs: tuple[Run, ...] = Field(default=(), description="run types")
    statements: dict[str, Text] = Field(
        default_factory=dict, description="your own text for parts of the proposal"
    )


FOLDER = content.ROOT / "reports" / "pack"
BUILT_IN = {"example": FOLDER / "example.work.toml"}


def read_planned_runs(source: str | None) -> Work:
    """Return the runs that a file plans; without a file, no runs.

    Raises:
        ValueError: The file cannot be read, or has a value that is not allowed.
    """
    return inputs.load(source, Work, BUILT_IN) if source else Work.model_validate({})


def read_form(name: str) -> dict[str, Any]:
    """Return the headings of a programme, with the parts and figures under each."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def parts(form: str) -> list[str]:
    """Return the parts of a form, which are its keys of `[statements]`."""
    return [part for section in read_form(form)["sections"] for part in section.get("parts", [])]


def unused_statements(work: Work, source: str, programme: str, forms: Sequence[str]) -> list[str]:
    """Return the keys of `[statements]` that only other forms have.

    Raises:
        ValueError: No form has a key.
    """
    known = list(dict.fromkeys(part for form in forms for part in parts(form)))
    if wrong := next((key for key in work.statements if key not in known), None):
        known_keys = ", ".join(known)
        raise ValueError(
            f"{source}: unknown key 'statements.{wrong}'; known keys of [statements]: {known_keys}"
        )
    return [key for key in work.statements if key not in parts(programme)]


MAX_SERIES = 2  # tables that two pages hold; numbers.json has the others
MAX_NAMED = 6  # launches, or flags, that an objection names


@dataclass(frozen=True)
class Chosen:
    """The series and the production point that the text is about.

    Attributes:
        shown: Series in the tables, at most two of each ladder, including the production point's.
        series: The series of the production point.
        is_given: Whether the user named the production point; else it follows from the job size.
        largest_strong: The largest point of the first strong series that is shown to reach the
            threshold; None without one.
        largest_weak: The largest such point of the first weak series beyond it.
        agreements: Steps that both ladders measured, the same work on the same ranks, with times
            that are shown to differ: world_size, ratio, the strong ladder's step time over the weak
            one's, and the ratio's interval, low and high.
    """

    shown: list[Series]
    num_others: int
    series: Series
    production: Point
    is_given: bool
    largest_strong: Point | None
    largest_weak: Point | None
    agreements: list[dict[str, Any]]

    @property
    def points(self) -> list[Point]:
        """The points in the tables."""
        return [point for curve in self.shown for point in curve.points]

    @property
    def cited(self) -> list[Point]:
        """The production point and its baseline."""
        return [self.production, self.series.base]


def choose(series: Sequence[Series], wanted: Production | None, threshold: float) -> Chosen:
    """Return the series and the production point of the pack.

    Raises:
        ValueError: Neither strong nor weak scaling was measured, or the production point was not.
    """
    # The longest series first; a series of another layout is no ladder of its own.
    own = [s for s in series if s.row.origin == "measured" and s.main is None]
    own.sort(key=lambda curve: -len(curve.points))
    ladders = {study: [s for s in own if s.row.study == study] for study in LADDERS}
    if not any(ladders.values()):
        raise ValueError(
            "these results hold neither strong nor weak scaling, which a proposal needs; measure "
            "the studies strong and weak"
        )
    named = None
    if wanted:
        points = [(curve, point) for curve in ladders[wanted.study] for point in curve.points]
        named = next((both for both in points if both[1].world_size == wanted.world_size), None)
        if named is None:
            sizes = sorted({p.world_size for _, p in points})
            raise ValueError(
                f"the production point, {wanted.study} at {wanted.world_size} ranks, was not "
                f"measured; choose one of the measured sizes {sizes}"
            )
    for ladder in ladders.values():
        if named and any(curve is named[0] for curve in ladder[MAX_SERIES:]):
            ladder[MAX_SERIES - 1] = named[0]
    strong, weak = (ladder[:MAX_SERIES] for ladder in ladders.values())

    def largest_good(curves: Sequence[Series]) -> Point | None:
        good = curves[0].good(threshold) if curves else []
        return next((point for point in reversed(good) if not point.blocked_by), None)

    largest_strong, largest_weak = largest_good(strong), largest_good(weak)
    if largest_strong and largest_weak and largest_weak.world_size <= largest_strong.world_size:
        largest_weak = None
    curve = (strong or weak)[0]
    production = (largest_strong if strong else largest_weak) or curve.base
    if named:
        curve, production = named
    steps = {_work(p): p for curve in weak for p in curve.points if p.step_s}
    pairs = [(p, steps[_work(p)]) for curve in strong for p in curve.points if _work(p) in steps]
    agreements = [
        {"world_size": p.world_size, "ratio": p.step_s / other.step_s, "low": ends[0],
         "high": ends[1]}
        for p, other in pairs if p.step_s and other.step_s
        if (ends := ratio_interval(other.units, p.units)) and (ends[0] > 1 or ends[1] < 1)
    ]  # fmt: skip
    shown = [*strong, *weak]
    return Chosen(
        shown, sum(s.row.study in LADDERS for s in own) - len(shown), curve, production,
        named is not None, largest_strong, largest_weak,
        agreements,
    )  # fmt: skip


def _work(point: Point) -> tuple[object, ...]:
    row = point.rows[0]
    return (point.world_size, row.num_nodes, row.workload, row.precision, row.local_batch,
            row.global_batch)  # fmt: skip


def plan_node_hours(
    work: Work, series: Series, production: Point, findings: Sequence[Finding] = ()
) -> dict[str, Any] | None:
    """Return the milestones and their node-hours as planned, with losses, and as charged.

    None if no run is planned. Step times are from the production point's ladder; others have
    another model or batch.

    Raises:
        ValueError: A step time was not measured on the number of nodes, and is neither given nor
            predicted, or its prediction is refused.
    """
    if not work.runs:
        return None
    milestones = [_milestone(run, work, series, production, findings) for run in work.runs]
    total = sum(line["node_hours"] for line in milestones)
    losses = total * (1 + work.overhead) / (1 - work.failed_share)
    return {
        "milestones": milestones, "overhead": work.overhead, "failed_share": work.failed_share,
        "charge_factor": work.charge_factor, "node_hours": total, "with_losses": losses,
        "charged": losses * work.charge_factor,
    }  # fmt: skip


def _milestone(
    run: Run, work: Work, series: Series, production: Point, findings: Sequence[Finding]
) -> dict[str, Any]:
    """Return a line of the milestones; its `source` says where its time comes from.

    That is from steps at the `measured`, a `predicted` or a `given` time, from `hours`, or from a
    `lump` of node-hours. The efficiency is that of the point where the step was measured.
    A prediction is of the median step; its mean follows from the production point's.
    """
    num_runs, num_nodes, node_hours = run.runs * run.repeats, run.nodes, run.node_hours
    source = "hours" if run.steps is None else "given"
    step_s, hours, point, record = run.step_s, run.hours, None, None
    if run.steps is not None:
        if run.predicted:
            source, record = "predicted", _predict(run, series, findings)
            step_s = record["step_s"] * (production.mean_over_median or 1.0)
        elif step_s is None:
            source, (step_s, point) = "measured", _measured_step(run, series, production)
        assert step_s is not None
        hours = run.steps * step_s / SECONDS_PER_HOUR
    if node_hours is None:
        assert hours is not None
        assert num_nodes is not None
        node_hours = num_runs * hours * num_nodes
    else:
        source, num_nodes = "lump", None
    return {
        "type": run.type, "code": run.code or work.code, "source": source, "num_runs": num_runs,
        "num_nodes": num_nodes, "num_steps": run.steps, "step_s": step_s, "hours": hours,
        "node_hours": node_hours,
        "world_size": point.world_size if point else None,
        "case": series.case if point else None,
        "global_batch": point.rows[0].global_batch if point else None,
        "efficiency": point.parallel_efficiency if point else None,
        "prediction": record,
    }  # fmt: skip


def _predict(run: Run, series: Series, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the prediction of the production series on the run's nodes, all their ranks in use."""
    ranks_per_node = [point.rows[0].ranks_per_node for point in series.points]
    assert run.nodes is not None
    if not all(ranks_per_node):
        raise ValueError(f"run {run.type!r}: the ranks per node are not recorded; set step_s")
    at = run.nodes * max(filter(None, ranks_per_node))
    if any(p.world_size == at and p.rows[0].num_nodes == run.nodes for p in series.points):
        raise ValueError(f"run {run.type!r}: {at} ranks were measured; remove predicted")
    predicted = prediction.predict(prediction.ladder_of(series, {}, findings), at)
    if predicted.refusal:
        raise ValueError(
            f"run {run.type!r}: no step is predicted on {at} ranks: {predicted.refusal.text}; set "
            "step_s, or measure this size"
        )
    return predict_record.prediction_record(series, predicted)


def _measured_step(run: Run, series: Series, production: Point) -> tuple[float, Point]:
    """Return the mean step time on the run's nodes, and the point that it was measured at."""
    points = series.points
    for point in [production, *reversed(points)]:
        if point.rows[0].num_nodes == run.nodes and (step_s := point.mean_step_s):
            return step_s, point
    known = sorted({point.rows[0].num_nodes or 0 for point in points} - {0})
    raise ValueError(
        f"run {run.type!r}: the production series {series.case} was measured on {known} nodes, but "
        f"not on {run.nodes}; set predicted = true, step_s or another production point in the file "
        "of --work, or measure this number of nodes"
    )


def jobs(results: Results) -> dict[str, Any] | None:
    """Return how the campaign's jobs ended; None without an accounting of jobs.

    Returns:
        outcomes: num_jobs and node_hours of the jobs that ended in each state; node_hours: of all
        jobs; failed_share: the share of them in jobs that did not complete; wait_s: median and 90th
        percentile of the queue wait, None where it is not known.

    Raises:
        ValueError: An accounting file cannot be read.
    """
    states: dict[str, list[accounts.Row]] = {}
    for row in accounts.read_accounts(results):
        if account := accounts.account(row):
            states.setdefault(str(account.get("state")), []).append(row)
    if not states:
        return None
    outcomes: list[dict[str, Any]] = [
        {"state": state, "num_jobs": len(own),
         "node_hours": math.fsum(accounts.values(own, "node_hours"))}
        for state, own in states.items()
    ]  # fmt: skip
    total = math.fsum(each["node_hours"] for each in outcomes)
    lost = math.fsum(each["node_hours"] for each in outcomes if each["state"] != "COMPLETED")
    waits = sorted(accounts.values([row for own in states.values() for row in own], "queue_wait_s"))
    # The smallest value that is at least as large as a share q of all values.
    quantiles = [waits[max(math.ceil(q * len(waits)) - 1, 0)] for q in (0.5, 0.9) if waits]
    return {
        "outcomes": outcomes, "node_hours": total, "failed_share": lost / total if total else 0.0,
        "wait_s": quantiles or None,
    }  # fmt: skip


def warnings(findings: Sequence[Finding], chosen: Chosen) -> list[Finding]:
    """Return the warnings about points of the tables; flags have an objection of their own."""
    own = [each for each in findings if each.level == "warning" and each.rule != FLAGGED]
    return checker.touching(own, (row for point in chosen.points for row in point.rows))


@dataclass(frozen=True)
class Objection:
    """A reason not to submit results, with its fields in the pack's numbers."""

    kind: Literal[
        "check", "doubted", "flagged", "cpus", "left-out", "no-interval", "recorded", "example"
    ]
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


def objections(evaluation: Evaluation, chosen: Chosen, is_example: bool) -> Iterator[Objection]:
    """Yield each reason not to submit the results."""
    results = evaluation.results
    if results.on_cpus:
        text = (
            "the results are from CPUs, where ranks share cores and memory bandwidth, so they "
            "only show that the program works"
        )
        yield Objection("cpus", text)
    if recorded.KEY in results.campaign:
        text = (
            "the results are a recorded campaign that ships with Lockstep, not the applicant's own"
        )
        yield Objection("recorded", text)
    for finding in errors(evaluation.findings):
        text = f"{finding.rule}: {finding.where}: {finding.message}"
        yield Objection("check", text, finding.record())
    warned = warnings(evaluation.findings, chosen)
    cited = [row for point in chosen.cited for row in point.rows]
    for finding in checker.touching(checker.find_doubting(warned), cited):
        text = f"{finding.rule}: {finding.where}: {finding.message}"
        yield Objection("doubted", text, finding.record())
    if left_out := evaluation.left_out:
        names = list(dict.fromkeys(row.launch for row in left_out))
        num_points = len({row.point for row in left_out})
        launches, of_points = counted(len(names), "launch"), counted(num_points, "point")
        text = (
            f"{launches} cannot be pooled with the other launches of {of_points}: "
            f"{listed(names, MAX_NAMED)}"
        )
        yield Objection("left-out", text, {"launches": names, "num_points": num_points})
    if alone := [p for p in chosen.points if not (p.step_interval or p.efficiency_interval)]:
        has = "has" if len(alone) == 1 else "have"
        points = counted(len(alone), "point")
        text = (
            f"{points} {has} no interval, so nobody knows how much another launch would differ; "
            "measure at least 3 repeats"
        )
        yield Objection("no-interval", text, {"num_points": len(alone)})
    if flagged := [point for point in chosen.points if point.flags]:
        kinds = list(dict.fromkeys(str(flag) for point in flagged for flag in point.flags))
        text = f"{counted(len(flagged), 'point')} flagged: {listed(kinds, MAX_NAMED)}"
        yield Objection("flagged", text, {"num_points": len(flagged), "flags": kinds})
    if is_example:
        text = "the planned runs are those of Lockstep's example, not the applicant's"
        yield Objection("example", text)
