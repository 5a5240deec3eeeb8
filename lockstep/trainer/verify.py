"""Whether data-parallel training computes the same thing at every world size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_ACCURACY = 0.95
# Ranks sum gradients in another order, which 144 steps amplify: about 10^-7 on CPUs. A gradient
# summed instead of averaged, a sample taken twice or another learning rate is off by far more.
CURVE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Check:
    """One claim about the runs, and whether it holds.

    Attributes:
        name: accuracy, curve or parameters.
        found: What the runs show, in words.
    """

    name: str
    world_size: int
    passed: bool
    found: str


def compare(
    runs: Mapping[int, Mapping[str, Any]],
    min_accuracy: float | None = MIN_ACCURACY,
    tolerance: float = CURVE_TOLERANCE,
) -> list[Check]:
    """Judge runs of equal global batch, in ascending world size.

    Args:
        runs: World size -> the run's `accuracy` at the end, `step_losses` and `parameters_equal`.
        min_accuracy: What the validation accuracy must reach; None for whatever it is.
        tolerance: What the loss of any step may differ from that of the smallest world size, as
            a share of the first loss.
    """
    baseline = runs[min(runs)]["step_losses"]
    checks = []
    for world_size in sorted(runs):
        run = runs[world_size]
        if min_accuracy is not None:
            checks.append(_accuracy(world_size, run["accuracy"], min_accuracy))
        checks.append(_curve(world_size, run["step_losses"], baseline, tolerance))
        checks.append(_parameters(world_size, run["parameters_equal"]))
    return checks


def _accuracy(world_size: int, accuracy: float, minimum: float) -> Check:
    found = f"{accuracy:.4f}, at least {minimum:g} wanted"
    return Check("accuracy", world_size, accuracy >= minimum, found)


def _curve(
    world_size: int, losses: Sequence[float], baseline: Sequence[float], tolerance: float
) -> Check:
    if len(losses) != len(baseline) or not baseline:
        return Check("curve", world_size, False, f"{len(losses)} steps, not {len(baseline)}")
    largest = max(abs(one - other) for one, other in zip(losses, baseline, strict=True))
    share = largest / baseline[0]
    is_finite = all(math.isfinite(loss) for loss in losses)
    found = f"largest difference of a step {share:.1e} of the first loss, {tolerance:g} allowed"
    return Check("curve", world_size, is_finite and share <= tolerance, found)


def _parameters(world_size: int, is_equal: bool) -> Check:
    found = f"{'equal' if is_equal else 'not equal'} on {world_size} rank(s)"
    return Check("parameters", world_size, is_equal, found)
