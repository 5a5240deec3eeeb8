"""Which points of two sets of results are the same point, but for what may differ.

A case's name holds its factors, so results that differ in precision or batch share no name. Points
of one name are paired first. Where `--allow` lets a factor differ, the others are paired by what is
left of their identity: the test, the remaining factors and the world size. A pair is made only
where one point of each side has that identity; where a side has several, which of them to compare
is open, and they are ambiguous.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reports import formats
from reports.results import Row
from reports.scaling import label

# What makes points incomparable, by the name under which `--allow` lets it differ.
MUST_AGREE = {
    "workload": ("study", "workload"),
    "scaling": ("scaling",),
    "precision": ("precision",),
    "batch": ("local_batch", "global_batch", "samples_per_step"),
    "unit": ("sample_unit", "metric"),
    "origin": ("origin",),
    "device": ("device_names",),
}

# Case and world size.
Key = tuple[str, int]
Points = Mapping[Key, list[Row]]


@dataclass(frozen=True)
class Pair:
    """A point that both sides hold.

    Attributes:
        case: Name of the case in A.
        world_size: Number of ranks.
        a: Rows of A, one per launch.
        b: Rows of B, whose case may have another name where a factor may differ.
    """

    case: str
    world_size: int
    a: list[Row]
    b: list[Row]

    @property
    def rates(self) -> tuple[list[float], list[float]]:
        """Work per second of each launch of A and of B."""
        return [row.rate for row in self.a], [row.rate for row in self.b]

    @property
    def label(self) -> str:
        """The study and what varies, for a reader; both values of a factor that differs."""
        row = self.a[0]
        kind = row.study if row.origin == "measured" else f"[{row.origin}]"
        differing = [
            f"{name}={other}" for name, other in self.b[0].factors.items()
            if name in row.factors and str(row.factors[name]) != str(other)
        ]  # fmt: skip
        against = f" (B: {', '.join(differing)})" if differing else ""
        return f"{kind} {label(row)}{against}"

    @property
    def flags(self) -> list[str]:
        """Why a side's point is no evidence, and whose it is."""
        sides = (("A", self.a), ("B", self.b))
        said = (f"{side}: {flag}" for side, rows in sides for row in rows for flag in row.flags)
        return list(dict.fromkeys(said))


@dataclass(frozen=True)
class Ambiguous:
    """Points that are alike but for what may differ, several on a side.

    Attributes:
        world_size: Number of ranks.
        a: Cases of A.
        b: Cases of B.
    """

    world_size: int
    a: list[str]
    b: list[str]


def points(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Return the rows of each point, by case and world size."""
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault((row.case, row.world_size), []).append(row)
    return found


def matched(
    a: Points, b: Points, allowed: Collection[str] = ()
) -> tuple[list[tuple[Key, Key]], list[Ambiguous]]:
    """Return the keys of the points that belong together, in the order of A.

    Args:
        a: The points of A.
        b: The points of B.
        allowed: Keys of `MUST_AGREE` that may differ.

    Returns:
        Keys of A and of B, and the points of which more than one pair could be made.
    """
    pairs = {key: key for key in a if key in b}
    ambiguous = []
    for identity, (mine, theirs) in _groups(a, b, allowed).items() if allowed else ():
        rest = [key for key in mine if key not in b], [key for key in theirs if key not in a]
        if len(mine) == len(theirs) == 1:
            pairs[mine[0]] = theirs[0]
        elif all(rest):
            cases = ([case for case, _ in side] for side in rest)
            ambiguous.append(Ambiguous(identity[1], *cases))
    return [(key, pairs[key]) for key in a if key in pairs], ambiguous


def _groups(
    a: Points, b: Points, allowed: Collection[str]
) -> dict[tuple[str, int, frozenset[tuple[str, str]]], tuple[list[Key], list[Key]]]:
    """Return identity without what may differ -> the keys of A and of B that have it."""
    left_out = {field for name in allowed for field in MUST_AGREE[name]}
    groups: dict[Any, tuple[list[Key], list[Key]]] = {}
    for index, side in enumerate((a, b)):
        for key, rows in side.items():
            factors = rows[0].factors
            test = key[0].partition("[")[0] if factors else key[0]
            kept = {(name, str(v)) for name, v in factors.items() if name not in left_out}
            groups.setdefault((test, key[1], frozenset(kept)), ([], []))[index].append(key)
    return groups


def allowing(a: Points, b: Points, allowed: Collection[str]) -> dict[str, int]:
    """Return what `--allow` would pair beyond what is paired: its key -> number of points."""
    now = len(matched(a, b, allowed)[0])
    more = {name: len(matched(a, b, {*allowed, name})[0]) - now for name in MUST_AGREE}
    return {name: number for name, number in more.items() if number > 0}


def nothing_common(a: Points, b: Points, allowed: Collection[str]) -> str:
    """Say that no point can be paired, what each side holds, and what to do."""
    ambiguous = matched(a, b, allowed)[1]
    if ambiguous:
        return f"A and B have no pair: {ambiguity(ambiguous)}"
    held = [
        formats.listed((f"{case} at {size}" for case, size in side), 3) or "nothing"
        for side in (a, b)
    ]
    hints = [f"pass --allow {name}" for name in allowing(a, b, allowed)]
    todo = " or ".join([*hints, "measure the same cases at the same world sizes"])
    return f"A and B have no point in common: A holds {held[0]}; B holds {held[1]}; {todo}"


def ambiguity(found: Collection[Ambiguous]) -> str:
    """Say which points could be paired in more than one way."""
    first = next(iter(found))
    return (
        f"{formats.counted(len(found), 'point')} could be paired in several ways, such as "
        f"{formats.listed(first.a, 3)} in A with {formats.listed(first.b, 3)} in B at "
        f"{first.world_size}; give sides that hold one of each"
    )
