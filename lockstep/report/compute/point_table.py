"""One flat record per point, as `--csv`, `--json` and the page's data give it.

`lockstep.report` says what each column means.
"""

from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import Any

from lockstep.report.compute import learning
from lockstep.report.compute.lost_time import attribution, quantities, step_phases
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval
from lockstep.report.load.results import Row
from lockstep.vocabulary.records import flags


@dataclass(kw_only=True)
class PointRecord:
    """A point's columns, in the order in which they are printed."""

    series: str
    case: str
    origin: str
    study: str
    workload: str
    scaling: str | None
    precision: str | None
    local_batch: int | None
    global_batch: int | None
    world_size: int
    num_nodes: int | None
    ranks_per_node: int | None
    layout: str
    num_launches: int
    num_jobs: int | None
    interval_over: str | None
    rounds: int
    step_s: float | None
    step_s_low: float | None
    step_s_high: float | None
    min_step_s: float | None
    max_step_s: float | None
    mean_step_s: float | None
    stddev_step_s: float | None
    time_s: float | None
    sample_unit: str
    samples_per_step: int | None
    throughput_samples_per_s: float | None
    throughput_samples_per_s_low: float | None
    throughput_samples_per_s_high: float | None
    baseline_world_size: int | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    parallel_efficiency: float | None
    parallel_efficiency_low: float | None
    parallel_efficiency_high: float | None
    time_ratio: float | None
    device_hours: float | None
    device_hours_per: str | None
    cost: float | None
    extra_device_hours: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    peak_reserved_bytes: int | None
    joules_per_sample: float | None
    data_s: float | None
    forward_s: float | None
    backward_s: float | None
    optimizer_s: float | None
    exposed_communication_s: float | None
    exposed_communication_s_low: float | None
    exposed_communication_s_high: float | None
    all_reduce_s: float | None
    all_reduce_s_low: float | None
    all_reduce_s_high: float | None
    overlap: float | None
    overlap_low: float | None
    overlap_high: float | None
    first_reduce_s: float | None
    num_seeds: int | None = None
    epoch_s: float | None = None
    epoch_s_low: float | None = None
    epoch_s_high: float | None = None
    validation_accuracy: float | None = None
    validation_accuracy_low: float | None = None
    validation_accuracy_high: float | None = None
    best_accuracy: float | None = None
    best_accuracy_low: float | None = None
    best_accuracy_high: float | None = None
    target_accuracy: float | None = None
    num_reached: int | None = None
    time_to_target_s: float | None = None
    time_to_target_s_low: float | None = None
    time_to_target_s_high: float | None = None
    flags: list[dict[str, Any]]
    num_far_out: int | None
    blocked_by: list[str]
    details: dict[str, list[Any]]


