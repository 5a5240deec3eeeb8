"""Texts of others, such as error messages and names of files, made fit to print."""

import re

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Control characters but the tab and the end of a line; C1, too, which some terminals act on.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# The same in the bytes of a JSON document, where they are escaped or in UTF-8; and pairs of
# backslashes, the second of which escapes nothing.
_IN_JSON = re.compile(
    rb"\\(?:u00(0[0-8b-fB-F]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|([bfr])|\\)|"
    rb"\xc2([\x80-\x9f])|(\x7f)"
)
_LETTERS = {b"b": b"08", b"f": b"0c", b"r": b"0d"}


def visible(text: str) -> str:
    r"""Return a text whose control characters are escapes such as `\x1b`, and without colours."""
    if text.isprintable():
        return text
    plain = COLOUR.sub("", text).replace("\r\n", "\n")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", plain)


def visible_json(document: bytes) -> bytes:
    """Return a JSON document whose texts have no control character, as `visible` does."""
    return _IN_JSON.sub(_escaped, document)


def _escaped(found: re.Match[bytes]) -> bytes:
    code, letter, second, single = found.groups()
    if found[0] == rb"\\":
        return found[0]
    digits = code or _LETTERS.get(letter) or f"{(second or single)[0]:02x}".encode()
    return rb"\\x" + digits.lower()


def one_line(text: str) -> str:
    r"""Return a text as one line that cannot act on a terminal.

    A line end becomes a blank, any other control character its escape, such as `\x1b`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def last_line(text: str) -> str:
    """Return the last line that is not empty, as `one_line` does but without colours."""
    lines = COLOUR.sub("", text).strip().splitlines()
    return one_line(lines[-1].strip()) if lines else ""
