import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.report.columns import table
from lockstep.report.compute.scaling import pooled_step_s, series_of
from lockstep.report.load.results import Results, Row
from lockstep.report.page import collective_tables
from lockstep.report.page.content_of_page import next_step
from lockstep.report.page.curves import ladder_panel
from lockstep.report.words import headline


def row(world_size, rate, scaling="strong", case="c", **more):
    return Row("l", case, scaling, "w", world_size, rate, scaling=scaling, **more)


def points(rows, baseline=None):
    (series,) = series_of(rows, baseline)
    return series.points


def test_an_epoch_lasts_as_long_as_its_samples_at_the_throughput():
    known = {"details": {"epoch_samples": 1000}}
    rows = [row(1, rate, throughput_samples_per_s=rate, **known) for rate in (99.0, 100.0, 101.0)]
    (record,) = table(series_of(rows))
    assert record["epoch_s"] == pytest.approx(10.0, rel=1e-3)
    low, high = record["throughput_samples_per_s_low"], record["throughput_samples_per_s_high"]
    assert [record["epoch_s_low"], record["epoch_s_high"]] == pytest.approx(
        [1000 / high, 1000 / low]
    )


def two_layouts():
    """The series of 1, 2, 4 and 8 ranks on one node, and of 8 ranks on a node each."""
    rates = {(1, 1): 1.0, (2, 1): 1.9, (4, 1): 3.6, (8, 1): 5.0, (8, 8): 2.0}
    return series_of([
        row(size, pace * rate, num_nodes=nodes, ranks_per_node=size // nodes)
        for (size, nodes), rate in rates.items() for pace in (0.99, 1.0, 1.01)
    ])  # fmt: skip


def test_each_purpose_has_the_size_that_intervals_show():
    rates = {1: 1.0, 2: 1.9, 4: 3.0, 8: 3.02}
    (series,) = series_of([
        row(size, pace * rate) for size, rate in rates.items() for pace in (0.99, 1.0, 1.01)
    ])  # fmt: skip
    cheap, good, fast = headline.choices(series, 0.7)
    assert [cheap.world_size, good.world_size, fast.world_size] == [1, 4, 4]
    assert fast.why.endswith("; statistically tied with 8 ranks")
    # An interval of 2 ranks over 1 that contains 1 and is wide shows neither time nor hours.
    (noisy,) = series_of([
        row(size, pace * rate) for size, rate in {1: 1.0, 2: 1.6}.items()
        for pace in (0.5, 1.0, 2.0)
    ])  # fmt: skip
    found = headline.choices(noisy, 0.7)
    assert [choice.world_size for choice in found] == [None, None, None]
    numbers = [int(re.search(r"about (\d+) launches", choice.why)[1]) for choice in found]
    assert numbers[1] > numbers[0] > numbers[2] > 3  # the distances: 1.14, 1.25 and 1.6
    (alone,) = series_of([row(size, rate) for size, rate in rates.items()])
    assert [choice.world_size for choice in headline.choices(alone, 0.7)] == [None, None, None]
    assert [choice.lacking for choice in headline.choices(series, 0.99)] == [
        "not shown", "none", "not shown",
    ]  # fmt: skip
    (cited,) = series_of(times({1: 1.0, 4: 0.3, 8: 0.2}))
    assert [choice.world_size for choice in headline.choices(cited, 0.7)] == [1, 4, 8]
    series.points[-1].blocked_by.append("shared-device")
    assert headline.choices(series, 0.7) == []


def test_a_size_that_is_tied_is_named_or_what_would_show_that_it_is():
    def choices(rates):
        (series,) = series_of([row(n, rate) for n, own in rates.items() for rate in own])
        return headline.choices(series, 0.7)

    # A perfect weak ladder costs the same at each size.
    cheap, *_ = choices({1: (100, 100.5, 99.8), 2: (199.6, 200.4, 200.1)})
    assert (cheap.world_size, cheap.beside) == (1, "statistically tied with 2 ranks")
    assert cheap.why == cheap.beside
    # Two equal sizes are never told apart, but a few launches more show that they are tied.
    *_, fast = choices({1: (0.95, 1.05), 2: (0.951, 1.049)})
    assert fast.world_size is None
    assert fast.why == "about 4 launches of each size would decide"
    *_, fast = choices(dict.fromkeys((1, 2), (0.95, 1.05, 0.96, 1.04)))
    assert fast.world_size == 1


@pytest.mark.parametrize(("base", "other", "needed"), [(1, 4, 3), (5, 4, 5)])
def test_equal_launches_ask_for_one_more_than_there_are(base, other, needed):
    (series,) = series_of([row(1, 100.0)] * base + [row(2, 150.0)] * other)
    assert series.launches_to_show(0.7) == f"at least {needed} launches of each size"


@pytest.mark.parametrize(("nodes", "gb_per_s"), [(1, 300.0), (2, 25.0), (None, None)])
def test_a_collective_is_compared_with_the_link_that_it_crosses(nodes, gb_per_s):
    ((point,),) = [series.points for series in series_of([row(2, 1.0, num_nodes=nodes)])]
    wires = {("l", False): 300.0, ("l", True): 25.0}
    assert collective_tables._wire([[(8.0, point)]], wires) == gb_per_s
    assert collective_tables._wire([[(8.0, point)]], {}) is None


def times(values, scaling="strong"):
    return [
        row(n, 1 / t, scaling, time_s=3600 * t, origin="cited") for n, t in values.items()
    ]  # fmt: skip


def test_weak_efficiency_is_the_time_ratio_and_not_the_strong_formula():
    # Local batch 64: 0.10 s at 1 rank, 0.125 s at 4. Efficiency 0.8; the strong formula gives 0.2.
    rows = [
        row(n, n * 64 / t, "weak", step_s=t, throughput_samples_per_s=n * 64 / t)
        for n, t in {1: 0.1, 4: 0.125}.items()
    ]
    last = points(rows)[-1]
    assert last.parallel_efficiency == pytest.approx(0.8)
    assert last.time_ratio == pytest.approx(0.8)
    assert last.speedup == pytest.approx(3.2)
    strong = points([row(n, 1 / n, step_s=1.0) for n in (1, 2)])
    assert [p.time_ratio for p in strong] == [None, None]


def test_a_baseline_may_be_chosen_and_smaller_sizes_stay():
    found = points([row(4, 5.0), row(8, 8.0), row(256, 100.0)], baseline=8)
    assert [p.world_size for p in found] == [4, 8, 256]
    assert found[0].parallel_efficiency == pytest.approx((5 / 8) / (4 / 8))
    assert found[2].parallel_efficiency == pytest.approx((100 / 8) / 32)
    rows = [row(1, 1.0, case="a"), row(8, 6.0, case="a"), row(2, 1.0, case="b")]
    assert {s.case: s.baseline for s in series_of(rows, 8)} == {"a": 8, "b": 2}
    with pytest.raises(ValueError, match=r"no series has the baseline 3; choose .* sizes \[1"):
        series_of([row(1, 1.0), row(2, 2.0)], 3)


def test_a_point_is_the_median_over_its_launches():
    (point,) = points([row(1, r, step_s=1 / r) for r in (1.0, 100.0, 2.0)])
    assert (point.rate, point.num_launches, point.step_s) == (2.0, 3, 0.5)
    # Steps of 1 s and 3 s: median 2 s, so half a unit of work per second.
    (point,) = points([row(1, r, step_s=1 / r) for r in (1.0, 1 / 3)])
    assert (point.step_s, point.rate) == (pytest.approx(2.0), pytest.approx(0.5))


def test_the_interval_of_efficiency_contains_the_noise_of_the_baseline():
    quiet = [row(1, r) for r in (100.0, 100.1)] + [row(2, r) for r in (180.0, 180.2)]
    noisy = [row(1, r) for r in (95.0, 105.0)] + [row(2, r) for r in (180.0, 180.2)]
    widths = []
    for rows in (quiet, noisy):
        low, high = points(rows)[1].efficiency_interval
        widths.append(math.log(high / low))
    assert widths[1] > 20 * widths[0]


def test_an_interval_that_spans_orders_of_magnitude_is_none():
    rows = [row(1, r) for r in (95.0, 105.0)] + [row(2, r) for r in (60.0, 280.0)]
    base, other = points(rows)
    assert base.rate_interval is not None
    assert (other.rate_interval, other.efficiency_interval) == (None, None)


positive = st.floats(1e-3, 1e6)


@given(st.dictionaries(st.integers(1, 4096), positive, min_size=1, max_size=8))
def test_efficiency_times_the_size_ratio_is_speedup(rates):
    (series,) = series_of([row(n, r) for n, r in rates.items()])
    for point in series.points:
        factor = point.world_size / series.baseline
        assert point.parallel_efficiency * factor == pytest.approx(point.speedup)
    assert series.base.speedup == 1.0
    assert series.baseline == min(rates)


@pytest.mark.parametrize(("study", "size", "more", "hours"), [
    ("strong", 4, {}, 4000 / 3600),  # 1000 samples/s: 1000 s on each of 4 ranks
    # 100 samples in 0.1 s at the median, 0.12 s at the mean: a million samples take 1200 s.
    ("strong", 1, {"step_s": 0.1, "rounds": 5, "mean_step_s": 0.12, "stddev_step_s": 0.0},
     1200 / 3600),
    ("loader", 1, {}, None),
])  # fmt: skip
def test_the_cost_of_a_million_samples_follows_the_mean_step(study, size, more, hours):
    known = {"throughput_samples_per_s": 1000.0, "sample_unit": "images", **more}
    (point,) = points([row(size, 1000.0, study, **known)])
    assert point.device_hours == (hours and pytest.approx(hours))
    assert point.device_hours_per == (hours and "1e6 images")


def test_what_more_devices_cost_over_the_baseline():
    # 12, 13, 14, 16 GPU-hours: 8, 17 and 33 % more than one GPU takes; at 2.50 an hour, 30 to 40.
    rows = times({1: 12, 2: 6.5, 4: 3.5, 8: 2})
    (series,) = series_of(rows, cost_per_hour=2.5)
    found = series.points
    assert [p.device_hours for p in found] == pytest.approx([12, 13, 14, 16])
    assert [round(100 * p.extra_device_hours) for p in found[1:]] == [8, 17, 33]
    assert [p.cost for p in found] == pytest.approx([30, 32.5, 35, 40])
    assert points(rows)[0].cost is None


def test_statistics_over_all_rounds():
    # Rounds 1, 2, 3 and 5, 7: mean 3.6, sample deviation sqrt(23.2/4).
    one = row(1, 1.0, rounds=3, mean_step_s=2.0, stddev_step_s=1.0, min_step_s=1.0, max_step_s=3.0)
    two = row(1, 1.0, rounds=2, mean_step_s=6.0, stddev_step_s=math.sqrt(2), min_step_s=5.0,
              max_step_s=7.0)  # fmt: skip
    found = pooled_step_s([one, two])
    assert found["mean_step_s"] == pytest.approx(3.6)
    assert found["stddev_step_s"] == pytest.approx(math.sqrt(23.2 / 4))
    assert (found["min_step_s"], found["max_step_s"]) == (1.0, 7.0)


def test_launches_on_another_layout_are_a_series_of_their_own():
    main, spread = two_layouts()
    assert (main.layout, spread.layout) == ("", "1 rank per node")
    assert [point.speedup for point in spread.points] == pytest.approx([2.0])


def test_what_follows_is_told_of_the_main_ladder_not_of_another_layout():
    series = two_layouts()
    assert series[1].points[0].parallel_efficiency < 0.6 < series[0].points[-1].parallel_efficiency
    said = next_step(Results(), series, 0.6, [], None)
    assert said == next_step(Results(), series[:1], 0.6, [], None)


@pytest.mark.parametrize("rules", [[], ["shared-device"]])
def test_no_ratio_is_told_of_what_the_check_forbids(rules):
    main, spread = two_layouts()
    main.points[-1].blocked_by.extend(rules)
    made = ladder_panel("strong", [spread], 0.7, "GPU-hours", {})
    assert ("times the throughput" in made["tables"][0]["note"]) == (not rules)


def ladder_rows(efficiencies, pace=1.0, sizes=(1, 2, 4), **settings):
    return [
        row(size, pace * size * efficiency * noise, settings=settings)
        for size, efficiency in zip(sizes, efficiencies, strict=True)
        for noise in (0.999, 1.0, 1.001)
    ]


@pytest.mark.parametrize(
    ("second", "settings", "sizes", "base"),
    [
        ([1.0, 0.9, 0.8], {"threads_per_rank": "4"}, (1, 2, 4), 1),
        ([1.0, 0.9, 0.8], {"threads_per_rank": "1", "NCCL_ALGO": "Ring"}, (1, 2, 4), 1),
        ([1.0, 0.9], {"threads_per_rank": "4"}, (4, 8), 4),  # one size is its alone
    ],
)
def test_each_ladder_of_a_setting_is_divided_by_its_own_baseline(second, settings, sizes, base):
    first = ladder_rows([1.0, 0.95, 0.85], threads_per_rank="1")
    main, other = series_of([*first, *ladder_rows(second, 1.1, sizes, **settings)])
    assert (main.baseline, other.baseline, other.main) == (1, base, main)
    assert [p.parallel_efficiency for p in main.points] == pytest.approx([1.0, 0.95, 0.85])
    assert [p.parallel_efficiency for p in other.points] == pytest.approx(second)
    changed = set(settings.items()) - {("threads_per_rank", "1")}
    assert other.layout == ", ".join("=".join(one) for one in changed)


def test_what_differs_from_size_to_size_by_design_parts_no_ladders():
    cores = {1: ("16", "16"), 2: ("8", "8"), 4: ("4", "8")}
    rows = [
        row(size, size * pace, settings={"cores_per_rank": own[repeat]})
        for size, own in cores.items()
        for repeat, pace in enumerate((1.0, 1.01))
    ]
    main, other = series_of(rows)
    assert [point.world_size for point in main.points] == [1, 2, 4]
    assert (other.layout, other.base.world_size) == ("cores_per_rank=4", 1)
    assert other.base is main.base
