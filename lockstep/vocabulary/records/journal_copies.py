"""Whether a launch's journal and the document made of it hold the same cases."""

from pathlib import Path
from typing import Any

from lockstep.vocabulary.records.journal import ENDS, LIMIT_BYTES, read, rebuild
from lockstep.vocabulary.records.record import KEY
from lockstep.vocabulary.system import files

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
