"""Why a run of a program does not count: a kind and its facts, put into words here alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lockstep.core.text.printable import last_line

MAX_SAID = 300

Kind = Literal["exit-code", "timeout", "sanity", "missing-metric", "not-started"]
# Why a metric is missing.
Lack = Literal["no-match", "no-json", "no-key", "no-number", "no-file", "old-file", "not-positive"]

_WORDS: dict[Kind, str] = {
    "exit-code": "it ended with exit code {code}",
    "timeout": "it did not end within {limit_s:g} s; raise timeout if it needs longer",
    "sanity": "its output does not match the sanity pattern {pattern!r}",
    "missing-metric": "metric {metric!r}: {lack}",
    "not-started": "it cannot be started: {error}",
}
_LACKS: dict[Lack, str] = {
    "no-match": "the regex matches nothing in its output",
    "no-json": "it printed no line of JSON",
    "no-key": "the JSON has no such key",
    "no-number": "what is found is no finite number",
    "no-file": "the file is not there",
    "old-file": "the file was there before the run, which did not write it",
    "not-positive": "no speed-up can be made of a value that is not above 0",
}


@dataclass(frozen=True)
class Failure:
    """Why a run of a program does not count.

    Attributes:
        run: Which run of the case, from 1, warm-ups first.
        said: The last line that the program printed.
    """

    kind: Kind
    run: int
    values: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""

    def __str__(self) -> str:
        """Return the failure in words."""
        shown = dict(self.values)
        if self.kind == "missing-metric":
            shown["lack"] = _LACKS[self.values["lack"]]
        said = f"; it said: {self.said}" if self.said else ""
        return f"run {self.run}: {_WORDS[self.kind].format_map(shown)}{said}"

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as a journal holds it."""
        return {"kind": self.kind, "run": self.run, **self.values, "said": self.said}


class RunError(RuntimeError):
    """A run does not count.

    Attributes:
        said: What the program has printed.
    """

    def __init__(self, kind: Kind, **values: Any) -> None:
        super().__init__(kind)
        self.kind, self.values, self.said = kind, values, ""

    def of_run(self, run: int) -> Failure:
        """Return the record of it."""
        return Failure(self.kind, run, self.values, last_line(self.said)[:MAX_SAID])
