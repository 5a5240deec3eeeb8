"""From a pack's data to its folder: Markdown, LaTeX, figures, and the numbers as JSON."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lockstep.core.files import write_atomically
from lockstep.report.pack.choices import FOLDER
from lockstep.report.page import figures
from lockstep.report.words import escapes

NUMBERS = "numbers.json"
TEXTS = ("proposal.md", "proposal.tex")


def refuse_foreign(folder: Path, force: bool) -> None:
    """Refuse to write among files that are no pack.

    Raises:
        ValueError: The folder holds other files, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is no folder; name another with --to")
    is_free = not folder.exists() or not any(folder.iterdir()) or (folder / NUMBERS).exists()
    if not (is_free or force):
        raise ValueError(f"{folder} holds files that are no pack; choose --to or pass --force")


def write(
    folder: Path,
    text: Mapping[str, Any],
    specs: Iterable[dict[str, Any]],
    source: str,
    numbers: Mapping[str, Any],
) -> list[Path]:
    """Write a pack and return its files, the texts first."""
    files: dict[str, str | bytes] = {
        name: _environment(name).get_template(f"{name}.j2").render(text=text).encode(
            "utf-8", "backslashreplace"
        )
        for name in TEXTS
    }  # fmt: skip
    for spec in specs:
        for kind in figures.FORMATS:
            files[f"figures/{spec['id']}.{kind}"] = figures.saved(spec, source, kind)
    # Last, since a folder with numbers is a whole pack.
    files[NUMBERS] = json.dumps(numbers, indent=1, allow_nan=False)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return [folder / name for name in files]


@lru_cache(maxsize=2)
def _environment(name: str) -> Environment:
    """Return what renders a text, its values escaped by a filter `text` as the format needs."""
    is_tex = name.endswith(".tex")
    # Braces are LaTeX's own.
    own: dict[str, str] = {
        "block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<",
        "variable_end_string": ">>", "comment_start_string": "<#", "comment_end_string": "#>",
    } if is_tex else {}  # fmt: skip
    made = Environment(  # noqa: S701, since the filter escapes, and HTML is not what is made
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, **own,  # type: ignore[arg-type]
    )  # fmt: skip
    escape = escapes.tex if is_tex else escapes.markdown
    made.filters["text"] = escape
    made.filters["cell"] = lambda value: escape(" ".join(str(value).splitlines()))
    return made
