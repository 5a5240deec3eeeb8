"""From result files to one tidy table: a row is one case in one launch.

Reads what a campaign leaves (`launches/*/result.json`, or the journal where that holds more),
single pytest-benchmark JSON files or a folder of them, and tables brought in by `lockstep import`.
Rows are plain records and the statistics are taken over numpy blocks: ten thousand entries load
in well under a second, which per-row data frames would not allow.
"""

import gc
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bench import files, metrics, record
from bench.record import CaseRecord
from reports import rounds
from reports.rounds import SHORTEST_ROUND_S, Rounds

IMPORTED = "imported.json"
CAMPAIGN = "campaign.json"
JOBS = "jobs"
RESULT = "result.json"
JOURNAL = "journal.jsonl"
LAUNCHES = "launches"
ORIGINS = ("measured", "cited", "target")
# What the summary of a training run holds, and no pytest-benchmark file.
TRAINING_RUN = {"config", "epoch_plan", "step_losses"}
# A pytest-benchmark file of someone else's tests: timed in one process, with no samples.
OTHER = "other"


@dataclass(slots=True)
class Row:
    """One case in one launch, or one line of an imported table.

    Attributes:
        launch: Name of the launch, or the line of the imported table.
        case: The benchmark's name, or the imported table's name.
        step_s: Median round / steps per round.
        rate: Work per second that speed-ups divide: the throughput where samples are known.
        time_s: Time of a whole run, in tables of times.
        num_far_out: Rounds far outside the quartiles; they are kept.
        imbalance: Slowest rank's own total time over the mean of the ranks.
        started: When its launch began, as ISO 8601; empty where nobody says.
        origin: One of `ORIGINS`.
    """

    launch: str
    case: str
    study: str
    workload: str
    world_size: int
    rate: float
    scaling: str | None = None
    precision: str | None = None
    num_nodes: int | None = None
    local_batch: int | None = None
    global_batch: int | None = None
    factors: dict[str, Any] = field(default_factory=dict)
    sample_unit: str = ""
    samples_per_step: int | None = None
    steps_per_round: int | None = None
    step_s: float | None = None
    mean_step_s: float | None = None
    min_step_s: float | None = None
    max_step_s: float | None = None
    stddev_step_s: float | None = None
    time_s: float | None = None
    throughput_samples_per_s: float | None = None
    rounds: int | None = None
    num_far_out: int | None = None
    mfu: float | None = None
    peak_memory_bytes: int | None = None
    imbalance: float | None = None
    checks: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    started: str = ""
    origin: str = "measured"


