"""Whether a launch's journal and the document made of it hold the same cases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.core.records.journal import ENDS, LIMIT_BYTES, read, rebuild
from lockstep.core.records.record import KEY, case_name
from lockstep.core.system import files

# Characters of a value that a message shows.
SHOWN = 60
# What a launch says of itself that no later session of it adds to.
_OF_LAUNCH = ("complete", "world_size", "num_nodes", "provenance")
# How a line begins that `Journal` wrote of a case that has ended.
_ENDED = tuple(f'{{"kind": "{kind}"'.encode() for kind in ENDS)


def is_ahead(path: Path, document: Any) -> bool:
    """Return whether a journal holds cases that its document, or None, does not.

    The contents decide, since copied files may be of any time. Lines are parsed only where the
    journal has more ends of cases than the document.

    Raises:
        ValueError: The journal is missing, or corrupt.
    """
    ends = _ends_in(document)
    return _num_end_lines(path) > len(ends) and _ends_in(rebuild(path)) != ends


def contradictions(document: Any, kept: Any) -> dict[str, tuple[str, str]]:
    """Return case -> a fact of it in a document and in its journal's, where these differ, as text.

    What the launch itself says is under no case. A document that is not complete may lack cases
    that were measured since.
    """
    own, other = _measured(document), _measured(kept)
    is_complete = own.get("", {}).get("record.complete") is True
    if not is_complete:
        del own[""], other[""]
    return {
        name: _differing(own.get(name), other.get(name))
        for name in dict.fromkeys([*own, *other])
        if own.get(name) != other.get(name) and (name in own or is_complete)
    }


def _measured(document: Any) -> dict[str, dict[str, Any]]:
    """Return case -> its statistics and what is recorded of it, by a document of any form."""
    cases = [entry for kind, entry in _ends_in(document) if kind == "case"]
    of_launch = document.get(KEY) if isinstance(document, dict) else None
    known = of_launch if isinstance(of_launch, dict) else {}
    found = {"": {f"record.{name}": known.get(name) for name in _OF_LAUNCH}}
    for entry in (one for one in cases if isinstance(one, dict) and one.get("name")):
        extra = entry.get("extra_info")
        block = extra.get(KEY) if isinstance(extra, dict) else None
        found[case_name(entry)] = {
            f"{part}.{name}": value
            for part, facts in (("stats", entry.get("stats")), ("record", block))
            if isinstance(facts, dict)
            for name, value in facts.items()
        }
    return found


def _differing(own: Mapping[str, Any] | None, kept: Mapping[str, Any] | None) -> tuple[str, str]:
    if own is None or kept is None:
        return ("nothing", "a result") if own is None else ("a result", "nothing")
    names = ("stats.median", *own, *kept)
    name = next(name for name in names if own.get(name) != kept.get(name))
    values = (one.get(name) for one in (own, kept))
    texts = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
    first, second = (f"{name.partition('.')[2]} {text}"[:SHOWN] for text in texts)
    return first, second


def lacks(path: Path, document: Any) -> bool:
    """Return whether a document, or None, holds measured cases that its journal does not.

    A missing journal holds none; one that was started again still has its earlier cases.

    Raises:
        ValueError: The journal cannot be read.
    """
    benchmarks = [entry for kind, entry in _ends_in(document) if kind == "case"]
    if not benchmarks:
        return False
    kept = [line.get("benchmark") for line in read(path)] if path.exists() else []
    return any(entry not in kept for entry in benchmarks if isinstance(entry, dict))


def _num_end_lines(path: Path) -> int:
    """Count the lines that end a case; a case that was measured again counts again."""
    with files.opened(path, LIMIT_BYTES) as file:
        lines = iter(lambda: file.readline(files.LIMIT_BYTES), b"")
        return sum(line.startswith(_ENDED) and line.endswith(b"\n") for line in lines)


def _ends_in(document: Any) -> list[tuple[str, Any]]:
    """Return the kind and entry of each case that has ended, by a document of any form."""
    whole = document if isinstance(document, dict) else {}
    block = whole.get(KEY)
    block = block if isinstance(block, dict) else {}
    parts = {"case": whole.get("benchmarks")}
    parts |= {"skip": block.get("skipped"), "fail": block.get("failed")}
    return [
        (kind, entry) for kind, ends in parts.items() if isinstance(ends, list) for entry in ends
    ]
