"""The targets of a file, each judged at the points that it speaks of.

Values that single cases must have on a system, as ReFrame writes them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from statistics import median

from lockstep.core.formats import TIME_UNITS
from lockstep.core.studies import IMPORTED, LADDERS, OTHER, WITHOUT_COST
from lockstep.report.check.checker import Finding, errors
from lockstep.report.compare.comparison import Comparison
from lockstep.report.compute import alternatives, quantities, replicates
from lockstep.report.compute.scaling import Point, Series, series_of
from lockstep.report.compute.statistics import Interval, log_interval, median_rate, welch
from lockstep.report.gate.targets import Reference, Targets
from lockstep.report.gate.verdicts import MET, MISSED, NOT_SHOWN, Goal, Reason, Verdict
from lockstep.report.load.results import Results, Row


def name_of(series: Series, point: Point) -> str:
    """Return a point's name for a reader."""
    return f"{series.name} at {point.world_size}"


def judge_reference(
    reference: Reference, results: Results, series: Sequence[Series]
) -> Iterator[Verdict]:
    """Yield the verdict of every point that a reference names, or that there is no such point."""
    goal = Goal(
        "reference",
        None if reference.lower is None else reference.value * (1 + reference.lower),
        None if reference.upper is None else reference.value * (1 + reference.upper),
        reference.unit,
    )
    points = [
        (one, point)
        for one in series
        if reference.case in (one.case, one.label, one.name)
        for point in one.points
        if point.world_size == reference.world_size
    ]
    if not points:
        known = [name_of(one, point) for one in series for point in one.points] or ["none"]
        yield goal.unshown(
            "no-case", case=reference.case, size=reference.world_size, known=known
        )  # fmt: skip
    for curve, point in points:
        yield _judge(goal, reference, results, point, name_of(curve, point))


def _judge(goal: Goal, reference: Reference, results: Results, point: Point, name: str) -> Verdict:
    systems = _systems(point.rows, results)
    if not any(fnmatchcase(system, reference.system) for system in systems):
        return goal.unshown("other-system", name=name, systems=systems, wanted=reference.system)
    measured = _in_unit(point, reference.unit)
    if measured is None:
        return goal.unshown("no-unit", name=name, unit=reference.unit)
    return goal.judge([point], name, *measured)


def _systems(rows: Sequence[Row], results: Results) -> list[str]:
    """Return the names by which a point's system may be called."""
    launches = {row.launch for row in rows}
    names = [str(row.details["system"]) for row in rows if row.details.get("system")]
    for launch in results.launches:
        if launch.name in launches:
            provenance = launch.provenance
            slurm = provenance.get("slurm")
            names += [str(rank.get("host")) for rank in launch.ranks]
            names += map(str, provenance.get("device_names") or [])
            names += [str(slurm.get("SLURM_JOB_PARTITION"))] if isinstance(slurm, dict) else []
    return list(dict.fromkeys(names)) or ["an unknown system"]


def _in_unit(point: Point, unit: str) -> tuple[float, Interval | None] | None:
    """Return a point's median and its interval; None where a launch has no value in the unit."""
    if unit in TIME_UNITS:
        times = [row.step_s if row.step_s is not None else row.time_s for row in point.rows]
        values = [time / TIME_UNITS[unit] for time in times if time is not None]
    else:
        name = point.rows[0].sample_unit
        ranks = {f"{name}/s": 1, f"{name}/s per rank": point.world_size}
        rates = [row.throughput_samples_per_s if unit in ranks else None for row in point.rows]
        values = [rate / ranks[unit] for rate in rates if rate is not None]
    if len(values) < point.num_launches:
        return None
    middle = median(values) if unit in TIME_UNITS else median_rate(values)
    return middle, log_interval(replicates.independent(point.rows, values))


AT_LEAST = ("mfu", "validation_accuracy", "gpu_utilisation")
Value = Callable[[Point], tuple[float, Interval | None]]


