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
beyond that makes it a slow rank. With x[r] a rank's seconds in a turn, alone[r] own[r] less the
waits in common, and means over turns:

    own       mean of the lower median over ranks of alone[r], in the same turn
    imbalance mean of max over ranks of alone[r], less `own`: what ranks of one turn differ by
    contention mean of max over ranks of own[r] less that of alone[r], where `running` is known
    exposed   mean of max over ranks of resident[r] (full, without an input pipeline) less own's
    ddp       the same of a single rank, which communicates with nobody: DDP's hooks and copies
    input     mean of max over ranks of full[r] less that of resident
    fixed     the share of `own` that half a batch does not halve, the lower median over ranks of
              2 half[r] / own[r] - 1, medians over usual turns: the c0 of t = c0 + c1 b

`own`, `imbalance`, `contention`, `exposed` (or `ddp`) and `input` add up to the mean of the slowest
rank's full step, by construction; `fixed` is a part of `own`.

What comes in some steps alone, such as a checkpoint, falls by chance on more turns of one variant
than of another, and would be taken for what these differ by. So turns that are `RARE` times their
variant's lower quartile or longer are set apart where they come in each of the variants alike:
variants are compared by their other turns, and what the long ones add to a step, over all variants,
goes to `own`, `imbalance` and `contention` as it does in the long turns of `own`.

Intervals are of a bootstrap over turns (`intervals`): all variants of one turn are drawn together,
so what slows a whole turn cancels.

Which rank the others wait for: slower by what it does alone, or its batches come late.

Ranks that meet in every step take equally long, whoever is slow: the fast ones wait within the
collective. So they are compared on turns of the step without gradient synchronisation, which all
ranks begin together: what slows the whole machine for a moment slows all ranks of a turn. How late
its batches come each rank knows by itself: what it waits for them in turns of the whole step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from lockstep.core import metrics

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
# A turn is set apart that is so many times its variant's lower quartile, so that it adds as much as
# a cause takes of a step that is called bound by it.
RARE = 1.25
# Of more turns the quartile may be one of the long ones.
MOST_RARE = 0.65
# Of each variant which turns are not set apart, beside its turns; shape (..., 1, num_turns).
USUAL = {FULL: "usual full", RESIDENT: "usual resident", OWN: "usual own", HALF: "usual half"}
# Shares of rare turns are alike within so many standard errors of their difference.
ERRORS = 3.0
# Half of a batch tells nothing where what it does not halve follows the batch by so much.
FOLLOWS = 0.5
# Fewer turns show nothing of their spread.
FEWEST_TURNS = 6
# Turns of a lap, in which each variant takes the same batches, one after the other.
LAP = 10


def divide(turns: Turns) -> Division:
    """Return the seconds of a step that go to each cause.

    Args:
        turns: Seconds of a step of each variant, shape (..., num_ranks, num_turns); `full` and
            `own` are needed.

    Returns:
        Seconds, shape (...): `own`, `imbalance`, `exposed` or for a single rank `ddp`,
        `contention`, `input` and `fixed` where their variants were measured, and `step`, the sum
        of the parts. Of what is set apart `rare_own`, a part of `own`, and as a share of all
        turns `rate`; both 0 where nothing is.
    """
    whole = {name: turns[name].max(axis=-2) for name in (FULL, RESIDENT, OWN) if name in turns}
    alone = _alone(turns)
    latest, own = alone.max(axis=-2), typical(turns)
    turns = turns if USUAL[OWN] in turns else marked(turns)
    usual = {name: turns[mark].max(axis=-2) for name, mark in USUAL.items() if name in turns}
    level = {name: _mean_of(seconds, usual[name]) for name, seconds in whole.items()}
    resident = level.get(RESIDENT, level[FULL])
    found = {"own": own, "imbalance": latest - own, "contention": whole[OWN] - latest}
    common = {name: _mean_of(seconds, usual[OWN]) for name, seconds in found.items()}
    # What the rare turns of `own` add, by part; and over all variants, to a step.
    beyond = {name: np.maximum(((seconds - common[name][..., None]) * ~usual[OWN]).sum(axis=-1), 0)
              for name, seconds in found.items()}  # fmt: skip
    total = np.maximum(sum(beyond.values()), TINY_S)
    added = sum((whole[name] - level[name][..., None]) * ~usual[name] for name in whole)
    rate = sum((~each).mean(axis=-1) for each in usual.values()) / len(usual)
    num_long = np.maximum(sum((~usual[name]).sum(axis=-1) for name in whole), 1)
    added_s = rate * added.sum(axis=-1) / num_long
    # A sample of the bootstrap without a long turn of `own` does not tell whose they are.
    added_s = np.where((rate > 0) & usual[OWN].all(axis=-1), np.nan, added_s)
    found = {name: common[name] + added_s * beyond[name] / total for name in found}
    is_single = turns[OWN].shape[-2] == 1
    found["ddp" if is_single else "exposed"] = resident - level[OWN]
    if is_single:
        del found["imbalance"]
    if RUNNING not in turns:
        del found["contention"]
    if RESIDENT in turns:
        found["input"] = level[FULL] - resident
    found["step"] = level[FULL] + added_s
    found["rare_own"] = added_s * beyond["own"] / total
    found["rate"] = rate
    if HALF in turns:
        # With the waits for a core, which are not known of half a batch.
        half, own = (_median_of(turns, name) for name in (HALF, OWN))
        found["fixed"] = common["own"] * lower_median(2 * half / own - 1)
    if REDUCE in turns:
        found["reduce"] = turns[REDUCE].max(axis=-2).mean(axis=-1)
    return found


