"""From the report's data to one self-contained HTML page."""

import base64
import gzip
import hashlib
import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lockstep import content
from lockstep.core import files
from lockstep.report.page import parts
from lockstep.report.words import lines

# A page with this line in its head is a report, and may be replaced.
MARK = '<meta name="generator" content="lockstep report">'
COMPARED = '<meta name="generator" content="lockstep compare">'


def html(data: dict[str, Any], mark: str = MARK) -> str:
    """Return the page of the data that `lockstep.report.page.content_of_page.page` makes.

    The template escapes all text but figures, style and script; only that script may run.
    """
    template = environment().get_template("report.html.j2")
    specs = [spec for part in data["sections"] for spec in part["figures"]]
    specs += [data["figure"]] if data["figure"] else []
    figures = {}
    if specs:  # importing Matplotlib takes a second
        from lockstep.report.page.figures import draw

        # A figure escapes its own text.
        figures = {spec["id"]: Markup(draw(spec, data["source"])) for spec in specs}  # noqa: S704
    script = own("report.js")
    return template.render(
        page=data,
        figures=figures,
        mark=Markup(mark),  # noqa: S704, since it is a constant
        style=own("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        embedded=embed(data["data"]),
        escapes=lines.tables(),
    )


def refuse_foreign(target: Path, force: bool, option: str, mark: str = MARK) -> None:
    """Raise ValueError if the target is a folder, or a page that its command did not write."""
    if target.is_dir():
        example = target / "report.html"
        raise ValueError(f"{target} is a folder; add a file name, as in {example}")
    if force or not target.exists():
        return
    with files.open_file(target, sys.maxsize) as page:
        if mark.encode() in page.read(2048):
            return
    page_kind = "comparison" if mark == COMPARED else "report"
    raise ValueError(
        f"{target} exists and is not a Lockstep {page_kind}; choose another {option}, or pass "
        "--force to replace the file"
    )


def write(data: dict[str, Any], target: Path, mark: str = MARK) -> None:
    """Write the page; raise ValueError if there is no folder for it."""
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent}: there is no such folder; create it, or choose another")
    # A name of a file may hold bytes that are no UTF-8.
    files.write_atomically(target, html(data, mark).encode("utf-8", "backslashreplace"))


def embed(data: dict[str, Any]) -> str:
    """Return data as JSON, gzipped and in base64, for the page's script."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # Without a time stamp, so that equal data give equal pages.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates of pages: all text is escaped, and an undefined name is an error."""
    made = Environment(
        loader=FileSystemLoader(content.ROOT / "reports" / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["marks"] = parts.MARKS
    return made


def own(name: str) -> Markup:
    """Return a file of the templates that enters the page unchanged."""
    text = (content.ROOT / "reports" / "templates" / name).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704, since it is our own file
