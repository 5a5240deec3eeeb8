import math
import statistics
from dataclasses import replace

import numpy as np
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.predict import models
from reports.predict.prediction import Ladder, candidates, curve, factor, ladder_of, predict
from reports.predict.recommendation import diminishing, next_step, parse, recommend
from reports.results import Row
from reports.scaling import series_of


@pytest.fixture(scope="module")
def last():
    """What the sizes below the largest say of it, one case per published table."""
    return list(published.cases(is_last=True))


def rows(rates, scaling="strong", nodes: int | None = 1, **changes):
    return [
        Row(
            launch=f"w{size}-r{i}", case="c", study=scaling or "imported", workload="mlp",
            world_size=size, rate=rate, scaling=scaling, sample_unit="images",
            throughput_samples_per_s=rate, num_nodes=nodes, **changes,
        )
        for size, values in rates.items()
        for i, rate in enumerate(values)
    ]  # fmt: skip


def ladder(rates, **changes) -> Ladder:
    return ladder_of(series_of(rows(rates, **changes))[0], {})


def amdahl(serial, sizes, repeats=1):
    return {p: [100 / (serial + (1 - serial) / p)] * repeats for p in sizes}


def test_every_published_table_with_five_sizes_is_predicted(last):
    assert len(last) == 25
    assert all(case.prediction.refused is None for case in last)


def test_the_median_error_within_twice_is_at_most_five_per_cent(last):
    near = [abs(math.expm1(case.log_error)) for case in last if case.is_near]
    assert len(near) == 24
    assert statistics.median(near) <= 0.05


def test_ninety_per_cent_intervals_cover_nine_tables_in_ten(last):
    assert sum(case.is_covered for case in last) >= 0.9 * len(last)


def test_no_published_table_gives_a_negative_time_however_far(last):
    for case in last:
        assert 0 < case.prediction.low <= case.prediction.value <= case.prediction.high
        known = published.ladder(case.table, case.sizes)
        for one in candidates(known):
            far = [known.sizes[-1] * 10**k for k in range(4)]
            assert (one.fit.times(far, [known.nodes_at(at) for at in far]) > 0).all()


def test_the_intervals_are_no_wider_than_their_calibration_needs():
    every = [case for case in published.cases() if case.is_near]
    for level in (0.5, 0.8, 0.9):
        share = sum(case.score <= factor(level) for case in every) / len(every)
        assert level <= share <= level + 0.15


def test_the_model_is_chosen_by_what_it_foretells_and_not_by_its_fit():
    known = published.ladder("dlperf_mxnet_rn50_fp32", [1, 2, 4, 8, 16])
    ranked = candidates(known)
    assert ranked[0].error == min(one.error for one in ranked)
    assert ranked[0].residual > min(one.residual for one in ranked)
    without = published.ladder("dlperf_mxnet_rn50_fp32", [1, 2, 4, 8])
    fitted = models.fit("log", without.sizes, without.times_s, "local")
    told = math.log(fitted.times([16])[0] / known.times_s[-1])
    assert next(c for c in ranked if c.fit.model == "log").held_out[0] == pytest.approx(told)


def test_of_equal_models_the_one_with_fewer_coefficients_is_chosen():
    ranked = candidates(ladder(amdahl(0.02, (1, 2, 4, 8, 16))))
    exact = [c.fit.model for c in ranked if c.error < 1e-6]
    assert exact[0] == "amdahl" and "usl" in exact


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_a_ladder_without_noise_is_continued(scaling):
    known = ladder(amdahl(0.02, (1, 2, 4, 8)), scaling=scaling)
    found = predict(known, 16)
    assert found.value == pytest.approx(100 / (0.02 + 0.98 / 16), rel=1e-6)
    assert found.model == "amdahl"
    assert found.unit == "images/s" and found.metric == "throughput"
    assert found.low < found.value < found.high


@pytest.mark.parametrize(
    ("table", "at", "kind"),
    [
        ("kempner_a100_resnet50", 32, "run summed over its ranks"),
        ("pytorch_ddp_bench_resnext50_32x4d_step", 8, "step"),
        ("mlperf07_transformer_dgxa100", 160, "run"),
        ("dlperf_ngcpytorch_rn50_amp", 8, "unit of a rank's work"),
    ],
)
def test_a_ladder_gives_back_the_values_of_its_table(table, at, kind):
    known = published.ladder(table)
    assert known.time_noun == kind
    index = known.sizes.index(at)
    rate = known.rate(at, float(known.times_s[index]))
    assert rate == pytest.approx(known.rates[index])
    line = {
        "kempner_a100_resnet50": 4765, "pytorch_ddp_bench_resnext50_32x4d_step": 0.157,
        "mlperf07_transformer_dgxa100": 1.022, "dlperf_ngcpytorch_rn50_amp": 6154.65,
    }[table]  # fmt: skip
    assert known.value(at, rate) == pytest.approx(line, rel=1e-3)


