"""What does not go together: copies, mixed launches and cases, and ranks of unequal strength."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.load.results import COPY, MOVED, UNEQUAL, Conflict, Launch, Results, Row
from lockstep.vocabulary import record

# What one case's workload is made of: equal in every launch and at every world size.
SOURCES = ("workload_sha256", "gradient_bytes")
# Launches that agree in all of these are one. Parts of an array may start in the same second.
_ONE_LAUNCH = ("launch", "campaign", "started", "part")


def copied(
    path: Path, name: str, facts: Mapping[str, Any], launches: Sequence[Launch]
) -> Conflict | None:
    """Return what forbids pooling a launch that is already read, or None."""
    for other in launches:
        if facts and all(facts.get(one) == other.facts.get(one) for one in _ONE_LAUNCH):
            return Conflict(
                COPY,
                str(path),
                f"{path}: launch {name} is already read from {other.path}; give each launch once, "
                "since a copy is no repeat",
                values=(name, str(other.path)), launches=(other.name,),
            )  # fmt: skip
    return None


def mixed_launches(launches: list[Launch]) -> Iterator[Conflict]:
    """Yield the versions, image or devices in which launches differ: they may not be pooled."""
    known = [launch for launch in launches if launch.provenance]
    seen: set[tuple[str, str]] = set()
    for launch in known[1:]:
        facts = record.pooling_facts(launch.provenance)
        for name, value in record.pooling_facts(known[0].provenance).items():
            if facts[name] == value or (name, str(facts[name])) in seen:
                continue
            seen.add((name, str(facts[name])))
            both = f"launches {known[0].name} and {launch.name}"
            differ = f"differ in {name} ({value} and {facts[name]})"
            yield Conflict(
                name, both, f"{both} {differ} and are not pooled; report them apart",
                values=(value, facts[name]), launches=(known[0].name, launch.name),
            )  # fmt: skip


def mixed_cases(rows: list[Row]) -> Iterator[Conflict]:
    """Yield each case that means another workload, precision or batch in another launch."""
    first: dict[tuple[str, ...], Row] = {}
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        key = (row.origin, row.case)
        for other in (
            first.setdefault(key, row),
            first.setdefault((*key, str(row.world_size)), row),
        ):
            if other is row:
                continue
            for name in _differences(other, row):
                if (*key, name) not in seen:
                    seen.add((*key, name))
                    yield _case_conflict(name, other, row)


def _differences(one: Row, two: Row) -> list[str]:
    """Return the fields in which two rows of one case differ and must not."""
    names = ["study", "workload", "scaling", "precision", "sample_unit"]
    if one.world_size == two.world_size:
        names += ["local_batch", "global_batch", "samples_per_step"]
    elif one.scaling and one.origin == "measured":
        names += ["global_batch" if one.scaling == "strong" else "local_batch"]
    differing = [name for name in names if _value(one, name) != _value(two, name)]
    # What an older file does not say is unknown, and differs from nothing.
    return differing + [
        name
        for name in SOURCES
        if None not in (values := (_value(one, name), _value(two, name))) and len(set(values)) > 1
    ]


def _value(row: Row, name: str) -> Any:
    return row.details.get(name) if name == "gradient_bytes" else getattr(row, name)


def _case_conflict(name: str, one: Row, two: Row) -> Conflict:
    sizes = f"world size {one.world_size}"
    if two.world_size != one.world_size:
        sizes = f"world sizes {one.world_size} and {two.world_size}"
    return Conflict(
        name,
        f"{one.case}, {sizes}, launches {one.launch} and {two.launch}",
        f"{one.case} has {name} {_value(one, name)} in launch {one.launch} and "
        f"{_value(two, name)} in launch {two.launch}; report them apart",
        one.case,
        values=(_value(one, name), _value(two, name)),
        launches=(one.launch, two.launch),
        world_sizes=(one.world_size, two.world_size),
    )


def flag_moved(results: Results) -> None:
    """Flag the launches whose cases were measured on other hosts after a resume."""
    hosts: dict[str, dict[tuple[str, ...], None]] = {}
    for row in results.rows:
        if row.rank_hosts:
            hosts.setdefault(row.launch, {})[tuple(row.rank_hosts)] = None
    for row in results.rows:
        if len(sets := hosts.get(row.launch, {})) > 1:
            texts = " and ".join("+".join(dict.fromkeys(names)) for names in sets)
            row.flags = [*row.flags, f"{MOVED}: its cases ran on {texts}"]


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
        flag = _unequal_ranks(rows, threads)
        for row in rows if flag else ():
            row.flags = [*row.flags, flag]


def _unequal_ranks(rows: list[Row], threads: Mapping[str, int | None]) -> str:
    """Return the flag of a series, or nothing where all its ranks have equal threads."""
    sizes: dict[int, set[int]] = {}
    for row in rows:
        sizes.setdefault(row.world_size, set()).add(threads[row.launch] or 0)
    if len(set().union(*sizes.values())) < 2:
        return ""
    first, *others = (
        (size, " and ".join(map(str, sorted(counts)))) for size, counts in sorted(sizes.items())
    )
    texts = [f"{first[1]} {'thread' if first[1] == '1' else 'threads'} at world size {first[0]}"]
    texts += [f"{counts} at {size}" for size, counts in others]
    return f"{UNEQUAL}: {', '.join(texts)}"
