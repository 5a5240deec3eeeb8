"""The TOML files that a user writes: read, checked against a model, refused in one sentence."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def load(source: str, model: type[Model], built_in: Mapping[str, Path], **changes: Any) -> Model:
    """Read a file by its path or its built-in name.

    Args:
        source: A TOML file, or a key of `built_in`.
        model: What it may say.
        built_in: Name -> file of those that ship with the suite.
        changes: Keys to set over the file's; None leaves a key as it is.

    Raises:
        ValueError: The file cannot be read, or says something that is not allowed.
    """
    path = built_in.get(source, Path(source))
    kind = model.__name__.lower()
    given = _read(path, kind, built_in)
    given |= {key: value for key, value in changes.items() if value is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"{path}: {_sentence(error, model)}") from None


def _read(path: Path, kind: str, built_in: Mapping[str, Path]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(built_in)
        raise ValueError(
            f"{path}: {error.strerror}; give a {kind} file, or a built-in one: {names}"
        ) from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ValueError(f"{path}: not a TOML file: {error}") from error


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first thing that is wrong, in one sentence."""
    # A misspelt key is missing as well; what was meant shows in the unknown one.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    place = [str(part) for part in first["loc"] if part != "[key]"]
    key, given = ".".join(place), first["input"]
    fields = _table(place, model).model_fields
    if first["type"] == "extra_forbidden":
        return _unknown(key, [field.alias or name for name, field in fields.items()])
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if not key:
        return message
    if isinstance(given, dict):
        return f"{key}: {message}"
    if first["type"] in ("string_type", "string_pattern_mismatch") and place[-1] in fields:
        return f"{key} = {given!r} is not allowed; write the {fields[place[-1]].description}"
    return f"{key} = {given!r}: {message[0].lower()}{message[1:]}"


def _unknown(key: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(key.rpartition(".")[2], allowed, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(allowed)}"
    return f"unknown key {key!r}; {hint}"


def _table(place: Sequence[str], model: type[BaseModel]) -> type[BaseModel]:
    """Return the model of the table that a key stands in."""
    tables = {kind.__name__: kind for kind in _tables(model)}
    for part in place[:-1]:
        field = model.model_fields.get(part)
        named = [kind for name, kind in tables.items() if field and name in str(field.annotation)]
        model = named[0] if named else model
    return model


def _tables(model: type[BaseModel]) -> list[type[BaseModel]]:
    return [kind for kind in BaseModel.__subclasses__() if kind.__module__ == model.__module__]
