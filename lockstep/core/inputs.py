"""The TOML files that a user writes: read, checked against a model, refused in one sentence."""

import difflib
import errno
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from lockstep.core import files

Model = TypeVar("Model", bound=BaseModel)

# Written by hand, and so never larger.
LIMIT_BYTES = files.MIB
MAX_SHOWN_CHARACTERS = 80
# Largest price of an hour, and overhead: a larger one is a typing error.
MAX_RATE = 1_000_000
# kind of file -> a key that each file of it has, and no other kind
MARKS = {"Campaign": "studies", "Site": "gpus_per_node"}
# How alike two words are of which one may be a slip of the other, as difflib counts it.
LIKENESS = 0.7
# pydantic's words are Python's; a file holds tables and texts.
WORDS = {
    "tuple_type": "input should be a list",
    "dict_type": "input should be a table",
    "model_type": "input should be a table",
    "too_short": "the list is empty; give at least 1 item",
    "string_too_short": "the text is empty; write one, or leave the key out",
}


def _whole(value: Any) -> Any:
    # Python's true and 1.0 equal 1, and so would pass for it.
    if isinstance(value, bool | float):
        raise ValueError("input should be 1")
    return value


SchemaVersion = Annotated[
    Literal[1],
    BeforeValidator(_whole),
    Field(alias="schema", description="version of this format"),
]


def load(source: str, model: type[Model], built_in: Mapping[str, Path], **changes: Any) -> Model:
    """Read a file by its path or its built-in name.

    Changes are keys that options of those names set over the file's; None leaves one as it is.

    Raises:
        ValueError: The file cannot be read, or says something that is not allowed.
    """
    path = built_in.get(source, Path(source))
    kind = model.__name__
    given = _read(path, f"give a {kind.lower()} file, or a built-in one", built_in)
    if MARKS.get(kind) not in (None, *given):
        others = (other.lower() for other, key in MARKS.items() if key in given)
        if other := next(others, ""):
            raise ValueError(f"{path}: this is a {other} file; give a {kind.lower()} file")
    given |= {key: value for key, value in changes.items() if value is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        key = str(next(iter(_first(error)["loc"]), ""))
        where = path if changes.get(key) is None else f"--{key.replace('_', '-')}"
        raise ValueError(f"{where}: {sentence(error, model)}") from None


def table(path: Path, name: str) -> dict[str, Any]:
    """Return one table of a file, unchecked; an empty one where the file has none.

    Raises:
        ValueError: The file cannot be read, or gives something else by that name.
    """
    found = _read(path, "give a TOML file", {}).get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{path}: {name} = {_shown(found)}: {WORDS['dict_type']}")
    return found


def _read(path: Path, todo: str, built_in: Mapping[str, Path]) -> dict[str, Any]:
    try:
        path.stat()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; {todo}: {', '.join(built_in)}") from error
    with files.opened(path) as file:
        content = file.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise ValueError(f"{path}: larger than 1 MiB, and so no file written by hand; {todo}")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # some editors put a mark first
    except UnicodeDecodeError as error:
        why = f"{error}; save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        why = str(error)
    except (ValueError, RecursionError):  # of the parser itself: digits, or depth
        why = "a number of it is too long, or it is nested too deep"
    raise ValueError(f"{path}: not a TOML file: {why}")


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first thing that is wrong with a model's input, in one sentence."""
    first = _first(error)
    place = [str(part) for part in first["loc"] if part != "[key]"]
    key, given = ".".join(place), first["input"]
    table = model
    for part in place[:-1]:
        if field := table.model_fields.get(part):
            table = next(_models(field.annotation), table)
    fields = table.model_fields
    if first["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in fields.items()]
        hint = _nearest(key.rpartition(".")[2], known) or f"; known keys: {', '.join(known)}"
        return f"unknown key {_shown(key)}{hint}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    message: str = WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    if not key:
        return message
    if isinstance(given, dict) or "[key]" in first["loc"]:  # it is the name that is wrong
        return f"{key}: {message}"
    if first["type"] in ("string_type", "string_pattern_mismatch") and place[-1] in fields:
        return f"{key} = {_shown(given)} is not allowed; write the {fields[place[-1]].description}"
    if first["type"] == "literal_error":
        message += _nearest(given, re.findall("'([^']*)'", first["ctx"]["expected"]))
    return f"{key} = {_shown(given)}: {message[0].lower()}{message[1:]}"


def _first(error: ValidationError) -> Any:
    # A misspelt key is missing as well; what was meant shows in the unknown one.
    return min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")


def _shown(value: Any) -> str:
    """Return a value as its file writes it, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value) if isinstance(value, date | time) else repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "..."


def _nearest(given: Any, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(given), allowed, n=1, cutoff=LIKENESS)
    return f"; did you mean {near[0]!r}?" if near else ""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type, such as `Jobs`, `tuple[Stage, ...]` or `Container | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
