"""What surrounds two sets of results: how their software, machines and times differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from lockstep.core.record import DDP_SETTINGS, LOADER_SETTINGS
from lockstep.report.compute import replicates
from lockstep.report.load import layout
from lockstep.report.load.results import Launch, Row

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
OF_ROWS = ("num_nodes", "precision", "steps_per_round")


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
        for name in OF_ROWS:
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
        {tuple(str(one.facts.get(name)) for name in names) for one in side if one.facts}
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
