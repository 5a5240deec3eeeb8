"""Tables of others as results: `lockstep import TABLE.csv --to DIR`.

A plain table has one line per value, a log of epochs one line per epoch. Imports are "cited", or
"target" if the table says that they are no measurement, and are never mixed with measured rows.
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
from lockstep.report.load.table_cells import COLUMNS

# Columns that distinguish repeats of one experiment, or name the source of a line.
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
# A whole cell or clause: "ideal", "ideal linear scaling", "extrapolated from 4".
IDEAL = re.compile(
    r"(?i)\W*((an?|the|linear(ly)?) )?((ideal|theoretical|perfect|expected|estimated?|simulated|"
    r"assumed|target|goal|not measured)(\W+(linear|scaling|speed-?up|value|rate|throughput|line|"
    r"peak|limit))*|(extrapolat|project|predict)(ed|ion)( (from|by) .*)?)\W*"
)
# Largest relative difference of a log's images/s from its epoch times, by rounding.
LOGGED_TOLERANCE = 0.2

# A row or the facts of a table, as in imported.json.
Record = dict[str, Any]


@dataclass
class Imported:
    """Tables by name, and messages for the user.

    Attributes:
        columns: File -> heading, meaning, unit, first cell as typed and as read of each column.
    """

    tables: dict[str, Record] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    columns: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)

    def add(self, base: str, row: Record, facts: Record, note: str = "") -> None:
        """Add a row to its table; a row of another metric or origin begins a new table.

        Raises:
            ValueError: Other values of the table were converted in another way.
        """
        metric, origin = facts["metric"], facts["origin"]
        for name in (base, f"{base} {metric}", f"{base} {metric} {origin}"):
            table = self.tables.setdefault(name, {**facts, "notes": [], "rows": []})
            if (table["metric"], table["origin"]) == (metric, origin):
                break
        if (mine := facts.get("conversion")) != (other := table.get("conversion")):
            conversions = " and ".join(str(each or "not converted") for each in (other, mine))
            raise ValueError(
                f"table {name} mixes units ({conversions}); write all of its values in one unit"
            )
        table["rows"].append(row | {"case": name})
        if note and note not in table["notes"]:
            table["notes"].append(note)


def built_in() -> dict[str, Path]:
    """Return the tables that ship with Lockstep, name -> file."""
    folder = content.ROOT / "reports" / "seeds"
    return {path.stem: path for path in sorted(folder.glob("*.csv"))}


def read(paths: Iterable[Path], dataset_size: int) -> Imported:
    """Read tables, and logs of epochs of `dataset_size` samples.

    Raises:
        ValueError: A file is missing or empty, or no line of it can be used.
    """
    imported = Imported()
    # Job -> the file of its first epoch, and its epochs, which may be in several files.
    jobs: dict[tuple[str, str, str], tuple[Path, list[dict[str, str]]]] = {}
    for path in paths:
        cells = table_cells.read(path)
        if not {*EPOCH_COLUMNS} <= {*cells.lines[0][1]}:
            _read_plain(path, cells, imported)
            continue
        for _, line in cells.lines:
            key = (line["jobid"], line["world_size"], line["global_batch"])
            jobs.setdefault(key, (path, []))[1].append(line)
    _split_experiments(imported)
    for name, table in imported.tables.items():
        sizes = {row["world_size"] for row in table["rows"]}
        batches = {row["local_batch"] for row in table["rows"]}
        is_open = not table["scaling_text"] and table["metric"] not in TIMES
        if is_open and len(sizes) > 1 and len(batches) == 1 and None not in batches:
            table["scaling"] = "weak"
            table["rows"] = [row | {"scaling": "weak"} for row in table["rows"]]
            imported.facts.append(
                f"table {name} is read as weak scaling, because all sizes have the same local_batch"
            )
    imported.facts += [
        f"table {name}: the throughput is computed as {table['conversion']}"
        for name, table in imported.tables.items()
        if "conversion" in table
    ]
    for path, job in jobs.values():
        try:
            job.sort(key=lambda line: _number(line["epoch"], "epoch"))
            if len({line["epoch"] for line in job}) < len(job):
                raise ValueError("the logs have an epoch twice; give each log file once")
            _read_job(path, job, dataset_size, imported)
        except ValueError as error:
            raise ValueError(f"{path}: job {job[0]['jobid']}: {error}") from error
    if not imported.tables:
        first_warning = f": {imported.warnings[0]}" if imported.warnings else ""
        raise ValueError(f"no line of the given tables can be imported{first_warning}")
    return imported


def write(imported: Imported, paths: Iterable[Path], folder: Path, force: bool = False) -> Path:
    """Write the tables to `folder/imported.json`; ValueError if it exists without `force`."""
    target = folder / IMPORTED
    if target.exists() and not force:
        raise ValueError(f"{target} exists; choose another folder or pass --force to replace it")
    document = {
        "schema": SCHEMA_VERSION,
        "kind": "imported",
        "sources": [
            {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in paths
        ],
        "warnings": imported.warnings,
        "tables": imported.tables,
    }
    files.write_atomically(target, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return target


def _split_experiments(imported: Imported) -> None:
    """Make a table of each value of an unknown column in which lines of one size differ.

    Such a column, for example `strategy`, names experiments, not repeats.
    """
    whole, imported.tables = imported.tables, {}
    for name, table in whole.items():
        lines = table["rows"]
        known = dict.fromkeys(column for line in lines for column in line["details"])
        columns = [column for column in known if _is_varied(column, lines)]
        parts: dict[str, Record] = {}
        for line in lines:
            values = ((column, line["details"].get(column)) for column in columns)
            own = " ".join([name, *(f"{column}={value}" for column, value in values if value)])
            parts.setdefault(own, {**table, "rows": []})["rows"].append({**line, "case": own})
        imported.tables |= parts
        if len(parts) > 1:
            split_tables = listed(parts)
            imported.facts.append(
                f"table {name} has several values at one size, so it is split into the tables "
                f"{split_tables}"
            )


def _is_varied(column: str, lines: Sequence[Record]) -> bool:
    """Tell whether lines of one size differ in a column that may name an experiment."""
    if column.lower() in OF_REPEATS:
        return False
    sizes: dict[tuple[Any, ...], set[str]] = {}
    for line in lines:
        size = line["world_size"], line.get("num_nodes")
        sizes.setdefault(size, set()).add(str(line["details"].get(column, "")))
    differing = [value for values in sizes.values() if len(values) > 1 for value in values]
    # A column of numbers may be a measurement, such as a loss, and name no experiment.
    are_texts = not any(re.match(r"[-+.\d]", value) for value in differing)
    return bool(differing) and (column.lower() in KNOWN or are_texts)


def _read_plain(path: Path, table: table_cells.Table, imported: Imported) -> None:
    try:
        imported.columns[str(path)], values = table_cells.values(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    unknown = set()
    for number, cells in values:
        name, scaling = cells.get("table_id") or path.stem, cells.get("scaling", "")
        try:
            row, facts = _plain_row(path, number, cells)
            imported.add(name, row, facts, cells.get("note", ""))
        except ValueError as error:
            imported.warnings.append(f"{path.name} line {number} is left out: {error}")
            continue
        is_known = row["scaling"] or row["study"] == "other" or not scaling
        if not is_known and scaling not in unknown:
            unknown.add(scaling)
            allowed = ", ".join(SCALINGS)
            imported.warnings.append(
                f"{path.name} line {number}: scaling {scaling!r} is read as unknown scaling; begin "
                f"this cell with one of {allowed}"
            )


def _plain_row(path: Path, number: int, cells: dict[str, str]) -> tuple[Record, Record]:
    """Return a line as a row, and the facts of its table."""
    text = cells.get("scaling", "")
    # "fixed batch per device and epochs" is neither weak nor strong.
    lowered = text.lower().replace("-", " ")
    scaling = next((s for s in SCALINGS if lowered.startswith(s.replace("-", " "))), None)
    clauses = [*re.split(r"[;,.:(]\s*", cells.get("note", "")), cells.get("table_id", "")]
    clauses += [cell for name, cell in cells.items() if name not in COLUMNS]
    sources = f"{cells.get('note', '')} {cells.get('source', '')}"
    is_target = NOT_MEASURED.search(sources) or any(map(IDEAL.fullmatch, clauses))
    nodes, per_node = _count(cells, "nodes"), _count(cells, "ranks_per_node")
    size = _whole(cells["n"], "n") if "n" in cells else (nodes or 0) * (per_node or 0)
    if nodes and per_node and size != nodes * per_node:
        raise ValueError(
            f"column n is {size}, but the line has {nodes} nodes with {per_node} ranks each; "
            "correct one of these columns"
        )
    row: Record = {
        "launch": f"line {number}",
        # If n counts workers or processors, device-hours have no meaning.
        "study": "other" if "instead of" in text else "imported",
        "workload": cells.get("model") or cells.get("table_id") or path.stem,
        "world_size": _whole(str(size), "n"),
        "scaling": scaling,
        "precision": cells.get("precision") or None,
        "num_nodes": nodes,
        "local_batch": _count(cells, "local_batch"),
        "global_batch": _count(cells, "global_batch"),
        "origin": "target" if is_target else "cited",
    }
    quantities, facts = _quantities(row, cells)
    row |= quantities
    row["details"] = {k: v for k, v in cells.items() if k not in COLUMNS and v}
    return row, facts | {
        "origin": row["origin"], "scaling": scaling, "scaling_text": text,
        "source": cells.get("source", ""), "model": cells.get("model", ""), "file": path.name,
    }  # fmt: skip


def _quantities(row: Record, cells: dict[str, str]) -> tuple[Record, Record]:
    """Return a line's rate, times and samples, and its metric, unit and conversion."""
    metric, unit = cells.get("metric", "").lower(), cells.get("unit", "")
    if table_cells.PART.sub("", metric.replace("_", " ")).strip(" -()") == "throughput":
        if "relative" not in unit:
            return _from_rate(row, cells)
        sample = unit.split("/s")[0].split(" per ")[0]
        relative = {"rate": _positive(cells["value"], "value"), "sample_unit": sample}
        return relative, {"metric": "throughput", "unit": unit}
    if metric not in TIMES and not metric.startswith("step_time"):
        allowed = ", ".join(TIMES)
        raise ValueError(
            f"metric {metric!r} is unknown; write throughput, step_time or one of {allowed}"
        )
    parsed = table_cells.Unit()
    with suppress(ValueError):
        parsed = table_cells.parse(unit)
    if not parsed.time:
        allowed = ", ".join(TIME_UNITS)
        raise ValueError(f"unit {unit!r} is not a unit of time; write one of {allowed}")
    clock, text = formats.parse_duration(cells["value"]), cells["value"]
    if clock is None:
        seconds = _positive(text, "value") * TIME_UNITS[parsed.time]
    elif text.count(":") == 1 and TIME_UNITS[parsed.time] > TIME_UNITS["min"]:
        raise ValueError(f"value {text!r} may be h:mm or mm:ss; write h:mm:ss")
    else:
        seconds = _positive(str(clock), "value")
    of_run = metric in TIMES and parsed.of != "step"
    known = _from_time(seconds, row, cells) if of_run else _from_step(seconds, row)
    return known, {"metric": metric, "unit": parsed.time}


