"""From rows to points and series: speed-up, parallel efficiency and their intervals.

With X(p) the throughput at p ranks and p0 the baseline, the smallest measured size of a series:

    speedup(p)             = X(p) / X(p0)
    parallel_efficiency(p) = speedup(p) / (p / p0)

which for strong scaling is the time ratio T(p0)/T(p), and for weak scaling keeps the local batch:
its efficiency equals T(p0)/T(p), never the strong formula T(p0)/((p/p0) T(p)).

Intervals are over launches and contain the baseline's uncertainty: see `statistics`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from lockstep.core.flags import Flag
from lockstep.core.formats import counted
from lockstep.core.studies import WITHOUT_COST, WITHOUT_RATIO
from lockstep.report.compute import diagnosis, replicates
from lockstep.report.compute.statistics import Interval, log_interval, median_rate, ratio_interval
from lockstep.report.load import layout
from lockstep.report.load.results import Row, largest
from lockstep.report.load.training_runs import USUAL

SECONDS_PER_HOUR = 3600.0
SAMPLES_PER_COST = 1e6
# An interval of two orders of magnitude would say no more than that nothing is known.
WIDEST = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One series at one world size, over all its launches; ratios divide by the baseline.

    Attributes:
        rate: Median over launches of the work per second.
        step_s: Median over launches of the launch's median step.
        pooled: Of the step over all rounds, see `pooled_step_s`.
        time_ratio: Baseline step time over step time, where the local batch is fixed.
        device_hours: World size times hours, for what `device_hours_per` names.
        extra_device_hours: Device-hours over the baseline's, less 1.
        cost: Device-hours times the price of one; None where no price is known.
        flag_numbers: Of its flags, in the order in which `series_of` met them.
        blocked_by: Rules of the check whose errors forbid the ratios, see `evaluation`.
        is_warned_of: Whether a warning of the check concerns it, beside those of its flags.
    """

    world_size: int
    rate: float
    rates: list[float]
    rows: list[Row]
    rate_interval: Interval | None = None
    step_s: float | None = None
    step_interval: Interval | None = None
    pooled: dict[str, Any] = field(default_factory=dict)
    time_s: float | None = None
    throughput_samples_per_s: float | None = None
    speedup: float = 1.0
    speedup_interval: Interval | None = None
    parallel_efficiency: float = 1.0
    efficiency_interval: Interval | None = None
    time_ratio: float | None = None
    device_hours: float | None = None
    device_hours_per: str | None = None
    extra_device_hours: float | None = None
    cost: float | None = None
    flags: list[Flag] = field(default_factory=list)
    blocked_by: list[str] = field(default_factory=list)
    is_warned_of: bool = False
    flag_numbers: list[int] = field(default_factory=list)

    @property
    def num_launches(self) -> int:
        """Launches that hold this point."""
        return len(self.rows)

    @property
    def num_jobs(self) -> int | None:
        """Slurm jobs that these launches ran in; None where one of them names none."""
        return replicates.num_jobs(self.rows)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Peak memory of the rank that needs most, over all launches; None where unknown."""
        return largest(self.rows, "peak_memory_bytes")

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Most that the allocator of a GPU held, over ranks and launches; None where unknown."""
        return largest(self.rows, "peak_reserved_bytes")

    @property
    def in_one_job(self) -> bool:
        """Whether the repeats share one job, so that intervals leave out what another would do."""
        return replicates.in_one_job(self.rows)

    def reaches(self, least: float) -> bool | None:
        """Tell whether the efficiency is at least so much, see `reaches`."""
        return reaches(self.parallel_efficiency, self.efficiency_interval, least, self.rows[0])

    @property
    def units(self) -> list[float]:
        """The rates that intervals are over: of each launch, or of each of several jobs."""
        return replicates.independent(self.rows, self.rates)

    @property
    def mean_step_s(self) -> float | None:
        """Mean step over all rounds, which costs follow from."""
        return self.pooled.get("mean_step_s")

    @property
    def mean_over_median(self) -> float | None:
        """Mean step over the median step; far from 1 where few rounds are long."""
        return self.mean_step_s / self.step_s if self.mean_step_s and self.step_s else None


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The points of one case over world sizes, and the size they are compared with.

    Launches that differ in a setting that is kept over world sizes are ladders of their own, each
    with its own baseline. Where launches of one ladder and size lie otherwise on nodes, the ladder
    has the most densely packed, and each other layout is a series whose ratios are to its baseline.

    Attributes:
        label: What varies, and the layout where it is not the main one.
        base: The point that every ratio of the series divides by.
        layout: What tells the layout from the main one; empty for the main series.
        main: The main series of the case; None where this is it.
    """

    case: str
    label: str
    base: Point = field(repr=False)
    points: list[Point]
    layout: str = ""
    main: "Series | None" = None

    @property
    def row(self) -> Row:
        """A row for what all rows share."""
        return self.points[0].rows[0]

    @property
    def baseline(self) -> int:
        """World size that ratios divide by."""
        return self.base.world_size

    @property
    def name(self) -> str:
        """The study, or the origin of what was not measured, and the label."""
        kind = self.row.study if self.row.origin == "measured" else f"[{self.row.origin}]"
        return f"{kind} {self.label}"

    @property
    def is_compared(self) -> bool:
        """Whether speed-up and efficiency mean anything here."""
        return self.row.study not in WITHOUT_RATIO

    @property
    def above(self) -> list[Point]:
        """The points of more ranks than the baseline."""
        return [point for point in self.points if point.world_size > self.baseline]

    def good(self, threshold: float) -> list[Point]:
        """Return the points above the baseline that are shown to reach an efficiency."""
        return [point for point in self.above if point.reaches(threshold)]

    def unshown(self, threshold: float) -> list[Point]:
        """Return the points above the baseline whose launches leave open whether they do."""
        return [point for point in self.above if point.reaches(threshold) is None]


def reaches(value: float, interval: Interval | None, least: float, row: Row) -> bool | None:
    """Tell whether a ratio is at least so much: its whole interval is, or none of it.

    None where launches leave both open, or where there is no interval. What was not measured here
    is taken as its source has it.
    """
    if interval is None:
        return None if row.origin == "measured" else value >= least
    if interval[0] >= least:
        return True
    return False if interval[1] < least else None


def series_of(
    rows: Iterable[Row], baseline: int | None = None, cost_per_hour: float | None = None
) -> list[Series]:
    """Group rows into series with speed-up, efficiency and intervals.

    Series without a point at the baseline keep their smallest size.

    Raises:
        ValueError: No series was measured at the baseline asked for.
    """
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.origin, row.case), []).append(row)
    if baseline is not None:
        known = sorted({row.world_size for own in grouped.values() for row in own})
        if baseline not in known:
            raise ValueError(f"no series has the baseline {baseline}; measured sizes are {known}")
    numbers: dict[str, int] = {}
    every: list[Series] = []
    for of_case in grouped.values():
        main: Series | None = None
        for ladder, of_ladder in layout.ladders(of_case).items():
            layouts = _layouts(of_ladder)
            sizes = dict(layouts[""])
            base_size = baseline if baseline in sizes else layouts[""][0][0]
            base = _point(base_size, sizes[base_size], None, cost_per_hour, numbers)
            for suffix, groups in layouts.items():
                points = [
                    base
                    if of_size is sizes[base_size]
                    else _point(size, of_size, base, cost_per_hour, numbers)
                    for size, of_size in groups
                ]
                name = ", ".join(filter(None, (suffix, ladder)))
                full = ", ".join(filter(None, (label(of_case[0]), name)))
                every.append(Series(of_case[0].case, full, base, points, name, main))
                main = main or every[-1]
    return every


def _layouts(rows: Sequence[Row]) -> dict[str, list[tuple[int, list[Row]]]]:
    """Return the (world size, rows) of a ladder's points by their layout, the densest as "" first.

    Of launches that differ, a point has those that agree in where their ranks lie and in settings.
    """
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        sizes.setdefault(row.world_size, []).append(row)
    points: dict[str, list[tuple[int, list[Row]]]] = {"": []}
    for size in sorted(sizes):
        layouts = layout.split_by_layout(sizes[size])
        densest = layout.densest(layouts, rows)
        for placed, of_layout in layouts.items():
            name = "" if placed == densest else layout.suffix(placed, densest)
            points.setdefault(name, []).append((size, of_layout))
    return points


def _point(
    world_size: int,
    rows: list[Row],
    base: Point | None,
    cost_per_hour: float | None,
    flag_numbers: dict[str, int],
) -> Point:
    """Return a finished point. Without a base it is the baseline: its ratios are 1."""
    row = rows[0]
    rates = [row.rate for row in rows]
    steps = [row.step_s for row in rows if row.step_s is not None]
    times = [row.time_s for row in rows if row.time_s is not None]
    through = [r.throughput_samples_per_s for r in rows if r.throughput_samples_per_s is not None]
    flags = [*dict.fromkeys(flag for row in rows for flag in row.flags)]
    flags += diagnosis.of_launches(rows)
    point = Point(
        world_size, median_rate(rates), rates, rows,
        rate_interval=_telling(log_interval(replicates.independent(rows, rates))),
        step_s=median(steps) if steps else None,
        step_interval=_telling(log_interval(replicates.independent(rows, steps)))
        if steps else None,
        pooled=pooled_step_s(rows),
        time_s=median(times) if times else None,
        throughput_samples_per_s=median_rate(through) if through else None,
        flags=flags,
        flag_numbers=[
            flag_numbers.setdefault(text, len(flag_numbers) + 1)
            for text in dict.fromkeys(map(str, flags))
        ],
    )  # fmt: skip
    more: dict[str, Any] = {}
    hours, more["device_hours_per"] = _device_hours(point)
    more["device_hours"] = hours
    if hours is not None and cost_per_hour is not None:
        more["cost"] = hours * cost_per_hour
    of = base or point
    if row.scaling in ("weak", "fixed-epochs") and of.step_s and point.step_s:
        more["time_ratio"] = of.step_s / point.step_s
    if base:
        names = ("speedup", "speedup_interval", "parallel_efficiency", "efficiency_interval")
        more |= zip(names, gained(point, base, world_size / base.world_size), strict=True)
        if hours and base.device_hours:
            more["extra_device_hours"] = hours / base.device_hours - 1
    return replace(point, **more)


def gained(
    point: Point, base: Point, times: float
) -> tuple[float, Interval | None, float, Interval | None]:
    """Return speed-up and efficiency of a point, each with its interval.

    The point has so many times the ranks, threads or the like of its base.
    """
    speedup = point.rate / base.rate
    interval = _telling(ratio_interval(point.units, base.units))
    ends = (interval[0] / times, interval[1] / times) if interval else None
    return speedup, interval, speedup / times, ends


def best_efficiencies(series: Iterable[Series]) -> dict[int, float]:
    """Return world size -> the best parallel efficiency that any measured case reaches there.

    A baseline judges nothing, nor does what the check blocks, or a smaller batch than asked for.
    """
    best: dict[int, float] = {}
    for curve in (each for each in series if each.is_compared and each.row.scaling):
        is_judged = curve.row.origin == "measured" and not curve.row.has_smaller_batch
        for point in curve.points if is_judged else ():
            if point is not curve.base and not point.blocked_by:
                reached = max(best.get(point.world_size, 0.0), point.parallel_efficiency)
                best[point.world_size] = reached
    return best


def _device_hours(point: Point) -> tuple[float | None, str | None]:
    """Return the cost of a point in device-hours, and what that cost buys.

    A cost adds up, so it follows from the mean step, while the median tells the steady state.
    """
    if point.rows[0].study in WITHOUT_COST:
        return None, None
    if point.time_s is not None:
        return point.world_size * point.time_s / SECONDS_PER_HOUR, "run"
    samples_per_s = point.throughput_samples_per_s
    if samples_per_s is None or point.rows[0].program:
        return None, None
    hours = SAMPLES_PER_COST / samples_per_s / SECONDS_PER_HOUR * (point.mean_over_median or 1.0)
    return point.world_size * hours, f"1e6 {point.rows[0].sample_unit or 'samples'}"


def label(row: Row) -> str:
    """Return a short name of a series: what varies, without what the page says anyway."""
    if row.origin != "measured" or not row.factors:
        return row.case
    if row.training:  # what is not as it usually is
        known = {name: value for name, value in row.factors.items() if USUAL.get(name) != value}
        parts = [
            str(known.pop(name)) for name in ("workload", "data", "precision") if name in known
        ]
        parts += [counted(known.pop("epochs"), "epoch")] if "epochs" in known else []
        device = [str(known.pop("device"))] if "device" in known else []
        return ", ".join([*parts, *(f"{k}={v}" for k, v in known.items()), *device])
    parts = [str(row.workload)]
    parts += [f"{k}={v}" for k, v in row.factors.items() if v is not None and v != row.workload]
    if "precision" not in row.factors and row.precision not in (None, "fp32"):
        parts.append(str(row.precision))
    return ", ".join(parts)


def _telling(interval: Interval | None) -> Interval | None:
    """Return an interval that tells something; None where it spans orders of magnitude."""
    return interval if interval and interval[1] <= WIDEST * interval[0] else None


def pooled_step_s(rows: Sequence[Row]) -> dict[str, Any]:
    """Return min, max, mean and stddev of the step time over all rounds of all launches."""
    known = [
        (r.rounds, r.mean_step_s, r.stddev_step_s)
        for r in rows
        if r.rounds and r.mean_step_s is not None and r.stddev_step_s is not None
    ]
    lows = [r.min_step_s for r in rows if r.min_step_s is not None]
    highs = [r.max_step_s for r in rows if r.max_step_s is not None]
    total = sum(n for n, _, _ in known)
    mean = sum(n * m for n, m, _ in known) / total if total else None
    stddev = None
    if mean is not None and total > 1:
        squares = sum((n - 1) * s**2 + n * (m - mean) ** 2 for n, m, s in known)
        stddev = math.sqrt(squares / (total - 1))
    return {
        "min_step_s": min(lows, default=None),
        "max_step_s": max(highs, default=None),
        "mean_step_s": mean,
        "stddev_step_s": stddev,
    }
