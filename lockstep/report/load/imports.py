"""Other people's tables as results: `lockstep import TABLE.csv --to DIR`.

Two kinds of CSV are read. A plain table has the columns n, value, metric and unit, and may add
table_id, scaling, source, global_batch, steps, samples and note. A log of epochs has the fifteen
columns timestamp, jobid, ..., epoch_time_s, images_per_sec, one line per epoch and one file or
more per job.

What is imported was not measured here: its origin is "cited", or "target" where its note says
that it was expected rather than measured, and it stays apart from measured rows everywhere.
"""

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from lockstep import content
from lockstep.report.load import table_parts
from lockstep.report.load.sources import IMPORTED
from lockstep.vocabulary.records.flags import Flag, flag
from lockstep.vocabulary.records.record import SCHEMA_VERSION, Scaling
from lockstep.vocabulary.system import files
from lockstep.vocabulary.text.durations import TIME_UNITS
from lockstep.vocabulary.text.formats import counted, listed

EPOCH_COLUMNS = ("jobid", "epoch", "world_size", "global_batch", "epoch_time_s", "images_per_sec")
# The header names under which tables give the number of ranks.
ALIASES = {"gpus": "n", "world_size": "n", "ranks": "n", "batch_per_device": "local_batch"}
TIMES = ("time", "training_time", "epoch_time", "time_to_train")
SCALINGS = get_args(Scaling)
NOT_MEASURED = re.compile(r"EXPECTED|TARGETS?\b|NOT MEASURED")
# A log's images/s may differ from its own epoch times by rounding, not by a fifth.
LOGGED_TOLERANCE = 0.2


@dataclass
class Imported:
    """Tables by name, and what the reader should be told about them."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def add(self, base: str, row: dict[str, Any], facts: Mapping[str, Any], note: str = "") -> None:
        """Put a row into its table; another metric or origin under that name is another table."""
        metric, origin = facts["metric"], facts["origin"]
        for name in (base, f"{base} {metric}", f"{base} {metric} {origin}"):
            table = self.tables.setdefault(name, {**facts, "notes": [], "rows": []})
            if (table["metric"], table["origin"]) == (metric, origin):
                break
        table["rows"].append(row | {"case": name})
        if note and note not in table["notes"]:
            table["notes"].append(note)


def built_in() -> dict[str, Path]:
    """Return the tables that ship with the suite, name -> file: facts with their source."""
    folder = content.ROOT / "reports" / "seeds"
    return {path.stem: path for path in sorted(folder.glob("*.csv"))}


def read(paths: Iterable[Path], dataset_size: int) -> Imported:
    """Read CSV tables of either kind.

    Args:
        paths: The files, UTF-8 with or without a mark, or Windows-1252.
        dataset_size: Samples in one epoch, for logs of epochs.

    Raises:
        ValueError: A file is missing, empty, or of neither kind, or no line of it can be used.
    """
    imported = Imported()
    epochs: list[tuple[Path, list[dict[str, str]]]] = []
    for path in paths:
        lines = _lines(path)
        if all(column in lines[0] for column in EPOCH_COLUMNS):
            epochs.append((path, lines))
        else:
            _read_plain(path, lines, imported)
    _part(imported)
    _read_epochs(epochs, dataset_size, imported)
    imported.warnings += _uneven_work(imported)
    if not imported.tables:
        detail = f": {imported.warnings[0]}" if imported.warnings else ""
        raise ValueError(f"no line can be used{detail}")
    return imported


def _part(imported: Imported) -> None:
    """Part tables of several experiments, and say so."""
    whole, imported.tables = imported.tables, {}
    for name, table in whole.items():
        parts = table_parts.split_table(name, table)
        imported.tables |= parts
        if len(parts) > 1:
            imported.facts.append(f"table {name} holds several experiments: {listed(parts)}")


def write(imported: Imported, paths: Iterable[Path], folder: Path, force: bool = False) -> Path:
    """Write the tables to `folder/imported.json` in one move.

    Raises:
        ValueError: The file exists and `force` was not given.
    """
    target = folder / IMPORTED
    if target.exists() and not force:
        raise ValueError(f"{target} exists; choose another folder or pass --force to replace it")
    sources = [
        {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in paths
    ]
    document = {
        "schema": SCHEMA_VERSION,
        "kind": "imported",
        "sources": sources,
        "warnings": imported.warnings,
        "tables": imported.tables,
    }
    files.write_atomically(target, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return target


def _lines(path: Path) -> list[dict[str, str]]:
    if path.is_dir() or not path.exists():
        why = "is a folder; give its tables one by one" if path.is_dir() else "does not exist"
        raise ValueError(f"{path}: cannot be read: it {why}")
    reader = csv.DictReader(io.StringIO(_decoded(files.content(path)), newline=""))
    try:
        lines = [
            {k.strip(): (v or "").strip() for k, v in line.items() if isinstance(k, str)}
            for line in reader
        ]
    except csv.Error as error:
        raise ValueError(f"{path}: not CSV after line {reader.line_num}: {error}") from None
    if not lines:
        raise ValueError(f"{path}: the table is empty; it needs a header and at least one line")
    return lines


def _decoded(content: bytes) -> str:
    """Return the text; what is not UTF-8 was written by a spreadsheet in Windows-1252."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _read_plain(path: Path, lines: list[dict[str, str]], imported: Imported) -> None:
    renamed = {
        k: ALIASES.get(k.lower(), k.lower() if k.lower() in COLUMNS else k) for k in lines[0]
    }
    if len(set(renamed.values())) < len(renamed):
        renamed = {k: k for k in lines[0]}
    missing = [column for column in REQUIRED if column not in renamed.values()]
    if missing:
        raise ValueError(
            f"{path}: no column {', '.join(missing)}; a table needs n, value, metric and unit"
        )
    for number, line in enumerate(lines, start=2):
        cells = {renamed[k]: v for k, v in line.items()}
        try:
            name, row, facts = _plain_row(path, number, cells)
        except ValueError as error:
            imported.warnings.append(f"{path.name} line {number} is left out: {error}")
            continue
        imported.add(name, row, facts, cells.get("note", ""))
        _warn_of_scaling(path, number, cells, row, imported)