@dataclass
class Launch:
    """What one launch says about itself."""

    name: str
    path: Path
    facts: dict[str, Any]
    num_cases: int = 0

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, hardware, environment and the map of ranks."""
        return dict(self.facts.get("provenance") or {})

    @property
    def devices(self) -> list[str]:
        """Device of each rank, as torch names it; empty where none is recorded."""
        return [str(rank.get("device", "")) for rank in self.provenance.get("ranks") or []]

    @property
    def cpu_threads(self) -> int | None:
        """Threads of a rank where all ranks are CPUs; on GPUs they are no strength."""
        threads = self.provenance.get("threads_per_rank")
        return threads if on_cpus(self.devices) and isinstance(threads, int) else None

    @property
    def complete(self) -> bool:
        """Whether the session reached its end."""
        return bool(self.facts.get("complete", True))


@dataclass(frozen=True)
class Conflict:
    """Two parts of a set of results that may not be pooled.

    Attributes:
        fact: What differs: a fact of provenance, or a field of `Row`.
        where: The launches, or the case and its launches.
        message: The fact with both values, and what to do.
        case: The case concerned; None where all of a launch is.
    """

    fact: str
    where: str
    message: str
    case: str | None = None


@dataclass
class Results:
    """Everything a report is made from.

    Attributes:
        campaign: What `campaign.json` holds; empty without one.
        launches: The launches found, in order of their path.
        rows: The tidy table.
        tables: Facts of the imported tables, by case name: source, unit, notes.
        unread: Launches of a campaign that cannot be read: which file, and why.
        conflicts: What forbids pooling the launches and cases; empty after `load`.
    """

    campaign: dict[str, Any] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)


# The fact of a conflict between a launch and its copy.
COPY = "copy"
# How the flag of a series begins whose world sizes differ in more than the number of ranks.
UNEQUAL = "ranks of unequal strength"

# What a reader may rely on; the published schema says the same and more.
_WHOLE = (int,)
_NUMBER = (int, float, type(None))
_TEXT_OR_NONE = (str, type(None))
_WHOLE_OR_NONE = (int, type(None))
_RECORD_TYPES: dict[str, tuple[type, ...]] = {
    "study": (str,), "workload": (str,), "scaling": _TEXT_OR_NONE, "world_size": _WHOLE,
    "num_nodes": _WHOLE, "factors": (dict,), "sample_unit": (str,), "samples_per_step": _WHOLE,
    "steps_per_round": _WHOLE, "rank_round_s": (list,), "precision": _TEXT_OR_NONE,
    "local_batch": _WHOLE_OR_NONE, "global_batch": _WHOLE_OR_NONE, "flop_per_sample": _NUMBER,
    "peak_flop_per_s": _NUMBER, "peak_memory_bytes": (list,), "checks": (dict,),
    "details": (dict,), "flags": (list,),
}  # fmt: skip
_LAUNCH_TYPES: dict[str, tuple[type, ...]] = {
    "provenance": (dict, type(None)), "world_size": _WHOLE_OR_NONE,
    "expected": (list, type(None)), "skipped": (list, type(None)), "failed": (list, type(None)),
    "part": (list, type(None)),
}  # fmt: skip
_PROVENANCE_TYPES: dict[str, tuple[type, ...]] = {
    "ranks": (list, type(None)), "environment": (dict, type(None)),
    "device_names": (list, type(None)),
}  # fmt: skip
# What panels compute with, of what a study adds.
_DETAIL_TYPES: dict[str, tuple[type, ...]] = {
    "message_bytes": _NUMBER, "algbw_gb_per_s": _NUMBER, "busbw_gb_per_s": _NUMBER,
    "bucket_bytes": (list, type(None)), "alone_step_s": (list, type(None)),
}  # fmt: skip
_STATS_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("median", "mean", "min", "max", "stddev"), (int, float)), "rounds": _WHOLE,
}  # fmt: skip
_TABLE_TYPES: dict[str, tuple[type, ...]] = {
    "rows": (list,), "notes": (list, type(None)), "metric": _TEXT_OR_NONE, "unit": _TEXT_OR_NONE,
    "scaling_text": _TEXT_OR_NONE, "source": _TEXT_OR_NONE,
}  # fmt: skip
_ROW_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("launch", "case", "study", "workload", "sample_unit", "origin"), (str,)),
    **dict.fromkeys(("scaling", "precision"), _TEXT_OR_NONE),
    **dict.fromkeys(("num_nodes", "local_batch", "global_batch", "rounds"), _WHOLE_OR_NONE),
    **dict.fromkeys(("samples_per_step", "steps_per_round"), _WHOLE_OR_NONE),
    **dict.fromkeys(("step_s", "mean_step_s", "min_step_s", "max_step_s"), _NUMBER),
    **dict.fromkeys(("stddev_step_s", "time_s", "throughput_samples_per_s"), _NUMBER),
    **dict.fromkeys(("mfu", "peak_memory_bytes", "imbalance"), _NUMBER),
    **dict.fromkeys(("factors", "checks", "details"), (dict,)),
    "world_size": _WHOLE, "rate": (int, float), "flags": (list,),
}  # fmt: skip
_LISTED_TYPES: dict[str, tuple[type, ...]] = {
    "ranks": (dict,), "launches": (dict,), "skipped": (dict,), "failed": (dict,), "rows": (dict,),
    **dict.fromkeys(("bucket_bytes", "alone_step_s"), (int, float)),
    "peak_memory_bytes": _NUMBER, "notes": (str,), "flags": (str,), "part": _WHOLE,
}  # fmt: skip
# Launches that agree in all of these are one. Parts of an array may start in the same second.
_ONE_LAUNCH = ("launch", "campaign", "started", "part")
# No count, rate or ratio of any machine is larger.
LARGEST_NUMBER = 1e30
SMALLEST_NUMBER = 1 / LARGEST_NUMBER
# What acts on a terminal, or reorders the text around it: no name needs one.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Characters of a wrong value that a message shows.
LONGEST_SHOWN = 80
REPLACEMENT = "\ufffd"

_ROW_KEYS = frozenset(f.name for f in fields(Row))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cycle collector off: it would walk the growing, acyclic JSON again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load(paths: Iterable[Path]) -> Results:
    """Read result folders and files that may be pooled.

    Args:
        paths: Campaign folders, folders of pytest-benchmark files, or single JSON files.

    Raises:
        ValueError: A file is missing, broken or of another schema, or launches differ in a fact
            that forbids pooling them.
    """
    results = gather(paths)
    if results.conflicts:
        raise ValueError(results.conflicts[0].message)
    return results


@_collector_paused()
def gather(paths: Iterable[Path]) -> Results:
    """Read result folders and files as `load` does, with their conflicts listed, not refused.

    Raises:
        ValueError: A file is missing, broken or of another schema.
    """
    results = Results()
    seen: set[Path] = set()
    for path in paths:
        for source in _sources(Path(path), results):
            if source.resolve() not in seen:
                seen.add(source.resolve())
                _read_one(source, results)
    if not results.rows and not results.launches:
        if results.unread:
            raise ValueError(results.unread[0])
        raise ValueError("the files hold no result; measure first, or import a table")
    results.conflicts += [*_mixed_launches(results.launches), *_mixed_cases(results.rows)]
    _order_parts(results)
    _flag_unequal_ranks(results)
    return results


def read_json(path: Path) -> Any:
    """Return a file's JSON value, its text made printable.

    Raises:
        ValueError: The file is missing, no regular file, empty, too large, cut short or not JSON.
    """
    content = files.content(path)
    if not content.strip():
        raise ValueError(f"{path}: the file is empty; delete it or measure again")
    try:
        document = files.parse(content)
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON, perhaps cut short: {error}") from error
    # Without an escape in its text, ASCII holds no more than line ends.
    return document if content.isascii() and b"\\" not in content else _printable(document)


def _printable(value: Any) -> Any:
    """Return a JSON value whose text is one line each, and has none of `_CONTROLS`."""
    if isinstance(value, str):
        return _CONTROLS.sub(_replaced, value)
    if isinstance(value, list):
        return [_printable(one) for one in value]
    if isinstance(value, dict):
        return {_printable(name): _printable(one) for name, one in value.items()}
    return value


def _replaced(found: "re.Match[str]") -> str:
    return " " if found[0].isspace() else REPLACEMENT


def _sources(path: Path, results: Results) -> Iterator[Path]:
    """Yield the files and launch folders behind one argument, in a fixed order."""
    if not path.is_dir():
        if not path.exists():
            raise ValueError(f"{path}: no such file or folder")
        yield path
        return
    if (path / CAMPAIGN).exists():
        _refuse_link_out(path / CAMPAIGN, path)
        results.campaign = _merged_campaign(results.campaign, path / CAMPAIGN)
    found = _inside(path)
    if not found and (path / JOBS).is_dir():
        raise ValueError(
            f"{path}: its jobs have measured nothing yet; lockstep status {path} says how they "
            "stand"
        )
    if not found:
        raise ValueError(f"{path}: holds no launch, no pytest-benchmark file and no {IMPORTED}")
    for source in found:
        _refuse_link_out(source, path)
        yield source


def _refuse_link_out(source: Path, folder: Path) -> None:
    """Refuse a file that a link lets stand in a folder; the folder may itself be a link."""
    there = source.resolve()
    if not there.is_relative_to(folder.resolve()):
        raise ValueError(
            f"{source}: leads out of {folder}, to {there}; name that file itself, or copy it"
        )


def _inside(folder: Path) -> list[Path]:
    launches = (d for d in sorted(folder.glob(f"{LAUNCHES}/*")) if d.is_dir())
    found = [p for d in (folder, *launches) for p in _inside_launch(d)]
    imported = [folder / IMPORTED] if (folder / IMPORTED).exists() else []
    # Beside jobs/ stand their records and the campaign's, and no file of pytest-benchmark's.
    if not found and not imported and not (folder / JOBS).is_dir():
        found = [p for p in sorted(folder.rglob("*.json")) if p.name not in (CAMPAIGN, IMPORTED)]
    return found + imported


def _inside_launch(folder: Path) -> list[Path]:
    """Return the launch's result or journal, whichever was written last, or nothing.

    A session stopped by hand writes its result; one that resumes it and is killed does not, and
    then only the journal holds the cases measured since.
    """
    found = [folder / name for name in (RESULT, JOURNAL) if (folder / name).exists()]
    return [max(found, key=lambda path: path.stat().st_mtime_ns)] if found else []


def _merged_campaign(known: dict[str, Any], path: Path) -> dict[str, Any]:
    campaign = read_json(path)
    if not isinstance(campaign, dict):
        raise ValueError(f"{path}: holds no campaign; it must be one JSON object")
    record.check_schema(campaign, str(path))
    _check_types(campaign, {"launches": (list,)}, str(path))
    if not known:
        return campaign
    launches = [*known.get("launches", []), *campaign.get("launches", [])]
    name = " + ".join(str(c.get("name", "?")) for c in (known, campaign))
    return known | {"name": name, "launches": launches}


def _read_one(source: Path, results: Results) -> None:
    """Read a file; of a campaign's launch what can be read, its result or its journal."""
    problems = []
    for path in _either(source):
        try:
            content = document(path)
        except ValueError as error:
            problems.append(error)
            continue
        _take(path, content, results)
        return
    if source.parent.parent.name != LAUNCHES:
        raise problems[0]
    results.unread.append(str(problems[0]))


