"""What `lockstep compare` claims wrongly and what it finds, beside the goals.

Simulated by default: pairs of equal campaigns under every kind of noise, then campaigns of which
one is slower by 5 %. With `--measured N DIR`, N pairs of equal campaigns are really measured, six
launches a pair, dealt in turn to A and B; it goes on where it was stopped.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import noise  # noqa: E402, this script's own folder
import parts  # noqa: E402

from lockstep.report.compare.judging import FASTER, SAME, SLOWER, judge  # noqa: E402

HEADER = ["figure", "measured", "goal", "reached"]
WIDTHS = ("<78", "<8", "<8", "<8")
LAUNCHES = 5
PAIRS = 1000
FAMILIES = (1, 4, 8)
LAUNCH_SDS = (0.005, 0.02, 0.03)
# One noisy point of eight; shape (num_points, 1).
ONE_NOISY = np.array([0.01] * 7 + [0.05])[:, None]
ONE_NOISY_QUIET = np.array([0.005] * 7 + [0.05])[:, None]
SLOWDOWN = 1.05
SIDES = ("a", "b")
LAUNCHES_A_SIDE = 3
LAUNCH = (
    *("-m", "strong or weak or precision", "--size", "smoke", "--device", "cpu"),
    *("--threads-per-rank", "1", "--rounds", "10", "--steps-per-round", "20", "--quiet"),
)


def verdicts(
    draw: np.random.Generator,
    kind: str,
    launch_sd: "float | np.ndarray",
    slower: np.ndarray,
    launches: int = LAUNCHES,
    in_turn: bool = True,
    round_sd: float = noise.ROUND_SD,
) -> list[str]:
    """Return the verdicts on one simulated pair of campaigns.

    Args:
        draw: Where the noise comes from.
        kind: A key of `noise.KINDS`.
        launch_sd: Standard deviation of the logarithm of what a launch adds.
        slower: Step time of B over that of A in each point, shape (num_points,).
        launches: Launches of each side.
        in_turn: Whether A and B are measured in turn; otherwise first A, then B.
        round_sd: Standard deviation of the logarithm of what a round adds.
    """
    a, b = noise.interleaved(draw, launches)
    if not in_turn:
        a, b = list(range(launches)), list(range(launches, 2 * launches))
    true_s = np.ones((2 * launches, len(slower)))
    true_s[b] = slower
    rates = noise.rates(noise.round_times(draw, kind, launch_sd, true_s, round_sd=round_sd))
    pairs = zip(rates[a].T.tolist(), rates[b].T.tolist(), strict=True)
    return [found.verdict for found in judge(list(pairs))[0]]


def false_claims(
    kind: str,
    points: int,
    launch_sd: "float | np.ndarray",
    pairs: int = PAIRS,
    seed: int = 0,
    in_turn: bool = True,
    launches: int = LAUNCHES,
) -> float:
    """Return the share of pairs of equal campaigns in which some point is said to differ."""
    draw = np.random.default_rng(seed)
    equal = np.ones(points)
    claimed = (
        {FASTER, SLOWER} & set(verdicts(draw, kind, launch_sd, equal, launches, in_turn))
        for _ in range(pairs)
    )
    return sum(map(bool, claimed)) / pairs


def power(points: int, all_slow: bool, pairs: int = PAIRS, seed: int = 0) -> tuple[float, float]:
    """Slow one point or all by 5 %, where launches vary by 2 % in all.

    Returns:
        Share of the slow points found slower, and of those called the same.
    """
    draw = np.random.default_rng(seed)
    slow = points if all_slow else 1
    factors = np.array([SLOWDOWN] * slow + [1.0] * (points - slow))
    said = [
        verdict
        for _ in range(pairs)
        for verdict in verdicts(draw, "normal", 0.02, factors, round_sd=0.0)[:slow]
    ]
    return said.count(SLOWER) / len(said), said.count(SAME) / len(said)


def simulated(pairs: int) -> Iterator[list[str]]:
    """Yield the rows of the table of simulated campaigns."""
    yield HEADER
    for kind in noise.KINDS:
        for points in FAMILIES:
            for sd in LAUNCH_SDS:
                share = false_claims(kind, points, sd, pairs)
                name = f"A/A false claims, {kind}, {points} points, launches vary {100 * sd:g} %"
                yield _row(name, share, "<=", 0.05)
    for sds in (ONE_NOISY_QUIET, ONE_NOISY):
        for launches in (2, LAUNCHES_A_SIDE, LAUNCHES):
            share = false_claims("normal", len(sds), sds, pairs, launches=launches)
            name = f"A/A false claims, normal, 5 % in one point, {100 * sds[0, 0]:g} % in seven"
            yield _row(f"{name}, {launches} launches", share, "<=", 0.05)
    apart = false_claims("drift", 4, 0.02, pairs, in_turn=False)
    yield ["A/A false claims, drift, 4 points, first all of A", f"{100 * apart:.1f} %", "", ""]
    for points in FAMILIES:
        for all_slow in (True, False) if points > 1 else (True,):
            found, same = power(points, all_slow, pairs)
            name = f"5 % slower, {points if all_slow else 1} of {points} points, 2 %, 5 launches"
            yield _row(f"{name}: found", found, ">=", 0.90)
            yield _row(f"{name}: called the same", same, "<=", 0.05)


def _row(name: str, share: float, sign: str, goal: float) -> list[str]:
    reached = share <= goal if sign == "<=" else share >= goal
    return [name, f"{100 * share:.1f} %", f"{sign} {100 * goal:.0f} %", "yes" if reached else "NO"]


def measured(num_pairs: int, folder: Path) -> list[list[str]]:
    """Measure pairs of equal campaigns and return the row of what compare says of them."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong = points = open_points = 0
    for number in range(num_pairs):
        said = _measured_pair(folder / f"pair-{number:03}", number)
        sys.stderr.write(f"pair {number}: {', '.join(said)}\n")
        wrong += bool({FASTER, SLOWER} & set(said))
        points += len(said)
        open_points += len(said) - said.count(SAME)
    name = f"A/A false claims, {num_pairs} measured pairs, {points} points, {open_points} not same"
    return [HEADER, _row(name, wrong / num_pairs, "<=", 0.05)]


def _measured_pair(folder: Path, seed: int) -> list[str]:
    """Measure one pair, of each two launches one for A in random order, and compare."""
    a, _ = noise.interleaved(np.random.default_rng(seed), LAUNCHES_A_SIDE)
    for launch in range(2 * LAUNCHES_A_SIDE):
        result = folder / SIDES[launch not in a] / f"{launch}.json"
        if not result.exists():
            result.parent.mkdir(parents=True, exist_ok=True)
            _run("-m", "pytest", str(ROOT / "bench"), *LAUNCH, f"--benchmark-json={result}")
    sides = (str(folder / side) for side in SIDES)
    text = _run("-m", "lockstep", "compare", *sides, "--json", codes=(0, 1))
    return [point["verdict"] for point in json.loads(text)["points"]]


def _run(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command of Python's and return what it prints.

    Raises:
        RuntimeError: It ended otherwise than with one of the codes.
    """
    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in codes:
        raise RuntimeError(f"python {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="simulated pairs of each figure")
    parser.add_argument("--measured", nargs=2, metavar=("N", "DIR"), help="measure N pairs in DIR")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: Iterable[list[str]] = simulated(asked.pairs)
    if asked.measured:
        rows = measured(int(asked.measured[0]), Path(asked.measured[1]))
    for row in rows:
        print(parts.line(row, WIDTHS), flush=True)


if __name__ == "__main__":
    main()
