"""The journal of a launch: one JSON line per event, on disk before the next case starts.

A line with another `attempt` than the `launch` line before it comes from a lost node and does not
count. Nor does a last line that a kill has cut short.
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
# How long a session waits for the lock of a killed session that has not yet ended.
LOCK_WAIT_S = 10.0
ENDS = ("case", "skip", "fail")
# Limit of a whole journal, which may hold many launches; a line is a document.
LIMIT_BYTES = 16 * files.LIMIT_BYTES
# How a journal of a launch, or of submissions, begins.
_HEADS = (b'{"kind": "launch"', b'{"uuid": "')
# What to do about a corrupt journal: never delete the file, else its good lines are lost.
_RESTORE = "restore a complete copy of the file, or move the file's folder away to start again"
# How the line of a case that has ended begins.
_ENDED = tuple(f'{{"kind": "{kind}"'.encode() for kind in ENDS)
# Facts of a launch that no later session of it changes.
_OF_LAUNCH = ("complete", "world_size", "num_nodes", "provenance")
# kind of line -> the keys, with their types, that a reader needs
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

    One process has it open. A file that is deleted, replaced or shortened meanwhile is made again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._attempt = uuid.uuid4().hex
        self._file = _open(path)
        try:
            _cut_torn_tail(path)
            self._content = bytearray(path.read_bytes())
            self._size_bytes = len(self._content)
            files.sync_folder(path.parent)
        except (OSError, ValueError):
            self._file.close()
            raise

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on disk; refuse what `copy_as_json` refuses."""
        self._write(entry)
        os.fsync(self._file.fileno())

    def begin_session(self, head: Mapping[str, Any], options: Any) -> None:
        """Write the `launch` line of a session, and the end of the case that crashed before it.

        `head` has `expected` cases, `document` (the head of pytest-benchmark's JSON) and `launch`
        (its facts); `options` has `resume`, `skip_failed` and `after`.
        """
        flight = in_flight(self.path)
        is_resumed = options.resume and bool(current(read(self.path)))
        facts = {"resumed": is_resumed, "skips_failed": options.skip_failed}
        self.append({"kind": "launch", "schema": SCHEMA_VERSION, **facts, **head})
        if flight and options.resume and options.skip_failed:
            cause = options.after or "the session ended while this case ran"
            reason = f"crashed: {cause}"
            self.append({"kind": "fail", "case": flight, "reason": reason, "crashed": True})

    def begin(self, case: str) -> None:
        """Write that a case is in flight, without waiting for the disk."""
        self._write({"kind": "begin", "case": case})

    def restore(self) -> None:
        """Write all lines again if the file was deleted, replaced or shortened.

        A file that was moved together with its folder is left alone.
        """
        own = os.fstat(self._file.fileno())
        is_there = self.path.exists() and os.path.samestat(own, self.path.stat())
        is_moved = not is_there and own.st_nlink > 0 and not self.path.parent.exists()
        if is_moved or (is_there and own.st_size >= self._size_bytes):
            return
        if not is_there:
            opened = _open(self.path)
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
            limit_mib = LIMIT_BYTES // files.MIB
            text = f"the journal would exceed {limit_mib} MiB; continue in another results folder"
            raise OSError(errno.EFBIG, text)
        self._put(content)
        self._content += content

    def _put(self, content: bytes) -> None:
        whole_bytes = os.fstat(self._file.fileno()).st_size
        try:
            while content:  # a nearly full disk writes only a part
                content = content[self._file.write(content) :]
        except OSError:
            os.ftruncate(self._file.fileno(), whole_bytes)  # else the next line joins it
            raise
        self._size_bytes = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()


def _line(entry: Mapping[str, Any], attempt: str) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    signed = {**entry, "attempt": attempt, "time": entry.get("time", now)}
    try:
        line = (json.dumps(signed, allow_nan=False) + "\n").encode()
    except RecursionError:
        raise ValueError("the JSON values are nested too deeply") from None
    if len(line) >= files.LIMIT_BYTES:
        line_mib, limit_mib = len(line) // files.MIB, files.LIMIT_BYTES // files.MIB
        raise ValueError(
            f"a line of the journal would have {line_mib} MiB, but must stay below {limit_mib} "
            "MiB; record less data per case, or measure fewer rounds"
        )
    files.parse(line)
    return line


