"""Which points of two sets of results are the same point, but for what may differ.

A case's name holds its factors, so results that differ in precision or batch share no name. Points
of one name are paired first. Where `--allow` lets a factor differ, the others are paired by what is
left of their identity: the test, the remaining factors and the world size. A pair is made only
where one point of each side has that identity; where a side has several, which of them to compare
is open, and they are ambiguous.

What surrounds two sets of results: how their software, machines and times differ.

What two sides of training runs took: time of an epoch, and time to an accuracy.

The accuracy to reach is the one that both sides were given, else what every run of both comes to.
Ratios are of B over A, so below 1 B is quicker; their intervals are Welch's at 95 %, over runs or
jobs, and not corrected for the number of points. A difference in accuracy is among the quantities
that `comparison` gives of every point.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from lockstep.core import formats
from lockstep.core.flags import Flag
from lockstep.core.record import DDP_SETTINGS, LOADER_SETTINGS
from lockstep.report.compute import learning, replicates
from lockstep.report.compute.scaling import label
from lockstep.report.compute.statistics import Interval, median_rate, ratio_interval
from lockstep.report.load import layout
from lockstep.report.load.layout import Layout
from lockstep.report.load.results import Launch, Row, largest
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
        found = ((side, flag) for side, rows in sides for row in rows for flag in row.flags)
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


def ambiguity(collection: Collection[Ambiguous], sides: tuple[str, str] = ("A", "B")) -> str:
    """Say which points of the sides could be paired in more than one way."""
    first = next(iter(collection))
    return (
        f"{formats.counted(len(collection), 'point')} could be paired in several ways, such as "
        f"{formats.listed(first.a, 3)} in {sides[0]} with {formats.listed(first.b, 3)} in "
        f"{sides[1]}; "
        f"give sides that hold one of each"
    )


# Named first of what differs between the sides; the rest of the provenance follows.
FIRST_FACTS = (
    "precision",
    "image_sha256",
    "driver",
    "cuda",
    "nccl",
    "torch",
    "device_names",
    "project_commit",
    "project_dirty",
    "git_commit",
)
# Settings that a point records, by what they are of.
SETTINGS_OF = {DDP_SETTINGS: "DDP", LOADER_SETTINGS: "loader"}
# Facts of one launch alone, or that another fact says better.
OWN_FACTS = {"ranks", "command", "hostname", "slurm", "environment", "image_path"}


# Circumstances of a point.
CIRCUMSTANCES_OF_ROWS = ("num_nodes", "precision", "steps_per_round")


def environment(
    launches: tuple[Sequence[Launch], Sequence[Launch]],
    rows: tuple[Sequence[Row], Sequence[Row]],
) -> tuple[dict[str, tuple[list[Any], list[Any]]], list[str]]:
    """Return which facts of A and B differ, and which are equal.

    Returns:
        Fact -> values of A and of B, where they differ, and the facts that are known and equal.
    """
    sides = [_facts(*side) for side in zip(launches, rows, strict=True)]
    names = sorted(dict.fromkeys([*sides[0], *sides[1]]), key=_place)
    facts = {
        name: (sides[0].get(name, _absent(name)), sides[1].get(name, _absent(name)))
        for name in names
    }
    differing = {
        name: (list(mine.values()), list(theirs.values()))
        for name, (mine, theirs) in facts.items()
        if mine.keys() != theirs.keys()
    }
    equal = [n for n, (mine, _) in facts.items() if n not in differing and set(mine) - {"None"}]
    return differing, equal


def _absent(fact: str) -> dict[str, Any]:
    """Return what a side without a fact has: a version that did not record it leaves it unknown."""
    return {} if fact.startswith(("variable ", "source of ")) else {"None": None}


def _place(fact: str) -> int:
    return FIRST_FACTS.index(fact) if fact in FIRST_FACTS else len(FIRST_FACTS)


def _facts(launches: Sequence[Launch], rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return fact -> its values over a side's launches and points, by their text."""
    found: dict[str, dict[str, Any]] = {}
    for launch in launches:
        for name, value in _provenance(launch).items():
            found.setdefault(name, {})[str(value)] = value
    for row in rows:
        for key, part in SETTINGS_OF.items():
            for name, value in (row.details.get(key) or {}).items():
                found.setdefault(f"{part} {name}", {})[str(value)] = value
        for name in CIRCUMSTANCES_OF_ROWS:
            found.setdefault(name, {})[str(getattr(row, name))] = getattr(row, name)
        source = f"source of {row.case.partition('[')[0]}"
        found.setdefault(source, {})[str(row.workload_sha256)] = row.workload_sha256
    return {name: dict(sorted(values.items())) for name, values in found.items()}


