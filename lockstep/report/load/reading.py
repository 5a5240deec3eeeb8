"""From result files to one tidy table: a row is one case in one launch.

Reads what a campaign leaves, single pytest-benchmark JSON files or a folder of them, and tables
brought in by `lockstep import`.
"""

from collections.abc import Iterable, Mapping, Sequence
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

# What `details` holds of the steps that no rank waits in.
VARIANTS = "rank_variant_s"
TIMED = (VARIANTS, "rank_phase_s", "rank_alone_s", "bucket_lead_s", "first_reduce_s")
# What only a launch can say.
_OF_LAUNCHES = {"ranks_per_node", "settings", "job", "training", "own_case"}
_ROW_KEYS = frozenset(f.name for f in fields(Row)) - _OF_LAUNCHES


def read_launch(path: Path, launch: str, entries: list[Any]) -> tuple[list[Row], list[Unread]]:
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
        name = _name(index, entry)
        if name in names:
            raise ValueError(f"{path}: entry {name} is there twice; a launch has each case once")
        names.add(name)
        extra = entry.get("extra_info") if isinstance(entry, dict) else None
        block = extra.get(record.KEY) if isinstance(extra, dict) else None
        if isinstance(block, dict):
            record.check_schema(block, f"{path}: entry {name}")
        try:
            case = _read_entry(path, launch, name, entry)
        except ValueError as error:
            left_out.append(Unread(str(error), path, name))
            continue
        if isinstance(case, Row):
            others.append(case)
        else:
            records.append((name, case))
    return measured(launch, records) + others, left_out


def measured(launch: str, records: list[Named]) -> list[Row]:
    """Return the rows of cases of a launch; training runs are named as their repeats are.

    What was measured at a smaller batch than asked for is named apart from all other points.
    """
    rows = [
        _measured_row(launch, name, case, numbers)
        for (name, case), numbers in zip(records, diagnosis.reduce_rounds(records), strict=True)
    ]
    for row in rows:
        name_alike(row)
        if row.has_smaller_batch:
            _set_apart(row)
    return rows


def _set_apart(row: Row) -> None:
    """Make a series of its own of a point with a smaller batch than asked for."""
    row.own_case = row.case
    row.case = f"{row.case} at {row.local_batch} samples on each of {row.world_size} ranks"
    row.factors = row.factors | {"measured_local_batch": row.local_batch}


def _name(index: int, entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return record.case_name(entry) if isinstance(name, str) else f"entry {index}"


def _read_entry(path: Path, launch: str, name: str, entry: Any) -> CaseRecord | Row:
    """Return a case's record, or the row of a benchmark that is not ours.

    Raises:
        ValueError: The entry is incomplete, or holds what is no measured value.
    """
    where = f"{path}: entry {name}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError(f"{path}: {name} is no pytest-benchmark entry: it has no name")
    stats = checked(Stats, entry.get("stats"), f"{where}: stats")
    extra = entry.get("extra_info") or {}
    block = extra.get(record.KEY) if isinstance(extra, dict) else extra
    if block is None:
        return _other_row(path, launch, name, stats)
    case = checked(CaseRecord, block, where)
    checked(Details, case.factors, where)
    _check_lengths(case, checked(Details, case.details, where), where)
    return case


def _check_lengths(case: CaseRecord, details: Details, where: str) -> None:
    """Refuse unequal numbers of rounds or steps alone, and variants of more shapes than one."""
    for what, ranks in (("rounds", case.rank_round_s), ("steps alone", details.rank_alone_s or [])):
        if len({len(times) for times in ranks}) > 1:
            raise ValueError(f"{where}: its ranks have unequal numbers of {what}; measure again")
    variants: list[list[list[float]]] = [
        *(details.rank_variant_s or {}).values(),
        *(details.rank_phase_s or {}).values(),
    ]
    shapes = {(len(ranks), len(times)) for ranks in variants for times in ranks}
    # The check says where the ranks of the rounds are fewer than the world size.
    allowed = {case.world_size, len(case.rank_round_s)}
    if len(shapes) > 1 or any(len(ranks) not in allowed for ranks in variants):
        raise ValueError(
            f"{where}: the variants of its step are not of one shape, {case.world_size} ranks by "
            "as many turns each; measure again"
        )


def _other_row(path: Path, launch: str, name: str, stats: Stats) -> Row:
    """Return the row of a benchmark that is not ours: one process, a time, no samples."""
    if stats.median < SHORTEST_ROUND_S:
        raise ValueError(f"{path}: entry {name} has a median of {stats.median} s, not a time")
    return Row(
        launch=launch, case=name, study=OTHER, workload=name, world_size=1, rate=1 / stats.median,
        step_s=stats.median, mean_step_s=stats.mean, min_step_s=stats.min, max_step_s=stats.max,
        stddev_step_s=stats.stddev, rounds=stats.rounds,
    )  # fmt: skip


def _measured_row(launch: str, name: str, case: CaseRecord, numbers: Rounds) -> Row:
    steps = case.steps_per_round
    step = numbers.median_s / steps
    rate = case.samples_per_step / step
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
        peak_memory_bytes=_most(case.peak_memory_bytes),
        peak_reserved_bytes=_most(case.peak_reserved_bytes), rank_variant_s=_variants(case),
        phase_s=_phases(case), bucket_lead_s=case.details.get("bucket_lead_s") or [],
        first_reduce_s=case.details.get("first_reduce_s"),
        rank_hosts=case.rank_hosts, training=case.training,
        workload_sha256=case.workload_sha256, position=case.position,
        checks=case.checks,
        details={name: value for name, value in case.details.items() if name not in TIMED},
        flags=[*map(flags.read, case.flags), *numbers.findings],
    )  # fmt: skip