# Times that a throughput may not be per, as in samples/ms.
NOT_SECONDS = {*TIME_UNITS, "us", "minute", "hour", "day"} - {"s", "sec"}
REQUIRED = ("n", "value", "metric", "unit")
COLUMNS = (
    *REQUIRED, "table_id", "scaling", "source", "global_batch", "local_batch", "steps", "samples",
    "note", "precision", "model", "nodes",
)  # fmt: skip


def _plain_row(
    path: Path, number: int, cells: dict[str, str]
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    metric, unit = cells["metric"].lower(), cells["unit"]
    scaling = _scaling(cells.get("scaling", ""))
    size, value = _count(cells["n"], "n"), _positive(cells["value"], "value")
    row: dict[str, Any] = {
        "launch": f"line {number}",
        # Where n counts workers or processors, a cost in device hours means nothing.
        "study": "other" if "instead of" in cells.get("scaling", "") else "imported",
        "workload": cells.get("model") or cells.get("table_id") or path.stem,
        "world_size": size,
        "scaling": scaling,
        "precision": cells.get("precision") or None,
        "num_nodes": _optional_count(cells, "nodes"),
        "local_batch": _optional_count(cells, "local_batch"),
        "global_batch": _optional_count(cells, "global_batch"),
        "origin": _origin(cells),
    }
    row |= _quantities(metric, unit, value, row, cells)
    row["details"] = {k: v for k, v in cells.items() if k not in COLUMNS and v}
    facts = {
        "metric": metric, "unit": unit, "origin": row["origin"], "scaling": scaling,
        "scaling_text": cells.get("scaling", ""), "source": cells.get("source", ""),
        "model": cells.get("model", ""), "file": path.name,
    }  # fmt: skip
    return cells.get("table_id") or path.stem, row, facts


def _quantities(
    metric: str, unit: str, value: float, row: Mapping[str, Any], cells: dict[str, str]
) -> dict[str, Any]:
    """Return what a line says in seconds and samples, and the rate its ratios divide.

    Raises:
        ValueError: The metric or the unit is not one that can be scaled.
    """
    if metric == "throughput":
        relative = "relative" in unit
        if not relative and NOT_SECONDS & set(re.split(r"[/ ]+", unit)):
            raise ValueError(f"unit {unit!r} is not per second; give the throughput per second")
        rate = {"rate": value, "sample_unit": unit.split("/s")[0].split(" per ")[0]}
        return rate if relative else rate | {"throughput_samples_per_s": value}
    if metric not in TIMES and not metric.startswith("step_time"):
        raise ValueError(f"metric {metric!r} is no time and no throughput")
    if unit not in TIME_UNITS:
        raise ValueError(f"unit {unit!r} is not one of {', '.join(TIME_UNITS)}")
    seconds = value * TIME_UNITS[unit]
    if metric in TIMES:
        return _from_time(seconds, row, cells)
    return _from_step(seconds, row)


def _from_time(seconds: float, row: Mapping[str, Any], cells: dict[str, str]) -> dict[str, Any]:
    """Return a run's time, and its step time where steps are given or follow from samples."""
    work = row["world_size"] if row["scaling"] == "weak" else 1
    steps, samples = _optional_count(cells, "steps"), _optional_count(cells, "samples")
    batch = row["global_batch"]
    if steps and batch and not samples:
        samples = steps * batch
    step_s = seconds / steps if steps else None
    if not steps and samples and batch:
        step_s = seconds * batch / samples
    found: dict[str, Any] = {"time_s": seconds, "rate": work / seconds, "step_s": step_s}
    if samples:
        found |= {"throughput_samples_per_s": samples / seconds, "sample_unit": "samples"}
    return found


def _from_step(seconds: float, row: Mapping[str, Any]) -> dict[str, Any]:
    if row["global_batch"]:
        rate = row["global_batch"] / seconds
        return {
            "step_s": seconds, "rate": rate, "throughput_samples_per_s": rate,
            "sample_unit": "samples", "samples_per_step": row["global_batch"],
        }  # fmt: skip
    if row["scaling"] is None:
        raise ValueError("a step time needs its scaling (strong or weak) or its global_batch")
    work = 1 if row["scaling"] == "strong" else row["world_size"]
    return {"step_s": seconds, "rate": work / seconds}


def _scaling(text: str) -> str | None:
    """Return the scaling a text begins with; a batch per device fixed with epochs is neither."""
    lowered = text.lower().replace("-", " ")
    return next((name for name in SCALINGS if lowered.startswith(name.replace("-", " "))), None)


def _warn_of_scaling(
    path: Path, number: int, cells: Mapping[str, str], row: Mapping[str, Any], imported: Imported
) -> None:
    """Warn of a scaling that says nothing, once for each text of a file."""
    text = cells.get("scaling", "")
    said = f"scaling {text!r} begins with none of {', '.join(SCALINGS)}, so it is taken as unknown"
    known = row["scaling"] or row["study"] == "other" or not text
    if not known and not any(w.startswith(path.name) and said in w for w in imported.warnings):
        imported.warnings.append(f"{path.name} line {number}: {said}")


def _uneven_work(imported: Imported) -> Iterator[str]:
    """Yield a warning for each table of strong scaling whose runs hold different samples."""
    for name, table in imported.tables.items():
        samples = dict.fromkeys(
            round(row["throughput_samples_per_s"] * row["time_s"])
            for row in table["rows"]
            if row.get("time_s") and row.get("throughput_samples_per_s")
        )
        if table["scaling"] == "strong" and len(samples) > 1:
            yield (
                f"table {name}: strong scaling keeps the work, but the samples are "
                f"{', '.join(map(str, samples))}; correct them, or call it weak"
            )


def _origin(cells: Mapping[str, str]) -> str:
    said = f"{cells.get('note', '')} {cells.get('source', '')}"
    return "target" if NOT_MEASURED.search(said) else "cited"


def _count(text: str, name: str) -> int:
    value = _positive(text, name)
    if value != int(value):
        raise ValueError(f"{name} is {text!r}, not a whole number")
    return int(value)


def _optional_count(cells: Mapping[str, str], name: str) -> int | None:
    return _count(cells[name], name) if cells.get(name) else None


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, not a number") from None


def _positive(text: str, name: str) -> float:
    value = _number(text, name)
    if not _measurable(value):
        raise ValueError(f"{name} is {text!r}, not a positive number")
    return value


def _measurable(value: float) -> bool:
    """Tell whether a number can be measured: finite and positive."""
    return math.isfinite(value) and value > 0


def _read_epochs(
    logs: Iterable[tuple[Path, list[dict[str, str]]]], dataset_size: int, imported: Imported
) -> None:
    """Add each job, whose epochs may be in several files."""
    jobs: dict[tuple[str, str, str], tuple[Path, list[dict[str, str]]]] = {}
    for path, line in ((path, line) for path, lines in logs for line in lines):
        key = (line["jobid"], line["world_size"], line["global_batch"])
        jobs.setdefault(key, (path, []))[1].append(line)
    for path, job in jobs.values():
        try:
            job.sort(key=lambda line: _number(line["epoch"], "epoch"))
            if len({line["epoch"] for line in job}) < len(job):
                raise ValueError("an epoch is there twice; give each log once")
            _read_job(path, job, dataset_size, imported)
        except ValueError as error:
            raise ValueError(f"{path}: job {job[0]['jobid']}: {error}") from error


def _read_job(path: Path, job: list[dict[str, str]], dataset_size: int, imported: Imported) -> None:
    """Add one job: the mean of its epochs after the first, which warms up."""
    first, timed = job[0], job[1:] or job
    times = [_positive(line["epoch_time_s"], "epoch_time_s") for line in timed]
    mean_s = sum(times) / len(times)
    size, batch = _count(first["world_size"], "world_size"), _count(first["global_batch"], "batch")
    flags = [flag("warm-up-only")] if len(job) == 1 else []
    logged = _logged_factor(timed, times, dataset_size)
    flags += _logged_flag(logged, dataset_size)
    rate = dataset_size / mean_s
    commit = first.get("commit") or "unknown"
    name = f"epochs local_batch={batch // size} commit={commit}"
    name += " (first epoch only)" if len(job) == 1 else ""
    row = {
        "launch": f"job {first['jobid']}", "study": "imported",
        "workload": "epochs", "world_size": size, "rate": 1 / mean_s, "time_s": mean_s,
        "scaling": "fixed-epochs", "local_batch": batch // size, "global_batch": batch,
        "step_s": mean_s * batch / dataset_size, "throughput_samples_per_s": rate,
        "sample_unit": "images", "rounds": len(timed), "origin": "cited",
        "flags": [one.to_dict() for one in flags],
        "details": {"logged_over_true": logged} if _measurable(logged) else {},
    }  # fmt: skip
    facts = {
        "metric": "epoch_time", "unit": "s", "origin": "cited", "scaling": "fixed-epochs",
        "scaling_text": "fixed epochs, fixed local batch", "source": "log of epochs",
        "file": path.name,
    }  # fmt: skip
    imported.add(name, row, facts)
    imported.facts.append(
        f"job {first['jobid']}: {rate:.0f} images/s on {counted(size, 'rank')}, "
        f"mean of {counted(len(timed), 'epoch')} of {dataset_size} images"
    )
    imported.warnings += [f"{path.name}: job {first['jobid']}: {one}" for one in flags]


def _logged_factor(lines: list[dict[str, str]], times: list[float], dataset_size: int) -> float:
    """Return by what factor the logged images/s exceed what the epoch times allow."""
    logged = [_number(line["images_per_sec"] or "0", "images_per_sec") for line in lines]
    factors = [value * t / dataset_size for value, t in zip(logged, times, strict=True)]
    return sum(factors) / len(factors)


def _logged_flag(factor: float, dataset_size: int) -> list[Flag]:
    if abs(factor - 1) <= LOGGED_TOLERANCE:
        return []
    return [flag("logged-rate", factor=factor, images=dataset_size)]