def test_times_of_steps_and_runs_are_in_seconds():
    assert published.ladder("pytorch_ddp_bench_resnext50_32x4d_step").times_s.tolist() == (
        pytest.approx([0.147, 0.153, 0.153, 0.157, 0.157])
    )
    assert published.ladder("mlperf07_transformer_dgxa100").times_s[0] == pytest.approx(7.836 * 60)


def test_fewer_than_four_sizes_are_refused_even_by_force():
    known = published.ladder("seed_cyclone_t04")
    for force in (False, True):
        found = predict(known, 8, force=force)
        assert found.value is found.low is found.high is found.model is None
        assert found.refused.startswith("3 distinct sizes (1, 2, 4) cannot tell one model")


def test_repeats_of_a_size_are_no_further_sizes():
    known = ladder({p: [100.0 * p, 101.0 * p] for p in (1, 2, 4)})
    assert "3 distinct sizes" in predict(known, 8).refused


@settings(max_examples=30, deadline=None)
@given(at=st.integers(1, 200))
def test_only_sizes_from_the_smallest_to_twice_the_largest_are_predicted(at):
    known = ladder(amdahl(0.01, (4, 8, 16, 32)))
    assert (predict(known, at).refused is None) == (4 <= at <= 64)
    assert predict(known, at, force=True).refused is None


def test_beyond_twice_the_value_says_so():
    found = predict(ladder(amdahl(0.01, (1, 2, 4, 8))), 32, force=True)
    assert "32 is beyond 2 times the largest size measured, 8" in found.warnings


def test_below_the_smallest_size_the_interval_grows_and_the_value_says_so():
    costs = {p: 1.4 + 0.02 * math.log2(p) for p in (64, 128, 256, 512)}
    known = ladder({p: [p / cost] for p, cost in costs.items()}, scaling="weak", nodes=None)
    assert predict(known, 1).refused.startswith("1 is below the smallest size measured, 64")
    found = [predict(known, at, force=True) for at in (64, 32, 8, 1)]
    spreads = [one.spread / found[0].spread for one in found]
    assert spreads == sorted(spreads) and spreads[1] > 1.9 and spreads[-1] > 6
    assert found[0].warnings == ()
    assert found[-1].warnings[0].startswith("1 is below the smallest size measured, 64")
    # Ranks without a network may be faster than any that was measured: no cut at linear scaling.
    best = found[-1]
    assert best.high / best.value == pytest.approx(best.value / best.low)


def test_strong_scaling_within_one_node_says_that_the_network_is_missing():
    inside = ladder(amdahl(0.01, (1, 2, 4, 8)))
    assert "within one node" in predict(inside, 16).warnings[0]
    assert predict(inside, 8).warnings == ()
    assert predict(ladder(amdahl(0.01, (1, 2, 4, 8)), scaling="weak"), 16).warnings == ()


def test_a_break_at_the_last_size_is_said():
    known = published.ladder("cscs_inceptionv3_p2xlarge_real")
    assert predict(known, 256).warnings == (
        "the curve breaks at its last size, 128: saturation: throughput grows by "
        "9.4 % from that at 64",
    )


def width(found):
    return math.log(found.high / found.low)


def test_the_interval_grows_with_the_distance_the_level_and_the_noise():
    known = ladder(amdahl(0.02, (1, 2, 4, 8)))
    widths = [width(predict(known, at, force=True)) for at in (8, 12, 16, 32)]
    assert widths == sorted(widths) and widths[0] < widths[-1]
    assert width(predict(known, 16, level=0.99)) > width(predict(known, 16, level=0.5))
    noisy = ladder({p: [x[0] * 0.9, x[0] * 1.1] for p, x in amdahl(0.02, (1, 2, 4, 8)).items()})
    assert noisy.noise == pytest.approx(math.log(1.1 / 0.9) / math.sqrt(2))
    assert width(predict(noisy, 16)) > 2 * width(predict(known, 16))


def test_no_end_of_an_interval_beats_linear_scaling_by_more_than_noise():
    known = published.ladder("dlperf_mxnet_rn50_amp", [1, 2, 4, 8, 16])
    found = predict(known, 32)
    best = candidates(known)[0]
    noise = factor(0.9) * math.hypot(0.02, best.residual)
    assert found.high == pytest.approx(32 * 833.61 * math.exp(noise), rel=1e-2)


@settings(max_examples=40, deadline=None)
@given(
    rates=st.lists(st.floats(1e-3, 1e6), min_size=4, max_size=7),
    scaling=st.sampled_from(["strong", "weak", "fixed-epochs", None]),
    far=st.integers(1, 1000),
    level=st.floats(0.01, 0.99),
)
def test_whatever_was_measured_the_value_lies_in_a_positive_interval(rates, scaling, far, level):
    known = ladder({2**i: [x] for i, x in enumerate(rates)}, scaling=scaling)
    found = predict(known, far, level=level, force=True)
    assert 0 < found.low <= found.value <= found.high < math.inf


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_simulated_ladders_are_covered(noise):
    draw = np.random.default_rng(7)
    inside, count = 0, 60
    for _ in range(count):
        serial, log = draw.uniform(0, 0.01), draw.uniform(0, 0.06)
        costs = {p: serial * p + 1 + log * math.log2(p) for p in (1, 2, 4, 8, 16, 32)}
        rates = {p: [p / c * math.exp(draw.normal(0, noise))] for p, c in costs.items()}
        found = predict(ladder({p: rates[p] for p in (1, 2, 4, 8, 16)}, scaling="weak"), 32)
        inside += found.low <= rates[32][0] <= found.high
    assert inside >= 0.9 * count


