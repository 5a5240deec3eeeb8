"""What causes of a step's time are called, in every card, table and figure."""

from typing import Literal

Cause = Literal["exposed", "imbalance", "input", "fixed", "contention", "own", "ddp"]
NAMES: dict[Cause, str] = {
    "exposed": "exposed communication",
    "imbalance": "waiting for slow ranks",
    "input": "waiting for input",
    "fixed": "fixed cost of a step",
    "contention": "sharing cores and memory",
    "own": "own work",
    "ddp": "DDP's own work",
}
