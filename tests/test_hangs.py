"""`lockstep run` where ranks hang that have lost their own limits, or end without a word."""

import re

import pytest
from launched import begin_ladder, ladder, started, suite

# Enough for a start on a machine that does other things, and far below what a rank is given.
PATIENCE_S = 15.0


@pytest.fixture
def impatient(tmp_path):
    """Return a copy of the suite whose driver waits less long, and measures with a fault."""
    suite(tmp_path)
    path = tmp_path / "bench" / "ladder.py"
    text = path.read_text()
    short = text.replace("LEAST_PATIENCE_S = 60.0", f"LEAST_PATIENCE_S = {PATIENCE_S}")
    assert short != text
    path.write_text(short)

    def run(fault, **own):
        with started(tmp_path) as launch:
            begin_ladder(launch, fault, ranks=1, budget_s=PATIENCE_S, FAULT_RANK="0", **own)
            launch.wait()
            return launch.ended()

    return run


@pytest.mark.slow
def test_a_case_that_has_taken_the_ranks_limit_away_is_ended_by_the_driver(impatient):
    ended = impatient("deaf")
    assert ended.codes == [1]
    said = ended.ends("fail")["test_b_breaks"]
    assert re.search(r"^crashed: \S+::test_b_breaks\S+ ran for 30 s without an end", said)
    assert ended.measured == ["test_a_before", "test_c_after"]
    assert ended.num_left == 0


@pytest.mark.slow
def test_a_thread_that_outlives_a_launch_of_one_rank_costs_no_case(impatient):
    ended = impatient("linger")
    assert (ended.codes, len(ended.measured), ended.num_left) == ([0], 3, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("exit", r"rank 1 on \S+: ended the session: Exit: no licence here"),
        ("module", r"rank 1 on \S+: skips all that it could measure: .*no such GPU here"),
    ],
)
def test_a_rank_that_ends_the_session_says_why(fault, says, tmp_path):
    ended = ladder(tmp_path, fault)
    # A case that was in flight fails with these words; before one, the launch's end is explained.
    reasons = ["w2-r0 is not complete: " + says, "^crashed: " + says]
    told = "\n".join([ended.said, *ended.ends("fail").values()])
    assert re.search("|".join(reasons), told, re.MULTILINE), told
