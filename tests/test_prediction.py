import math
from dataclasses import replace
from pathlib import Path

import figures_models
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.report.check.checker import check
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.results import Results, Row
from lockstep.report.predict import models as rules
from lockstep.report.predict.models import TOLERANCE
from lockstep.report.predict.predict_record import diminishing, next_step, parse, recommend
from lockstep.report.predict.prediction import (
    LEARNED,
    Ladder,
    candidates,
    curves,
    foretell,
    ladder_of,
    predict,
)

VALIDATION = Path(__file__).parents[1] / "docs" / "validation.md"
RATES = st.lists(st.floats(1e-3, 1e6), min_size=4, max_size=7)


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
    made = rows(rates, **changes)
    return ladder_of(series_of(made)[0], {}, check(Results(rows=made)))


def amdahl(serial, sizes, repeats=1):
    return {p: [100 / (serial + (1 - serial) / p)] * repeats for p in sizes}


def test_the_figures_of_numbers_md_are_those_that_the_script_computes():
    assert "\n".join(figures_models.table()) in VALIDATION.read_text()


def test_what_is_in_use_was_learned_from_the_published_ladders():
    learned = published.learned()
    assert pytest.approx(learned.errors, abs=5e-5) == LEARNED.errors
    assert LEARNED.scale == pytest.approx(learned.scale, abs=5e-3)


def test_no_table_of_a_source_teaches_for_another_of_it(monkeypatch):
    source = published.source_of("usl_oracle_raytracer")
    whole, without = published.learned(), published.learned.__wrapped__(source)
    left = [table for table in published.measured() if published.source_of(table) != source]
    monkeypatch.setattr(published, "measured", lambda: left)
    monkeypatch.setattr(published, "cases", published.cases.__wrapped__)
    assert published.learned.__wrapped__(None) == without != whole


def test_each_rule_goes_through_the_last_size_or_the_neighbours():
    sizes, rates = [2, 4, 8], [300, 500, 800]
    wanted = {"level": 1600, "falling": 800 * 1.6, "halfway": 800 * math.sqrt(2 * 1.6)}
    for rule, rate in wanted.items():
        assert rules.RULES[rule](sizes, rates, 16) == pytest.approx(rate)
        assert rules.RULES[rule](sizes, rates, 8) == pytest.approx(800)
    known = amdahl(0.05, (1, 2, 4, 8))
    sizes, rates = list(known), [x for (x,) in known.values()]
    assert rules.amdahl(sizes, rates, 16) == pytest.approx(amdahl(0.05, (16,))[16][0])
    rates[-1] *= 1.1
    assert rules.amdahl(sizes, rates, 8) == pytest.approx(rates[-1])
    assert rules.between([1, 4, 16], [100, 300, 900], 2) == pytest.approx(100 * math.sqrt(3))
    assert rules.between([1, 4, 16], [100, 300, 900], 4) == pytest.approx(300)


@given(RATES, st.sampled_from(sorted(rules.RULES)), st.floats(1, 64))
def test_no_rule_expects_more_than_linear_scaling_from_the_last_size(rates, rule, factor):
    sizes = [2**i for i in range(len(rates))]
    rate = rules.RULES[rule](sizes, rates, factor * sizes[-1])
    assert 0 < rate <= factor * rates[-1] * (1 + 1e-9)


def test_a_rule_is_chosen_by_the_sizes_held_out_and_by_what_holds_elsewhere():
    known = ladder(amdahl(0.05, (1, 2, 4, 8, 16)))
    best = candidates(known)[0]
    assert best.rule == "amdahl"
    assert list(best.held_out) == [4, 8, 16]
    # The three errors are 0; that on other people's ladders counts as a fourth.
    assert best.error == pytest.approx(LEARNED.errors["amdahl"] / 4)
    halfway = next(c for c in candidates(known) if c.rule == "halfway")
    wrong = math.log(rules.halfway([1, 2], known.rates[:2], 4) / known.rates[2])
    assert halfway.held_out[4] == pytest.approx(abs(wrong))


