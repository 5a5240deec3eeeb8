"""The straggler, the host or rank for which all others wait; and the use of devices and links.

A rank's step is divided by the median of the other ranks, a host's (the median of its ranks) by
that of the other hosts. Each launch has one such ratio, the lower median over its cases.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median, median_low
from typing import Literal

import numpy as np

from lockstep.core.metrics import NOTABLE
from lockstep.core.studies import CURVES
from lockstep.measure.causes.bound import pool
from lockstep.measure.causes.division import OWN, LateInput, is_late, late_input
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Series
from lockstep.report.compute.statistics import CONFIDENCE, Interval, log_interval
from lockstep.report.load.results import Row

# (host, rank); the rank is None for a whole host.
Unit = tuple[str, int | None]


@dataclass(frozen=True)
class Slowest:
    """The host or rank seen slowest in most launches.

    Attributes:
        host: Its host; empty if not recorded.
        rank: The rank; None for a whole host.
        num_seen: Launches in which it was the slowest.
        num_launches: Launches in which it was compared.
        ratio: Its step time / that of the others.
        interval: 95 % interval over launches, corrected for the number of ranks or hosts
            (Bonferroni).
        is_elsewhere: Whether there are other hosts to measure on.
    """

    host: str
    rank: int | None
    num_seen: int
    num_launches: int
    ratio: float
    interval: Interval
    is_elsewhere: bool


@dataclass(frozen=True)
class Pace:
    """The step time of a host or rank over that of the others.

    Attributes:
        ratio: Geometric mean over launches.
        interval: 95 % interval over launches; None without repeats.
        spread: Ratios of a host's ranks, or of a rank's launches.
    """

    host: str
    rank: int | None
    ratio: float
    interval: Interval | None
    spread: tuple[float, ...]


def paces(rows: Iterable[Row]) -> list[Pace]:
    """Return the pace of each host, or of each rank if there is one host, the slowest first."""
    ranks: dict[Unit, list[float]] = {}
    hosts: dict[Unit, list[float]] = {}
    for launch in _launches(rows):
        for units, ratios_of in ((_by_rank, ranks), (_by_host, hosts)):
            for unit, logarithm in _paces(units, launch).items():
                ratios_of.setdefault(unit, []).append(math.exp(logarithm))
    spread: dict[str, list[float]] = {}
    for (host, _), ratios in ranks.items():
        spread.setdefault(host, []).append(geometric_mean(ratios))
    every = [
        Pace(host, rank, geometric_mean(ratios), log_interval(ratios),
             tuple(ratios if rank is not None else spread.get(host, ())))
        for (host, rank), ratios in (hosts or ranks).items()
    ]  # fmt: skip
    return sorted(every, key=lambda pace: -pace.ratio)


def _launches(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each launch with own steps of several ranks."""
    launches: dict[str, list[Row]] = {}
    for row in rows:
        if len(row.rank_variant_s.get(OWN, [])) > 1:
            launches.setdefault(row.launch, []).append(row)
    return list(launches.values())


def slowest(rows: Iterable[Row]) -> Slowest | None:
    """Return the host, or else the rank, that is shown to be slow; None if none is."""
    launches = _launches(rows)
    hosts = {host for launch in launches for row in launch for host in row.rank_hosts}
    by_host = [paces for launch in launches if (paces := _paces(_by_host, launch))]
    by_rank = [_paces(_by_rank, launch) for launch in launches]
    return _shown(by_host, len(hosts) > 1) or _shown(by_rank, len(hosts) > 1)


def latest(rows: Sequence[Row]) -> tuple[LateInput, str] | None:
    """Return the rank whose batches come late in most of a point's launches, and its host.

    None if there is none, or the launches have their ranks on different hosts.
    """
    if any(row.rank_hosts != rows[0].rank_hosts for row in rows):
        return None
    turns = [{name: np.array(each) for name, each in row.rank_variant_s.items()} for row in rows]
    late = late_input(pool(turns))
    if late is None or sum(is_late(each, late.rank) for each in turns) <= len(turns) / 2:
        return None
    return late, rows[0].rank_hosts[late.rank] if rows[0].rank_hosts else ""


def _by_rank(row: Row) -> dict[Unit, float]:
    """Return the mean step of each rank without gradient synchronisation."""
    own_s = row.rank_variant_s[OWN]
    hosts = row.rank_hosts if len(row.rank_hosts) == len(own_s) else [""] * len(own_s)
    each = zip(hosts, own_s, strict=True)
    return {(host, rank): fmean(steps) for rank, (host, steps) in enumerate(each)}


