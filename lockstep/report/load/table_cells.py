"""The cells of a table as people type it: its columns, their units, and numbers such as `1,226.38`.

A CSV or Markdown table has the columns value, metric and unit, or a column for each quantity, whose
heading names quantity and unit: `Img/sec`, `step time (ms)`.
"""

import csv
import io
import operator
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from lockstep.core import files
from lockstep.core.formats import TIME_UNITS, visible

Whose = Literal["", "device", "node"]
Of = Literal["", "step", "epoch", "run"]
DEVICES = (
    "gpus?|devices?|ranks?|workers?|accelerators?|cards?|chips?|gcds?|[ntx]pus?|process(?:es)?|"
    "procs?"
)
NODES = "nodes?|hosts?|servers?|machines?"
# Other spellings of the units of time.
TIMES = {name: name for name in TIME_UNITS} | {
    **dict.fromkeys(("secs", "second", "seconds", '"', "\u2033"), "s"),
    **dict.fromkeys(("msec", "msecs", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("\u00b5s", "\u03bcs", "usec", "microseconds"), "us"),
    **dict.fromkeys(("m", "mins", "minute", "minutes", "'", "\u2032", "mm:ss"), "min"),
    **dict.fromkeys(("hr", "hrs", "hour", "h:mm", "hh:mm", "h:mm:ss", "hh:mm:ss"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}
_SHORT = {
    "tps": "tokens/s", "tgs": "tokens/s/gpu", "ips": "images/s", "fps": "frames/s",
    "sps": "samples/s", "qps": "queries/s", "wps": "words/s", "ups": "updates/s",
}  # fmt: skip
_NOUNS = {
    **dict.fromkeys(("img", "imgs", "image"), "images"), "sample": "samples", "seq": "sequences",
    **dict.fromkeys(("tok", "toks", "token"), "tokens"),
}  # fmt: skip
SAMPLES = (
    r"(?i:ima?ge?s?|samples?|tok(?:en)?s?|seq(?:uence)?s?|sentences?|examples?|frames?|records?|"
    r"rows|words|queries|videos|graphs|events|epochs?)"
)
_PREFIX = re.compile(rf"(k|K|M|G|thousands?|millions?)[ -]?(?:of )?({SAMPLES})")
# Endings of a number whose heading has the unit.
THOUSANDS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_STEPS = re.compile(
    r"(?i)(?:(?:train\w*|optimi[sz]er|global) )?"
    r"(?:its?|iter(?:ation)?s?|steps?|(?:mini[- ]?)?batch(?:es)?|updates?)"
)
_OF_ALL = re.compile(
    r"(?i)\b(?:total|aggregated?|overall|combined|summed)\b|"
    rf"\b(?:(?:of|over|across|on|for|from) )?all (?:{DEVICES}|{NODES})\b"
)
PART = re.compile(
    rf"(?i)(?:\b(?:per|each|of (?:one|a single))\b|/)[\s_(-]*(?:(?P<device>{DEVICES})|{NODES})"
    r"(?![a-z0-9])"
)
# Words that make a unit unclear: numbers, devices, steps.
_UNCLEAR = re.compile(
    rf"(?i)[*\u00b7\u00d7^\d]|\b(?:{DEVICES}|{NODES}|its?|iter\w*|steps?|updates?)\b|batch"
)
# A clause of a note about rates, and words for other things that may be "per GPU".
_SAYS_RATE = re.compile(
    r"\b(?:throughputs?|rates?|speeds?|values|numbers|figures|results|seconds?|sec|s|tps|fps)\b"
    r"|^\W*(?:(?:given|reported|measured|normali[sz]ed|is|are|in|all)\W+)*(?:per|each)\W+\w+\W*$"
)
_SAYS_OTHER = re.compile(
    rf"batch|memory|threads?\b|cores?\b|load|learning|[gm]i?b\b|\b(?:{DEVICES}|workers?) per\b|"
    r"\d[\w\s]*(?:per\b|/)|\bn?\s*[x\u00d7]\s|times|multipl|total|sum|aggregate"
)


class Unit(NamedTuple):
    """A unit of a time or a rate.

    Attributes:
        counted: Items that a rate counts; empty for a time.
        time: A key of `TIME_UNITS` for a time; empty for a rate.
        whose: `device` or `node` if the rate is of one; empty for all ranks.
        of: "step" for a rate of steps; "step", "epoch" or "run" for the time of one; else empty.
        factor: Factor from the counted items, such as thousands, to samples.
    """

    counted: str = ""
    time: str = ""
    whose: Whose = ""
    of: Of = ""
    factor: float = 1.0


def parse(text: str) -> Unit:
    """Parse a unit; ValueError if it is neither a time nor a rate, or has an unknown word."""
    counted, *below = _divided(_OF_ALL.sub(" ", text.replace("_", " ")))
    is_step = bool(_STEPS.fullmatch(counted))
    if counted.lower() in TIMES and len(below) < 2:
        of: Of = "epoch" if below == ["epoch"] else "run" if below == ["run"] else ""
        of = "step" if below and _STEPS.fullmatch(below[0]) else of
        if of or not below:
            return Unit(time=TIMES[counted.lower()], of=of)
    times = [TIMES[word] for word in below if word in TIMES]
    others = [word for word in below if word not in TIMES]
    whose = part("".join(f"/{word}" for word in others))
    is_known = len(times) == 1 and len(others) == bool(whose)
    is_clear = counted and counted.lower() not in TIMES and not _UNCLEAR.search(counted)
    if not (is_known and (is_clear or is_step)):
        raise ValueError(
            f"unit {text!r} is not understood; write samples/s for the rate of all ranks, "
            "samples/s/GPU for the rate of one GPU, or it/s and add a column global_batch"
        )
    factor = 1 / TIME_UNITS[times[0]]
    if prefixed := _PREFIX.fullmatch(counted):
        factor, counted = factor * {**THOUSANDS, "t": 1e3, "m": 1e6}[prefixed[1][0]], prefixed[2]
    counted = _NOUNS.get(counted.lower(), counted)
    return Unit(counted, "", whose, "step" if is_step else "", factor)


def _divided(text: str) -> list[str]:
    """Return the parts of a unit between its slashes, in lower case from the second on."""
    plain = re.sub(r"(?i)[\s\u00b7*]*\b([a-z]+) ?(?:\^? ?[-\u2212]1\b|\u207b\u00b9)", r"/\1", text)
    plain = re.sub(r"/\s*\(([^)]*)\)", lambda m: "/" + re.sub(r"[\s\u00b7*]+", "/", m[1]), plain)
    # Brackets that are no part of the unit, such as (fp16), are removed.
    part_of_it = rf"/|\bper\b|\beach\b|\b(?:{DEVICES}|{NODES})\b"
    plain = re.sub(rf"(?i)[(\[](?![^)\]]*(?:{part_of_it}))[^)\]]*[)\]]", " ", plain)
    plain = re.sub(r"(?i)[\s-]*\b(?:per|each)\b[\s-]*", "/", re.sub(r"[()\[\],]", " ", plain))
    if first := re.match(rf"(?i)\s*/ *({DEVICES}|{NODES})\b[-\s]+(?=\w)", plain):
        plain = f"{plain[first.end() :]}/{first[1]}"
    top, *below = (" ".join(piece.split()) for piece in plain.split("/"))
    below = [piece.lower() for piece in below]
    if not {*below} & {*TIMES}:
        top = re.sub(r"(?i)^([kmgtpe]?flop)s$", r"\1/s", top)
    top, *implied = _SHORT.get(top.lower(), top).split("/")
    return [top, *implied, *below]


def part(text: str) -> Whose:
    """Return which of "per GPU" and "per node" a text has; ValueError if it has both."""
    kinds: set[Whose] = {
        "device" if match["device"] else "node" for match in PART.finditer(text.replace("_", " "))
    }
    if len(kinds) > 1:
        raise ValueError(
            f"the text {text!r} names both one device and one node; write the value of all ranks "
            "instead"
        )
    return next(iter(kinds), "")


def part_of_rates(note: str) -> Whose:
    """Return `part` of the clauses of a note that are about rates."""
    clauses = re.split(r"[.;,](?:\s|$)", note.lower())
    return part(
        " ; ".join(c for c in clauses if _SAYS_RATE.search(c) and not _SAYS_OTHER.search(c))
    )


# Separators of thousands that are never decimal marks.
_SPACE = "[ _'\u2019\u00a0\u2009\u202f]"
_NUMBER = (
    rf"[-+]?(?:[0-9]{{1,3}}(?:{_SPACE}[0-9]{{3}})+(?![0-9])|[0-9]+|(?=[.,][0-9]))"
    r"(?:[.,][0-9]+)*(?:[eE][-+]?[0-9]+)?"
)
_CELL = re.compile(
    rf"[~\u2248]?\s*(?P<number>{_NUMBER})\s*(?:\(?(?:\u00b1|\+/?-)\s*{_NUMBER}\s*%?\)?)?\s*"
    rf"(?P<unit>[^\s(0-9.,:][^(]*?(?:\((?![0-9.])[^)]*\))?)?"
    rf"\s*(?:\({_NUMBER}\s*[x\u00d7]\))?"
)
_CLOCK = re.compile(
    r"(?:(?:\d+-)?\d+:(?=[0-5]?\d:))?\d+:[0-5]?\d(?:\.\d+)?(?=(?P<unit>\s*[a-z:()]*))(?P=unit)",
    re.A,
)
_PIECE = r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+|['\"\u2032\u2033]) ?(?:, ?|and )?"
# Names of GPUs, which contain digits, and words that accompany them.
_GPU = (
    r"(?:a10|a30|a40|a100|a800|h20|h100|h200|h800|v100|p100|t4|l4|l40s?|k80|b[123]00|g[bh]200|"
    r"mi\d{3}\w?|rtx ?\w+)s?"
)
_MODEL = rf"(?:nvidia|amd|tesla|geforce|{_GPU}|\d+ ?gi?b|sxm\d?|pcie|nvlink|-)"
_COUNT = re.compile(
    rf"(?i)(?:(?:{_MODEL} ?)+[x*\u00d7] ?)?(?:(?P<nodes>\d+) ?(?P<of>(?:{NODES}) ?)?[x*\u00d7] ?)?"
    rf"(?P<n>{_NUMBER})(?![0-9]) ?[x*\u00d7]? ?"
    rf"(?P<model>{_MODEL} ?)*(?P<device>{DEVICES})?(?P<per> ?(?:/|per |on each )(?:{NODES}))?"
    rf"(?: ?(?:\(|on |, ?)(?P<on>\d+) (?:{NODES})\)?)?"
)


class Cell(NamedTuple):
    """A value as typed: the number without its unit, or a clock, or a sum of times."""

    number: str
    unit: str = ""


def split(text: str) -> Cell | None:
    """Return the value in a cell; None if it is neither a number nor a time.

    A clock keeps its colons; `1 h 30 min` becomes 5400 s.
    """
    if clock := _CLOCK.fullmatch(text.lower()):
        return Cell(text[: clock.start("unit")].strip(), clock["unit"].strip("()"))
    if re.fullmatch(rf"(?:{_PIECE}){{2,}}", text.lower()):
        pieces = [(float(n), TIMES.get(unit)) for n, unit in re.findall(_PIECE, text.lower())]
        if all(unit for _, unit in pieces):
            return Cell(f"{sum(n * TIME_UNITS[unit] for n, unit in pieces if unit):.12g}", "s")
    match = _CELL.fullmatch(text)
    return match and Cell(match["number"], (match["unit"] or "").strip())


def number_readings(number: str) -> dict[str, str]:
    """Return decimal mark -> the number as Python writes it, for each mark that fits.

    `3,5` has one reading, `1,234` has two, and 938 the same one with either mark.
    """
    plain, readings = re.sub(rf"(?<=\d){_SPACE}(?=\d)", "", number), {}
    for mark, other in (".,", ",."):
        whole = rf"(?:\d*|[1-9]\d{{0,2}}(?:\{other}\d{{3}})+)"
        if re.fullmatch(rf"[-+]?{whole}(?:\{mark}\d+)?(?:[eE][-+]?\d+)?", plain):
            readings[mark] = plain.replace(other, "").replace(mark, ".")
    return readings


def proven_marks(numbers: Iterable[str]) -> set[str]:
    """Return the decimal marks of the numbers that have only one reading."""
    every = map(number_readings, numbers)
    return {mark for readings in every if len(readings) == 1 for mark in readings}


def decimal_mark(
    numbers: Collection[str], elsewhere: Collection[str], separator: str
) -> tuple[str, str]:
    """Return the decimal mark of a column and "", or "" and an ambiguous number.

    If no number of the column proves a mark, numbers `elsewhere` in the table may prove it. A point
    may separate thousands only in a table whose cells are separated by `;`.
    """
    proven = proven_marks(numbers) or elsewhere
    two = [number for number in numbers if len({*number_readings(number).values()}) == 2]
    if len(proven) == 1 or not two:
        return next(iter(proven), "."), ""
    commas = [number for number in two if "," in number]
    if not proven and not commas and separator != ";":
        return ".", ""
    # With a decimal comma, a column of 938 and 2,470 would be 938 and 2.47.
    whole = [float(number) for number in numbers if number.isdecimal()]
    least = min((float(number_readings(comma)[","]) for comma in commas), default=0.0)
    if len(commas) == len(two) and whole and 100 * least <= max(whole) < 1000:
        return ".", ""
    return "", two[0]


def count(text: str, mark: str) -> dict[str, str]:
    """Return n, nodes and ranks_per_node as far as a cell gives them.

    `8x V100` is 8, `2x8` is 16; `2 nodes x 8 GPUs` and `16 (2 nodes)` are 16 on 2 nodes.
    """
    match = _COUNT.fullmatch(text)
    number = match and number_readings(match["n"]).get(mark)
    if not match or not number:
        return {"n": text}
    if not match["nodes"]:
        return {"n": number} | ({"nodes": match["on"]} if match["on"] else {})
    if match["of"] or match["per"]:
        return {"nodes": match["nodes"], "ranks_per_node": number}
    return {"n": str(int(match["nodes"]) * int(float(number)))}


# Each line's number in the file, and its cells by heading.
Lines = list[tuple[int, dict[str, str]]]


class Table(NamedTuple):
    """The lines of a table, the text around it, and the separator of its cells."""

    lines: Lines
    comments: str
    sign: str


@dataclass
class Column:
    """A column of a table.

    Attributes:
        name: A known name, else the heading.
        cells: The cells with numbers as Python writes them.
        units: Units in the cells of a column of values.
        metric: Metric of a column of values, empty if another column has it; else None.
        unit: Unit in the heading.
    """

    heading: str
    name: str
    typed: list[str]
    cells: list[str]
    units: list[str]
    metric: str | None = None
    unit: str = ""


# Known columns; the first and the last are texts that may say "per GPU".
COLUMNS = (
    "note", "n", "value", "metric", "unit", "table_id", "scaling", "source", "global_batch",
    "local_batch", "steps", "samples", "precision", "model", "nodes", "ranks_per_node", "heading",
    "comments",
)  # fmt: skip
# Known columns of numbers.
COUNTS = ("n", "nodes", "ranks_per_node", "global_batch", "local_batch", "steps", "samples")
_COUNTED = "gpus?|devices|ranks|accelerators|cards|chips|gcds|[ntx]pus?|processes|n?procs?|np"
# Other names of the columns, with _ for blanks and signs.
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
# The line below the header of a Markdown table.
_RULE = re.compile(r"(?=.*\|)[\s|:]*-[\s|:-]*")
_IN_BRACKETS = re.compile(r"(.+?) ?[(\[]([^()\[\]]+)[)\]]")


def read(path: Path) -> Table:
    """Read a table, UTF-8 or Windows-1252; ValueError if it is missing, empty or no table."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give its tables one by one")
    if not path.exists():
        raise ValueError(f"{path}: no such file")
    content = files.content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # from a spreadsheet
        text = content.decode("cp1252", errors="replace")
    numbered = enumerate(io.StringIO(visible(text), newline=""), start=1)
    every = [(number, line) for number, line in numbered if line.strip()]
    # Lines with # are text around the table, except headings right above a line of numbers.
    rows = [row for row in every if not row[1].startswith("#")]
    if rows and rows[0][1][0].isdigit():
        rows = [*[row for row in every if row[0] < rows[0][0]][-1:], *rows]
    if any(_RULE.fullmatch(line) for _, line in every):
        rows = [row for row in every if "|" in row[1]]
        rows = [(i, f"{x.strip().strip('|')}\n") for i, x in rows if not _RULE.fullmatch(x)]
    kept = {number for number, _ in rows}
    comments = " ; ".join(line.strip("# \r\n") for number, line in every if number not in kept)
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


def values(table: Table) -> tuple[list[tuple[str, ...]], Lines]:
    """Return how the columns are read, and the line number and cells by known names of each value.

    How a column is read: heading, meaning, unit, and the first cell as typed and as read.

    Raises:
        ValueError: The table has no number of ranks or no value, two columns of one meaning, or an
            ambiguous number.
    """
    columns = []
    for heading, name in _named(table.lines).items():
        typed = [line[heading] for _, line in table.lines]
        columns.append(Column(heading, name, typed, [*typed], [""] * len(typed)))
    if of_value := [column for column in columns if column.name == "value"]:
        of_value[0].metric = ""
    else:
        for column in columns:
            if column.name not in COLUMNS:
                _find_quantity(column)
    values = [column for column in columns if column.metric is not None]
    counts = _read_numbers(table, columns)
    _refuse_open(table, columns)
    metrics, of_values = [each.metric for each in values], {each.name for each in values}
    made = []
    for index, (number, _) in enumerate(table.lines):
        own = {column.name: column.cells[index] for column in columns} | counts[index]
        beside = {name: cell for name, cell in own.items() if cell and name not in of_values}
        for column in values:
            cell = column.cells[index]
            unit = column.units[index] or column.unit or ("s" if ":" in cell else "")
            cells = beside | ({"metric": column.metric} if column.metric else {})
            cells |= {"unit": unit} if unit else {}
            if metrics.count(column.metric) > 1:
                cells["table_id"] = f"{own.get('table_id', '')} {column.heading}".strip()
            cells |= {"value": cell, "heading": column.heading, "comments": table.comments}
            made.append((number, cells))
    understood: list[tuple[str, ...]] = []
    for column in columns:
        meaning = (
            column.name
            if column.name in COLUMNS
            else "unknown column; lockstep report --csv prints it"
        )
        if re.search(r"(?i)speed.?up|efficiency", column.name):
            meaning = f"{meaning}; lockstep check compares it with the computed ratio"
        unit, cell = column.unit or column.units[0], column.cells[0]
        if not cell and column.name == "n":
            cell = f"{counts[0].get('nodes')} x {counts[0].get('ranks_per_node')}"
        meaning = meaning if column.metric is None else column.metric or "value"
        understood.append((column.heading, meaning, unit, column.typed[0], cell))
    return understood, made


def _find_quantity(column: Column) -> None:
    """Set the metric and unit of a column of values, from its heading, else from its cells.

    Without such a heading, all cells must have the same unit of a time or rate.
    """
    quantity = _quantity(column.heading)
    units = {(cell := split(text)) and cell.unit for text in column.typed if text}
    if not quantity and len(units) == 1 and (unit := units.pop()):
        timed = _quantity(f"{column.heading} time") or _quantity("time")
        quantity = timed if unit in TIMES else _quantity(unit)
        quantity = quantity and (quantity[0], "")
    if quantity:
        column.metric, column.unit = quantity


def _read_numbers(table: Table, columns: Sequence[Column]) -> list[dict[str, str]]:
    """Set the cells of numbers as Python writes them, and the units of values.

    Return, for each line, the nodes and ranks_per_node in a cell of n, unless they are columns.
    """
    names = {column.name for column in columns}
    numeric = [column for column in columns if column.name in COUNTS]
    numeric += [column for column in columns if column.metric is not None]
    cells = [{text: split(text) for text in column.typed} for column in numeric]
    numbers = [[cell.number for cell in by_text.values() if cell] for by_text in cells]
    everywhere = proven_marks(number for own in numbers for number in own)
    counts: list[dict[str, str]] = [{} for _ in table.lines]
    for column, by_text, own in zip(numeric, cells, numbers, strict=True):
        mark, number = decimal_mark(own, everywhere, table.sign)
        if number:
            readings = " or ".join(sorted(number_readings(number).values(), key=float)[::-1])
            raise ValueError(
                f"column {column.heading!r}: {number!r} may mean {readings}; write {readings} "
                "instead"
            )
        for index, text in enumerate(column.typed):
            cell = by_text[text]
            if column.name == "n":
                known = count(text, mark)
                column.cells[index] = known.get("n", "")
                counts[index] = {name: known[name] for name in known if name not in names}
            elif cell:
                plain = number_readings(cell.number).get(mark, text)
                if column.metric is not None:
                    plain = cell.number if plain == text else plain
                    factor = None if "time" in column.metric else THOUSANDS.get(cell.unit)
                    plain = f"{float(plain) * factor:.12g}" if factor else plain
                    column.units[index] = "" if factor else cell.unit
                column.cells[index] = plain
    return counts


def _refuse_open(table: Table, columns: Sequence[Column]) -> None:
    """Refuse a table without ranks, values or units, with an example of what to write."""
    names = {column.name for column in columns}
    values = [column for column in columns if column.metric is not None]
    heads = {column.heading: column.heading for column in columns}
    rate_headings = (
        "'throughput (samples/s)' for all ranks, or 'throughput (samples/s/GPU)' for one GPU"
    )
    needed = []
    if not values:
        needed = [
            f"no column has measured values; rename one column to {rate_headings}, or to 'step "
            "time (ms)'"
        ]
    others = [column.heading for column in columns if column.name == column.heading]
    if not values and others:
        heads[others[0]] = "throughput (samples/s)"
    if "n" not in names and not {"nodes", "ranks_per_node"} <= names:
        text = "no column gives the number of ranks; name the column of this number n or gpus"
        head = "n"
        if nodes := next((each.heading for each in columns if each.name == "nodes"), None):
            text = (
                f"column {nodes!r} counts nodes, not GPUs; multiply it by the GPUs per node, and "
                "write the products to a column gpus"
            )
            head = "gpus"
        needed.append(text)
        heads = {"": head} | heads
    for column in values:
        heading, is_time = column.heading, "time" in (column.metric or "")
        colons = [cell.count(":") for cell in column.cells]
        are_clocks = [is_time and number > 1 for number in colons]
        if all(map(operator.or_, map(bool, column.units), are_clocks)):
            continue
        if is_time and not column.unit and all(colons):
            if max(colons) == 1:
                cell = column.cells[0]
                needed.append(f"column {heading!r}: {cell!r} may be mm:ss or h:mm; write h:mm:ss")
        elif not (column.metric or "metric" in names) or not (column.unit or "unit" in names):
            name = f"'{heading} (s)'" if is_time else rate_headings
            needed.append(f"column {heading!r} has no unit; rename the column to {name}")
            heads[heading] = f"{heading} (s)" if is_time else "throughput (samples/s)"
    if needed:
        cells = [table.lines[0][1].get(head, "8") for head in heads]
        example = f"{table.sign.join(heads.values())} / {table.sign.join(cells)}"
        problems = "; ".join(needed)
        raise ValueError(
            f"{problems}; a table needs n, value, metric and unit, for example: {example}"
        )


def _named(lines: Lines) -> dict[str, str]:
    """Return the known name of each heading, else the heading; ValueError if two have one name."""
    cells = {
        heading: [line[heading] for _, line in lines if line[heading]] for heading in lines[0][1]
    }
    lowered = {heading: heading.lower() for heading in cells}
    named = {heading: low if low in COLUMNS else heading for heading, low in lowered.items()}
    for heading, low in lowered.items():
        plain = re.sub(r"[^a-z0-9]+", "_", low).strip("_")
        alias = next((name for name, others in _NAMES.items() if re.fullmatch(others, plain)), "")
        may_be_ranks = alias != "n" or any(map(_COUNT.fullmatch, cells[heading]))
        if not alias or not may_be_ranks or alias in lowered.values():
            continue
        if alias in named.values() and alias != "note":
            other = next(known for known, name in named.items() if name == alias)
            raise ValueError(
                f"columns {other!r} and {heading!r} both mean {alias}; keep one of them"
            )
        named[heading] = alias
    if "n" not in named.values():
        for heading, column in cells.items():  # of `8x V100` or `2 nodes x 8`
            is_gpu = re.fullmatch(rf"(?i)(?:nvidia |amd |tesla )?{_GPU}", heading)
            matches = [_COUNT.fullmatch(cell) for cell in column]
            words = ("nodes", "model", "device", "on")
            if column and all(m and (is_gpu or any(map(m.group, words))) for m in matches):
                named[heading] = "n"
                break
    return named


def _quantity(heading: str) -> tuple[str, str] | None:
    """Return the metric and unit of a heading, the unit empty if missing; None for no quantity."""
    plain = " ".join(heading.replace("_", " ").split())
    if _NOT_MEASURED.search(plain):
        return None
    if match := _TIME.fullmatch(plain.lower()):
        of = {"epoch": "epoch_time", "": "time"}.get(match["of"] or match["per"] or "", "step_time")
        return of, match["unit"]
    word, unit = match.groups() if (match := _RATE.fullmatch(plain)) else ("", plain)
    if word and not PART.sub("", unit).strip(" ()[]"):
        metric = {"value": "", "throughput": "throughput"}.get(word.lower())
        return None if metric is None else (metric, "")
    if not word and (named := _IN_BRACKETS.fullmatch(plain)) and "/" in named[2]:
        rate = _quantity(named[2])
        return rate if rate and rate[0] == "throughput" else None
    with suppress(ValueError):
        parsed = parse(unit)
        if parsed.time and (parsed.of or len(unit) > len("min")):
            metric = {"step": "step_time", "epoch": "epoch_time"}.get(parsed.of, "time")
            return metric, unit
        if _SAMPLES.fullmatch(parsed.counted) or parsed.of or (word and parsed.counted):
            return "throughput", unit.strip(" ()[]") if word else unit
    return None