@pytest.mark.parametrize(
    ("table", "at", "kind"),
    [
        ("kempner_a100_resnet50", 32, "run (time summed over its ranks)"),
        ("pytorch_ddp_bench_resnext50_32x4d_step", 8, "step"),
        ("dlperf_ngcpytorch_rn50_amp", 8, "unit of a rank's work"),
    ],
)
def test_a_ladder_gives_back_the_values_of_its_table(table, at, kind):
    known = published.ladder(table)
    assert known.time_noun == kind
    line = {
        "kempner_a100_resnet50": 4765, "pytorch_ddp_bench_resnext50_32x4d_step": 0.157,
        "dlperf_ngcpytorch_rn50_amp": 6154.65,
    }[table]  # fmt: skip
    assert known.value(at, known.rates[known.sizes.index(at)]) == pytest.approx(line, rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "at", "measure"), [((1, 2), 16, (4,)), ((1, 8), 2, (4,)), ((4, 8), 2, (2,))]
)
def test_too_few_sizes_are_refused_even_by_force_and_the_missing_ones_are_named(sizes, at, measure):
    known = ladder({p: [100.0 * p] for p in sizes}, scaling="weak")
    for force in (False, True):
        found = predict(known, at, force=force)
        assert found.value is found.low is found.high is found.model is None
        assert found.refusal.kind == "few-sizes"
        assert found.refusal.measure == measure
        assert found.refusal.world_sizes == sizes


@settings(max_examples=30)
@given(at=st.integers(1, 200))
def test_only_sizes_from_the_smallest_to_twice_the_largest_are_predicted(at):
    known = ladder(amdahl(0.01, (4, 8, 16, 32)))
    assert (predict(known, at).refusal is None) == (4 <= at <= 64)
    assert predict(known, at, force=True).refusal is None


@pytest.mark.parametrize("sizes", [(1, 2, 4), (2, 8, 32), (16, 24, 32)])
def test_three_sizes_are_answered_with_a_wide_interval(sizes):
    law = {p: [100 * p / (1 + 0.02 * p)] for p in range(1, 65)}
    three = predict(ladder({p: law[p] for p in sizes}), 2 * sizes[-1])
    assert three.refusal is None
    assert three.low < law[2 * sizes[-1]][0] < three.high
    assert three.high / three.low > 1.2


def test_a_break_is_not_bridged():
    cliff = {1: [100], 2: [198], 4: [390], 8: [500], 16: [990], 32: [1960]}
    known = ladder(cliff, scaling="weak", nodes=None)
    assert [break_.world_size for break_ in known.breaks] == [8]
    assert predict(known, 6).refusal.kind == "break"
    assert predict(known, 3).refusal is predict(known, 12).refusal is None
    found = predict(known, 64)
    alone = foretell(ladder({p: cliff[p] for p in (8, 16, 32)}), 64, 0.9, LEARNED)
    assert (found.value, found.low) == pytest.approx((alone.value, alone.low))
    assert found.warnings[-1].startswith("the curve breaks at world size 8, so the prediction")


@pytest.mark.parametrize(
    ("rates", "rule"),
    [
        ({1: [100], 2: [190], 4: [260], 8: [700], 16: [1350]}, "outlier"),
        ({1: [100], 2: [190], 4: [350, 700], 8: [700], 16: [1350]}, "launches-apart"),
    ],
)
def test_no_curve_is_drawn_through_what_the_check_forbids(rates, rule):
    made = rows(rates, scaling="weak", nodes=None)
    (series,), findings = series_of(made), check(Results(rows=made))
    known = ladder_of(series, {}, findings)
    reason = predict(known, 32).refusal
    assert (reason.kind, reason.rule, reason.world_sizes) == ("check", rule, (4,))
    assert reason.fact in predict(known, 32, force=True).warnings
    assert curves([series], findings) == {}


def width(found):
    return math.log(found.high / found.low)


