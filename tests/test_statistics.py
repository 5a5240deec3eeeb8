import math

import figures_statistics
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.report.compute.statistics import (
    Ratio,
    family_error,
    log_interval,
    moderate,
    ratio_interval,
    t_quantile,
    welch,
)

positive = st.floats(1e-3, 1e6)
probability = st.floats(0, 1)


def test_the_interval_of_two_launches_by_hand():
    # ln 2 and ln 8: mean ln 4, sd ln(4)/sqrt 2, so the half width is 12.7062 * ln(4)/2.
    low, high = log_interval([2.0, 8.0])
    half = 12.7062047 * math.log(4) / 2
    assert math.log(high / 4) == pytest.approx(half, rel=1e-6)
    assert math.log(low / 4) == pytest.approx(-half, rel=1e-6)


def test_welch_by_hand():
    # Logs 0, 2 and 0, 2: each variance 2, each part 1; freedom (1+1)^2/(1+1) = 2; half t_2 sqrt 2.
    low, high = ratio_interval([1.0, math.e**2], [1.0, math.e**2])
    half = t_quantile(2) * math.sqrt(2)
    assert (math.log(low), math.log(high)) == pytest.approx((-half, half))


@pytest.mark.parametrize("equal", [[0.1, 0.1], [0.1, 0.1, 0.1 * (1 + 1e-15)]])
def test_launches_equal_to_the_last_digit_have_no_interval(equal):
    assert log_interval(equal) is None
    assert ratio_interval(equal, [2.0, 2.0]) is None
    assert welch(equal, [2.0, 2.0]).p_value == 1.0
    assert ratio_interval(equal, [2.0, 2.1]) is not None
    assert log_interval([0.1, 0.1 * (1 + 1e-9)]) is not None


@pytest.mark.parametrize(("above", "below"), [([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0])])
def test_without_repeats_there_is_no_interval(above, below):
    assert ratio_interval(above, below) is None
    assert log_interval([1.0]) is None


def test_the_p_value_by_hand():
    # Student's t of 2 with 2 degrees of freedom: P(|T| > t) = 1 - t / sqrt(2 + t^2).
    ratio = welch([1.0, math.e**2], [math.e**-2, 1.0])
    t = 2 / math.sqrt(2)
    assert ratio.p_value == pytest.approx(1 - t / math.sqrt(2 + t**2))


@given(st.lists(positive, min_size=2, max_size=6), st.lists(positive, min_size=2, max_size=6))
def test_the_interval_leaves_1_out_where_the_test_says_so(above, below):
    ratio = welch(above, below)
    error = 0.9 * ratio.p_value if ratio.error else 0.0
    if 1e-6 < error < 0.8:
        low, high = ratio.interval(1 - error)
        assert low <= 1 <= high
        low, high = ratio.interval(1 - ratio.p_value * 1.1)
        assert not low < 1 < high


def test_the_error_of_a_family_by_hand():
    # Limits 0.0125, 0.025, 0.0375, 0.05: the third p-value is the last below its own.
    assert family_error([0.9, 0.001, 0.037, 0.03]) == pytest.approx(0.05 * 3 / 4)
    assert family_error([0.9, 0.5]) == pytest.approx(0.025)
    assert family_error([0.04]) == pytest.approx(0.05)
    assert family_error([]) == pytest.approx(0.05)


@given(st.lists(probability, min_size=1, max_size=20))
def test_intervals_of_a_family_agree_with_its_tests(p_values):
    error = family_error(p_values)
    taken = sum(p <= error for p in p_values)
    # As many are taken as their error was made for, or none at the error of one.
    assert error == pytest.approx(0.05 * max(taken, 1) / len(p_values))


@pytest.mark.parametrize("launches", [3, 5, 10])
def test_intervals_of_efficiency_hold_what_they_say(launches):
    found = figures_statistics.hits("normal", launches, ladders=300)
    assert 0.93 <= found <= 0.98  # 900 intervals: a standard error of 0.7 %


def test_intervals_over_jobs_hold_where_launches_of_a_job_share_its_nodes():
    assert figures_statistics.job_hits(3, 3, ladders=300, over_jobs=False) < 0.9
    assert figures_statistics.job_hits(3, 3, ladders=300) > 0.93
    assert figures_statistics.job_hits(1, 5, ladders=300) < 0.75  # and marked as of one job


def test_the_interval_of_a_skewed_rate_is_of_its_geometric_mean():
    mean, middle = figures_statistics.rate_hits("skew", 40, ladders=100)
    # 400 intervals: a standard error of 1.1 %; the median is 0.4 % above the mean.
    assert mean > 0.9
    assert middle < mean - 0.1


def family(spreads, launches=5):
    """Ratios of points with such spreads, each from so many launches a side."""
    per_launch = 2 / launches
    return [Ratio(0.0, s * per_launch**0.5, 2.0 * launches - 2, per_launch) for s in spreads]


def test_the_pull_of_a_family_is_a_part_of_smyths():
    # Logarithms of variances vary by ln(6.25)^2 / 3 = 1.1195, by trigamma(4) = 0.2838 of them as
    # noise does; the rest, 0.8357, is trigamma(1.6333), so Smyth's prior is worth 3.2665.
    drawn = moderate(family([0.02, 0.02, 0.05]))
    assert [one.freedom for one in drawn] == pytest.approx([8 + 0.4 * 3.2665] * 3, rel=1e-4)


@given(st.lists(st.floats(1e-4, 0.5), min_size=2, max_size=8), st.integers(2, 10))
def test_a_drawn_spread_lies_between_its_own_and_the_familys(spreads, launches):
    given_ones = family(spreads, launches)
    drawn = moderate(given_ones)
    most = sum(one.freedom for one in given_ones)
    for before, after in zip(given_ones, drawn, strict=True):
        assert before.freedom <= after.freedom <= most
        assert after.spread > 0
    order = sorted(range(len(spreads)), key=spreads.__getitem__)
    found = [drawn[i].spread for i in order]
    assert found == sorted(found)
