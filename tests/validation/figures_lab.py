"""The laboratory: causes of known size are put into real training steps, and found again.

    python tests/validation/figures_lab.py [--only SECTION,SECTION]

Two gloo ranks on two stand-in nodes, each with a core of its own, train a small net. Six causes in
three strengths, pairs of causes, clean runs, a rank that is slow in backward alone, and links of
doubled rate are measured (`lab_rank.py`) in an order drawn at random, and
judged. Needs root, for network namespaces and a CPU quota, and a quiet machine with two
cores; it takes about half an hour.
"""

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from namespaces import linked  # noqa: E402
from parts import line  # noqa: E402, this script's own folder

from lockstep.measure.causes import bound  # noqa: E402
from lockstep.measure.causes.bound import (  # noqa: E402
    Base,
    Bound,
    Buckets,
    LostCause,
    Share,
)
from lockstep.measure.causes.division import divide, resample, slow_rank  # noqa: E402

# What is put in -> the cause that is to be found.
TRUTH: dict[str, LostCause] = {
    "link": "exposed",
    "hook": "exposed",
    "rank": "imbalance",
    "loader": "input",
    "tiny": "fixed",
    "cores": "contention",
}
STRENGTHS = ("weak", "middle", "strong")
WIDTHS = (">13",) * 6
CONFIDENCE = 0.9
# The turns that tell what was put in; and of causes that a step has a little of by itself, those
# that tell how much.
PUT_IN = ("truth", "none")
NATURAL = {"exposed": "base", "imbalance": "base", "fixed": "none"}
NUM_DRAWS = 500


@dataclass(frozen=True)
class Judged:
    """One run with what was found in it.

    Attributes:
        run: Its plan and measurements.
        bound: What bounds its step.
        truth: Share of the step that was put in, by turns of its own.
        error: Standard error of that.
    """

    run: dict[str, Any]
    bound: Bound
    truth: float
    error: float

    def share(self, cause: LostCause) -> Share | None:
        """Return what was found of a cause."""
        return next((one for one in self.bound.shares if one.cause == cause), None)

    def found(self, cause: LostCause) -> float:
        """Return the share of the step that a cause is found to take."""
        share = self.share(cause)
        return share.seconds / self.bound.step_s if share else 0.0

    @property
    def named(self) -> set[LostCause]:
        """The causes that are shown."""
        return {share.cause for share in self.bound.named}

    @property
    def wanted(self) -> set[LostCause]:
        """The causes that were put in."""
        return {TRUTH[name] for name in self.run["causes"]}


def show(path: Path) -> None:
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    sections: dict[str, Callable[[list[dict[str, Any]]], None]] = {
        "cause": _causes,
        "pair": _pairs,
        "clean": _clean,
        "slow": _slow,
        "change": _changes,
    }
    for name, shown in sections.items():
        if found := [run for run in runs if run["section"] == name]:
            shown(found)
    if traced := [judged(run) for run in runs if run["share_of_trace"] is not None]:
        _traces(traced)


def judged(run: dict[str, Any], confidence: float = bound.CONFIDENCE) -> Judged:
    """Return what bounds a run's step, beside what is true."""
    turns = {state: _arrays(found) for state, found in run["seconds"].items()}
    # What a program costs every step shows without a baseline, which has it as well.
    has_base = "base" in turns and "tiny" not in run["causes"]
    bases = [Base(turns["base"])] if has_base else []
    buckets = Buckets(run["bytes"], run["lead_s"])
    found = bound.judge([turns["fault"]], bases, buckets, confidence)
    return Judged(run, found, *(_truth(run, turns) if "truth" in turns else (0.0, 0.0)))


def _truth(run: dict[str, Any], turns: dict[str, Any]) -> tuple[float, float]:
    """Return the share of the step that was put in, and its standard error.

    What the step takes longer with the fault, and what it takes of the cause without one, such as
    the communication that every step has; each by turns that what is found does not see.
    """
    named = TRUTH[run["causes"][0]] if len(run["causes"]) == 1 else None
    # Where the whole step alone was measured, its turns are usual as a step of its own is.
    states = {
        name: {"own": turns[name]["full"]} | turns[name] for name in ("truth", "none", "base")
    }

    def share(drawn: dict[str, Any]) -> Any:
        whole, without = (drawn[name]["full"].max(axis=-2).mean(axis=-1) for name in PUT_IN)
        natural = divide(drawn[NATURAL[named]])[named] if named in NATURAL else 0.0
        return (whole - without + natural) / whole

    draws = {
        name: resample(each, NUM_DRAWS, seed) for seed, (name, each) in enumerate(states.items())
    }
    return float(share(states)), float(np.std(share(draws)))


