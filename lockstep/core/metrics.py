"""The formulas of one launch's numbers; bandwidths are those of nccl-tests, PERFORMANCE.md."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean, stdev
from typing import Any

GIGA, TERA = 1e9, 1e12

# Least parallel efficiency that is called good, by default.
GOOD_EFFICIENCY = 0.7
# Smallest relative change, or share of a step, that is reported.
NOTABLE = 0.05


def slowest_rank(rank_round_s: Sequence[Sequence[float]]) -> list[float]:
    """Return the slowest rank's seconds of each round, of shape (num_ranks, num_rounds)."""
    lengths = {len(rounds) for rounds in rank_round_s}
    if len(lengths) != 1 or 0 in lengths:
        counts = sorted(lengths)
        raise ValueError(
            f"every rank must have the same number of rounds, but the ranks have {counts}"
        )
    return list(rank_round_s[0]) if len(rank_round_s) == 1 else list(map(max, *rank_round_s))


def gives_rate(program: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a program's primary metric is a rate, such as samples/s, and not a time."""
    return any(m["primary"] and m["better"] == "higher" for m in program.values())


def throughput(samples: float, elapsed_s: float) -> float:
    """Return samples per second; samples are those of all ranks, counted once."""
    if elapsed_s <= 0:
        raise ValueError(f"elapsed_s={elapsed_s} is not a positive number of seconds")
    return samples / elapsed_s


def algbw_gb_per_s(message_bytes: int, time_s: float) -> float:
    """Return the algorithm bandwidth S/t in GB/s (10^9)."""
    return throughput(message_bytes, time_s) / GIGA


def busbw_factor(collective: str, world_size: int) -> float | None:
    """Return busbw / algbw of nccl-tests; None at one rank, where nothing crosses a bus."""
    factors = {
        "all_reduce": 2 * (world_size - 1) / world_size,
        "all_gather": (world_size - 1) / world_size,
        "reduce_scatter": (world_size - 1) / world_size,
        "broadcast": 1.0,
        "reduce": 1.0,
    }
    if collective not in factors:
        known = ", ".join(sorted(factors))
        raise ValueError(f"there is no collective {collective!r}; choose from {known}")
    return factors[collective] if world_size > 1 else None


def mfu(
    samples_per_s: float,
    flop_per_sample: float | None,
    peak_flop_per_s: float | None,
    world_size: int,
) -> float | None:
    """Return model FLOP/s over the peak of all ranks (PaLM, appendix B); None where unknown."""
    if not flop_per_sample or not peak_flop_per_s:
        return None
    return samples_per_s * flop_per_sample / (peak_flop_per_s * world_size)


def relative_margin(values: Sequence[float], confidence: float) -> float:
    """Return the half-width of the mean's confidence interval over the mean; infinite below two."""
    if len(values) < 2:
        return math.inf
    return half_width(values, confidence) / fmean(values)


def half_width(values: Sequence[float], confidence: float) -> float:
    """Return half of the width of Student's t interval of a mean, of two values or more."""
    border = student_quantile(len(values) - 1, confidence)
    return border * stdev(values) / math.sqrt(len(values))


@lru_cache(maxsize=1024)
def student_quantile(freedom: int, confidence: float) -> float:
    """Return the t that |t| stays below with probability `confidence`, exact to rounding."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # bisects the angle whose tangent is t / sqrt(freedom)
        middle = (low + high) / 2
        if _student_within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.tan(high) * math.sqrt(freedom)


def _student_within(angle: float, freedom: int) -> float:
    """Return the probability of |t| < sqrt(freedom) tan(angle) (Abramowitz & Stegun, 26.7.3-4)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    is_odd = freedom % 2
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for k in range(is_odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
