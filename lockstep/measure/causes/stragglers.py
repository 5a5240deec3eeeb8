"""Which rank the others wait for: slower by what it does alone, or its batches come late.

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
from lockstep.measure.causes.division import DRAW, FEWEST_TURNS, FULL, RESIDENT

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