def _arrays(found: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(seconds) for name, seconds in found.items()}


def _causes(runs: list[dict[str, Any]]) -> None:
    each = [judged(run) for run in runs]
    print(f"\n{len(each)} runs with one cause: share of the step, put in and found")
    print(line(["cause", "strength", "put in", "found", "error", "verdict right"], WIDTHS))
    for name in TRUTH:
        for number, strength in enumerate(STRENGTHS):
            some = [one for one in each if one.run["causes"] == [name]
                    and one.run["strength"] == number]  # fmt: skip
            if some:
                shares = ([one.truth for one in some], [one.found(TRUTH[name]) for one in some])
                cells = [f"{fmean(each):.1%}" for each in (*shares, map(_error, some))]
                right = f"{sum(map(_is_right, some))} of {len(some)}"
                print(line([name, strength, *cells, right], WIDTHS))
    weak = [_error(one) for one in each if one.run["strength"] == 0]
    other = [_error(one) for one in each if one.run["strength"] > 0]
    right = sum(map(_is_right, each))
    print(f"verdict right: {right} of {len(each)} ({right / len(each):.1%}; goal 95 %)")
    for errors, name, goal in ((weak, "weakest", 10), (other, "others", 5)):
        if errors:
            print(f"mean absolute error, {name}: {100 * fmean(errors):.1f} points (goal {goal})")
    on_device = [run for run in runs if run["computes"] == "device"]
    print(f"90 % intervals hold the share put in: {_held(runs)} (goal 85 %); of steps that a "
          f"device computes: {_held(on_device)}")  # fmt: skip


def _error(one: Judged) -> float:
    (cause,) = one.wanted
    return abs(one.found(cause) - one.truth)


def _is_right(one: Judged) -> bool:
    (cause,) = one.wanted
    return one.bound.kind == bound.KINDS[cause]


def _held(runs: Sequence[dict[str, Any]]) -> str:
    held = sum(_holds(judged(run, CONFIDENCE)) for run in runs)
    return f"{held} of {len(runs)}, {held / len(runs):.1%}"


def _holds(one: Judged) -> bool:
    """Tell whether the interval holds the truth, which is measured and has one of its own."""
    share = one.share(next(iter(one.wanted)))
    if share is None or share.interval is None:
        return False
    found, (low, high) = share.seconds, share.interval
    half = (
        high - found if one.truth * one.bound.step_s > found else found - low
    ) / one.bound.step_s
    of_truth = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * one.error
    return abs(one.truth - found / one.bound.step_s) <= math.hypot(half, of_truth)


def _pairs(runs: list[dict[str, Any]]) -> None:
    each = [judged(run) for run in runs]
    both = [one for one in each if one.wanted <= one.named]
    print(f"\ntwo causes at once, both named: {len(both)} of {len(each)} "
          f"({len(both) / len(each):.0%}; goal 80 %)")  # fmt: skip
    for one in each:
        if not one.wanted <= one.named:
            print(f"  {'+'.join(one.run['causes'])}: named {', '.join(sorted(one.named)) or 'no'}")


def _clean(runs: list[dict[str, Any]]) -> None:
    each = [judged(run) for run in runs]
    alarms = [one for one in each if one.named]
    print(f"\nwithout a cause, one is named: {len(alarms)} of {len(each)} (goal 1 at most)")
    for one in alarms:
        print("  " + ", ".join(f"{share.cause} {share.seconds / one.bound.step_s:.1%}"
                               for share in one.bound.named))  # fmt: skip


def _slow(runs: list[dict[str, Any]]) -> None:
    print("\na rank slowed in backward alone, named")
    for share in sorted({run["share"] for run in runs}):
        some = [run["seconds"]["fault"]["own"] for run in runs if run["share"] == share]
        found = [slow_rank(own_s) for own_s in some]
        right = sum(one is not None and (one.rank == 1 or not share) for one in found)
        goal = {0.0: "1 % at most", 0.05: "no goal"}.get(share, "95 %")
        print(f"  {share:.0%} of its step: {right} of {len(some)} ({right / len(some):.1%}; "
              f"goal {goal})")  # fmt: skip


