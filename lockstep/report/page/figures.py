"""From a figure's description to inline SVG, and to files.

Drawn with Matplotlib's figure objects alone (no pyplot, no display). Text stays text, ids hang on
a fixed salt and no date is written, so the same data give the same bytes. In a page colours become
CSS variables, which lets it recolour its figures in dark mode and in print.
"""

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl

from lockstep.core.files import write_atomically
from lockstep.report.page.drawing import KINDS, STYLE, VARIABLES, WIDTH_IN, Canvas

Format = Literal["svg", "pdf", "png"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png")
DOTS_PER_IN = 200
POINTS_PER_IN = 72
# Of the place that answers a pointer, in points.
REACH_PT = 7


def draw(spec: dict[str, Any], source: str = "") -> str:
    """Return a figure as an SVG element for HTML, with a title and a description.

    The element shows the figure; its basis lies below what is shown, in reach of `data-saved`, the
    view box of a figure that is saved alone.
    """
    with mpl.rc_context(STYLE):
        canvas = KINDS[spec["kind"]](spec, source)
        svg = _inner(canvas)
        # Inside HTML the parser knows the namespaces; group ids would repeat between figures.
        svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
        svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
        for colour, variable in VARIABLES.items():
            svg = svg.replace(colour, variable)
        return _named(svg, spec, source, canvas)


def saved(spec: dict[str, Any], source: str, kind: Format) -> bytes:
    """Return a figure as the bytes of a file, its basis below it."""
    with mpl.rc_context(STYLE):
        canvas = KINDS[spec["kind"]](spec, source)
        canvas.figure.set_facecolor("#ffffff")
        if kind == "svg":
            body = _inner(canvas)
            text = f"<title>{escape(spec['title'])}</title>\n<desc>{escape(spec['desc'])}</desc>\n"
            text += f"<metadata>{escape(source)}</metadata>"
            first = body.index(">") + 1
            return f"{body[:first]}\n{text}{body[first:]}".encode("utf-8", "backslashreplace")
        file = io.BytesIO()
        facts: dict[str, dict[str, Any]] = {
            "pdf": {"CreationDate": None, "Creator": None, "Producer": None,
                    "Title": spec["title"], "Subject": source},
            "png": {"Software": None, "Title": spec["title"], "Description": source},
        }  # fmt: skip
        canvas.figure.savefig(file, format=kind, dpi=DOTS_PER_IN, metadata=facts[kind])
        return file.getvalue()


def write(page: Mapping[str, Any], folder: Path, formats: Sequence[Format] = FORMATS) -> list[Path]:
    """Write every figure of a page as files named by its id; return them, in the page's order.

    The folder is made where it is not there. The same data give the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for spec in (one for section in page["sections"] for one in section["figures"]):
        for kind in formats:
            made.append(folder / f"{spec['id']}.{kind}")
            write_atomically(made[-1], saved(spec, page["source"], kind))
    return made


def _inner(canvas: Canvas) -> str:
    """Return the figure as Matplotlib writes it, from <svg on and without its own metadata."""
    text = io.StringIO()
    canvas.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    # That metadata is a list of addresses.
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)


def _named(svg: str, spec: dict[str, Any], source: str, canvas: Canvas) -> str:
    key = escape(spec["id"], quote=True)
    width = WIDTH_IN * POINTS_PER_IN
    height = canvas.figure.get_figheight() * POINTS_PER_IN
    head = (
        f'<svg role="img" aria-labelledby="{key}-title {key}-desc" '
        f'viewBox="0 0 {width:g} {canvas.shown_in * POINTS_PER_IN:g}" '
        f'data-saved="0 0 {width:g} {height:g}" preserveAspectRatio="xMidYMid meet">'
        f'\n<title id="{key}-title">{escape(spec["title"])}</title>'
        f'\n<desc id="{key}-desc">{escape(spec["desc"])}</desc>'
    )
    text = f"\n<metadata>{escape(source)}</metadata>" if source else ""
    body = svg[svg.index(">") + 1 : svg.rindex("</svg>")]
    return f"{head}{text}{body}{_pointed_at(canvas)}</svg>\n"


def _pointed_at(canvas: Canvas) -> str:
    """Return places without a colour that say their value on hover, with no script."""
    height = canvas.figure.get_figheight() * POINTS_PER_IN
    per_dot = POINTS_PER_IN / canvas.figure.get_dpi()
    places = []
    for mark in canvas.marks:
        x, y = mark.axes.transData.transform((mark.x, mark.y)) * per_dot
        places.append(
            f'<circle cx="{x:.1f}" cy="{height - y:.1f}" r="{REACH_PT}" fill="none" '
            f'pointer-events="all"><title>{escape(mark.text)}</title></circle>'
        )
    return "<g>" + "\n".join(places) + "</g>" if places else ""
