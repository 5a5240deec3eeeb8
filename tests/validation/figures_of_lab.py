"""What the laboratory found in its runs, beside what was put in, and the errors."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import Any

import numpy as np

from lockstep.measure.causes import bound
from lockstep.measure.causes.bound import Base, Bound, Buckets, LostCause, Share
from lockstep.measure.causes.division import divide, resample, slow_rank

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
    """Print the figures of the runs that a file keeps, each section that it has."""
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
    traced = [judged(run) for run in runs if run.get("shares_of_trace")]
    if traced:
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
    states = {name: turns[name] for name in ("truth", "none", "base")}

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


def _step_s(turns: dict[str, Any]) -> float:
    return float(turns["full"].max(axis=0).mean())


def _causes(runs: list[dict[str, Any]]) -> None:
    each = [judged(run) for run in runs]
    print(f"\n{len(each)} runs with one cause: share of the step, put in and found")
    print(_row("cause", "strength", "put in", "found", "error", "verdict right"))
    for name in TRUTH:
        for number, strength in enumerate(STRENGTHS):
            some = [one for one in each if one.run["causes"] == [name]
                    and one.run["strength"] == number]  # fmt: skip
            if some:
                print(_row(name, strength, _percent(one.truth for one in some),
                           _percent(one.found(TRUTH[name]) for one in some),
                           _percent(map(_error, some)),
                           f"{sum(map(_is_right, some))} of {len(some)}"))  # fmt: skip
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
    _confusion(each)


def _confusion(each: Sequence[Judged]) -> None:
    kinds = sorted({one.bound.kind for one in each})
    print("\nverdicts by what was put in")
    print(_row("", *kinds))
    for name in TRUTH:
        counts = Counter(one.bound.kind for one in each if one.run["causes"] == [name])
        print(_row(name, *(str(counts[kind]) for kind in kinds)))


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
        measured = _step_s(_arrays(run["seconds"]["changed"]))
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
        theirs.append(abs(one.run["shares_of_trace"]["communication"] - truth))
    print(f"\nshare of communication, {len(each)} runs with at most one cause: mean error "
          f"{100 * fmean(ours):.1f} points by variants, {100 * fmean(theirs):.1f} by the trace, "
          f"a ratio of {fmean(ours) / fmean(theirs):.2f} (goal 0.33)")  # fmt: skip


def _percent(values: Iterable[float]) -> str:
    found = list(values)
    return f"{100 * fmean(found):.1f} %" if found else str(math.nan)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _row(*cells: str) -> str:
    return "  ".join(f"{cell:>13}" for cell in cells)
