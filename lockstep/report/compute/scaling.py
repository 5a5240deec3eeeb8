"""From rows to points and series: speed-up, parallel efficiency and their intervals.

With X(p) the throughput at p ranks and p0 the baseline, for every kind of scaling,
speedup(p) = X(p) / X(p0) and parallel_efficiency(p) = speedup(p) / (p / p0).
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from lockstep.core.flags import Flag
from lockstep.core.formats import counted, listed
from lockstep.core.studies import WITHOUT_COST, WITHOUT_RATIO
from lockstep.report.compute import diagnosis, replicates
from lockstep.report.compute.statistics import (
    CONFIDENCE,
    MOST_LAUNCHES,
    Interval,
    is_wide,
    launches_needed,
    launches_to_narrow,
    log_interval,
    median_rate,
    ratio_interval,
    welch,
)
from lockstep.report.load import layout
from lockstep.report.load.results import Row, largest
from lockstep.report.load.training_runs import USUAL

SECONDS_PER_HOUR = 3600.0
SAMPLES_PER_COST = 1e6
# Launches of a size that give an interval of use.
WANTED_LAUNCHES = 3
# Largest ratio of an interval's ends; a wider interval is left out.
WIDEST = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One series at one world size, over all its launches; ratios divide by the baseline.

    Attributes:
        rate: Median over launches of the work per second.
        units: Rates for intervals: of each launch, or of each job if there are several.
        step_s: Median over launches of a launch's median step.
        mean_step_s: Mean over all rounds, from which costs follow.
        time_ratio: Step time of the baseline / step time, if the local batch is fixed.
        device_hours: World size times hours, for the work in `device_hours_per`.
        extra_device_hours: Device-hours / those of the baseline - 1.
        cost: Device-hours times the price of a device-hour.
        flag_numbers: Numbers of its flags, counted over all series.
        blocked_by: Rules of the check whose errors block the ratios, see `evaluation`.
        doubted_by: Rules whose warnings make the ratios doubtful, so no target is shown.
    """

    world_size: int
    rate: float
    rates: list[float]
    rows: list[Row]
    units: list[float]
    rate_interval: Interval | None = None
    step_s: float | None = None
    step_interval: Interval | None = None
    min_step_s: float | None = None
    max_step_s: float | None = None
    mean_step_s: float | None = None
    stddev_step_s: float | None = None
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
    doubted_by: list[str] = field(default_factory=list)
    flag_numbers: list[int] = field(default_factory=list)

    @property
    def num_launches(self) -> int:
        """Number of launches."""
        return len(self.rows)

    @property
    def num_jobs(self) -> int | None:
        """Number of Slurm jobs of the launches; None if one has no job."""
        return replicates.num_jobs(self.rows)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Peak memory of the rank that needs most, over all launches."""
        return largest(self.rows, "peak_memory_bytes")

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Peak memory reserved by PyTorch on a GPU, over ranks and launches."""
        return largest(self.rows, "peak_reserved_bytes")

    @property
    def mfu(self) -> float | None:
        """Median over launches of the model FLOP/s over the datasheet's peak."""
        known = [row.mfu for row in self.rows if row.mfu is not None]
        return median(known) if known else None

    @property
    def in_one_job(self) -> bool:
        """Whether the repeats share one job, so that intervals do not cover other jobs."""
        return replicates.in_one_job(self.rows)

    @property
    def is_noisy(self) -> bool:
        """Whether its launches differ, and their interval is unknown or wide."""
        return len(set(self.rates)) > 1 and is_wide(self.rate_interval)

    def reaches(self, least: float) -> bool | None:
        """Tell whether the efficiency is at least `least`; None if its interval contains `least`.

        None also if a warning of the check makes the efficiency doubtful.
        Imported values without an interval are taken as they are.
        """
        if self.doubted_by:
            return None
        if self.efficiency_interval is None:
            is_measured = self.rows[0].origin == "measured"
            return None if is_measured else self.parallel_efficiency >= least
        low, high = self.efficiency_interval
        return True if low >= least else False if high < least else None

    @property
    def mean_over_median(self) -> float | None:
        """Mean step / median step; far from 1 if few rounds are long."""
        return _over(self.mean_step_s, self.step_s)


