"""From result files to one tidy table: a row is one case in one launch.

Reads what a campaign leaves, single pytest-benchmark JSON files or a folder of them, runs of
`lockstep train`, and tables brought in by `lockstep import`: `sources` finds and reads the files,
`contents` refuses what no reader can rely on, `rows` makes the table, `training_runs` names what
repeats one training, `conflicts` says what forbids pooling, and `results` is what comes of it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lockstep.core import record
from lockstep.core.launch_block import LaunchBlock
from lockstep.core.processes import collector_paused
from lockstep.report.load import conflicts, layout, rows, sources, training_runs
from lockstep.report.load.contents import ImportedTable, checked
from lockstep.report.load.results import Launch, Results, Row, Unread
from lockstep.report.load.sources import JOURNAL, RESULT


def load(paths: Iterable[Path]) -> Results:
    """Read result folders and files that may be pooled.

    Raises:
        ValueError: A file is missing, broken or of another schema, or launches differ in a fact
            that forbids pooling them.
    """
    results = gather(paths)
    if results.conflicts:
        raise ValueError(results.conflicts[0].message)
    return results


@collector_paused()
def gather(paths: Iterable[Path]) -> Results:
    """Read result folders and files as `load` does, with their conflicts listed, not refused.

    Raises:
        ValueError: A file is missing, broken or of another schema.
    """
    results = Results()
    seen: set[Path] = set()
    for path in map(Path, paths):
        if plan := sources.read_campaign(path):
            results.plans[path.resolve()] = plan
        for source in sources.find_files(path):
            if source.resolve() not in seen:
                seen.add(source.resolve())
                _read_one(source, results)
    if not results.rows and results.unread:
        raise ValueError(str(results.unread[0]))
    if not results.rows and not results.launches:
        raise ValueError("the files hold no result; measure first, or import a table")
    results.conflicts += [
        *(one for group in _poolable(results) for one in conflicts.mixed_launches(group)),
        *conflicts.mixed_cases(results.rows),
    ]
    _order_parts(results)
    conflicts.flag_unequal_ranks(results)
    conflicts.flag_moved(results)
    return results


def _poolable(results: Results) -> list[list[Launch]]:
    """Return the launches that could be pooled: those that only train are separated by device."""
    of_steps = {row.launch for row in results.rows if row.training is None}
    devices = {row.launch: row.training.device_name for row in results.rows if row.training}
    groups: dict[str, list[Launch]] = {}
    for launch in results.launches:
        own = "" if launch.name in of_steps else devices.get(launch.name, "")
        groups.setdefault(own, []).append(launch)
    return list(groups.values())


def _read_one(source: Path, results: Results) -> None:
    """Read a file; of a campaign's launch what can be read, its result or its journal."""
    try:
        path, document, contradictions = sources.read(source)
    except ValueError as error:
        is_run = sources.in_training(source)
        if not is_run and not sources.in_campaign(source):
            raise
        size = training_runs.world_size(source.with_name(sources.EPOCHS)) if is_run else None
        results.unread.append(Unread(str(error), source, world_size=size))
        return
    if launch := _take(path, document, results):
        launch.contradictions = contradictions


def _take(path: Path, document: Any, results: Results) -> Launch | None:
    if isinstance(document, dict) and document.get("kind") == "imported":
        _read_imported(path, document, results)
    elif training_runs.is_summary(document):
        _read_run(path, document, results)
    else:
        return _read_launch(path, document, results)
    return None


def _read_imported(path: Path, document: dict[str, Any], results: Results) -> None:
    record.check_schema(document, str(path))
    tables = document.get("tables")
    if not isinstance(tables, dict):
        raise ValueError(f"{path}: holds no tables; import them again")
    for name, table in tables.items():
        if name in results.tables:
            raise ValueError(f"{path}: table {name} is given twice; import it under another name")
        where = f"{path}: table {name}"
        checked(ImportedTable, table, where)
        kept = {key: table[key] for key in table if key != "rows"}
        results.tables[name] = kept | {"path": str(path)}
        results.rows += [rows.read_line(row, where) for row in table["rows"]]


def _read_run(path: Path, document: dict[str, Any], results: Results) -> None:
    """Read a run of `lockstep train`, which is no launch: its folder names it."""
    case, known = training_runs.read(path, document), {row.launch for row in results.rows}
    name = sources.printable(path.parent.name)
    launch = str(path.parent) if name in known else name
    for row in rows.measured(launch, [(case.study, case)]):
        row.job, row.settings = training_runs.given(document)
        row.ranks_per_node = layout.ranks_per_node(case.world_size, case.num_nodes, ())
        results.rows.append(row)


