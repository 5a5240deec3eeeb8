"""Who is slow is named, where most launches show it."""

import pytest

from lockstep.measure.causes.division import LateInput
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.slow import latest, slowest
from lockstep.report.load.results import Results, Row
from lockstep.report.page.content_of_page import page

HOSTS = ["node01", "node02"]
# Of the turns of a variant, whose mean is 1.
PACES = [0.97, 1.03, 0.97, 1.03]


def planted(slow_rank=None, hosts=HOSTS):
    """Return launches of two ranks, of which one may take 12 % longer for its own step."""
    rows = []
    for repeat in range(3):
        even = [1.0, 1.001 + repeat / 1000]
        own = [[0.01 * (1.12 if rank == slow_rank else 1.0) * pace] * 8
               for rank, pace in enumerate(even)]  # fmt: skip
        variants = {"full": [[0.013] * 8] * 2, "own": own}
        rows.append(Row(f"w2-r{repeat}", "c", "strong", "w", 2, 77.0 + repeat, scaling="strong",
                        step_s=0.013, rank_variant_s=variants, rank_hosts=hosts))  # fmt: skip
    return Results(rows=rows)


def test_a_host_12_percent_behind_in_every_launch_is_named_with_what_to_do():
    results = planted(slow_rank=1)
    found = slowest(results.rows)
    assert (found.host, found.rank, found.num_seen, found.num_launches) == ("node02", None, 3, 3)
    assert found.ratio == pytest.approx(1.12, abs=0.005)
    (said, *_) = page(evaluate(results), 0.7)["verdicts"]
    assert said.startswith("node02 is the slowest in 3 of 3 launches, by 12.2 % (")
    assert "sbatch --exclude=node02" in said


def test_on_one_host_the_rank_is_named_and_no_host_is_left_out():
    assert slowest(planted().rows) is None  # of ranks that are alike
    results = planted(slow_rank=1, hosts=["here", "here"])
    (said, *_) = page(evaluate(results), 0.7)["verdicts"]
    assert said.startswith("rank 1 on here is the slowest in 3 of 3 launches, by 12.2 %")
    assert "--exclude" not in said


@pytest.mark.parametrize(("slow_cases", "num_cases", "is_slow"), [(1, 2, False), (3, 4, True)])
def test_a_rank_is_slow_where_most_cases_of_a_launch_show_it(slow_cases, num_cases, is_slow):
    rows = [
        Row(f"w2-r{repeat}", f"case{case}", "other", "w", 2, 1.0, step_s=1.0, rank_variant_s={
            "own": [[0.01] * 8, [0.01 * (1.6 if case < slow_cases else 1.0) * pace] * 8]})
        for repeat, pace in enumerate((1.001, 1.002, 1.003)) for case in range(num_cases)
    ]  # fmt: skip
    found = slowest(rows)
    assert (found and (found.rank, round(found.ratio, 1))) == ((1, 1.6) if is_slow else None)


@pytest.mark.parametrize(
    ("draws_s", "late_rank"),
    [
        ([0.0, 0.03], 1),
        ([0.03, 0.03], None),  # all wait: no rank is to blame
        ([0.0, 0.002], None),  # 2 % of a step
    ],
)
def test_a_rank_is_late_whose_batches_alone_come_late(draws_s, late_rank):
    def row(name, hosts=HOSTS, there_s=0.07):
        turns = {"full": [[0.1] * 4] * 2, "resident": [[there_s] * 4] * 2, "own": [[0.06] * 4] * 2}
        turns["draw"] = [[seconds * pace for pace in PACES] for seconds in draws_s]
        return Row(name, "case", "weak", "w", 2, 1.0, rank_variant_s=turns, rank_hosts=hosts)

    found = latest([row("a"), row("b")])
    if late_rank is None:
        assert found is None
    else:
        assert found == (LateInput(late_rank, pytest.approx(0.03), 0.0, 2), HOSTS[late_rank])
    assert latest([row("a"), row("b", HOSTS[::-1])]) is None  # another machine in each launch
    assert latest([row("a", there_s=0.099), row("b", there_s=0.099)]) is None  # a GPU hides it
