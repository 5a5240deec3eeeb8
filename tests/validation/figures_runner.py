"""What the runner's timed step costs beside a bare DDP loop, and what sampling costs a step.

Every rank runs this file under torchrun. The two loops take turns of several rounds, so that what
disturbs the machine strikes both alike; a round's time is the maximum over ranks. Bare loop and
runner start from the same parameters and data, and must hold the same parameters in the end.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torchvision
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from lockstep import workloads
from lockstep.machine import telemetry
from lockstep.measure import timing
from lockstep.measure.step.train_step import StepConfig, TrainStep, parameter_checksum
from lockstep.ranks import process_group
from lockstep.ranks.process_group import World

LEARNING_RATE = 0.01
MOMENTUM = 0.9
NUM_CLASSES = 10

# Runs the rounds of one turn and returns their seconds, shape (num_rounds,).
Turn = Callable[[], list[float]]


@dataclass(frozen=True)
class Plan:
    """One comparison.

    Attributes:
        workload: The step, as the runner names it.
        local_batch: Samples per rank.
        steps: Steps in a round: few, so that a disturbance spoils few rounds.
        rounds: Rounds in a turn, about as many as a case has; for telemetry, several samples' time.
        turns: Turns of each loop.
        goal: Largest ratio of the times that is good.
    """

    workload: str
    local_batch: int
    steps: int
    rounds: int
    turns: int
    goal: float


TINY = "mlp:width=16,depth=2"
RUNNER, TELEMETRY = "runner / bare loop", "step with telemetry / without"
PLANS = {
    f"{RUNNER}, resnet18": Plan("resnet18", 16, steps=1, rounds=4, turns=8, goal=1.005),
    f"{RUNNER}, 0.3 ms step": Plan(TINY, 32, steps=20, rounds=8, turns=12, goal=1.02),
    f"{TELEMETRY}, resnet18": Plan("resnet18", 16, steps=1, rounds=4, turns=5, goal=1.005),
    f"{TELEMETRY}, 0.3 ms step": Plan(TINY, 32, steps=60, rounds=8, turns=10, goal=1.005),
}


def bare_model(workload: str) -> nn.Module:
    """Return the model as one would write it by hand."""
    if workload == "resnet18":
        return torchvision.models.resnet18(num_classes=NUM_CLASSES)  # type: ignore[no-any-return]
    return nn.Sequential(
        nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, NUM_CLASSES)
    )


def bare_turn(model: nn.Module, plan: Plan, inputs: torch.Tensor, targets: torch.Tensor) -> Turn:
    """Return a turn of the bare loop, with nothing of ours in it."""
    ddp = DistributedDataParallel(model)
    # fused as in the runner: left open, SGD would look for a default at every update
    optimizer = torch.optim.SGD(ddp.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=False)

    def bare_round() -> float:
        if distributed.get_world_size() > 1:
            distributed.barrier()
        start = time.perf_counter()
        for _ in range(plan.steps):
            optimizer.zero_grad(set_to_none=True)
            loss = cross_entropy(ddp(inputs), targets)
            loss.backward()
            optimizer.step()
        return time.perf_counter() - start

    return lambda: [bare_round() for _ in range(plan.rounds)]


def runner_turn(
    world: World, model: nn.Module, plan: Plan, inputs: torch.Tensor, targets: torch.Tensor
) -> Turn:
    """Return a turn as a measured case runs it."""
    loss = workloads.make(plan.workload).loss
    step = TrainStep(model, loss, StepConfig(lr=LEARNING_RATE, momentum=MOMENTUM), world.device)
    return lambda: timing.time_rounds(
        world, lambda: step.run(inputs, targets), rounds=plan.rounds, steps_per_round=plan.steps
    )


def compare(world: World, name: str) -> tuple[list[float], list[float]]:
    """Return this rank's round times of the two loops of a plan.

    Raises:
        RuntimeError: The bare loop and the runner trained to different parameters.
    """
    plan = PLANS[name]
    workload = workloads.make(plan.workload)
    generator = torch.Generator().manual_seed(1 + world.rank)
    inputs, targets = workload.make_batch(plan.local_batch, world.device, generator)
    torch.manual_seed(0)
    bare = bare_model(plan.workload)
    torch.manual_seed(0)
    ours = workload.build()
    runner = runner_turn(world, ours, plan, inputs, targets)
    if name.startswith(TELEMETRY):

        def watched() -> list[float]:
            with telemetry.sampling(world.device, True) as watch, watch:
                return runner()

        return alternate((runner, watched), plan.turns)
    times = alternate((bare_turn(bare, plan, inputs, targets), runner), plan.turns)
    if parameter_checksum(bare) != parameter_checksum(ours):
        raise RuntimeError(f"the two loops of {plan.workload} did not do the same work")
    return times


def alternate(pair: tuple[Turn, Turn], num_turns: int) -> tuple[list[float], list[float]]:
    """Take turns in the order A B, B A, A B, after one untimed turn of each."""
    for turn in pair:
        turn()
    # The runner keeps the collector out of its rounds; it shall not strike the bare loop either.
    gc.collect()
    gc.freeze()
    gc.disable()
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(num_turns):
        for which in (0, 1) if index % 2 == 0 else (1, 0):
            times[which].extend(pair[which]())
    gc.enable()
    # What stays frozen is never freed, and a model in DDP must not outlive its process group.
    gc.unfreeze()
    return times


def main() -> None:
    """Compare each plan on the ranks torchrun started; write the ratios to the file named."""
    joined = process_group.join(device="cpu", threads_per_rank=1)
    ratios: dict[str, float] = {}
    for name in PLANS:
        per_rank: list[Any] = [None] * joined.world_size
        distributed.all_gather_object(per_rank, compare(joined, name))
        # A round is as slow as its slowest rank.
        one_s, other_s = (
            median(max(ranks) for ranks in zip(*(times[which] for times in per_rank), strict=True))
            for which in (0, 1)
        )
        ratios[name] = other_s / one_s
    if joined.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(ratios), encoding="utf-8")
    distributed.barrier()  # nobody leaves before the ratios are written
    gc.collect()
    process_group.leave()


if __name__ == "__main__":
    main()
