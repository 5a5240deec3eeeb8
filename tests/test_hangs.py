"""`lockstep run` where ranks hang that have lost their own limits, or end without a word."""

import re
import signal

import pytest
from launched import BUDGET_S, alone, begin_ladder, ladder, started, suite

# Enough for a start on a machine that does other things, and far below what a rank is given.
PATIENCE_S = 15.0


@pytest.fixture
def impatient(tmp_path):
    """A copy of the suite whose driver and ranks wait less long where they measure nothing."""
    suite(tmp_path)
    for name, was, limit_s in [
        ("campaign/ladder.py", "LEAST_PATIENCE_S = 60.0", PATIENCE_S),
        ("launch/session.py", "MIN_PATIENCE_S = 60.0", BUDGET_S),
    ]:
        path = tmp_path / "lockstep" / name
        text = path.read_text()
        assert was in text
        path.write_text(text.replace(was, f"{was.split()[0]} = {limit_s}"))
    return tmp_path


def run(folder, fault, **own):
    with started(folder) as launch:
        begin_ladder(launch, fault, ranks=1, FAULT_RANK="0", **own)
        launch.wait()
        return launch.ended()


@pytest.mark.chaos
@pytest.mark.slow
def test_a_case_that_has_taken_the_ranks_limits_away_is_ended_by_the_driver(impatient):
    ended = run(impatient, "deaf", budget_s=PATIENCE_S)
    assert ended.codes == [1]
    said = ended.ends("fail")["test_b_breaks"]
    assert re.search(
        r"^crashed: the case \S+::test_b_breaks\S+ did not end within 30 s, and rank 0 still ran$",
        said,
    )
    assert ended.measured == ["test_a_before", "test_c_after"]
    assert ended.num_left == 0


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "rank", "says", "codes", "num_kept"),
    [
        (
            "timer",
            "all",
            r"rank 0 on \S+ \(cpu\) did not finish the case \S+::test_b_breaks\S+ within "
            "5 s; raise --case-budget if the case needs longer; ",
            [-signal.SIGALRM, -signal.SIGALRM],
            1,
        ),
        (
            "internal",
            "1",
            r"rank 1 on \S+: an error occurred outside a case: RuntimeError: DataLoader worker "
            r"\(pid 7\) is killed by signal: Killed.$",
            [70, 3],
            0,
        ),
    ],
)
def test_ranks_that_no_driver_watches_end_and_name_who_is_at_fault(
    fault, rank, says, codes, num_kept, impatient
):
    ended = alone(impatient, fault, "--case-budget=5", FAULT_RANK=rank)
    assert re.search(rf"^lockstep: {says}", ended.said, re.MULTILINE), ended.said
    assert (ended.codes, len(ended.ends("case"))) == (codes, num_kept)


@pytest.mark.slow
def test_a_rank_that_ends_the_session_says_why(tmp_path):
    ended = ladder(tmp_path, "exit")
    says = r"rank 1 on \S+: ended the session: Exit: no licence here"
    # A case that was in flight fails with these words; before one, the launch's end is explained.
    reasons = ["Launch w2-r0 is not complete: " + says, "^crashed: " + says]
    told = "\n".join([ended.said, *ended.ends("fail").values()])
    assert re.search("|".join(reasons), told, re.MULTILINE), told
