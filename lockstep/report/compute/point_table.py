"""One flat record per point, as `--csv`, `--json` and the page's data give it.

`lockstep.report.columns` says what each column means.
"""

from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from statistics import median
from typing import Any

from lockstep.core import flags
from lockstep.report import columns
from lockstep.report.compute import learning, quantities
from lockstep.report.compute.scaling import Point, Series
from lockstep.report.compute.statistics import Interval
from lockstep.report.load.results import Row

COLUMNS = (*columns.POINTS, *columns.DETAILS)


def table(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Return the record of each point of each series."""
    every = list(series)
    targets = learning.targets(every)
    return [
        _record(one, point, targets.get(learning.learns(one)))
        for one in every
        for point in one.points
    ]


def _record(series: Series, point: Point, target: float | None) -> dict[str, Any]:
    row = point.rows[0]
    far_out = _known(point, "num_far_out")
    return _ordered(
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
        device_hours=point.device_hours,
        device_hours_per=point.device_hours_per,
        cost=point.cost,
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


def _ordered(**found: Any) -> dict[str, Any]:
    """Return a point's columns, all of them, in the order in which they are printed."""
    assert len(found) == len(COLUMNS)
    return {name: found[name] for name in COLUMNS}


def _known(point: Point, name: str) -> list[Any]:
    """Return a field of the point's rows, where it is known."""
    values = [getattr(row, name) for row in point.rows]
    return [value for value in values if value is not None]


def _beside_its_time(point: Point) -> dict[str, Any]:
    return _of_devices(point) | quantities.phases(point) | _communication(point)


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
        _bounds("exposed_communication_s", *quantities.pooled(point, "exposed"))
        | _bounds("all_reduce_s", *quantities.pooled(point, "reduce"))
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
    """Return the ratios to the baseline; unknown where they mean nothing or are blocked."""
    ratios = (
        _bounds("speedup", point.speedup, point.speedup_interval)
        | _bounds("parallel_efficiency", point.parallel_efficiency, point.efficiency_interval)
        | {"time_ratio": point.time_ratio, "extra_device_hours": point.extra_device_hours}
    )
    if point.blocked_by or not series.is_compared:
        ratios = dict.fromkeys(ratios)
    return {"baseline_world_size": series.baseline if series.is_compared else None} | ratios


def _learned(point: Point, target: float | None) -> dict[str, Any]:
    """Return what training runs came to; unknown where nothing is trained."""
    if point.rows[0].training is None:
        return dict.fromkeys(columns.OF_TRAININGS)
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
