"""The strip of hosts and ranks: who is slow."""

from collections.abc import Sequence
from typing import Any

from lockstep.core.formats import counted
from lockstep.report.compute.lost_time.slow import Pace, Slowest
from lockstep.report.page.panels.parts import Figure

# Lines of the figure; of more hosts or ranks, the slowest.
MAX_LINES = 12


def pace(paces: Sequence[Pace], found: Slowest | None) -> Figure:
    """Return each host, or each rank of a single host, with its time over the others'."""
    is_hosts = paces[0].rank is None
    noun = "host" if is_hosts else "rank"
    items = [_item(one, found) for one in paces[:MAX_LINES]]
    title = f"Who is slow: the own work of each {noun} beside the others'"
    note = (
        "Time of a step without gradient synchronisation over that of the median of the others, "
        f"the slowest {noun} first: the geometric mean over launches, with its 95 % interval."
    )
    note += " Faint dots: each rank of the host." if is_hosts else " Faint dots: each launch."
    if len(paces) > MAX_LINES:
        title += f" (the {MAX_LINES} slowest of {counted(len(paces), noun)})"
    described = "; ".join(f"{item['label']}: {item['value']:+.2f} %" for item in items)
    return {
        "kind": "category", "id": "pace-strip", "title": title, "items": items, "note": note,
        "xlabel": "Longer than the others (%)", "ylabel": noun.capitalize(),
        "line": 0.0, "is_relative": True, "desc": f"Pace by {noun}. {described}.",
    }  # fmt: skip


def _item(one: Pace, found: Slowest | None) -> dict[str, Any]:
    name = one.host if one.rank is None else f"{one.rank}"
    is_far = found is not None and (found.host, found.rank) == (one.host, one.rank)
    return {
        "label": name or "unknown", "value": _percent(one.ratio),
        "interval": [*map(_percent, one.interval)] if one.interval else None,
        "dots": [*map(_percent, one.spread)], "is_far": is_far,
    }  # fmt: skip


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)
