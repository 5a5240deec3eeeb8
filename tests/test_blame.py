"""Who is blamed: what a rank did itself before what it suffered, equal on all ranks."""

import json
from dataclasses import asdict, replace

import pytest

from lockstep.core.errors import OtherRankError
from lockstep.core.record import FailureCause
from lockstep.launch import verdict
from lockstep.launch.verdict import NO_CASE, Ended, Facts, Verdict
from lockstep.ranks.control import LostError

RANKS = [{"host": f"n{rank // 4}", "device": f"cuda:{rank % 4}"} for rank in range(12)]
FACTS = Facts(RANKS, "", 60.0, 2.5, None)
PASSED = asdict(Ended())


def failed(reason):
    return asdict(Ended.from_words(reason))


def lost(error):
    return asdict(Ended.from_error(error))


def skipped(reason):
    return asdict(Ended("skipped", reason))


RESET = lost(RuntimeError("[gloo/transport/tcp/pair.cc:547] Broken pipe"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((RuntimeError(f"{sign} after 3 s"), True) for sign in verdict.SIGNS_OF_ANOTHERS_FAULT),
        (LostError("rank 0 is silent"), True),
        (OtherRankError("rank 2 is silent", 2), True),
        (BaseExceptionGroup("teardown", [LostError("x"), RuntimeError("gloo/")]), True),
        (BaseExceptionGroup("teardown", [LostError("x"), KeyError("own")]), False),
        (RuntimeError("DataLoader worker (pid 7) exited: Broken pipe"), False),
    ],
)
def test_what_only_comes_of_others_is_told_by_the_error(error, expected):
    assert verdict.is_consequence(error) == expected


def test_causes_are_records_with_the_error_alone():
    own = Ended("failed", "a traceback\nKeyError: 1", "KeyError: 1")
    ends = [lost(LostError("rank 0 is silent")), None, PASSED, asdict(own), skipped("no bf16")]
    found = Verdict.judge_phase(ends, FACTS).causes
    assert found[0] == FailureCause(3, "n0", "cuda:3", "fault", "KeyError: 1")
    assert [(cause.rank, cause.kind, cause.error) for cause in found[1:]] == [
        (1, "silence", ""),
        (4, "skip", "no bf16"),
        (0, "consequence", "rank 0 is silent"),
    ]


@pytest.mark.parametrize(("num_lost", "last"), [(7, "rank 6 on "), (11, "and 4 more ranks")])
def test_a_culprit_comes_first_and_no_more_ranks_are_named_than_anybody_reads(num_lost, last):
    own = failed("DataLoader worker (pid 7) exited")
    lines = Verdict.judge_phase([RESET] * num_lost + [own], FACTS).reason.splitlines()
    assert lines[0].endswith(": DataLoader worker (pid 7) exited")
    assert len(lines) == min(num_lost + 1, verdict.MAX_BLAMED + 1)
    assert lines[-1].startswith(last)


WENT_WELL = PASSED | {"collectives": 3, "left": [], "next": "x", "case": "x", "free_bytes": 9}


def ends(*changes):
    return [None if change is None else WENT_WELL | change for change in changes]


def at(*cases):
    return ends(*(None if case is None else {"next": case} for case in cases))


@pytest.mark.parametrize(
    ("cases", "code", "ending"),
    [
        (at("x", "x", "x"), None, ""),
        (at("x", "y", "x", "z"), 76, "rank 1 on n0 (cuda:1) is at y, but rank 0 is at x; "),
        (at("x", None, "y"), 76, "rank 2 on n0 (cuda:2) is at y, but rank 0 is at x; "),
        (at("x", NO_CASE), 76, "rank 1 on n0 (cuda:1) is at the end of its launch, but rank 0"),
        (at("x", "x", None), 70, "rank 2 on n0 (cuda:2) did not reach x within 2.5 s"),
        (at("x", None, None), 70, "rank 1 on n0 (cuda:1) and 1 more did not reach x"),
    ],
)
def test_ranks_at_two_cases_are_out_of_step_and_silent_ones_are_lost(cases, code, ending):
    settled = Verdict.judge_leaving(cases, FACTS)
    assert (settled.code, settled.ending[: len(ending)]) == (code, ending)
    assert (settled.code is None) == (settled.outcome == "passed" and not settled.ending)


@pytest.mark.parametrize(
    ("given", "outcome", "code", "words"),
    [
        (ends({}, {}), "passed", None, ""),
        (ends({}, {"outcome": "failed", "reason": "no"}), "failed", None, "rank 1 on n0 (cuda:1):"),
        (ends({}, {"outcome": "skipped", "reason": "no"}), "failed", None, "rank 1 on n0 (cuda:1)"),
        (ends({}, {"collectives": 4}), "failed", None, "rank 1 on n0 (cuda:1) called 4 "),
        (ends({}, None), "failed", 70, "rank 1 on n0 (cuda:1) did not answer in time"),
    ],
)
def test_a_phase_comes_to_what_its_worst_rank_does(given, outcome, code, words):
    facts = replace(FACTS, case="x")
    for judge in (Verdict.judge_phase, Verdict.judge_set_up, Verdict.judge_leaving):
        settled = judge(given, facts)
        assert (settled.outcome, settled.code) == (outcome, code)
        assert settled.reason.startswith(words)
        assert Verdict.from_json(json.loads(json.dumps(asdict(settled)))) == settled


def test_set_up_finds_the_least_room_and_ranks_that_run_another_case_after_all():
    room = Verdict.judge_set_up(ends({}, {"free_bytes": 5}, {}), FACTS).room
    assert (room.rank, room.host, room.free_bytes) == (1, "n0", 5)
    settled = Verdict.judge_set_up(ends({}, {"case": "y"}), FACTS)
    assert (settled.outcome, settled.code) == ("failed", 76)


def test_a_rank_without_its_process_group_makes_all_build_it_again():
    gone = ends({}, {"left": [{"kind": "process_group"}]})
    assert Verdict.judge_leaving(gone, FACTS).needs_group
    assert not Verdict.judge_leaving(ends({}, {}), FACTS).needs_group
