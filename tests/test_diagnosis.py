import math

import numpy as np
import pytest
from data.report_samples import document, record, write
from hypothesis import given
from hypothesis import strategies as st

from lockstep.report.compute import diagnosis
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.load.results import Row

STEADY = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01, 1.00, 0.99, 1.01, 1.00, 1.02]


def found(rounds):
    return diagnosis.of_rounds(np.array([rounds]))[0]


def test_steady_rounds_have_no_finding():
    assert found(STEADY) == []
    assert found([1.0] * 20) == []


def test_rounds_that_get_shorter_are_warm_up_drift():
    (drift,) = found([2.0, 1.6, 1.4, 1.3, 1.2, 1.15, 1.1, 1.05, 1.02, 1.01, 1.005, 1.0])
    # Thirds of four: medians 1.5 and 1.0075.
    change = pytest.approx(1 - 1.0075 / 1.5)
    assert (drift.kind, drift.values) == ("warm-up-drift", {"change": change, "rounds": 12})


def test_rounds_that_get_longer_point_to_throttling():
    (slower,) = found([1 + i / 50 for i in range(12)])
    assert (slower.kind, round(slower.values["change"], 2)) == ("slows-down", 0.16)


def test_two_groups_of_rounds_are_two_modes():
    (modes,) = found([1.0, 1.2, 1.01, 1.21, 1.2, 1.0, 1.0, 1.21, 1.01, 1.2, 1.0, 1.2])
    assert (modes.kind, round(modes.values["apart"], 2)) == ("two-modes", 0.19)


def test_a_trend_of_4_percent_is_no_finding():
    # Thirds of four: medians 1.0075 and 1.0475.
    assert found([1 + i / 200 for i in range(12)]) == []


@pytest.mark.parametrize(("above", "modes"), [(1.25, 0), (1.35, 1)])
def test_two_modes_lie_twice_as_far_apart_as_the_wider_is_wide(above, modes):
    # The lower group is 0.1 wide, so the gap is 1.5 or 2.5 times that.
    rounds = [1.0, above, 1.1, above + 0.05] * 3
    assert sum(one.kind == "two-modes" for one in found(rounds)) == modes


def test_few_rounds_show_nothing():
    assert found([2.0, 1.5, 1.2, 1.1, 1.0]) == []


def test_rounds_far_out_are_counted_by_hand():
    # Quartiles of 1..11 are 3.5 and 8.5, so the outer fence is 8.5 + 3 * 5 = 23.5.
    assert list(diagnosis.far_out(np.array([[*range(1, 11), 23.0], [*range(1, 11), 24.0]]))) == [
        0,
        1,
    ]


@given(st.lists(st.floats(0.5, 2), min_size=12, max_size=30), st.integers(-20, 20))
def test_findings_do_not_depend_on_the_unit(rounds, exponent):
    scaled = [rounds_s * 2.0**exponent for rounds_s in rounds]  # exact, so no tie is broken
    assert found(scaled) == found(rounds)
    assert diagnosis.far_out(np.array([scaled])) == diagnosis.far_out(np.array([rounds]))


def test_noise_alone_is_rarely_taken_for_a_pattern():
    chance = np.random.default_rng(3)
    rounds = np.exp(0.05 * chance.standard_t(3, (20_000, 20)))
    assert sum(map(bool, diagnosis.of_rounds(rounds))) <= 40  # two of a thousand


@pytest.mark.parametrize(("kept", "most"), [(0.3, 0.006), (0.5, 0.015), (0.7, 0.035)])
def test_rounds_that_resemble_the_one_before_rarely_show_a_trend(kept, most):
    # Taken for independent, 0.7, 2.4 and 9.4 % of these do.
    chance = np.random.default_rng(4)
    values = chance.standard_normal((10_000, 20))
    for i in range(1, 20):
        values[:, i] = kept * values[:, i - 1] + np.sqrt(1 - kept**2) * values[:, i]
    assert (diagnosis.trend(np.exp(0.05 * values)) != 0).mean() < most


def test_noise_of_two_values_shows_no_trend():
    # Ties broken by place make one of 5 % of these.
    values = 1 + 0.1 * np.random.default_rng(6).integers(0, 2, (10_000, 12))
    assert (diagnosis.trend(values) != 0).mean() < 0.002


