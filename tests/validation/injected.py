"""Campaigns of cases whose loss of time is known, and what a report says of each.

Six cases are measured at one rank and at two (`samples/injected_cases.py`), the launches side by
side, since what they do most is sleep.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import launched

from lockstep.report.compute import attribution
from lockstep.report.compute.scaling import Series, series_of
from lockstep.report.load.reading import load
from lockstep.report.page.panels import losses

# What each scenario loses its 20 ms to, see `samples/injected_cases.py`.
TRUTH = {
    "nothing": None,
    "straggler": "imbalance",
    "in_turn": "imbalance",
    "hook_on_all": "exposed",
    "hook_on_one": "exposed",
    "compute": "contention",
}
# Of the true cause: what a busy machine really adds may be named beside it, and not as its equal.
MOST_BESIDE = 1 / 3
NO_EVIDENCE = "not enough evidence"
REPEATS = 3
PATIENCE_S = 240
OPTIONS = ("bench", "-q", "--size=smoke", "--device=cpu", "--threads-per-rank=1", "--rounds=4")


def measure(folder: Path, repeats: int = REPEATS) -> Path:
    """Measure the six cases in so many launches of each size, and return where they are."""
    launched.suite(folder, launched.SAMPLES / "injected_cases.py")
    found = folder / "found"
    found.mkdir()
    jobs = [(size, repeat) for repeat in range(repeats) for size in (2, 1)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda job: _launch(folder, found, *job), jobs))
    return found


def _launch(folder: Path, found: Path, world_size: int, repeat: int) -> None:
    torchrun = ("torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", "-m")
    start = torchrun if world_size > 1 else ()
    path = found / f"w{world_size}-r{repeat}.json"
    command = [sys.executable, "-m", *start, "pytest", *OPTIONS, f"--benchmark-json={path}"]
    env = launched.environ(folder, FAULT="none") | {"PYTHONPATH": f"{folder}:{launched.SAMPLES}"}
    ended = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


@dataclass(frozen=True)
class Judged:
    """What a report says of one scenario, beside what is true.

    Attributes:
        scenario: One of `TRUTH`.
        said: The cause that is named first; `little lost`, or `not enough evidence`.
        beside: Each further cause that is named, with its share of the first.
        is_right: Whether the true cause is named first and no other beyond `MOST_BESIDE` of it, or
            none is and none may be.
        sentence: The report's own; empty where it has none.
    """

    scenario: str
    said: str
    beside: dict[str, float]
    is_right: bool
    sentence: str


def judged(found: Path) -> list[Judged]:
    """Return what a report of the launches says of each scenario."""
    series = {one.row.workload.rpartition("=")[2]: one for one in series_of(load([found]).rows)}
    return [_judged(scenario, series[scenario]) for scenario in TRUTH]


def _judged(scenario: str, series: Series) -> Judged:
    point = series.points[-1]
    lost = attribution.loss(series, point)
    assert lost is not None
    text = losses.sentence(series, point) or ""
    truth = TRUTH[scenario]
    if lost.kind == "little":
        return Judged(scenario, "little lost", {}, truth is None, text)
    if lost.kind == "open":
        return Judged(scenario, NO_EVIDENCE, {}, True, text)
    first, *others = lost.named
    beside = {part.cause: part.seconds / first.seconds for part in others}
    right = first.cause == truth and all(share <= MOST_BESIDE for share in beside.values())
    return Judged(scenario, first.cause, beside, right, text)
