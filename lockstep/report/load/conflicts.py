"""Conflicts between results: copies, mixed launches, mixed cases, unequal ranks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lockstep.core import record
from lockstep.core.flags import flag
from lockstep.report.load.results import COPY, Conflict, Launch, Results, Row, are_cpus

# Facts of a case that are equal at every world size; files may lack `SOURCES`.
SOURCES = ("workload_sha256", "gradient_bytes")
OF_A_CASE = ("study", "workload", "scaling", "precision", "sample_unit")
# Facts of a case at one world size.
BATCHES = ("local_batch", "global_batch", "samples_per_step")
# Facts that identify a launch; without `part`, parts that start in the same second look equal.
_IDENTITY = ("launch", "campaign", "started", "part", "world_size")

Item = TypeVar("Item")


def find_copy(
    path: Path, name: str, facts: Mapping[str, Any], launches: Sequence[Launch]
) -> Conflict | None:
    """Return the conflict of a launch that is a copy of one already read, else None."""
    for other in launches:
        if facts and all(facts.get(name) == other.facts.get(name) for name in _IDENTITY):
            first = str(other.path)
            return Conflict(
                COPY,
                f"{path}: launch {name} was already read from {first}; give each launch "
                "once, because a copy is not a repeat",
                values=(name, first), launches=(other.name,), path=str(path),
            )  # fmt: skip
    return None


def find(results: Results) -> None:
    """Add the conflicts between launches, and between the rows of a case."""
    # Launches that only train are compared with those on the same device.
    of_steps = {row.launch for row in results.rows if row.training is None}
    devices = {row.launch: row.training.device_name for row in results.rows if row.training}
    groups: dict[str, list[Launch]] = {}
    for launch in results.launches:
        device = "" if launch.name in of_steps else devices.get(launch.name, "")
        groups.setdefault(device, []).append(launch)
    for group in groups.values():
        results.conflicts += _mixed_launches(group)
    results.conflicts += _mixed_cases(results.rows)


def find_minorities(
    items: Sequence[Item], values: Iterable[object]
) -> Iterator[tuple[list[Item], list[Item]]]:
    """Yield (items of the most frequent value, items of another value) for each other value.

    Of equally frequent values the first counts as the most frequent.
    """
    groups: dict[str, list[Item]] = {}
    for item, value in zip(items, values, strict=True):
        groups.setdefault(str(value), []).append(item)
    usual = max(groups.values(), key=len, default=[])
    yield from ((usual, odd) for odd in groups.values() if odd is not usual)


def _mixed_launches(launches: Sequence[Launch]) -> Iterator[Conflict]:
    """Yield versions, images and devices that differ from those of the majority."""
    for name in record.POOLING_FACTS:
        known = [
            launch
            for launch in launches
            if launch.provenance.get(name) is not None
            or (launch.provenance and name not in record.MAY_BE_UNKNOWN)
        ]
        values = [launch.provenance.get(name) for launch in known]
        for usual, odd in find_minorities(known, values):
            two_launches = f"launches {usual[0].name} and {odd[0].name}"
            first, second = usual[0].provenance.get(name), odd[0].provenance.get(name)
            yield Conflict(
                name,
                f"{two_launches} differ in {name} ({first} and {second}), so they are not "
                "pooled; report the two launches separately",
                values=(first, second), usual=usual[0].name, is_tie=len(usual) == len(odd),
                launches=tuple(launch.name for launch in odd),
            )  # fmt: skip


def _mixed_cases(rows: Iterable[Row]) -> Iterator[Conflict]:
    """Yield conflicts: rows of a case that differ from most in workload, precision or batch."""
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
        values = [
            row.details.get(name) if name == "gradient_bytes" else getattr(row, name)
            for row in rows
        ]
        if values.count(values[0]) == len(values):
            continue
        # Facts that older files lack are not compared.
        pairs = [
            (row, value)
            for row, value in zip(rows, values, strict=True)
            if name not in SOURCES or value is not None
        ]
        for most, others in find_minorities(pairs, [value for _, value in pairs]):
            (usual, value), (other, other_value) = most[0], others[0]
            yield Conflict(
                name,
                f"case {usual.case} has {name} {value} in launch {usual.launch}, but {other_value} "
                f"in launch {other.launch}; report the two launches separately",
                usual.case, values=(value, other_value), usual=usual.launch,
                launches=tuple(dict.fromkeys(row.launch for row, _ in others)),
                world_sizes=tuple(dict.fromkeys(row.world_size for row, _ in others)),
                is_tie=len(most) == len(others),
            )  # fmt: skip


def flag_moved(results: Results) -> None:
    """Flag the launches that a resume continued on other hosts."""
    hosts: dict[str, dict[tuple[str, ...], None]] = {}
    for row in results.rows:
        if row.rank_hosts:
            hosts.setdefault(row.launch, {})[tuple(row.rank_hosts)] = None
    for row in results.rows:
        if len(sets := hosts.get(row.launch, {})) > 1:
            groups = [list(dict.fromkeys(names)) for names in sets]
            row.flags = [*row.flags, flag("moved", hosts=groups)]


def flag_unequal_ranks(results: Results) -> None:
    """Flag the series whose CPU ranks had more threads in one launch than in another."""
    threads = {
        launch.name: launch.provenance.get("threads_per_rank")
        if are_cpus(launch.devices) else None
        for launch in results.launches
    }  # fmt: skip
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
