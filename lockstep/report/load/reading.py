"""From result files to one tidy table: a row is one case in one launch.

Reads what a campaign leaves, single pytest-benchmark JSON files or a folder of them, and tables
brought in by `lockstep import`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lockstep.core import flags, metrics, record
from lockstep.core.processes import collector_paused
from lockstep.core.record import SHORTEST_ROUND_S, CaseRecord, LaunchBlock
from lockstep.core.studies import OTHER
from lockstep.report.compute import diagnosis
from lockstep.report.compute.diagnosis import Named, Rounds
from lockstep.report.load import conflicts, layout, sources, training_runs
from lockstep.report.load.contents import Details, ImportedTable, Stats, checked
from lockstep.report.load.results import ORIGINS, Launch, Results, Row, Unread
from lockstep.report.load.sources import JOURNAL, RESULT, trainings_below
from lockstep.report.load.training_runs import name_alike

# What `details` holds of the turns of a step's variants, which rows have as fields.
TIMED = ("rank_variant_s", "rank_phase_s", "rank_alone_s", "bucket_lead_s", "first_reduce_s")
# What only a launch can say.
_OF_LAUNCHES = {"ranks_per_node", "settings", "job", "training", "own_case"}
_ROW_KEYS = frozenset(f.name for f in fields(Row)) - _OF_LAUNCHES


def _read_entries(path: Path, launch: str, entries: list[Any]) -> tuple[list[Row], list[Unread]]:
    """Return one row for each entry of a pytest-benchmark file, and the entries that give none.

    An entry that is incomplete, or holds what is no measured value, is left out: the others are as
    good as they were.

    Raises:
        ValueError: An entry is there twice, or of another schema version.
    """
    records: list[Named] = []
    others: list[Row] = []
    left_out: list[Unread] = []
    names: set[str] = set()
    for index, entry in enumerate(entries):
        has_name = isinstance(entry, dict) and isinstance(entry.get("name"), str)
        name = record.case_name(entry) if has_name else f"entry {index}"
        if name in names:
            raise ValueError(f"{path}: entry {name} occurs twice, but a launch has each case once")
        names.add(name)
        extra = entry.get("extra_info") if isinstance(entry, dict) else None
        block = extra.get(record.KEY) if isinstance(extra, dict) else extra or None
        where = f"{path}: entry {name}"
        if isinstance(block, dict):
            record.check_schema(block, where)
        try:
            if not has_name:
                raise ValueError(f"{path}: {name} is not a pytest-benchmark entry: it has no name")
            stats = checked(Stats, entry.get("stats"), f"{where}: stats")
            if block is None:
                others.append(_other_row(where, launch, name, stats))
            else:
                records.append((name, _checked_case(block, where)))
        except ValueError as error:
            left_out.append(Unread(str(error), path, name))
    return _measured_rows(launch, records) + others, left_out


def _checked_case(block: Any, where: str) -> CaseRecord:
    """Return a case's record, its ranks with equal numbers of rounds, of steps and of turns."""
    case = checked(CaseRecord, block, where)
    checked(Details, case.factors, where)
    details = checked(Details, case.details, where)
    for what, ranks in (("rounds", case.rank_round_s), ("steps alone", details.rank_alone_s or [])):
        if len({len(times) for times in ranks}) > 1:
            raise ValueError(f"{where}: the ranks have different numbers of {what}; measure again")
    variants: list[list[list[float]]] = [
        *(details.rank_variant_s or {}).values(),
        *(details.rank_phase_s or {}).values(),
    ]
    shapes = {(len(ranks), len(times)) for ranks in variants for times in ranks}
    # The check says where the ranks of the rounds are fewer than the world size.
    allowed = {case.world_size, len(case.rank_round_s)}
    if len(shapes) > 1 or any(len(ranks) not in allowed for ranks in variants):
        raise ValueError(
            f"{where}: the variants of the step differ in shape (turns of each of "
            f"{case.world_size} ranks); measure again"
        )
    return case


def _other_row(where: str, launch: str, name: str, stats: Stats) -> Row:
    """Return the row of a benchmark that is not ours: one process, a time, no samples."""
    if stats.median < SHORTEST_ROUND_S:
        raise ValueError(f"{where}: the median, {stats.median} s, is not a time")
    return Row(
        launch=launch, case=name, study=OTHER, workload=name, world_size=1, rate=1 / stats.median,
        step_s=stats.median, mean_step_s=stats.mean, min_step_s=stats.min, max_step_s=stats.max,
        stddev_step_s=stats.stddev, rounds=stats.rounds,
    )  # fmt: skip