def _by_host(row: Row) -> dict[Unit, float]:
    """Return the median of each host's ranks; empty if there is one host."""
    ranks: dict[Unit, list[float]] = {}
    for (host, _), seconds in _by_rank(row).items():
        ranks.setdefault((host, None), []).append(seconds)
    return {unit: median(times) for unit, times in ranks.items()} if len(ranks) > 1 else {}


def _paces(units: Callable[[Row], dict[Unit, float]], rows: Sequence[Row]) -> dict[Unit, float]:
    """Return the lower median over cases of log(a unit's time / the median of the others)."""
    logs: dict[Unit, list[float]] = {}
    for row in rows:
        times = units(row)
        ordered = sorted(times.values())
        count = len(ordered) - 1
        for unit, seconds in times.items():
            # `median` would sort all other ranks, up to 1,024, for each rank.
            at = bisect_left(ordered, seconds)
            middle = ((count - 1) // 2, count // 2)
            others = fmean(ordered[i if i < at else i + 1] for i in middle)
            logs.setdefault(unit, []).append(math.log(seconds / others))
    return {unit: median_low(values) for unit, values in logs.items()}


def _shown(launches: Sequence[Mapping[Unit, float]], is_elsewhere: bool) -> Slowest | None:
    """Return the unit that is slowest in most launches, if its interval excludes 1."""
    seen = [max(launch, key=lambda unit: launch[unit]) for launch in launches]
    if not seen:
        return None
    unit = max(seen, key=seen.count)
    ratios = [math.exp(launch[unit]) for launch in launches if unit in launch]
    num_units = len({unit for launch in launches for unit in launch})
    ratio = geometric_mean(ratios)
    interval = log_interval(ratios, 1 - (1 - CONFIDENCE) / num_units)
    most = seen.count(unit) > len(ratios) / 2
    if not (most and interval and interval[0] > 1 and ratio > 1 + NOTABLE):
        return None
    return Slowest(*unit, seen.count(unit), len(ratios), ratio, interval, is_elsewhere)


Kind = Literal["use", "memory", "power", "loader", "network"]
# Fractions, and GB/s of the network. A healthy training: "GPU util 90-100 %, memory near capacity,
# power near TDP, network > 100 Gb/s, loaders busy"; "near" is 90 %, TDP the driver's power limit. A
# small model leaves memory and power unused, so a value below its limit is only a hint.
LIMITS: dict[Kind, float] = {
    "use": 0.9, "memory": 0.9, "power": 0.9, "loader": NOTABLE, "network": 12.5,
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """A measured utilisation.

    Attributes:
        value: A fraction; GB/s of the network.
        is_shown: Whether its interval excludes the limit.
    """

    kind: Kind
    value: float
    case: str
    world_size: int
    is_shown: bool = True

    @property
    def is_good(self) -> bool:
        """Whether the value is on the good side of its limit."""
        limit = LIMITS[self.kind]
        return self.value < limit if self.kind == "loader" else self.value >= limit


def readings(series: Sequence[Series]) -> list[Reading]:
    """Return the telemetry of each ladder at its largest size."""
    every = []
    for curve in series:
        if curve.row.study in CURVES and curve.row.origin == "measured":
            point = curve.points[-1]
            memory = ("gpu_memory_bytes", "most"), "gpu_memory_total_bytes"
            values: dict[Kind, float | None] = {
                "use": quantities.pool(point.rows, "gpu_utilisation")[0],
                "memory": _mean_share(point.rows, *memory),
                "power": _mean_share(point.rows, ("power_w", "mean"), "power_limit_w"),
            }
            every += [
                Reading(kind, value, curve.label, point.world_size)
                for kind, value in values.items()
                if value is not None
            ]
    return every


def _mean_share(rows: Sequence[Row], of: tuple[str, str], limit: str) -> float | None:
    """Return a gauge over its limit, the mean over ranks and launches that have both."""
    shares = []
    for row in rows:
        values = quantities.rank_values(row, *of)
        limits = quantities.rank_values(row, limit, "mean")
        if values and limits and all(limits):
            shares += [value / most for value, most in zip(values, limits, strict=True)]
    return fmean(shares) if shares else None
