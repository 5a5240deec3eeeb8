"""The cells of a table as people type it: CSV or Markdown, with columns of any of their names.

A table has one value a line, in the columns value, metric and unit, or a column for each quantity,
whose heading says what it is: `Img/sec`, `step time (ms)`.

Numbers, times and counts as people type them: `1,226.38`, `1 h 30 min`, `8 GPUs`.

A comma or a point in a number may part its fraction or its thousands. The other numbers of its
column decide which, then those of the table; where they do not, the number is refused.

What the unit of a number in a table says: what is counted, in what time, and of which ranks.
"""

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
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
# What a number may end with where its heading has the unit.
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
# What no rate of samples counts: a number or a device, and steps beside other words.
_UNCLEAR = re.compile(
    rf"(?i)[*\u00b7\u00d7^\d]|\b(?:{DEVICES}|{NODES}|its?|iter\w*|steps?|updates?)\b|batch"
)
# A clause that says of which ranks rates are, and words of what else may be "per GPU".
_SAYS_RATE = re.compile(
    r"\b(?:throughputs?|rates?|speeds?|values|numbers|figures|results|seconds?|sec|s|tps|fps)\b"
    r"|^\W*(?:(?:given|reported|measured|normali[sz]ed|is|are|in|all)\W+)*(?:per|each)\W+\w+\W*$"
)
_SAYS_OTHER = re.compile(
    rf"batch|memory|threads?\b|cores?\b|load|learning|[gm]i?b\b|\b(?:{DEVICES}|workers?) per\b|"
    r"\d[\w\s]*(?:per\b|/)|\bn?\s*[x\u00d7]\s|times|multipl|total|sum|aggregate"
)


class Unit(NamedTuple):
    """A unit as read.

    Attributes:
        counted: What a rate counts each second; empty of a time.
        time: Of a time, a key of `TIME_UNITS`; else empty.
        whose: Whether a rate is that of one device or node; empty where it is that of all.
        of: Whether it is a rate of steps, or the time of a step, an epoch or a run.
        factor: What a rate is multiplied by for one of whole samples a second.
    """

    counted: str = ""
    time: str = ""
    whose: Whose = ""
    of: Of = ""
    factor: float = 1.0


def parse(text: str) -> Unit:
    """Return what a unit says.

    Raises:
        ValueError: It is no time and no rate, or holds a word that is not understood.
    """
    counted, *below = _divided(_OF_ALL.sub(" ", text.replace("_", " ")))
    is_step = bool(_STEPS.fullmatch(counted))
    if counted.lower() in TIMES and len(below) < 2:
        of: Of = "epoch" if below == ["epoch"] else "run" if below == ["run"] else ""
        of = "step" if below and _STEPS.fullmatch(below[0]) else of
        if of or not below:
            return Unit(time=TIMES[counted.lower()], of=of)
    times = [TIMES[one] for one in below if one in TIMES]
    of_one = [one for one in below if one not in TIMES]
    whose = part("".join(f"/{one}" for one in of_one))
    is_known = len(times) == 1 and len(of_one) == bool(whose)
    is_clear = counted and counted.lower() not in TIMES and not _UNCLEAR.search(counted)
    if not (is_known and (is_clear or is_step)):
        raise ValueError(
            f"unit {text!r} is not understood; write samples/s where the value is that of all "
            "ranks, samples/s/GPU where it is that of one, or it/s beside a column global_batch"
        )
    factor = 1 / TIME_UNITS[times[0]]
    if prefixed := _PREFIX.fullmatch(counted):
        factor, counted = factor * {**THOUSANDS, "t": 1e3, "m": 1e6}[prefixed[1][0]], prefixed[2]
    counted = _NOUNS.get(counted.lower(), counted)
    return Unit(counted, "", whose, "step" if is_step else "", factor)


