"""Files that others may have written: never waited for, never unbounded, JSON or refused.

A folder of results travels: by mail, by a shared disk, out of another user's hands. What reads it
opens regular files alone (a pipe would block, a device never ends), and takes no more than
`LIMIT_BYTES` of one document, nested no deeper than `MAX_DEPTH`.
"""

import errno
import json
import math
import os
import stat
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NoReturn

MIB = 2**20
LIMIT_BYTES = 64 * MIB
MAX_DEPTH = 64
# Integers beyond it, and floats beyond float's own range, measure nothing and overflow arithmetic.
LARGEST = 2**64

# Each bracket as the step that it is, of a signed byte: one level down, or one up.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_STEP = bytes(sorted(set(range(256)) - set(b'"[]{}')))
_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
# A number may be out of range only where one of these stands; few files need the slow look.
_LONG_NUMBERS = (b"0" * len(str(LARGEST)), b"e000", b"e+000")


@contextmanager
def opened(path: Path, limit: int = LIMIT_BYTES) -> Iterator[BufferedReader]:
    """Open a regular file for reading.

    Args:
        path: The file.
        limit: Most bytes it may hold.

    Raises:
        ValueError: It cannot be opened, is a folder, a pipe or a device, or is too large.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    try:
        _refuse(path, os.fstat(descriptor), limit)
    except ValueError:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        yield file


@contextmanager
def opened_lock(path: Path) -> Iterator[IO[str]]:
    """Open a lock's file for appending, never what somebody put in its place.

    A link would lead to another file, which the holder empties; a pipe would be waited for.

    Raises:
        ValueError: It is a link, or no regular file.
    """
    refused = ValueError(f"{path}: no regular file, so no lock; delete it")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise refused from None
        raise
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise refused
        yield file


def refuse_link_out(path: Path, folder: Path) -> None:
    """Refuse what a link lets stand in a folder; the folder may itself be a link.

    Args:
        path: A path that begins with the folder's.
        folder: What it must not lead out of.

    Raises:
        ValueError: The link leads out of the folder.
    """
    parts = [one for one in (*reversed(path.parents), path) if one.is_relative_to(folder)]
    inside = folder.resolve()
    for part in parts[1:]:
        there = os.path.realpath(part)  # of a loop of links, which `resolve` raises for, itself
        if not Path(there).is_relative_to(inside):
            raise ValueError(
                f"{part}: leads out of {folder}, to {there}; put what is there in the place of "
                "the link"
            )


def _refuse(path: Path, facts: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path}: no regular file; give one, or delete this")
    if facts.st_size > limit:
        raise ValueError(f"{path}: {_too_large(limit)}")


def _too_large(limit: int) -> str:
    return f"larger than the limit of {limit // MIB} MiB; give a smaller one"


def content(path: Path) -> bytes:
    """Return what a file holds.

    Raises:
        ValueError: It cannot be read, is no regular file, or is larger than `LIMIT_BYTES`.
    """
    with opened(path) as file:
        found = file.read(LIMIT_BYTES + 1)
    if len(found) > LIMIT_BYTES:  # it grew, or its file system does not say its size
        raise ValueError(f"{path}: {_too_large(LIMIT_BYTES)}")
    return found


def text(path: Path) -> str:
    """Return what a text file holds; what is not UTF-8 reads as replacement characters.

    Raises:
        ValueError: As `content` does.
    """
    return content(path).decode("utf-8", errors="replace")


def refuse_constant(token: str) -> NoReturn:
    """Refuse NaN and the infinities, which are no JSON numbers.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{token} is not a JSON number")


def parse(document: bytes, constant: Callable[[str], Any] = refuse_constant) -> Any:
    """Return the value of a JSON document.

    Args:
        document: Its text in UTF-8.
        constant: What to make of NaN and the infinities; they are refused by default.

    Raises:
        ValueError: It is not JSON in UTF-8, holds a number that is NaN, infinite or out of range,
            or is nested deeper than `MAX_DEPTH`.
    """
    _refuse_depth(document)
    digits = document.translate(_DIGITS)
    if any(long in digits for long in _LONG_NUMBERS):
        hooks: dict[str, Any] = {"parse_int": _whole, "parse_float": _float}
    else:
        hooks = {}
    return json.loads(document.decode("utf-8"), parse_constant=constant, **hooks)


def _refuse_depth(document: bytes) -> None:
    """Refuse what would exhaust the stack, whose depth differs between Pythons."""
    quotes = document.replace(rb"\\", b"").replace(rb"\"", b"").translate(_STEPS, _NO_STEP)
    # Two quotes with no bracket between them change nothing of what is a string.
    steps = b"".join(quotes.replace(b'""', b"").split(b'"')[::2])
    if max(accumulate(array("b", steps)), default=0) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _whole(digits: str) -> int:
    if len(digits) > len(str(LARGEST)) + 1 or abs(value := int(digits)) > LARGEST:
        raise ValueError(f"the number {digits[:24]} is out of range")
    return value


def _float(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"the number {digits[:24]} is out of range")
    return value


def are_texts(value: object) -> bool:
    """Return whether a JSON value is a list of strings."""
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
