"""How numbers are written: three significant digits, a dash if unknown."""

from collections.abc import Iterable

DASH = "\u2013"
THIN = "\u202f"


def number(value: float | None, digits: int = 3, scale: float = 1.0) -> str:
    """Return a number with so many digits, in the unit that `scale` makes.

    Thousands are separated by thin spaces.
    """
    if value is None:
        return DASH
    value *= scale
    if value == 0:
        return "0"
    # The exponent after rounding: 9.999 has the size of 10.
    size = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if size < -6:
        return f"{value:.{digits - 1}e}"
    places = digits - 1 - size
    if places > 0:
        return f"{value:.{places}f}"
    return f"{round(value, places):,.0f}".replace(",", THIN if abs(value) >= 10_000 else "")


def trimmed(value: float | None) -> str:
    """Return a number as `number` does, without the zeros that end its fraction."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def ratio(value: float | None) -> str:
    """Return a speed-up or another ratio with two decimals."""
    return DASH if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Return a fraction in per cent with one decimal and no sign: the header has it."""
    return DASH if value is None else f"{100 * value:.1f}"


def span(interval: tuple[float, float] | None, scale: float = 1.0) -> str:
    """Return an interval's two ends with three digits, in the unit that `scale` makes."""
    if interval is None:
        return DASH
    return f"{number(interval[0] * scale)} to {number(interval[1] * scale)}"


def percent_span(interval: tuple[float, float] | None) -> str:
    """Return an interval of a fraction in per cent."""
    return DASH if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"


def ratio_span(interval: tuple[float, float] | None) -> str:
    """Return an interval of a ratio with two decimals."""
    return DASH if interval is None else f"{ratio(interval[0])} to {ratio(interval[1])}"


def capital(text: str) -> str:
    """Return a text that begins a cell or a sentence."""
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


def size_of(num_bytes: float) -> str:
    """Return a message size in binary units, as collectives are swept."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{trimmed(num_bytes)} {unit}"
        num_bytes /= 1024
    return f"{trimmed(num_bytes)} GiB"
