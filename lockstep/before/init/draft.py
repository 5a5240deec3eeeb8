"""A file to write, and how TOML writes a key that is set or only proposed."""

import json
import re
from dataclasses import dataclass
from typing import Any

from lockstep.core.text.printable import one_line

COMMENT_COLUMN = 40


@dataclass(frozen=True)
class Draft:
    """A file to write.

    Attributes:
        to_fill_in: Keys that only a person can set.
    """

    text: str
    to_fill_in: tuple[str, ...] = ()


def line(key: str, value: Any, comment: str = "", *, is_set: bool = True) -> str:
    """Return a key's line with a comment; where the key is not set, the whole line is one."""
    text = f"{'' if is_set else '# '}{key} = {toml(value)}"
    return f"{text:<{COMMENT_COLUMN}}  # {one_line(comment)}" if comment else text


def toml(value: Any) -> str:
    """Return a value as TOML writes it; its strings are JSON's."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False)


def toml_key(name: str) -> str:
    """Return a name as a key of TOML."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else toml(name)
