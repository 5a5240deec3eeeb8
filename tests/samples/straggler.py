"""A workload of which one rank takes a quarter longer for its own part of each step."""

import os
import time
from dataclasses import replace

from lockstep.workloads import Workload
from lockstep.workloads.mlp import mlp

STEP_S = 0.1
STRAGGLER = "1"


def slow() -> Workload:
    """Return a small perceptron whose loss takes its time, a quarter more on one rank."""
    plain = mlp(width=64, depth=2)
    loss_s = STEP_S * (1.25 if os.environ.get("RANK") == STRAGGLER else 1.0)

    def loss(outputs, targets):
        time.sleep(loss_s)
        return plain.loss(outputs, targets)

    return replace(plain, name="slow", loss=loss)
