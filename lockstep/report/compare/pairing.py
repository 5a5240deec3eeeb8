"""Which points of two sets of results are the same point, but for what may differ.

A case's name holds its factors, so results that differ in precision or batch share no name. Points
of one name are paired first. Where `--allow` lets a factor differ, the others are paired by what is
left of their identity: the test, the remaining factors and the world size. A pair is made only
where one point of each side has that identity; where a side has several, which of them to compare
is open, and they are ambiguous.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lockstep.core import formats
from lockstep.core.flags import Flag
from lockstep.report.compute import replicates
from lockstep.report.compute.scaling import label
from lockstep.report.compute.statistics import median_rate
from lockstep.report.load import layout
from lockstep.report.load.layout import Layout
from lockstep.report.load.results import Row, largest
from lockstep.report.load.training_runs import FACTORS

# Factors of training runs that stay, or have a name of their own below.
OF_ROWS = ("workload", "data", "precision", "global_batch", "local_batch")
# What makes points incomparable, by the name under which `--allow` lets it differ.
MUST_AGREE = {
    "workload": ("study", "workload"),
    "scaling": ("scaling",),
    "precision": ("precision",),
    "batch": ("local_batch", "global_batch", "samples_per_step"),
    "unit": ("sample_unit", "metric"),
    "origin": ("origin",),
    "layout": ("num_nodes", "ranks_per_node"),
    "device": ("device_names", "device"),
    "training": tuple(name for name in FACTORS if name not in OF_ROWS),
}


class Key(NamedTuple):
    """What one side calls a point."""

    case: str
    world_size: int
    layout: Layout = Layout()

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.case} at {self.world_size}", self.layout.text)))


Points = Mapping[Key, list[Row]]


@dataclass(frozen=True)
class Pair:
    """A point that both sides hold.

    Attributes:
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
    def units(self) -> tuple[list[float], list[float]]:
        """The rates of A and of B that intervals are over: of launches, or of several jobs."""
        a, b = self.rates
        return replicates.independent(self.a, a), replicates.independent(self.b, b)

    @property
    def ratio(self) -> float:
        """Median rate of B over that of A, as the points of a report are medians."""
        a, b = map(median_rate, self.rates)
        return b / a

    @property
    def peak_memory_bytes(self) -> tuple[int | None, int | None]:
        """Peak memory of A and of B, of the rank that needs most."""
        return largest(self.a, "peak_memory_bytes"), largest(self.b, "peak_memory_bytes")

    @property
    def memory_ratio(self) -> float | None:
        """Peak memory of B over that of A; None where a side does not know it.

        None also where one side alone knows what PyTorch reserved, as GPUs do: a CPU's peak is of
        the process, a GPU's of tensors.
        """
        a, b = self.peak_memory_bytes
        on_gpu = {bool(largest(side, "peak_reserved_bytes")) for side in (self.a, self.b)}
        return b / a if a and b and len(on_gpu) == 1 else None

    @property
    def name(self) -> str:
        """The study and what varies, for a reader; of a factor that differs, A's value."""
        row = self.a[0]
        kind = row.study if row.origin == "measured" else f"[{row.origin}]"
        return f"{kind} {label(row)}"

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Factors that differ, with the values of A and of B, and the nodes where they do."""
        mine, theirs = self.a[0], self.b[0]
        found = {
            name: (mine.factors[name], other) for name, other in theirs.factors.items()
            if name in mine.factors and str(mine.factors[name]) != str(other)
        }  # fmt: skip
        if theirs.num_nodes not in (None, mine.num_nodes):
            found["num_nodes"] = mine.num_nodes, theirs.num_nodes
        return found

    @property
    def case_label(self) -> str:
        """What varies, without what differs between A and B."""
        parts = label(self.a[0]).split(", ")
        changed = tuple(f"{name}=" for name in self.changed)
        return ", ".join(part for part in parts if not part.startswith(changed)) or parts[0]

    @property
    def label(self) -> str:
        """Its name, and B's value of each factor that differs."""
        there = [
            formats.counted(theirs, "node") if name == "num_nodes" else f"{name}={theirs}"
            for name, (_, theirs) in self.changed.items()
        ]
        return f"{self.name} (B: {', '.join(there)})" if there else self.name

    @property
    def flags(self) -> list[tuple[str, Flag]]:
        """Why a side's point is no evidence: (side, flag)."""
        sides = (("A", self.a), ("B", self.b))
        found = ((side, one) for side, rows in sides for row in rows for one in row.flags)
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Ambiguous:
    """Points that are alike but for what may differ, several on a side."""

    world_size: int
    a: list[str]
    b: list[str]


def points(a: Iterable[Row], b: Iterable[Row]) -> tuple[dict[Key, list[Row]], dict[Key, list[Row]]]:
    """Return the rows of each point of A and of B, by case, world size and layout.

    What differs between launches of a point on one side parts the points of both; what is the same
    on each side is what one compares for. A layout that a side does not know parts nothing.
    """
    sides = _sizes(a), _sizes(b)
    names = {
        key: dict.fromkeys(n for side in sides for n in layout.differing(side.get(key, [])))
        for key in (*sides[0], *sides[1])
    }
    made: tuple[dict[Key, list[Row]], dict[Key, list[Row]]] = ({}, {})
    for found, side in zip(made, sides, strict=True):
        for key, rows in side.items():
            both = [*sides[0].get(key, ()), *sides[1].get(key, ())]
            known = all(row.num_nodes for row in both)
            for row in rows:
                placed = layout.layout(row, names[key]) if known else Layout()
                found.setdefault(Key(*key, placed), []).append(row)
    return made


def _sizes(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.case, row.world_size), []).append(row)
    return found


def matched(
    a: Points, b: Points, allowed: Collection[str] = ()
) -> tuple[list[tuple[Key, Key]], list[Ambiguous]]:
    """Return the keys of the points that belong together, in the order of A.

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
            ambiguous.append(Ambiguous(identity[1], *([str(key) for key in side] for side in rest)))
    return [(key, pairs[key]) for key in a if key in pairs], ambiguous


def _groups(
    a: Points, b: Points, allowed: Collection[str]
) -> dict[tuple[Any, ...], tuple[list[Key], list[Key]]]:
    """Return identity without what may differ -> the keys of A and of B that have it."""
    left_out = {field for name in allowed for field in MUST_AGREE[name]}
    groups: dict[tuple[Any, ...], tuple[list[Key], list[Key]]] = {}
    for index, side in enumerate((a, b)):
        for key, rows in side.items():
            factors = rows[0].factors
            test = key.case.partition("[")[0] if factors else key.case
            kept = frozenset((name, str(v)) for name, v in factors.items() if name not in left_out)
            placed = None if "layout" in allowed else key.layout
            groups.setdefault((test, key.world_size, kept, placed), ([], []))[index].append(key)
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
    held = [formats.listed(map(str, side), 3) or "nothing" for side in (a, b)]
    hints = [f"pass --allow {name}" for name in allowing(a, b, allowed)]
    todo = " or ".join([*hints, "measure the same cases at the same world sizes"])
    return f"A and B have no point in common: A holds {held[0]}; B holds {held[1]}; {todo}"


def ambiguity(found: Collection[Ambiguous], sides: tuple[str, str] = ("A", "B")) -> str:
    """Say which points of the sides could be paired in more than one way."""
    first = next(iter(found))
    return (
        f"{formats.counted(len(found), 'point')} could be paired in several ways, such as "
        f"{formats.listed(first.a, 3)} in {sides[0]} with {formats.listed(first.b, 3)} in "
        f"{sides[1]}; "
        f"give sides that hold one of each"
    )
