"""Five kinds of causes that come unevenly are put into steps, and found by explain and the fixture.

    python tests/validation/figures_kinds.py

What comes in some steps on all ranks or on one, lengths that come with the batch, a slow beginning
and pauses of the whole machine, and clean steps, on two gloo ranks; their numbers are drawn at
random with a seed. A step is a small net in DDP, whose device is a sleep of known length with 1 %
of jitter; what is put in is a sleep, too, so explain and the fixture are measured side by side.
Wants a quiet machine, and takes about twenty minutes; what is measured is kept until the product
changes.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import lab_runs
import torch
from lab_runs import LOCAL_BATCH, WIDTH, Made, Run, Told
from parts import line
from torch.nn.parallel import DistributedDataParallel

# Each batch is met as often as the others, so that the mean over all of them is what is put in.
NUM_BATCHES = 20
JITTER = 0.01
# Parts of a device's sleep, between which a machine may freeze.
PARTS = 6


def draw(kind: str, seed: int) -> Run:
    """Return a run of a kind, its numbers drawn at random; with the same seed the same."""
    of = random.Random(f"{kind} {seed}")  # noqa: S311, numbers of a test
    device_s = of.uniform(0.045, 0.065)
    run: Run = {"kind": kind, "seed": seed, "device_s": device_s, "batches": seed % 2 == 1}
    if kind in ("together", "one rank"):
        run |= {"every": of.randint(3, 7), "extra_s": of.uniform(0.03, 0.2)}
        run |= {"phase": of.randrange(run["every"]), "rank": of.randrange(2)}
    if kind == "lengths":
        forms = ("even", "long-tailed", "two", "some are long")
        run |= {"batches": True, "form": forms[seed % len(forms)], "halves": of.random() < 0.5}
    if kind == "beginning":
        run |= {"extra_s": device_s * of.uniform(0.5, 2.5)}
        run |= {"steps": of.randint(40, 80) if run["batches"] else of.randint(25, 45)}
    if kind == "pauses" and seed % 2:
        run |= {"every": of.randint(3, 7), "extra_s": of.uniform(0.4, 1.4), "batches": seed % 4 > 1}
        run |= {"phase": None if seed % 8 > 3 else of.randrange(run["every"])}
    elif kind == "pauses":  # by the clock, whatever step is under way
        run |= {"clock_s": of.uniform(0.4, 0.8), "freeze_s": of.uniform(0.1, 0.25)}
        run |= {"batches": seed % 4 > 1}
    return run


@dataclass
class Step:
    """A training step with what a run puts into it.

    Attributes:
        count: Steps taken, as a training counts them.
    """

    run: Run
    rank: int
    count: int = 0

    def __post_init__(self) -> None:
        """Make the net, its optimizer and a batch, equal on all ranks."""
        torch.manual_seed(0)
        self.ddp = DistributedDataParallel(lab_runs.net())
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), 0.01)
        self.batch = torch.randn(LOCAL_BATCH, WIDTH)
        self.jitter = random.Random(self.rank)  # noqa: S311

    def __call__(self, batch: Any = None) -> None:
        """Train on a batch, or on the one that is there."""
        inputs, length = (self.batch, 1.0) if batch is None else (batch[0], float(batch[1]))
        self.optimizer.zero_grad()
        outputs = self.ddp(inputs)
        share = len(inputs) / LOCAL_BATCH if self.run.get("halves", True) else 1.0
        self._compute(self.run["device_s"] * length * share * self.jitter.gauss(1, JITTER))
        outputs.square().mean().backward()
        if extra_s := self.extra_s():
            time.sleep(extra_s)
        self.optimizer.step()
        self.count += 1

    def _compute(self, seconds: float) -> None:
        freeze_s = self.run.get("freeze_s", 0.0)
        for _ in range(PARTS if freeze_s else 1):
            time.sleep(seconds / (PARTS if freeze_s else 1))
            if freeze_s and (since_s := time.time() % self.run["clock_s"]) < freeze_s:
                time.sleep(freeze_s - since_s)

    def extra_s(self) -> float:
        """Return what this step takes longer on this rank."""
        run = self.run
        if run["kind"] == "beginning":
            return float(run["extra_s"]) if self.count < run["steps"] else 0.0
        if "every" not in run or (run["kind"] == "one rank" and self.rank != run["rank"]):
            return 0.0
        lap, at = divmod(self.count, run["every"])
        phase = run.get("phase")
        if phase is None:  # once in so many steps, in any of them
            phase = random.Random(f"{run['seed']} {lap}").randrange(run["every"])  # noqa: S311
        return float(run["extra_s"]) if at == phase else 0.0

    @property
    def batches(self) -> list[Any] | None:
        """The batches, which are there at once, each with how long it takes."""
        if not self.run["batches"]:
            return None
        return [(self.batch, torch.tensor(each)) for each in lengths(self.run, self.rank)]


def lengths(run: Run, rank: int) -> list[float]:
    """Return how long a rank's batches take, over the mean; shape (NUM_BATCHES,)."""
    of = random.Random(f"{run['seed']} {rank}")  # noqa: S311
    drawn: dict[str, Callable[[], float]] = {
        "even": lambda: of.uniform(0.5, 1.5),
        "long-tailed": lambda: of.lognormvariate(-0.08, 0.4),
        "two": lambda: of.choice([0.6, 1.4]),
        "some are long": lambda: of.choice([1.0, 1.0, 1.0, 2.0]),
    }
    one = drawn.get(run.get("form", ""), lambda: 1.0)
    return [one() for _ in range(NUM_BATCHES)]


