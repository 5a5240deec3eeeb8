"""Values that single cases must have on a system, as ReFrame writes them."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from statistics import median

from lockstep.core.formats import TIME_UNITS
from lockstep.report.compute import replicates
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval, log_interval, median_rate
from lockstep.report.gate.targets import Reference
from lockstep.report.gate.verdicts import Goal, Verdict
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
    for one, point in points:
        yield _judge(goal, reference, results, point, name_of(one, point))


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
