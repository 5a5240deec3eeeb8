"""The cells of a table as people type it: CSV or Markdown, with columns of any of their names.

A table has one value a line, in the columns value, metric and unit, or a column for each quantity,
whose heading says what it is: `Img/sec`, `step time (ms)`.
"""

import csv
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lockstep.report.load import table_units
from lockstep.report.load.table_units import DEVICES
from lockstep.vocabulary.system import files

# Each line's number in the file, and its cells by heading.
Lines = list[tuple[int, dict[str, str]]]
# Of the known columns, note is the first and what stands beside the table the last.
COLUMNS = (
    "note", "n", "value", "metric", "unit", "table_id", "scaling", "source", "global_batch",
    "local_batch", "steps", "samples", "precision", "model", "nodes", "ranks_per_node", "heading",
    "comments",
)  # fmt: skip
_COUNTED = "gpus?|devices|ranks|accelerators|cards|chips|gcds|[ntx]pus|processes|procs"
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
_TIME = re.compile(
    r"(?:(?:mean|avg|average|median|total|elapsed|wall|training|train|run) )*(?:(?P<of>step|"
    r"iteration|iter|epoch) time|time(?: ?(?:per|/) ?(?P<per>step|iteration|iter|epoch))?|runtime|"
    r"time to train) ?[(\[]?(?P<unit>[a-z:]*)[)\]]?"
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
_RULE = re.compile(r"\s*\|[\s|:]*-[\s|:-]*")


def read(path: Path) -> tuple[Lines, str]:
    """Return the lines of a table, and what stands beside it.

    It is UTF-8 with or without a mark, or Windows-1252.

    Raises:
        ValueError: The file is missing, empty or no table.
    """
    if path.is_dir() or not path.exists():
        why = "is a folder; give its tables one by one" if path.is_dir() else "does not exist"
        raise ValueError(f"{path}: cannot be read: it {why}")
    text = enumerate(io.StringIO(_decoded(files.content(path)), newline=""), start=1)
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
    return lines, comments


def _parted(text: list[tuple[int, str]]) -> tuple[list[tuple[int, str]], str]:
    """Return the lines of the table, with their numbers, and what stands beside it.

    In CSV that is what begins with #, but for headings right above a first line of numbers.
    """
    rows = [one for one in text if not one[1].startswith("#")]
    if rows and rows[0][1][0].isdigit():
        rows = [*[one for one in text if one[0] < rows[0][0]][-1:], *rows]
    if any(_RULE.fullmatch(line) for _, line in text):
        rows = [one for one in text if one[1].lstrip().startswith("|")]
        rows = [(i, f"{x.strip().strip('|')}\n") for i, x in rows if not _RULE.fullmatch(x)]
    kept = {number for number, _ in rows}
    return rows, " ; ".join(line.strip("# \r\n") for number, line in text if number not in kept)


def _decoded(content: bytes) -> str:
    """Return the text; what is not UTF-8 was written by a spreadsheet in Windows-1252."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def values(lines: Lines, comments: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each value of a table: its line, and its cells by the known names of their columns.

    Raises:
        ValueError: The table has no number of ranks, no value, or two columns for one thing.
    """
    named = _named(lines)
    found = {
        heading: said
        for heading in named.values()
        if heading not in COLUMNS and (said := _quantity(heading))
    }
    if "value" in named.values():
        found = {"value": {"metric": "", "unit": ""}}
    advice = "'throughput (samples/s)', or 'throughput (samples/s/GPU)' if it is of one GPU"
    needed = [] if found else [f"no column of values; name it {advice}"]
    if "n" not in named.values() and not {"nodes", "ranks_per_node"} <= {*named.values()}:
        needed.append("no column n for the number of ranks; name it n, or gpus")
    for heading, said in found.items():
        if any(not said[what] and what not in named.values() for what in said):
            name = f"'{heading} (s)'" if "time" in said["metric"] else advice
            needed.append(f"column {heading!r} does not say its unit; name it {name}")
    if needed:
        raise ValueError(f"{'; '.join(needed)}; a table needs n, value, metric and unit")
    metrics = [said["metric"] for said in found.values()]
    for number, line in lines:
        own = {named[heading]: cell for heading, cell in line.items()}
        beside = {name: cell for name, cell in own.items() if name not in found}
        for heading, said in found.items():
            more = {name: text for name, text in said.items() if text}
            if metrics.count(said["metric"]) > 1:
                more["table_id"] = f"{own.get('table_id', '')} {heading}".strip()
            more |= {"value": own[heading], "heading": heading, "comments": comments}
            yield number, beside | more


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
        is_count = alias != "n" or any(line[heading].isdecimal() for _, line in lines)
        if not alias or not is_count or alias in lowered.values():
            continue
        if alias in named.values() and alias != "note":
            other = next(one for one in named if named[one] == alias)
            raise ValueError(f"columns {other!r} and {heading!r} both give {alias}; keep one")
        named[heading] = alias
    return named


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
    with suppress(ValueError):
        found = table_units.parse(unit)
        if found.counts_steps and found.time:
            return {"metric": "step_time", "unit": unit}
        if _SAMPLES.fullmatch(found.counted) or found.counts_steps or (word and found.counted):
            return {"metric": "throughput", "unit": unit.strip(" ()[]") if word else unit}
    return None
