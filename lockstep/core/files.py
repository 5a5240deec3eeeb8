"""Files of results: read up to a limit, as JSON of finite numbers; written whole or not at all."""

import json
import math
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from lockstep.core.formats import visible_json

MIB = 2**20
LIMIT_BYTES = 64 * MIB
# Integers beyond it, and floats beyond float's own range, measure nothing and overflow arithmetic.
LARGEST = 2**64

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
# Only a file with one of these can hold a number out of range; few need the slow search.
_LONG_NUMBERS = (b"0" * len(str(LARGEST)), b"e000")


@contextmanager
def opened(path: Path, limit: int = LIMIT_BYTES) -> Iterator[BufferedReader]:
    """Open a file for reading.

    Raises:
        ValueError: It cannot be opened, is a folder, or is too large.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    with file:
        if os.fstat(file.fileno()).st_size > limit:
            raise ValueError(f"{path}: {_too_large(limit)}")
        yield file


def _too_large(limit: int) -> str:
    return f"larger than the limit of {limit // MIB} MiB; give a smaller one"


def content(path: Path) -> bytes:
    """Return what a file holds.

    Raises:
        ValueError: It cannot be read, or is larger than `LIMIT_BYTES`.
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


def parse(
    document: bytes,
    constant: Callable[[str], Any] = refuse_constant,
    quick: Callable[[bytes], Any] | None = None,
) -> Any:
    """Return the value of a JSON document in UTF-8, with escapes for control characters in texts.

    `constant` makes something of NaN and the infinities, which are refused by default; what `quick`
    refuses with a ValueError is read without it.

    Raises:
        ValueError: It is not JSON in UTF-8, holds a number that is NaN, infinite or out of range,
            or is nested too deep.
    """
    document = visible_json(document)
    digits = document.translate(_DIGITS, b"+")
    if any(long in digits for long in _LONG_NUMBERS):
        hooks: dict[str, Any] = {"parse_int": _whole, "parse_float": _float}
    else:
        hooks = {}
        if quick:
            with suppress(ValueError):
                return quick(document)
    try:
        return json.loads(document.decode("utf-8"), parse_constant=constant, **hooks)
    except RecursionError:
        raise ValueError("nested too deep") from None


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


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a kill, finds the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of another host, or in another container, there is a process of the same number.
    temporary = path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:  # a full disk does not say whose file it had no room for
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
