"""The journal: what a kill may cost, and what a reader may believe."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from commands import finish
from data.job_samples import write_lines as write
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core import files, journal
from lockstep.core.journal import Journal
from lockstep.core.record import KEY, SCHEMA_VERSION

LIMIT = 4096
REASON = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)


def launch(*expected, resumed=False, **facts):
    return {
        "kind": "launch", "schema": SCHEMA_VERSION, "resumed": resumed,
        "expected": list(expected), "launch": {"world_size": 2, **facts},
        "document": {"machine_info": {"cpu": "x"}, "version": "5"},
    }  # fmt: skip


def case(name, seconds=1.0):
    return {"kind": "case", "case": name, "benchmark": {"name": name, "stats": {"min": seconds}}}


def ended(kind, name, reason="because"):
    return {"kind": kind, "case": name, "reason": reason}


def told(path):
    """Return what the sessions wrote, without the mark of who did."""
    return [
        {name: value for name, value in entry.items() if name not in ("attempt", "time")}
        for entry in journal.read(path)
    ]


@st.composite
def entries(draw):
    """A launch of a few cases, each with one or more outcomes."""
    names = draw(st.lists(st.sampled_from("abcdef"), max_size=8))
    kinds = st.sampled_from(["case", "skip", "fail"])
    found = [launch(*sorted(set(names)))]
    for name in names:
        kind = draw(kinds)
        found.append(case(name) if kind == "case" else ended(kind, name, draw(REASON)))
    return found


def test_two_launches_never_write_into_one_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "LOCK_WAIT_S", 0.0)
    path = write(tmp_path / "journal.jsonl", launch("a"))
    kept = Journal(path)
    kept._file.write(b'{"kind": "ca')  # a line on its way is not for another to cut
    said = rf"another launch writes into {path}, or .* wait until that launch has ended"
    with pytest.raises(BlockingIOError, match=said):
        Journal(path)
    assert path.read_text().endswith('{"kind": "ca')
    kept.close()
    write(path, case("a"))
    assert [entry["kind"] for entry in journal.read(path)] == ["launch", "case"]


def test_a_line_is_whole_and_on_disk_before_append_returns(tmp_path, monkeypatch):
    kept = Journal(tmp_path / "journal.jsonl")
    synced = []

    def sync(descriptor):
        assert os.path.sameopenfile(descriptor, kept._file.fileno())
        synced.append(kept.path.read_bytes())

    monkeypatch.setattr(os, "fsync", sync)
    for entry in (launch("a"), case("a")):
        kept.append(entry)
        assert synced[-1] == kept.path.read_bytes()
    assert [content.count(b"\n") for content in synced] == [1, 2]
    kept.close()


def test_the_name_of_a_journal_is_on_disk_before_its_first_line(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    Journal(tmp_path / "journal.jsonl").close()
    assert synced == [tmp_path.stat().st_ino]


def test_a_file_is_on_disk_before_it_takes_the_place_of_the_old(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    files.write_atomically(path, "old")
    seen = []

    def sync(descriptor):
        synced = Path(f"/proc/self/fd/{descriptor}")
        seen.append((synced.is_dir() or synced.read_text(), path.read_text()))

    monkeypatch.setattr(os, "fsync", sync)
    files.write_atomically(path, "new")
    assert seen == [("new", "old"), (True, "new")]


def test_what_a_killed_session_left_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "LOCK_WAIT_S", 60.0)
    kept = Journal(tmp_path / "journal.jsonl")
    threading.Timer(0.3, kept.close).start()
    write(kept.path, launch("a"), case("a"))
    assert kept._file.closed
    assert journal.outcomes(kept.path) == {"a": "case"}


def no_locks(*_):
    raise OSError(errno.ENOLCK, "no locks")


@pytest.mark.parametrize(
    "lose",
    [
        lambda path: os.truncate(path, path.stat().st_size - 9),
        lambda path: shutil.rmtree(path.parent),
        lambda path: (
            path.with_name("older").write_text("") or path.with_name("older").replace(path)
        ),
    ],
    ids=["cut", "folder-deleted", "replaced"],
)
def test_what_the_file_loses_while_it_is_written_is_written_again(tmp_path, lose):
    path = write(tmp_path / "launch" / "journal.jsonl", launch("a", "b", "c"), case("a"))
    kept = Journal(path)
    kept.append(case("b"))
    lose(path)
    kept.append(case("c"))
    assert [line.get("case") for line in told(path)] == [None, "a", "b", "c"]
    lose(path)
    kept.restore()
    assert [line.get("case") for line in told(path)] == [None, "a", "b", "c"]
    with path.open("rb") as file, pytest.raises(BlockingIOError):  # it is locked all the same
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kept.close()


def test_a_journal_whose_folder_is_renamed_goes_on_there(tmp_path):
    kept = Journal(tmp_path / "here" / "journal.jsonl")
    kept.append(launch("a"))
    (tmp_path / "here").rename(tmp_path / "there")
    kept.append(case("a"))
    kept.close()
    assert len(told(tmp_path / "there" / "journal.jsonl")) == 2
    assert not (tmp_path / "here").exists()


@given(entries(), st.data())
def test_a_cut_at_any_byte_loses_the_torn_line_and_no_finished_one(written, data):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "journal.jsonl", *written)
        content = path.read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        path.write_bytes(content[:cut])
        whole = written[: content[:cut].count(b"\n")]
        assert told(path) == whole
        resumed = launch("z", resumed=True)
        write(path, resumed, case("z"))
        assert told(path) == [*whole, resumed, case("z")]


@given(entries())
def test_a_case_counts_by_its_last_outcome(written):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "journal.jsonl", *written)
        last = {entry["case"]: entry["kind"] for entry in written[1:]}
        assert journal.outcomes(path) == last
        document = journal.rebuild(path)
        measured = [entry["name"] for entry in document["benchmarks"]]
        block = document[KEY]
        assert sorted(measured) == sorted(name for name, kind in last.items() if kind == "case")
        assert {f["case"] for f in block["failed"]} == {n for n in last if last[n] == "fail"}
        assert {s["case"] for s in block["skipped"]} == {n for n in last if last[n] == "skip"}
        assert block["complete"] == ("fail" not in last.values())


@settings(max_examples=50)
@given(entries(), st.data())
def test_a_journal_is_ahead_of_a_document_once_a_case_has_ended_since(written, data):
    def ends():
        made = journal.rebuild(path)
        return made, [made["benchmarks"], made[KEY]["skipped"], made[KEY]["failed"]]

    cut = data.draw(st.integers(1, len(written)))
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Journal(Path(folder) / "journal.jsonl")) as kept,
    ):
        path = kept.path
        for entry in written[:cut]:
            kept.append(entry)
        document, before = ends()
        kept.begin("z")
        assert not journal.is_ahead(path, document)
        for entry in written[cut:]:
            kept.append(entry)
        assert journal.is_ahead(path, document) == (ends()[1] != before)


@pytest.mark.parametrize(
    "document", [None, [], {}, {"benchmarks": 3, KEY: 3}, {"benchmarks": [], KEY: {"skipped": "a"}}]
)
def test_a_journal_is_ahead_of_what_is_no_document(tmp_path, document):
    path = write(tmp_path / "journal.jsonl", launch("a"))
    assert not journal.is_ahead(path, document)
    with path.open("a") as file:
        file.write('{"kind": "case", "case": "a"')  # torn
    assert not journal.is_ahead(path, document)
    write(path, launch("a", resumed=True), ended("skip", "a"))
    assert journal.is_ahead(path, document)


def test_the_document_is_pytest_benchmarks_own_with_our_block(tmp_path):
    path = write(
        tmp_path / "journal.jsonl",
        launch("a", "b", "c", size="smoke"),
        case("a", 2.0),
        ended("skip", "b", "no bf16"),
        ended("fail", "c", "wrong sum"),
    )
    assert journal.rebuild(path) == {
        "machine_info": {"cpu": "x"},
        "version": "5",
        "benchmarks": [{"name": "a", "stats": {"min": 2.0}}],
        KEY: {
            "schema": 1, "complete": False, "expected": ["a", "b", "c"],
            "skipped": [{"case": "b", "reason": "no bf16"}],
            "failed": [{"case": "c", "reason": "wrong sum"}],
            "world_size": 2, "size": "smoke", "in_flight": None, "left_behind": [],
            "sessions": [{"started": None, "rank_hosts": []}],
        },
    }  # fmt: skip


def test_what_an_older_attempt_writes_after_another_took_over_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    old = Journal(tmp_path / "journal.jsonl")
    old.append(launch("a", "b", "c"))
    old.append(case("a", 1.0))
    new = Journal(old.path)
    new.append(launch("a", "b", "c", resumed=True))
    old.append(case("b", 9.0))
    new.append(case("b", 2.0))
    old.append(ended("fail", "b"))
    old.begin("c")
    document = journal.rebuild(old.path)
    assert [entry["stats"]["min"] for entry in document["benchmarks"]] == [1.0, 2.0]
    assert (document[KEY]["failed"], document[KEY]["in_flight"]) == ([], None)
    assert journal.outcomes(old.path) == {"a": "case", "b": "case"}
    for kept in (old, new):
        kept.close()


def test_a_case_in_flight_is_named_until_it_has_ended(tmp_path):
    kept = Journal(tmp_path / "journal.jsonl")
    kept.append(launch("a", "b"))
    seen = [journal.in_flight(kept.path)]
    kept.begin("a")
    seen.append(journal.in_flight(kept.path))
    kept.append(case("a"))
    seen.append(journal.in_flight(kept.path))
    kept.begin("b")
    kept.close()
    assert [*seen, journal.in_flight(kept.path)] == [None, "a", None, "b"]
    assert journal.rebuild(kept.path)[KEY]["in_flight"] == "b"
    assert journal.outcomes(kept.path) == {"a": "case"}


def test_a_resume_that_is_killed_at_once_does_not_hide_the_crash(tmp_path):
    kept = Journal(tmp_path / "journal.jsonl")
    kept.append(launch("a", "b"))
    kept.begin("a")
    kept.close()
    write(kept.path, launch("a", "b", resumed=True))
    assert journal.in_flight(kept.path) == "a"
    assert journal.rebuild(kept.path)[KEY]["in_flight"] == "a"
    write(kept.path, launch("a", "b"))  # a fresh launch, which measures all again
    assert journal.in_flight(kept.path) is None


def test_a_line_that_no_longer_fits_is_an_error_and_leaves_no_part(tmp_path):
    path = write(tmp_path / "journal.jsonl", launch("a", "b"), case("a"))
    limit = path.stat().st_size + 20
    code = (
        "import pathlib, resource, signal, sys\n"
        "from lockstep.core.journal import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, -1))\n"
        "kept = Journal(pathlib.Path(sys.argv[1]))\n"
        "try:\n    kept.append({'kind': 'skip', 'case': 'b' * 50})\n"
        "except OSError as error:\n    print(error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "kept.append({'kind': 'skip', 'case': 'c', 'reason': 'there is room again'})\n"
    )
    ended_with = finish([sys.executable, "-c", code, path])
    assert ended_with.stdout == "[Errno 27] File too large\n", ended_with.stderr
    assert [entry["kind"] for entry in journal.read(path)] == ["launch", "case", "skip"]
    assert journal.outcomes(path) == {"a": "case"}  # the other wrote without a launch line


def test_a_fresh_launch_hides_earlier_ones_and_a_resumed_one_goes_on(tmp_path):
    path = write(tmp_path / "journal.jsonl", launch("a", "b"), case("a", 1.0), case("b", 1.0))
    write(path, launch("a", "b"), case("a", 2.0))
    assert journal.outcomes(path) == {"a": "case"}
    write(path, launch("a", "b", resumed=True, started="later"), case("b", 3.0))
    document = journal.rebuild(path)
    assert [entry["stats"]["min"] for entry in document["benchmarks"]] == [2.0, 3.0]
    assert document[KEY]["started"] == "later"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("y" * LIMIT, "a line of the journal would have 0 MiB, but must stay below "),
        (float("nan"), "not JSON compliant"),
    ],
)
def test_what_no_reader_takes_is_not_written(tmp_path, monkeypatch, value, said):
    monkeypatch.setattr(files, "LIMIT_BYTES", LIMIT)
    path = write(tmp_path / "journal.jsonl", launch("a", "b"), case("a"))
    kept = Journal(path)
    with pytest.raises(ValueError, match=said):
        kept.append(case("b") | {"more": value})
    kept.append(case("b"))
    kept.close()
    assert told(path) == [launch("a", "b"), case("a"), case("b")]


def test_what_is_fixed_is_appended_to_the_last_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LIMIT_BYTES", LIMIT)
    kept = Journal(write(tmp_path / "journal.jsonl", launch("a")))
    before = kept.path.stat().st_size
    kept.append(ended("fail", "a", ""))
    room = LIMIT - 1 - (kept.path.stat().st_size - before)
    kept.append(journal.copy_as_json(ended("fail", "a", "x" * room)))
    with pytest.raises(ValueError, match="a line of the journal would have"):
        journal.copy_as_json(ended("fail", "a", "x" * (room + 1)))
    kept.close()
    assert len(journal.read(kept.path)) == 3


def test_a_journal_grows_no_larger_than_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "LIMIT_BYTES", LIMIT)
    kept = Journal(tmp_path / "journal.jsonl")
    kept.append(launch(*"abcdef"))
    with pytest.raises(OSError, match="the journal would exceed 0 MiB; continue in another"):
        for name in "abcdef":
            kept.append(case(name) | {"more": "y" * (LIMIT // 4)})
    kept.close()
    assert set(journal.outcomes(kept.path)) == set("abc")


@pytest.mark.parametrize(
    "content", [b'{"a": 1}', b"# Notes\n", b'{"kind": "launch"}\nno line\n{"ki']
)
def test_a_file_that_is_no_journal_is_refused_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(
        ValueError,
        match=r"mine is not a journal of Lockstep, because it begins with|mine:2 is not a",
    ):
        Journal(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("first", [launch("a"), {"uuid": "lockstep:1", "job": "a"}])
def test_a_journal_whose_first_line_is_torn_is_begun_again(tmp_path, first):
    path = write(tmp_path / "journal.jsonl", first)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        Journal(path).close()
        assert path.read_bytes() == b""


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff\xfe"])
def test_a_corrupt_line_in_the_middle_is_named(tmp_path, line):
    path = write(tmp_path / "journal.jsonl", launch("a"))
    path.write_bytes(path.read_bytes() + line + b"\n" + json.dumps(case("a")).encode() + b"\n")
    with pytest.raises(ValueError, match=r"journal\.jsonl:2 is not a valid line of a journal: "):
        journal.read(path)


def test_another_schema_is_refused(tmp_path):
    path = write(tmp_path / "journal.jsonl", launch("a") | {"schema": 2}, case("a"))
    with pytest.raises(ValueError, match=r"jsonl has the Lockstep schema 2, "):
        journal.rebuild(path)


def test_a_journal_without_a_launch_was_no_measurement(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert journal.outcomes(path) == {}
    with pytest.raises(ValueError, match=r"journal\.jsonl: No such file"):
        journal.rebuild(path)
    path.write_bytes(b'{"kind": "launch", "sch')
    assert journal.outcomes(path) == {}
    with pytest.raises(ValueError, match="the journal is empty"):
        journal.rebuild(path)


def test_two_that_write_one_file_at_once_do_not_meet(tmp_path, monkeypatch):
    path = tmp_path / ("r" * 200)
    sync, others = os.fsync, ["other"]

    def meanwhile(descriptor):
        if others:
            files.write_atomically(path, others.pop())
            assert path.read_text() == "other"
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    files.write_atomically(path, "own")
    assert [(found, found.read_text()) for found in tmp_path.iterdir()] == [(path, "own")]