def _most(of_ranks: Sequence[int | None]) -> int | None:
    return max((value for value in of_ranks if value is not None), default=None)


def _variants(case: CaseRecord) -> dict[str, list[list[float]]]:
    """Return the turns of each variant; of older results, which have that alone, of `own`.

    Shape (num_ranks, num_turns); of the oldest, which keep it, the median.
    """
    medians = [[seconds] for seconds in case.details.get("alone_step_s") or []]
    alone = case.details.get("rank_alone_s") or medians
    return case.details.get(VARIANTS) or ({"own": alone} if alone else {})


def _phases(case: CaseRecord) -> dict[str, float]:
    """Return the seconds of each phase: the median over turns of the mean over ranks."""
    phases = case.details.get("rank_phase_s") or {}
    return {
        name: median(map(fmean, zip(*ranks, strict=True)))
        for name, ranks in phases.items()
        if ranks
    }


def read_line(line: Mapping[str, Any], where: str) -> Row:
    """Return the row of one line of an imported table.

    Raises:
        ValueError: It is incomplete, of another origin, or holds what is no measured value.
    """
    kept = {name: line[name] for name in line if name in _ROW_KEYS}
    listed = kept.pop("flags", [])
    row = checked(Row, kept, where)
    checked(Details, row.details, where)
    if row.origin not in ORIGINS[1:]:
        raise ValueError(f"{where} has the origin {row.origin}; only cited or target is imported")
    if not isinstance(listed, list):
        raise ValueError(f"{where}: flags is {str(listed)[:80]!r}, no list; import it again")
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
        raise ValueError("the files hold no result; measure first, or import a table")
    results.conflicts += [
        *(conflict for group in _poolable(results) for conflict in conflicts.mixed_launches(group)),
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
        results.rows += [read_line(row, where) for row in table["rows"]]


def _read_run(path: Path, document: dict[str, Any], results: Results) -> None:
    """Read a run of `lockstep run train`, which is no launch: its folder names it."""
    case, known = training_runs.read(path, document), {row.launch for row in results.rows}
    name = sources.printable(path.parent.name)
    launch = str(path.parent) if name in known else name
    for row in measured(launch, [(case.study, case)]):
        row.job, row.settings = training_runs.given(document)
        row.ranks_per_node = layout.ranks_per_node(case.world_size, case.num_nodes, ())
        results.rows.append(row)


def _read_launch(path: Path, document: Any, results: Results) -> Launch | None:
    entries = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f"{path}: not a pytest-benchmark file: it has no list 'benchmarks'")
    facts = _launch_facts(path, document)
    plain = path.parent.name if path.name in (RESULT, JOURNAL) else path.stem
    name = str(facts.get("launch") or sources.printable(plain))
    if copy := conflicts.copied(path, name, facts, results.launches):
        results.conflicts.append(copy)
        return None
    launch = Launch(_unique(name, path, results.launches), path, facts, len(entries), entries)
    launch.about = {} if facts else _about(document)
    results.launches.append(launch)
    kept, left_out = read_launch(path, launch.name, entries)
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