def _from_rate(row: Record, cells: dict[str, str]) -> tuple[Record, Record]:
    """Return a throughput of all ranks in samples/s, from the rate of steps or of one rank."""
    unit, value = cells["unit"], _positive(cells["value"], "value")
    parsed = table_cells.parse(unit)
    whose = parsed.whose or table_cells.part(f"{cells['metric']} ; {cells['heading']}")
    if not whose:
        notes = [cell for name, cell in cells.items() if name not in COLUMNS[1:-1]]
        whose = table_cells.part_of_rates(" ; ".join(notes))
    if parsed.of == "step":
        if not (row["local_batch"] or (row["global_batch"] and not whose)):
            needed = "local_batch" if whose else "global_batch, or local_batch"
            raise ValueError(
                f"unit {unit!r} counts steps; add a column {needed} with the samples of a step"
            )
        step_s = value * TIME_UNITS[parsed.time] if parsed.time else 1 / (value * parsed.factor)
        facts = {"unit": "samples/s", "conversion": f"{unit} x batch of all ranks"}
        return _from_step(step_s, row), {"metric": "throughput"} | facts
    if parsed.time:
        raise ValueError(
            f"unit {unit!r} is a time, but a throughput needs a unit such as samples/s"
        )
    facts, rate = {"metric": "throughput", "unit": unit}, f"{parsed.counted}/s"
    if parsed.factor != 1:
        value *= parsed.factor
        facts |= {"unit": rate, "conversion": f"{unit} converted to {rate}"}
    if whose:
        count = row["world_size"] if whose == "device" else row["num_nodes"]
        if count is None:
            raise ValueError(
                "the throughput is per node; add a column nodes with the number of nodes"
            )
        value *= count
        own_rate, device_or_node = rate if parsed.factor == 1 else unit, whose
        facts |= {
            "unit": rate,
            "conversion": f"{own_rate} of one {device_or_node} x number of {device_or_node}s",
        }
    known = {"rate": value, "sample_unit": parsed.counted, "throughput_samples_per_s": value}
    return known, facts


