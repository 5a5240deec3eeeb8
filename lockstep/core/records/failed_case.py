"""A failed case, as journals and results keep it, in a line."""

from collections.abc import Mapping
from typing import Any


def gist(failed: Mapping[str, Any]) -> str:
    """Return which ranks made a case fail, and how, without tracebacks."""
    if causes := failed.get("causes"):
        first = [cause for cause in causes if cause["kind"] != "consequence"]
        return "; ".join(map(_cause, first or causes))
    lines = str(failed.get("reason", "")).strip().splitlines()
    return lines[-1] if lines else "no reason recorded"


def _cause(cause: Mapping[str, Any]) -> str:
    line = (cause["error"].strip().splitlines() or ["it gave no reason"])[0]
    words = {"silence": "it did not answer in time", "skip": f"it skips: {line}"}
    who = f"rank {cause['rank']} on {cause['host']} ({cause['device']})"
    return f"{who}: {words.get(cause['kind'], line)}"
