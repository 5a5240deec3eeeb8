import math

import numpy as np
import pytest
from data.report_samples import document, record, write

from lockstep.report.compute import diagnosis
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.load.results import Row

STEADY = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01, 1.00, 0.99, 1.01, 1.00, 1.02]


def found(rounds):
    return diagnosis.flag_rounds(np.array([rounds]))[0]


@pytest.mark.parametrize(("rounds", "kinds", "values"), [
    (STEADY, [], {}), ([1.0] * 20, [], {}), ([2.0, 1.5, 1.2, 1.1, 1.0], [], {}),  # too few
    # Thirds of four: medians 1.5 and 1.0075; 1.03 and 1.19; 1.0075 and 1.0475, which is 4 %.
    ([2.0, 1.6, 1.4, 1.3, 1.2, 1.15, 1.1, 1.05, 1.02, 1.01, 1.005, 1.0], ["warm-up-drift"],
     {"change": 1 - 1.0075 / 1.5, "rounds": 12}),
    ([1 + i / 50 for i in range(12)], ["slows-down"], {"change": 1.19 / 1.03 - 1, "rounds": 24}),
    ([1 + i / 200 for i in range(12)], [], {}),
    # The lower group is 0.1 wide, so the gap is 2.5 times that.
    ([1.0, 1.35, 1.1, 1.4] * 3, ["two-modes"], {"apart": 1.35 / 1.1 - 1, "rounds": 24}),
    ([0.018] * 9 + [3.01], ["long-round"], None), ([3.01] + [0.018] * 3, ["long-round"], None),
    ([0.018, 3.01], [], {}), ([0.1] * 9 + [0.9], [], {}),
])  # fmt: skip
def test_what_is_odd_about_rounds(rounds, kinds, values):
    flags = found(rounds)
    assert [flag.kind for flag in flags] == kinds
    if values:
        assert flags[0].values == pytest.approx(values)


def test_rounds_far_out_are_counted_by_hand():
    # Quartiles of 1..11 are 3.5 and 8.5, so the outer fence is 8.5 + 3 * 5 = 23.5.
    rounds = np.array([[*range(1, 11), 23.0], [*range(1, 11), 24.0]])
    assert diagnosis.far_out(rounds).tolist() == [0, 1]


def test_noise_alone_is_rarely_taken_for_a_pattern():
    chance = np.random.default_rng(3)
    rounds = np.exp(0.05 * chance.standard_t(3, (20_000, 20)))
    assert sum(map(bool, diagnosis.flag_rounds(rounds))) <= 40  # two of a thousand


@pytest.mark.parametrize(("kept", "most"), [(0.3, 0.006), (0.7, 0.035)])
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


def launches(rates, **more):
    return [
        Row(f"l{i}", "c", "strong", "w", 1, rate, **{"started": f"2026-01-01T00:{i:02}"} | more)
        for i, rate in enumerate(rates)
    ]


def test_a_launch_far_from_the_others_is_marked_and_kept():
    rows = launches([100.0, 101.0, 99.0, 100.5, 70.0])
    (outlier,) = diagnosis.flag_launches(rows)
    assert (outlier.kind, outlier.values) == ("outlier", {"launch": "l4", "change": 0.7 - 1})
    (series,) = series_of(rows)
    assert series.points[0].rates == [100.0, 101.0, 99.0, 100.5, 70.0]
    assert outlier in series.points[0].flags


@pytest.mark.parametrize("rates", [
    (100.0, 101.0, 99.0, 100.5, 98.0), (100.0, 100.0, 100.0, 100.0, 100.1),
    (100.0, 100.0, 100.0, 100.0, 104.0), (100.0, 100.5, 101.0, 70.0),  # less than 5 %; too few
])  # fmt: skip
def test_launches_that_agree_or_are_too_few_are_not_marked(rates):
    assert diagnosis.flag_launches(launches(rates)) == []


def test_the_border_of_a_launch_far_out_by_hand():
    # The others' logarithms are -a, a, -a, a: standard deviation 2a / sqrt 3. Student's t of three
    # degrees of freedom beyond 0.001 / 10 is 22.2, so the border is 22.2 sqrt(5/4) 2a / sqrt 3.
    a = 0.01
    others = [math.exp(x) for x in (-a, a, -a, a)]
    border = 22.2037 * math.sqrt(1.25) * 2 * a / math.sqrt(3)
    assert diagnosis.flag_launches(launches([*others, math.exp(0.99 * border)])) == []
    assert len(diagnosis.flag_launches(launches([*others, math.exp(1.01 * border)]))) == 1


def test_launches_that_get_slower_have_a_trend_whatever_order_they_are_read_in():
    rows = launches([100 - 2 * i for i in range(10)])
    (trend,) = diagnosis.flag_launches([rows[i] for i in (3, 1, 9, 0, 2, 8, 7, 4, 6, 5)])
    assert (trend.kind, round(trend.values["change"], 2)) == ("trend", -0.14)


def test_what_is_odd_becomes_a_flag_of_the_row(tmp_path):
    case = record(rank_round_s=[[2.0, 1.6, 1.4, 1.3, 1.2, 1.15, 1.1, 1.05, 1.02, 1.01, 1.005, 1.0]])
    write(tmp_path, document("w1-r0", 1, {"c[1]": case}))
    (row,) = load([tmp_path]).rows
    assert [flag.kind for flag in row.flags] == ["warm-up-drift"]
    assert row.num_far_out == 0
    assert row.started == "2026-11-20T12:00:00+00:00"