def _either(source: Path) -> Iterator[Path]:
    """Yield a file, then that which may stand for it: a launch's journal, or its result."""
    yield source
    other = source.with_name(JOURNAL if source.name == RESULT else RESULT)
    if source.parent.parent.name == LAUNCHES and other.exists() and not other.is_symlink():
        yield other


def document(path: Path) -> Any:
    """Return what a result, a table or a journal holds, as pytest-benchmark writes it.

    Raises:
        ValueError: The file cannot be read.
    """
    if path.name != JOURNAL:
        return read_json(path)
    # Only a launch that did not end well needs the journal's reader.
    from bench.journal import rebuild

    return _printable(rebuild(path))


def _take(path: Path, document: Any, results: Results) -> None:
    if isinstance(document, dict) and document.get("kind") == "imported":
        _read_imported(path, document, results)
    else:
        _read_launch(path, document, results)


def _read_imported(path: Path, document: dict[str, Any], results: Results) -> None:
    record.check_schema(document, str(path))
    tables = document.get("tables")
    if not isinstance(tables, dict):
        raise ValueError(f"{path}: holds no tables; import them again")
    for name, table in tables.items():
        if name in results.tables:
            raise ValueError(f"{path}: table {name} is given twice; import it under another name")
        where = f"{path}: table {name}"
        if not isinstance(table, dict) or "rows" not in table:
            raise ValueError(f"{where} is incomplete: it has no rows")
        _check_types(table, _TABLE_TYPES, where)
        kept = {key: table[key] for key in table if key != "rows"}
        results.tables[name] = kept | {"path": str(path)}
        results.rows += [_imported_row(row, where) for row in table["rows"]]