def marked(turns: Turns) -> Turns:
    """Return turns with which of them are usual, all where long ones do not come in each alike.

    Alike are shares of turns within so many standard errors of their difference.
    """
    whole = {name: turns[name].max(axis=-2) for name in USUAL if name in turns}
    rare = {
        name: seconds > RARE * np.quantile(seconds, 0.25, axis=-1, keepdims=True)
        for name, seconds in whole.items()
    }
    shares = np.stack([each.mean(axis=-1) for name, each in rare.items() if name != HALF])
    middle = shares.mean(axis=0)
    error = np.sqrt(2 * middle * (1 - middle) / turns[OWN].shape[-1])
    is_alike = np.ptp(shares, axis=0) <= ERRORS * error
    is_alike &= (shares.min(axis=0) > 0) & (shares.max(axis=0) <= MOST_RARE)
    marks = {
        USUAL[name]: ~(each & is_alike[..., None])[..., None, :] for name, each in rare.items()
    }
    return {**turns, **marks}


def _median_of(turns: Turns, name: str) -> Array:
    """Return each rank's median over a variant's usual turns, shape (..., num_ranks)."""
    usual = turns[USUAL[name]]
    chosen = np.where(usual.any(axis=-1, keepdims=True), usual, True)
    return np.asarray(np.nanmedian(np.where(chosen, turns[name], np.nan), axis=-1))


def _mean_of(seconds: Array, which: Any) -> Array:
    """Return the mean over the turns that are chosen, or all; (..., turns) to (...)."""
    chosen = np.where(which.any(axis=-1, keepdims=True), which, True)
    return np.asarray((seconds * chosen).sum(axis=-1) / chosen.sum(axis=-1))


def follows_batch(turns: Turns) -> bool:
    """Tell whether what half a batch does not halve is longer with a longer batch.

    Then it is no fixed cost, as where a batch says by itself how long it takes. By the slope of
    2 half - own over own, less the mean of their lap: 1 where half a batch takes as long as the
    whole, 0 where it takes half of what differs, -1 where own differs by noise. Of turns that are
    usual or long in all variants: a long batch is so in each, what comes in some steps is not.
    """
    if HALF not in turns:
        return False
    marks = marked(turns)
    usual = np.ptp([marks[USUAL[name]].astype(int) for name in (FULL, OWN, HALF)], axis=0) == 0
    own, half = (np.where(usual, turns[name], np.nan) for name in (OWN, HALF))
    slope = spread = 0.0
    for lap in np.split(np.arange(own.shape[-1]), range(LAP, own.shape[-1], LAP)):
        if usual[..., lap].any():
            x, y = (each[:, lap] - np.nanmean(each[:, lap], axis=-1, keepdims=True)
                    for each in (own, 2 * half - own))  # fmt: skip
            slope, spread = slope + float(np.nansum(x * y)), spread + float(np.nansum(x * x))
    return slope > FOLLOWS * spread


def _alone(turns: Turns) -> Array:
    """Return `own` without the waits for a core that the ranks have in common."""
    if RUNNING not in turns:
        return turns[OWN]
    queued = np.maximum(turns[OWN] - turns[RUNNING], 0.0)
    mean = queued.mean(axis=-1)
    common = lower_median(mean)[..., np.newaxis]
    share = np.minimum(common / np.maximum(mean, TINY_S), 1.0)
    return np.asarray(turns[OWN] - queued * share[..., np.newaxis])