def test_the_interval_grows_with_the_distance_the_level_and_the_noise():
    known = ladder(amdahl(0.02, (1, 2, 4, 8)))
    spreads = [predict(known, at, force=True).spread for at in (9, 12, 16, 32)]
    assert spreads == sorted(spreads) and spreads[0] < spreads[-1]
    assert width(predict(known, 16, level=0.99)) > width(predict(known, 16, level=0.5))
    noisy = ladder({p: [x[0] * 0.9, x[0] * 1.1] for p, x in amdahl(0.02, (1, 2, 4, 8)).items()})
    assert noisy.noise == pytest.approx(math.log(1.1 / 0.9) / math.sqrt(2))
    assert predict(noisy, 16).spread > 2 * predict(known, 16).spread


@settings(max_examples=60)
@given(RATES, st.integers(1, 4), st.floats(0.5, 0.99))
def test_no_interval_beats_linear_scaling_unless_that_was_measured(rates, doublings, level):
    falling = sorted(rates, reverse=True)  # per rank, so that no size does more than one below
    known = ladder({2**i: [x * 2**i] for i, x in enumerate(falling)})
    at = known.sizes[-1] * 2**doublings
    high = foretell(known, at, level, LEARNED).high
    assert high <= known.rates[-1] * 2**doublings * (1 + TOLERANCE) * (1 + 1e-9)


def test_an_interval_reaches_as_far_as_the_steepest_doubling_measured():
    known = ladder({1: [100], 2: [220], 4: [430], 8: [840]}, scaling="weak")
    assert predict(known, 16, level=0.99).high == pytest.approx(840 * 2.2 * (1 + TOLERANCE))


@settings(max_examples=40)
@given(
    rates=RATES, scaling=st.sampled_from(["strong", "weak", "fixed-epochs", None]),
    far=st.integers(1, 1000), level=st.floats(0.01, 0.99),
)  # fmt: skip
def test_whatever_was_measured_the_value_lies_in_a_positive_interval(rates, scaling, far, level):
    known = ladder({2**i: [x] for i, x in enumerate(rates)}, scaling=scaling)
    found = predict(known, far, level=level, force=True)
    assert 0 < found.low <= found.value <= found.high < math.inf


@pytest.mark.parametrize(("batch", "fixed"), [(1, "local"), (0, "global")])
def test_what_is_fixed_follows_from_the_batches_where_it_is_not_said(batch, fixed):
    made = rows({1: [1.0], 2: [1.9], 4: [3.5], 8: [6.0]}, scaling=None)
    made = [replace(r, global_batch=64 * r.world_size**batch) for r in made]
    known = ladder_of(series_of(made)[0], {})
    assert (known.fixed, known.assumed) == (fixed, None)


def guide():
    return series_of(published.rows_of("seed_guide_a100_time"))[0]


def test_the_guides_recommendations():
    assert recommend(guide(), parse("efficiency=0.8"))["world_size"] == 4
    assert recommend(guide(), parse("fastest"))["world_size"] == 8
    (noisy,) = series_of(rows({1: [1.0, 1.2], 2: [1.8, 2.2]}))
    assert recommend(noisy, parse("efficiency=0.7"))["world_size"] is None
    assert diminishing(guide()) == (
        "diminishing returns from 4 to 8 ranks: each added rank adds only 64 % of a baseline "
        "rank's speed, less than 70 %; the efficiency is higher, because it is the mean over all "
        "ranks"
    )


@pytest.mark.parametrize(
    ("rule", "size"),
    [
        ("deadline=07:00:00", 2), ("deadline=1:00", None), ("budget=14", 4), ("budget=11", None),
    ],
)  # fmt: skip
def test_a_deadline_or_budget_picks_a_size(rule, size):
    assert recommend(guide(), parse(rule))["world_size"] == size


@pytest.mark.parametrize(
    ("rates", "kind", "sizes"),
    [
        ({1: [1.0], 2: [1.41]}, "larger", [4]),
        ({1: [1.0], 8: [3.0]}, "between", [2, 4]),
        ({1: [1.0], 4: [3.9], 8: [4.0]}, "stop", []),
        ({1: [1.0, 1.2], 2: [1.7, 2.0]}, "launches", []),
    ],
)
def test_the_next_sizes_are_larger_ones_or_those_where_the_efficiency_was_lost(rates, kind, sizes):
    found = next_step(series_of(rows(rates, origin="cited"))[0])
    assert (found["kind"], found["world_sizes"]) == (kind, sizes)
