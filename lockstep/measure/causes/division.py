"""How the variants of a step divide its time into causes.

A launch runs variants of one step in turns, in a random order, each turn entered by all ranks
together (`lockstep.measure.step.variants`):

    full      the whole step
    resident  the same on a batch that is already on the device, if the step has an input pipeline
    own       the same without gradient synchronisation, so that no rank waits for another
    half      `own` on half of the batch
    reduce    the all-reduce of the gradients alone, bucket by bucket
    running   no turn of its own: `own` minus the time that the rank's thread waited for a core
    draw      no turn of its own: the time that the rank waited for its batch in `full`

The kernel counts each rank's waits for a core. Their part that all ranks share, up to the lower
median over ranks of their means, is contention; a rank that waits longer is a slow rank. Let own[r]
be the seconds of rank r in a turn, and alone[r] = own[r] minus the shared waits. Means are over
turns:

    own       mean of the lower median over ranks of alone[r] in the same turn
    imbalance mean of max over ranks of alone[r], minus `own`
    contention mean of max over ranks of own[r] minus that of alone[r], if `running` is known
    exposed   mean of max over ranks of resident[r] (full[r] without an input pipeline) minus own's
    ddp       the same for a single rank, which does not communicate: DDP's hooks and copies
    input     mean of max over ranks of full[r] minus that of resident[r]
    fixed     the part of `own` that half a batch does not halve: `own` times the lower median over
              ranks of 2 half[r] / own[r] - 1, medians over usual turns; c0 of t = c0 + c1 b

`own`, `imbalance`, `contention`, `exposed` (or `ddp`) and `input` add up to the mean of the slowest
rank's full step, by construction; `fixed` is a part of `own`.

Some steps have a rare event, such as a checkpoint. By chance it hits more turns of one variant than
of another, which would look like a difference of the variants. So turns of more than `RARE` times
their variant's lower quartile are set apart, if they are equally frequent in all variants. The
other turns compare the variants. What the long turns add to a step is divided among `own`,
`imbalance` and `contention` as in the long turns of `own`.

Intervals come from a bootstrap over turns (`resample`): all variants of one turn are drawn
together, so that a slow moment of the machine cancels.

Ranks that meet in every step take equally long, since the fast ones wait in the collective. So the
slow rank is sought in turns of `own`, which all ranks begin together: a slow moment of the machine
slows all of them. A rank with late batches is known by its waits for them in turns of `full`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from lockstep.core import metrics

Array = np.ndarray[Any, np.dtype[np.float64]]
# Variant -> seconds of a step, shape (..., num_ranks, num_turns).
Turns = Mapping[str, Array]
# Cause -> seconds, shape (...).
Division = dict[str, Array]

FULL, RESIDENT, OWN, HALF, REDUCE = "full", "resident", "own", "half", "reduce"
RUNNING, DRAW = "running", "draw"
# Lower limit of a mean wait, so that no division is by 0.
TINY_S = 1e-12
# A turn is set apart above this multiple of its variant's lower quartile. It then adds as much as a
# cause must take to be the bottleneck (`bound.BOUND`).
RARE = 1.25
# At a larger share of long turns the quartile may be one of them.
MOST_RARE = 0.65
# Variant -> name of the mask of its turns that are not set apart, shape (..., 1, num_turns).
USUAL = {FULL: "usual full", RESIDENT: "usual resident", OWN: "usual own", HALF: "usual half"}
# Shares of rare turns count as equal within so many standard errors of their difference.
ERRORS = 3.0
# Largest slope at which the part that half a batch does not halve is a fixed cost, not one that
# follows the batch, see `follows_batch`.
FOLLOWS = 0.5
# Fewer turns give no estimate of their spread.
FEWEST_TURNS = 6
# Turns of a lap, in which all variants take the same batches in the same order.
LAP = 10


def divide(turns: Turns) -> Division:
    """Return the seconds of a step that go to each cause.

    Args:
        turns: Variant -> seconds of a step, shape (..., num_ranks, num_turns); `full` and `own` are
            needed.

    Returns:
        Cause -> seconds, shape (...): `own`, `imbalance`, `exposed` (or `ddp` for a single rank);
        `contention`, `input` and `fixed` if their variants were measured; and `step`, the sum.
        Also `rare_own`, what turns set apart add to `own`, and `rate`, their share of all turns.
    """
    whole = {name: turns[name].max(axis=-2) for name in (FULL, RESIDENT, OWN) if name in turns}
    alone = _alone(turns)
    latest, own = alone.max(axis=-2), median_alone(turns)
    turns = turns if USUAL[OWN] in turns else mark_usual(turns)
    usual = {name: turns[mark].max(axis=-2) for name, mark in USUAL.items() if name in turns}
    level = {name: _mean_of(seconds, usual[name]) for name, seconds in whole.items()}
    resident = level.get(RESIDENT, level[FULL])
    parts = {"own": own, "imbalance": latest - own, "contention": whole[OWN] - latest}
    common = {name: _mean_of(seconds, usual[OWN]) for name, seconds in parts.items()}
    # Seconds that rare turns of `own` add to each part, and those of all variants to a step.
    beyond = {name: np.maximum(((seconds - common[name][..., None]) * ~usual[OWN]).sum(axis=-1), 0)
              for name, seconds in parts.items()}  # fmt: skip
    total = np.maximum(sum(beyond.values()), TINY_S)
    added = sum((whole[name] - level[name][..., None]) * ~usual[name] for name in whole)
    rate = sum((~mask).mean(axis=-1) for mask in usual.values()) / len(usual)
    num_long = np.maximum(sum((~usual[name]).sum(axis=-1) for name in whole), 1)
    added_s = rate * added.sum(axis=-1) / num_long
    # A bootstrap sample without a long turn of `own` does not show which part long turns add to.
    added_s = np.where((rate > 0) & usual[OWN].all(axis=-1), np.nan, added_s)
    causes = {name: common[name] + added_s * beyond[name] / total for name in parts}
    is_single = turns[OWN].shape[-2] == 1
    causes["ddp" if is_single else "exposed"] = resident - level[OWN]
    if is_single:
        del causes["imbalance"]
    if RUNNING not in turns:
        del causes["contention"]
    if RESIDENT in turns:
        causes["input"] = level[FULL] - resident
    causes["step"] = level[FULL] + added_s
    causes["rare_own"] = added_s * beyond["own"] / total
    causes["rate"] = rate
    if HALF in turns:
        # Both include waits for a core, which are unknown for half a batch.
        half, own = (_median_of(turns, name) for name in (HALF, OWN))
        causes["fixed"] = common["own"] * lower_median(2 * half / own - 1)
    if REDUCE in turns:
        causes["reduce"] = turns[REDUCE].max(axis=-2).mean(axis=-1)
    return causes


def mark_usual(turns: Turns) -> Turns:
    """Return turns with masks of the usual turns: all, if long ones are not equally frequent."""
    whole = {name: turns[name].max(axis=-2) for name in USUAL if name in turns}
    rare = {
        name: seconds > RARE * np.quantile(seconds, 0.25, axis=-1, keepdims=True)
        for name, seconds in whole.items()
    }
    shares = np.stack([mask.mean(axis=-1) for name, mask in rare.items() if name != HALF])
    middle = shares.mean(axis=0)
    error = np.sqrt(2 * middle * (1 - middle) / turns[OWN].shape[-1])
    is_alike = np.ptp(shares, axis=0) <= ERRORS * error
    is_alike &= (shares.min(axis=0) > 0) & (shares.max(axis=0) <= MOST_RARE)
    marks = {
        USUAL[name]: ~(mask & is_alike[..., None])[..., None, :] for name, mask in rare.items()
    }
    return {**turns, **marks}


def _median_of(turns: Turns, name: str) -> Array:
    """Return each rank's median over a variant's usual turns, shape (..., num_ranks)."""
    usual = turns[USUAL[name]]
    chosen = np.where(usual.any(axis=-1, keepdims=True), usual, True)
    return np.asarray(np.nanmedian(np.where(chosen, turns[name], np.nan), axis=-1))


def _mean_of(seconds: Array, which: Any) -> Array:
    """Return the mean over chosen turns, or over all if no turn is; (..., turns) to (...)."""
    chosen = np.where(which.any(axis=-1, keepdims=True), which, True)
    return np.asarray((seconds * chosen).sum(axis=-1) / chosen.sum(axis=-1))


def follows_batch(turns: Turns) -> bool:
    """Return whether the part that half a batch does not halve grows with the batch.

    Such a part is no fixed cost. The criterion is the slope of 2 half - own over own, both minus
    the mean of their lap: 1 if half a batch takes as long as the whole, 0 if half as long, -1 if
    own varies by noise. Only turns count that are usual, or long, in all variants: a long batch
    is long in each, a rare event is not.
    """
    if HALF not in turns:
        return False
    marks = mark_usual(turns)
    usual = np.ptp([marks[USUAL[name]].astype(int) for name in (FULL, OWN, HALF)], axis=0) == 0
    own, half = (np.where(usual, turns[name], np.nan) for name in (OWN, HALF))
    slope = spread = 0.0
    for lap in np.split(np.arange(own.shape[-1]), range(LAP, own.shape[-1], LAP)):
        if usual[..., lap].any():
            x, y = (s[:, lap] - np.nanmean(s[:, lap], axis=-1, keepdims=True)
                    for s in (own, 2 * half - own))  # fmt: skip
            slope, spread = slope + float(np.nansum(x * y)), spread + float(np.nansum(x * x))
    return slope > FOLLOWS * spread


def _alone(turns: Turns) -> Array:
    """Return `own` minus the waits for a core that all ranks have."""
    if RUNNING not in turns:
        return turns[OWN]
    queued = np.maximum(turns[OWN] - turns[RUNNING], 0.0)
    mean = queued.mean(axis=-1)
    common = lower_median(mean)[..., np.newaxis]
    share = np.minimum(common / np.maximum(mean, TINY_S), 1.0)
    return np.asarray(turns[OWN] - queued * share[..., np.newaxis])


def median_alone(turns: Turns) -> Array:
    """Return the lower median over ranks of alone[r]; shape (..., turns)."""
    return lower_median(np.moveaxis(_alone(turns), -2, -1))


def lower_median(ranks: Array) -> Array:
    """Return the median over ranks, the lower one of an even number; (..., ranks) to (...)."""
    middle = (ranks.shape[-1] - 1) // 2
    return np.asarray(np.sort(ranks, axis=-1)[..., middle])


def resample(turns: Turns, num: int, seed: int) -> Turns:
    """Return bootstrap samples of the turns; variant -> shape (num, num_ranks, num_turns).

    Long turns are marked first, as a sample may contain none of them.
    """
    turns = mark_usual(turns)
    num_turns = turns[FULL].shape[-1]
    drawn = np.random.default_rng(seed).integers(num_turns, size=(num, num_turns))
    return {name: np.moveaxis(seconds[:, drawn], 0, 1) for name, seconds in turns.items()}


# Probability that one of equal ranks is called slow, over all ranks of a launch.
FALSE_ALARM = 0.01
# A slow rank takes at least this multiple of the others' time. The lower end of the interval must
# reach the square root of it.
NOTABLE_RATIO = 1.05

Interval = tuple[float, float]


@dataclass(frozen=True)
class SlowRank:
    """The rank that the others wait for."""

    rank: int
    # Its own step over the median of the other ranks', such as 1.12 for 12 % longer; the geometric
    # mean over turns.
    ratio: float
    interval: Interval  # of the ratio by Student's t over turns, for all ranks (Bonferroni)


@dataclass(frozen=True)
class LateInput:
    """The rank whose batches come late, while at least half of the others have theirs."""

    rank: int
    wait_s: float  # its mean wait for a batch
    others_s: float  # the mean of the median wait of the other ranks
    num_ranks: int = 0  # 0 if unknown


def slow_rank(own_s: Sequence[Sequence[float]]) -> SlowRank | None:
    """Return the slow rank, or None; seconds of `own` have the shape (num_ranks, num_turns)."""
    if len(own_s) < 2 or len(own_s[0]) < FEWEST_TURNS:
        return None
    logs = np.log(np.array(own_s))
    rank = int(np.median(logs, axis=1).argmax())
    others = np.median(np.delete(logs, rank, axis=0), axis=0)
    ratios = (logs[rank] - others).tolist()
    middle = fmean(ratios)
    half = metrics.half_width(ratios, 1 - FALSE_ALARM / len(own_s))
    is_slow = middle >= math.log(NOTABLE_RATIO)
    if not is_slow or middle - half < math.log(NOTABLE_RATIO) / 2:
        return None
    return SlowRank(rank, math.exp(middle), (math.exp(middle - half), math.exp(middle + half)))


def late_input(turns: Mapping[str, Any]) -> LateInput | None:
    """Return the rank whose batches come late, or None; turns as in `divide`.

    Its wait beyond the others' median must be notable in a step, and longer than that median. The
    whole step must be notably longer than `resident`, since a GPU may hide the host's waits.
    """
    waits = np.array(turns.get(DRAW, []))
    if len(waits) < 2 or waits.shape[1] < FEWEST_TURNS:
        return None
    step_s, there_s = (float(np.max(turns[name], axis=0).mean()) for name in (FULL, RESIDENT))
    if step_s - there_s < metrics.NOTABLE * step_s:
        return None
    rank = int(np.median(waits, axis=1).argmax())
    others = np.median(np.delete(waits, rank, axis=0), axis=0)
    late = LateInput(rank, float(waits[rank].mean()), float(others.mean()), len(waits))
    beyond = (waits[rank] - 2 * others).tolist()
    half = metrics.half_width(beyond, 1 - FALSE_ALARM / len(waits))
    is_notable = late.wait_s - late.others_s >= metrics.NOTABLE * step_s
    return late if is_notable and fmean(beyond) > half else None


def is_late(turns: Mapping[str, Any], rank: int) -> bool:
    """Return whether a rank's mean wait is more than twice the median of the others'."""
    waits = np.array(turns[DRAW]).mean(axis=1)
    return bool(waits[rank] > 2 * np.median(np.delete(waits, rank)))
