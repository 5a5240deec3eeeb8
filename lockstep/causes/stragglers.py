"""Which rank is slower than the others by what it does alone.

Ranks that meet in every step take equally long, whoever is slow: the fast ones wait within the
collective. So they are compared on turns of the step without gradient synchronisation, which all
ranks begin together: what slows the whole machine for a moment slows all ranks of a turn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from lockstep.vocabulary import metrics

# Chance that a launch of equal ranks has one of them named, over all ranks together.
FALSE_ALARM = 0.01
# A rank is named that is slower by this, and whose interval leaves out half of it.
NOTABLE_RATIO = 1.05
# Fewer turns show nothing of their spread.
FEWEST_TURNS = 6

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