def test_nodes_that_differ_between_launches_are_not_known():
    two = rows({1: [1.0], 2: [1.9], 4: [3.5], 8: [6.0]})
    assert ladder_of(series_of(two)[0], {}).nodes == [1, 1, 1, 1]
    moved = [*two, replace(two[1], num_nodes=2, launch="other")]
    assert ladder_of(series_of(moved)[0], {}).nodes is None


@pytest.mark.parametrize(("batch", "fixed"), [(1, "local"), (0, "global")])
def test_what_is_fixed_follows_from_the_batches_where_it_is_not_said(batch, fixed):
    made = rows({1: [1.0], 2: [1.9], 4: [3.5], 8: [6.0]}, scaling=None)
    made = [replace(r, global_batch=64 * r.world_size**batch) for r in made]
    assert ladder_of(series_of(made)[0], {}).fixed == fixed


def guide():
    return series_of(published.rows_of("seed_guide_a100_time"))[0]


def test_the_guides_recommendations():
    assert recommend(guide(), parse("efficiency=0.8")).world_size == 4
    assert recommend(guide(), parse("fastest")).world_size == 8
    assert diminishing(guide()) == (
        "diminishing returns from 4 to 8: each added rank gains 64 % of a baseline rank, under 70 %"
    )


@pytest.mark.parametrize(
    ("rule", "size"),
    [
        ("deadline=07:00:00", 2), ("deadline=7200", 8), ("deadline=1:00", None),
        ("budget=14", 4), ("budget=12.5", 1), ("budget=11", None), ("efficiency=1", 1),
    ],
)  # fmt: skip
def test_a_deadline_or_budget_picks_a_size(rule, size):
    assert recommend(guide(), parse(rule)).world_size == size


def test_the_baseline_meets_any_floor():
    bad = series_of(rows({1: [100.0], 2: [60.0]}))[0]
    assert recommend(bad, parse("efficiency=1")).world_size == 1


@pytest.mark.parametrize(
    ("spread", "said"), [(0.001, " %)"), (0.02, ", which straddles the floor)"), (0.0, None)]
)
def test_a_recommendation_says_how_sure_its_efficiency_is(spread, said):
    three = (1 - spread, 1.0, 1 + spread) if spread else (1.0,)
    series = series_of(rows({1: [100 * f for f in three], 2: [142 * f for f in three]}))[0]
    found = recommend(series, parse("efficiency=0.7"))
    assert found.world_size == 2
    assert found.why.startswith("efficiency 71.0 %" + (" (95 % interval " if said else ","))
    assert said is None or said in found.why.partition(", speed-up")[0]
    assert ("straddles" in next_step(series)) == ("straddles" in found.why)


def test_a_throughput_needs_the_samples_of_the_run():
    series = series_of(rows({1: [100.0], 2: [190.0], 4: [350.0]}))[0]
    assert recommend(series, parse("deadline=00:10:00"), 1e5).world_size == 2
    with pytest.raises(ValueError, match="add --samples"):
        recommend(series, parse("budget=1"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cheap",
        "efficiency",
        "efficiency=80",
        "efficiency=0",
        "deadline=soon",
        "budget=-1",
        "budget=nan",
    ],
)
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ValueError, match=f"--rule {text}"):
        parse(text)


def test_a_larger_size_is_proposed_only_where_the_last_one_was_efficient():
    good, bad = ({1: [1.0], 2: [x]} for x in (1.41, 1.39))
    assert next_step(series_of(rows(good))[0]).startswith("measure 4 ranks next")
    assert next_step(series_of(rows(bad))[0]).startswith("measure no larger size")


def test_a_figures_curve_goes_from_the_last_size_measured_to_twice_that():
    series = series_of(published.rows_of("kempner_a100_resnet50"))[0]
    found = curve(series)
    told = predict(published.ladder("kempner_a100_resnet50"), 128)
    assert found.points == [(64, series.points[-1].rate), (128, pytest.approx(1 / told.value))]
    assert found.interval == pytest.approx((1 / told.high, 1 / told.low))


def test_no_curve_is_drawn_where_nothing_or_next_to_it_is_known():
    assert curve(series_of(published.rows_of("seed_cyclone_t04"))[0]) is None
    wild = rows({1: [1.0], 2: [900.0], 4: [2.0], 8: [1e6], 16: [3.0]}, scaling="weak")
    assert curve(series_of(wild)[0]) is None