def _measured_rows(launch: str, records: list[Named]) -> list[Row]:
    """Return the rows of cases of a launch; training runs are named as their repeats are.

    What was measured at a smaller batch than asked for is named apart from all other points.
    """
    rows = []
    for (name, case), numbers in zip(records, diagnosis.reduce_rounds(records), strict=True):
        row = _measured_row(launch, name, case, numbers)
        name_alike(row)
        if row.has_smaller_batch:
            row.own_case = row.case
            row.case += f" at {row.local_batch} samples on each of {row.world_size} ranks"
            row.factors = row.factors | {"measured_local_batch": row.local_batch}
        rows.append(row)
    return rows


def _measured_row(launch: str, name: str, case: CaseRecord, numbers: Rounds) -> Row:
    steps, details = case.steps_per_round, case.details
    step = numbers.median_s / steps
    rate = case.samples_per_step / step
    # Older results have the turns of `own` alone; the oldest have their median.
    alone = details.get("rank_alone_s") or [[s] for s in details.get("alone_step_s") or []]
    # The median over turns of the mean over ranks.
    phases = {
        phase: median(map(fmean, zip(*ranks, strict=True)))
        for phase, ranks in (details.get("rank_phase_s") or {}).items()
        if ranks
    }
    peak, reserved = (
        max((value for value in of_ranks if value is not None), default=None)
        for of_ranks in (case.peak_memory_bytes, case.peak_reserved_bytes)
    )
    return Row(
        launch=launch, case=name, study=case.study, workload=case.workload,
        world_size=case.world_size, rate=rate, scaling=case.scaling, precision=case.precision,
        num_nodes=case.num_nodes, local_batch=case.local_batch, global_batch=case.global_batch,
        factors=case.factors, sample_unit=case.sample_unit,
        samples_per_step=case.samples_per_step, steps_per_round=steps, step_s=step,
        mean_step_s=numbers.mean_s / steps, min_step_s=numbers.min_s / steps,
        max_step_s=numbers.max_s / steps, stddev_step_s=numbers.stddev_s / steps,
        throughput_samples_per_s=rate, rounds=len(case.rank_round_s[0]),
        num_far_out=numbers.num_far_out,
        mfu=metrics.mfu(rate, case.flop_per_sample, case.peak_flop_per_s, case.world_size),
        peak_memory_bytes=peak, peak_reserved_bytes=reserved,
        rank_variant_s=details.get("rank_variant_s") or ({"own": alone} if alone else {}),
        phase_s=phases, bucket_lead_s=details.get("bucket_lead_s") or [],
        first_reduce_s=details.get("first_reduce_s"),
        rank_hosts=case.rank_hosts, training=case.training,
        workload_sha256=case.workload_sha256, position=case.position, checks=case.checks,
        details={name: value for name, value in details.items() if name not in TIMED},
        flags=[*map(flags.read, case.flags), *numbers.findings],
    )  # fmt: skip


def _imported_row(line: Mapping[str, Any], where: str) -> Row:
    kept = {name: line[name] for name in line if name in _ROW_KEYS}
    listed = kept.pop("flags", [])
    row = checked(Row, kept, where)
    checked(Details, row.details, where)
    if row.origin not in ORIGINS[1:]:
        raise ValueError(f"{where}: the origin is {row.origin}, but imports are cited or target")
    if not isinstance(listed, list):
        raise ValueError(f"{where}: flags is {str(listed)[:80]!r}, not a list; import it again")
    row.flags = list(map(flags.read, listed))
    return row


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
    folders = [folder for path in map(Path, paths) for folder in trainings_below(path) or [path]]
    for path in folders:
        if plan := sources.read_campaign(path):
            results.plans[path.resolve()] = plan
        for source in sources.find_files(path):
            if source.resolve() not in seen:
                seen.add(source.resolve())
                _read_one(source, results)
    if not results.rows and results.unread:
        raise ValueError(str(results.unread[0]))
    if not results.rows and not results.launches:
        raise ValueError("the files hold no results; measure first, or import a table")
    # Launches that only train are pooled by device.
    of_steps = {row.launch for row in results.rows if row.training is None}
    devices = {row.launch: row.training.device_name for row in results.rows if row.training}
    groups: dict[str, list[Launch]] = {}
    for launch in results.launches:
        own = "" if launch.name in of_steps else devices.get(launch.name, "")
        groups.setdefault(own, []).append(launch)
    for group in groups.values():
        results.conflicts += conflicts.mixed_launches(group)
    results.conflicts += conflicts.mixed_cases(results.rows)
    _order_parts(results)
    conflicts.flag_unequal_ranks(results)
    conflicts.flag_moved(results)
    return results


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
    if isinstance(document, dict) and document.get("kind") == "imported":
        _read_imported(path, document, results)
    elif training_runs.is_summary(document):
        _read_run(path, document, results)
    else:
        _read_launch(path, document, results, contradictions)


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
        results.rows += [_imported_row(line, where) for line in table["rows"]]


