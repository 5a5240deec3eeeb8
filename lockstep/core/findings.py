"""The findings of a check, a gate, a doctor or a screening: one record, and its exit code."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, Literal

Level = Literal["error", "warning", "note", "missing", "ok", "not needed"]
WIDTH = 100
# Levels that make results invalid, or keep a machine from measuring.
FAILING = ("error", "missing")
# Printed after symptoms: the page with cause and cure of each.
SYMPTOMS = "docs/troubleshooting.md explains symptoms, causes and cures."


@dataclass(frozen=True)
class Finding:
    """A fact, how much it weighs and what to do about it."""

    kind: str  # code reads this and never the text
    text: str  # the fact with its value, a sentence without its full stop
    level: Level = "error"
    action: str = ""  # what to do
    values: Mapping[str, Any] = field(default_factory=dict)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 where one of the findings is an error, or something is missing; else 0."""
    return int(any(finding.level in FAILING for finding in findings))


def wrapped(
    text: str, first: str = "", rest: str = "  ", width: int = WIDTH, *, splits_words: bool = True
) -> str:
    """Return a text in lines of at most `width` columns: after `first`, then after `rest`.

    A path that is to be copied stays whole where words are not split.
    """
    return "\n".join(
        wrap(
            text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False,
            break_long_words=splits_words,
        )
    )  # fmt: skip
