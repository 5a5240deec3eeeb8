"""The suite's own performance figures, each beside its goal: what `make bench` prints.

A figure is a ratio of two times taken in turn on the same machine: it can be read on a busy machine
too, with its spread over the repeats. No figure that misses its goal fails this script. One that
cannot be measured is named with its reason, and then the exit code is 1.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import figures_runner  # noqa: E402, this script's own folder
import parts  # noqa: E402
from data.report_samples import document, record  # noqa: E402
from pytest_benchmark.stats import Stats  # noqa: E402

from lockstep.core.record import KEY  # noqa: E402

POINTS = (1_000, 10_000)
STUDIES = ("strong", "weak", "precision", "bucket", "sensitivity", "accumulation")
DATE = "2026-01-01T00:00:00+00:00"
# One case of the weak study, whose rounds take seconds: 5 warm-up rounds and 12 of 5 steps.
LONG_CASE = (
    *("bench", "-m", "weak", "-q", "--size=smoke", "--device=cpu", "--rounds=12"),
    *("--warmup-rounds=5", "--steps-per-round=5", "--workload=mlp:width=512,depth=3"),
)
SAME_CASES = "tests/samples/same_cases.py"
# A ratio within a launch of six steps a case is noisy.
FIRST_REPEATS = 4


@dataclass(frozen=True)
class Figure:
    """One number beside its goal.

    Attributes:
        name: What was compared.
        values: One ratio per repeat.
        goal: Largest value that is good.
        note: What a reader must know to judge it.
    """

    name: str
    values: list[float]
    goal: float
    note: str = ""

    @property
    def measured(self) -> float:
        """Median over the repeats."""
        return median(self.values)

    def row(self) -> list[str]:
        """Return the figure as a line of the table."""
        spread = f"{min(self.values):.4g}..{max(self.values):.4g}"
        verdict = "yes" if self.measured <= self.goal else "NO"
        cells = [self.name, f"{self.measured:.4g}", f"<= {self.goal:.4g}", verdict, spread]
        return [*cells, str(len(self.values)), self.note]


HEADER = ["figure", "measured", "goal", "reached", "spread", "n", "note"]
WIDTHS = ("<62", "<8", "<9", "<7", "<15", "<2", "")


@dataclass(frozen=True)
class Bench:
    """Where the measured commands run."""

    folder: Path
    repeats: int

    def wall_s(self, command: Sequence[str]) -> float:
        """Return how long a command takes; its output is shown only if it fails.

        Raises:
            RuntimeError: The command failed.
        """
        start = time.perf_counter()
        self.output(command)
        return time.perf_counter() - start

    def output(self, command: Sequence[str]) -> str:
        """Return what a command prints.

        Raises:
            RuntimeError: The command failed.
        """
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        # Bytecode is cached, as where a user works; without it imports would take several times
        # as long and flatter every figure that divides by them.
        unset = {"PYTHONDONTWRITEBYTECODE", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        cache = {"PYTHONPYCACHEPREFIX": str(self.folder / "bytecode")}
        return kept | cache | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def torchrun(world_size: int, *command: str) -> list[str]:
    """Return the command line of a launch on this machine."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    return [*launcher, *command]


def runner(bench: Bench) -> list[Figure]:
    """Does a step of the runner take longer than a bare DDP loop's, or while it is sampled?"""
    figures = []
    for world_size in (1, 2):
        found = [_ratios(bench, world_size) for _ in range(bench.repeats)]
        for name, plan in figures_runner.PLANS.items():
            note = f"{plan.workload}, {plan.turns * plan.rounds} rounds of each a launch, in turn"
            ratios = [launch[name] for launch in found]
            figures.append(Figure(f"{name}, world size {world_size}", ratios, plan.goal, note))
    return figures


def _ratios(bench: Bench, world_size: int) -> dict[str, float]:
    path = bench.folder / "ratios.json"
    path.unlink(missing_ok=True)
    try:
        bench.output(torchrun(world_size, figures_runner.__file__, str(path)))
    except RuntimeError:
        # Gloo's threads may abort a process that has left and ends; the ratios stand by then.
        if not path.exists():
            raise
    ratios: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return ratios


def first(bench: Bench) -> list[Figure]:
    """Does the first case of a launch take longer than the same case later in it?"""
    found: dict[str, list[float]] = {"warmed": [], "cold": []}
    for _ in range(max(bench.repeats, FIRST_REPEATS)):
        for name, values in found.items():
            values.append(_first_over_later(bench, f"{SAME_CASES}::test_{name}"))
    cold = found["cold"]
    spread = f"{min(cold):.4g}..{max(cold):.4g}"
    note = f"world size 2, smoke size; without its warm-up {median(cold):.4g}, {spread}"
    return [Figure("first case of a launch / the same later", found["warmed"], 1.05, note)]


def _first_over_later(bench: Bench, node: str) -> float:
    """Return the median round of a launch's first case over that of its others in the median."""
    path = bench.folder / "first.json"
    bench.output(_measure(path, node, "--workload=mlp:width=512,depth=4"))
    held = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    held.sort(key=lambda one: one["extra_info"][KEY]["position"])
    head, *later = (float(one["stats"]["median"]) for one in held)
    return head / median(later)


