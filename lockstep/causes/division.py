"""How the variants of a step divide its time into causes.

A launch runs variants of one step in turns, interleaved in an order drawn at random, each turn
entered by all ranks together (`lockstep.measure.step.variants`):

    full      the whole step
    resident  the same on a batch that is already there, where the step has an input pipeline
    own       the same without gradient synchronisation, so that no rank waits for another
    half      `own` on half of the batch
    reduce    the all-reduce of the gradients alone, bucket by bucket
    running   no turn of its own: `own` less what the rank's thread waited for a core in it
    draw      no turn of its own: what the rank waited for its batch in `full`

A rank's waits for a core, as the kernel counts them, are contention as far as the ranks have them
in common: scaled to a mean of the lower median over ranks of their means. What one rank waits
beyond that makes it a slow rank. With x[r] a rank's seconds in a turn, means over turns, alone[r]
own[r] less the waits in common and m[r] the median over turns of alone[r]:

    own       the lower median over ranks of m[r]
    imbalance mean of max over ranks of alone[r], less `own`
    contention mean of max over ranks of own[r] less that of alone[r], where `running` is known
    exposed   mean of max over ranks of resident[r] (full, without an input pipeline) less own's
    ddp       the same of a single rank, which communicates with nobody: DDP's hooks and copies
    input     mean of max over ranks of full[r] less that of resident
    fixed     the lower median over ranks of 2 half[r] - own[r], medians over turns: the c0 of
              t = c0 + c1 b, and no more than `own`

`own`, `imbalance`, `contention`, `exposed` (or `ddp`) and `input` add up to the mean of the slowest
rank's full step, by construction; `fixed` is a part of `own`. A median keeps a rank's usual pace
where single turns are slow, so that what they add is imbalance: the others wait for them in each
step. A single rank waits for nobody: its own is the mean, and it has no imbalance.

Intervals are of a bootstrap over turns (`intervals`): all variants of one turn are drawn together,
so what slows a whole turn cancels.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
# Shape (..., num_ranks, num_turns) of each variant.
Turns = Mapping[str, Array]
# Seconds of each cause, shape (...).
Division = dict[str, Array]

FULL, RESIDENT, OWN, HALF, REDUCE = "full", "resident", "own", "half", "reduce"
RUNNING, DRAW = "running", "draw"
VARIANTS = (FULL, RESIDENT, OWN, HALF, REDUCE, RUNNING, DRAW)
# Of a wait for a core, so that a mean of 0 divides nothing.
TINY_S = 1e-12
# What adds up to the step.
PARTS = ("own", "imbalance", "contention", "exposed", "ddp", "input")


def divide(turns: Turns) -> Division:
    """Return the seconds of a step that go to each cause.

    Args:
        turns: Seconds of a step of each variant, shape (..., num_ranks, num_turns); `full` and
            `own` are needed.

    Returns:
        Seconds, shape (...): `own`, `imbalance`, `exposed` or for a single rank `ddp`,
        `contention`, `input` and `fixed` where their variants were measured, and `step`, the sum
        of the parts.
    """
    full, own = _slowest(turns[FULL]), _slowest(turns[OWN])
    resident = _slowest(turns[RESIDENT]) if RESIDENT in turns else full
    alone = _alone(turns)
    slowest = _slowest(alone)
    least = lower_median(np.median(alone, axis=-1))
    if turns[OWN].shape[-2] == 1:  # it waits for nobody: what single turns add is its own
        found = {"step": full, "own": slowest, "ddp": resident - own}
    else:
        found = {"step": full, "own": least, "imbalance": slowest - least,
                 "exposed": resident - own}  # fmt: skip
    if RUNNING in turns:
        found["contention"] = own - slowest
    if RESIDENT in turns:
        found["input"] = full - resident
    if HALF in turns:
        half, whole = (np.median(turns[name], axis=-1) for name in (HALF, OWN))
        # Waits for a core are in both, and no part of a rank's own.
        found["fixed"] = np.minimum(lower_median(2 * half - whole), found["own"])
    if REDUCE in turns:
        found["reduce"] = _slowest(turns[REDUCE])
    return found


def _alone(turns: Turns) -> Array:
    """Return `own` without the waits for a core that the ranks have in common."""
    if RUNNING not in turns:
        return turns[OWN]
    queued = np.maximum(turns[OWN] - turns[RUNNING], 0.0)
    mean = queued.mean(axis=-1)
    common = lower_median(mean)[..., np.newaxis]
    share = np.minimum(common / np.maximum(mean, TINY_S), 1.0)
    return np.asarray(turns[OWN] - queued * share[..., np.newaxis])


def _slowest(seconds: Array) -> Array:
    """Return the mean over turns of the slowest rank's time; (..., ranks, turns) to (...)."""
    return np.asarray(seconds.max(axis=-2).mean(axis=-1))


def lower_median(ranks: Array) -> Array:
    """Return the median over ranks, of an even number the lower one; (..., ranks) to (...)."""
    middle = (ranks.shape[-1] - 1) // 2
    return np.asarray(np.sort(ranks, axis=-1)[..., middle])


def resample(turns: Turns, num: int, seed: int) -> Turns:
    """Return bootstrap samples of the turns; shape (num, num_ranks, num_turns) of each variant."""
    num_turns = turns[FULL].shape[-1]
    drawn = np.random.default_rng(seed).integers(num_turns, size=(num, num_turns))
    return {name: np.moveaxis(seconds[:, drawn], 0, 1) for name, seconds in turns.items()}
