"""A second of hostile contents for each reader, and all that ever went wrong with one."""

import json
import random
import signal

import fuzz
import fuzz_child
import fuzz_mutations
import fuzz_readers
import pytest

FOUND = sorted(fuzz.FOUND.glob("*/*.json"))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz_readers.READERS)
def test_a_second_of_hostile_contents_finds_nothing(name):
    seen = fuzz.fuzz(name, 1.0, seed=7)
    assert seen.faults == {}
    assert seen.inputs > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz_readers.READERS)
def test_valid_contents_are_read_and_not_refused(name, tmp_path, monkeypatch):
    for number, sample in enumerate(fuzz_readers.samples(name)):
        folder = tmp_path / str(number)
        assert fault_of(name, sample, folder, monkeypatch) == ("", False)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_once_went_wrong_is_read_or_refused(path, tmp_path, monkeypatch):
    content = json.loads(path.read_text())["content"].encode("latin-1")
    fault, _ = fault_of(path.parent.name, content, tmp_path / "folder", monkeypatch)
    assert fault == ""


def fault_of(name, content, folder, monkeypatch):
    """Return what goes wrong with a content, in a folder of its own."""
    reader = fuzz_readers.READERS[name]
    monkeypatch.setenv("PATH", str(folder / "bin"))  # the stand-in for squeue, if any
    (folder / reader.place).parent.mkdir(parents=True)
    reader.before(folder)
    return fuzz_child.fault_of(reader, folder, content)


@pytest.mark.slow
def test_a_reader_that_waits_for_ever_is_a_finding(tmp_path, monkeypatch):
    child = tmp_path / "child.py"
    child.write_text(
        "import sys, time; from pathlib import Path\n"
        "(Path(sys.argv[4]) / 'table.csv').write_text('what it waits over')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(fuzz, "CHILD", child)
    monkeypatch.setattr(fuzz, "SLACK_S", 3)
    seen = fuzz.fuzz("table", 0.0, seed=1)
    assert seen.faults == {"did not end within 3 s": b"what it waits over"}


@pytest.fixture
def faulty(monkeypatch):
    """Readers that do what none may."""

    def add(read):
        reader = fuzz_readers.Reader("faulty", lambda: [b"x"], "any.txt", read)
        monkeypatch.setitem(fuzz_readers.READERS, "faulty", reader)
        return reader

    yield add
    signal.setitimer(signal.ITIMER_PROF, 0)


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
def test_a_faulty_reader_is_found_out(read, fault, faulty, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz_child, "INPUT_LIMIT_S", 0.2)
    found, refused = fuzz_child.fault_of(faulty(read), tmp_path, b"x")
    assert found.startswith(fault)
    assert not refused


def test_a_fault_is_shown_by_the_least_content(faulty, tmp_path):
    def read(folder):
        assert b"@" not in (folder / "any.txt").read_bytes()

    reader = faulty(read)
    name, _ = fuzz_child.fault_of(reader, tmp_path, b"abc@def@")
    assert fuzz_child.minimised(reader, tmp_path, b"abc@def@", name) == b"@"


def test_the_same_seed_makes_the_same_contents():
    samples = fuzz_readers.samples("imported")

    def made(seed):
        chosen = random.Random(seed)  # noqa: S311, no secret
        return [fuzz_mutations.mutated(samples[0], chosen, samples) for _ in range(50)]

    assert made(3) == made(3) != made(4)
    assert all(len(content) <= fuzz_mutations.MAX_BYTES for content in made(3))
