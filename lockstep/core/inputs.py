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

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lockstep.core import files

Model = TypeVar("Model", bound=BaseModel)

# A file written by hand is never larger.
LIMIT_BYTES = files.MIB
MAX_SHOWN_CHARACTERS = 80
# Largest price of an hour, and overhead: a larger one is a typing error.
MAX_RATE = 1_000_000
# kind of file -> a key that each file of it has, and no other kind
MARKS = {"Campaign": "studies", "Site": "gpus_per_node"}
# A digital object identifier, of characters that no page or shell takes for its own.
DOI = r"^10\.[0-9]{4,9}/[A-Za-z0-9._;()/:-]{1,100}$"
# Least likeness, by difflib, of a word and its possible misspelling.
LIKENESS = 0.7
# pydantic's type of error -> a sentence in TOML's words, as pydantic speaks of Python's types.
WORDS = {
    "tuple_type": "the value must be a list",
    "dict_type": "the value must be a table",
    "model_type": "the value must be a table",
    "too_short": "the list is empty; give at least 1 item",
    "string_too_short": "the text is empty; write a text, or remove the key",
}


def _whole(value: Any) -> Any:
    # Python's true and 1.0 equal 1, and so would pass for it.
    if isinstance(value, bool | float):
        raise ValueError("input should be 1")
    return value


SchemaVersion = Annotated[
    Literal[1],
    BeforeValidator(_whole),
    Field(alias="schema", description="version of the file format; the only allowed version is 1"),
]


class Table(BaseModel):
    """A table of a file, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def key(description: str, default: Any = None, **limits: Any) -> Any:
    """Return the field of a key that a file may leave out."""
    return Field(default=default, description=description, **limits)


def load(source: str, model: type[Model], built_in: Mapping[str, Path], **changes: Any) -> Model:
    """Read a file by its path or its built-in name.

    `changes` are the values of options, which replace the file's keys of those names unless None.
    """
    path = built_in.get(source, Path(source))
    kind, noun = model.__name__, model.__name__.lower()
    keys = _read(path, f"give a {noun} file, or the name of a built-in {noun}", built_in)
    if MARKS.get(kind) not in (None, *keys):
        others = (other.lower() for other, key in MARKS.items() if key in keys)
        if other := next(others, ""):
            raise ValueError(f"{path} is a {other} file; give a {noun} file")
    keys |= {key: value for key, value in changes.items() if value is not None}
    try:
        return model.model_validate(keys)
    except ValidationError as error:
        key = str(next(iter(_first(error)["loc"]), ""))
        where = path if changes.get(key) is None else f"--{key.replace('_', '-')}"
        raise ValueError(f"{where}: {sentence(error, model)}") from None


def table(path: Path, name: str) -> dict[str, Any]:
    """Return one table of a file, unchecked; an empty one where the file has none."""
    value = _read(path, "give a TOML file", {}).get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {name} = {_shown(value)}: {WORDS['dict_type']}")
    return value


def _read(path: Path, todo: str, built_in: Mapping[str, Path]) -> dict[str, Any]:
    try:
        path.stat()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; {todo}: {', '.join(built_in)}") from error
    with files.open_file(path) as file:
        content = file.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise ValueError(f"{path}: the file is larger than the limit of 1 MiB; {todo}")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # some editors begin with a mark
    except UnicodeDecodeError as error:
        why = f"{error}; save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        why = str(error)
    except (ValueError, RecursionError):  # the parser's own limits of digits and depth
        why = "a number has too many digits, or tables are nested too deeply"
    raise ValueError(f"{path}: the file is not valid TOML: {why}")


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first error of a model's input in one sentence."""
    first = _first(error)
    place = [str(part) for part in first["loc"] if part != "[key]"]
    key, value = ".".join(place), first["input"]
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
        abouts = {field.alias or name: field.description for name, field in fields.items()}
        about = abouts.get(place[-1])
        return f"key {key!r} is missing" + (f" ({about})" if about else "")
    message: str = WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    if not key:
        return message
    if isinstance(value, dict) or "[key]" in first["loc"]:  # the name is wrong
        return f"{key}: {message}"
    if first["type"] in ("string_type", "string_pattern_mismatch") and place[-1] in fields:
        given, description = _shown(value), fields[place[-1]].description
        return f"{key} = {given} is not allowed; {key} is the {description}"
    if first["type"] == "literal_error":
        message += _nearest(value, re.findall("'([^']*)'", first["ctx"]["expected"]))
    return f"{key} = {_shown(value)}: {message[0].lower()}{message[1:]}"


def _first(error: ValidationError) -> Any:
    # A misspelt key causes two errors: it is unknown, and the right key is missing. Show the first.
    return min(error.errors(), key=lambda part: part["type"] != "extra_forbidden")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value) if isinstance(value, date | time) else repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "..."


def _nearest(value: Any, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(value), allowed, n=1, cutoff=LIKENESS)
    return f"; did you mean {near[0]!r}?" if near else ""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type, such as `Jobs`, `tuple[Stage, ...]` or `Container | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
