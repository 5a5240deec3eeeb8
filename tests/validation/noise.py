"""Campaigns as noisy as real ones, drawn from a seed: what the statistics are put to the test with.

A launch's time is the true time, times what that launch adds (clocks, placement, neighbours: the
same for all its rounds), times what each round adds. The kinds differ in what a launch adds; each
has the standard deviation asked for, but for those that say otherwise.
"""

from collections.abc import Callable

import numpy as np

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

ROUND_SD = 0.01
ROUNDS = 9
# Share of a launch's variance that all its points have in common, as they share its clocks.
SHARED = 0.5
AUTOCORRELATION = 0.3
# From the first launch of a campaign to its last, in standard deviations of a launch.
DRIFT = 2.0
# Share of launches in the slow mode, and how launches of one mode vary, in standard deviations.
SLOW_SHARE, MODE_WITHIN = 0.3, 0.15
# Where a launch's noise is wholly its own, for all its points alike, or wholly each point's.
SHARED_OF = {"modes of launches": 1.0, "modes of points": 0.0, "modes of jobs": 1.0}


def _heavy(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Student's t with 3 degrees of freedom, whose variance is 3."""
    return draw.standard_t(3, shape) / np.sqrt(3)


def _drifting(resembling: Draw) -> Draw:
    """Return launches on a machine that slows down steadily, `DRIFT` on top of their noise."""

    def drifting(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return resembling(draw, shape) + np.linspace(0, DRIFT, shape[0])[:, None]

    return drifting


def _autocorrelated(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Launches that resemble the one before: a stationary AR(1)."""
    values = draw.standard_normal(shape)
    for i in range(1, shape[0]):
        new = np.sqrt(1 - AUTOCORRELATION**2) * values[i]
        values[i] = AUTOCORRELATION * values[i - 1] + new
    return values


def _two_modes(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Some launches get slower clocks or a worse place; all vary a little; variance 1."""
    within = MODE_WITHIN * draw.standard_normal(shape)
    apart = np.sqrt((1 - MODE_WITHIN**2) / (SLOW_SHARE * (1 - SLOW_SHARE)))
    return within + apart * (draw.random(shape) < SLOW_SHARE)


def _modes_of_jobs(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Two modes, the same for both launches of a job, which follow each other but one."""
    modes = _two_modes(draw, (-(-shape[0] // 4) * 2, shape[1]))
    of_jobs = np.repeat(modes.reshape(-1, 2, shape[1]), 2, axis=0).reshape(-1, shape[1])
    return of_jobs[: shape[0]] + MODE_WITHIN * draw.standard_normal(shape)


KINDS: dict[str, Draw] = {
    "normal": np.random.Generator.standard_normal,
    "heavy tails": _heavy,
    # A launch can only be slower than the machine allows; variance 1.
    "skew": np.random.Generator.standard_exponential,
    "drift": _drifting(np.random.Generator.standard_normal),
    "autocorrelation": _autocorrelated,
    "modes of launches": _two_modes,
    "modes of points": _two_modes,
    "modes of jobs": _modes_of_jobs,
    "drift with memory": _drifting(_autocorrelated),
}


def round_times(
    draw: np.random.Generator,
    kind: str,
    launch_sd: "float | np.ndarray",
    true_s: np.ndarray,
    round_sd: float = ROUND_SD,
) -> np.ndarray:
    """Return the rounds of a campaign's launches, in the order in which they were made.

    Args:
        draw: Where the noise comes from.
        kind: A key of `KINDS`.
        launch_sd: Standard deviation of the logarithm of what a launch adds; of each point, with
            shape (num_points, 1), where they differ.
        true_s: Time of each point in each launch, shape (num_launches, num_points), seconds.
        round_sd: Standard deviation of the logarithm of what a round adds.

    Returns:
        Seconds, shape (num_launches, num_points, ROUNDS).
    """
    num_launches, num_points = true_s.shape
    own = KINDS[kind](draw, (num_launches, num_points))
    common = KINDS[kind](draw, (num_launches, 1))
    shared = SHARED_OF.get(kind, SHARED)
    added = np.sqrt(1 - shared) * own + np.sqrt(shared) * common
    each = draw.standard_normal((num_launches, num_points, ROUNDS))
    return true_s[..., None] * np.exp(launch_sd * added[..., None] + round_sd * each)


def rates(rounds_s: np.ndarray) -> np.ndarray:
    """Return what a report sees of `round_times`: the rate of each launch's median round.

    Returns:
        Steps per second, shape (num_launches, num_points).
    """
    return 1 / np.median(rounds_s, axis=-1)


def interleaved(draw: np.random.Generator, num_launches: int) -> tuple[list[int], list[int]]:
    """Return which launches of a campaign are A's and B's: of each two, in random order, one."""
    firsts = draw.integers(0, 2, num_launches)
    a = [2 * i + int(first) for i, first in enumerate(firsts)]
    return a, [4 * i + 1 - index for i, index in enumerate(a)]
