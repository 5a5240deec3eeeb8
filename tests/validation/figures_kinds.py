"""Five kinds of causes that come unevenly are put into steps, and found by explain and the fixture.

    python tests/validation/figures_kinds.py [--out FOLDER] [--repeats 4] [--only explain,fixture]

What comes in some steps on all ranks or on one, lengths that come with the batch, a slow beginning
and pauses of the whole machine, and clean steps (`lab_kinds.py`), on two gloo ranks; their numbers
are drawn at random with a seed. Most of a step is a sleep, so explain and the fixture are measured
side by side. Wants a quiet machine, and takes about twenty minutes; what is measured is kept until
the product changes, and with --judge only the figures of that are printed.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import lab_kinds
import lab_runs
from lab_runs import Run, Told

RANKS, LAUNCHES, NUM_CLEAN = 2, 3, 10
KINDS = ("together", "one rank", "lengths", "beginning", "pauses")
NEAR = 0.05
# What a step of its own work alone may be bound by.
OWN = ("own", "compute")
WHERE = ("explain", "fixture, 1 launch", f"fixture, {LAUNCHES} launches")


@dataclass(frozen=True)
class Found:
    """A run beside what is told of it.

    Attributes:
        told: What bounds its step; None where no causes are told.
    """

    run: Run
    told: Told | None

    @property
    def truth(self) -> float:
        """What is put in, as a share of the step that is measured."""
        assert self.told
        if "freeze_s" in self.run:
            return float(self.run["freeze_s"] / self.run["clock_s"])
        return lab_kinds.truth_s(self.run) / float(self.told["step_s"])

    @property
    def share(self) -> float:
        """What is found of it, as a share of the step."""
        assert self.told
        if self.run["kind"] in ("one rank", "lengths"):
            return lab_runs.shares(self.told)["imbalance"]
        return float((self.told["rare"] or {"seconds": 0.0})["seconds"] / self.told["step_s"])

    @property
    def is_right(self) -> bool:
        """Whether its verdict is that of its kind."""
        if self.told is None:
            return False
        kind, rare = self.told["kind"], self.told["rare"]
        if self.run["kind"] in ("one rank", "lengths"):
            return bool(kind == "imbalance" and not rare)
        wanted = self.run["kind"] in ("together", "pauses")
        return kind in OWN and bool(rare) == wanted and not self.told["slow"]

    @property
    def is_near(self) -> bool:
        """Whether the share found is near what is put in."""
        return self.told is not None and abs(self.share - self.truth) <= NEAR

    def __str__(self) -> str:
        """Tell what was found, for a line of what is wrong."""
        if self.told is None:
            return f"{lab_runs.name_of(self.run)}: no causes"
        named = ", ".join(
            f"{each['cause']} {each['seconds'] / self.told['step_s']:.1%}"
            for each in self.told["shares"]
            if each["is_shown"]
        )
        return (
            f"{lab_runs.name_of(self.run)}: {self.told['kind']} ({named or 'no cause'}), share "
            f"{self.share:.1%}, put in {self.truth:.1%}, step {self.told['step_s'] * 1e3:.1f} ms"
        )


def plans(repeats: int) -> dict[str, list[Run]]:
    """Return the runs by the name of their campaign."""
    found = {
        f"kinds-{seed}": [lab_kinds.draw(kind, seed) for kind in KINDS] for seed in range(repeats)
    }
    return found | {"clean": [lab_kinds.draw("clean", seed) for seed in range(NUM_CLEAN)]}


def measure(asked: argparse.Namespace) -> None:
    """Measure what is missing of what was asked for."""
    campaigns = plans(asked.repeats)

    def explain() -> None:
        for runs in campaigns.values():
            lab_runs.explain("lab_kinds", runs, asked.out / "explain.jsonl", RANKS)

    def fixture() -> None:
        for name, runs in campaigns.items():
            lab_runs.fixture("lab_kinds", runs, asked.out / name, str(RANKS), LAUNCHES)

    lanes = {"explain": explain, "fixture": fixture}
    with ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(lambda name: lanes[name](), asked.only.split(",")))


def found_in(out: Path) -> Iterator[tuple[str, Found]]:
    """Yield what a folder keeps, with where it was found."""
    for each in lab_runs.explained(out / "explain.jsonl"):
        yield WHERE[0], Found(each["run"], each.get("bound"))
    for plan in sorted(out.glob("*/plan.json")):
        runs = json.loads(plan.read_text(encoding="utf-8"))
        folder = plan.parent / "measured"
        launches = sorted(each.name for each in folder.glob("launches/*"))
        for launch in launches:
            for name, _, told in lab_runs.judged(folder, [launch]):
                yield WHERE[1], Found(runs[name], told)
        if len(launches) == LAUNCHES:
            for name, _, told in lab_runs.judged(folder):
                yield WHERE[2], Found(runs[name], told)


def show(out: Path) -> None:
    """Print the figures of all that a folder keeps."""
    each = list(found_in(out))
    print(_row("kind", "where", "verdict right", "share near", "mean error", "most"))
    for kind in KINDS:
        for where in WHERE:
            some = [one for place, one in each if place == where and one.run["kind"] == kind]
            if some:
                print(_row(kind, where, *_figures(some)))
    for where in WHERE:
        some = [one for place, one in each if place == where and one.run["kind"] != "clean"]
        if some:
            print(_row("all", where, *_figures(some)))
    print("goals: verdict right in 95 %; shares within 5 points of what is put in")
    _clean([(place, one) for place, one in each if one.run["kind"] == "clean"])
    for place, one in each:
        if not (one.is_right and (one.is_near or one.run["kind"] in ("beginning", "clean"))):
            print(f"  {place}: {one}")


def _figures(some: Sequence[Found]) -> list[str]:
    right, near = (sum(map(test, some)) for test in (_is_right, _is_near))
    errors = [abs(one.share - one.truth) for one in some if one.told]
    shown = [f"{right} of {len(some)} ({right / len(some):.0%})"]
    return [*shown, f"{near} of {len(some)}", f"{100 * sum(errors) / max(len(errors), 1):.1f}",
            f"{100 * max(errors, default=0.0):.1f} points"]  # fmt: skip


def _is_right(one: Found) -> bool:
    return one.is_right


def _is_near(one: Found) -> bool:
    return one.is_near


def _clean(each: Sequence[tuple[str, Found]]) -> None:
    for where in WHERE:
        some = [one for place, one in each if place == where]
        called = [one for one in some if one.told and one.told["kind"] in ("imbalance", "input")]
        right = sum(one.is_right for one in some)
        if some:
            print(f"clean steps, {where}: called imbalance or input {len(called)} of {len(some)} "
                  f"(goal 0); own work alone {right} of {len(some)}")  # fmt: skip


def _row(*cells: str) -> str:
    return f"{cells[0]:10}  {cells[1]:19}" + "".join(f"  {cell:>17}" for cell in cells[2:])


def main() -> None:
    """Measure what was asked for, and print the figures of all that is kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=lab_runs.kept("lab-kinds"))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--only", default="explain,fixture")
    parser.add_argument("--judge", action="store_true", help="print the figures of what is kept")
    asked = parser.parse_args()
    asked.out = asked.out.resolve()
    asked.out.mkdir(parents=True, exist_ok=True)
    if not asked.judge:
        measure(asked)
    show(asked.out)


if __name__ == "__main__":
    sys.exit(main())