@dataclass(frozen=True, eq=False)
class Series:
    """The points of one case over world sizes, and their baseline.

    A setting that is the same over world sizes makes a ladder with its own baseline. The main
    series of a ladder has the densest layouts; each other layout is a series with its own baseline.

    Attributes:
        label: The factors that vary, and `layout`.
        layout: How the layout differs from the main one; empty for the main series.
        main: The main series of the case; None for itself.
        warned: World sizes that a warning of the check concerns, apart from flags.
    """

    case: str
    label: str
    base: Point = field(repr=False)
    points: list[Point]
    layout: str = ""
    main: "Series | None" = None
    warned: Collection[int] = ()

    @cached_property
    def row(self) -> Row:
        """A row, for facts that all rows share."""
        return self.points[0].rows[0]

    @property
    def sizes(self) -> list[int]:
        """The world size of each point."""
        return [point.world_size for point in self.points]

    @property
    def rows(self) -> list[Row]:
        """The rows of all points."""
        return [row for point in self.points for row in point.rows]

    @property
    def baseline(self) -> int:
        """World size of the baseline."""
        return self.base.world_size

    @property
    def name(self) -> str:
        """The study, or the origin if not measured, and the label."""
        kind = self.row.study if self.row.origin == "measured" else f"[{self.row.origin}]"
        return f"{kind} {self.label}"

    @property
    def noun(self) -> str:
        """The noun of its sizes: rank; of a table device, or node if each has one device."""
        if self.row.origin == "measured":
            return "rank"
        rows = [row for row in self.rows if row.world_size > 1]
        are_nodes = rows and all(row.num_nodes == row.world_size for row in rows)
        return "node" if are_nodes else "device"

    @property
    def is_compared(self) -> bool:
        """Whether speed-up and efficiency have a meaning."""
        return self.row.study not in WITHOUT_RATIO

    @property
    def above(self) -> list[Point]:
        """The points above the baseline."""
        return [point for point in self.points if point.world_size > self.baseline]

    def good(self, threshold: float) -> list[Point]:
        """Return the points above the baseline that reach an efficiency."""
        return [point for point in self.above if point.reaches(threshold)]

    def unshown(self, threshold: float) -> list[Point]:
        """Return the points above the baseline whose interval contains an efficiency."""
        return [point for point in self.above if point.reaches(threshold) is None]

    def launches_to_show(self, threshold: float) -> str:
        """Return what launches show whether the unshown points reach an efficiency."""
        doubts = dict.fromkeys(rule for p in self.unshown(threshold) for rule in p.doubted_by)
        if doubts:
            return f"launches for which lockstep check does not warn of {listed(doubts, 4)}"
        sizes = {p: threshold * p.world_size / self.baseline for p in self.unshown(threshold)}
        return launches_to_show(self.base, sizes)


def no_interval(*points: Point) -> str:
    """Return why a value over these points has no interval."""
    if points[0].rows[0].origin != "measured":
        return "no interval"
    if any(len(point.units) < 2 for point in points):
        return "no interval: there is only one launch"
    if any(len(set(point.units)) == 1 for point in points):
        return "no interval: the launches are equal"
    return "no interval: the launches differ too much"


def launches_to_show(base: Point, limits: Mapping[Point, float], or_tied: bool = False) -> str:
    """Return how many launches show, with 90 % power, on which side of a limit each speed-up is.

    With `or_tied` they may also show that it is tied with the limit. The number supposes that
    further launches vary as these do. Without two that differ it is that of a first interval.
    """
    most, noun = WANTED_LAUNCHES, "launch"
    is_least = False
    for point, limit in limits.items():
        most = max(most, min(len(point.units), len(base.units)) + 1)
        noun = "job" if len(point.units) < point.num_launches else noun
        test = welch(point.units, base.units)
        if test is None or test.error == 0:
            is_least = True
            continue
        margin = math.expm1(min(1.0, abs(test.log_ratio - math.log(limit))))
        numbers = [launches_needed(test.spread, margin, 1 - CONFIDENCE)]
        numbers += [launches_to_narrow(test.spread)] * or_tied
        needed = min(filter(None, numbers), default=None)
        is_least = is_least or needed is None
        most = max(most, needed or MOST_LAUNCHES)
    bound = "at least" if is_least else "about"
    return f"{bound} {counted(most, noun)} of each size"


def series_of(
    rows: Iterable[Row], baseline: int | None = None, cost_per_hour: float | None = None
) -> list[Series]:
    """Group rows into series with speed-up, efficiency and intervals.

    Series without a point at the requested baseline keep their smallest size.

    Raises:
        ValueError: No series was measured at the requested baseline.
    """
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.origin, row.case), []).append(row)
    if baseline is not None:
        known = sorted({row.world_size for own in grouped.values() for row in own})
        if baseline not in known:
            raise ValueError(
                f"no series has the baseline {baseline}; choose one of the measured sizes {known}"
            )
    numbers: dict[str, int] = {}
    every: list[Series] = []
    for case in grouped.values():
        main: Series | None = None
        for ladder, own in layout.ladders(case).items():
            layouts = layout.layouts(own)
            sizes = dict(layouts[""])
            base_rows = sizes[baseline if baseline in sizes else layouts[""][0][0]]
            base = _point(base_rows, None, cost_per_hour, numbers)
            for suffix, groups in layouts.items():
                points = [
                    base if rows is base_rows else _point(rows, base, cost_per_hour, numbers)
                    for _, rows in groups
                ]
                name = ", ".join(filter(None, (suffix, ladder)))
                full = ", ".join(filter(None, (label(case[0]), name)))
                every.append(Series(case[0].case, full, base, points, name, main))
                main = main or every[-1]
    return every