def copy_as_json(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of an entry as JSON holds it; refuse what `Journal.append` would."""
    kept: dict[str, Any] = json.loads(_line(entry, uuid.uuid4().hex))  # as long as in the file
    return {name: kept[name] for name in entry}


def _open(path: Path) -> FileIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = FileIO(path, "a")  # unbuffered: one write per line
    try:
        is_free = locks.take(file, LOCK_WAIT_S)
    except locks.NoLocksError:
        return file  # without locks, only the drivers keep others out
    if not is_free:
        file.close()
        raise BlockingIOError(
            f"another launch writes into {path}, or a lost node still holds the file's lock; wait "
            "until that launch has ended"
        )
    return file


def _cut_torn_tail(path: Path) -> None:
    with files.open_file(path, LIMIT_BYTES) as file:
        content = file.read()
    if not any(content.startswith(head) or head.startswith(content) for head in _HEADS):
        raise ValueError(
            f"{path} is not a journal of Lockstep, because it begins with {content[:16]!r}"
        )
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        read(path)  # refuses a file that is no journal, before the cut
        os.truncate(path, whole)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a journal, oldest first; refuse a line that is corrupt."""
    entries = []
    with files.open_file(path, LIMIT_BYTES) as file:
        for number in itertools.count(1):
            line = file.readline(files.LIMIT_BYTES)
            if len(line) == files.LIMIT_BYTES:
                limit = f"the limit of {len(line) // files.MIB} MiB"
                raise ValueError(f"{path}:{number}: longer than {limit}")
            # After the last newline is nothing, or a line that a kill cut short.
            if not line.endswith(b"\n"):
                break
            entries.append(_entry(line, f"{path}:{number}"))
    return entries


def _entry(line: bytes, where: str) -> dict[str, Any]:
    try:
        entry = files.parse(line)
    except ValueError as error:
        raise ValueError(
            f"{where} is not a valid line of a journal: {error}; {_RESTORE}"
        ) from error
    if not isinstance(entry, dict):
        line_start = str(entry)[:80]
        raise ValueError(
            f"{where} is not a valid line of a journal: {line_start!r} is not a JSON object; "
            f"{_RESTORE}"
        )
    return entry


def current(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries that count: of the last fresh launch, and of the sessions that resumed it.

    Lines that a session wrote after another one had begun are left out.
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
    """Return the entries that count, checked but for kinds of a later version."""
    entries = current(read(path))
    if entries:
        check_schema(entries[0], str(path))
    for entry in entries:
        kind = str(entry.get("kind"))
        for name, needed in _NEEDED.get(kind, {}).items():
            if not isinstance(entry.get(name), needed):
                noun = "an object" if needed is dict else "a list" if needed is list else "a text"
                value = str(entry.get(name))[:80]
                raise ValueError(
                    f"{path} is damaged: in a line of kind {kind}, `{name}` is {value!r}, not "
                    f"{noun}; {_RESTORE}"
                )
        if kind == "launch" and not files.are_texts(entry["expected"]):
            raise ValueError(
                f"{path}: a line of the kind 'launch' does not list the expected cases; {_RESTORE}"
            )
    return entries


def _last_ends(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["case"]: entry for entry in entries if entry.get("kind") in ENDS}


def outcomes(path: Path) -> dict[str, str]:
    """Return case -> its last outcome, `case`, `skip` or `fail`; empty without a journal."""
    entries = _current_of(path) if path.exists() else []
    return {case: end["kind"] for case, end in _last_ends(entries).items()}


def settled_outcomes(path: Path) -> dict[str, str]:
    """Return case -> its last outcome, without the failures of an earlier run.

    A run is a session that measures failed cases again, and the sessions after it that skip them.
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
    """Return the case that was begun and has not ended, or None."""
    return _in_flight(_current_of(path)) if path.exists() else None


def _in_flight(entries: list[dict[str, Any]]) -> str | None:
    # A later session that ended before its first case leaves this one in flight.
    last = next((e for e in reversed(entries) if e.get("kind") in ("begin", *ENDS)), None)
    return str(last["case"]) if last and last["kind"] == "begin" else None


def rebuild(path: Path) -> dict[str, Any]:
    """Return the pytest-benchmark document of a journal, its cases in the order of the suite."""
    entries = _current_of(path)
    if not entries:
        raise ValueError(f"{path}: the journal is empty, so nothing was measured")
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
    hosts: list[str | None] = []
    # The reader of records refuses a provenance of another form.
    with suppress(AttributeError, KeyError, TypeError):
        hosts = [rank.get("host") for rank in facts["provenance"]["ranks"]]
    return {"started": facts.get("started"), "rank_hosts": hosts}


def measured(path: Path) -> dict[str, dict[str, Any]]:
    """Return case -> its pytest-benchmark entry."""
    ends = _last_ends(_current_of(path))
    return {case: end["benchmark"] for case, end in ends.items() if end["kind"] == "case"}


def write_result(journal_path: Path, result_path: Path) -> None:
    document = rebuild(journal_path)
    files.write_atomically(result_path, json.dumps(document, indent=1, allow_nan=False))


def is_ahead(path: Path, document: Any) -> bool:
    """Return whether a journal has ended cases that its result file, `document` or None, lacks.

    Lines are parsed only if the journal has more of them; the times of copied files do not tell.
    """
    ends = _ends_in(document)
    with files.open_file(path, LIMIT_BYTES) as file:
        lines = iter(lambda: file.readline(files.LIMIT_BYTES), b"")
        num_lines = sum(line.startswith(_ENDED) and line.endswith(b"\n") for line in lines)
    return num_lines > len(ends) and _ends_in(rebuild(path)) != ends


def lacks(path: Path, document: Any) -> bool:
    """Return whether a result file, or None, has measured cases that its journal never had."""
    benchmarks = [entry for kind, entry in _ends_in(document) if kind == "case"]
    kept = [line.get("benchmark") for line in read(path)] if benchmarks and path.exists() else []
    return any(entry not in kept for entry in benchmarks if isinstance(entry, dict))


def contradictions(document: Any, kept: Any) -> dict[str, tuple[str, str]]:
    """Return case -> the first fact that differs, as texts: of the document, of its journal.

    Facts of the launch are under "". A document that is not complete may lack cases.
    """
    own, other = _measured(document), _measured(kept)
    is_complete = own.get("", {}).get("record.complete") is True
    if not is_complete:
        del own[""], other[""]
    return {
        name: _contrast(own.get(name), other.get(name))
        for name in dict.fromkeys([*own, *other])
        if own.get(name) != other.get(name) and (name in own or is_complete)
    }


def _measured(document: Any) -> dict[str, dict[str, Any]]:
    """Return case -> its statistics and its record, of a document of any form."""
    known = _object(_object(document).get(KEY))
    facts_of = {"": {f"record.{name}": known.get(name) for name in _OF_LAUNCH}}
    for kind, entry in _ends_in(document):
        if kind == "case" and _object(entry).get("name"):
            block = _object(entry.get("extra_info")).get(KEY)
            facts_of[case_name(entry)] = {
                f"{part}.{name}": value
                for part, facts in (("stats", entry.get("stats")), ("record", block))
                for name, value in _object(facts).items()
            }
    return facts_of


def _contrast(own: Mapping[str, Any] | None, kept: Mapping[str, Any] | None) -> tuple[str, str]:
    if own is None or kept is None:
        return ("nothing", "a result") if own is None else ("a result", "nothing")
    names = ("stats.median", *own, *kept)
    name = next(name for name in names if own.get(name) != kept.get(name))
    values = (own.get(name), kept.get(name))
    texts = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
    first, second = (f"{name.partition('.')[2]} {text}"[:SHOWN] for text in texts)
    return first, second


def _ends_in(document: Any) -> list[tuple[str, Any]]:
    block = _object(_object(document).get(KEY))
    parts = {"case": _object(document).get("benchmarks")}
    parts |= {"skip": block.get("skipped"), "fail": block.get("failed")}
    return [
        (kind, entry) for kind, ends in parts.items() if isinstance(ends, list) for entry in ends
    ]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
