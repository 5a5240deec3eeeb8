"""A small share of the fuzzed launches and of the soak, and that their judges would notice."""

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import fuzz_ranks
import fuzz_ranks_check
import fuzz_ranks_plan
import pytest
from fuzz_ranks_launch import MAX_UNMET_LAUNCHES, Ended, Launched, Sequence
from fuzz_ranks_plan import KINDS, PHASES, Fault, Plan
from hypothesis import given
from hypothesis import strategies as st
from soak_check import Watch

TESTS = Path(__file__).parent
HEAD = {"kind": "launch", "schema": 1, "resumed": False, "document": {}, "launch": {}}
WELL = Launched([Ended(0, 0, 1.0, is_ours=False)], 1.0, True, 1, 0, is_hung=False, num_left=0)


def script(name, *options):
    return subprocess.run(
        [sys.executable, TESTS / name, *options], capture_output=True, text=True, check=False
    )


@pytest.mark.chaos
@pytest.mark.slow
def test_launches_that_misbehave_at_random_record_only_what_is_right():
    ended = script(
        "fuzz_ranks.py", "--sequences", "15", "--seed", "7", "--jobs", "2", "--patience", "3"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.match(r"15 sequences, \d+ launches, ", ended.stdout.splitlines()[0])
    measured = re.search(r"(\d+) healthy measured, 0 bad measured", ended.stdout)
    assert int(measured[1]) > 15, ended.stdout


@pytest.mark.chaos
@pytest.mark.slow
def test_a_campaign_survives_the_kill_of_whatever_runs():
    ended = script("soak.py", "--kills", "3", "--seed", "7")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^all +3( +0)+$", ended.stdout, re.MULTILINE), ended.stdout


@given(st.integers(0, 10**6))
def test_a_plan_is_drawn_alike_again_and_survives_being_written(seed):
    plan, again = (fuzz_ranks_plan.draw(Random(seed)) for _ in range(2))  # noqa: S311, no secret
    assert plan == again == fuzz_ranks_plan.read(plan.to_json())
    assert set(plan.stuck) <= set(range(plan.world_size))
    for case in plan.cases:
        assert {fault.kind for fault in case} <= set(KINDS)
        assert {fault.rank for fault in case} <= set(range(plan.world_size))
        # Somebody must be left to notice.
        assert len({fault.rank for fault in case if fault.kind == "stop"}) < plan.world_size
    for smaller in fuzz_ranks_plan.smaller(plan):
        assert len(smaller.to_json()) < len(plan.to_json())


def test_no_two_sums_of_a_sequence_are_alike():
    sums = [
        fuzz_ranks_plan.expected_number(case, phase, 3) for case in range(6) for phase in PHASES
    ]
    assert len(set(sums)) == len(sums) == 24


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


def write_numbers(folder, wrong=()):
    for rank in range(2):
        lines = [
            {
                "case": 0,
                "phase": phase,
                "number": fuzz_ranks_plan.expected_number(0, phase, 2) + extra,
            }
            for phase in PHASES
            for extra in [1 if (rank, phase) in wrong else 0]
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"numbers-{rank}.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("faults", "lines", "finding"),
    [
        ((), [measured()], None),
        ((), [], "case 0 is recorded 0 times"),
        ((), [measured(), ended("fail", "rank 1")], "case 0 is recorded 2 times"),
        ((), [ended("skip", "")], "although not all ranks skip"),
        ((), [ended("fail", "rank 1 was too slow")], None),
        ((), [ended("fail", "wrong number 3 in before")], "mixed with another case's"),
        (((1, "raise"),), [measured()], "although .* misbehave"),
        (((1, "raise"),), [ended("fail", "rank 1 on host: OSError")], None),
        (((1, "raise"),), [ended("fail", "rank 0 on host: timed out")], "no culprit"),
        (((1, "few"),), [ended("fail", "rank 0 on host: timed out")], None),
        (((1, "skip"),), [ended("skip", "no bf16")], "although not all ranks skip"),
        (((0, "skip"), (1, "skip")), [ended("skip", "no bf16")], None),
    ],
)
def test_the_records_of_a_launch_are_judged(tmp_path, faults, lines, finding):
    case = tuple(Fault(rank, "before", kind) for rank, kind in faults)
    write_journal(tmp_path / "out.journal.jsonl", ("a", False, lines))
    write_numbers(tmp_path)
    found = fuzz_ranks_check.findings(Sequence(Plan(2, "outside", 0.1, (case,)), tmp_path, [WELL]))
    assert_found(found, finding)


def assert_found(found, finding):
    if finding is None:
        assert found == []
    else:
        assert any(re.search(finding, one) for one in found), found


@pytest.mark.parametrize("phase", PHASES)
def test_a_wrong_number_of_one_rank_in_one_phase_is_noticed(tmp_path, phase):
    write_journal(tmp_path / "out.journal.jsonl", ("a", False, [measured()]))
    write_numbers(tmp_path, wrong={(1, phase)})
    found = fuzz_ranks_check.findings(Sequence(Plan(2, "outside", 0.1, ((),)), tmp_path, [WELL]))
    assert len(found) == 1
    assert f"of {phase}, not" in found[0]


@pytest.mark.parametrize(
    ("launched", "finding"),
    [
        (WELL, None),
        (Launched([], 500.0, True, 1, 0, is_hung=False, num_left=0), r"took 500\.0 s, allowed are"),
        (Launched([], 61.0, True, 1, 0, is_hung=True, num_left=0), "hung"),
        (Launched([], 1.0, True, 1, 0, is_hung=False, num_left=2), "left 2 process"),
        (
            Launched([Ended(1, 3, 1.0, is_ours=False)], 1.0, True, 1, 0, is_hung=False, num_left=0),
            "rank",
        ),
        (
            Launched(
                [Ended(1, -15, 1.0, is_ours=True)], 1.0, True, 1, 0, is_hung=False, num_left=0
            ),
            None,
        ),
    ],
)
def test_the_ends_of_launches_are_judged(tmp_path, launched, finding):
    write_journal(tmp_path / "out.journal.jsonl", ("a", False, [measured()]))
    write_numbers(tmp_path)
    found = fuzz_ranks_check.findings(
        Sequence(Plan(2, "outside", 0.1, ((),)), tmp_path, [launched])
    )
    assert_found(found, finding)


def unmet(code):
    return replace(WELL, ranks=[Ended(0, code, 1.0, is_ours=False)], has_met=False, num_ended=0)


@pytest.mark.parametrize(
    ("code", "finding"),
    [(78, None), (1, None), *((code, f"code {code};") for code in (0, 2, 5, 70, 76))],
)
def test_ranks_that_did_not_meet_end_as_such_ranks_do(tmp_path, code, finding):
    write_journal(tmp_path / "out.journal.jsonl", ("a", False, [measured()]))
    write_numbers(tmp_path)
    found = fuzz_ranks_check.findings(
        Sequence(Plan(2, "outside", 0.1, ((),)), tmp_path, [unmet(code), WELL])
    )
    assert_found(found, finding)


def test_ranks_that_never_met_measured_nothing(tmp_path):
    plan = Plan(2, "outside", 0.1, ((),))
    found = fuzz_ranks_check.findings(Sequence(plan, tmp_path, [unmet(78)] * MAX_UNMET_LAUNCHES))
    assert_found(found, "case 0 is recorded 0 times")
    assert_found(found, "did not meet in 12 launches")


@pytest.mark.parametrize(
    ("ends", "findings", "holds"),
    [
        ({("case", True): 1, ("fail", False): 3}, [], True),
        ({("case", True): 1}, ["wrong"], False),
        ({("fail", False): 3}, [], False),
        ({}, [], False),
    ],
)
def test_a_campaign_holds_if_something_was_measured(ends, findings, holds):
    tally = fuzz_ranks.Tally()
    plan = Plan(2, "outside", 0.1, ((),))
    tally.add(fuzz_ranks.Result("0/0", plan, findings, ends=Counter(ends)))
    assert tally.holds is holds


@pytest.mark.parametrize("text", ["", '{"benchmarks": ['])
def test_a_result_that_is_empty_or_cut_is_noticed(tmp_path, text):
    write_journal(tmp_path / "out.journal.jsonl", ("a", False, [measured()]))
    write_numbers(tmp_path)
    (tmp_path / "out.json").write_text(text)
    found = fuzz_ranks_check.findings(Sequence(Plan(2, "outside", 0.1, ((),)), tmp_path, [WELL]))
    assert_found(found, "a file cannot be read")


@pytest.fixture
def watch(tmp_path):
    return Watch(tmp_path)


def path_of(watch):
    return watch.folder / "launches" / "w2-r0" / "journal.jsonl"


def test_a_campaign_that_only_grows_is_well(watch):
    assert not watch.look()
    write_journal(path_of(watch), ("a", False, [measured(0)]))
    assert not watch.look()
    with path_of(watch).open("a") as journal:
        journal.write('{"kind": "case", "cas')  # a line that a kill cut short
    assert not watch.look()
    late = measured(1, value=9.0) | {"attempt": "a"}
    write_journal(path_of(watch), ("a", False, [measured(0)]), ("b", True, [late, measured(1)]))
    assert not watch.look()


@pytest.mark.parametrize(
    ("sessions", "wrong"),
    [
        ([("a", False, [])], {"lost": 1}),
        ([("a", False, [measured(0)]), ("b", False, [])], {"lost": 1}),
        ([("a", False, [measured(0)]), ("b", True, [measured(0)])], {"doubled": 1}),
    ],
)
def test_what_a_kill_cost_is_noticed(watch, sessions, wrong):
    write_journal(path_of(watch), ("a", False, [measured(0)]))
    assert not watch.look()
    write_journal(path_of(watch), *sessions)
    assert watch.look() == wrong


@pytest.mark.parametrize("text", ['{"benchmarks": [', '{"benchmarks": [{"fullname": "stranger"}]}'])
def test_a_result_that_is_cut_or_not_the_journal_s_is_noticed(watch, text):
    write_journal(path_of(watch), ("a", False, [measured(0)]))
    path_of(watch).with_name("result.json").write_text(text)
    assert watch.look() == {"invalid": 1}


def test_a_torn_line_in_the_middle_is_noticed(watch):
    write_journal(path_of(watch), ("a", False, [measured(0)]))
    path_of(watch).write_text('{"kind": \n' + path_of(watch).read_text())
    assert watch.look() == {"invalid": 1}


def test_what_another_attempt_wrote_is_noticed_where_the_suite_takes_it(watch, monkeypatch):
    write_journal(path_of(watch), ("a", False, [measured(0)]))
    monkeypatch.setattr(
        "lockstep.core.journal.rebuild",
        lambda path: {"benchmarks": [{"fullname": "b"}]},
    )
    assert watch.look() == {"mixed": 1}