def verdicts(
    targets: Targets,
    results: Results,
    against: Comparison | None = None,
    findings: Sequence[Finding] = (),
) -> list[Verdict]:
    """Return what can be said of each target at each point that it speaks of."""
    series = series_of(row for row in results.rows if not row.has_smaller_batch)
    return [
        *_efficiencies(targets, series),
        *_increases(targets, series),
        *_gains(targets, against),
        *_quantities(targets, series),
        *_nodes(targets, results),
        *_clean_runs(targets, results, series, findings),
        *(
            verdict
            for ref in targets.reference
            for verdict in judge_reference(ref, results, series)
        ),
    ]


def _efficiencies(targets: Targets, series: Sequence[Series]) -> Iterator[Verdict]:
    ladders = [curve for curve in series if curve.row.study in (*LADDERS, IMPORTED)]
    for size, least in (targets.strong_efficiency or {}).items():
        goal = Goal(f"strong_efficiency at {size}", least=least)
        strong = _scaled(series, "strong")
        if series and not strong:
            kinds = sorted({curve.row.scaling or "unnamed" for curve in series})
            yield goal.unshown("no-scaling", kinds=kinds)
        else:
            yield from _at_size(goal, strong, int(size), _efficiency)
    for size, least in (targets.parallel_efficiency or {}).items():
        goal = Goal(f"parallel_efficiency at {size}", least=least)
        yield from _at_size(goal, ladders, int(size), _efficiency)
    for size, (low, high) in (targets.speedup or {}).items():
        goal = Goal(f"speedup at {size}", low, high, "x")
        yield from _at_size(goal, ladders, int(size), _speedup)


def _scaled(series: Sequence[Series], scaling: str) -> list[Series]:
    """Return the series of a scaling: its own study's, and tables that say so."""
    studies = (scaling, IMPORTED, OTHER)
    return [
        curve for curve in series if curve.row.scaling == scaling and curve.row.study in studies
    ]


def _efficiency(point: Point) -> tuple[float, Interval | None]:
    return point.parallel_efficiency, point.efficiency_interval


def _speedup(point: Point) -> tuple[float, Interval | None]:
    return point.speedup, point.speedup_interval


def _increase(point: Point) -> tuple[float, Interval | None]:
    """Return how much longer a weak step takes: 1 / efficiency - 1."""
    efficiency, ends = _efficiency(point)
    return 1 / efficiency - 1, (1 / ends[1] - 1, 1 / ends[0] - 1) if ends else None


def _at_size(goal: Goal, series: Sequence[Series], size: int, value: Value) -> Iterator[Verdict]:
    """Judge a ratio to the baseline in every series that was measured at a world size."""
    points = [(one, p) for one in series for p in one.points if p.world_size == size]
    if not points:
        yield goal.unshown("no-size", size=size)
    for curve, point in points:
        if point is curve.base:
            yield goal.unshown("is-baseline", label=curve.label)
        else:
            yield _ratio(goal, curve, point, value)


def _ratio(goal: Goal, series: Series, point: Point, value: Value) -> Verdict:
    where = f"{name_of(series, point)} over {series.baseline}"
    ratio, interval = value(point)
    spread = welch(point.units, series.base.units)
    if interval is None and spread and spread.error:
        rows = [*point.rows, *series.base.rows]
        return goal.counted(
            NOT_SHOWN, where=where, case=series.case, world_size=point.world_size,
            reasons=(Reason("no-interval"),), rows=rows,
        )  # fmt: skip
    verdict = goal.judge([point, series.base], where, ratio, interval)
    ends = point.efficiency_interval
    return verdict.unshown(Reason("above-linear")) if ends and ends[0] > 1 else verdict


def _increases(targets: Targets, series: Sequence[Series]) -> Iterator[Verdict]:
    if targets.weak_time_increase is None:
        return
    goal = Goal("weak_time_increase", most=targets.weak_time_increase)
    weak = _scaled(series, "weak")
    points = [(one, p) for one in weak for p in one.points if p is not one.base]
    if not points:
        yield goal.unshown("no-weak")
    for curve, point in points:
        yield _ratio(goal, curve, point, _increase)


