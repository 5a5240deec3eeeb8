"""Fuzz the ranks: launches whose cases misbehave at random, and what must hold after each.

A sequence is a launch of two or three ranks over a few cases, most of them healthy; in the others
some ranks raise, skip, hang, die or do another collective, in set-up, call or teardown, and some
hang once all is over. A failing sequence is printed as its plan, which `--plan FILE` repeats.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz_ranks_check
import fuzz_ranks_launch
import fuzz_ranks_plan
from fuzz_ranks_plan import Plan

EVERY = 50


@dataclass
class Result:
    """One sequence's end.

    Attributes:
        name: Its seed and number.
        plan: What it did.
        findings: What does not hold.
        ends: kind of end, and whether the case was healthy -> how many.
        faults: kind of fault -> how many were planned.
        num_launches: Launches made.
        num_unmet: Those of them whose ranks did not meet in time.
        longest: The largest share of its allowed time that a launch took.
        reasons: Why healthy cases failed.
    """

    name: str
    plan: Plan
    findings: list[str]
    ends: Counter[tuple[str, bool]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    num_launches: int = 0
    num_unmet: int = 0
    longest: float = 0.0
    reasons: list[str] = field(default_factory=list)


def fuzz(plan: Plan, name: str, keep: Path | None = None) -> Result:
    """Run a plan and judge it.

    Args:
        plan: What is to go wrong.
        name: How to call the sequence.
        keep: Where its files are to stay; nowhere by default.
    """
    folder = keep or Path(tempfile.mkdtemp(prefix="lockstep-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        sequence = fuzz_ranks_launch.run(plan, folder)
        return _result(name, sequence, fuzz_ranks_check.findings(sequence))
    finally:
        if keep is None:
            shutil.rmtree(folder)


def _result(name: str, sequence: fuzz_ranks_launch.Sequence, findings: list[str]) -> Result:
    plan = sequence.plan
    num_launches, num_unmet = len(sequence.launches), sequence.num_unmet
    result = Result(name, plan, findings, num_launches=num_launches, num_unmet=num_unmet)
    result.faults.update(fault.kind for case in plan.cases for fault in case)
    result.faults.update(["stuck"] * len(plan.stuck))
    shares = [one.seconds / fuzz_ranks_check.limit_s(one, plan) for one in sequence.launches]
    result.longest = max(shares, default=0.0)
    if findings and findings[0].startswith("a file cannot be read"):
        return result
    lines = fuzz_ranks_check.fenced(sequence.folder / "out.journal.jsonl")
    for line in (line for line in lines if line["kind"] in fuzz_ranks_check.ENDS):
        is_healthy = not plan.cases[fuzz_ranks_launch.case_number(line["case"])]
        result.ends[line["kind"], is_healthy] += 1
        if is_healthy and line["kind"] != "case":
            result.reasons.append(str(line.get("reason")))
    return result


def numbered(task: tuple[int, int, float]) -> Result:
    """Run the sequence of a seed and a number."""
    seed, number, patience = task
    name = f"{seed}/{number}"
    return fuzz(fuzz_ranks_plan.draw(Random(name), patience), name)  # noqa: S311, no secret


@dataclass
class Tally:
    """What all sequences came to."""

    num_sequences: int = 0
    num_launches: int = 0
    num_unmet: int = 0
    ends: Counter[tuple[str, bool]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    bad: list[Result] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        """Count one sequence."""
        self.num_sequences += 1
        self.num_launches += result.num_launches
        self.num_unmet += result.num_unmet
        self.ends += result.ends
        self.faults += result.faults
        self.longest = max(self.longest, result.longest)
        self.reasons.update(reason.splitlines()[-1][:160] for reason in result.reasons if reason)
        if result.findings:
            self.bad.append(result)

    @property
    def holds(self) -> bool:
        """Whether there was something to judge, and nothing was wrong."""
        return self.ends["case", True] > 0 and not self.bad

    def __str__(self) -> str:
        ends = ", ".join(
            f"{self.ends[kind, is_healthy]} {'healthy' if is_healthy else 'bad'} {word}"
            for word, kind in (("measured", "case"), ("skipped", "skip"), ("failed", "fail"))
            for is_healthy in (True, False)
        )
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.num_sequences} sequences, {self.num_launches} launches, "
            f"of which {self.num_unmet} did not meet in time\n"
            f"cases: {ends}\nfaults: {faults}\n"
            f"the longest launch took {self.longest:.0%} of what it may\n"
            f"{len(self.bad)} sequences with findings"
        )


def _show(result: Result) -> None:
    for finding in result.findings:
        _say(f"sequence {result.name}: {finding}")
    _say(f"sequence {result.name}: {result.plan.to_json()}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run what was asked for and return 1 if anything does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--jobs", type=int, default=3, help="sequences at once (default: 3)")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="multiply the ranks' time-outs (default: 1)"
    )
    parser.add_argument("--plan", type=Path, help="repeat this one and keep its files beside it")
    asked = parser.parse_args()
    fuzz_ranks_launch.prepare()
    if asked.plan:
        plan = fuzz_ranks_plan.read(asked.plan.read_text(encoding="utf-8"))
        result = fuzz(
            plan, asked.plan.name, Path(tempfile.mkdtemp(prefix="lockstep-fuzz-")).resolve()
        )
        _show(result)
        return 1 if result.findings else 0
    started, tally = time.monotonic(), Tally()
    tasks = [(asked.seed, number, asked.patience) for number in range(asked.sequences)]
    with multiprocessing.get_context("fork").Pool(asked.jobs) as pool:
        for result in pool.imap_unordered(numbered, tasks):
            tally.add(result)
            if result.findings:
                _show(result)
            if tally.num_sequences % EVERY == 0:
                _say(f"{tally.num_sequences} sequences, {time.monotonic() - started:.0f} s")
    _say(f"{tally}, {time.monotonic() - started:.0f} s")
    for reason, count in tally.reasons.most_common(10):
        _say(f"healthy but failed, {count} times: {reason}")
    if not tally.ends["case", True]:
        _say("no healthy case was measured: see what the ranks say with --plan")
    return 0 if tally.holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
