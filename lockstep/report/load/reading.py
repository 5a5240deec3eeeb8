"""From result files to rows: a row is one case in one launch, or one line of an imported table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lockstep.core import flags, metrics, record
from lockstep.core.processes import collector_paused
from lockstep.core.record import SHORTEST_ROUND_S, CaseRecord, Derived, LaunchBlock
from lockstep.core.studies import OTHER
from lockstep.report.compute import diagnosis
from lockstep.report.load import conflicts, layout, sources, training_runs
from lockstep.report.load.contents import Details, ImportedTable, Stats, check_value
from lockstep.report.load.results import ORIGINS, Launch, Results, Row, Unread
from lockstep.report.load.sources import JOURNAL, RESULT

# Keys of timed turns in `details`; rows have a field for each.
TIMED = ("rank_variant_s", "rank_phase_s", "rank_alone_s", "bucket_lead_s", "first_reduce_s")
# Fields that a line of an imported table cannot give.
_OF_LAUNCHES = {"ranks_per_node", "settings", "job", "commit", "training", "own_case"}
_CASE_FIELDS = frozenset(field.name for kind in (CaseRecord, Derived) for field in fields(kind))
_IMPORTED_FIELDS = frozenset(field.name for field in fields(Row)) - _OF_LAUNCHES


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
    """Read result folders and files as `load` does, but list conflicts instead of refusing them.

    Raises:
        ValueError: A file is missing, broken or of another schema.
    """
    results = Results()
    seen: set[Path] = set()
    for path in (each for parent in map(Path, paths) for each in sources.folders(parent)):
        if plan := sources.read_campaign(path):
            results.plans[path.resolve()] = plan
        for source in sources.find_files(path):
            if source.resolve() not in seen:
                seen.add(source.resolve())
                _read_file(source, results)
    if not results.rows and results.unread:
        raise ValueError(str(results.unread[0]))
    if not results.rows and not results.launches:
        raise ValueError("the files hold no results; measure first, or import a table")
    conflicts.find(results)
    _order_parts(results)
    conflicts.flag_unequal_ranks(results)
    conflicts.flag_moved(results)
    return results


def _read_file(source: Path, results: Results) -> None:
    """Add a file; if it is unreadable and part of a campaign, leave it out."""
    try:
        path, document, contradictions = sources.read(source)
    except ValueError as error:
        if not sources.in_campaign(source):
            raise
        results.unread.append(Unread(str(error), source))
        return
    if isinstance(document, dict) and document.get("kind") == "imported":
        _read_imported(path, document, results)
    else:
        _read_launch(path, document, results, contradictions)


def _read_imported(path: Path, document: dict[str, Any], results: Results) -> None:
    record.check_schema(document, str(path))
    tables = document.get("tables")
    if not isinstance(tables, dict):
        raise ValueError(f"{path}: the file holds no tables; write it again with lockstep import")
    for name, table in tables.items():
        if name in results.tables:
            raise ValueError(f"{path}: table {name} is given twice; import it under another name")
        where = f"{path}: table {name}"
        check_value(ImportedTable, table, where)
        kept = {key: value for key, value in table.items() if key != "rows"}
        results.tables[name] = kept | {"path": str(path)}
        for line in table["rows"]:
            known = {key: value for key, value in line.items() if key in _IMPORTED_FIELDS}
            recorded = known.pop("flags", [])
            row = check_value(Row, known, where)
            check_value(Details, row.details, where)
            if row.origin not in ORIGINS[1:]:
                raise ValueError(
                    f"{where}: the origin of a row is {row.origin}, but must be cited or target; "
                    "import the table again"
                )
            if not isinstance(recorded, list):
                raise ValueError(
                    f"{where}: key flags is {recorded!r:.80}, not a list; import the table again"
                )
            row.flags = list(map(flags.read, recorded))
            results.rows.append(row)


def _read_launch(
    path: Path, document: Any, results: Results, contradictions: sources.Contradictions
) -> None:
    entries = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError(
            f"{path}: this is not a pytest-benchmark file, because it has no list 'benchmarks'"
        )
    facts = document.get(record.KEY) or {}
    if not isinstance(facts, dict):
        raise ValueError(
            f"{path}: the value of the key {record.KEY} is not a JSON object; measure this launch "
            "again"
        )
    if facts:
        record.check_schema(facts, str(path))
    check_value(LaunchBlock, facts, str(path))
    part = facts.get("part")
    if part and not (len(part) == 2 and part[0] in range(1, part[1] + 1)):
        raise ValueError(
            f"{path}: key part is {part}, not [K, N] with K from 1 to N; measure this launch again"
        )
    plain = path.parent.name if path.name in (RESULT, JOURNAL) else path.stem
    name = str(facts.get("launch") or sources.printable(plain))
    if copy := conflicts.find_copy(path, name, facts, results.launches):
        results.conflicts.append(copy)
        return
    if name in {other.name for other in results.launches}:
        name = f"{name} ({path.parent})"
    launch = Launch(name, path, facts, entries, contradictions, {} if facts else _about(document))
    results.launches.append(launch)
    rows = _read_entries(launch, results.unread)
    results.rows += rows
    provenance = launch.provenance
    settings, slurm = layout.settings(provenance), provenance.get("slurm")
    job = slurm.get("SLURM_JOB_ID") if isinstance(slurm, dict) else None
    hosts, commit = launch.hosts, _commit(provenance)
    for row in rows:
        row.started, row.settings = str(facts.get("started") or ""), settings
        row.rank_hosts = row.rank_hosts or hosts[: row.world_size]
        row.job, row.commit = None if job is None else str(job), commit
        if row.num_nodes:
            row.ranks_per_node = layout.ranks_per_node(
                row.world_size, row.num_nodes, row.rank_hosts
            )


def _commit(provenance: Mapping[str, Any]) -> str | None:
    """Return the commit of an own test or workload, or else of Lockstep; `-dirty` if changed."""
    whose = "project" if provenance.get("project_commit") else "git"
    commit = provenance.get(f"{whose}_commit")
    return f"{commit}{'-dirty' if provenance.get(f'{whose}_dirty') else ''}" if commit else None


def _about(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the commit, host and machine that pytest-benchmark recorded."""
    commit, machine = (
        known if isinstance(known := document.get(name), dict) else {}
        for name in ("commit_info", "machine_info")
    )
    cpu = machine.get("cpu")
    facts = {
        "project_commit": commit.get("id"), "project_dirty": commit.get("dirty"),
        "hosts": machine.get("node"), "python": machine.get("python_version"),
        "system": machine.get("system"),
        "cpu": cpu.get("brand_raw") if isinstance(cpu, dict) else None,
    }  # fmt: skip
    return {name: str(value) for name, value in facts.items() if value is not None}


