"""A second of hostile contents for each reader, and all that ever went wrong with one."""

import json

import fuzz
import pytest

FOUND = sorted(fuzz.FOUND.glob("*/*.json"))


@pytest.fixture(autouse=True)
def no_commands(monkeypatch):
    monkeypatch.setenv("PATH", "")


def fault_of(name, content, folder):
    """Return what goes wrong with a content, in a folder of its own."""
    fuzz.prepare(fuzz.READERS[name], folder)
    return fuzz.fault_of(fuzz.READERS[name], folder, content)


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.READERS)
def test_a_second_of_hostile_contents_finds_nothing(name):
    seen = fuzz.fuzz(name, 1.0, 7)
    assert seen.faults == {}
    assert seen.num_read > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.READERS)
def test_valid_contents_are_read_and_not_refused(name, tmp_path):
    for number, sample in enumerate(fuzz.samples(name)):
        assert fault_of(name, sample, tmp_path / str(number)) == ("", False)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_once_went_wrong_is_read_or_refused(path, tmp_path):
    content = json.loads(path.read_text())["content"].encode("latin-1")
    assert fault_of(path.parent.name, content, tmp_path / "folder")[0] == ""


def forever(folder):
    while True:
        pass


def endless(folder):
    return endless(folder)


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (forever, "TooSlowError"),
        (endless, "RecursionError"),
        (lambda folder: {}[1], "KeyError at test_fuzz.py"),
    ],
)
def test_a_faulty_reader_is_found_out(read, fault, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "LIMIT_S", 0.2)
    reader = fuzz.Reader("faulty", list, "any.txt", read)
    found, refused = fuzz.fault_of(reader, tmp_path, b"x")
    assert found.startswith(fault)
    assert not refused


def test_a_fault_is_shown_by_a_small_content(monkeypatch):
    def read(folder):
        assert b"null" not in (folder / "any.txt").read_bytes()

    reader = fuzz.Reader("faulty", lambda: [b'{"a": 1, "b": [2, 3]}'], "any.txt", read)
    monkeypatch.setitem(fuzz.READERS, "faulty", reader)
    (content,) = fuzz.fuzz("faulty", 30.0, 1).faults.values()
    assert b"null" in content
    assert len(content) < 30
