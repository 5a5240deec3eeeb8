"""The laboratory: causes of known size are put into real training steps, and found again.

    python tests/validation/figures_lab.py [--out FILE] [--repeats 3] [--only SECTION,SECTION]

Two gloo ranks on two stand-in nodes, each with a core of its own, train a small net. Six causes in
three strengths, pairs of causes, clean runs, a rank that is slow in backward alone, and links of
doubled rate are measured (`lab_rank.py`) in an order drawn at random; `figures_of_lab.py` judges
what was found. Needs root, for network namespaces and a CPU quota, and a quiet machine with two
cores; it takes about half an hour. Measured runs are kept: with --judge only the
figures are printed.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import figures_of_lab  # noqa: E402, this script's own folder
import kept  # noqa: E402
from namespaces import linked  # noqa: E402

UNLIMITED = 20e9
# Memory given back and taken again costs page faults, many more in one step than in another.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
BLOCKS = 10
SEED = 1
ALL = ["full", "resident", "own", "half", "reduce"]
# What a run measures: the step with its faults, what it is held against, and the truth beside both.
STATES = {"fault": ALL, "base": ["full", "own"], "truth": ["full"], "none": ["full"]}
Fault = dict[str, float]
# cause -> its three strengths, weakest first; at each a list of faults, one a repeat in turn. A
# step takes about 60 ms, its gradients are half a megabyte.
CAUSES: dict[str, list[list[Fault]]] = {
    "link": [[{"link": 600e6}], [{"link": 200e6}], [{"link": 60e6}]],
    "hook": [[{"hook": 0.006}], [{"hook": 0.02}], [{"hook": 0.06}]],
    "rank": [
        [{"forward": 0.006}, {"backward": 0.006}, {"quota": 0.9}],
        [{"forward": 0.02}, {"backward": 0.02}, {"quota": 0.75}],
        [{"forward": 0.06}, {"backward": 0.06}, {"quota": 0.5}],
    ],
    "loader": [[{"loader": 0.006}], [{"loader": 0.02}], [{"loader": 0.06}]],
    "tiny": [[{"tiny": 2000}], [{"tiny": 7000}], [{"tiny": 20000}]],
    "cores": [[{"neighbour": 8}], [{"neighbour": 4}], [{"neighbour": 1}]],
}
# A property of the program, which what it is held against has as well. What a step costs by itself
# then shows without the fault alone.
IN_BASE = ("tiny",)
WITHOUT = ["full", "own", "half"]
# What a device does not feel: the steps of these runs are computed by the ranks' cores.
OF_CORES = {"quota", "neighbour"}
# Two ways to communicate slowly are one cause; what a program costs shows without a baseline, and
# what the cores cost with one.
NO_PAIRS = [("link", "hook"), ("tiny", "cores")]
PAIRS = [pair for pair in itertools.combinations(CAUSES, 2) if pair not in NO_PAIRS]
CLEAN_RUNS = 30
# Steps without synchronisation of a case that asks for a slow rank, clean and slowed by so much.
SLOW_TURNS = 12
SLOW_CASES = {0.0: 300, 0.05: 40, 0.10: 40, 0.20: 40}
STEP_S = 0.06
# Links whose doubling is predicted and measured, with one gradient bucket and with several.
RATES = (25e6, 50e6, 100e6, 200e6)
BUCKET_CAPS_MB = (None, 0.1)
DELAYS_S = (0.006, 0.012, 0.03, 0.06)


def causes(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the runs with one cause."""
    for cause, strengths in CAUSES.items():
        for strength, faults in enumerate(strengths):
            for repeat in range(repeats):
                fault = faults[repeat % len(faults)]
                yield _run("cause", [cause], fault, strength=strength, trace=True)


def pairs(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the runs with two causes of the middle strength."""
    for (one, other), repeat in itertools.product(PAIRS, range(max(repeats - 2, 1))):
        faults = [CAUSES[cause][1][repeat % len(CAUSES[cause][1])] for cause in (one, other)]
        yield _run("pair", [one, other], faults[0] | faults[1])


def clean(_repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the runs without a fault."""
    for _ in range(CLEAN_RUNS):
        yield _run("clean", [], {}, trace=True)


def slow(_repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the cases with a rank that is slow in backward alone."""
    for share, count in SLOW_CASES.items():
        for _ in range(count):
            yield {
                "section": "slow", "computes": "device", "share": share, "blocks": SLOW_TURNS,
                "states": {"fault": ["own"]}, "faults": {"fault": {"backward": share * STEP_S}},
            }  # fmt: skip


def changes(_repeats: int) -> Iterator[dict[str, Any]]:
    """Yield runs whose links are then doubled, or whose slow rank is mended."""
    for rate, cap in itertools.product(RATES, BUCKET_CAPS_MB):
        yield _changed("link twice as fast", {"link": rate}, {"link": 2 * rate}, cap)
    for delay in DELAYS_S:
        yield _changed("even ranks", {"backward": delay}, {}, None)


SECTIONS = {"cause": causes, "pair": pairs, "clean": clean, "slow": slow, "change": changes}


def _run(section: str, names: list[str], fault: Fault, **more: Any) -> dict[str, Any]:
    base = {name: value for name, value in fault.items() if name in IN_BASE}
    faults = {"fault": fault, "truth": fault, "base": base, "none": {}}
    computes = "cpu" if OF_CORES & set(fault) else "device"
    states = STATES | {"none": WITHOUT} if base else STATES
    return {"section": section, "computes": computes, "causes": names, "blocks": BLOCKS,
            "states": states, "faults": faults, **more}  # fmt: skip


def _changed(change: str, fault: Fault, other: Fault, cap: float | None) -> dict[str, Any]:
    states = {"fault": ["full", "own", "half", "reduce"], "changed": ["full"]}
    return {"section": "change", "computes": "device", "change": change, "blocks": BLOCKS,
            "states": states, "bucket_cap_mb": cap,
            "faults": {"fault": fault, "changed": other}}  # fmt: skip


def measure(plan: Sequence[dict[str, Any]], out: Path) -> None:
    """Measure the runs of a plan on two ranks, and add a line each to a file.

    Raises:
        RuntimeError: A rank failed.
    """
    here = str(Path(__file__).parent)
    env = os.environ | KEEP_MEMORY | {"PYTHONPATH": f"{ROOT}:{here}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, linked(UNLIMITED, ranks=2) as links:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        command = [sys.executable, f"{here}/lab_rank.py", str(path), str(out)]
        ranks = [
            subprocess.Popen([*rank.prefix, *command], env=env | dict(rank.env))
            for rank in links.ranks
        ]
        if any(rank.wait() for rank in ranks):
            raise RuntimeError("a rank of the laboratory failed; its error is above")


def main() -> int:
    """Measure what was asked for, and print the figures of all that is kept; 1 if a rank failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "lab.jsonl")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--computes", choices=["cpu", "device"], help="where every step computes")
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--judge", action="store_true", help="print the figures of what is kept")
    asked = parser.parse_args()
    is_lost = False
    if not asked.judge:
        plan = [run for name in asked.only.split(",") for run in SECTIONS[name](asked.repeats)]
        if asked.computes:
            plan = [run | {"computes": asked.computes} for run in plan]
        random.Random(SEED).shuffle(plan)  # noqa: S311
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        if asked.out.exists():
            asked.out.rename(asked.out.with_suffix(".before.jsonl"))
        with kept.going("laboratory") as part:
            measure(plan, asked.out)
        is_lost = part.is_lost
    figures_of_lab.show(asked.out)
    return int(is_lost)


if __name__ == "__main__":
    sys.exit(main())
