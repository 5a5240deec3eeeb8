"""The journal of a launch: one JSON line per event, on disk before the next case starts.

A journal holds `launch` lines (one per session that wrote to it), then `begin`, `case`, `skip`,
`fail`, `left` and, of a training, `epoch` lines. pytest-benchmark's JSON is rebuilt from it at any
moment, so a killed launch loses no finished case. A line cut short by a kill was never a finished
case: it is dropped.

Each session writes under an attempt of its own. Where a file system has no locks, ranks of a lost
node may go on writing after another session took over: what they write is of an older attempt than
the `launch` line before it, and is not read.
"""

import errno
import itertools
import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from lockstep.core import files, locks
from lockstep.core.record import KEY, SCHEMA_VERSION, case_name, check_schema

# Characters of a value that a message shows.
SHOWN = 60
# A session may follow one that was killed and is still on its way out.
LOCK_WAIT_S = 10.0
ENDS = ("case", "skip", "fail")
# Of a whole journal, which may hold many launches; one line is one document.
LIMIT_BYTES = 16 * files.LIMIT_BYTES
# How a file begins that `Journal` wrote: of a launch, or of submissions.
_HEADS = (b'{"kind": "launch"', b'{"uuid": "')
# How a line begins that `Journal` wrote of a case that has ended.
_ENDED = tuple(f'{{"kind": "{kind}"'.encode() for kind in ENDS)
# What a launch says of itself that no later session of it adds to.
_OF_LAUNCH = ("complete", "world_size", "num_nodes", "provenance")
# What a reader relies on in each kind of line.
_NEEDED: dict[str, dict[str, type]] = {
    "launch": {"launch": dict, "document": dict, "expected": list},
    "begin": {"case": str},
    "case": {"case": str, "benchmark": dict},
    "skip": {"case": str, "reason": str},
    "fail": {"case": str, "reason": str},
    "left": {"case": str, "left": dict},
}


class Journal:
    """An append-only file of JSON lines, each on disk when `append` returns.

    Only one may be open at a time, wherever the file system has locks. Where the file is deleted,
    replaced or cut short meanwhile, it is written again with all that was in it.

    Args:
        path: The file; its folder is made, and a torn last line is cut off.

    Raises:
        BlockingIOError: Another has it open.
        ValueError: It is no journal, and stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._attempt = uuid.uuid4().hex
        self._file = _opened(path)
        try:
            _cut_torn_tail(path)
            self._content = bytearray(path.read_bytes())
            self._size_bytes = len(self._content)
            files.sync_folder(path.parent)
        except (OSError, ValueError):
            self._file.close()
            raise

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on disk.

        Raises:
            ValueError: No reader would take the entry, as `fixed` says.
            OSError: The disk or the journal is full, or the file out of reach.
        """
        self._write(entry)
        os.fsync(self._file.fileno())

    def begin_session(
        self, head: Mapping[str, Any], *, resume: bool, skip_failed: bool, after: str
    ) -> None:
        """Begin a session of a launch; one that leaves out failed cases ends the one in flight.

        Args:
            head: The cases as `expected`, the head of pytest-benchmark's JSON as `document`, and
                what the launch says of itself as `launch`.
            resume: Whether the session goes on with what is there.
            skip_failed: Whether it leaves out what has failed.
            after: How the session before it ended.
        """
        flight = in_flight(self.path)
        facts = {"resumed": resume and bool(current(read(self.path))), "skips_failed": skip_failed}
        self.append({"kind": "launch", "schema": SCHEMA_VERSION, **facts, **head})
        if flight and resume and skip_failed:
            self.append(crash(flight, after))

    def begin(self, case: str) -> None:
        """Note that a case is in flight, for a reader after a crash; the disk is not waited for.

        Raises:
            OSError: The disk is full, or the file out of reach.
        """
        self._write({"kind": "begin", "case": case})

    def restore(self) -> None:
        """Write again what the file has lost since the last write, by whatever has changed it.

        A file that was moved with its folder is where its owner wants it, and holds everything.

        Raises:
            OSError: The disk is full, the file out of reach, or another launch writes into it.
        """
        own = os.fstat(self._file.fileno())
        is_there = self.path.exists() and os.path.samestat(own, self.path.stat())
        is_moved = not is_there and own.st_nlink > 0 and not self.path.parent.exists()
        if is_moved or (is_there and own.st_size >= self._size_bytes):
            return
        if not is_there:
            opened = _opened(self.path)
            self._file.close()
            self._file = opened
        os.ftruncate(self._file.fileno(), 0)
        self._put(bytes(self._content))
        os.fsync(self._file.fileno())
        files.sync_folder(self.path.parent)

    def _write(self, entry: Mapping[str, Any]) -> None:
        self.restore()
        content = _line(entry, self._attempt)
        if self._size_bytes + len(content) > LIMIT_BYTES:
            limit = f"no more than {LIMIT_BYTES // files.MIB} MiB are read of one"
            raise OSError(errno.EFBIG, f"{limit}; go on in another folder")
        self._put(content)
        self._content += content

    def _put(self, content: bytes) -> None:
        whole_bytes = os.fstat(self._file.fileno()).st_size
        try:
            while content:  # a disk that is nearly full takes a part
                content = content[self._file.write(content) :]
        except OSError:
            os.ftruncate(self._file.fileno(), whole_bytes)  # or the next line would join this one
            raise
        self._size_bytes = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(entry: Mapping[str, Any], attempt: str) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    signed = {**entry, "attempt": attempt, "time": entry.get("time", now)}
    try:
        line = (json.dumps(signed, allow_nan=False) + "\n").encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    if len(line) >= files.LIMIT_BYTES:
        raise ValueError(
            f"{len(line) // files.MIB} MiB are too long for a line of the journal, which must stay "
            f"below {files.LIMIT_BYTES // files.MIB} MiB; keep less of a case, or measure fewer "
            "rounds"
        )
    files.parse(line)
    return line


