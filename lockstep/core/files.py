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
# Integers beyond this, and floats beyond their range, measure nothing and overflow arithmetic.
LARGEST = 2**64

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
# A number out of range has one of these in its document, after `_DIGITS`: few documents do, and
# only these are read by the slower parser.
_LONG_NUMBERS = (b"0" * len(str(LARGEST)), b"e000")
ROOT_VARIABLE = "LOCKSTEP_ROOT"
_TOO_LARGE = "the file is larger than the limit of {limit_mib} MiB; give a smaller file"


def default_folder(name: str) -> Path:
    """Return the folder of results or data sets if no option names it.

    It lies in the folder that LOCKSTEP_ROOT names, or else in the working folder.
    """
    return Path(os.environ.get(ROOT_VARIABLE, ""), name)


@contextmanager
def open_file(path: Path, limit: int = LIMIT_BYTES) -> Iterator[BufferedReader]:
    """Open a file for reading; ValueError where it is missing, a folder or too large."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    with file:
        if os.fstat(file.fileno()).st_size > limit:
            raise ValueError(f"{path}: {_TOO_LARGE.format(limit_mib=limit // MIB)}")
        yield file


def content(path: Path) -> bytes:
    """Return the bytes of a file of at most `LIMIT_BYTES`."""
    with open_file(path) as file:
        document = file.read(LIMIT_BYTES + 1)
    if len(document) > LIMIT_BYTES:  # the file grew, or its file system reports no size
        raise ValueError(f"{path}: {_TOO_LARGE.format(limit_mib=LIMIT_BYTES // MIB)}")
    return document


def text(path: Path) -> str:
    """Return the text of a file; bytes that are not UTF-8 become replacement characters."""
    return content(path).decode("utf-8", errors="replace")


def tail(path: Path, num_bytes: int, start: int = 0) -> str:
    """Return the end of a file, after `start`, without a first line that the limit cuts."""
    with path.open("rb") as file:
        begin = file.seek(0, os.SEEK_END) - num_bytes
        file.seek(max(start, begin))
        text = file.read(num_bytes).decode(errors="replace")
    whole = text.partition("\n")[2] if begin > start else ""
    return whole or text


def _refuse_constant(token: str) -> NoReturn:
    raise ValueError(f"{token} is not a JSON number")


def parse(
    document: bytes,
    constant: Callable[[str], Any] = _refuse_constant,
    quick: Callable[[bytes], Any] | None = None,
) -> Any:
    """Return the value of a JSON document in UTF-8; control characters in its texts are escaped.

    `constant` replaces NaN and infinities; `quick` is a faster reader, whose ValueError is ignored.
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
        raise ValueError("the JSON values are nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > len(str(LARGEST)) + 1 or abs(value := int(digits)) > LARGEST:
        raise ValueError(f"the number {digits[:24]} is out of range")
    return value


def _float(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"the number {digits[:24]} is out of range")
    return value


def are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole: a reader or a kill finds the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A process number would not be unique: other hosts and containers have the same ones.
    temporary = path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:  # the error of a full disk does not name the file
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
