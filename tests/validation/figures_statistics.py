"""How often the intervals hold and the findings are wrong, on ladders drawn with known truth.

    python tests/validation/figures_statistics.py

prints, for every kind of noise and number of launches, the share of efficiency intervals that
contain the true efficiency, and the share of intervals of a rate that contain the true geometric
mean, and the true median, of a launch's rate;
then the same where each job has nodes of its own, whose effect is as large as the launch noise, for
launches of one job and for launches of several; then how often noise alone is taken for something
odd. Goal of the first: 93 to 97 %.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import noise  # noqa: E402, this script's own folder

from lockstep.report.compute import diagnosis  # noqa: E402
from lockstep.report.compute.scaling import series_of  # noqa: E402
from lockstep.report.load.results import Row  # noqa: E402

SIZES = (1, 2, 4, 8)
LAUNCHES = (3, 5, 10)
NUM_LADDERS = 2000
LAUNCH_SD = 0.02
GOAL = (0.93, 0.97)
# Launches drawn to know the centres of their rates by.
NUM_DRAWN = 100_000
# What a launch is to find, from its first round to its last, and how its rounds vary.
DRIFT, ROUND_SD = 0.1, 0.02
# Rounds of the sizes laptop, node and cluster, and more.
NUM_ROUNDS = (8, 12, 20, 30, 50)


def true_s(world_size: int) -> float:
    return 0.01 + 0.1 / world_size + 0.002 * np.log2(world_size)


def ladder(draw: np.random.Generator, kind: str, launches: int) -> list[Row]:
    """Return a ladder's rows: each repeat measures all sizes in random order, as campaigns do."""
    order = [int(size) for _ in range(launches) for size in draw.permutation(SIZES)]
    truth = np.array([[true_s(size)] for size in order])
    rates = noise.rates(noise.round_times(draw, kind, LAUNCH_SD, truth))[:, 0]
    return [
        Row(f"l{i}", "c", "strong", "w", size, float(rate), scaling="strong")
        for i, (size, rate) in enumerate(zip(order, rates, strict=True))
    ]


def hits(kind: str, launches: int, ladders: int) -> float:
    """Return the share of intervals of an efficiency that contain the truth."""
    draw = np.random.default_rng(0)
    held = []
    for _ in range(ladders):
        (series,) = series_of(ladder(draw, kind, launches))
        for point in series.points[1:]:
            truth = true_s(1) / true_s(point.world_size) / point.world_size
            assert point.efficiency_interval
            low, high = point.efficiency_interval
            held.append(low <= truth <= high)
    return sum(held) / len(held)


def job_hits(jobs: int, launches: int, ladders: int, over_jobs: bool = True) -> float:
    """Return the share of efficiency intervals that hold where each job's nodes differ by 2 %.

    Args:
        jobs: Jobs of each world size.
        launches: Launches in each job.
        ladders: Ladders drawn.
        over_jobs: Whether the launches name their jobs; without, all count as independent.
    """
    draw = np.random.default_rng(3)
    held = []
    for _ in range(ladders):
        rows = []
        for size in (1, 4):
            nodes = np.repeat(draw.normal(0, LAUNCH_SD, jobs), launches)
            noise_of_launches = draw.normal(0, LAUNCH_SD, jobs * launches)
            rates = np.exp(nodes + noise_of_launches) / true_s(size)
            names = [f"{size}-{number}" for number in np.repeat(np.arange(jobs), launches)]
            rows += [
                Row("l", "c", "strong", "w", size, float(rate), scaling="strong",
                    job=name if over_jobs else None)
                for rate, name in zip(rates, names, strict=True)
            ]  # fmt: skip
        (series,) = series_of(rows)
        low, high = series.points[1].efficiency_interval or (0.0, 0.0)
        held.append(low <= true_s(1) / true_s(4) / 4 <= high)
    return sum(held) / len(held)


