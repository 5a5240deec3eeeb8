"""Which host or rank is the straggler: the slowest in most launches, for which all others wait.

In each launch a rank's pace is its mean step without gradient synchronisation over the median of
the other ranks', a host's that of the median of its ranks over the median of the other hosts'; both
as the lower median over the launch's cases: what is slow by itself is so in most of them, and what
one case does on one rank makes no slow device. One pace per launch gives an interval over launches,
as wide as the number of ranks or hosts that could have been slowest asks for (Bonferroni).

The utilisation of devices, loaders and links, compared with that of a healthy training.

The limits are the project's own requirement, in its words: "GPU util 90-100 %, memory near
capacity, power near TDP, network > 100 Gb/s, loaders busy". "Near" is taken as 90 %, and the
board's power is compared with the limit that its driver enforces. A loader is busy enough if less
than `metrics.NOTABLE` of a step waits for it. A miss is a hint and does not invalidate the numbers:
a small model leaves memory and power unused.
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
        num_launches: Launches in which it could be compared with others.
        ratio: Its step time / that of the others; 1.12 means 12 % longer.
        interval: 95 % interval of the ratio over launches, for all ranks or hosts together.
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
    """The step time of a host or rank, compared with the others.

    Attributes:
        ratio: Its steps' time over the others', the geometric mean over launches.
        interval: Of the ratio, 95 % over launches; None without repeats.
        spread: Of a host, the ratio of each of its ranks; of a rank, that of each launch.
    """

    host: str
    rank: int | None
    ratio: float
    interval: Interval | None
    spread: tuple[float, ...]


def paces(rows: Iterable[Row]) -> list[Pace]:
    """Return the pace of every host, or of every rank of a single host, the slowest first."""
    ranks: dict[Unit, list[float]] = {}
    hosts: dict[Unit, list[float]] = {}
    for launch in _launches(rows):
        for units, ratios_of in ((_by_rank, ranks), (_by_host, hosts)):
            for unit, logarithm in _paces(units, launch).items():
                ratios_of.setdefault(unit, []).append(math.exp(logarithm))
    spread: dict[str, list[float]] = {}
    for (host, _), ratios in ranks.items():
        spread.setdefault(host, []).append(geometric_mean(ratios))
    found = [
        Pace(host, rank, geometric_mean(ratios), log_interval(ratios),
             tuple(ratios if rank is not None else spread.get(host, ())))
        for (host, rank), ratios in (hosts or ranks).items()
    ]  # fmt: skip
    return sorted(found, key=lambda pace: -pace.ratio)


def _launches(rows: Iterable[Row]) -> list[list[Row]]:
    """Return each launch's rows in which several ranks timed steps of their own."""
    launches: dict[str, list[Row]] = {}
    for row in rows:
        if len(row.rank_variant_s.get(OWN, [])) > 1:
            launches.setdefault(row.launch, []).append(row)
    return list(launches.values())


def slowest(rows: Iterable[Row]) -> Slowest | None:
    """Return the host, or else the rank, that is shown to be slow; None where none is."""
    launches = _launches(rows)
    hosts = {host for found in launches for row in found for host in row.rank_hosts}
    by_host = [_paces(_by_host, found) for found in launches]
    found = _shown([one for one in by_host if one], len(hosts) > 1)
    return found or _shown([_paces(_by_rank, one) for one in launches], len(hosts) > 1)


def latest(rows: Sequence[Row]) -> tuple[LateInput, str] | None:
    """Return the rank whose batches come late in most of a point's launches, and its host.

    None where none is shown, or where launches have their ranks on other hosts.
    """
    if any(row.rank_hosts != rows[0].rank_hosts for row in rows):
        return None
    turns = [{name: np.array(each) for name, each in row.rank_variant_s.items()} for row in rows]
    late = late_input(pool(turns))
    if late is None or sum(is_late(each, late.rank) for each in turns) <= len(turns) / 2:
        return None
    return late, rows[0].rank_hosts[late.rank] if rows[0].rank_hosts else ""


def _by_rank(row: Row) -> dict[Unit, float]:
    """Return the mean step of each rank alone."""
    own_s = row.rank_variant_s[OWN]
    hosts = row.rank_hosts if len(row.rank_hosts) == len(own_s) else [""] * len(own_s)
    each = zip(hosts, own_s, strict=True)
    return {(host, rank): fmean(steps) for rank, (host, steps) in enumerate(each)}


def _by_host(row: Row) -> dict[Unit, float]:
    """Return the median of each host's ranks, where there is more than one host."""
    ranks: dict[Unit, list[float]] = {}
    for (host, _), seconds in _by_rank(row).items():
        ranks.setdefault((host, None), []).append(seconds)
    return {unit: median(found) for unit, found in ranks.items()} if len(ranks) > 1 else {}


def _paces(units: Callable[[Row], dict[Unit, float]], rows: Sequence[Row]) -> dict[Unit, float]:
    """Return the logarithm of each unit's time over the others', which most cases show at least."""
    logs: dict[Unit, list[float]] = {}
    for row in rows:
        found = units(row)
        ordered = sorted(found.values())
        count = len(ordered) - 1
        for unit, seconds in found.items():
            # The median of the others, of 1,024 ranks for each of them.
            at = bisect_left(ordered, seconds)
            middle = ((count - 1) // 2, count // 2)
            others = fmean(ordered[i if i < at else i + 1] for i in middle)
            logs.setdefault(unit, []).append(math.log(seconds / others))
    return {unit: median_low(values) for unit, values in logs.items()}


def _shown(launches: Sequence[Mapping[Unit, float]], is_elsewhere: bool) -> Slowest | None:
    """Return the unit slowest in most launches, where its interval leaves the others' pace out."""
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
# Fractions, and GB/s of the network: 100 Gbit/s.
LIMITS: dict[Kind, float] = {
    "use": 0.9, "memory": 0.9, "power": 0.9, "loader": NOTABLE, "network": 12.5,
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What was measured of one thing that has a limit.

    Attributes:
        value: A fraction; GB/s of the network.
        is_shown: Whether launches tell it from the limit.
    """

    kind: Kind
    value: float
    case: str
    world_size: int
    is_shown: bool = True

    @property
    def is_good(self) -> bool:
        """Whether it keeps its limit."""
        limit = LIMITS[self.kind]
        return self.value < limit if self.kind == "loader" else self.value >= limit


def readings(series: Sequence[Series]) -> list[Reading]:
    """Return what telemetry has of each ladder at its largest size."""
    found = []
    for curve in series:
        if curve.row.study in CURVES and curve.row.origin == "measured":
            point = curve.points[-1]
            use = quantities.values(point.rows, "gpu_utilisation")
            memory = ("gpu_memory_bytes", "most"), "gpu_memory_total_bytes"
            values: dict[Kind, float | None] = {
                "use": quantities.centre(use, "gpu_utilisation") if use else None,
                "memory": _mean_share(point.rows, *memory),
                "power": _mean_share(point.rows, ("power_w", "mean"), "power_limit_w"),
            }
            found += [
                Reading(kind, value, curve.label, point.world_size)
                for kind, value in values.items()
                if value is not None
            ]
    return found


def _mean_share(rows: Sequence[Row], of: tuple[str, str], limit: str) -> float | None:
    """Return a gauge over its limit, the mean over ranks and launches that know both."""
    shares = []
    for row in rows:
        values = quantities.of_ranks(row, *of)
        limits = quantities.of_ranks(row, limit, "mean")
        if values and limits and all(limits):
            shares += [value / most for value, most in zip(values, limits, strict=True)]
    return fmean(shares) if shares else None
