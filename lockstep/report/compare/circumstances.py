"""What surrounds two sets of results: how their software, machines and times differ."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import product
from typing import Any

from lockstep.report.load import layout, replicates
from lockstep.report.load.results import Launch, Row
from lockstep.vocabulary.formats import counted

# Told first of what differs between the sides; the rest of the provenance follows.
FIRST_FACTS = ("image_sha256", "driver", "cuda", "nccl", "torch", "device_names", "git_commit")
# Of one launch alone, or said better by another fact.
OWN_FACTS = {"ranks", "command", "hostname", "slurm", "environment", "image_path"}


# What a point says of its own circumstances.
OF_ROWS = ("num_nodes", "steps_per_round")
# Beyond it a side's launches came too early to tell it from a drift; A B A B has 0.5.
MOST_APART = 0.5


def environment(
    launches: tuple[Sequence[Launch], Sequence[Launch]],
    rows: tuple[Sequence[Row], Sequence[Row]],
) -> tuple[dict[str, tuple[list[Any], list[Any]]], list[str]]:
    """Return which facts of A and B differ, and which are equal.

    Args:
        launches: Those of A and of B that hold a point of both.
        rows: The rows of those points.

    Returns:
        Fact -> values of A and of B, where they differ, and the facts that are known and equal.
    """
    sides = [_facts(*side) for side in zip(launches, rows, strict=True)]
    names = sorted(dict.fromkeys([*sides[0], *sides[1]]), key=_place)
    found = {name: (sides[0].get(name, {}), sides[1].get(name, {})) for name in names}
    differing = {
        name: (list(mine.values()), list(theirs.values()))
        for name, (mine, theirs) in found.items()
        if mine.keys() != theirs.keys()
    }
    known = [n for n, (mine, _) in found.items() if n not in differing and set(mine) - {"None"}]
    return differing, known


def _place(fact: str) -> int:
    return FIRST_FACTS.index(fact) if fact in FIRST_FACTS else len(FIRST_FACTS)


def _facts(launches: Sequence[Launch], rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return fact -> its values over a side's launches and points, by their text."""
    found: dict[str, dict[str, Any]] = {}
    for launch in launches:
        for name, value in _provenance(launch).items():
            found.setdefault(name, {})[str(value)] = value
    for row in rows:
        for name in OF_ROWS:
            found.setdefault(name, {})[str(getattr(row, name))] = getattr(row, name)
        source = f"source of {row.case.partition('[')[0]}"
        found.setdefault(source, {})[str(row.workload_sha256)] = row.workload_sha256
    return {name: dict(sorted(values.items())) for name, values in found.items()}


def _provenance(launch: Launch) -> dict[str, Any]:
    known = launch.provenance
    slurm = known.get("slurm")
    variables = known.get("environment") or {}
    return (
        {name: value for name, value in known.items() if name not in OWN_FACTS}
        | {"hosts": sorted({str(rank.get("host")) for rank in known.get("ranks") or []})}
        | {"cores_per_rank": layout.settings(known).get("cores_per_rank")}
        | {"partition": slurm.get("SLURM_JOB_PARTITION") if isinstance(slurm, dict) else None}
        | {f"variable {name}": value for name, value in variables.items()}
    )


def copies(a: Sequence[Launch], b: Sequence[Launch]) -> list[str]:
    """Say where both sides hold the same launch, whose noise they then share."""
    names = ("launch", "campaign", "started", "part")
    known = [{tuple(str(one.facts.get(n)) for n in names) for one in side if one.facts}
             for side in (a, b)]  # fmt: skip
    both = len(known[0] & known[1])
    if not both:
        return []
    return [
        f"{counted(both, 'launch')} of A {'is' if both == 1 else 'are'} in B too: what both sides "
        "share says nothing about a difference; measure B anew"
    ]


def in_one_job(points: Iterable[tuple[Sequence[Row], Sequence[Row]]]) -> list[str]:
    """Say where the launches of a side's point ran in one Slurm job, on its nodes alone."""
    said = []
    for name, side in zip("AB", zip(*points, strict=True), strict=True):
        if alone := sum(map(replicates.in_one_job, side)):
            said.append(
                f"the launches of {counted(alone, 'point')} of {name} ran in one job each: a "
                "difference may be that of the nodes; repeat in several jobs"
            )
    return said


def apart_in_time(a: Sequence[Launch], b: Sequence[Launch]) -> list[str]:
    """Say where one side was measured before the other, wholly or for the most part.

    By the share of pairs, one launch of each side, in which A's came first, less that in which
    B's did: 0 for A B B A, 0.5 for A B A B, 1 for A A B B. What drifts steadily shifts the
    difference in proportion to it.
    """
    times = [[t for one in side if (t := _started(one)) is not None] for side in (a, b)]
    pairs = list(product(*times))
    lead = sum((x < y) - (x > y) for x, y in pairs)
    if abs(lead) <= MOST_APART * len(pairs):
        return []
    first, last = ("A", "B") if lead > 0 else ("B", "A")
    much = "all" if abs(lead) == len(pairs) else "most"
    return [
        f"{much} launches of {first} were made before {much} of {last}, so a drift of the "
        "machine would look like a difference; measure them in turn, A B B A, to rule it out"
    ]


def _started(launch: Launch) -> float | None:
    """Return when a launch began, in seconds; None where it does not say so."""
    try:
        return datetime.fromisoformat(str(launch.facts.get("started"))).timestamp()
    except (ValueError, OverflowError):
        return None
