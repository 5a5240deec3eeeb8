"""Durations as text: read as Slurm and its users write them, written for Slurm and for people."""

import re

from lockstep.core.text.formats import DASH, trimmed

# Seconds in each unit that a table of times may use.
TIME_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
}
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9}(?:\.\d+)?)", re.ASCII)


def parse(text: str) -> float | None:
    """Return the seconds of `[days-][hours:]minutes:seconds[.fraction]`; None for other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])


def parse_limit(text: str) -> int:
    """Return the seconds of a time limit, `[days-]HH:MM:SS`.

    Raises:
        ValueError: The text is no duration.
    """
    seconds = parse(text)
    if seconds is None:
        raise ValueError(f"{text!r} is no time limit; write [days-]HH:MM:SS")
    return int(seconds)


def clock(seconds: int) -> str:
    """Return a duration as Slurm writes a time limit: `[days-]HH:MM:SS`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    prefix = f"{days}-" if days else ""
    return f"{prefix}{hours:02}:{minutes:02}:{seconds:02}"


def in_words(seconds: float | None) -> str:
    """Return a duration as people say it: 2 ms, 73.5 s, 12 min, 3.5 h; a dash for None."""
    if seconds is None:
        return DASH
    for least_s, unit in ((7200.0, "h"), (120.0, "min"), (0.1, "s")):
        if seconds >= least_s:
            return f"{trimmed(seconds / TIME_UNITS[unit])} {unit}"
    return f"{trimmed(seconds * 1e3)} ms"
