"""Valid samples made wrong: bytes, numbers, words, brackets and lines, whatever the format is.

JSON, TOML, CSV and Slurm's tables are alike in this: words between separators, in lines, some in
brackets. What changes those keeps most of a sample valid, so that a reader's later parts are
reached as well.
"""

import re
from collections.abc import Callable, Sequence
from random import Random

MAX_BYTES = 1 << 20
MAX_NESTING = 3000
# What stands where a word or a number should: JSON first, since most readers read it.
TOKENS = (
    b"null", b"true", b"[]", b"{}", b'""', b"[[]]", b'[{}]', b'{"a":{}}', b'"x"', b"-1", b"0",
    b"1", b"0.5", b"-0.0", b"1e-320", b"1e308", b"1e999", b"-1e999", b"NaN", b"Infinity", b"nan",
    b"inf", b"1_000", b"0x10", b"1" * 25, b"9" * 400, b"9" * 5000, b"18446744073709551616",
    b"2147483648", b"99999999999", b"1e30", b"01", b"1.5", b'"1"', b"'x'", b'"""', b"\\",
    b'"\\ud800"', b'"\\u0000"', b'"\\u001b[2J"', "\"\u202e\u2028\u0130\"".encode(),
    b"\xff\xfe", b"\xc3",
    b"\xed\xa0\x80", b"\x00", b"\r\n", b"\r", b"\x1b[31m", b"\xef\xbb\xbf", b"|", b",", b"=", b"..",
    b"../../etc/passwd", b"/dev/zero", b"%n%s", b"{{7*7}}", b"$(id)", b"`id`", b"<script>",
    b"node[1-99999999]", b"[0-99999999]", b"[0-99999999:0]", b"7_[1-9%2]", b"1-00:00:00",
    b"99999999999999-00:00:00", b"1T", b"1024E", b"Unknown", b"None assigned", b"CANCELLED by 0",
    b"2026-01-01T00:00:00", b"9999-12-31T23:59:59", b"0001-01-01T00:00:00", b"\xd9\xa3",
    b"\xc2\xb2", b"lockstep", b"launch", b"case", b"fail",
)  # fmt: skip
_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s|,:=\[\]{}()"]+')
_CLOSING = {b"[": b"]", b"{": b"}"}

Mutate = Callable[[bytes, Random, Sequence[bytes]], bytes]


def mutated(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    """Return data with one to four things wrong, none longer than `MAX_BYTES`."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        data = random.choice(MUTATIONS)(data, random, samples)[:MAX_BYTES]
    return data


def _place(data: bytes, random: Random) -> tuple[int, int]:
    """Return the ends of a slice, most often a short one."""
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 1, 2, 4, 16, 256)))


def _flip(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 4) if data else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _drop(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    start, end = _place(data, random)
    return data[:start] + data[end:]


def _repeat(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    start, end = _place(data, random)
    return data[:end] + data[start:end] * random.choice((1, 2, 100)) + data[end:]


def _insert(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    start, _ = _place(data, random)
    return data[:start] + random.choice(TOKENS) + data[start:]


def _splice(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    other = random.choice(samples)
    start, _ = _place(data, random)
    return data[:start] + other[random.randrange(len(other) + 1) :]


def _words(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    """Put a hostile token, or another word of a sample, in the place of a word."""
    found = list(_WORD.finditer(data))
    if not found:
        return random.choice(TOKENS)
    chosen = random.choice(found)
    others = [one[0] for one in _WORD.finditer(random.choice(samples))]
    put = random.choice(TOKENS if random.random() < 0.7 or not others else others)
    return data[: chosen.start()] + put + data[chosen.end() :]


def _group(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    """Put a token, or the group twice, in the place of what brackets hold."""
    starts = [match.start() for match in re.finditer(rb"[\[{]", data)]
    if not starts:
        return data
    start = random.choice(starts)
    end = _end_of_group(data, start)
    inner = data[start:end]
    put = random.choice((random.choice(TOKENS), inner + b"," + inner, b"[" + inner + b"]"))
    return data[:start] + put + data[end:]


def _end_of_group(data: bytes, start: int) -> int:
    depth = 0
    for match in re.finditer(rb"[\[{\]}]", data[start:]):
        depth += 1 if match[0] in _CLOSING else -1
        if depth == 0:
            return start + match.end()
    return len(data)


def _pair(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    """Give a key twice, the second time with a token for its value."""
    found = list(re.finditer(rb'"[^"\\]*"\s*:', data))
    if not found:
        return data
    chosen = random.choice(found)
    return (
        data[: chosen.start()] + chosen[0] + random.choice(TOKENS) + b"," + data[chosen.start() :]
    )


def _nest(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    """Wrap a word in many brackets."""
    found = list(_WORD.finditer(data))
    chosen = random.choice(found) if found else None
    inner, start, end = (chosen[0], *chosen.span()) if chosen else (b"1", 0, 0)
    depth = random.choice((2, 40, 63, 64, 65, 500, MAX_NESTING))
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}")))
    return data[:start] + opening * depth + inner + closing * depth + data[end:]


def _long(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    """Let a word, or a line, go on for very long."""
    start, _ = _place(data, random)
    unit = random.choice((b"x", b"9", b" ", b"a|", b"1,", b"[", b"\\u0041", b"\n"))
    return data[:start] + unit * random.choice((1000, 20_000, 200_000)) + data[start:]


def _lines(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    """Drop, double, move or cut short a line."""
    lines = data.split(b"\n")
    place, other = random.randrange(len(lines)), random.randrange(len(lines))
    how = random.randrange(4)
    if how == 0:
        del lines[place]
    elif how == 1:
        lines.insert(other, lines[place])
    elif how == 2:
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines[place] = lines[place][: random.randrange(len(lines[place]) + 1)]
    return b"\n".join(lines)


MUTATIONS: tuple[Mutate, ...] = (
    _flip, _cut, _drop, _repeat, _insert, _splice, _words, _words, _words, _words, _words, _group,
    _group, _pair, _nest, _long, _lines, _lines,
)  # fmt: skip
