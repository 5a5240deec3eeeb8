"""From the report's data to one self-contained HTML page."""

import json
from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lockstep import content

# By this line in its head a page is known as a report that may be made anew.
MARK = '<meta name="generator" content="lockstep report">'
ORIGIN_LABELS = {"measured": "measured", "cited": "cited, not measured", "target": "target"}


def html(data: dict[str, Any]) -> str:
    """Return the page for what `lockstep.report.page.content_of_page.page` made.

    Text is escaped by the template; only figures, drawn here, and the embedded JSON, whose
    closing tags are broken up, enter as they are.
    """
    template = _environment().get_template("report.html.j2")
    specs = [spec for part in data["sections"] for spec in part["figures"]]
    figures = {spec["id"]: _draw(spec, data["source"]) for spec in specs}
    return template.render(
        page=data,
        figures=figures,
        mark=Markup(MARK),  # noqa: S704, since it is a constant
        style=_style(),
        labels=ORIGIN_LABELS,
        embedded=embedded(data["data"]),
    )


def embedded(data: dict[str, Any] | None) -> Markup | None:
    """Return data as JSON that no script element can be closed by, or None without data."""
    if data is None:
        return None
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704, since nothing in it can be markup any more


def _draw(spec: dict[str, Any], source: str) -> Markup:
    # Matplotlib takes a second to import, and a page without figures does not need it.
    from lockstep.report.page.figures import draw

    return Markup(draw(spec, source))  # noqa: S704, since a figure escapes its own text


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(content.ROOT / "reports" / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _style() -> Markup:
    text = (content.ROOT / "reports" / "templates" / "report.css").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704, since it is our own file
