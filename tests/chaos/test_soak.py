"""A small share of the soak, and that its judge would notice."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from soak import Watch

HEAD = {"kind": "launch", "schema": 1, "document": {}, "launch": {}, "expected": ["test_0"]}


@pytest.mark.chaos
@pytest.mark.slow
def test_a_campaign_survives_the_kill_of_whatever_runs():
    command = [sys.executable, Path(__file__).parent / "soak.py", "--kills", "2", "--seed", "7"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^2 kills, \d+ campaigns, 0 wrong, ", ended.stdout, re.MULTILINE)


def write_journal(path, *sessions):
    """Write sessions of (attempt, resumed, lines)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for attempt, resumed, own in sessions:
        lines.append(HEAD | {"resumed": resumed, "attempt": attempt})
        lines += [{"attempt": attempt} | line for line in own]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def measured(number=0, value=1.0):
    entry = {"fullname": f"test_{number}", "name": f"test_{number}", "value": value}
    return {"kind": "case", "case": f"test_{number}", "benchmark": entry}


@pytest.fixture
def watch(tmp_path):
    watch = Watch(tmp_path)
    write_journal(path_of(watch), ("a", False, [measured(0)]))
    assert not watch.look()
    return watch


def path_of(watch):
    return watch.folder / "launches" / "w2-r0" / "journal.jsonl"


def test_a_campaign_that_only_grows_is_well(watch):
    with path_of(watch).open("a") as journal:
        journal.write('{"kind": "case", "cas')  # a line that a kill cut short
    assert not watch.look()
    late = measured(1, value=9.0) | {"attempt": "a"}
    write_journal(path_of(watch), ("a", False, [measured(0)]), ("b", True, [late, measured(1)]))
    assert not watch.look()


@pytest.mark.parametrize(
    ("sessions", "wrong"),
    [
        ([("a", False, [])], ["lost"]),
        ([("a", False, [measured(0)]), ("b", True, [measured(0)])], ["doubled"]),
    ],
)
def test_what_a_kill_cost_is_noticed(watch, sessions, wrong):
    write_journal(path_of(watch), *sessions)
    assert kinds(watch) == wrong


def kinds(watch):
    return [one.partition(":")[0] for one in watch.look()]


def test_a_file_that_is_torn_or_another_s_is_noticed(watch, monkeypatch):
    for text in ('{"benchmarks": [', '{"benchmarks": [{"fullname": "stranger"}]}'):
        path_of(watch).with_name("result.json").write_text(text)
        assert kinds(watch) == ["invalid"]
    path_of(watch).with_name("result.json").unlink()
    monkeypatch.setattr(
        "lockstep.core.journal.rebuild", lambda path: {"benchmarks": [{"fullname": "b"}]}
    )
    assert kinds(watch) == ["mixed"]