def _imported_row(given: Mapping[str, Any], where: str) -> Row:
    _check_types(given, _ROW_TYPES, where)
    _check_types(given.get("details") or {}, _DETAIL_TYPES, where)
    try:
        row = Row(**{key: given[key] for key in given if key in _ROW_KEYS})
    except TypeError as error:
        raise ValueError(f"{where} is incomplete: {error}") from error
    if row.origin not in ORIGINS[1:]:
        raise ValueError(f"{where} has the origin {row.origin}; only cited or target is imported")
    times = (row.rate, row.step_s, row.time_s, row.throughput_samples_per_s)
    if row.world_size < 1 or any(one is not None and one < SMALLEST_NUMBER for one in times):
        raise ValueError(f"{where}: {row.launch} holds a size, rate or time that is not positive")
    return row


def _check_types(
    holder: Mapping[str, Any], types: Mapping[str, tuple[type, ...]], where: str
) -> None:
    """Refuse a value, or a value in a list, that is not what a reader relies on."""
    for name, allowed in types.items():
        if name not in holder:
            continue
        value = holder[name]
        if not _is_good(value, allowed):
            raise ValueError(
                f"{where}: {name} is {_short(value)}, which its type or range does not allow"
            )
        inner = _LISTED_TYPES.get(name) if value else None
        for one in value if inner else ():
            if not _is_good(one, inner or ()):
                raise ValueError(
                    f"{where}: {name} holds {_short(one)}, which its type or range does not allow"
                )