def _measure(path: Path, *selection: str) -> list[str]:
    options = ("--size=smoke", "--device=cpu", f"--benchmark-json={path}")
    return torchrun(2, "-m", "pytest", *selection, "-q", *options)


def causes(bench: Bench) -> list[Figure]:
    """What does it cost a case to say where its time goes, the start taken off both?"""
    values = []
    for _ in range(bench.repeats):
        start_s, without_s, with_s = (
            bench.wall_s(torchrun(2, "-m", "pytest", *LONG_CASE, *more))
            for more in (("--benchmark-disable",), ("--no-causes",), ())
        )
        values.append((with_s - start_s) / (without_s - start_s))
    return [Figure("a case / the same with --no-causes", values, 1.6, "2 ranks, 85 steps")]


def in_turn(bench: Bench, pair: Sequence[Sequence[str]], repeats: int) -> list[tuple[float, float]]:
    """Return the wall times of two commands, taken in turn, after one untimed run of each."""
    for command in pair:
        bench.output(command)
    return [(bench.wall_s(pair[0]), bench.wall_s(pair[1])) for _ in range(repeats)]


def report(bench: Bench) -> list[Figure]:
    """Is our report as quick as pytest-benchmark's own table, does its time grow, and its page?"""
    few, many = (_report_times(bench, num_points) for num_points in POINTS)
    note = f"two files of generated cases, {POINTS[0]} or {POINTS[1]} points, 20 rounds each"
    growth = [long / short for (long, _), (short, _) in zip(many, few, strict=True)]
    ratios = [
        Figure(
            f"lockstep report / pytest-benchmark compare, {num_points} points",
            [ours / theirs for ours, theirs in times],
            1.0,
            f"{median(ours for ours, _ in times):.3g} s / {median(s for _, s in times):.3g} s",
        )
        for num_points, times in zip(POINTS, (few, many), strict=True)
    ]
    size = (bench.folder / f"{POINTS[1]}.html").stat().st_size / 1e6
    return [
        *ratios,
        Figure("lockstep report, ten times the points", growth, 10.0, note),
        Figure(f"page of {POINTS[1]} points, MB", [size], 5.0),
    ]


def _report(bench: Bench, num_points: int) -> tuple[str, ...]:
    """Return the command that makes the page of so many points, one launch of each world size."""
    paths = []
    for world_size in (1, 2):
        draw = random.Random(world_size)  # noqa: S311, no secret
        cases = {}
        for number in range(num_points // 2):
            study = STUDIES[number % len(STUDIES)]
            step_s = 0.1 * draw.uniform(1.0, 1.05)
            factors = {"workload": f"mlp:width={number}", "local_batch": 64}
            rounds = [[step_s * draw.uniform(1.0, 1.05) for _ in range(20)]] * world_size
            case = record(study, world_size, factors=factors, rank_round_s=rounds)
            cases[f"test_{study}[workload=mlp:width={number}]"] = case
        content = document(f"w{world_size}-r0", world_size, cases)
        for entry in content["benchmarks"]:  # all that pytest-benchmark compares
            stats = Stats()
            for duration in entry["stats"]["data"]:
                stats.update(duration)
            entry["stats"] = stats.as_dict() | {"data": stats.data, "iterations": 1}
        paths.append(bench.folder / f"{num_points}-w{world_size}.json")
        machine = {"machine_info": {"node": "generated"}, "commit_info": {"id": "none"}}
        paths[-1].write_text(json.dumps(content | machine | {"datetime": DATE}), encoding="utf-8")
    page = str(bench.folder / f"{num_points}.html")
    return ("-m", "lockstep", "report", *map(str, paths), "--output", page)


def _report_times(bench: Bench, num_points: int) -> list[tuple[float, float]]:
    """Return seconds of `lockstep report` and of `pytest-benchmark compare`, per repeat."""
    ours = _report(bench, num_points)
    theirs = ("-m", "pytest_benchmark", "compare", *ours[3:-2])
    return in_turn(bench, (ours, theirs), bench.repeats)


FIGURES: dict[str, Callable[[Bench], list[Figure]]] = {
    "runner": runner,
    "causes": causes,
    "first": first,
    "report": report,
}


def main() -> int:
    """Measure what was asked for and print it; return 1 where a figure could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(FIGURES), action="append", help="measure only this")
    parser.add_argument("--repeats", type=int, default=2, help="repeats of each (default: 2)")
    asked = parser.parse_args()
    if asked.repeats < 1:
        parser.error(f"--repeats {asked.repeats} is not 1 or more")
    started = time.perf_counter()
    print(parts.line(HEADER, WIDTHS), flush=True)
    lost = False
    with tempfile.TemporaryDirectory(prefix="lockstep-figures-") as folder:
        bench = Bench(Path(folder), asked.repeats)
        for name in asked.only or FIGURES:
            found = parts.attempt(name, partial(FIGURES[name], bench))
            lost |= found is None
            for figure in found or ():
                print(parts.line(figure.row(), WIDTHS), flush=True)
    busy = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{time.perf_counter() - started:.0f} s, {busy}")
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())
