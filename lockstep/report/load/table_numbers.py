"""Numbers, times and counts as people type them: `1,226.38`, `1 h 30 min`, `8 GPUs`.

A comma or a point in a number may part its fraction or its thousands. The other numbers of its
column decide which, then those of the table; where they do not, the number is refused.
"""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from lockstep.core.formats import TIME_UNITS
from lockstep.report.load.table_units import DEVICES, NODES, TIMES

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


def readings(number: str) -> dict[str, str]:
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
    return {mark for found in map(readings, numbers) if len(found) == 1 for mark in found}


def decimal_mark(
    numbers: Collection[str], elsewhere: Collection[str], separator: str
) -> tuple[str, str]:
    """Return the decimal mark of a column, and a number that leaves it open, one of them empty.

    Args:
        numbers: Those of the column, of one unit.
        elsewhere: The marks that the numbers of the whole table prove.
        separator: What parts the cells. Where that is `;`, a point may part thousands.
    """
    known = proven_marks(numbers) or elsewhere
    two = [one for one in numbers if len({*readings(one).values()}) == 2]
    if len(known) == 1 or not two:
        return next(iter(known), "."), ""
    commas = [one for one in two if "," in one]
    if not known and not commas and separator != ";":
        return ".", ""
    # By the comma for decimals a column of 938 and 2,470 would hold 938 and 2.47.
    whole = [float(one) for one in numbers if one.isdecimal()]
    least = min((float(readings(one)[","]) for one in commas), default=0.0)
    if len(commas) == len(two) and whole and 100 * least <= max(whole) < 1000:
        return ".", ""
    return "", two[0]


def may_be_ranks(text: str) -> bool:
    """Return whether a cell can be a number of ranks: `8`, `8 GPUs`, `2x8`."""
    return bool(_COUNT.fullmatch(text))


def says_ranks(text: str) -> bool:
    """Return whether a cell alone says that it is a number of ranks: `8x V100`, `2 nodes x 8`."""
    match = _COUNT.fullmatch(text)
    return bool(match and any(match[one] for one in ("nodes", "model", "device", "on")))


def is_gpu(text: str) -> bool:
    """Return whether a text is the name of a GPU: `A100`, `V100s`."""
    return bool(re.fullmatch(rf"(?i)(?:nvidia |amd |tesla )?{_GPU}", text))


def count(text: str, mark: str) -> dict[str, str]:
    """Return the columns that a cell of ranks fills: n, nodes, ranks_per_node.

    `8x V100` is 8, `2 nodes x 8 GPUs` 16 on 2 nodes, `16 (2 nodes)` as well, and `2x8` 16.
    """
    match = _COUNT.fullmatch(text)
    number = match and readings(match["n"]).get(mark)
    if not match or not number:
        return {"n": text}
    if not match["nodes"]:
        return {"n": number} | ({"nodes": match["on"]} if match["on"] else {})
    if match["of"] or match["per"]:
        return {"nodes": match["nodes"], "ranks_per_node": number}
    return {"n": str(int(match["nodes"]) * int(float(number)))}
