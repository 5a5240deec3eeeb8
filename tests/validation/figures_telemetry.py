"""What sampling device and host costs a step: rounds with it and without, taken in turn.

Every rank runs this file under torchrun. Turns last long enough for several samples each.
"""

from typing import TYPE_CHECKING

import figures_runner
from figures_runner import Plan, Turn

if TYPE_CHECKING:
    from lockstep.ranks.process_group import World

GOAL = 1.005
PLANS = {
    "resnet18": Plan("resnet18", local_batch=16, steps=1, rounds=4, turns=5, goal=GOAL),
    "0.3 ms step": Plan(
        "mlp:width=16,depth=2", local_batch=32, steps=60, rounds=8, turns=10, goal=GOAL
    ),
}


def pair(world: "World", plan: Plan) -> tuple[Turn, Turn]:
    """Return a turn without telemetry and one with it, of the same step."""
    import torch

    from lockstep import workloads
    from lockstep.machine import telemetry

    workload = workloads.make(plan.workload)
    inputs, targets = workload.make_batch(plan.local_batch, world.device, torch.Generator())
    without = figures_runner.runner_turn(world, workload.build(), plan, inputs, targets)

    def watched() -> list[float]:
        with telemetry.of(world.device, True) as watch, watch:
            return without()

    return without, watched


def compare(world: "World", plan: Plan) -> tuple[list[float], list[float]]:
    """Return this rank's round times without telemetry and with it."""
    return figures_runner.alternate(pair(world, plan), plan.turns)


if __name__ == "__main__":
    figures_runner.main(PLANS, compare)
