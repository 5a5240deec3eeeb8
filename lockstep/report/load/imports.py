"""Other people's tables as results: `lockstep import TABLE.csv --to DIR`.

Two kinds are read. A plain table has the columns n, value, metric and unit, or columns that say
what they are, and may add table_id, scaling, source, global_batch, steps, samples and note; rates
of one device and of steps become those of all ranks in samples. A log of epochs has the fifteen
columns timestamp, jobid, ..., epoch_time_s, images_per_sec, one line per epoch and one file or
more per job.

A column that no reader knows may name what was varied, such as `strategy`. Lines of one size that
differ in it are other experiments and no repeats, so each of its values is a table.

What is imported was not measured here: its origin is "cited", or "target" where its note says
that it was expected rather than measured, and it stays apart from measured rows everywhere.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from lockstep import content
from lockstep.core import files, formats
from lockstep.core.factors import KNOWN
from lockstep.core.flags import flag
from lockstep.core.formats import TIME_UNITS, counted, listed
from lockstep.core.record import SCHEMA_VERSION, Scaling
from lockstep.report.load import table_cells
from lockstep.report.load.sources import IMPORTED
from lockstep.report.load.table_cells import COLUMNS, Table, Understood

NUMBER = re.compile(r"[-+.\d]")
# Columns that tell repeats of one experiment apart, or say where a line is from.
OF_REPEATS = frozenset({
    "run", "run_id", "id", "name", "repeat", "rep", "trial", "seed", "launch", "job", "jobid",
    "job_id", "host", "hosts", "hostname", "node", "nodes", "nodename", "nodelist", "user", "file",
    "log", "status", "date", "time", "timestamp", "started", "commit",
    "locator", "url", "verified", "comment",
})  # fmt: skip


EPOCH_COLUMNS = ("jobid", "epoch", "world_size", "global_batch", "epoch_time_s", "images_per_sec")
TIMES = ("time", "training_time", "epoch_time", "time_to_train")
SCALINGS = get_args(Scaling)
NOT_MEASURED = re.compile(r"EXPECTED|TARGETS?\b|NOT MEASURED")
# A whole cell or clause that says so: "ideal", "ideal linear scaling", "extrapolated from 4".
IDEAL = re.compile(
    r"(?i)\W*((an?|the|linear(ly)?) )?((ideal|theoretical|perfect|expected|estimated?|simulated|"
    r"assumed|target|goal|not measured)(\W+(linear|scaling|speed-?up|value|rate|throughput|line|"
    r"peak|limit))*|(extrapolat|project|predict)(ed|ion)( (from|by) .*)?)\W*"
)
# A log's images/s may differ from its own epoch times by rounding, not by a fifth.
LOGGED_TOLERANCE = 0.2


@dataclass
class Imported:
    """Tables by name, and what the reader should be told about them."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    # File -> each of its columns: heading, meaning, unit, first cell as typed and as read.
    columns: dict[str, list[Understood]] = field(default_factory=dict)

    def add(self, base: str, row: dict[str, Any], facts: Mapping[str, Any], note: str = "") -> None:
        """Put a row into its table; another metric or origin under that name is another table.

        Raises:
            ValueError: Its value was brought to all ranks otherwise than the table's.
        """
        metric, origin = facts["metric"], facts["origin"]
        for name in (base, f"{base} {metric}", f"{base} {metric} {origin}"):
            table = self.tables.setdefault(name, {**facts, "notes": [], "rows": []})
            if (table["metric"], table["origin"]) == (metric, origin):
                break
        if (mine := facts.get("conversion")) != (other := table.get("conversion")):
            text = " and ".join(str(one or "as they stand") for one in (other, mine))
            raise ValueError(f"values of table {name} are {text}; write all of them in one unit")
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
        table = table_cells.read(path)
        if {*EPOCH_COLUMNS} <= {*table.lines[0][1]}:
            epochs.append((path, [line for _, line in table.lines]))
        else:
            _read_plain(path, table, imported)
    _split(imported)
    _infer_weak(imported)
    imported.facts += [
        f"table {name}: its values are {table['conversion']}"
        for name, table in imported.tables.items()
        if "conversion" in table
    ]
    _read_epochs(epochs, dataset_size, imported)
    if not imported.tables:
        detail = f": {imported.warnings[0]}" if imported.warnings else ""
        raise ValueError(f"no line can be used{detail}")
    return imported