def _read_launch(path: Path, document: Any, results: Results) -> Launch | None:
    entries = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f"{path}: not a pytest-benchmark file: it has no list 'benchmarks'")
    facts = _launch_facts(path, document)
    name = _own_name(path, facts)
    if copy := conflicts.copied(path, name, facts, results.launches):
        results.conflicts.append(copy)
        return None
    launch = Launch(_unique(name, path, results.launches), path, facts, len(entries), entries)
    launch.about = {} if facts else _about(document)
    results.launches.append(launch)
    kept, left_out = rows.read_launch(path, launch.name, entries)
    results.unread += left_out
    _place(kept, launch)
    results.rows += kept
    return launch


def _about(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what pytest-benchmark itself says of a file's commit, host and machine."""
    commit, machine = (
        known if isinstance(known := document.get(name), dict) else {}
        for name in ("commit_info", "machine_info")
    )
    cpu = machine.get("cpu")
    found = {
        "project_commit": commit.get("id"), "project_dirty": commit.get("dirty"),
        "hosts": machine.get("node"), "python": machine.get("python_version"),
        "system": machine.get("system"),
        "cpu": cpu.get("brand_raw") if isinstance(cpu, dict) else None,
    }  # fmt: skip
    return {name: str(value) for name, value in found.items() if value is not None}


def _place(kept: Iterable[Row], launch: Launch) -> None:
    """Give the rows of a launch what it says of when, where and on what they ran."""
    provenance, started = launch.provenance, str(launch.facts.get("started") or "")
    settings = layout.settings(provenance)
    slurm = provenance.get("slurm")
    job = slurm.get("SLURM_JOB_ID") if isinstance(slurm, dict) else None
    for row in kept:
        row.started, row.settings = started, settings
        row.rank_hosts = row.rank_hosts or launch.hosts[: row.world_size]
        row.job = None if job is None else str(job)
        if row.num_nodes:
            row.ranks_per_node = layout.ranks_per_node(
                row.world_size, row.num_nodes, row.rank_hosts
            )


def _launch_facts(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    facts = document.get(record.KEY) or {}
    if not isinstance(facts, dict):
        raise ValueError(f"{path}: the facts of the launch must be one JSON object")
    if facts:
        record.check_schema(facts, str(path))
    checked(LaunchBlock, facts, str(path))
    part = facts.get("part")
    if part and not (len(part) == 2 and part[0] in range(1, part[1] + 1)):
        raise ValueError(f"{path}: part is {part}, not [K, N] with K from 1 to N; measure it again")
    return facts


def _own_name(path: Path, facts: Mapping[str, Any]) -> str:
    plain = path.parent.name if path.name in (RESULT, JOURNAL) else path.stem
    return str(facts.get("launch") or sources.printable(plain))


def _unique(name: str, path: Path, launches: list[Launch]) -> str:
    """Return a name no other launch has."""
    taken = {other.name for other in launches}
    return name if name not in taken else f"{name} ({path.parent})"


def _order_parts(results: Results) -> None:
    """Order the rows of launches measured in parts as one launch of all cases has them.

    Tables and effects follow that order; part K of N holds every N-th case from the K-th on.
    """
    if not any(launch.facts.get("part") for launch in results.launches):
        return
    groups: dict[tuple[str, ...], int] = {}
    places: dict[tuple[str, str], tuple[int, int]] = {}
    for launch in results.launches:
        number, num_parts = launch.facts.get("part") or (1, 1)
        group = groups.setdefault(_whole(launch), len(groups))
        for index, case in enumerate(launch.facts.get("expected") or []):
            name = str(case).partition(".py::")[2] or str(case)  # as the result has it
            places[launch.name, name] = (group, index * num_parts + number)
    last = (len(groups), 0)
    results.rows.sort(key=lambda row: places.get((row.launch, row.recorded_case), last))


def _whole(launch: Launch) -> tuple[str, ...]:
    """Return what the parts of one launch have in common."""
    if not launch.facts.get("part"):
        return (launch.name,)
    return tuple(str(launch.facts.get(name)) for name in ("campaign", "world_size", "repeat"))
