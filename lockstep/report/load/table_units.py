"""What the unit of a number in a table says: what is counted, in what time, and of which ranks."""

import re
from typing import Literal, NamedTuple

from lockstep.core.formats import TIME_UNITS

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
        "device" if one["device"] else "node" for one in PART.finditer(text.replace("_", " "))
    }
    if len(found) > 1:
        raise ValueError(f"{text!r} is of a device and of a node; give the value of all ranks")
    return next(iter(found), "")


def part_of_rates(note: str) -> Whose:
    """Return of whom a note says that rates are, as `part` does; empty where it does not."""
    clauses = re.split(r"[.;,](?:\s|$)", note.lower())
    said = [one for one in clauses if _SAYS_RATE.search(one) and not _SAYS_OTHER.search(one)]
    return part(" ; ".join(said))
