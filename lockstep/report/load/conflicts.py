"""Conflicts between results: copies, mixed launches and cases, and unequal ranks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lockstep.core import record
from lockstep.core.flags import flag
from lockstep.report.load.results import COPY, Conflict, Launch, Results, Row

# What one case's workload is made of: equal in every launch and at every world size.
SOURCES = ("workload_sha256", "gradient_bytes")
# What else a case means at every world size, and the batches it has at each.
OF_A_CASE = ("study", "workload", "scaling", "precision", "sample_unit")
BATCHES = ("local_batch", "global_batch", "samples_per_step")
# Launches that agree in all of these are the same. Parts of an array may start in one second.
_ONE_LAUNCH = ("launch", "campaign", "started", "part", "world_size")

Item = TypeVar("Item")


def copied(
    path: Path, name: str, facts: Mapping[str, Any], launches: Sequence[Launch]
) -> Conflict | None:
    """Return the conflict of a launch that was already read, or None."""
    for other in launches:
        if facts and all(facts.get(one) == other.facts.get(one) for one in _ONE_LAUNCH):
            return Conflict(
                COPY,
                str(path),
                f"{path}: launch {name} was already read from {other.path}; give each launch "
                "once, since a copy is not a repeat",
                values=(name, str(other.path)), launches=(other.name,),
            )  # fmt: skip
    return None


def odd_ones(
    items: Sequence[Item], values: Iterable[object]
) -> Iterator[tuple[list[Item], list[Item]]]:
    """Yield, for each value but the most frequent, the items of the most frequent and its own.

    Of values that are equally frequent the first counts as the most frequent.
    """
    groups: dict[str, list[Item]] = {}
    for item, value in zip(items, values, strict=True):
        groups.setdefault(str(value), []).append(item)
    usual = max(groups.values(), key=len, default=[])
    yield from ((usual, odd) for odd in groups.values() if odd is not usual)


def mixed_launches(launches: Sequence[Launch]) -> Iterator[Conflict]:
    """Yield the versions, image or devices of launches that differ from those of most."""
    for name in record.POOLING_FACTS:
        known = [
            launch
            for launch in launches
            if launch.provenance.get(name) is not None
            or (launch.provenance and name not in record.MAY_BE_UNKNOWN)
        ]
        values = [launch.provenance.get(name) for launch in known]
        for usual, odd in odd_ones(known, values):
            both = f"launches {usual[0].name} and {odd[0].name}"
            found = usual[0].provenance.get(name), odd[0].provenance.get(name)
            differ = f"differ in {name} ({found[0]} and {found[1]})"
            yield Conflict(
                name, both, f"{both} {differ}, so they are not pooled; report them separately",
                values=found, usual=usual[0].name, launches=tuple(launch.name for launch in odd),
                is_tie=len(usual) == len(odd),
            )  # fmt: skip


def mixed_cases(rows: Iterable[Row]) -> Iterator[Conflict]:
    """Yield the rows of each case that mean another workload, precision or batch than most."""
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row.origin, row.case), []).append(row)
    for own in cases.values():
        kept = []  # the batch that is equal at all world sizes
        if own[0].scaling is not None and own[0].origin == "measured":
            kept = ["global_batch" if own[0].scaling == "strong" else "local_batch"]
        yield from _mixed(own, [*OF_A_CASE, *kept, *SOURCES])
        sizes: dict[int, list[Row]] = {}
        for row in own:
            sizes.setdefault(row.world_size, []).append(row)
        for alike in sizes.values():
            yield from _mixed(alike, [name for name in BATCHES if name not in kept])


def _mixed(rows: Sequence[Row], names: Iterable[str]) -> Iterator[Conflict]:
    for name in names if len(rows) > 1 else ():

        def value(row: Row, name: str = name) -> Any:
            return row.details.get(name) if name == "gradient_bytes" else getattr(row, name)

        values = [value(row) for row in rows]
        if values.count(values[0]) == len(values):
            continue
        # Facts that older files lack are unknown and not compared.
        known = [row for row in rows if name not in SOURCES or value(row) is not None]
        for alike, odd in odd_ones(known, [value(row) for row in known]):
            usual, other = alike[0], odd[0]
            found = value(usual), value(other)
            yield Conflict(
                name,
                f"{usual.case}, launches {usual.launch} and {other.launch}",
                f"{usual.case} has {name} {found[0]} in launch {usual.launch}, but {found[1]} in "
                f"launch {other.launch}; report them separately",
                usual.case,
                values=found,
                usual=usual.launch,
                launches=tuple(dict.fromkeys(row.launch for row in odd)),
                world_sizes=tuple(dict.fromkeys(row.world_size for row in odd)),
                is_tie=len(alike) == len(odd),
            )


def flag_moved(results: Results) -> None:
    """Flag the launches whose cases were measured on other hosts after a resume."""
    hosts: dict[str, dict[tuple[str, ...], None]] = {}
    for row in results.rows:
        if row.rank_hosts:
            hosts.setdefault(row.launch, {})[tuple(row.rank_hosts)] = None
    for row in results.rows:
        if len(sets := hosts.get(row.launch, {})) > 1:
            groups = [list(dict.fromkeys(names)) for names in sets]
            row.flags = [*row.flags, flag("moved", hosts=groups)]


def flag_unequal_ranks(results: Results) -> None:
    """Flag the series whose CPU ranks had more threads in one launch than in another.

    Their efficiency would compare ranks of unequal strength: eight threads against eight times one.
    """
    threads = {launch.name: launch.cpu_threads for launch in results.launches}
    if len(set(threads.values()) - {None}) < 2:
        return
    cases: dict[str, list[Row]] = {}
    for row in results.rows:
        if threads.get(row.launch) is not None:
            cases.setdefault(row.case, []).append(row)
    for rows in cases.values():
        sizes: dict[int, set[int]] = {}
        for row in rows:
            sizes.setdefault(row.world_size, set()).add(threads[row.launch] or 0)
        if len(set().union(*sizes.values())) > 1:
            of_sizes = {str(size): sorted(counts) for size, counts in sorted(sizes.items())}
            for row in rows:
                row.flags = [*row.flags, flag("unequal-threads", threads=of_sizes)]
