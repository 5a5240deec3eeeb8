"""The cells of a table as people type it: CSV or Markdown, with columns of any of their names.

A table has one value a line, in the columns value, metric and unit, or a column for each quantity,
whose heading says what it is: `Img/sec`, `step time (ms)`.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from lockstep.core import files
from lockstep.core.formats import visible
from lockstep.report.load import table_numbers, table_units
from lockstep.report.load.table_units import DEVICES, THOUSANDS

# Each line's number in the file, and its cells by heading.
Lines = list[tuple[int, dict[str, str]]]


class Table(NamedTuple):
    """The lines of a table, what stands beside it, and the sign between its cells."""

    lines: Lines
    comments: str
    sign: str


class Understood(NamedTuple):
    """How a column is read: what it is, its unit, and its first cell as typed and as read."""

    heading: str
    meaning: str
    unit: str
    typed: str
    read: str


# Of the known columns, note is the first and what stands beside the table the last.
COLUMNS = (
    "note", "n", "value", "metric", "unit", "table_id", "scaling", "source", "global_batch",
    "local_batch", "steps", "samples", "precision", "model", "nodes", "ranks_per_node", "heading",
    "comments",
)  # fmt: skip
# The known columns whose cells are numbers.
COUNTS = ("n", "nodes", "ranks_per_node", "global_batch", "local_batch", "steps", "samples")
_COUNTED = "gpus?|devices|ranks|accelerators|cards|chips|gcds|[ntx]pus?|processes|n?procs?|np"
# The other names of columns, blanks and signs of the headings as _.
_NAMES = {
    "n": rf"world_size|{_COUNTED}|((num|number|n|no|count)_?(of_)?|of_)({_COUNTED})|"
    rf"({_COUNTED})_(count|num|number)",
    "nodes": "(num|number|n|no|count)_?(of_)?nodes|nodes?_(num|count)",
    "ranks_per_node": rf"(num_|n_)?({DEVICES}|ntasks|nproc|tasks)(_num|_count)?_(per_)?node",
    "local_batch": rf"batch(_?size)?_(per_)?({DEVICES})|"
    rf"(local|per_({DEVICES}))_(train_)?batch(_?size)?",
    "global_batch": "(global|total)_(train_)?batch(_?size)?|gbs",
    "note": "notes|comments?|remarks?",
}
_PART = "step|iteration|iter|batch|epoch"
_TIME = re.compile(
    r"(?:(?:mean|avg|average|median|total|elapsed|wall|training|train|run) )*(?:"
    rf"(?P<of>{_PART}) (?:time|duration|(?=[(\[]))|time(?: ?(?:per|/) ?(?P<per>{_PART}))?|runtime|"
    r"duration|time to train) ?[(\[]?(?P<unit>[a-z:]*)[)\]]?"
)
_RATE = re.compile(
    r"(?i)(?:(?:training|train|mean|avg|average|per[ -]\w+) )*(throughput|value|speed)\b[ :,]*(.*)"
)
_SAMPLES = re.compile(
    r"(?i)(?:(?:[kmgtpe]|train\w*|mean|avg) ?)?(?:ima?ge?s?|samples?|tok(?:en)?s?|seq(?:uence)?s?|"
    r"sentences?|examples?|frames?|records?|rows|words|queries|videos|graphs|events|flops?)"
)
_NOT_MEASURED = re.compile(r"(?i)\b(?:ideal|linear|theoretical|expected|target)\b")
# Below the header of a Markdown table.
_RULE = re.compile(r"(?=.*\|)[\s|:]*-[\s|:-]*")
_IN_BRACKETS = re.compile(r"(.+?) ?[(\[]([^()\[\]]+)[)\]]")


def read(path: Path) -> Table:
    """Return a table, which is UTF-8 with or without a mark, or Windows-1252.

    Raises:
        ValueError: The file is missing, empty or no table.
    """
    if path.is_dir() or not path.exists():
        why = "is a folder; give its tables one by one" if path.is_dir() else "does not exist"
        raise ValueError(f"{path}: cannot be read: it {why}")
    text = enumerate(io.StringIO(visible(_decoded(files.content(path))), newline=""), start=1)
    rows, comments = _parted([(number, line) for number, line in text if line.strip()])
    sign = max(",;\t|", key=rows[0][1].count) if rows else ","
    reader = csv.DictReader((line for _, line in rows), delimiter=sign)
    lines = []
    try:
        for cells in reader:
            named = {k.strip(" #*"): (v or "").strip(" *") for k, v in cells.items() if k}
            lines.append((rows[reader.line_num - 1][0], named))
    except csv.Error as error:
        raise ValueError(f"{path}: not CSV after line {reader.line_num}: {error}") from None
    if not lines:
        raise ValueError(f"{path}: the table is empty; it needs a header and at least one line")
    return Table(lines, comments, sign)


def _parted(text: list[tuple[int, str]]) -> tuple[list[tuple[int, str]], str]:
    """Return the lines of the table, with their numbers, and what stands beside it.

    In CSV that is what begins with #, but for headings right above a first line of numbers.
    """
    rows = [one for one in text if not one[1].startswith("#")]
    if rows and rows[0][1][0].isdigit():
        rows = [*[one for one in text if one[0] < rows[0][0]][-1:], *rows]
    if any(_RULE.fullmatch(line) for _, line in text):
        rows = [one for one in text if "|" in one[1]]
        rows = [(i, f"{x.strip().strip('|')}\n") for i, x in rows if not _RULE.fullmatch(x)]
    kept = {number for number, _ in rows}
    return rows, " ; ".join(line.strip("# \r\n") for number, line in text if number not in kept)


def _decoded(content: bytes) -> str:
    """Return the text; what is not UTF-8 was written by a spreadsheet in Windows-1252."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def values(table: Table) -> tuple[list[Understood], list[tuple[int, dict[str, str]]]]:
    """Return how the columns are read, and each value: its line, and its cells by known names.

    Raises:
        ValueError: The table has no number of ranks, no value, two columns for one thing, or a
            number that may be read in two ways.
    """
    lines, named = table.lines, _named(table.lines)
    found = _quantities(lines, named)
    typed = [line for _, line in lines]
    lines = _plain(table, named, found)
    _refuse_open(table, named, found, lines)
    metrics = [said["metric"] for said in found.values()]
    made = []
    for number, line in lines:
        own = {named.get(heading, heading): cell for heading, cell in line.items()}
        beside = {name: cell for name, cell in own.items() if name not in found}
        for heading, said in found.items():
            unit = own.get(f"{heading}\n", "")  # of the cell
            unit = unit or ("s" if ":" in own[heading] and not said["unit"] else "")
            more = {name: text for name, text in said.items() if text}
            more |= {"unit": unit} if unit else {}
            if metrics.count(said["metric"]) > 1:
                more["table_id"] = f"{own.get('table_id', '')} {heading}".strip()
            more |= {"value": own[heading], "heading": heading, "comments": table.comments}
            made.append((number, _without_units(beside) | more))
    columns = [_understood(one, named, found, typed[0], lines[0][1]) for one in typed[0]]
    return columns, made


