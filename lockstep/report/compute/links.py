"""Latency and rate of a collective, fitted to a sweep of message sizes."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import mul
from statistics import fmean, median, stdev

from lockstep.core import metrics
from lockstep.core.metrics import GIGA
from lockstep.report.compute import replicates
from lockstep.report.compute.scaling import Point
from lockstep.report.compute.statistics import CONFIDENCE, Interval, log_interval, t_quantile
from lockstep.report.load.results import Row

# Fewest message sizes to fit; two always lie on a line.
LEAST_SIZES = 3


@dataclass(frozen=True)
class LinkFit:
    """A collective's time as alpha + bytes / beta (Hockney, Parallel Computing 20, 1994).

    The bytes are those that cross the slowest link: message size times nccl-tests' factor of busbw.

    Attributes:
        alpha_s: Latency, not below 0.
        beta_gb_per_s: busbw of an infinite message.
        error: Root mean square of the relative errors, which are minimised; large if the library
            changes its algorithm with the size.
        alpha_interval: Student's t over launches or jobs, in seconds.
        beta_interval: Interval of the rate, on logarithms, in GB/s.
    """

    alpha_s: float
    beta_gb_per_s: float
    error: float
    num_sizes: int
    alpha_interval: Interval | None = None
    beta_interval: Interval | None = None


def fit_points(collective: str, points: Sequence[tuple[float, Point]]) -> LinkFit | None:
    """Fit one collective on one set of ranks, from (bytes of the message, point).

    Returns:
        None at one rank, for a collective without a busbw, or for fewer than three sizes.
    """
    factor = None
    with suppress(ValueError):
        factor = metrics.busbw_factor(collective, points[0][1].world_size)
    if factor is None:
        return None
    launches: dict[str, dict[float, float]] = {}
    rows: dict[str, Row] = {}
    for size, point in points:
        for row in point.rows:
            if row.step_s is not None and size > 0:
                launches.setdefault(row.launch, {})[size * factor] = row.step_s
                rows[row.launch] = row
    times = list(launches.values())
    jobs = replicates.group_values(list(rows.values()), times)
    units = []
    for job in jobs:
        sizes = set[float]().union(*job)
        units.append({size: fmean(each[size] for each in job if size in each) for size in sizes})
    return fit_launches(times, units)


def fit_launches(
    launches: Sequence[Mapping[float, float]], units: Sequence[Mapping[float, float]] | None = None
) -> LinkFit | None:
    """Fit the medians over launches, with intervals over `units` such as jobs, else launches.

    A launch or unit maps bytes on the link to seconds.
    """
    sizes = sorted(set[float]().union(*launches))
    times = [median(launch[size] for launch in launches if size in launch) for size in sizes]
    line = _line(dict(zip(sizes, times, strict=True)))
    if line is None:
        return None
    alpha_s, beta = line
    errors = [(alpha_s + size / beta) / t - 1 for size, t in zip(sizes, times, strict=True)]
    each = [line for unit in units or launches if (line := _line(unit))]
    alphas = [alpha_s for alpha_s, _ in each]
    alpha_interval = None
    if len(alphas) > 1 and (spread := stdev(alphas)):
        half = t_quantile(len(alphas) - 1, CONFIDENCE) * spread / math.sqrt(len(alphas))
        alpha_interval = max(0.0, fmean(alphas) - half), fmean(alphas) + half
    error = math.sqrt(fmean(error**2 for error in errors))
    beta_interval = log_interval([beta / GIGA for _, beta in each])
    return LinkFit(alpha_s, beta / GIGA, error, len(sizes), alpha_interval, beta_interval)


def _line(times: Mapping[float, float]) -> tuple[float, float] | None:
    """Return (alpha in s, beta in bytes/s) of bytes -> seconds; None if no rate is above 0."""
    if len(times) < LEAST_SIZES:
        return None
    u = [1 / seconds for seconds in times.values()]
    v = [size / seconds for size, seconds in times.items()]
    uu, uv, vv = (sum(map(mul, x, y)) for x, y in ((u, u), (u, v), (v, v)))
    # Normal equations of alpha u + per_byte v = 1; the sizes differ, so there is one solution.
    alpha_s = (sum(u) * vv - sum(v) * uv) / (uu * vv - uv**2)
    per_byte = (sum(v) - alpha_s * uv) / vv if alpha_s > 0 else sum(v) / vv
    return (max(0.0, alpha_s), 1 / per_byte) if per_byte > 0 else None