def _from_time(seconds: float, row: Record, cells: dict[str, str]) -> Record:
    """Return a run's time, and its step time if the number of steps is known."""
    work = row["world_size"] if row["scaling"] == "weak" else 1
    steps, samples, batch = _count(cells, "steps"), _count(cells, "samples"), row["global_batch"]
    if steps and batch and not samples:
        samples = steps * batch
    step_s = seconds / steps if steps else None
    if not steps and samples and batch:
        step_s = seconds * batch / samples
    known: Record = {"time_s": seconds, "rate": work / seconds, "step_s": step_s}
    if samples:
        known |= {"throughput_samples_per_s": samples / seconds, "sample_unit": "samples"}
    return known


def _from_step(seconds: float, row: Record) -> Record:
    if batch := row["global_batch"] or (row["local_batch"] or 0) * row["world_size"]:
        rate = batch / seconds
        return {
            "step_s": seconds, "rate": rate, "throughput_samples_per_s": rate,
            "sample_unit": "samples", "samples_per_step": batch,
        }  # fmt: skip
    if row["scaling"] is None:
        raise ValueError(
            "a table of step times needs a column global_batch or scaling, for example a header "
            f"and a line: n,step time (s),global_batch / {row['world_size']},{seconds:g},1024"
        )
    work = 1 if row["scaling"] == "strong" else row["world_size"]
    return {"step_s": seconds, "rate": work / seconds}


