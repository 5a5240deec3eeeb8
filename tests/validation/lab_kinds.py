"""Steps of the laboratory whose time comes unevenly: five kinds, and clean ones.

A step is a small net in DDP, whose device is a sleep of known length with 1 % of jitter; what is
put into it is a sleep, too, so the truth is known: what is put in over the step that is measured.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from lab_runs import Made, Run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Each batch is met as often as the others, so that the mean over all of them is what is put in.
LOCAL_BATCH, WIDTH, NUM_BATCHES = 32, 128, 20
JITTER = 0.01
# Parts of a device's sleep, between which a machine may freeze.
PARTS = 6
KINDS = ("clean", "together", "one rank", "lengths", "beginning", "pauses")


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
        net = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))
        self.ddp = DistributedDataParallel(net)
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
    """Return the step of a run on a rank."""
    step = Step(run, rank)
    return Made(step, step.ddp, step.batches, LOCAL_BATCH)
