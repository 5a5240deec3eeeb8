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
from lockstep.report.words import escapes

# By this line in its head a page is known as a report that may be made anew.
MARK = '<meta name="generator" content="lockstep report">'
COMPARED = '<meta name="generator" content="lockstep compare">'
ORIGIN_LABELS = {"measured": "measured", "cited": "cited, not measured", "target": "target"}


def html(data: dict[str, Any], mark: str = MARK) -> str:
    """Return the page for what `lockstep.report.page.content_of_page.page` made.

    Text is escaped by the template; only figures, drawn here, and our own style and script enter as
    they are. The page allows no script but the one whose hash it names.
    """
    template = environment().get_template("report.html.j2")
    specs = [spec for part in data["sections"] for spec in part["figures"]]
    specs += [data["figure"]] if data["figure"] else []
    figures = {}
    if specs:
        # Matplotlib takes a second to import, and a page without figures does not need it.
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
        labels=ORIGIN_LABELS,
        embedded=embedded(data["data"]),
        escapes=escapes.tables(),
    )


def refuse_foreign(target: Path, force: bool, option: str, mark: str = MARK) -> None:
    """Refuse to replace a page that its command has not made.

    Raises:
        ValueError: There is a folder, or a page without the mark.
    """
    if target.is_dir():
        raise ValueError(f"{target} is a folder; name the page in it, as {target / 'report.html'}")
    if force or not target.exists():
        return
    with files.opened(target, sys.maxsize) as page:
        if mark.encode() in page.read(2048):
            return
    made = "comparison" if mark == COMPARED else "report"
    raise ValueError(f"{target} is no Lockstep {made}; choose {option} or pass --force")


def write(data: dict[str, Any], target: Path, mark: str = MARK) -> None:
    """Write the page.

    Raises:
        ValueError: There is no folder for it.
    """
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent}: no such folder to write the report to")
    # A name of a file may hold bytes, and so letters, that UTF-8 has not.
    files.write_atomically(target, html(data, mark).encode("utf-8", "backslashreplace"))


def embedded(data: dict[str, Any]) -> str:
    """Return data as JSON, packed by gzip and written in base64, as the page's script reads it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # Without the time of day, so that equal data give equal pages.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates of pages: all text is escaped, and nothing may be undefined."""
    return Environment(
        loader=FileSystemLoader(content.ROOT / "reports" / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def own(name: str) -> Markup:
    """Return a file of ours that enters the page as it is."""
    text = (content.ROOT / "reports" / "templates" / name).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704, since it is our own file
