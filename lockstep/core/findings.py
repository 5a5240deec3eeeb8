"""What a check, a gate, a doctor or a screening has found: one record, one way to show it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, Literal

Level = Literal["error", "warning", "note", "missing", "ok", "not needed"]
WIDTH = 100
# What keeps results from being valid, or a machine from measuring.
FAILING = ("error", "missing")


@dataclass(frozen=True)
class Finding:
    """A fact, how much it weighs and what to do about it.

    Attributes:
        kind: Which fact it is; code reads this and never the text.
        text: The fact with its value, in a sentence without its full stop.
        action: What to do; empty where nothing is to be done.
        values: The numbers and names of the fact.
    """

    kind: str
    text: str
    level: Level = "error"
    action: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return what `--json` prints of every finding."""
        return {
            "kind": self.kind, "level": self.level, "values": dict(self.values),
            "action": self.action,
        }  # fmt: skip


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 where one of the findings is an error, or something is missing; else 0."""
    return int(any(finding.level in FAILING for finding in findings))


def wrapped(text: str, first: str = "", indent: str = "  ", width: int = WIDTH) -> str:
    """Return a text in lines of at most `width` columns: after `first`, then after `indent`."""
    return "\n".join(
        wrap(
            text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )
    )  # fmt: skip
