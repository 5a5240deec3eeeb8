"""From what a file holds to rows: the entries of a launch, and the lines of an imported table."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lockstep.core import flags, metrics, record
from lockstep.core.record import SHORTEST_ROUND_S, CaseRecord
from lockstep.core.studies import OTHER
from lockstep.report.compute import rounds
from lockstep.report.compute.rounds import Named, Rounds
from lockstep.report.load.contents import Details, Stats, checked
from lockstep.report.load.results import ORIGINS, Row, Unread
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
        _check_schema(path, name, entry)
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
    found = [
        _measured_row(launch, name, case, numbers)
        for (name, case), numbers in zip(records, rounds.reduce_rounds(records), strict=True)
    ]
    for row in found:
        name_alike(row)
        if row.has_smaller_batch:
            _set_apart(row)
    return found


def _set_apart(row: Row) -> None:
    """Make a series of its own of a point with a smaller batch than asked for."""
    row.own_case = row.case
    row.case = f"{row.case} at {row.local_batch} samples on each of {row.world_size} ranks"
    row.factors = row.factors | {"measured_local_batch": row.local_batch}


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
        checks=case.checks, details=_settings_of(case),
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


def _settings_of(case: CaseRecord) -> dict[str, Any]:
    """Return the details without what was timed, which is much and no setting."""
    return {name: value for name, value in case.details.items() if name not in TIMED}


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