def table(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Return the record of each point of each series."""
    every = list(series)
    targets = learning.targets(every)
    return [
        vars(_record(one, point, targets.get(learning.learns(one))))
        for one in every
        for point in one.points
    ]


def _record(series: Series, point: Point, target: float | None) -> PointRecord:
    row = point.rows[0]
    far_out = _known(point, "num_far_out")
    return PointRecord(
        series=series.label,
        case=series.case,
        origin=row.origin,
        study=row.study,
        workload=row.workload,
        scaling=row.scaling,
        precision=row.precision,
        local_batch=row.local_batch,
        global_batch=row.global_batch,
        world_size=point.world_size,
        num_nodes=row.num_nodes,
        ranks_per_node=row.ranks_per_node,
        layout=series.layout,
        num_launches=point.num_launches,
        num_jobs=point.num_jobs,
        interval_over=_interval_over(point),
        rounds=sum(r.rounds or 0 for r in point.rows),
        time_s=point.time_s,
        sample_unit=row.sample_unit,
        samples_per_step=row.samples_per_step,
        time_ratio=point.time_ratio,
        device_hours=point.device_hours,
        device_hours_per=point.device_hours_per,
        cost=point.cost,
        extra_device_hours=point.extra_device_hours,
        flags=flags.to_dicts(point.flags),
        num_far_out=sum(far_out) if far_out else None,
        blocked_by=point.blocked_by,
        details=_details(point.rows),
        **_bounds("step_s", point.step_s, point.step_interval),
        **point.pooled,
        **_beside_its_time(point),
        **_throughput(point),
        **_ratios(series, point),
        **_learned(point, target),
    )


def _known(point: Point, name: str) -> list[Any]:
    """Return a field of the point's rows, where it is known."""
    values = [getattr(row, name) for row in point.rows]
    return [value for value in values if value is not None]


def _beside_its_time(point: Point) -> dict[str, Any]:
    return _of_devices(point) | step_phases.columns(point) | _communication(point)


def _of_devices(point: Point) -> dict[str, Any]:
    used = _known(point, "mfu")
    energy = [one for row in point.rows if (one := quantities.joules_per_sample(row))]
    return {
        "mfu": median(used) if used else None,
        "peak_memory_bytes": point.peak_memory_bytes,
        "peak_reserved_bytes": point.peak_reserved_bytes,
        "joules_per_sample": median(energy) if energy else None,
    }


def _communication(point: Point) -> dict[str, Any]:
    """Return what a step waits for its all-reduce, what that takes alone, and what is hidden."""
    rows = [] if point.blocked_by else point.rows
    hidden, starts = quantities.values(rows, "overlap"), _known(point, "first_reduce_s")
    share = quantities.centre(hidden, "overlap") if hidden else None
    return (
        _bounds("exposed_communication_s", *attribution.pooled(point, "exposed"))
        | _bounds("all_reduce_s", *attribution.pooled(point, "reduce"))
        | _bounds("overlap", share, quantities.interval(rows, "overlap"))
        | {"first_reduce_s": median(starts) if starts else None}
    )


def _throughput(point: Point) -> dict[str, Any]:
    """Return the throughput with its bounds, which follow from the rate's."""
    throughput, rate = point.throughput_samples_per_s, point.rate_interval
    interval = None
    if throughput is not None and rate is not None:
        scale = throughput / point.rate
        interval = (rate[0] * scale, rate[1] * scale)
    return _bounds("throughput_samples_per_s", throughput, interval)


def _interval_over(point: Point) -> str | None:
    """Return what a point's intervals are over; None without repeats."""
    if len(point.units) < 2:
        return None
    if point.in_one_job:
        return "launches of one job"
    launches = {row.launch for row in point.rows}
    return "launches" if len(point.units) in (len(launches), point.num_launches) else "jobs"


def _ratios(series: Series, point: Point) -> dict[str, Any]:
    """Return the ratios to the baseline, unknown in a study where they mean nothing."""
    ratios = (
        {"baseline_world_size": series.baseline}
        | _bounds("speedup", point.speedup, point.speedup_interval)
        | _bounds("parallel_efficiency", point.parallel_efficiency, point.efficiency_interval)
    )
    return ratios if series.is_compared else dict.fromkeys(ratios)


def _learned(point: Point, target: float | None) -> dict[str, Any]:
    """Return what training runs came to; nothing where nothing is trained."""
    if point.rows[0].training is None:
        return {}
    found = learning.learned(point, target)
    pooled = {
        "epoch_s": found.epoch_s, "validation_accuracy": found.accuracy,
        "best_accuracy": found.best, "time_to_target_s": found.reached_s,
    }  # fmt: skip
    ends = {name: astuple(one) if one else (None, None) for name, one in pooled.items()}
    bounds = (_bounds(name, *pair) for name, pair in ends.items())
    return {
        "num_seeds": found.num_seeds, "target_accuracy": found.target,
        "num_reached": None if found.target is None else found.num_reached,
    } | dict(ChainMap(*bounds))  # fmt: skip


def _details(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the distinct values of each detail, as studies and imported columns add them."""
    details: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.details.items():
            if name == "telemetry":  # of each rank: much, and no setting
                continue
            values = details.setdefault(name, [])
            if value not in values:
                values.append(value)
    return details


def _bounds(name: str, value: float | None, interval: Interval | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