def fixed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry that `Journal.append` takes, whatever is later put into parts of the given.

    Raises:
        TypeError: It holds what JSON does not know.
        ValueError: It is too long, nested too deep, or holds a number that is not finite or out
            of range.
    """
    kept: dict[str, Any] = json.loads(_line(entry, uuid.uuid4().hex))  # as long as it will be
    return {name: kept[name] for name in entry}


def crash(case: str, after: str) -> dict[str, Any]:
    """Return the end of a case that was in flight as its session ended."""
    reason = f"crashed: {after or 'the session ended while this case ran'}"
    return {"kind": "fail", "case": case, "reason": reason, "crashed": True}


def _opened(path: Path) -> FileIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = FileIO(path, "a")  # one write a line
    try:
        is_free = locks.take(file, LOCK_WAIT_S)
    except locks.NoLocksError:
        return file  # no locks here: the drivers' own refusals are then all there is
    if not is_free:
        file.close()
        raise BlockingIOError(
            f"another launch writes into {path}, or a lost node still holds its lock; wait for its "
            "end"
        )
    return file


def _cut_torn_tail(path: Path) -> None:
    with files.opened(path, LIMIT_BYTES) as file:
        content = file.read()
    if not any(content.startswith(head) or head.startswith(content) for head in _HEADS):
        raise ValueError(f"{path}: no journal, for it begins with {content[:16]!r}")
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        read(path)  # what follows other lines than a journal's is not ours to cut
        os.truncate(path, whole)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a journal, oldest first.

    Raises:
        ValueError: The file is missing, or a line other than the last is not JSON.
    """
    entries = []
    with files.opened(path, LIMIT_BYTES) as file:
        for number in itertools.count(1):
            line = file.readline(files.LIMIT_BYTES)
            if len(line) == files.LIMIT_BYTES:
                raise ValueError(
                    f"{path}:{number}: longer than the limit of {len(line) // files.MIB} MiB"
                )
            # What follows the last newline is empty, or a line the kill cut short.
            if not line.endswith(b"\n"):
                break
            entries.append(_entry(line, f"{path}:{number}"))
    return entries


