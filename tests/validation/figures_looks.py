"""False claims of compare and gate over looks at a growing campaign, and what a single look finds.

    python tests/validation/figures_looks.py [--draws N]

A campaign has 2, 3 or 5 launches a side (of jobs: so many jobs of two launches each), and a family
of 1, 4 or 8 points. Who looks twice doubles it; who looks eight times adds a launch at a time. All
judging is the product's: `judge` and the verdicts of `gate`, at the share that `looks` gives.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import noise  # noqa: E402, this script's own folder

from lockstep.report import looks  # noqa: E402
from lockstep.report.compare import judging  # noqa: E402
from lockstep.report.compute import replicates, statistics  # noqa: E402
from lockstep.report.gate import gates  # noqa: E402
from lockstep.report.gate.targets import Targets  # noqa: E402
from lockstep.report.load.results import Results, Row  # noqa: E402

KINDS = (
    *("normal", "heavy tails", "skew", "modes of launches", "modes of points", "modes of jobs"),
    "drift with memory",
)
SIDES, FAMILIES, LOOKS = (2, 3, 5), (1, 4, 8), (1, 2, 8)
LAUNCH_SD = 0.02
DRAWS, GATE_DRAWS, POWER_DRAWS = 1000, 400, 1000
SLOWER, TARGET, BELOW = 1.05, 0.8, 0.98
CLAIMS = {judging.FASTER, judging.SLOWER}
# Largest campaign that the advice of compare is followed to.
MOST = 40


def sizes(side: int, num_looks: int) -> list[int]:
    """Return the launches a side at each look."""
    return [side, 2 * side][:num_looks] if num_looks < 3 else [side + i for i in range(num_looks)]


def shares(command: str, num_looks: int) -> list[float]:
    """Return what each of several looks may spend, the first of which is the planned one."""
    return [looks.spend(command, [True] + [False] * (i - 1) if i else [], True).share
            for i in range(num_looks)]  # fmt: skip


def drawn(
    draw: np.random.Generator, kind: str, side: int, slower: np.ndarray, sd: float = LAUNCH_SD
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rates of A's and B's units, shape (num_units, num_points), in order of time."""
    each = 2 if kind == "modes of jobs" else 1
    a, b = noise.interleaved(draw, side * each)
    true_s = np.ones((2 * side * each, len(slower)))
    true_s[b] = slower
    rates = noise.rates(noise.round_times(draw, kind, sd, true_s))
    return tuple(_units(rates[index], each) for index in (a, b))  # type: ignore[return-value]