def print_jobs() -> None:
    print("\nefficiency intervals that hold, nodes of a job differ as much as launches")
    print(f"{'jobs':>4} {'launches of each':>16}  {'over launches':>13}  {'as reported':>11}")
    for jobs, launches in ((1, 3), (1, 5), (1, 10), (2, 3), (3, 3), (5, 2), (3, 1), (5, 1)):
        pooled, own = (
            job_hits(jobs, launches, NUM_LADDERS, over_jobs) for over_jobs in (False, True)
        )
        note = "  within one job, and said to be" if jobs == 1 else ""
        print(f"{jobs:>4} {launches:>16}  {pooled:>12.1%}  {own:>11.1%}{note}")


def centres(kind: str) -> tuple[float, float]:
    """Return geometric mean and median of a launch's rate, over the rate of the true time."""
    draw = np.random.default_rng(2)
    drawn = noise.rates(noise.round_times(draw, kind, LAUNCH_SD, np.ones((NUM_DRAWN, 1))))
    return float(np.exp(np.log(drawn).mean())), float(np.median(drawn))


def rate_hits(kind: str, launches: int, ladders: int) -> tuple[float, float]:
    """Return the shares of intervals of a rate that contain its geometric mean and its median."""
    draw = np.random.default_rng(0)
    true_centres, held = np.array(centres(kind)), []
    for _ in range(ladders):
        (series,) = series_of(ladder(draw, kind, launches))
        for point in series.points:
            assert point.rate_interval
            low, high = np.array(point.rate_interval) * true_s(point.world_size)
            held.append((low <= true_centres) & (true_centres <= high))
    mean, middle = np.mean(held, axis=0).tolist()
    return mean, middle


def resembling(draw: np.random.Generator, kept: float, count: int) -> np.ndarray:
    """Return rounds that resemble the one before: a stationary AR(1), shape (100_000, count)."""
    values = draw.standard_normal((100_000, count))
    for i in range(1, count):
        values[:, i] = kept * values[:, i - 1] + np.sqrt(1 - kept**2) * values[:, i]
    return values


def power(count: int) -> float:
    """Return the share of launches of so many rounds in which a drift of 10 % is found."""
    draw = np.random.default_rng(3)
    drift = 1 + DRIFT * np.linspace(0, 1, count)
    rounds = drift * np.exp(ROUND_SD * draw.standard_normal((NUM_DRAWN, count)))
    return float(np.mean([bool(found) for found in diagnosis.flag_rounds(rounds)]))


def main() -> None:
    print(f"coverage of 95 % intervals, {NUM_LADDERS} ladders, launch noise {LAUNCH_SD:.0%}")
    print(f"{'noise':<16} {'launches':>8}  {'efficiency':>10}  {'rate: mean':>10}  {'median':>6}")
    for kind in noise.KINDS:
        for launches in LAUNCHES:
            share = hits(kind, launches, NUM_LADDERS)
            rate = rate_hits(kind, launches, NUM_LADDERS)
            good = "" if GOAL[0] <= share <= GOAL[1] else "  outside the goal"
            rates = f"{rate[0]:>10.1%}  {rate[1]:>6.1%}"
            print(f"{kind:<16} {launches:>8}  {share:>10.1%}  {rates}{good}", flush=True)
    print_jobs()
    print("\nsets of rounds of noise alone (5 %) with a finding, of 100,000")
    draw = np.random.default_rng(1)
    for count in NUM_ROUNDS:
        for name, values in (
            ("normal", draw.standard_normal((100_000, count))),
            ("heavy tails", draw.standard_t(3, (100_000, count)) / np.sqrt(3)),
            ("skew", draw.standard_exponential((100_000, count))),
            *((f"AR(1) {kept}", resembling(draw, kept, count)) for kept in (0.3, 0.5, 0.7)),
        ):
            odd = sum(map(bool, diagnosis.flag_rounds(np.exp(0.05 * values))))
            print(f"{count:>3} rounds, {name:<12} {odd}")
    print(
        f"\nlaunches in which a steady drift of {DRIFT:.0%} is found, rounds vary by {ROUND_SD:.0%}"
    )
    for count in (6, *NUM_ROUNDS):
        print(f"{count:>3} rounds {power(count):>6.1%}")


if __name__ == "__main__":
    main()