def _quantities(lines: Lines, named: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the columns of values, with the metric and the unit that their headings say.

    A column that no heading explains is one where all its cells have the unit of a time or rate.
    """
    if "value" in named.values():
        return {"value": {"metric": "", "unit": ""}}
    found = {}
    for heading, name in named.items():
        if name in COLUMNS:
            continue
        if said := _quantity(heading) or _quantity_of_cells(
            heading, [line[heading] for _, line in lines]
        ):
            found[heading] = said
    return found


def _quantity_of_cells(heading: str, cells: Sequence[str]) -> dict[str, str] | None:
    """Return what the units of a column's cells say that it is; None where one has none."""
    units = {(cell := table_numbers.split(text)) and cell.unit for text in cells if text}
    if len(units) != 1 or not (unit := units.pop()):
        return None
    if unit in table_units.TIMES:
        said = _quantity(f"{heading} time") or _quantity("time")
    else:
        said = _quantity(unit)
    return said and said | {"unit": ""}


def _plain(table: Table, named: Mapping[str, str], found: Mapping[str, dict[str, str]]) -> Lines:
    """Return the lines with numbers as Python writes them; a value's unit stands apart.

    Raises:
        ValueError: A number may be read in two ways, and no other one decides which.
    """
    count_columns = [one for one, name in named.items() if name in COUNTS]
    columns = [*count_columns, *(one for one, name in named.items() if name in found)]
    cells = {
        one: {line[one]: table_numbers.split(line[one]) for _, line in table.lines}
        for one in columns
    }
    numbers = {one: [c.number for c in by_text.values() if c] for one, by_text in cells.items()}
    everywhere = table_numbers.proven_marks(n for column in numbers.values() for n in column)
    marks = {}
    for heading, column in numbers.items():
        marks[heading], two = table_numbers.decimal_mark(column, everywhere, table.sign)
        if two:
            readings = " or ".join(sorted(table_numbers.readings(two).values(), key=float)[::-1])
            raise ValueError(
                f"column {heading!r}: {two!r} may be {readings}; write {readings} in its place"
            )
    made = []
    for number, line in table.lines:
        own = dict(line)
        for heading, by_text in cells.items():
            cell = by_text[line[heading]]
            if named[heading] == "n":
                own |= _counted(line[heading], marks[heading], named, heading)
            elif cell and (read := table_numbers.readings(cell.number).get(marks[heading])):
                own[heading] = read
            if cell and heading not in count_columns:
                own[heading] = own[heading] if own[heading] != line[heading] else cell.number
                own[f"{heading}\n"] = cell.unit
                is_rate = "time" not in found[named[heading]]["metric"]
                if is_rate and (factor := THOUSANDS.get(cell.unit)):
                    own |= {heading: f"{float(own[heading]) * factor:.12g}", f"{heading}\n": ""}
        made.append((number, own))
    return made


def _counted(text: str, mark: str, named: Mapping[str, str], heading: str) -> dict[str, str]:
    """Return the cells that a count of ranks fills, those of the table's own columns left out."""
    found = table_numbers.count(text, mark)
    kept = {name: cell for name, cell in found.items() if name not in named.values()}
    return kept | ({heading: found["n"]} if "n" in found else {heading: ""})


def _without_units(cells: Mapping[str, str]) -> dict[str, str]:
    return {name: cell for name, cell in cells.items() if not name.endswith("\n") and cell != ""}


def _refuse_open(
    table: Table, named: Mapping[str, str], found: Mapping[str, dict[str, str]], lines: Lines
) -> None:
    """Refuse a table that does not say its ranks, its values or their unit, with what to write."""
    first, heads = table.lines[0][1], {one: one for one in table.lines[0][1]}
    advice = "'throughput (samples/s)', or 'throughput (samples/s/GPU)' if it is of one GPU"
    needed = [] if found else [f"no column of values; name it {advice}, or 'step time (ms)'"]
    if not found and (other := next((one for one in heads if named[one] == one), "")):
        heads[other] = "throughput (samples/s)"
    if "n" not in named.values() and not {"nodes", "ranks_per_node"} <= {*named.values()}:
        needed.append("no column n for the number of ranks; name it n, or gpus")
        heads = {"": "n"} | heads
    for heading, said in found.items():
        is_time = "time" in said["metric"]
        column = [(line[heading], line.get(f"{heading}\n")) for _, line in lines]
        has_units = all(unit or (is_time and cell.count(":") > 1) for cell, unit in column)
        if is_time and not said["unit"] and not has_units and all(":" in c for c, _ in column):
            if any(cell.count(":") > 1 for cell, _ in column):
                continue
            cell = column[0][0]
            needed.append(f"column {heading!r}: {cell!r} may be mm:ss or h:mm; write h:mm:ss")
        elif any(not said[what] and what not in named.values() for what in said) and not has_units:
            name = f"'{heading} (s)'" if is_time else advice
            needed.append(f"column {heading!r} does not say its unit; name it {name}")
            heads[heading] = f"{heading} (s)" if is_time else "throughput (samples/s)"
    if needed:
        cells = [first.get(one, "8") for one in heads]
        example = f"{table.sign.join(heads.values())} / {table.sign.join(cells)}"
        raise ValueError(
            f"{'; '.join(needed)}; a table needs n, value, metric and unit, for example: {example}"
        )


def _understood(
    heading: str,
    named: Mapping[str, str],
    found: Mapping[str, dict[str, str]],
    typed: Mapping[str, str],
    line: Mapping[str, str],
) -> Understood:
    """Return how a column is read."""
    name = named[heading]
    said = found.get(heading)
    unit = (said["unit"] or line.get(f"{heading}\n", "")) if said else ""
    meaning = (said["metric"] or "value") if said else name if name in COLUMNS else "kept as it is"
    of_nodes = f"{line.get('nodes')} x {line.get('ranks_per_node')}" if name == "n" else ""
    return Understood(heading, meaning, unit, typed[heading], line[heading] or of_nodes)


def _named(lines: Lines) -> dict[str, str]:
    """Return the known name of each heading, else the heading.

    Raises:
        ValueError: Two give one thing, and neither by its known name.
    """
    lowered = {heading: heading.lower() for heading in lines[0][1]}
    named = {one: low if low in COLUMNS else one for one, low in lowered.items()}
    for heading in lowered:
        plain = re.sub(r"[^a-z0-9]+", "_", lowered[heading]).strip("_")
        alias = next((name for name, others in _NAMES.items() if re.fullmatch(others, plain)), "")
        cells = [line[heading] for _, line in lines if line[heading]]
        is_count = alias != "n" or any(map(table_numbers.may_be_ranks, cells))
        if not alias or not is_count or alias in lowered.values():
            continue
        if alias in named.values() and alias != "note":
            other = next(one for one in named if named[one] == alias)
            raise ValueError(f"columns {other!r} and {heading!r} both give {alias}; keep one")
        named[heading] = alias
    if "n" not in named.values():
        named |= dict.fromkeys(islice(filter(lambda one: _says_ranks(lines, one), named), 1), "n")
    return named


def _says_ranks(lines: Lines, heading: str) -> bool:
    """Return whether a column's cells say that they are ranks, or numbers of the GPU it names."""
    cells = [line[heading] for _, line in lines if line[heading]]
    says = table_numbers.may_be_ranks if table_numbers.is_gpu(heading) else table_numbers.says_ranks
    return bool(cells) and all(map(says, cells))


def _quantity(heading: str) -> dict[str, str] | None:
    """Return the metric and unit of a column of values, the unit empty where it is not said."""
    plain = " ".join(heading.replace("_", " ").split())
    if _NOT_MEASURED.search(plain):
        return None
    if match := _TIME.fullmatch(plain.lower()):
        of = {"epoch": "epoch_time", "": "time"}.get(match["of"] or match["per"] or "", "step_time")
        return {"metric": of, "unit": match["unit"]}
    word, unit = match.groups() if (match := _RATE.fullmatch(plain)) else ("", plain)
    if word and not table_units.PART.sub("", unit).strip(" ()[]"):
        metric = {"value": "", "throughput": "throughput"}.get(word.lower())
        return None if metric is None else {"metric": metric, "unit": ""}
    if not word and (named := _IN_BRACKETS.fullmatch(plain)) and "/" in named[2]:
        return said if (said := _quantity(named[2])) and said["metric"] == "throughput" else None
    with suppress(ValueError):
        found = table_units.parse(unit)
        if found.time and (found.of or len(unit) > len("min")):
            metric = {"step": "step_time", "epoch": "epoch_time"}.get(found.of, "time")
            return {"metric": metric, "unit": unit}
        if _SAMPLES.fullmatch(found.counted) or found.of or (word and found.counted):
            return {"metric": "throughput", "unit": unit.strip(" ()[]") if word else unit}
    return None