def _entry(line: bytes, where: str) -> dict[str, Any]:
    # Whoever deletes it loses what the other lines, and files made of them, hold.
    todo = "put back a whole copy of the file, or move its folder away to start anew"
    try:
        entry = files.parse(line)
    except ValueError as error:
        raise ValueError(f"{where}: not a journal line: {error}; {todo}") from error
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: not a journal line: {str(entry)[:80]!r} is no object; {todo}")
    return entry


def current(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries that belong together: the last fresh launch and what resumed it.

    What a session wrote after another took over is left out.
    """
    starts = [i for i, e in enumerate(entries) if _is_header(e) and not e.get("resumed")]
    attempt, kept = None, []
    for entry in entries[starts[-1] :] if starts else []:
        attempt = entry.get("attempt") if _is_header(entry) else attempt
        if entry.get("attempt") == attempt:
            kept.append(entry)
    return kept


def _is_header(entry: Mapping[str, Any]) -> bool:
    return entry.get("kind") == "launch"


def _current_of(path: Path) -> list[dict[str, Any]]:
    """Return the entries that count; those of a kind of a later version are not checked."""
    entries = current(read(path))
    if entries:
        check_schema(entries[0], str(path))
    for entry in entries:
        kind = str(entry.get("kind"))
        for name, needed in _NEEDED.get(kind, {}).items():
            if not isinstance(entry.get(name), needed):
                raise ValueError(
                    f"{path}: a {kind} line has {name} {str(entry.get(name))[:80]!r}, which is no "
                    f"{needed.__name__}; the journal is corrupt"
                )
        if kind == "launch" and not files.are_texts(entry["expected"]):
            raise ValueError(
                f"{path}: a launch line expects what is no case; the journal is corrupt"
            )
    return entries


def _last_ends(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["case"]: entry for entry in entries if entry.get("kind") in ENDS}


def outcomes(path: Path) -> dict[str, str]:
    """Return case -> its last outcome, `case`, `skip` or `fail`; empty without a journal.

    Raises:
        ValueError: The journal is corrupt, or of another schema.
    """
    entries = _current_of(path) if path.exists() else []
    return {case: end["kind"] for case, end in _last_ends(entries).items()}


def settled(path: Path) -> dict[str, str]:
    """Return case -> its last outcome, without the failures of an earlier run.

    A run is a session that measures failed cases again, and those after it that skip them.

    Raises:
        ValueError: The journal is corrupt, or of another schema.
    """
    entries = _current_of(path) if path.exists() else []
    firsts = [i for i, e in enumerate(entries) if _is_header(e) and not e.get("skips_failed")]
    since = _last_ends(entries[firsts[-1] if firsts else 0 :])
    return {
        case: end["kind"]
        for case, end in _last_ends(entries).items()
        if end["kind"] != "fail" or case in since
    }


def in_flight(path: Path) -> str | None:
    """Return the case that was begun and has not ended, if there is one.

    Raises:
        ValueError: The journal is corrupt, or of another schema.
    """
    return _in_flight(_current_of(path)) if path.exists() else None


def _in_flight(entries: list[dict[str, Any]]) -> str | None:
    # A session that resumed, and ended before a case of its own, has not settled this one.
    last = next((e for e in reversed(entries) if e.get("kind") in ("begin", *ENDS)), None)
    return str(last["case"]) if last and last["kind"] == "begin" else None


def rebuild(path: Path) -> dict[str, Any]:
    """Return the pytest-benchmark document of a journal, finished or not.

    Its cases stand as the suite lists them; they ran in a random order.

    Raises:
        ValueError: The journal is missing, corrupt, of another schema, or holds no launch.
    """
    entries = _current_of(path)
    if not entries:
        raise ValueError(f"{path}: no launch in this journal, so nothing was measured")
    headers = [entry for entry in entries if _is_header(entry)]
    expected = headers[-1]["expected"]
    place = {case: number for number, case in enumerate(expected)}
    last = dict(sorted(_last_ends(entries).items(), key=lambda end: place.get(end[0], len(place))))

    def reasons(kind: str) -> list[dict[str, Any]]:
        names = ("reason", "crashed", "causes", "failure")
        return [
            {"case": case} | {name: end[name] for name in names if name in end}
            for case, end in last.items()
            if end["kind"] == kind
        ]

    return {
        **headers[-1]["document"],
        "benchmarks": [end["benchmark"] for end in last.values() if end["kind"] == "case"],
        KEY: {
            **headers[-1]["launch"],
            "schema": SCHEMA_VERSION,
            "complete": {*expected} <= {c for c, end in last.items() if end["kind"] != "fail"},
            "expected": expected,
            "skipped": reasons("skip"),
            "failed": reasons("fail"),
            "in_flight": _in_flight(entries),
            "left_behind": [
                {"case": e["case"], **e["left"]} for e in entries if e.get("kind") == "left"
            ],
            "sessions": [_session(header["launch"]) for header in headers],
        },
    }


def _session(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return when and where a session of a launch ran; one that resumed it may have moved."""
    hosts: list[str | None] = []
    # The record's reader says what is wrong with a provenance of another form.
    with suppress(AttributeError, KeyError, TypeError):
        hosts = [rank.get("host") for rank in facts["provenance"]["ranks"]]
    return {"started": facts.get("started"), "rank_hosts": hosts}


def measured(path: Path) -> dict[str, dict[str, Any]]:
    """Return case -> pytest-benchmark entry of the cases that were measured.

    Raises:
        ValueError: The journal is missing, corrupt, or of another schema.
    """
    ends = _last_ends(_current_of(path))
    return {case: end["benchmark"] for case, end in ends.items() if end["kind"] == "case"}


def write_result(journal_path: Path, result_path: Path) -> dict[str, Any]:
    """Write the journal's pytest-benchmark JSON beside it and return the document."""
    document = rebuild(journal_path)
    files.write_atomically(result_path, json.dumps(document, indent=1, allow_nan=False))
    return document


def is_ahead(path: Path, document: Any) -> bool:
    """Return whether a journal holds cases that its document, or None, does not.

    The contents decide, since copied files may be of any time. Lines are parsed only where the
    journal has more ends of cases than the document.

    Raises:
        ValueError: The journal is missing, or corrupt.
    """
    ends = _ends_in(document)
    with files.opened(path, LIMIT_BYTES) as file:
        lines = iter(lambda: file.readline(files.LIMIT_BYTES), b"")
        num_lines = sum(line.startswith(_ENDED) and line.endswith(b"\n") for line in lines)
    return num_lines > len(ends) and _ends_in(rebuild(path)) != ends


def lacks(path: Path, document: Any) -> bool:
    """Return whether a document, or None, holds measured cases that its journal does not.

    A missing journal holds none; one that was started again still has its earlier cases.

    Raises:
        ValueError: The journal cannot be read.
    """
    benchmarks = [entry for kind, entry in _ends_in(document) if kind == "case"]
    kept = [line.get("benchmark") for line in read(path)] if benchmarks and path.exists() else []
    return any(entry not in kept for entry in benchmarks if isinstance(entry, dict))


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
    known = _object(_object(document).get(KEY))
    found = {"": {f"record.{name}": known.get(name) for name in _OF_LAUNCH}}
    for kind, entry in _ends_in(document):
        if kind == "case" and _object(entry).get("name"):
            block = _object(entry.get("extra_info")).get(KEY)
            found[case_name(entry)] = {
                f"{part}.{name}": value
                for part, facts in (("stats", entry.get("stats")), ("record", block))
                for name, value in _object(facts).items()
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


def _ends_in(document: Any) -> list[tuple[str, Any]]:
    """Return the kind and entry of each case that has ended, by a document of any form."""
    block = _object(_object(document).get(KEY))
    parts = {"case": _object(document).get("benchmarks")}
    parts |= {"skip": block.get("skipped"), "fail": block.get("failed")}
    return [
        (kind, entry) for kind, ends in parts.items() if isinstance(ends, list) for entry in ends
    ]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
