"""Text as LaTeX, Markdown and a spreadsheet have it: what comes from others stays text.

The script of a page reads the same tables.
"""

import json
import unicodedata

from lockstep.core import formats

_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    formats.DASH: "--", formats.THIN: r"\,", "\u2014": "---", "\u2019": "'", "\u00a0": "~",
    "\u00d7": r"$\times$", "\u00b5": r"$\mu$", "\u03bc": r"$\mu$", "\u00b1": r"$\pm$",
    "\u00df": r"\ss{}", "\u00f8": r"\o{}", "\u00d8": r"\O{}", "\u00e6": r"\ae{}",
    "\u0142": r"\l{}", "\u0141": r"\L{}", "\n": "\n", "'": "'", "`": r"\textasciigrave{}",
}  # fmt: skip
_TEX |= {"\u00b2": "$^2$", "\u00b3": "$^3$", "\u2076": "$^6$", "\u2079": "$^9$"}
_TEX['"'] = "''"
_TEX["\u25a0"] = r"\rule{5pt}{5pt}"
_TEX |= {"\u2713": r"$\surd$", "\u2717": r"$\times$"}
# A combining mark -> LaTeX's command, which puts it over the letter.
_MARKS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r",
    "\u0327": "c", "\u030c": "v", "\u0306": "u", "\u030b": "H", "\u0307": ".", "\u0328": "k",
}  # fmt: skip
UNKNOWN = "?"
_MARKDOWN = frozenset("\\`*_{}[]#|$~")
# A spreadsheet runs text that begins so.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def tex(text: str) -> str:
    """Return text that LaTeX sets as it is; a letter that its fonts lack becomes a ?."""
    return "".join(map(_letter, str(text)))


def _letter(letter: str) -> str:
    if known := _TEX.get(letter):
        return known
    if letter.isascii():
        return letter if letter.isprintable() else " "
    parts = unicodedata.normalize("NFD", letter)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _MARKS:
        return f"\\{_MARKS[parts[1]]}{{{parts[0]}}}"
    return UNKNOWN


def markdown(text: str) -> str:
    """Return text that Markdown shows as it is, in a paragraph or a cell of a table.

    A space without width keeps a name after an @ from being notified where it is posted.
    """
    escaped = "".join(f"\\{one}" if one in _MARKDOWN else one for one in str(text))
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("@", "@&#8203;")


def csv_text(text: str) -> str:
    """Return text that no spreadsheet runs as a formula, and no reader takes for two lines."""
    # The writer quotes no lone carriage return, and a reader would end the line there.
    return (f"'{text}" if text.startswith(FORMULA) else text).replace("\r", " ")


def tables() -> str:
    """Return the tables as JSON, for the script of a page."""
    return json.dumps({"tex": _TEX, "formula": "".join(FORMULA)})
