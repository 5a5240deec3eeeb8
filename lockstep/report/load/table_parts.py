"""Imported tables that hold several experiments, separated by a column of their own.

A column that no reader knows may name what was varied, `strategy` for one. Lines of one size that
differ in it are other experiments and no repeats, so each of its values is a table.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.core.factors import KNOWN

Line = Mapping[str, Any]

NUMBER = re.compile(r"[-+.\d]")
# Columns that tell repeats of one experiment apart, or say where a line is from.
OF_REPEATS = frozenset({
    "run", "run_id", "id", "name", "repeat", "rep", "trial", "seed", "launch", "job", "jobid",
    "job_id", "host", "hosts", "hostname", "node", "nodes", "nodename", "nodelist", "user", "file",
    "log", "status", "date", "time", "timestamp", "started", "commit",
    "locator", "url", "verified", "comment",
})  # fmt: skip


def split_table(name: str, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables that one is, by name: itself, or one for each value of what was varied."""
    lines: list[dict[str, Any]] = table["rows"]
    columns = [column for column in _columns(lines) if _is_varied(column, lines)]
    made: dict[str, dict[str, Any]] = {}
    for line in lines:
        values = ((column, line["details"].get(column)) for column in columns)
        own = " ".join([name, *(f"{column}={value}" for column, value in values if value)])
        made.setdefault(own, {**table, "rows": []})["rows"].append({**line, "case": own})
    return made


def _columns(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line["details"]))


def _is_varied(column: str, lines: Sequence[Line]) -> bool:
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