def _point(
    rows: list[Row], base: Point | None, cost_per_hour: float | None, flag_numbers: dict[str, int]
) -> Point:
    """Return a finished point; without a base it is the baseline, whose ratios are 1."""
    row, rates = rows[0], [row.rate for row in rows]
    world_size, rate = row.world_size, median_rate(rates)
    units = replicates.independent(rows, rates)
    steps = [row.step_s for row in rows if row.step_s is not None]
    step_s, pooled = median(steps) if steps else None, pooled_step_s(rows)
    times = [row.time_s for row in rows if row.time_s is not None]
    time_s = median(times) if times else None
    through = [r.throughput_samples_per_s for r in rows if r.throughput_samples_per_s is not None]
    samples_per_s = median_rate(through) if through else None
    flags = [*dict.fromkeys(flag for row in rows for flag in row.flags)]
    flags += diagnosis.flag_launches(rows)
    more: dict[str, Any] = {}
    hours = None
    if row.study in WITHOUT_COST:
        pass
    elif time_s is not None:
        hours = world_size * time_s / SECONDS_PER_HOUR
        more["device_hours_per"] = "run"
    elif samples_per_s is not None and not row.program:
        # Costs add up over steps, so they follow from the mean step.
        mean_over_median = _over(pooled["mean_step_s"], step_s) or 1.0
        hours = SAMPLES_PER_COST / samples_per_s / SECONDS_PER_HOUR
        hours = world_size * (hours * mean_over_median)
        more["device_hours_per"] = f"1e6 {row.sample_unit or 'samples'}"
    if hours is not None and cost_per_hour is not None:
        more["cost"] = hours * cost_per_hour
    if row.scaling in ("weak", "fixed-epochs"):
        more["time_ratio"] = _over(base.step_s if base else step_s, step_s)
    if base:
        more |= compute_gain(rate, units, base, world_size / base.world_size)
        if hours and base.device_hours:
            more["extra_device_hours"] = hours / base.device_hours - 1
    return Point(
        world_size, rate, rates, rows, units,
        rate_interval=_bounded(log_interval(units)),
        step_s=step_s,
        step_interval=_bounded(log_interval(replicates.independent(rows, steps))),
        **pooled,
        time_s=time_s,
        throughput_samples_per_s=samples_per_s,
        device_hours=hours,
        flags=flags,
        flag_numbers=[
            flag_numbers.setdefault(text, len(flag_numbers) + 1)
            for text in dict.fromkeys(map(str, flags))
        ],
        **more,
    )  # fmt: skip


def _over(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def compute_gain(rate: float, units: Sequence[float], base: Point, times: float) -> dict[str, Any]:
    """Return a point's speed-up and efficiency over a base, on `times` as many ranks."""
    speedup = rate / base.rate
    interval = _bounded(ratio_interval(units, base.units))
    return {
        "speedup": speedup,
        "speedup_interval": interval,
        "parallel_efficiency": speedup / times,
        "efficiency_interval": interval and (interval[0] / times, interval[1] / times),
    }


def best_efficiencies(series: Iterable[Series]) -> dict[int, float]:
    """Return world size -> the best parallel efficiency of the measured cases there.

    Baselines, points that the check blocks and smaller batches than requested are left out.
    """
    best: dict[int, float] = {}
    for curve in series:
        row = curve.row
        is_measured = row.origin == "measured" and not row.has_smaller_batch
        for point in curve.points if is_measured and row.scaling and curve.is_compared else ():
            if point is not curve.base and not point.blocked_by:
                reached = max(best.get(point.world_size, 0.0), point.parallel_efficiency)
                best[point.world_size] = reached
    return best


def label(row: Row) -> str:
    """Return a short name of a series: the workload and the factors that vary."""
    if row.origin != "measured" or not row.factors:
        return row.case
    if row.training:
        known = {name: value for name, value in row.factors.items() if USUAL.get(name) != value}
        heads = ("workload", "data", "precision")
        parts = [str(known.pop(name)) for name in heads if name in known]
        parts += [counted(known.pop("epochs"), "epoch")] if "epochs" in known else []
        device = [str(known.pop("device"))] if "device" in known else []
        return ", ".join([*parts, *(f"{k}={v}" for k, v in known.items()), *device])
    parts = [str(row.workload)]
    parts += [f"{k}={v}" for k, v in row.factors.items() if v is not None and v != row.workload]
    if "precision" not in row.factors and row.precision not in (None, "fp32"):
        parts.append(str(row.precision))
    return ", ".join(parts)


def _bounded(interval: Interval | None) -> Interval | None:
    """Return an interval, or None if it is wider than `WIDEST`."""
    return interval if interval and interval[1] <= WIDEST * interval[0] else None


def pooled_step_s(rows: Sequence[Row]) -> dict[str, Any]:
    """Return min, max, mean and standard deviation of the step over all rounds of all launches."""
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
