import json
import math
from dataclasses import replace

import noise
import numpy as np
import pytest
from click.testing import CliRunner
from data.report_samples import document, provenance, record, strong_tree, write
from figures_compare import ONE_NOISY, false_claims, power
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.report.compare import comparison
from lockstep.report.compare.comparison import SLOWER, compare, judge, launches_needed
from lockstep.report.compute.statistics import t_quantile
from lockstep.report.load.reading import load
from lockstep.report.report_cli import import_table
from lockstep.vocabulary.flags import flag

positive = st.floats(1e-3, 1e6)
side = st.lists(positive, min_size=1, max_size=6)
families = st.lists(st.tuples(side, side), min_size=1, max_size=6)


def results(path):
    return load([path])


def table(folder, text, name="t.csv"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    done = CliRunner().invoke(import_table, [str(folder / name), "--to", str(folder)])
    assert done.exit_code == 0, done.output
    return load([folder])


def test_one_point_by_hand():
    # Logs of A: 0 and 0.02; of B: 0.09 and 0.11. Each variance 0.0002, standard error
    # sqrt(0.0002), freedom 2; the difference 0.09 is 6.36 of them, beyond t = 4.303.
    (found,), error = judge([([1, math.exp(0.02)], [math.exp(0.09), math.exp(0.11)])])
    half = t_quantile(2) * math.sqrt(0.0002)
    assert error == pytest.approx(0.05)
    assert found.ratio == pytest.approx(math.exp(0.09))
    assert found.interval == pytest.approx((math.exp(0.09 - half), math.exp(0.09 + half)))
    assert found.verdict == "faster"
    assert found.spread == pytest.approx(math.sqrt(0.0002))


@pytest.mark.parametrize(
    ("b", "verdict"),
    [
        ([1.0, 1.0], "same"),
        ([1.029, 1.029], "same"),
        ([0.9710, 0.9710], "same"),  # 1 / 1.03 = 0.97087
        ([0.9705, 0.9705], "slower"),
        ([1.031, 1.031], "faster"),
        ([0.9, 1.1], "not-enough-evidence"),
        ([0.5], "not-enough-evidence"),
    ],
)
def test_each_verdict_at_its_border(b, verdict):
    (found,), _ = judge([([1.0, 1.0 + 1e-6], b)])
    assert found.verdict == verdict
    assert (found.interval is None) == (len(b) < 2)


def test_rounded_launches_are_no_certainty():
    # Each side's launches are equal to the last digit, as tables of rounded numbers are.
    rounded = ([100, 100], [104, 104])
    (alone,), error = judge([rounded])
    assert (alone.verdict, alone.interval, alone.spread) == ("not-enough-evidence", None, None)
    assert (alone.ratio, error) == (pytest.approx(1.04), pytest.approx(0.05))
    noisy = ([100, 103], [101, 98])
    assert judge([rounded, noisy])[0][1] == judge([noisy])[0][0]
    among = judge([rounded, noisy, noisy])[0][0]
    assert among.verdict == "not-enough-evidence"
    assert among.interval[0] < 1 < 1.04 < among.interval[1]


def test_without_repeats_there_is_a_ratio_and_no_interval():
    (found,), error = judge([([2.0], [3.0])])
    assert (found.ratio, found.interval, found.spread) == (pytest.approx(1.5), None, None)
    assert error == pytest.approx(0.05)


def test_points_without_repeats_do_not_count_in_the_family():
    whole = ([1.0, 1.01], [1.1, 1.11])
    alone, _ = judge([whole])
    among, _ = judge([whole, *([([1.0], [2.0])] * 20)])
    assert among[0] == alone[0]


def test_a_family_asks_more_of_each_point_than_one_point_does():
    # Logs 0 and 0.02 against 0.08 and 0.10: t = 5.66 with freedom 2, p = 0.030: enough for one
    # point, not for the first of three, which is asked for 0.05 / 3.
    found = ([1, math.exp(0.02)], [math.exp(0.08), math.exp(0.10)])
    equal = ([1.0, 1.2], [1.0, 1.2])
    assert judge([found])[0][0].verdict == "faster"
    assert judge([found, equal, equal])[0][0].verdict == "not-enough-evidence"
    assert {one.verdict for one in judge([found] * 3)[0]} == {"faster"}


@settings(deadline=None)
@given(families)
def test_turned_round_faster_is_slower(family):
    there, error = judge(family)
    back, again = judge([(b, a) for a, b in family])
    turn = {"faster": "slower", "slower": "faster"}
    assert again == pytest.approx(error)
    for one, other in zip(there, back, strict=True):
        assert other.ratio == pytest.approx(1 / one.ratio, rel=1e-6)
        near = one.interval and any(
            abs(end / limit - 1) < 1e-6 for end in one.interval for limit in (1, 1.03, 1 / 1.03)
        )
        if not near:
            assert other.verdict == turn.get(one.verdict, one.verdict)


@settings(deadline=None)
@given(families, st.floats(0.01, 0.5))
def test_a_verdict_can_be_read_off_its_interval(family, margin):
    for found in judge(family, margin)[0]:
        if found.interval is None:
            assert found.verdict == "not-enough-evidence"
            continue
        low, high = found.interval
        inside = 1 / (1 + margin) <= low and high <= 1 + margin
        assert (found.verdict == "same") == inside
        assert (found.verdict == "faster") == (low > 1 and not inside)
        assert (found.verdict == "slower") == (high < 1 and not inside)


@settings(deadline=None)
@given(families, st.floats(1e-2, 1e2))
def test_the_unit_of_the_rates_does_not_matter(family, scale):
    scaled = judge([([scale * x for x in a], [scale * x for x in b]) for a, b in family])[0]
    for one, other in zip(judge(family)[0], scaled, strict=True):
        assert other.ratio == pytest.approx(one.ratio, rel=1e-6)


@pytest.mark.parametrize("margin", [0, 1, -0.1, math.nan, math.inf])
def test_a_margin_that_is_no_fraction_is_refused(margin):
    with pytest.raises(ValueError, match="no fraction between 0 and 1"):
        judge([([1.0, 1.0], [1.0, 1.0])], margin)


def test_what_varies_over_hundreds_of_orders_has_no_interval():
    (found,), _ = judge([([1e-30, 1e30], [1e-30, 1e30])])
    assert found.interval is None or math.isfinite(found.interval[1])
    assert found.verdict == "not-enough-evidence"


def test_the_launches_that_a_difference_needs():
    # R 4's power.t.test(power = 0.9, delta = 1) gives n = 22.02; delta = 0.8 gives 33.83.
    assert launches_needed(math.log1p(0.03) / 1.0, 0.03, 0.05) == 23
    assert launches_needed(math.log1p(0.03) / 0.8, 0.03, 0.05) == 34
    assert launches_needed(0.0, 0.03, 0.05) == 2
    assert launches_needed(10.0, 0.03, 0.05) is None


def test_as_many_launches_as_are_asked_for_find_the_difference():
    spread, margin = 0.02, 0.05
    number = launches_needed(spread, margin, 0.05)
    draw = np.random.default_rng(3)
    rates = np.exp(spread * draw.standard_normal((2, 1000, number)))
    rates[1] /= 1 + margin
    found = sum(judge([(a, b)])[0][0].verdict == SLOWER for a, b in zip(*rates, strict=True))
    assert found / 1000 == pytest.approx(0.9, abs=0.03)


def test_points_are_matched_by_case_and_world_size(tmp_path):
    a = results(strong_tree(tmp_path / "a", {1: (0.1, 0.1), 2: (0.06, 0.06)}))
    b = results(strong_tree(tmp_path / "b", {2: (0.05, 0.050001), 4: (0.03, 0.03)}))
    made = compare(a, b)
    ((pair, found),) = made.points
    assert (pair.world_size, found.verdict) == (2, "faster")
    assert found.ratio == pytest.approx(1.2, rel=1e-4)
    assert [one.world_size for one in made.only_in_a] == [1]
    assert [one.world_size for one in made.only_in_b] == [4]


@pytest.mark.parametrize(
    ("other", "allowed", "factor"),
    [("bf16", "precision", "precision"), ("batch", "batch", "global_batch")],
)
def test_measured_campaigns_are_paired_but_for_the_factor_that_may_differ(
    measured, other, allowed, factor
):
    a, b = results(measured / "fp32"), results(measured / other)
    with pytest.raises(ValueError, match=f"no point in common.*; pass --allow {allowed} or"):
        compare(a, b)
    made = compare(a, b, allowed=[allowed])
    assert {pair.world_size for pair, _ in made.points} == {1, 2}
    pairs = {(p.a[0].study, p.world_size): p for p, _ in made.points if p.case != p.b[0].case}
    assert {("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2)} <= set(pairs)
    strong = pairs["strong", 2]
    assert strong.a[0].factors[factor] != strong.b[0].factors[factor]
    assert strong.label.endswith(f"(B: {factor}={strong.b[0].factors[factor]})")
    assert not (made.only_in_b or made.ambiguous)


def test_points_that_could_be_paired_in_several_ways_are_named_and_not_paired(measured):
    fp32, bf16 = results(measured / "fp32"), results(measured / "bf16")
    tf32 = renamed(bf16.rows, "bf16", "tf32")
    a = replace(fp32, rows=[row for row in fp32.rows if row.study == "strong"])
    several = replace(bf16, rows=[r for r in [*bf16.rows, *tf32] if r.study == "strong"])
    with pytest.raises(ValueError, match=r"could be paired in several ways.*bf16.*tf32.*one of"):
        compare(a, several, allowed=["precision"])
    both = replace(several, rows=[*several.rows, *a.rows])
    made = compare(a, both, allowed=["precision"])
    assert {pair.b[0].precision for pair, _ in made.points} == {"fp32"}


def renamed(rows, precision, other):
    return [
        replace(
            row, case=row.case.replace(precision, other), precision=other,
            factors=row.factors | ({"precision": other} if "precision" in row.factors else {}),
        )
        for row in rows
    ]  # fmt: skip


def test_nothing_in_common_is_refused_with_what_each_side_holds(tmp_path):
    a = results(strong_tree(tmp_path / "a", {1: (0.1,)}))
    b = results(strong_tree(tmp_path / "b", {2: (0.1,)}))
    with pytest.raises(
        ValueError, match=r"A holds test_strong.* at 1 on 1 node; B holds .* at 2 on"
    ):
        compare(a, b)


@pytest.mark.parametrize(
    ("changes", "fact", "allowed"),
    [
        ({"workload": "resnet18"}, "workload", "workload"),
        ({"study": "precision", "scaling": "strong"}, "study", "workload"),
        ({"precision": "bf16"}, "precision", "precision"),
        ({"scaling": "weak"}, "scaling", "scaling"),
        ({"local_batch": 32}, "local_batch", "batch"),
        ({"global_batch": 32}, "global_batch", "batch"),
        ({"samples_per_step": 32}, "samples_per_step", "batch"),
        ({"sample_unit": "tokens"}, "sample_unit", "unit"),
    ],
)
def test_what_makes_points_incomparable_is_refused_unless_allowed(tmp_path, changes, fact, allowed):
    write(tmp_path / "a", document("w1-r0", 1, {"case": record()}))
    write(tmp_path / "b", document("w1-r0", 1, {"case": replace(record(), **changes)}))
    sides = results(tmp_path / "a"), results(tmp_path / "b")
    with pytest.raises(ValueError, match=f"has {fact} .*--allow {allowed} to"):
        compare(*sides)
    assert len(compare(*sides, allowed=[allowed]).points) == 1


def test_other_devices_are_refused_unless_allowed(tmp_path):
    a = strong_tree(tmp_path / "a")
    b = strong_tree(tmp_path / "b", provenance=provenance(device_names=["A100"]))
    with pytest.raises(ValueError, match=r"A was measured on H100 and B on A100.*--allow device"):
        compare(results(a), results(b))
    assert compare(results(a), results(b), allowed=["device"]).environment["device_names"] == (
        [["H100"]], [["A100"]],
    )  # fmt: skip


def test_another_driver_or_image_is_what_one_compares_for(tmp_path):
    facts = provenance(driver="575.2", image_sha256="cd", environment={"NCCL_ALGO": "Ring"})
    a = strong_tree(tmp_path / "a")
    b = strong_tree(tmp_path / "b", provenance=facts)
    made = compare(results(a), results(b))
    assert list(made.environment) == [
        "image_sha256", "driver", "variable OMP_NUM_THREADS", "variable NCCL_ALGO",
    ]  # fmt: skip
    assert made.environment["driver"] == (["570.1"], ["575.2"])
    assert {"torch", "nccl", "cuda", "num_nodes"} <= set(made.same_facts)


def test_tables_without_repeats_give_ratios_and_no_verdict(tmp_path):
    a = table(tmp_path / "a", "n,value,metric,unit\n1,10,time,h\n2,6,time,h\n")
    b = table(tmp_path / "b", "n,value,metric,unit\n1,8,time,h\n2,6,time,h\n")
    made = compare(a, b)
    assert [found.ratio for _, found in made.points] == pytest.approx([1.25, 1.0])
    assert {found.verdict for _, found in made.points} == {"not-enough-evidence"}


def test_lines_of_a_table_at_one_size_are_launches(tmp_path):
    lines = "".join(f"2,{value},throughput,images/s\n" for value in (100, 101, 99))
    faster = "".join(f"2,{value},throughput,images/s\n" for value in (120, 121, 119))
    head = "n,value,metric,unit\n"
    a, b = table(tmp_path / "a", head + lines), table(tmp_path / "b", head + faster)
    ((pair, found),) = compare(a, b).points
    assert (len(pair.a), len(pair.b), found.verdict) == (3, 3, "faster")
    assert found.ratio == pytest.approx(1.2, rel=0.001)


def test_two_lone_tables_are_matched_whatever_their_files_are_called(tmp_path):
    text = "n,value,metric,unit\n1,{},time,h\n"
    a = table(tmp_path / "a", text.format(8), "before.csv")
    b = table(tmp_path / "b", text.format(4), "after.csv")
    ((pair, found),) = compare(a, b).points
    assert (pair.case, found.ratio) == ("before", pytest.approx(2.0))


@pytest.mark.parametrize(
    ("other", "fact"),
    [("1,9,epoch_time,h", "metric"), ("1,9,throughput,images/s", "sample_unit")],
)
def test_tables_of_other_quantities_are_refused(tmp_path, other, fact):
    a = table(tmp_path / "a", "n,value,metric,unit\n1,10,time,h\n")
    b = table(tmp_path / "b", f"n,value,metric,unit\n{other}\n")
    with pytest.raises(ValueError, match=f"has {fact}.*--allow unit"):
        compare(a, b)


def test_measured_is_not_compared_with_cited(tmp_path):
    a = results(strong_tree(tmp_path / "a"))
    case = a.rows[0].case
    b = table(tmp_path / "b", f"table_id,n,value,metric,unit\n{case},1,640,throughput,images/s\n")
    with pytest.raises(ValueError, match="has origin measured in A and cited in B"):
        compare(a, b, allowed=["workload", "scaling", "precision", "batch", "unit"])


def test_a_side_that_mixes_measured_and_cited_is_not_compared(tmp_path):
    case = results(strong_tree(tmp_path / "a", {1: (0.1,)})).rows[0].case
    line = f"table_id,n,value,metric,unit\n{case},1,640,throughput,images/s\n"
    table(tmp_path / "a", line)
    both = results(tmp_path / "a")
    with pytest.raises(
        ValueError, match=r"has origin cited, measured in A and cited, measured in B"
    ):
        compare(both, both, allowed=["workload", "scaling", "precision", "batch", "unit"])


def test_what_neither_side_knows_is_not_called_equal(tmp_path):
    unknown = provenance(driver=None, image_sha256=None)
    sides = [strong_tree(tmp_path / side, provenance=unknown) for side in "ab"]
    made = compare(*map(results, sides))
    assert made.environment == {}
    assert not {"driver", "image_sha256"} & set(made.same_facts)


def at(hour):
    return f"2026-11-20T{hour:02}:00:00+00:00"


def timed(root, hours):
    for repeat, hour in enumerate(hours):
        write(root, document(f"w1-r{repeat}", 1, {"case": record()}, started=at(hour)))
    return results(root)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ((1, 2, 3), (4, 5, 6), "all launches of A were made before all of B"),
        ((4, 5, 6), (1, 2, 3), "all launches of B were made before all of A"),
        ((1, 2, 3, 4, 9), (5, 6, 7, 8), "most launches of A were made before most of B"),
        ((5, 6, 7, 8), (1, 2, 3, 4, 9), "most launches of B were made before most of A"),
        ((1, 2, 4), (3, 5, 6), "most launches of A were made before most of B"),
        ((1, 4, 5), (2, 3, 6), None),
        ((1, 3), (2, 4), None),
        ((1, 2, 3, 7, 8, 9), (4, 5, 6), None),
    ],
)
def test_launches_that_were_not_interleaved_are_said(tmp_path, a, b, said):
    made = compare(timed(tmp_path / "a", a), timed(tmp_path / "b", b))
    assert [text.partition(",")[0] for text in made.warnings] == ([said] if said else [])


def test_a_side_compared_with_itself_is_said(tmp_path):
    tree = strong_tree(tmp_path)
    (warning,) = compare(results(tree), results(tree)).warnings
    assert warning.startswith("4 launches of A are in B too")


THROTTLED = flag("throttled", rank=1, host="n1", reasons=["power brake"])


def test_flags_are_carried_with_their_side(tmp_path):
    write(tmp_path / "a", document("w1-r0", 1, {"case": record(flags=[THROTTLED.to_dict()])}))
    write(tmp_path / "b", document("w1-r0", 1, {"case": record()}))
    ((pair, _),) = compare(results(tmp_path / "a"), results(tmp_path / "b")).points
    assert pair.flags == [("A", THROTTLED)]


def test_shares_beside_the_speed_are_compared_too(tmp_path):
    for side_name, alone in (("a", (0.08, 0.08)), ("b", (0.09, 0.0900000001))):
        for repeat, seconds in enumerate(alone):
            case = record(world_size=2, step_s=0.1, details={"alone_step_s": [0.01, seconds]})
            write(tmp_path / side_name, document(f"w2-r{repeat}", 2, {"case": case}))
    ((pair, _),) = compare(results(tmp_path / "a"), results(tmp_path / "b")).points
    share = comparison.beside(pair)["communication_share"]
    assert share == pytest.approx(
        {"a": 0.2, "b": 0.1, "difference": -0.1, "low": -0.1, "high": -0.1}, rel=1e-6
    )


def test_shares_equal_to_the_last_digit_have_no_interval(tmp_path):
    for side_name, share in (("a", 0.2), ("b", 0.1)):
        for repeat in range(2):
            case = record(world_size=2, details={"validation_accuracy": share})
            write(tmp_path / side_name, document(f"w2-r{repeat}", 2, {"case": case}))
    ((pair, _),) = compare(results(tmp_path / "a"), results(tmp_path / "b")).points
    assert comparison.beside(pair)["validation_accuracy"] == pytest.approx(
        {"a": 0.2, "b": 0.1, "difference": -0.1, "low": None, "high": None}
    )


def test_what_a_side_does_not_say_is_unknown(tmp_path):
    write(tmp_path / "a", document("w1-r0", 1, {"case": record(global_batch=256)}))
    write(tmp_path / "b", document("w1-r0", 1, {"case": record(global_batch=None)}))
    with pytest.raises(ValueError, match="has global_batch 256 in A and unknown in B"):
        compare(results(tmp_path / "a"), results(tmp_path / "b"))


def test_the_document_is_json_whatever_the_sides_hold(tmp_path):
    a, b = results(strong_tree(tmp_path / "a")), results(strong_tree(tmp_path / "b"))
    made = json.loads(json.dumps(comparison.document(compare(a, b), ("A", "B")), allow_nan=False))
    assert made["level"] == pytest.approx(1 - 0.05 / 2)
    for point in made["points"]:
        assert {"case", "world_size", "ratio", "low", "high", "verdict"} <= set(point)


@pytest.mark.parametrize("kind", noise.KINDS)
@pytest.mark.parametrize("points", [1, 4])
def test_equal_campaigns_are_rarely_said_to_differ(kind, points):
    # Of 200 families 5 % are 10; 20 or more come by chance once in 500.
    assert false_claims(kind, points, 0.02, pairs=200, seed=11) < 20 / 200


def test_one_noisy_point_among_quiet_ones_is_rarely_said_to_differ():
    # As above; without a limit to what the quiet points say of the noisy one, it is 40 or more.
    wrong = false_claims("normal", len(ONE_NOISY), ONE_NOISY, pairs=200, seed=11, launches=2)
    assert wrong < 20 / 200


def test_a_slowdown_of_five_per_cent_is_found_and_never_called_the_same():
    found, same, _ = power(points=1, all_slow=True, pairs=300, seed=5)
    # Student's t finds 92.6 % at the most; 0.86 is three standard deviations below 0.905.
    assert found > 0.86
    assert same <= 0.05


def test_what_is_not_interleaved_is_taken_for_a_difference_on_a_drifting_machine():
    together = false_claims("drift", 1, 0.02, pairs=200, seed=2)
    apart = false_claims("drift", 1, 0.02, pairs=200, seed=2, in_turn=False)
    assert apart > 0.1 > together


def test_the_simulated_launches_vary_as_asked():
    draw = np.random.default_rng(1)
    for kind in noise.KINDS:
        rates = noise.rates(noise.round_times(draw, kind, 0.02, np.ones((4000, 1))))
        expected = 0.026 if kind == "drift" else 0.0205
        assert np.log(rates).std() == pytest.approx(expected, rel=0.15)


def test_of_each_two_launches_one_is_of_each_side():
    a, b = noise.interleaved(np.random.default_rng(4), 50)
    assert sorted(a + b) == list(range(100))
    assert all(abs(i - j) == 1 for i, j in zip(a, b, strict=True))
    assert 10 < sum(i < j for i, j in zip(a, b, strict=True)) < 40


def test_the_command_names_what_the_library_lets_differ():
    from lockstep.report.compare.compare_cli import ALLOWABLE

    assert tuple(comparison.MUST_AGREE) == ALLOWABLE
