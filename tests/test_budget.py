import pytest
from data.job_samples import campaign_of
from hypothesis import given
from hypothesis import strategies as st

from lockstep.slurm.submit import submission


def launch_hours(campaign):
    """What a campaign costs if each launch takes an hour of each of its ranks."""
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
        (74, (4, (1, 2, 4, 8), ("repeats 5 -> 4",))),
        (45, (3, (1, 2, 4, 8), ("repeats 5 -> 3",))),
        (44, (3, (1, 2, 4), ("repeats 5 -> 3", "world size 8"))),
        (20, (3, (1, 2), ("repeats 5 -> 3", "world sizes 8, 4"))),
        (2, (2, (1,), ("repeats 5 -> 3", "world sizes 8, 4, 2", "repeats 3 -> 2"))),
        (1, (1, (1,), ("repeats 5 -> 3", "world sizes 8, 4, 2", "repeats 3 -> 1"))),
    ],
)
def test_points_are_dropped_in_the_stated_order(hours, expected):
    assert fit(hours, repeats=5) == expected


def test_what_saves_nothing_is_not_dropped():
    # Without a time of each launch a job costs its limit, whatever it holds.
    cost = lambda campaign: 2.0 * max(campaign.world_sizes)  # noqa: E731
    assert fit(10, cost, repeats=5) == (5, (1, 2, 4), ("world size 8",))


def test_a_budget_that_holds_nothing_says_the_least():
    with pytest.raises(
        ValueError, match=r"0\.5 GPU-hours .* one repeat of world size 1 takes 1\.00;"
    ):
        fit(0.5)


@given(
    repeats=st.integers(1, 40),
    world_sizes=st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True),
    hours=st.floats(0, 3000),
)
def test_a_budget_is_kept_and_used(repeats, world_sizes, hours):
    """What is left fits, was reached in the stated order, and one drop less would not fit."""
    everything = campaign_of(studies=["weak"], repeats=repeats, world_sizes=world_sizes)
    ladder = stated(repeats, sorted(world_sizes))
    affordable = [left for left in ladder if left[0] * sum(left[1]) <= hours]
    if not affordable:
        with pytest.raises(ValueError, match="too small"):
            submission.fit(everything, hours, launch_hours, "GPU-hours")
        return
    left = submission.fit(everything, hours, launch_hours, "GPU-hours")[0]
    assert (left.repeats, sorted(left.world_sizes)) == affordable[0]
    assert launch_hours(left) <= hours


def stated(repeats, world_sizes):
    """Return what can be left, in the order in which it is dropped."""
    most = [(left, world_sizes) for left in range(repeats, min(repeats, 3) - 1, -1)]
    fewer = [(most[-1][0], world_sizes[:n]) for n in range(len(world_sizes) - 1, 0, -1)]
    last = [(left, world_sizes[:1]) for left in range(most[-1][0] - 1, 0, -1)]
    return most + fewer + last
