"""Where an axis has its marks, and which of them have room for a label."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from lockstep.report.page.drawing.palette import CHARACTER_IN

# Marks that a logarithmic axis needs at least.
FEWEST = 3
# Of a linear axis, about.
WANTED = 5
# Marks of an axis of powers of two.
MOST = 8
# Between two labels, which are smaller than other text.
GAP_IN, NARROW = 0.07, 0.88


def logarithmic(low: float, high: float) -> list[float]:
    """Return round values from low to high, at least three where there are so many."""
    found: list[float] = []
    for steps in (
        (1,),
        (1, 2, 5),
        (1, 1.5, 2, 3, 4, 5, 6, 8),
        tuple(i / 10 for i in range(10, 100)),
    ):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(found) >= FEWEST:
            break
    return found


def linear(low: float, high: float) -> list[float]:
    """Return about five round values from low to high, 0 among them where it lies between."""
    if not high > low:
        return [low]
    rough = (high - low) / WANTED
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(decade * s for s in (1, 2, 2.5, 5, 10) if decade * s >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


def binary(low: float, high: float) -> list[float]:
    """Return powers of two from low to high, every second or third of many."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = 1 + (last - first) // MOST
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


def with_room(
    values: Sequence[float], names: Sequence[str], place_in: Callable[[float], float]
) -> list[str]:
    """Return the names, each second or third alone where one would lie on its neighbour.

    The last one is always kept; `place_in` gives where on the axis a value lies, in inches.
    """
    last = len(values) - 1
    ends = [
        (place_in(value) - half_in, place_in(value) + half_in)
        for value, name in zip(values, names, strict=True)
        for half_in in [CHARACTER_IN * NARROW * len(name) / 2]
    ]
    for step in range(1, len(values) + 1):
        kept = [i for i in range(len(values)) if (last - i) % step == 0]
        if all(ends[i][1] + GAP_IN <= ends[j][0] for i, j in pairwise(kept)):
            break
    return [name if i in kept else "" for i, name in enumerate(names)]


def widest_in(names: Sequence[str]) -> float:
    """Return the room that the longest name takes, in inches."""
    return CHARACTER_IN * max(map(len, names), default=0)