def _provenance(launch: Launch) -> dict[str, Any]:
    provenance = launch.provenance or launch.about
    slurm = provenance.get("slurm") or {}
    variables = provenance.get("environment") or {}
    return (
        {name: value for name, value in provenance.items() if name not in OWN_FACTS}
        | {"hosts": ", ".join(sorted(launch.named_hosts)) or launch.about.get("hosts")}
        | {"cores_per_rank": layout.settings(provenance).get("cores_per_rank")}
        | {"partition": slurm.get("SLURM_JOB_PARTITION")}
        | {f"variable {name}": value for name, value in variables.items()}
    )


@dataclass(frozen=True)
class Caution:
    """What makes a difference between the sides doubtful; `compare_wording` has its sentence.

    Attributes:
        kind: "copies": both sides hold the same launches; "one-job": the launches of a side's
            point ran in one Slurm job; "not-in-turn": one side was measured before the other.
    """

    kind: str
    values: Mapping[str, Any]


def cautions(
    launches: tuple[Sequence[Launch], Sequence[Launch]],
    points: Sequence[tuple[Sequence[Row], Sequence[Row]]],
) -> list[Caution]:
    """Return what a reader must know before the points."""
    return [*_copies(*launches), *_not_in_turn(*launches), *_in_one_job(points)]


def _copies(a: Sequence[Launch], b: Sequence[Launch]) -> Iterator[Caution]:
    names = ("launch", "campaign", "started", "part")
    sides = [
        {tuple(str(launch.facts.get(name)) for name in names) for launch in side if launch.facts}
        for side in (a, b)
    ]
    if both := len(sides[0] & sides[1]):
        yield Caution("copies", {"count": both})


def _in_one_job(points: Iterable[tuple[Sequence[Row], Sequence[Row]]]) -> Iterator[Caution]:
    for name, side in zip("AB", zip(*points, strict=True), strict=True):
        if count := sum(map(replicates.in_one_job, side)):
            yield Caution("one-job", {"side": name, "count": count})


def _not_in_turn(a: Sequence[Launch], b: Sequence[Launch]) -> Iterator[Caution]:
    times = [list(filter(None, map(replicates.begun, side))) for side in (a, b)]
    pairs = list(product(times[0], times[1]))
    ahead = replicates.lead(pairs)
    if abs(ahead) > replicates.MOST_APART:
        first, last = ("A", "B") if ahead > 0 else ("B", "A")
        share = "all" if abs(ahead) == 1 else "most"
        yield Caution("not-in-turn", {"first": first, "last": last, "share": share})


@dataclass(frozen=True)
class Times:
    """One time of both sides.

    Attributes:
        a: Median over runs of A, in seconds; None where a run does not reach the accuracy.
        ratio: b / a; None where one is not known.
        interval: Of the ratio; None where no spread is known.
    """

    kind: str
    a: float | None
    b: float | None
    ratio: float | None
    interval: Interval | None
    accuracy: float | None = None


def times(pair: Pair) -> list[Times]:
    """Return the times of a point of training runs; nothing of other points."""
    rows = [*pair.a, *pair.b]
    if not all(row.training for row in rows):
        return []
    found = [_times("epoch", pair, learning.epoch_s, None)]
    goal = learning.target(rows)
    if goal is not None:
        found.append(_times("target", pair, lambda row: learning.reached_s(row, goal), goal))
    return found


def _times(
    kind: str, pair: Pair, value: Callable[[Row], float | None], accuracy: float | None
) -> Times:
    sides = [(rows, [one for row in rows if (one := value(row))]) for rows in (pair.a, pair.b)]
    a, b = (median(known) if len(known) == len(rows) else None for rows, known in sides)
    if a is None or b is None:
        return Times(kind, a, b, None, None, accuracy)
    below, above = (replicates.independent(rows, known) for rows, known in sides)
    return Times(kind, a, b, b / a, ratio_interval(above, below), accuracy)
