"""How numbers and durations are written and read, and how foreign texts are made fit to print."""

import re
from collections.abc import Iterable

DASH = "\u2013"
THIN = "\u202f"


def number(value: float | None, digits: int = 3, scale: float = 1.0) -> str:
    """Return a number with `digits` significant digits and thin spaces; a dash for None."""
    if value is None:
        return DASH
    value *= scale
    if value == 0:
        return "0"
    # The exponent of the rounded number, since 9.999 rounds to 10.
    size = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if size < -6:
        return f"{value:.{digits - 1}e}"
    places = digits - 1 - size
    if places > 0:
        return f"{value:.{places}f}"
    return f"{round(value, places):,.0f}".replace(",", THIN if abs(value) >= 10_000 else "")


def trimmed(value: float | None, digits: int = 3) -> str:
    """Return a number as `number` does, without the zeros that end its fraction."""
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def ratio(value: float | None) -> str:
    """Return a speed-up or another ratio with two decimals."""
    return DASH if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Return a fraction in per cent with one decimal, without the sign %."""
    return DASH if value is None else f"{100 * value:.1f}"


def span(interval: tuple[float, float] | None, scale: float = 1.0) -> str:
    if interval is None:
        return DASH
    return f"{number(interval[0] * scale)} to {number(interval[1] * scale)}"


def percent_span(interval: tuple[float, float] | None) -> str:
    return DASH if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"


def ratio_span(interval: tuple[float, float] | None) -> str:
    return DASH if interval is None else f"{ratio(interval[0])} to {ratio(interval[1])}"


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 rank, 2 ranks."""
    plural = noun + ("es" if noun.endswith("ch") and noun != "epoch" else "s")
    number = f"{count:,}".replace(",", THIN if count >= 10_000 else "")
    return f"{number} {noun if count == 1 else plural}"


def listed(items: Iterable[object], limit: int = 12) -> str:
    """Return items separated by commas; past the limit, how many were left out."""
    texts = [str(item) for item in items]
    if len(texts) <= limit:
        return ", ".join(texts)
    return ", ".join(texts[:limit]) + f" and {len(texts) - limit} more"


def size_of(num_bytes: float | None) -> str:
    """Return a size in binary units, as collectives are swept; a dash for None."""
    if num_bytes is None:
        return DASH
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{trimmed(num_bytes)} {unit}"
        num_bytes /= 1024
    return f"{trimmed(num_bytes)} GiB"


# Seconds in each unit that a table of times may use.
TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0}
TIME_UNITS |= {"h": 3600.0, "hours": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9}(?:\.\d+)?)", re.ASCII)


def parse_duration(text: str) -> float | None:
    """Return the seconds of `[days-][hours:]minutes:seconds[.fraction]`; None for other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])


def parse_limit(text: str) -> int:
    """Return the seconds of a time limit, `[days-]HH:MM:SS`."""
    seconds = parse_duration(text)
    if seconds is None:
        raise ValueError(f"{text!r} is not a time limit; write [days-]HH:MM:SS")
    return int(seconds)


def clock(seconds: int) -> str:
    """Return a duration as Slurm writes a time limit: `[days-]HH:MM:SS`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    prefix = f"{days}-" if days else ""
    return f"{prefix}{hours:02}:{minutes:02}:{seconds:02}"


def in_words(seconds: float | None, digits: int = 3) -> str:
    """Return a duration as people say it: 2 ms, 73.5 s, 12 min, 3.5 h; a dash for None."""
    if seconds is None:
        return DASH
    for least_s, unit in ((7200.0, "h"), (120.0, "min"), (0.1, "s")):
        if seconds >= least_s:
            return f"{trimmed(seconds / TIME_UNITS[unit], digits)} {unit}"
    return f"{trimmed(seconds * 1e3, digits)} ms"


def about(seconds: float) -> str:
    """Return an estimated duration: whole minutes from two minutes on, else two digits."""
    if 120 <= seconds < 7200:
        return f"about {round(seconds / 60)} min"
    return f"about {in_words(seconds, 2)}"


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Control characters but the tab and the end of a line; C1, too, which some terminals act on.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Control characters in the bytes of a JSON document, escaped or in UTF-8; and pairs of backslashes,
# the second of which escapes nothing.
_IN_JSON = re.compile(
    rb"\\(?:u00(0[0-8b-fB-F]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|([bfr])|\\)|"
    rb"\xc2([\x80-\x9f])|\x7f"
)
_LETTERS = {b"b": b"08", b"f": b"0c", b"r": b"0d"}


def visible(text: str) -> str:
    r"""Return a text whose control characters are escapes such as `\x1b`, and without colours."""
    if text.isprintable():
        return text
    plain = COLOUR.sub("", text).replace("\r\n", "\n")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", plain)


def visible_json(document: bytes) -> bytes:
    """Return a JSON document whose texts have no control character, as `visible` does."""
    has_any = any(byte in document for byte in (b"\\", b"\xc2", b"\x7f"))
    return _IN_JSON.sub(_escaped, document) if has_any else document


def _escaped(match: re.Match[bytes]) -> bytes:
    code, letter, second = match.groups()
    if match[0] == rb"\\":
        return match[0]
    digits = code or _LETTERS.get(letter) or f"{(second or match[0])[0]:02x}".encode()
    return rb"\\x" + digits.lower()


def one_line(text: str) -> str:
    r"""Return a text as one line; other control characters become escapes such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def last_line(text: str) -> str:
    """Return the last line that is not empty, as `one_line` does but without colours."""
    lines = COLOUR.sub("", text).strip().splitlines()
    return one_line(lines[-1].strip()) if lines else ""