def _divided(text: str) -> list[str]:
    """Return the parts of a unit between its divisions, in small letters from the second on."""
    plain = re.sub(r"(?i)[\s\u00b7*]*\b([a-z]+) ?(?:\^? ?[-\u2212]1\b|\u207b\u00b9)", r"/\1", text)
    plain = re.sub(r"/\s*\(([^)]*)\)", lambda m: "/" + re.sub(r"[\s\u00b7*]+", "/", m[1]), plain)
    # What stands in brackets and is no part of the unit, as (fp16), is left aside.
    part_of_it = rf"/|\bper\b|\beach\b|\b(?:{DEVICES}|{NODES})\b"
    plain = re.sub(rf"(?i)[(\[](?![^)\]]*(?:{part_of_it}))[^)\]]*[)\]]", " ", plain)
    plain = re.sub(r"(?i)[\s-]*\b(?:per|each)\b[\s-]*", "/", re.sub(r"[()\[\],]", " ", plain))
    if first := re.match(rf"(?i)\s*/ *({DEVICES}|{NODES})\b[-\s]+(?=\w)", plain):
        plain = f"{plain[first.end() :]}/{first[1]}"
    top, *below = (" ".join(one.split()) for one in plain.split("/"))
    below = [one.lower() for one in below]
    if not {*below} & {*TIMES}:
        top = re.sub(r"(?i)^([kmgtpe]?flop)s$", r"\1/s", top)
    top, *implied = _SHORT.get(top.lower(), top).split("/")
    return [top, *implied, *below]


def part(text: str) -> Whose:
    """Return of whom a text says that something is, by "per GPU", "/node" or "each rank".

    Raises:
        ValueError: It names a device and a node.
    """
    found: set[Whose] = {
        "device" if match["device"] else "node" for match in PART.finditer(text.replace("_", " "))
    }
    if len(found) > 1:
        raise ValueError(f"{text!r} is of a device and of a node; give the value of all ranks")
    return next(iter(found), "")


def part_of_rates(note: str) -> Whose:
    """Return of whom a note says that rates are, as `part` does; empty where it does not."""
    clauses = re.split(r"[.;,](?:\s|$)", note.lower())
    said = [
        clause for clause in clauses if _SAYS_RATE.search(clause) and not _SAYS_OTHER.search(clause)
    ]
    return part(" ; ".join(said))


