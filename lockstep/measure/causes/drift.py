"""Whether a step takes another time at the end of its turns than at their beginning.

A slow first minute, of caches that fill or kernels that are compiled, is no cause of what the steps
after it lose. So causes are told of the turns after the change alone, and the change by itself.
"""

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from lockstep.measure.causes.division import FEWEST_TURNS, FULL, RESIDENT, Turns, typical

Array = np.ndarray[Any, np.dtype[np.float64]]

# Chance that turns in which nothing changes are said to, over all variants and orders.
FALSE_ALARM = 0.01
# A smaller change of the step is not worth a word.
NOTABLE_CHANGE = 0.1


@dataclass(frozen=True)
class Drift:
    """A change of a rank's own step.

    Attributes:
        from_s: Of the turns before it, the median of the own step or of the whole one.
        to_s: Of those after it.
        share: Of the turns that come before it.
        told: Of which turns causes are told: those after it, unless these are too few, or the turns
            of the whole step all lie before it.
    """

    from_s: float
    to_s: float
    share: float
    told: Literal["before", "after"]


def settled(turns: Turns, again: int | None = None) -> tuple[Turns, Drift | None]:
    """Return the turns after a change, all of them where there is none, and the change.

    Pettitt's test (Applied Statistics 28, 1979, 126) on the own step: with U_k twice the sum of the
    first k ranks less k (n + 1) and K the largest |U_k|, p is 2 exp(-6 K^2 / (n^3 + n^2)).

    Few turns at the beginning that are all longer than all others are a change, too: by chance they
    are in one of so many orders. Where several variants change, the last of their changes counts.
    Where the whole step does not change, it lies on one side of the change alone, the longer one.

    Args:
        turns: Of one launch in the order of time, shape (num_ranks, num_turns) of each variant.
        again: After so many turns the step is put back as it was, so that what comes in its first
            steps comes again; None where it is not.
    """
    own = typical(turns)
    series = [np.max(turns[name], axis=0) for name in (FULL, RESIDENT) if name in turns] + [own]
    number = np.arange(len(own))
    orders = [number, np.argsort(number % again, kind="stable")] if again else [number]
    found = [[_change(each[order]) for each in series] for order in orders]
    order, changes = min(zip(orders, found, strict=True), key=lambda one: min(one[1])[0])
    level = FALSE_ALARM / (len(series) * len(orders))
    sure = [(at, each) for (chance, at), each in zip(changes, series, strict=True)
            if chance < level]  # fmt: skip
    if not sure:
        return turns, None
    at, seconds = max(sure, key=itemgetter(0))
    is_whole = changes[0][0] < level
    is_after = len(own) - at >= FEWEST_TURNS and (is_whole or at < len(own) / 2)
    if not is_after:
        at, seconds = min(sure, key=itemgetter(0))
    before, after = np.split(order, [at])
    kept = np.sort(after if is_after else before)
    from_s, to_s = (float(np.median(seconds[part])) for part in (before, after))
    change = Drift(from_s, to_s, at / len(own), "after" if is_after else "before")
    return {name: np.asarray(each)[:, kept] for name, each in turns.items()}, change


def _change(seconds: Array) -> tuple[float, int]:
    """Return the chance of the likeliest change, and how many values come before it.

    The chance of one that is not worth a word is 1.
    """
    count = len(seconds)
    less = seconds[:, None] > seconds
    ranks = (less.sum(axis=1) + (~less.T).sum(axis=1) + 1) / 2  # equal values share their ranks
    sums = np.abs(2 * np.cumsum(ranks) - np.arange(1, count + 1) * (count + 1))
    found = [(2 * math.exp(-6 * each**2 / (count**3 + count**2)), at + 1)
             for at, each in enumerate(sums.tolist())]  # fmt: skip
    lowest, highest = np.minimum.accumulate(seconds), np.maximum.accumulate(seconds[::-1])[::-1]
    found += [(count / math.comb(count, at), at)
              for at in range(1, count) if lowest[at - 1] > highest[at]]  # fmt: skip
    chance, at = min(found)
    if at == count:
        return 1.0, at
    before, after = np.median(seconds[:at]), np.median(seconds[at:])
    is_notable = abs(after / before - 1) >= NOTABLE_CHANGE
    return chance if is_notable else 1.0, at
