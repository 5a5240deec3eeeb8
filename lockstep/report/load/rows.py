"""From what a file holds to rows: the entries of a launch, and the lines of an imported table."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lockstep.report.load import field_types, rounds
from lockstep.report.load.results import ORIGINS, OTHER, Row, Unread
from lockstep.report.load.rounds import Rounds
from lockstep.vocabulary import flags, metrics, record
from lockstep.vocabulary.record import SHORTEST_ROUND_S, CaseRecord

# What `details` holds of the steps that no rank waits in.
ALONE = "rank_alone_s"
# What only a launch can say.
_OF_LAUNCHES = {"ranks_per_node", "settings", "job"}
_ROW_KEYS = frozenset(f.name for f in fields(Row)) - _OF_LAUNCHES


def of_launch(path: Path, launch: str, entries: list[Any]) -> tuple[list[Row], list[Unread]]:
    """Return one row for each entry of a pytest-benchmark file, and the entries that give none.

    An entry that is incomplete, or holds what is no measured value, is left out: the others are as
    good as they were.

    Raises:
        ValueError: An entry is there twice, or of another schema version.
    """
    records: list[tuple[str, CaseRecord]] = []
    others: list[Row] = []
    left_out: list[Unread] = []
    names: set[str] = set()
    for index, entry in enumerate(entries):
        name = _name(index, entry)
        if name in names:
            raise ValueError(f"{path}: entry {name} stands there twice; a launch has a case once")
        names.add(name)
        _check_schema(path, name, entry)
        try:
            found = _read_entry(path, launch, name, entry)
        except ValueError as error:
            left_out.append(Unread(str(error), path, name))
            continue
        if isinstance(found, Row):
            others.append(found)
        else:
            records.append((name, found))
    measured = rounds.reduced(records)
    return [
        _measured_row(launch, name, case, numbers, _alone(f"{path}: entry {name}", case))
        for (name, case), numbers in zip(records, measured, strict=True)
    ] + others, left_out


def _name(index: int, entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return record.case_name(entry) if isinstance(name, str) else f"entry {index}"


def _check_schema(path: Path, name: str, entry: Any) -> None:
    extra = entry.get("extra_info") if isinstance(entry, dict) else None
    block = extra.get(record.KEY) if isinstance(extra, dict) else None
    if isinstance(block, dict):
        record.check_schema(block, f"{path}: entry {name}")


def _read_entry(path: Path, launch: str, name: str, entry: Any) -> CaseRecord | Row:
    """Return a case's record, or the row of a benchmark that is not ours.

    Raises:
        ValueError: The entry is incomplete, or holds what is no measured value.
    """
    stats = _checked_stats(path, name, entry)
    block = _lockstep_block(path, name, entry)
    if block is None:
        return _other_row(path, launch, name, stats)
    case = CaseRecord.from_dict(block, f"{path}: entry {name}")
    if wrong := record.problem(case):
        raise ValueError(f"{path}: entry {name}: {wrong}")
    _alone(f"{path}: entry {name}", case)  # what it raises concerns this case only
    return case


def _lockstep_block(path: Path, name: str, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    extra = entry.get("extra_info") or {}
    block = extra.get(record.KEY) if isinstance(extra, dict) else extra
    if block is None:
        return None
    if not isinstance(block, dict):
        raise ValueError(f"{path}: entry {name}: its lockstep block must be one JSON object")
    where = f"{path}: entry {name}"
    field_types.check(block, field_types.RECORD, where)
    for holder in (block.get("factors"), block.get("details")):
        field_types.check(holder or {}, field_types.DETAILS, where)
    return block


def _checked_stats(path: Path, name: str, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError(f"{path}: {name} is no pytest-benchmark entry: it has no name")
    stats = entry.get("stats")
    if not isinstance(stats, dict) or not stats.get("rounds"):
        raise ValueError(f"{path}: entry {name} has no stats; measure it again")
    missing = [key for key in field_types.STATS if key not in stats]
    if missing:
        raise ValueError(f"{path}: entry {name} has incomplete stats: no {', '.join(missing)}")
    field_types.check(stats, field_types.STATS, f"{path}: entry {name}")
    return stats


def _other_row(path: Path, launch: str, name: str, stats: Mapping[str, Any]) -> Row:
    """Return the row of a benchmark that is not ours: one process, a time, no samples."""
    numbers = [float(stats[key]) for key in ("median", "mean", "min", "max", "stddev")]
    if numbers[0] < SHORTEST_ROUND_S:
        raise ValueError(f"{path}: entry {name} has a median of {numbers[0]} s, not a time")
    step, mean, least, most, stddev = numbers
    return Row(
        launch=launch, case=name, study=OTHER, workload=name, world_size=1, rate=1 / step,
        step_s=step, mean_step_s=mean, min_step_s=least, max_step_s=most, stddev_step_s=stddev,
        rounds=stats["rounds"],
    )  # fmt: skip


def _measured_row(
    launch: str, name: str, case: CaseRecord, numbers: Rounds, alone: list[list[float]]
) -> Row:
    steps = case.steps_per_round
    step = numbers.median_s / steps
    rate = case.samples_per_step / step
    memory = [value for value in case.peak_memory_bytes if value is not None]
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
        peak_memory_bytes=max(memory, default=None), rank_alone_s=alone, rank_hosts=case.rank_hosts,
        workload_sha256=case.workload_sha256, position=case.position,
        checks=case.checks, details=_told(case),
        flags=[*map(flags.read, case.flags), *numbers.findings],
    )  # fmt: skip


def _alone(where: str, case: CaseRecord) -> list[list[float]]:
    """Return the seconds of each rank's steps alone: one, its median, in results that keep no more.

    Raises:
        ValueError: The ranks hold unequal numbers of steps, or what is no time.
    """
    medians = [[seconds] for seconds in case.details.get("alone_step_s") or []]
    found = case.details.get(ALONE) or medians
    lengths = {len(steps) for steps in found}
    if any(not isinstance(s, int | float) or s <= 0 for steps in found for s in steps):
        raise ValueError(f"{where}: a step that a rank ran alone is not a positive time")
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(f"{where}: its ranks ran unequal numbers of steps alone")
    return found


def _told(case: CaseRecord) -> dict[str, Any]:
    """Return the details without the steps alone, which are many and no setting."""
    return {name: value for name, value in case.details.items() if name != ALONE}


def of_line(given: Mapping[str, Any], where: str) -> Row:
    """Return the row of one line of an imported table.

    Raises:
        ValueError: It is incomplete, of another origin, or holds what is no measured value.
    """
    field_types.check(given, field_types.ROW, where)
    field_types.check(given.get("details") or {}, field_types.DETAILS, where)
    try:
        row = Row(**{key: given[key] for key in given if key in _ROW_KEYS})
        row.flags = list(map(flags.read, row.flags))
    except TypeError as error:
        raise ValueError(f"{where} is incomplete: {error}") from error
    if row.origin not in ORIGINS[1:]:
        raise ValueError(f"{where} has the origin {row.origin}; only cited or target is imported")
    times = (row.rate, row.step_s, row.time_s, row.throughput_samples_per_s)
    smallest = field_types.SMALLEST_NUMBER
    if row.world_size < 1 or any(one is not None and one < smallest for one in times):
        raise ValueError(f"{where}: {row.launch} holds a size, rate or time that is not positive")
    return row