def _changes(runs: list[dict[str, Any]]) -> None:
    print("\na step after a change, modelled and measured")
    errors, apart = [], []
    for run in sorted(runs, key=lambda one: (one["change"], str(one["faults"]))):
        one = judged(run)
        (gain,) = (gain for gain in one.bound.gains if gain.change == run["change"])
        measured = float(np.max(run["seconds"]["changed"]["full"], axis=0).mean())
        errors.append(abs(gain.step_s - measured) / measured)
        print(f"  {run['change']}, {run['faults']['fault']}, {len(run['bytes'])} buckets: "
              f"{_ms(one.bound.step_s)} now, {_ms(gain.step_s)} modelled, {_ms(measured)} "
              f"measured, error {errors[-1]:.1%}")  # fmt: skip
        if run["change"] == "link twice as fast":
            apart.append(abs(_of_timeline(one) / one.bound.step_s - one.found("exposed")))
    print(f"error of the step: {median(errors):.1%} in the median (goal 5 %), "
          f"{max(errors):.1%} at the most (goal 10 %)")  # fmt: skip
    print(f"exposed time by the timeline of the buckets, and measured: {median(apart):.1%} of the "
          f"step apart in the median, {max(apart):.1%} at the most")  # fmt: skip


def _of_timeline(one: Judged) -> float:
    """Return the exposed seconds of all buckets by their timeline, before they are scaled."""
    turns = divide(_arrays(one.run["seconds"]["fault"]))
    buckets = Buckets(one.run["bytes"], one.run["lead_s"])
    return float(buckets.exposed_s(turns["reduce"]).sum())


def _traces(each: Sequence[Judged]) -> None:
    """Print the error of the share of communication, ours and that of formulas over a trace.

    Where no communication was put in, the truth is what the step has of it without the fault.
    """
    ours, theirs = [], []
    for one in each:
        natural = float(divide(_arrays(one.run["seconds"]["base"]))["exposed"]) / one.bound.step_s
        truth = one.truth if "exposed" in one.wanted else natural
        ours.append(abs(max(one.found("exposed"), 0.0) - truth))
        theirs.append(abs(one.run["share_of_trace"] - truth))
    print(f"\nshare of communication, {len(each)} runs with at most one cause: mean error "
          f"{100 * fmean(ours):.1f} points by variants, {100 * fmean(theirs):.1f} by the trace, "
          f"a ratio of {fmean(ours) / fmean(theirs):.2f} (goal 0.33)")  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


UNLIMITED = 20e9
PATIENCE_S = 4 * 3600
# Memory given back and taken again costs page faults, many more in one step than in another.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
BLOCKS = 10
SEED = 1
REPEATS = 3
OUT = ROOT / "results" / "lab.jsonl"
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


def causes() -> Iterator[dict[str, Any]]:
    for cause, strengths in CAUSES.items():
        for strength, faults in enumerate(strengths):
            for repeat in range(REPEATS):
                fault = faults[repeat % len(faults)]
                yield _run("cause", [cause], fault, strength=strength, trace=True)


def pairs() -> Iterator[dict[str, Any]]:
    for one, other in PAIRS:
        yield _run("pair", [one, other], CAUSES[one][1][0] | CAUSES[other][1][0])


def clean() -> Iterator[dict[str, Any]]:
    for _ in range(CLEAN_RUNS):
        yield _run("clean", [], {}, trace=True)


def slow() -> Iterator[dict[str, Any]]:
    """Yield the cases with a rank that is slow in backward alone."""
    for share, count in SLOW_CASES.items():
        for _ in range(count):
            yield {
                "section": "slow", "computes": "device", "share": share, "blocks": SLOW_TURNS,
                "states": {"fault": ["own"]}, "faults": {"fault": {"backward": share * STEP_S}},
            }  # fmt: skip


def changes() -> Iterator[dict[str, Any]]:
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


def measure(plan: Sequence[dict[str, Any]]) -> None:
    """Measure the runs of a plan on two ranks, and keep a line of each.

    Raises:
        RuntimeError: A rank failed.
    """
    here = str(Path(__file__).parent)
    env = KEEP_MEMORY | {"PYTHONPATH": f"{ROOT}:{here}"}
    with tempfile.TemporaryDirectory() as folder, linked(UNLIMITED, ranks=2) as links:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        command = [f"{here}/lab_rank.py", str(path), str(OUT)]
        links.run(command, Path(folder), PATIENCE_S, first=False, **env)


def main() -> None:
    """Measure what was asked for, and print the figures of all that is kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS))
    asked = parser.parse_args()
    plan = [run for name in asked.only.split(",") for run in SECTIONS[name]()]
    random.Random(SEED).shuffle(plan)  # noqa: S311
    OUT.parent.mkdir(parents=True, exist_ok=True)
    if OUT.exists():
        OUT.rename(OUT.with_suffix(".before.jsonl"))
    try:
        measure(plan)
    finally:
        show(OUT)


if __name__ == "__main__":
    main()
