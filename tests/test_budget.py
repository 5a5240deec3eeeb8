import pytest
from data.job_samples import campaign_of

from lockstep.slurm.submit import submission


def launch_hours(campaign):
    return float(campaign.repeats * sum(campaign.world_sizes))


def fit(hours, cost=launch_hours, **changes):
    everything = campaign_of(studies=["weak"], **changes)
    left, dropped = submission.fit(everything, hours, cost, "GPU-hours")
    return left.repeats, left.world_sizes, dropped


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        # 5 repeats of 1 + 2 + 4 + 8 ranks
        (75, (5, (1, 2, 4, 8), ())),
        (45, (3, (1, 2, 4, 8), ("repeats 5 -> 3",))),
        (20, (3, (1, 2), ("repeats 5 -> 3", "world sizes 8, 4"))),
        (1, (1, (1,), ("repeats 5 -> 1", "world sizes 8, 4, 2"))),
    ],
)
def test_points_are_dropped_in_the_stated_order(hours, expected):
    assert fit(hours, repeats=5) == expected


def test_what_saves_nothing_is_not_dropped():
    # Without a time of each launch a job costs its limit, whatever it holds.
    cost = lambda campaign: 2.0 * max(campaign.world_sizes)  # noqa: E731
    assert fit(10, cost, repeats=5) == (5, (1, 2, 4), ("world size 8",))
