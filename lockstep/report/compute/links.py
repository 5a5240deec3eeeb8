"""What a sweep of message sizes tells of the links: a collective's latency and rate.

The model is Hockney's (Parallel Computing 20, 1994), t = alpha + bytes / beta, with the bytes that
cross the slowest link: message size times the factor by which nccl-tests makes busbw of algbw. beta
is then the busbw of endless messages, to be held beside the rate of the wire. The squares of the
relative errors are least; alpha is not below 0.

A library that changes its algorithm or protocol with the size follows no one line; the fit's error
says how far the times are from it.
"""

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
from lockstep.report.compute.statistics import (
    CONFIDENCE,
    Interval,
    log_interval,
    t_quantile,
)
from lockstep.report.load.results import Row

# Two sizes are a line, and say nothing of how well it fits.
LEAST_SIZES = 3


@dataclass(frozen=True)
class LinkFit:
    """A collective's time as alpha + bytes / beta, on one set of ranks.

    Attributes:
        alpha_s: Time of an empty message.
        beta_gb_per_s: Rate of an endless one, as busbw.
        error: Root mean square of the relative errors of the fitted times.
        alpha_interval: Student's t over launches, or several jobs, in seconds; None for fewer
            than two.
        beta_interval: The same of the rate, on logarithms, in GB/s.
    """

    alpha_s: float
    beta_gb_per_s: float
    error: float
    num_sizes: int
    alpha_interval: Interval | None = None
    beta_interval: Interval | None = None


def fit_points(collective: str, points: Sequence[tuple[float, Point]]) -> LinkFit | None:
    """Fit the points of one collective, each with its message's bytes, on one set of ranks.

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
    found = list(launches.values())
    return fit_launches(found, list(map(_mean, replicates.grouped(list(rows.values()), found))))


def fit_launches(
    launches: Sequence[Mapping[float, float]], units: Sequence[Mapping[float, float]] | None = None
) -> LinkFit | None:
    """Fit the medians over launches; each launch, or each of `units`, gives the intervals.

    A launch, or a unit such as a job, has the seconds of each number of bytes on the link.
    """
    sizes = sorted(set[float]().union(*launches))
    times = [median(launch[size] for launch in launches if size in launch) for size in sizes]
    found = _line(dict(zip(sizes, times, strict=True)))
    if found is None:
        return None
    alpha_s, beta = found
    errors = [(alpha_s + size / beta) / t - 1 for size, t in zip(sizes, times, strict=True)]
    each = [line for unit in units or launches if (line := _line(unit))]
    alphas = [alpha_s for alpha_s, _ in each]
    alpha_interval = None
    if len(alphas) > 1 and (spread := stdev(alphas)):
        half = t_quantile(len(alphas) - 1, CONFIDENCE) * spread / math.sqrt(len(alphas))
        alpha_interval = max(0.0, fmean(alphas) - half), fmean(alphas) + half
    return LinkFit(
        alpha_s,
        beta / GIGA,
        math.sqrt(fmean(error**2 for error in errors)),
        len(sizes),
        alpha_interval,
        log_interval([beta / GIGA for _, beta in each]),
    )


def _mean(launches: Sequence[Mapping[float, float]]) -> dict[float, float]:
    """Return the mean seconds of each size, over the launches that have it."""
    sizes = set[float]().union(*launches)
    return {size: fmean(launch[size] for launch in launches if size in launch) for size in sizes}


def _line(times: Mapping[float, float]) -> tuple[float, float] | None:
    """Return (alpha in s, beta in bytes/s) of bytes -> seconds, None where no rate is found."""
    if len(times) < LEAST_SIZES:
        return None
    u = [1 / seconds for seconds in times.values()]
    v = [size / seconds for size, seconds in times.items()]
    uu, uv, vv = (sum(map(mul, x, y)) for x, y in ((u, u), (u, v), (v, v)))
    # The normal equations of alpha u + per_byte v = 1; all sizes are different, so they have one
    # solution.
    alpha_s = (sum(u) * vv - sum(v) * uv) / (uu * vv - uv**2)
    per_byte = (sum(v) - alpha_s * uv) / vv if alpha_s > 0 else sum(v) / vv
    return (max(0.0, alpha_s), 1 / per_byte) if per_byte > 0 else None