# Blanks, _ and ' between groups of three digits part thousands and nothing else.
_SPACE = "[ _'\u2019\u00a0\u2009\u202f]"
_NUMBER = (
    rf"[-+]?(?:[0-9]{{1,3}}(?:{_SPACE}[0-9]{{3}})+(?![0-9])|[0-9]+|(?=[.,][0-9]))"
    r"(?:[.,][0-9]+)*(?:[eE][-+]?[0-9]+)?"
)
_CELL = re.compile(
    rf"[~\u2248]?\s*(?P<number>{_NUMBER})\s*(?:\(?(?:\u00b1|\+/?-)\s*{_NUMBER}\s*%?\)?)?\s*"
    rf"(?P<unit>[^\s(0-9.,:][^(]*?(?:\((?![0-9.])[^)]*\))?)?"
    rf"\s*(?:\((?P<speedup>{_NUMBER})\s*[x\u00d7]\))?"
)
_CLOCK = re.compile(
    r"(?:(?:\d+-)?\d+:(?=[0-5]?\d:))?\d+:[0-5]?\d(?:\.\d+)?(?=(?P<unit>\s*[a-z:()]*))(?P=unit)",
    re.A,
)
_PIECE = r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+|['\"\u2032\u2033]) ?(?:, ?|and )?"
# The names of GPUs, which hold digits, and what is said beside them.
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
    speedup: str = ""


def split(text: str) -> Cell | None:
    """Return what a cell holds; None for what is no number and no time.

    A clock keeps its colons, and `1 h 30 min` is 5400 s.
    """
    if clock := _CLOCK.fullmatch(text.lower()):
        return Cell(text[: clock.start("unit")].strip(), clock["unit"].strip("()"))
    if re.fullmatch(rf"(?:{_PIECE}){{2,}}", text.lower()):
        pieces = [(float(n), TIMES.get(unit)) for n, unit in re.findall(_PIECE, text.lower())]
        if all(unit for _, unit in pieces):
            return Cell(f"{sum(n * TIME_UNITS[unit] for n, unit in pieces if unit):.12g}", "s")
    match = _CELL.fullmatch(text)
    return match and Cell(match["number"], (match["unit"] or "").strip(), match["speedup"] or "")


def number_readings(number: str) -> dict[str, str]:
    """Return what a number may be: the decimal mark that it then has, and it as Python writes it.

    `3,5` is one number, by the comma; `1,234` is two; 938 is the same by either mark.
    """
    plain, found = re.sub(rf"(?<=\d){_SPACE}(?=\d)", "", number), {}
    for mark, other in (".,", ",."):
        whole = rf"(?:\d*|[1-9]\d{{0,2}}(?:\{other}\d{{3}})+)"
        if re.fullmatch(rf"[-+]?{whole}(?:\{mark}\d+)?(?:[eE][-+]?\d+)?", plain):
            found[mark] = plain.replace(other, "").replace(mark, ".")
    return found


def proven_marks(numbers: Iterable[str]) -> set[str]:
    """Return the decimal marks without which some of the numbers could not be read."""
    return {mark for found in map(number_readings, numbers) if len(found) == 1 for mark in found}


def decimal_mark(
    numbers: Collection[str], elsewhere: Collection[str], separator: str
) -> tuple[str, str]:
    """Return the decimal mark of a column, and a number that leaves it open, one of them empty.

    Args:
        numbers: Those of the column, of one unit.
        elsewhere: The marks that the numbers of the whole table prove.
        separator: What parts the cells. Where that is `;`, a point may part thousands.
    """
    collection = proven_marks(numbers) or elsewhere
    two = [number for number in numbers if len({*number_readings(number).values()}) == 2]
    if len(collection) == 1 or not two:
        return next(iter(collection), "."), ""
    commas = [one for one in two if "," in one]
    if not collection and not commas and separator != ";":
        return ".", ""
    # By the comma for decimals a column of 938 and 2,470 would hold 938 and 2.47.
    whole = [float(number) for number in numbers if number.isdecimal()]
    least = min((float(number_readings(comma)[","]) for comma in commas), default=0.0)
    if len(commas) == len(two) and whole and 100 * least <= max(whole) < 1000:
        return ".", ""
    return "", two[0]


def count(text: str, mark: str) -> dict[str, str]:
    """Return the columns that a cell of ranks fills: n, nodes, ranks_per_node.

    `8x V100` is 8, `2 nodes x 8 GPUs` 16 on 2 nodes, `16 (2 nodes)` as well, and `2x8` 16.
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
# Heading of a column of values -> its metric and its unit.
Quantities = dict[str, dict[str, str]]


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
    content = files.content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # a spreadsheet wrote it
        text = content.decode("cp1252", errors="replace")
    numbered = enumerate(io.StringIO(visible(text), newline=""), start=1)
    rows, comments = _parted([(number, line) for number, line in numbered if line.strip()])
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
    rows = [row for row in text if not row[1].startswith("#")]
    if rows and rows[0][1][0].isdigit():
        rows = [*[row for row in text if row[0] < rows[0][0]][-1:], *rows]
    if any(_RULE.fullmatch(line) for _, line in text):
        rows = [row for row in text if "|" in row[1]]
        rows = [(i, f"{x.strip().strip('|')}\n") for i, x in rows if not _RULE.fullmatch(x)]
    kept = {number for number, _ in rows}
    return rows, " ; ".join(line.strip("# \r\n") for number, line in text if number not in kept)


def values(table: Table) -> tuple[list[Understood], list[tuple[int, dict[str, str]]]]:
    """Return how the columns are read, and each value: its line, and its cells by known names.

    Raises:
        ValueError: The table has no number of ranks, no value, two columns for one thing, or a
            number that may be read in two ways.
    """
    named = _named(table.lines)
    quantities = _quantities(table.lines, named)
    lines = _plain(table, named, quantities)
    _refuse_open(table, named, quantities, lines)
    metrics = [quantity["metric"] for quantity in quantities.values()]
    made = []
    for number, line in lines:
        own = {named.get(heading, heading): cell for heading, cell in line.items()}
        beside = {
            name: cell
            for name, cell in own.items()
            if cell and name not in quantities and not name.endswith("\n")
        }
        for heading, quantity in quantities.items():
            cells = beside | {name: text for name, text in quantity.items() if text}
            if unit := own.get(f"{heading}\n", ""):  # of the cell
                cells["unit"] = unit
            elif ":" in own[heading] and not quantity["unit"]:
                cells["unit"] = "s"
            if metrics.count(quantity["metric"]) > 1:
                cells["table_id"] = f"{own.get('table_id', '')} {heading}".strip()
            cells |= {"value": own[heading], "heading": heading, "comments": table.comments}
            made.append((number, cells))
    typed, line = table.lines[0][1], lines[0][1]
    columns = []
    for heading, cell in typed.items():
        name, unit = named[heading], ""
        meaning = name if name in COLUMNS else "not a known column; kept unchanged"
        if quantity := quantities.get(heading, {}):
            unit = quantity["unit"] or line.get(f"{heading}\n", "")
            meaning = quantity["metric"] or "value"
        of_nodes = f"{line.get('nodes')} x {line.get('ranks_per_node')}" if name == "n" else ""
        columns.append(Understood(heading, meaning, unit, cell, line[heading] or of_nodes))
    return columns, made


def _quantities(lines: Lines, named: Mapping[str, str]) -> Quantities:
    """Return the columns of values, with the metric and the unit that their headings say.

    A column that no heading explains is one where all its cells have the unit of a time or rate.
    """
    if "value" in named.values():
        return {"value": {"metric": "", "unit": ""}}
    found = {}
    for heading, name in named.items():
        if name in COLUMNS:
            continue
        quantity = _quantity(heading)
        units = {(cell := split(line[heading])) and cell.unit for _, line in lines if line[heading]}
        if not quantity and len(units) == 1 and (unit := units.pop()):
            timed = _quantity(f"{heading} time") or _quantity("time")
            quantity = timed if unit in TIMES else _quantity(unit)
            quantity = quantity and quantity | {"unit": ""}
        if quantity:
            found[heading] = quantity
    return found


def _plain(table: Table, named: Mapping[str, str], quantities: Quantities) -> Lines:
    """Return the lines with numbers as Python writes them; a value's unit stands apart."""
    count_columns = [heading for heading, name in named.items() if name in COUNTS]
    columns = [*count_columns, *(heading for heading, name in named.items() if name in quantities)]
    cells = {name: {line[name]: split(line[name]) for _, line in table.lines} for name in columns}
    numbers = {name: [c.number for c in by_text.values() if c] for name, by_text in cells.items()}
    everywhere = proven_marks(n for column in numbers.values() for n in column)
    marks = {}
    for heading, column in numbers.items():
        marks[heading], two = decimal_mark(column, everywhere, table.sign)
        if two:
            readings = " or ".join(sorted(number_readings(two).values(), key=float)[::-1])
            raise ValueError(
                f"column {heading!r}: {two!r} may be {readings}; write {readings} in its place"
            )
    made = []
    for number, line in table.lines:
        own = dict(line)
        for heading, by_text in cells.items():
            cell = by_text[line[heading]]
            if named[heading] == "n":  # which may fill other columns, but not those of the table
                counts = count(line[heading], marks[heading])
                own |= {name: text for name, text in counts.items() if name not in named.values()}
                own[heading] = counts.get("n", "")
            elif cell and (read := number_readings(cell.number).get(marks[heading])):
                own[heading] = read
            if cell and heading not in count_columns:
                own[heading] = own[heading] if own[heading] != line[heading] else cell.number
                own[f"{heading}\n"] = cell.unit
                is_rate = "time" not in quantities[named[heading]]["metric"]
                if is_rate and (factor := THOUSANDS.get(cell.unit)):
                    own |= {heading: f"{float(own[heading]) * factor:.12g}", f"{heading}\n": ""}
        made.append((number, own))
    return made


def _refuse_open(
    table: Table, named: Mapping[str, str], quantities: Quantities, lines: Lines
) -> None:
    """Refuse a table that does not say its ranks, its values or their unit, with what to write."""
    first, heads = table.lines[0][1], {line: line for line in table.lines[0][1]}
    advice = "'throughput (samples/s)', or 'throughput (samples/s/GPU)' if it is of one GPU"
    needed = [] if quantities else [f"no column of values; name it {advice}, or 'step time (ms)'"]
    if not quantities and (other := next((head for head in heads if named[head] == head), "")):
        heads[other] = "throughput (samples/s)"
    if "n" not in named.values() and not {"nodes", "ranks_per_node"} <= {*named.values()}:
        needed.append("no column n for the number of ranks; name it n, or gpus")
        heads = {"": "n"} | heads
    for heading, quantity in quantities.items():
        is_time = "time" in quantity["metric"]
        column = [(line[heading], line.get(f"{heading}\n")) for _, line in lines]
        has_units = all(unit or (is_time and cell.count(":") > 1) for cell, unit in column)
        if is_time and not quantity["unit"] and not has_units and all(":" in c for c, _ in column):
            if not any(cell.count(":") > 1 for cell, _ in column):
                cell = column[0][0]
                needed.append(f"column {heading!r}: {cell!r} may be mm:ss or h:mm; write h:mm:ss")
        elif not has_units and any(
            not text and what not in named.values() for what, text in quantity.items()
        ):
            name = f"'{heading} (s)'" if is_time else advice
            needed.append(f"column {heading!r} does not say its unit; name it {name}")
            heads[heading] = f"{heading} (s)" if is_time else "throughput (samples/s)"
    if needed:
        cells = [first.get(head, "8") for head in heads]
        example = f"{table.sign.join(heads.values())} / {table.sign.join(cells)}"
        raise ValueError(
            f"{'; '.join(needed)}; a table needs n, value, metric and unit, for example: {example}"
        )


def _named(lines: Lines) -> dict[str, str]:
    """Return the known name of each heading, else the heading.

    Raises:
        ValueError: Two give one thing, and neither by its known name.
    """
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
            other = next(one for one in named if named[one] == alias)
            raise ValueError(f"columns {other!r} and {heading!r} both give {alias}; keep one")
        named[heading] = alias
    if "n" not in named.values():
        of_ranks = (heading for heading in named if _are_ranks(heading, cells[heading]))
        named |= dict.fromkeys(islice(of_ranks, 1), "n")
    return named


def _are_ranks(heading: str, cells: Sequence[str]) -> bool:
    """Return whether cells are `8x V100` or `2 nodes x 8`; of a GPU's column, 8 and 2x8, too."""
    is_gpu = re.fullmatch(rf"(?i)(?:nvidia |amd |tesla )?{_GPU}", heading)
    says = ("nodes", "model", "device", "on")
    matches = [_COUNT.fullmatch(cell) for cell in cells]
    return bool(cells) and all(m and (is_gpu or any(map(m.group, says))) for m in matches)


def _quantity(heading: str) -> dict[str, str] | None:
    """Return the metric and unit of a column of values, the unit empty where it is not said."""
    plain = " ".join(heading.replace("_", " ").split())
    if _NOT_MEASURED.search(plain):
        return None
    if match := _TIME.fullmatch(plain.lower()):
        of = {"epoch": "epoch_time", "": "time"}.get(match["of"] or match["per"] or "", "step_time")
        return {"metric": of, "unit": match["unit"]}
    word, unit = match.groups() if (match := _RATE.fullmatch(plain)) else ("", plain)
    if word and not PART.sub("", unit).strip(" ()[]"):
        metric = {"value": "", "throughput": "throughput"}.get(word.lower())
        return None if metric is None else {"metric": metric, "unit": ""}
    if not word and (named := _IN_BRACKETS.fullmatch(plain)) and "/" in named[2]:
        return said if (said := _quantity(named[2])) and said["metric"] == "throughput" else None
    with suppress(ValueError):
        found = parse(unit)
        if found.time and (found.of or len(unit) > len("min")):
            metric = {"step": "step_time", "epoch": "epoch_time"}.get(found.of, "time")
            return {"metric": metric, "unit": unit}
        if _SAMPLES.fullmatch(found.counted) or found.of or (word and found.counted):
            return {"metric": "throughput", "unit": unit.strip(" ()[]") if word else unit}
    return None