def truth_s(run: Run) -> float:
    """Return what is put into a step, the mean over steps; of pauses by the clock 0."""
    if run["kind"] == "lengths":
        both = zip(lengths(run, 0), lengths(run, 1), strict=True)
        return float(run["device_s"] * fmean(abs(one - other) for one, other in both))
    return float(run["extra_s"] / run["every"]) if "every" in run else 0.0


def make(run: Run, rank: int) -> Made:
    step = Step(run, rank)
    return Made(step, step.ddp, step.batches, LOCAL_BATCH)


RANKS, LAUNCHES, NUM_CLEAN, REPEATS = 2, 3, 10, 4
KINDS = ("together", "one rank", "lengths", "beginning", "pauses")
NEAR = 0.05
# What a step of its own work alone may be bound by.
OWN = ("own", "compute")
WHERE = ("explain", "fixture, 1 launch", f"fixture, {LAUNCHES} launches")
WIDTHS = ("<10", "<19", ">17", ">17", ">17", ">17")


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
        return truth_s(self.run) / float(self.told["step_s"])

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
        return self.told is not None and abs(self.share - self.truth) <= NEAR

    def __str__(self) -> str:
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


def measure(out: Path) -> None:
    campaigns = {f"kinds-{seed}": [draw(kind, seed) for kind in KINDS] for seed in range(REPEATS)}
    campaigns["clean"] = [draw("clean", seed) for seed in range(NUM_CLEAN)]

    def explain() -> None:
        for runs in campaigns.values():
            lab_runs.explain("figures_kinds", runs, out / "explain.jsonl", RANKS)

    def fixture() -> None:
        for name, runs in campaigns.items():
            lab_runs.fixture("figures_kinds", runs, out / name, str(RANKS), LAUNCHES)

    with ThreadPoolExecutor(2) as pool:
        for lane in [pool.submit(explain), pool.submit(fixture)]:
            lane.result()


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
    each = list(found_in(out))
    print(line(["kind", "where", "verdict right", "share near", "mean error", "most"], WIDTHS))
    for kind in (*KINDS, "all"):
        for where in WHERE:
            some = [one for place, one in each if place == where and one.run["kind"] != "clean"]
            if some := [one for one in some if kind in ("all", one.run["kind"])]:
                print(line([kind, where, *_figures(some)], WIDTHS))
    print("goals: verdict right in 95 %; shares within 5 points of what is put in")
    for where in WHERE:
        some = [one for place, one in each if place == where and one.run["kind"] == "clean"]
        called = [one for one in some if one.told and one.told["kind"] in ("imbalance", "input")]
        right = sum(one.is_right for one in some)
        if some:
            print(f"clean steps, {where}: called imbalance or input {len(called)} of {len(some)} "
                  f"(goal 0); own work alone {right} of {len(some)}")  # fmt: skip
    for place, one in each:
        if not (one.is_right and (one.is_near or one.run["kind"] in ("beginning", "clean"))):
            print(f"  {place}: {one}")


def _figures(some: Sequence[Found]) -> list[str]:
    right, near = sum(one.is_right for one in some), sum(one.is_near for one in some)
    errors = [abs(one.share - one.truth) for one in some if one.told]
    shown = [f"{right} of {len(some)} ({right / len(some):.0%})"]
    return [*shown, f"{near} of {len(some)}", f"{100 * sum(errors) / max(len(errors), 1):.1f}",
            f"{100 * max(errors, default=0.0):.1f} points"]  # fmt: skip


if __name__ == "__main__":
    kept = lab_runs.kept("lab-kinds")
    measure(kept)
    show(kept)