def _read_job(path: Path, job: list[dict[str, str]], dataset_size: int, imported: Imported) -> None:
    """Add a job: the mean of its epochs after the first, which is the warm-up."""
    first, timed = job[0], job[1:] or job
    times = [_positive(line["epoch_time_s"], "epoch_time_s") for line in timed]
    mean_s = sum(times) / len(times)
    size, batch = _whole(first["world_size"], "world_size"), _whole(first["global_batch"], "batch")
    # Logged images/s / images/s by the epoch times.
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
        "flags": [each.to_dict() for each in flags],
        "details": {"logged_over_true": factor} if math.isfinite(factor) and factor > 0 else {},
    }  # fmt: skip
    facts = {
        "metric": "epoch_time", "unit": "s", "origin": "cited", "scaling": "fixed-epochs",
        "scaling_text": "epochs and local batch are fixed", "source": "log of epochs",
        "file": path.name,
    }  # fmt: skip
    imported.add(name, row, facts)
    ranks, epochs = counted(size, "rank"), counted(len(timed), "epoch")
    imported.facts.append(
        f"job {first['jobid']}: {rate:.0f} images/s on {ranks}, the mean over {epochs} of "
        f"{dataset_size} images each"
    )
    imported.warnings += [f"{path.name}: job {first['jobid']}: {each}" for each in flags]


def _count(cells: Mapping[str, str], name: str) -> int | None:
    """Return the whole number above 0 in a cell; None if the cell is empty or missing."""
    return _whole(cells[name], name) if cells.get(name) else None


def _whole(cell: str, name: str) -> int:
    value = _positive(cell, name)
    if value != int(value):
        raise ValueError(f"column {name} has {cell!r}, which is not a whole number")
    return int(value)


def _positive(cell: str, name: str) -> float:
    value = _number(cell, name)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"column {name} has {cell!r}, which is not a positive number")
    return value


def _number(cell: str, name: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"column {name} has {cell!r}, which is not a number") from None