def _gains(targets: Targets, against: Comparison | None) -> Iterator[Verdict]:
    """Judge the gain over a base, or the loss that is allowed; only an interval can show one."""
    if targets.throughput_gain is None:
        return
    goal = Goal("throughput_gain", least=targets.throughput_gain)
    if against is None:
        yield goal.unshown("no-base")
        return
    pairs = [pair for pair in against.points if pair[0].b[0].study not in WITHOUT_COST]
    if not pairs:
        yield goal.unshown("no-training")
    for pair, judged in pairs:
        flags = [flag for _, flag in pair.flags]
        sides = [
            Point(pair.world_size, 0.0, rates, rows, flags=flags)
            for rates, rows in zip(reversed(pair.rates), (pair.b, pair.a), strict=True)
        ]
        low, high = judged.interval or (None, None)
        ends = None if low is None or high is None else (low - 1, high - 1)
        where = f"{pair.label} at {pair.world_size}"
        verdict = goal.judge(sides, where, judged.ratio - 1, ends)
        yield verdict if ends else replace(verdict, verdict=NOT_SHOWN)


def _quantities(targets: Targets, series: Sequence[Series]) -> Iterator[Verdict]:
    for name, what in quantities.NAMES.items():
        limit = getattr(targets, name)
        if limit is None:
            continue
        goal = Goal(name, least=limit) if name in AT_LEAST else Goal(name, most=limit)
        points = [(one, p) for one in series for p in one.points if quantities.values(p.rows, name)]
        if not points:
            yield goal.unshown("no-quantity", what=what)
        for curve, point in points:
            value = quantities.centre(quantities.values(point.rows, name), name)
            interval = quantities.interval(point.rows, name)
            verdict = goal.judge([point], name_of(curve, point), value, interval)
            yield replace(verdict, apart=_apart(points)) if curve.row.training else verdict


def _apart(points: alternatives.Cases) -> tuple[str, ...]:
    """Return in what training runs differ, so that they are judged apart and never averaged."""
    trained = [(curve, point) for curve, point in points if curve.row.training]
    sizes = {point.world_size for _, point in trained}
    layouts = {curve.layout for curve, _ in trained}
    return (
        *alternatives.varied(trained), *["world_size"] * (len(sizes) > 1),
        *["layout"] * (len(layouts) > 1),
    )  # fmt: skip


def _nodes(targets: Targets, results: Results) -> Iterator[Verdict]:
    """Judge the number of nodes; what was expected rather than measured was on no node."""
    if targets.num_nodes is None:
        return
    goal = Goal("num_nodes", least=targets.num_nodes, unit="nodes")
    real = [row for row in results.rows if row.origin != "target"]
    nodes = max((row.num_nodes or 0 for row in real), default=0)
    if not nodes:
        yield goal.unshown("expected" if results.rows and not real else "no-nodes")
        return
    verdict = MET if nodes >= targets.num_nodes else MISSED
    widest = [row for row in real if row.num_nodes == nodes]
    yield goal.counted(verdict, where="all results", value=nodes, rows=widest)


def _clean_runs(
    targets: Targets, results: Results, series: Sequence[Series], findings: Sequence[Finding]
) -> Iterator[Verdict]:
    """Judge that there is no flag and no error of the check; what was expected is never clean."""
    if not targets.clean_runs:
        return
    flags = dict.fromkeys(
        flag for curve in series for point in curve.points for flag in point.flags
    )
    problems = [
        *map(str, flags),
        *(f"{finding.rule}: {finding.where}" for finding in errors(findings)),
    ]
    reasons = (Reason("problems", {"problems": problems}),) if problems else ()
    verdict = MISSED if problems else MET
    if results.rows and all(row.origin == "target" for row in results.rows):
        verdict, reasons = NOT_SHOWN, (Reason("expected"),)
    yield Goal("clean_runs", most=0, unit="problems").counted(
        verdict, where="all results", value=len(problems), reasons=reasons
    )
