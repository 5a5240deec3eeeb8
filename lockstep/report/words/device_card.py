"""What one device of a kind gives over one of another, in words."""

from collections.abc import Sequence
from typing import Any

from lockstep.report.compute.alternatives.other_devices import Replaced, kind_of_device, replaced
from lockstep.report.compute.scaling import Series
from lockstep.report.page.panels import parts
from lockstep.report.words.headline import TIMES
from lockstep.vocabulary.text.formats import ratio

TITLES = {"cited": "Cited", "target": "Target"}


def headlines(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a headline for each device that a table sets beside a slower one."""
    return [_headline(one) for one in replaced(series)]


def sentence(found: Replaced) -> str:
    """Say how much faster one device of the other kind does the work."""
    return (
        f"1 device of {found.other.label} gives {ratio(found.speedup)}{TIMES} the rate of "
        f"{kind_of_device(found.slowest)} at {parts.absolute(found.slowest.base)}"
    )


def _headline(found: Replaced) -> dict[str, Any]:
    said, origin = sentence(found), found.slowest.row.origin
    blocked = found.slowest.base.blocked_by or found.other.base.blocked_by
    text = "no verdict, blocked by the check" if blocked else said
    return {
        "title": TITLES[origin], "of": found.slowest.label, "text": text,
        "kind": "blocked" if blocked else "good",
        "lines": [text], "short": "", "others": [],
    }  # fmt: skip