def _read_entries(launch: Launch, unread: list[Unread]) -> list[Row]:
    """Return one row per valid entry of a pytest-benchmark file; add the others to `unread`.

    Raises:
        ValueError: An entry is there twice, or of another schema version.
    """
    cases: dict[str, CaseRecord] = {}
    others: dict[str, Row] = {}
    names: set[str] = set()
    for index, entry in enumerate(launch.entries):
        has_name = isinstance(entry, dict) and isinstance(entry.get("name"), str)
        name = record.case_name(entry) if has_name else f"entry {index}"
        where = f"{launch.path}: entry {name}"
        if name in names:
            raise ValueError(
                f"{where} occurs twice, but a launch has each case once; measure this launch again"
            )
        names.add(name)
        extra = entry.get("extra_info") if isinstance(entry, dict) else None
        block = extra.get(record.KEY) if isinstance(extra, dict) else extra or None
        if isinstance(block, dict):
            record.check_schema(block, where)
        try:
            if not has_name:
                raise ValueError(
                    f"{launch.path}: entry {index} of the list benchmarks has no name, so it is "
                    "not a result of pytest-benchmark"
                )
            stats = check_value(Stats, entry.get("stats"), f"{where}: stats")
            if block is not None:
                cases[name] = _checked_case(block, where)
                continue
            # Someone else's benchmark: one process, a time, no samples.
            if stats.median < SHORTEST_ROUND_S:
                raise ValueError(
                    f"{where}: the median of {stats.median} s is too small for a time; measure "
                    "again"
                )
            others[name] = Row(
                launch=launch.name, case=name, study=OTHER, workload=name, world_size=1,
                rate=1 / stats.median, step_s=stats.median, mean_step_s=stats.mean,
                min_step_s=stats.min, max_step_s=stats.max, stddev_step_s=stats.stddev,
                rounds=stats.rounds,
            )  # fmt: skip
        except ValueError as error:
            unread.append(Unread(str(error), launch.path, name))
    return [*_measured_rows(launch.name, cases), *others.values()]