def _split(imported: Imported) -> None:
    """Make a table of each experiment that a table holds."""
    whole, imported.tables = imported.tables, {}
    for name, table in whole.items():
        lines = table["rows"]
        headings = dict.fromkeys(name for line in lines for name in line["details"])
        columns = [heading for heading in headings if _is_varied(heading, lines)]
        parts: dict[str, dict[str, Any]] = {}
        for line in lines:
            values = ((column, line["details"].get(column)) for column in columns)
            own = " ".join([name, *(f"{column}={value}" for column, value in values if value)])
            parts.setdefault(own, {**table, "rows": []})["rows"].append({**line, "case": own})
        imported.tables |= parts
        if len(parts) > 1:
            imported.facts.append(f"table {name} holds several experiments: {listed(parts)}")


def _is_varied(column: str, lines: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether lines of one size differ in a column that may name an experiment."""
    if column.lower() in OF_REPEATS:
        return False
    sizes: dict[tuple[Any, ...], set[str]] = {}
    for line in lines:
        size = line["world_size"], line.get("num_nodes")
        sizes.setdefault(size, set()).add(str(line["details"].get(column, "")))
    differing = [value for values in sizes.values() if len(values) > 1 for value in values]
    # A number may have been measured, as a loss is.
    return bool(differing) and (column.lower() in KNOWN or not any(map(NUMBER.match, differing)))


def _infer_weak(imported: Imported) -> None:
    """Set weak scaling where a table gives none, and one batch of a rank at all sizes."""
    for name, table in imported.tables.items():
        sizes = {row["world_size"] for row in table["rows"]}
        batches = {row["local_batch"] for row in table["rows"]}
        is_open = not table["scaling_text"] and table["metric"] not in TIMES
        if is_open and len(sizes) > 1 and len(batches) == 1 and None not in batches:
            table["scaling"] = "weak"
            table["rows"] = [row | {"scaling": "weak"} for row in table["rows"]]
            imported.facts.append(f"table {name}: weak scaling, with one local_batch at all sizes")


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


def _read_plain(path: Path, table: Table, imported: Imported) -> None:
    try:
        imported.columns[str(path)], values = table_cells.values(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    odd_scalings = set()
    for number, cells in values:
        try:
            name, row, facts = _plain_row(path, number, cells)
            imported.add(name, row, facts, cells.get("note", ""))
        except ValueError as error:
            imported.warnings.append(f"{path.name} line {number} is left out: {error}")
            continue
        scaling = cells.get("scaling", "")
        is_known = row["scaling"] or row["study"] == "other" or not scaling
        if not is_known and scaling not in odd_scalings:
            odd_scalings.add(scaling)
            imported.warnings.append(
                f"{path.name} line {number}: scaling {scaling!r} does not begin with any of "
                f"{', '.join(SCALINGS)}, so it is taken as unknown"
            )


def _plain_row(
    path: Path, number: int, cells: dict[str, str]
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    text, note = cells.get("scaling", ""), cells.get("note", "")
    # A batch per device that is fixed with epochs is neither weak nor strong.
    lowered = text.lower().replace("-", " ")
    scaling = next((s for s in SCALINGS if lowered.startswith(s.replace("-", " "))), None)
    clauses = [*re.split(r"[;,.:(]\s*", note), cells.get("table_id", "")]
    clauses += [cell for name, cell in cells.items() if name not in COLUMNS]
    is_ideal = any(map(IDEAL.fullmatch, clauses))
    is_target = NOT_MEASURED.search(f"{note} {cells.get('source', '')}") or is_ideal
    nodes, per_node = (_optional_count(cells, name) or 0 for name in ("nodes", "ranks_per_node"))
    size = _count(cells["n"], "n") if "n" in cells else nodes * per_node
    if nodes and per_node and size != nodes * per_node:
        raise ValueError(f"n is {size}, but {nodes} nodes of {per_node} ranks are given")
    row: dict[str, Any] = {
        "launch": f"line {number}",
        # Where n counts workers or processors, a cost in device hours means nothing.
        "study": "other" if "instead of" in text else "imported",
        "workload": cells.get("model") or cells.get("table_id") or path.stem,
        "world_size": _count(str(size), "n"),
        "scaling": scaling,
        "precision": cells.get("precision") or None,
        "num_nodes": _optional_count(cells, "nodes"),
        "local_batch": _optional_count(cells, "local_batch"),
        "global_batch": _optional_count(cells, "global_batch"),
        "origin": "target" if is_target else "cited",
    }
    found, facts = _quantities(row, cells)
    row |= found
    row["details"] = {k: v for k, v in cells.items() if k not in COLUMNS and v}
    facts |= {
        "origin": row["origin"], "scaling": scaling, "scaling_text": text,
        "source": cells.get("source", ""), "model": cells.get("model", ""), "file": path.name,
    }  # fmt: skip
    return cells.get("table_id") or path.stem, row, facts


def _quantities(
    row: Mapping[str, Any], cells: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a line says in seconds and samples with the rate its ratios divide.

    And its metric, the unit that the value is in then, and how it was brought there.

    Raises:
        ValueError: The metric or the unit is not one that can be scaled.
    """
    metric, unit = cells.get("metric", "").lower(), cells.get("unit", "")
    if table_cells.PART.sub("", metric.replace("_", " ")).strip(" -()") == "throughput":
        if "relative" not in unit:
            return _from_rate(row, cells)
        sample = unit.split("/s")[0].split(" per ")[0]
        found = {"rate": _positive(cells["value"], "value"), "sample_unit": sample}
        return found, {"metric": "throughput", "unit": unit}
    if metric not in TIMES and not metric.startswith("step_time"):
        raise ValueError(f"metric {metric!r} is neither a time nor a throughput")
    read = table_cells.Unit()
    with suppress(ValueError):
        read = table_cells.parse(unit)
    if not read.time:
        raise ValueError(f"unit {unit!r} is not one of {', '.join(TIME_UNITS)}")
    seconds = _seconds(cells["value"], read.time)
    of_run = metric in TIMES and read.of != "step"
    found = _from_time(seconds, row, cells) if of_run else _from_step(seconds, row)
    return found, {"metric": metric, "unit": read.time}


def _from_rate(
    row: Mapping[str, Any], cells: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a throughput of all ranks in samples a second, from one of steps or of one rank."""
    unit, value = cells["unit"], _positive(cells["value"], "value")
    read = table_cells.parse(unit)
    whose = read.whose or table_cells.part(f"{cells['metric']} ; {cells['heading']}")
    if not whose:
        notes = [cell for name, cell in cells.items() if name not in COLUMNS[1:-1]]
        whose = table_cells.part_of_rates(" ; ".join(notes))
    counts_steps = read.of == "step"
    if counts_steps and not (row["local_batch"] or (row["global_batch"] and not whose)):
        needed = "local_batch" if whose else "global_batch, or local_batch"
        raise ValueError(f"unit {unit!r} counts steps; add a column {needed}: samples of a step")
    if counts_steps:
        step_s = value * TIME_UNITS[read.time] if read.time else 1 / (value * read.factor)
        facts = {"unit": "samples/s", "conversion": f"{unit} times the batch of all ranks"}
        return _from_step(step_s, row), {"metric": "throughput"} | facts
    if read.time:
        raise ValueError(f"unit {unit!r} is a time; a throughput is in samples/s")
    facts = {"metric": "throughput", "unit": unit}
    if read.factor != 1:
        value, rate = value * read.factor, f"{read.counted}/s"
        facts |= {"unit": rate, "conversion": f"{unit} as {rate}"}
    if whose:
        count = row["world_size"] if whose == "device" else row["num_nodes"]
        if count is None:
            raise ValueError("the throughput is per node; add a column nodes")
        value, rate = value * count, f"{read.counted}/s"
        given = rate if read.factor == 1 else unit
        facts |= {"unit": rate, "conversion": f"{given} of one {whose} times the {whose}s"}
    return {"rate": value, "sample_unit": read.counted, "throughput_samples_per_s": value}, facts


def _seconds(text: str, unit: str) -> float:
    """Return a time in seconds: a number of its unit, or minutes:seconds, or h:mm:ss."""
    clock = formats.parse_duration(text)
    if clock is None:
        return _positive(text, "value") * TIME_UNITS[unit]
    if text.count(":") == 1 and TIME_UNITS[unit] > TIME_UNITS["min"]:
        raise ValueError(f"value {text!r} may be h:mm or mm:ss; write h:mm:ss")
    return _positive(str(clock), "value")


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
    if batch := row["global_batch"] or (row["local_batch"] or 0) * row["world_size"]:
        rate = batch / seconds
        return {
            "step_s": seconds, "rate": rate, "throughput_samples_per_s": rate,
            "sample_unit": "samples", "samples_per_step": batch,
        }  # fmt: skip
    if row["scaling"] is None:
        raise ValueError(
            "a step time needs its global_batch or its scaling; add a column, for example: "
            f"n,step time (s),global_batch / {row['world_size']},{seconds:g},1024"
        )
    work = 1 if row["scaling"] == "strong" else row["world_size"]
    return {"step_s": seconds, "rate": work / seconds}


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
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {text!r}, not a positive number")
    return value


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
                raise ValueError("an epoch occurs twice; give each log once")
            _read_job(path, job, dataset_size, imported)
        except ValueError as error:
            raise ValueError(f"{path}: job {job[0]['jobid']}: {error}") from error


def _read_job(path: Path, job: list[dict[str, str]], dataset_size: int, imported: Imported) -> None:
    """Add one job: the mean of its epochs after the first, which warms up."""
    first, timed = job[0], job[1:] or job
    times = [_positive(line["epoch_time_s"], "epoch_time_s") for line in timed]
    mean_s = sum(times) / len(times)
    size, batch = _count(first["world_size"], "world_size"), _count(first["global_batch"], "batch")
    # By what factor the logged images/s exceed what the epoch times allow.
    logged = [_number(line["images_per_sec"] or "0", "images_per_sec") for line in timed]
    factors = [value * t / dataset_size for value, t in zip(logged, times, strict=True)]
    factor = sum(factors) / len(factors)
    flags = [flag("warm-up-only")] if len(job) == 1 else []
    if not abs(factor - 1) <= LOGGED_TOLERANCE:
        flags.append(flag("logged-rate", factor=factor, images=dataset_size))
    rate = dataset_size / mean_s
    name = f"epochs local_batch={batch // size} commit={first.get('commit') or 'unknown'}"
    name += " (first epoch only)" if len(job) == 1 else ""
    row = {
        "launch": f"job {first['jobid']}", "study": "imported",
        "workload": "epochs", "world_size": size, "rate": 1 / mean_s, "time_s": mean_s,
        "scaling": "fixed-epochs", "local_batch": batch // size, "global_batch": batch,
        "step_s": mean_s * batch / dataset_size, "throughput_samples_per_s": rate,
        "sample_unit": "images", "rounds": len(timed), "origin": "cited",
        "flags": [one.to_dict() for one in flags],
        "details": {"logged_over_true": factor} if math.isfinite(factor) and factor > 0 else {},
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