def typical(turns: Turns) -> Array:
    """Return the lower median over ranks of what each takes alone in a turn; shape (..., turns)."""
    return lower_median(np.moveaxis(_alone(turns), -2, -1))


def lower_median(ranks: Array) -> Array:
    """Return the median over ranks, of an even number the lower one; (..., ranks) to (...)."""
    middle = (ranks.shape[-1] - 1) // 2
    return np.asarray(np.sort(ranks, axis=-1)[..., middle])


def resample(turns: Turns, num: int, seed: int) -> Turns:
    """Return bootstrap samples of the turns; shape (num, num_ranks, num_turns) of each variant.

    Which of them are usual is found before, or a few samples without a long one would differ much.
    """
    turns = marked(turns)
    num_turns = turns[FULL].shape[-1]
    drawn = np.random.default_rng(seed).integers(num_turns, size=(num, num_turns))
    return {name: np.moveaxis(seconds[:, drawn], 0, 1) for name, seconds in turns.items()}


# Chance that a launch of equal ranks has one of them named, over all ranks together.
FALSE_ALARM = 0.01
# A rank is named that is slower by this, and whose interval leaves out half of it.
NOTABLE_RATIO = 1.05

Interval = tuple[float, float]


@dataclass(frozen=True)
class SlowRank:
    """The rank that the others wait for.

    Attributes:
        ratio: Its own step over the median of the other ranks', 1.12 where it takes 12 % longer;
            the geometric mean over turns.
        interval: Of the ratio, by Student's t over turns, for all ranks together (Bonferroni).
    """

    rank: int
    ratio: float
    interval: Interval


@dataclass(frozen=True)
class LateInput:
    """The rank whose batches come late, while at least half of the others have theirs.

    Attributes:
        wait_s: Its wait for a batch, the mean over turns.
        others_s: The mean of the median of the other ranks'.
    """

    rank: int
    wait_s: float
    others_s: float


def slow_rank(own_s: Sequence[Sequence[float]]) -> SlowRank | None:
    """Return the slow rank that is shown; None where none is.

    Steps without gradient synchronisation are in seconds, shape (num_ranks, num_turns).
    """
    if len(own_s) < 2 or len(own_s[0]) < FEWEST_TURNS:
        return None
    logs = np.log(np.array(own_s))
    rank = int(np.median(logs, axis=1).argmax())
    others = np.median(np.delete(logs, rank, axis=0), axis=0)
    paces = (logs[rank] - others).tolist()
    middle = fmean(paces)
    half = metrics.half_width(paces, 1 - FALSE_ALARM / len(own_s))
    is_slow = middle >= math.log(NOTABLE_RATIO)
    if not is_slow or middle - half < math.log(NOTABLE_RATIO) / 2:
        return None
    return SlowRank(rank, math.exp(middle), (math.exp(middle - half), math.exp(middle + half)))


def late_input(turns: Mapping[str, Any]) -> LateInput | None:
    """Return the rank whose batches come late, where a step waits for them; None where none does.

    Of the turns of `lockstep.measure.causes.division`, in seconds, shape
    (num_ranks, num_turns) by name.
    Shown is a wait beyond the others' median that is notable in a step, and more than twice that;
    and the step must be longer by it: a GPU may hide what the host waits.
    """
    waits = np.array(turns.get(DRAW, []))
    if len(waits) < 2 or waits.shape[1] < FEWEST_TURNS:
        return None
    step_s, there_s = (float(np.max(turns[name], axis=0).mean()) for name in (FULL, RESIDENT))
    if step_s - there_s < metrics.NOTABLE * step_s:
        return None
    rank = int(np.median(waits, axis=1).argmax())
    others = np.median(np.delete(waits, rank, axis=0), axis=0)
    found = LateInput(rank, float(waits[rank].mean()), float(others.mean()))
    beyond = (waits[rank] - 2 * others).tolist()
    half = metrics.half_width(beyond, 1 - FALSE_ALARM / len(waits))
    is_notable = found.wait_s - found.others_s >= metrics.NOTABLE * step_s
    return found if is_notable and fmean(beyond) > half else None


def is_late(turns: Mapping[str, Any], rank: int) -> bool:
    """Tell whether a rank waits more than twice as long as the median of the others, on average."""
    waits = np.array(turns[DRAW]).mean(axis=1)
    return bool(waits[rank] > 2 * np.median(np.delete(waits, rank)))