def _checked_case(block: Any, where: str) -> CaseRecord:
    """Return a case's record, its unknown keys among the details.

    Raises:
        ValueError: Its ranks differ in rounds, steps or turns.
    """
    case = check_value(CaseRecord, block, where)
    if not block.keys() <= _CASE_FIELDS:
        later = {key: value for key, value in block.items() if key not in _CASE_FIELDS}
        case = replace(case, details=later | case.details)
    check_value(Details, case.factors, where)
    details = check_value(Details, case.details, where)
    alone = details.rank_alone_s or []
    for rounds_or_steps, ranks in (
        ("rounds", case.rank_round_s),
        ("steps without communication", alone),
    ):
        if len({len(times) for times in ranks}) > 1:
            raise ValueError(
                f"{where}: the ranks timed unequal numbers of {rounds_or_steps}; measure again"
            )
    variants: list[list[list[float]]] = [
        *(details.rank_variant_s or {}).values(),
        *(details.rank_phase_s or {}).values(),
    ]
    shapes = {(len(ranks), len(times)) for ranks in variants for times in ranks}
    # `lockstep check` reports rounds that have fewer ranks than the world size.
    allowed = {case.world_size, len(case.rank_round_s)}
    if len(shapes) > 1 or any(len(ranks) not in allowed for ranks in variants):
        raise ValueError(
            f"{where}: some variants of the step were timed less often, or on fewer ranks, than "
            "others; measure again"
        )
    return case


def _measured_rows(launch: str, cases: Mapping[str, CaseRecord]) -> Sequence[Row]:
    """Return the rows of a launch's cases."""
    reduced = diagnosis.reduce_rounds(list(cases.values()))
    rows = []
    for (name, case), numbers in zip(cases.items(), reduced, strict=True):
        details, rate = case.details, case.samples_per_step / numbers["step_s"]
        # Older results have only the turns of `own`, the oldest only the median of these turns.
        alone = details.get("rank_alone_s") or [[s] for s in details.get("alone_step_s") or []]
        peak, reserved = (
            max((value for value in of_ranks if value is not None), default=None)
            for of_ranks in (case.peak_memory_bytes, case.peak_reserved_bytes)
        )
        row = Row(
            launch=launch, case=name, study=case.study, workload=case.workload,
            world_size=case.world_size, rate=rate, scaling=case.scaling, precision=case.precision,
            num_nodes=case.num_nodes, local_batch=case.local_batch, global_batch=case.global_batch,
            factors=case.factors, sample_unit=case.sample_unit,
            samples_per_step=case.samples_per_step, steps_per_round=case.steps_per_round,
            throughput_samples_per_s=rate, rounds=len(case.rank_round_s[0]),
            mfu=metrics.mfu(rate, case.flop_per_sample, case.peak_flop_per_s, case.world_size),
            peak_memory_bytes=peak, peak_reserved_bytes=reserved,
            rank_variant_s=details.get("rank_variant_s") or ({"own": alone} if alone else {}),
            phase_s={
                phase: median(map(fmean, zip(*ranks, strict=True)))
                for phase, ranks in (details.get("rank_phase_s") or {}).items() if ranks
            },
            bucket_lead_s=details.get("bucket_lead_s") or [],
            first_reduce_s=details.get("first_reduce_s"),
            rank_hosts=case.rank_hosts, training=case.training,
            workload_sha256=case.workload_sha256, position=case.position, checks=case.checks,
            details={name: value for name, value in details.items() if name not in TIMED},
            **numbers | {"flags": [*map(flags.read, case.flags), *numbers["flags"]]},
        )  # fmt: skip
        training_runs.name_alike(row)
        if row.has_smaller_batch:
            row.own_case = row.case
            row.case += f" at {row.local_batch} samples per rank on {row.world_size} ranks"
            row.factors = row.factors | {"measured_local_batch": row.local_batch}
        rows.append(row)
    return rows


def _order_parts(results: Results) -> None:
    """Order the rows of a launch measured in parts as if all cases were in one file.

    Part K of N holds every N-th case from the K-th on.
    """
    if not any(launch.facts.get("part") for launch in results.launches):
        return
    groups: dict[tuple[str, ...], int] = {}
    places: dict[tuple[str, str], tuple[int, int]] = {}
    for launch in results.launches:
        facts, part = launch.facts, launch.facts.get("part")
        number, num_parts = part or (1, 1)
        whole = tuple(str(facts.get(name)) for name in ("campaign", "world_size", "repeat"))
        group = groups.setdefault(whole if part else (launch.name,), len(groups))
        for index, case in enumerate(facts.get("expected") or []):
            places[launch.name, sources.case_name(case)] = (group, index * num_parts + number)
    last = (len(groups), 0)
    results.rows.sort(key=lambda row: places.get((row.launch, row.recorded_case), last))
