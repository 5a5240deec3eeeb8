"""Fuzz the ranks: launches whose cases misbehave at random, and what must hold after each.

A sequence is a launch of two or three ranks over a few cases, most of them healthy; in the others
some ranks raise, skip, hang, die or do another collective, in set-up, call or teardown, and some
hang once all is over. A failing sequence is printed with its plan.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import fork_server
import fuzz_ranks_check
import fuzz_ranks_launch
import fuzz_ranks_plan
from fuzz_ranks_plan import Plan

# What a sequence comes to: what does not hold, and how many launches and ends of each kind it had.
Result = tuple[list[str], Counter[str]]


def fuzz(task: tuple[int, int, float]) -> Result:
    """Run a sequence, print what does not hold, and return that with what was counted."""
    seed, number, patience = task
    name = f"{seed}/{number}"
    plan = fuzz_ranks_plan.draw(Random(name), patience)  # noqa: S311, no secret
    with tempfile.TemporaryDirectory(prefix="lockstep-fuzz-") as folder:
        return judged(plan, name, Path(folder))


def judged(plan: Plan, name: str, folder: Path) -> Result:
    sequence = fuzz_ranks_launch.run(plan, folder)
    findings = fuzz_ranks_check.findings(sequence)
    counted = Counter(launches=len(sequence.launches), unmet=sequence.num_unmet)
    counted.update(f"planned {fault.kind}" for case in plan.cases for fault in case)
    if not findings:
        for number, kind in fuzz_ranks_launch.ends(folder).items():
            counted[f"{'bad' if plan.cases[number] else 'healthy'} {kind}"] += 1
    else:
        said = [*findings, plan.to_json()]
        sys.stdout.write("".join(f"sequence {name}: {line}\n" for line in said))
        sys.stdout.flush()
    return findings, counted


def main() -> int:
    """Run what was asked for and return 1 if anything does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--jobs", type=int, default=3, help="sequences at once (default: 3)")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="multiply the ranks' time-outs (default: 1)"
    )
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-fuzz-server-") as folder,
        fork_server.serving(Path(folder)) as python,
    ):
        sys.executable = str(python)
        return fuzz_all(asked)


def fuzz_all(asked: argparse.Namespace) -> int:
    started, num_bad, total = time.monotonic(), 0, Counter[str]()
    tasks = [(asked.seed, number, asked.patience) for number in range(asked.sequences)]
    with ThreadPoolExecutor(asked.jobs) as pool:
        for findings, counted in pool.map(fuzz, tasks):
            num_bad, total = num_bad + bool(findings), total + counted
    counts = ", ".join(f"{count} {what}" for what, count in sorted(total.items()))
    took = f"{time.monotonic() - started:.0f} s"
    sys.stdout.write(f"{asked.sequences} sequences, {num_bad} with findings, {took}: {counts}\n")
    # Where no healthy case was measured, nothing was judged.
    return int(num_bad > 0 or not total["healthy case"])


if __name__ == "__main__":
    raise SystemExit(main())