def test_equal_values_share_their_rank():
    ranks = diagnosis._mid_ranks(np.array([[3.0, 1.0, 3.0, 2.0, 3.0], [5.0] * 5]))
    assert ranks.tolist() == [[3.0, 0.0, 3.0, 1.0, 3.0], [2.0] * 5]


def launches(rates, **more):
    return [
        Row(f"l{i}", "c", "strong", "w", 1, rate, **{"started": f"2026-01-01T00:{i:02}"} | more)
        for i, rate in enumerate(rates)
    ]


def test_a_launch_far_from_the_others_is_marked_and_kept():
    rows = launches([100.0, 101.0, 99.0, 100.5, 70.0])
    (outlier,) = diagnosis.of_launches(rows)
    assert (outlier.kind, outlier.values) == ("outlier", {"launch": "l4", "change": 0.7 - 1})
    (series,) = series_of(rows)
    assert series.points[0].rates == [100.0, 101.0, 99.0, 100.5, 70.0]
    assert outlier in series.points[0].flags


def test_launches_that_agree_are_not_marked():
    assert diagnosis.of_launches(launches([100.0, 101.0, 99.0, 100.5, 98.0])) == []
    assert diagnosis.of_launches(launches([100.0, 100.0, 100.0, 100.0, 100.1])) == []


def test_the_border_of_a_launch_far_out_by_hand():
    # The others' logarithms are -a, a, -a, a: standard deviation 2a / sqrt 3. Student's t of three
    # degrees of freedom beyond 0.001 / 10 is 22.2, so the border is 22.2 sqrt(5/4) 2a / sqrt 3.
    a = 0.01
    others = [math.exp(x) for x in (-a, a, -a, a)]
    border = 22.2037 * math.sqrt(1.25) * 2 * a / math.sqrt(3)
    assert diagnosis.of_launches(launches([*others, math.exp(0.99 * border)])) == []
    assert len(diagnosis.of_launches(launches([*others, math.exp(1.01 * border)]))) == 1


def test_launches_of_noise_alone_rarely_hold_an_outlier():
    draws = np.exp(0.05 * np.random.default_rng(5).standard_normal((4000, 5)))
    found = sum(bool(diagnosis.of_launches(launches(rates))) for rates in draws.tolist())
    assert found <= 12  # of 4 expected


def test_no_launch_is_far_out_by_less_than_5_percent_or_of_four():
    assert diagnosis.of_launches(launches([100.0, 100.0, 100.0, 100.0, 104.0])) == []
    assert diagnosis.of_launches(launches([100.0, 100.5, 101.0, 70.0])) == []


def test_lines_of_a_table_are_in_no_order_of_time():
    falling = [100 - 2.0 * i for i in range(10)]
    assert len(diagnosis.of_launches(launches(falling))) == 1
    assert diagnosis.of_launches(launches(falling, started="")) == []


def test_launches_that_get_slower_have_a_trend_whatever_order_they_are_read_in():
    rows = launches([100 - 2 * i for i in range(10)])
    (trend,) = diagnosis.of_launches([rows[i] for i in (3, 1, 9, 0, 2, 8, 7, 4, 6, 5)])
    assert (trend.kind, round(trend.values["change"], 2)) == ("trend", -0.14)


def test_what_is_odd_becomes_a_flag_of_the_row(tmp_path):
    case = record(rank_round_s=[[2.0, 1.6, 1.4, 1.3, 1.2, 1.15, 1.1, 1.05, 1.02, 1.01, 1.005, 1.0]])
    write(tmp_path, document("w1-r0", 1, {"c[1]": case}))
    (row,) = load([tmp_path]).rows
    assert [flag.kind for flag in row.flags] == ["warm-up-drift"]
    assert row.num_far_out == 0
    assert row.started == "2026-11-20T12:00:00+00:00"


@pytest.mark.parametrize(
    ("round_s", "flagged"),
    [
        ([0.018] * 9 + [3.01], True),
        ([3.01] + [0.018] * 3, True),
        ([0.02, 0.5, 0.021, 0.019, 0.6, 0.02, 0.022], True),
        ([0.018], False),
        ([0.018, 3.01], False),
        ([0.018, 0.019, 0.03], False),
        ([0.1] * 9 + [0.9], False),
    ],
)
def test_rounds_that_carry_most_of_the_time_are_flagged(round_s, flagged):
    kinds = [one.kind for one in diagnosis.of_rounds(np.array([round_s]))[0]]
    assert ("long-round" in kinds) == flagged