def _units(rates: np.ndarray, each: int) -> np.ndarray:
    """Return what compare takes for independent: launches, or the mean of those of a job."""
    rows = [Row("l", "c", "strong", "w", 1, 1.0, job=str(i // each)) for i in range(len(rates))]
    return np.array([replicates.independent(rows, one) for one in rates.T.tolist()]).T


def claims(
    a: np.ndarray, b: np.ndarray, counts: Sequence[int], spent: Sequence[float]
) -> Iterator[bool]:
    """Tell of each look whether some point is said to differ."""
    for count, share in zip(counts, spent, strict=True):
        pairs = list(zip(a[:count].T.tolist(), b[:count].T.tolist(), strict=True))
        judged, _ = judging.judge(pairs, allowed=0.05 * share)
        yield any(one.verdict in CLAIMS for one in judged)


def compare_false(kind: str, side: int, points: int, draws: int) -> list[float]:
    """Return the share of equal campaigns with a false claim, of 1, 2 and 8 looks."""
    draw = np.random.default_rng(7)
    counts = [sizes(side, number) for number in LOOKS]
    spent = [shares("compare", number) for number in LOOKS]
    wrong = np.zeros(len(LOOKS))
    for _ in range(draws):
        a, b = drawn(draw, kind, max(map(max, counts)), np.ones(points))
        wrong += [any(claims(a, b, *of)) for of in zip(counts, spent, strict=True)]
    return (wrong / draws).tolist()


def advice_false(kind: str, points: int, draws: int) -> list[float]:
    """Return the share of equal campaigns with a claim by who measures as many as compare says."""
    draw = np.random.default_rng(8)
    wrong, launches, spent = 0, [], shares("compare", 2)
    for _ in range(draws):
        a, b = drawn(draw, kind, MOST, np.ones(points))
        pairs = list(zip(a[:3].T.tolist(), b[:3].T.tolist(), strict=True))
        judged, error = judging.judge(pairs, allowed=0.05 * spent[0])
        is_wrong = any(one.verdict in CLAIMS for one in judged)
        noisy = [one.spread or 0.0 for one in judged if one.verdict == judging.UNKNOWN]
        if noisy and not is_wrong:
            needed = statistics.launches_needed(max(noisy), 0.03, error * spent[1] / spent[0])
            launches.append(min(needed or MOST, MOST))
            is_wrong = any(claims(a, b, launches[-1:], spent[1:]))
        wrong += is_wrong
    return [wrong / draws, float(np.mean(launches))]


def power(side: int, points: int, sd: float, draws: int) -> list[float]:
    """Return how often one slow point is found: as before and as planned."""
    draw = np.random.default_rng(9)
    slower = np.array([SLOWER] + [1.0] * (points - 1))
    found = np.zeros(2)
    for _ in range(draws):
        a, b = drawn(draw, "normal", side, slower, sd)
        pairs = list(zip(a.T.tolist(), b.T.tolist(), strict=True))
        with (
            patch.object(judging, "FEW_LAUNCHES", 0),
            patch.object(statistics, "LEAST_OF_MEDIAN", 0.0),
        ):
            before = judging.judge(pairs)[0][0]
        planned = judging.judge(pairs, allowed=0.05 * shares("compare", 1)[0])[0][0]
        found += [one.verdict == judging.SLOWER for one in (before, planned)]
    return (found / draws).tolist()


def ladder(
    draw: np.random.Generator, kind: str, units: int, goals: Sequence[float], in_one_job: bool
) -> list[list[Row]]:
    """Return the rows of each unit, a launch or a job of two, of ladders of one and two ranks.

    Args:
        draw: Where the noise comes from.
        kind: A key of `noise.KINDS`.
        units: Units of each world size, measured in turn.
        goals: True efficiency at two ranks of each ladder.
        in_one_job: Whether all launches of a world size share the nodes of one job.
    """
    each = 2 if kind == "modes of jobs" else 1
    order = noise.interleaved(draw, units * each)
    rates = noise.rates(
        noise.round_times(draw, kind, LAUNCH_SD, np.ones((2 * units * each, len(goals))))
    )
    if in_one_job:
        for index in order:
            rates[index] *= np.exp(draw.normal(0, LAUNCH_SD, len(goals)))
    made: list[list[Row]] = [[] for _ in range(units)]
    for size, index in zip((1, 2), order, strict=True):
        for launch, own in enumerate(rates[index].tolist()):
            job = f"{size}" if in_one_job else f"{size}-{launch // 2}" if each > 1 else None
            made[launch // each] += [
                Row(f"l{launch}", f"c{i}", "strong", "w", size, rate * (2 * goal) ** (size - 1),
                    scaling="strong", job=job)
                for i, (rate, goal) in enumerate(zip(own, goals, strict=True))
            ]  # fmt: skip
    return made


def gate_false(
    kind: str, side: int, points: int, truth: float, draws: int, in_one_job: bool = False
) -> list[float]:
    """Return how often a gate is passed though a target is not exceeded, of 1, 2 and 8 looks.

    The true efficiency of one ladder is so much of the target, that of the others far above it.
    """
    draw = np.random.default_rng(10)
    counts = [sizes(side, number) for number in LOOKS]
    spent = [shares("gate", number) for number in LOOKS]
    passed = np.zeros(len(LOOKS))
    wanted = Targets(schema=1, parallel_efficiency={"2": TARGET})
    goals = [truth * TARGET, *[1.2 * TARGET] * (points - 1)]
    for _ in range(draws):
        units = ladder(draw, kind, max(map(max, counts)), goals, in_one_job)
        known = {
            count: list(map(gates.doubt_one_job, gates.verdicts(wanted, _results(units[:count]))))
            for count in {count for of in counts for count in of}
        }
        passed += [
            any(_is_met(known[count], share) for count, share in zip(*of, strict=True))
            for of in zip(counts, spent, strict=True)
        ]
    return (passed / draws).tolist()


def _results(units: Sequence[Sequence[Row]]) -> Results:
    return Results(rows=[row for unit in units for row in unit])


def _is_met(judged: Sequence[gates.Verdict], share: float) -> bool:
    return all(verdict.widen(share).verdict == gates.MET for verdict in judged)


def cell(share: float, draws: int, most: float) -> str:
    """Return a share in per cent with its 95 % bounds, marked where they lie above the goal."""
    low, high = binomtest(round(share * draws), draws).proportion_ci(method="wilson")
    mark = "!" if low > most else "?" if share > most else " "
    return f"{100 * share:4.1f} ({100 * low:.1f} to {100 * high:.1f}){mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=float, default=1.0, help="times the usual number of draws")
    times = parser.parse_args().draws
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    draws, gate_draws, power_draws = (int(times * n) for n in (DRAWS, GATE_DRAWS, POWER_DRAWS))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        cells = [(k, s, p) for k in KINDS for s in SIDES for p in FAMILIES]
        compared = [pool.submit(compare_false, *one, draws) for one in cells]
        gated = [pool.submit(gate_false, *one, 1.0, gate_draws) for one in cells]
        below = [(k, s, False) for k in KINDS for s in SIDES] + [("normal", s, True) for s in SIDES]
        under = [pool.submit(gate_false, k, s, 1, BELOW, draws, j) for k, s, j in below]
        advised = [(k, p) for k in ("normal", "modes of points") for p in FAMILIES]
        followed = [pool.submit(advice_false, *one, draws) for one in advised]
        powers = [(s, p, sd) for s in SIDES for p in FAMILIES for sd in (0.02, 0.01)]
        found = [pool.submit(power, *one, power_draws) for one in powers]

        print("false claims of compare over looks, %: goal at most 5; ! above it, ? perhaps")
        _table(cells, compared, draws, 0.05)
        print("\nfalse claims of compare, its advice followed once from 3 a side: goal at most 5 %")
        for (kind, points), one in zip(advised, followed, strict=True):
            share, mean = one.result()
            said = cell(share, draws, 0.05)
            print(f"{kind:<18} {points} points  {said}  {mean:.0f} launches on average")
        print("\ngates passed with one target exactly at the truth, over looks, %: goal at most 5")
        _table(cells, gated, gate_draws, 0.05)
        print("\ngates passed with the truth 2 % below the target, over looks, %: goal at most 1")
        names = [(f"{k}, one job" if j else k, s, 1) for k, s, j in below]
        _table(names, under, draws, 0.01)
        print("\n5 % slower, one point: share found at the planned look; goal 0.9 of before")
        print("a side points  vary  before  planned  ratio")
        for (side, points, sd), one in zip(powers, found, strict=True):
            before, planned = one.result()
            ratio = planned / before if before else 1.0
            mark = "" if ratio >= 0.9 else "  NO"
            shown = f"{100 * before:>6.1f}  {100 * planned:>7.1f}  {ratio:>5.2f}"
            print(f"{side:>6} {points:>6} {100 * sd:>3.0f} %  {shown}{mark}")


def _table(
    cells: Sequence[tuple[str, int, int]],
    done: Sequence["Future[list[float]]"],
    draws: int,
    most: float,
) -> None:
    print(f"{'noise':<18} a side points  " + "".join(f"{n} looks".ljust(22) for n in LOOKS))
    for (kind, side, points), one in zip(cells, done, strict=True):
        said = "".join(cell(share, draws, most).ljust(22) for share in one.result())
        print(f"{kind:<18} {side:>6} {points:>6}  {said}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