def _is_good(value: object, allowed: tuple[type, ...]) -> bool:
    """Tell whether a value is of a type, and as a number one that can be counted or measured."""
    if not isinstance(value, allowed):
        return False
    return not isinstance(value, (int, float)) or 0 <= value <= LARGEST_NUMBER


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _launch_facts(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    facts = document.get(record.KEY) or {}
    if not isinstance(facts, dict):
        raise ValueError(f"{path}: the facts of the launch must be one JSON object")
    if facts:
        record.check_schema(facts, str(path))
    _check_types(facts, _LAUNCH_TYPES, str(path))
    part = facts.get("part")
    if part and not (len(part) == 2 and part[0] in range(1, part[1] + 1)):
        raise ValueError(f"{path}: part is {part}, not [K, N] with K from 1 to N; measure it again")
    _check_types(facts.get("provenance") or {}, _PROVENANCE_TYPES, str(path))
    return facts


def _read_launch(path: Path, document: Any, results: Results) -> None:
    entries = document.get("benchmarks") if isinstance(document, dict) else None
    if isinstance(document, dict) and document.keys() >= TRAINING_RUN:
        raise ValueError(
            f"{path} is a training run of `lockstep train`; report reads launches, so give it the "
            "folder of a campaign"
        )
    if not isinstance(entries, list):
        raise ValueError(f"{path}: not a pytest-benchmark file: it has no list 'benchmarks'")
    facts = _launch_facts(path, document)
    if copy := _copy(path, facts, results):
        results.conflicts.append(copy)
        return
    launch = Launch(_launch_name(path, facts, results), path, facts, len(entries))
    results.launches.append(launch)
    rows = _rows(path, launch.name, entries)
    for row in rows:
        row.started = str(facts.get("started") or "")
    results.rows += rows


def _launch_name(path: Path, facts: Mapping[str, Any], results: Results) -> str:
    """Return a name no other launch has."""
    name = _own_name(path, facts)
    taken = {other.name for other in results.launches}
    return name if name not in taken else f"{name} ({path.parent})"


def _own_name(path: Path, facts: Mapping[str, Any]) -> str:
    plain = path.parent.name if path.name in (RESULT, JOURNAL) else path.stem
    return str(facts.get("launch") or _printable(plain))


def _copy(path: Path, facts: Mapping[str, Any], results: Results) -> Conflict | None:
    """Return what forbids pooling a launch that is already read, or None."""
    for other in results.launches:
        if facts and all(facts.get(name) == other.facts.get(name) for name in _ONE_LAUNCH):
            return Conflict(
                COPY,
                str(path),
                f"{path}: launch {_own_name(path, facts)} is already read from {other.path}; give "
                "each launch once, since a copy is no repeat",
            )
    return None


def _rows(path: Path, launch: str, entries: list[Any]) -> list[Row]:
    records: list[tuple[str, CaseRecord]] = []
    others: list[Row] = []
    names: set[str] = set()
    for index, entry in enumerate(entries):
        name, stats = _checked_entry(path, index, entry)
        if name in names:
            raise ValueError(f"{path}: entry {name} stands there twice; a launch has a case once")
        names.add(name)
        block = _lockstep_block(path, name, entry)
        if block is None:
            others.append(_other_row(path, launch, name, stats))
        else:
            records.append((name, CaseRecord.from_dict(block, f"{path}: entry {name}")))
    measured = rounds.reduced(path, records)
    return [
        _measured_row(launch, *pair, numbers)
        for pair, numbers in zip(records, measured, strict=True)
    ] + others


def _lockstep_block(path: Path, name: str, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    extra = entry.get("extra_info") or {}
    block = extra.get(record.KEY) if isinstance(extra, dict) else extra
    if block is None:
        return None
    if not isinstance(block, dict):
        raise ValueError(f"{path}: entry {name}: its lockstep block must be one JSON object")
    where = f"{path}: entry {name}"
    _check_types(block, _RECORD_TYPES, where)
    for holder in (block.get("factors"), block.get("details")):
        _check_types(holder or {}, _DETAIL_TYPES, where)
    return block


def _checked_entry(path: Path, index: int, entry: Any) -> tuple[str, dict[str, Any]]:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        raise ValueError(f"{path}: entry {index} is no pytest-benchmark entry: it has no name")
    stats = entry.get("stats")
    if not isinstance(stats, dict) or not stats.get("rounds"):
        raise ValueError(f"{path}: entry {name} has no stats; measure it again")
    return name, stats


def _other_row(path: Path, launch: str, name: str, stats: Mapping[str, Any]) -> Row:
    """Return the row of a benchmark that is not ours: one process, a time, no samples."""
    missing = [key for key in _STATS_TYPES if key not in stats]
    if missing:
        raise ValueError(f"{path}: entry {name} has incomplete stats: no {', '.join(missing)}")
    _check_types(stats, _STATS_TYPES, f"{path}: entry {name}")
    numbers = [float(stats[key]) for key in ("median", "mean", "min", "max", "stddev")]
    if numbers[0] < SHORTEST_ROUND_S:
        raise ValueError(f"{path}: entry {name} has a median of {numbers[0]} s, not a time")
    step, mean, least, most, stddev = numbers
    return Row(
        launch=launch, case=name, study=OTHER, workload=name, world_size=1, rate=1 / step,
        step_s=step, mean_step_s=mean, min_step_s=least, max_step_s=most, stddev_step_s=stddev,
        rounds=stats["rounds"],
    )  # fmt: skip


def _measured_row(launch: str, name: str, case: CaseRecord, numbers: Rounds) -> Row:
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
        peak_memory_bytes=max(memory, default=None), imbalance=numbers.imbalance,
        checks=case.checks, details=case.details, flags=[*case.flags, *numbers.findings],
    )  # fmt: skip


def _mixed_launches(launches: list[Launch]) -> Iterator[Conflict]:
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
            yield Conflict(name, both, f"{both} {differ} and are not pooled; report them apart")


def _mixed_cases(rows: list[Row]) -> Iterator[Conflict]:
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
    return [name for name in names if getattr(one, name) != getattr(two, name)]


def _case_conflict(name: str, one: Row, two: Row) -> Conflict:
    sizes = f"world size {one.world_size}"
    if two.world_size != one.world_size:
        sizes = f"world sizes {one.world_size} and {two.world_size}"
    return Conflict(
        name,
        f"{one.case}, {sizes}, launches {one.launch} and {two.launch}",
        f"{one.case} has {name} {getattr(one, name)} in launch {one.launch} and "
        f"{getattr(two, name)} in launch {two.launch}; report them apart",
        one.case,
    )


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
    results.rows.sort(key=lambda row: places.get((row.launch, row.case), last))


def _whole(launch: Launch) -> tuple[str, ...]:
    """Return what the parts of one launch have in common."""
    if not launch.facts.get("part"):
        return (launch.name,)
    return tuple(str(launch.facts.get(name)) for name in ("campaign", "world_size", "repeat"))


def _flag_unequal_ranks(results: Results) -> None:
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


def on_cpus(devices: Sequence[str]) -> bool:
    """Tell whether there are devices, and all of them are CPUs."""
    return bool(devices) and all(device.startswith("cpu") for device in devices)


def finite(value: float) -> bool:
    """Tell whether a number can be measured: finite and positive."""
    return math.isfinite(value) and value > 0