def _read_run(path: Path, document: dict[str, Any], results: Results) -> None:
    """Read a run of `lockstep run train`, which is no launch: its folder names it."""
    case, known = training_runs.read(path, document), {row.launch for row in results.rows}
    name = sources.printable(path.parent.name)
    launch = str(path.parent) if name in known else name
    for row in _measured_rows(launch, [(case.study, case)]):
        row.job, row.settings = training_runs.given(document)
        row.ranks_per_node = layout.ranks_per_node(case.world_size, case.num_nodes, ())
        results.rows.append(row)


def _read_launch(
    path: Path, document: Any, results: Results, contradictions: sources.Contradictions
) -> None:
    entries = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f"{path}: not a pytest-benchmark file: it has no list 'benchmarks'")
    facts = document.get(record.KEY) or {}
    if not isinstance(facts, dict):
        raise ValueError(f"{path}: the facts of the launch must be one JSON object")
    if facts:
        record.check_schema(facts, str(path))
    checked(LaunchBlock, facts, str(path))
    part = facts.get("part")
    if part and not (len(part) == 2 and part[0] in range(1, part[1] + 1)):
        raise ValueError(f"{path}: part is {part}, not [K, N] with K from 1 to N; measure it again")
    plain = path.parent.name if path.name in (RESULT, JOURNAL) else path.stem
    name = str(facts.get("launch") or sources.printable(plain))
    if copy := conflicts.copied(path, name, facts, results.launches):
        results.conflicts.append(copy)
        return
    if name in {other.name for other in results.launches}:
        name = f"{name} ({path.parent})"
    launch = Launch(name, path, facts, len(entries), entries, contradictions)
    launch.about = {} if facts else _about(document)
    results.launches.append(launch)
    rows, left_out = _read_entries(path, name, entries)
    results.unread += left_out
    results.rows += rows
    provenance, started = launch.provenance, str(facts.get("started") or "")
    settings = layout.settings(provenance)
    slurm = provenance.get("slurm")
    job = slurm.get("SLURM_JOB_ID") if isinstance(slurm, dict) else None
    for row in rows:
        row.started, row.settings = started, settings
        row.rank_hosts = row.rank_hosts or launch.hosts[: row.world_size]
        row.job = None if job is None else str(job)
        if row.num_nodes:
            row.ranks_per_node = layout.ranks_per_node(
                row.world_size, row.num_nodes, row.rank_hosts
            )


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


def _order_parts(results: Results) -> None:
    """Order the rows of launches measured in parts as one launch of all cases has them.

    Tables and effects follow that order; part K of N holds every N-th case from the K-th on.
    """
    if not any(launch.facts.get("part") for launch in results.launches):
        return
    groups: dict[tuple[str, ...], int] = {}
    places: dict[tuple[str, str], tuple[int, int]] = {}
    for launch in results.launches:
        part = launch.facts.get("part")
        number, num_parts = part or (1, 1)
        of_whole = ("campaign", "world_size", "repeat")
        whole = tuple(str(launch.facts.get(n)) for n in of_whole) if part else (launch.name,)
        group = groups.setdefault(whole, len(groups))
        for index, case in enumerate(launch.facts.get("expected") or []):
            name = str(case).partition(".py::")[2] or str(case)  # as the result has it
            places[launch.name, name] = (group, index * num_parts + number)
    last = (len(groups), 0)
    results.rows.sort(key=lambda row: places.get((row.launch, row.recorded_case), last))
