"""A small share of the fuzzed launches and of the soak, and that their judges would notice."""

import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import fuzz_ranks_check
import fuzz_ranks_plan
import pytest
from fuzz_ranks_launch import MAX_UNMET_LAUNCHES, Ended, Launched, Sequence
from fuzz_ranks_plan import PHASES, Fault, Plan, expected_number
from hypothesis import given
from hypothesis import strategies as st
from soak import Watch

HEAD = {"kind": "launch", "schema": 1, "document": {}, "launch": {}}


def script(name, *options):
    ended = subprocess.run(
        [sys.executable, Path(__file__).parent / name, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.chaos
@pytest.mark.slow
def test_launches_that_misbehave_at_random_record_only_what_is_right():
    options = ("--sequences", "6", "--seed", "7", "--jobs", "2", "--patience", "3")
    said = script("fuzz_ranks.py", *options)
    assert said.startswith("6 sequences, 0 with findings, ")
    assert "bad case" not in said
    assert int(re.search(r"(\d+) healthy case", said)[1]) > 6, said


@pytest.mark.chaos
@pytest.mark.slow
def test_a_campaign_survives_the_kill_of_whatever_runs():
    said = script("soak.py", "--kills", "1", "--seed", "7")
    assert re.search(r"^1 kills, \d+ campaigns, 0 wrong, ", said, re.MULTILINE), said


@given(st.integers(0, 10**6))
def test_in_a_plan_somebody_is_left_to_notice(seed):
    plan = fuzz_ranks_plan.draw(Random(seed))  # noqa: S311, no secret
    for case in plan.cases:
        assert len({fault.rank for fault in case if fault.kind == "stop"}) < plan.world_size


def case_id(number):
    return f"tests/samples/fuzzed_cases.py::test_{number}[local_batch=32]"


def write_journal(path, *sessions):
    """Write sessions of (attempt, resumed, lines)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for attempt, resumed, own in sessions:
        lines.append(HEAD | {"expected": [case_id(0)], "resumed": resumed, "attempt": attempt})
        lines += [{"attempt": attempt} | line for line in own]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def measured(number=0, value=1.0):
    entry = {"fullname": case_id(number), "name": f"test_{number}", "value": value}
    return {"kind": "case", "case": case_id(number), "benchmark": entry}


def ended(kind, reason):
    return {"kind": kind, "case": case_id(0), "reason": reason}


def launch(code=0, seconds=1.0, *, is_ours=False, has_met=True, is_hung=False, num_left=0):
    return Launched([Ended(0, code, is_ours)], seconds, has_met, 1, 0, is_hung, num_left)


def findings(folder, *launches, faults=(), lines=None, off=None):
    """Return what is found after one case of two ranks; `off` is the phase of a wrong number."""
    write_journal(folder / "out.journal.jsonl", ("a", False, lines or [measured()]))
    for rank in range(2):
        numbers = [expected_number(0, phase, 2) + (phase == off and rank) for phase in PHASES]
        told = [{"case": 0, "phase": p, "number": n} for p, n in zip(PHASES, numbers, strict=True)]
        text = "".join(json.dumps(line) + "\n" for line in told)
        (folder / f"numbers-{rank}.jsonl").write_text(text)
    case = tuple(Fault(rank, "before", kind) for rank, kind in faults)
    plan = Plan(2, "outside", 0.1, (case,))
    return fuzz_ranks_check.findings(Sequence(plan, folder, list(launches or [launch()])))


@pytest.mark.parametrize(
    ("faults", "lines", "finding"),
    [
        ((), [measured()], None),
        ((), [measured(), ended("fail", "rank 1")], "case 0 is recorded 2 times"),
        ((), [ended("skip", "")], "although not all ranks skip"),
        ((), [ended("fail", "wrong number 3 in before")], "mixed with another case's"),
        (((1, "raise"),), [measured()], "although .* misbehave"),
        (((1, "raise"),), [ended("fail", "rank 1 on host: OSError")], None),
        (((1, "raise"),), [ended("fail", "rank 0 on host: timed out")], "no culprit"),
        (((0, "skip"), (1, "skip")), [ended("skip", "no bf16")], None),
    ],
)
def test_the_records_of_a_launch_are_judged(tmp_path, faults, lines, finding):
    assert_found(findings(tmp_path, faults=faults, lines=lines), finding)


def assert_found(found, finding):
    if finding is None:
        assert found == []
    else:
        assert any(re.search(finding, one) for one in found), found


def test_a_wrong_number_of_one_rank_in_one_phase_is_noticed(tmp_path):
    for phase in PHASES:
        (found,) = findings(tmp_path, off=phase)
        assert f"of {phase}, not" in found


@pytest.mark.parametrize(
    ("launches", "finding"),
    [
        ([launch(seconds=500.0)], r"took 500\.0 s, allowed are"),
        ([launch(is_hung=True)], "hung"),
        ([launch(num_left=2)], "left 2 process"),
        ([launch(3)], "code 3;"),
        ([launch(-15, is_ours=True)], None),
        ([launch(78, has_met=False)] * MAX_UNMET_LAUNCHES, "did not meet in 12 launches"),
    ],
)
def test_the_ends_of_launches_are_judged(tmp_path, launches, finding):
    assert_found(findings(tmp_path, *launches), finding)


@pytest.fixture
def watch(tmp_path):
    watch = Watch(tmp_path)
    write_journal(path_of(watch), ("a", False, [measured(0)]))
    assert not watch.look()
    return watch


def path_of(watch):
    return watch.folder / "launches" / "w2-r0" / "journal.jsonl"


def test_a_campaign_that_only_grows_is_well(watch):
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


def test_a_result_of_a_stranger_is_noticed(watch):
    text = '{"benchmarks": [{"fullname": "stranger"}]}'
    path_of(watch).with_name("result.json").write_text(text)
    assert kinds(watch) == ["invalid"]
