import math
from dataclasses import replace

import noise
import numpy as np
import pytest
from data.report_samples import document, provenance, record, strong_tree, write
from figures_compare import ONE_NOISY, false_claims, power
from hypothesis import given
from hypothesis import strategies as st
from planted import cited

from lockstep.report.compare import comparison, outcome
from lockstep.report.compare.comparison import compare
from lockstep.report.compare.judging import judge
from lockstep.report.compute.statistics import launches_needed, t_quantile
from lockstep.report.load.reading import load

positive = st.floats(1e-3, 1e6)
side = st.lists(positive, min_size=1, max_size=6)
families = st.lists(st.tuples(side, side), min_size=1, max_size=6)


def logs(*values):
    """Return rates with such logarithms."""
    return [math.exp(value) for value in values]


def results(path):
    return load([path])


def table(folder, text):
    return load([cited(folder, text)])


@pytest.mark.parametrize(("a", "b", "half", "verdict"), [
    # Each variance 0.0001, standard error sqrt(0.0002 / 3), freedom 4; the difference 0.09 is 11.0
    # of them, beyond t = 2.776.
    (logs(0, 0.01, 0.02), logs(0.09, 0.10, 0.11), t_quantile(4) * math.sqrt(0.0002 / 3), "faster"),
    # Fewer than six launches may all be of one mode a side: standard error sqrt(0.0002) and
    # t = 6.36, beyond that of 2 freedoms and not of 1, 12.7.
    (logs(0, 0.02), logs(0.09, 0.11), t_quantile(1) * math.sqrt(0.0002), "not-enough-evidence"),
])  # fmt: skip
def test_points_by_hand(a, b, half, verdict):
    (found,), error = judge([(a, b)])
    assert (error, found.ratio) == (pytest.approx(0.05), pytest.approx(math.exp(0.09)))
    assert found.interval == pytest.approx((math.exp(0.09 - half), math.exp(0.09 + half)))
    assert found.verdict == verdict


def test_each_verdict_at_its_border():
    # 1 / 1.03 = 0.97087
    same, unknown = ([1.0, 1.0], [1.029, 1.029], [0.9710, 0.9710]), ([0.9, 1.1], [0.5])
    sides = [*same, [0.9705, 0.9705], [1.031, 1.031], *unknown]
    found = [judge([([1.0, 1.0 + 1e-6], b)])[0][0] for b in sides]
    verdicts = [*["same"] * 3, "slower", "faster", *["not-enough-evidence"] * 2]
    assert [one.verdict for one in found] == verdicts
    assert [one.interval is None for one in found] == [*[False] * 6, True]


def test_rounded_launches_are_no_certainty():
    # Each side's launches are equal to the last digit, as tables of rounded numbers are.
    rounded = ([100, 100], [104, 104])
    (alone,), error = judge([rounded])
    assert (alone.verdict, alone.interval, alone.spread) == ("not-enough-evidence", None, None)
    assert (alone.ratio, error) == (pytest.approx(1.04), pytest.approx(0.05))
    assert outcome.kind_of(alone) == outcome.EQUAL
    assert outcome.kind_of(judge([([100], [104, 104])])[0][0]) == outcome.BARE
    noisy = ([100, 103], [101, 98])
    assert judge([rounded, noisy])[0][1] == judge([noisy])[0][0]
    among = judge([rounded, noisy, noisy])[0][0]
    assert among.verdict == "not-enough-evidence"
    assert among.interval[0] < 1 < 1.04 < among.interval[1]


def test_a_family_asks_more_of_each_point_than_one_point_does():
    # Logs 0.027 apart: t = 3.31 with freedom 4, p = 0.030: enough for one point, not for the first
    # of three, which is asked for 0.05 / 3.
    found = logs(0, 0.01, 0.02), logs(0.027, 0.037, 0.047)
    loud = logs(0, 0.1, 0.2), logs(0, 0.1, 0.2)
    assert judge([found])[0][0].verdict == "faster"
    assert judge([found, loud, loud])[0][0].verdict == "not-enough-evidence"
    assert {one.verdict for one in judge([found] * 3)[0]} == {"faster"}


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


@given(families, st.floats(0.01, 0.5))
def test_a_verdict_can_be_read_off_its_interval(family, margin):
    for found in judge(family, margin)[0]:
        low, high = found.interval or (0.0, math.inf)
        inside = 1 / (1 + margin) <= low and high <= 1 + margin
        assert (found.verdict == "same") == inside
        assert (found.verdict == "faster") == (low > 1 and not inside)
        assert (found.verdict == "slower") == (high < 1 and not inside)


def test_a_margin_that_is_no_fraction_is_refused():
    for margin in (0, 1, -0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="not a fraction between 0 and 1"):
            judge([([1.0, 1.0], [1.0, 1.0])], margin)


def test_the_launches_that_a_difference_needs():
    # R 4's power.t.test(power = 0.9, delta = 1) gives n = 22.02; delta = 0.8 gives 33.83.
    assert launches_needed(math.log1p(0.03) / 1.0, 0.03, 0.05) == 23
    assert launches_needed(math.log1p(0.03) / 0.8, 0.03, 0.05) == 34
    assert launches_needed(0.0, 0.03, 0.05) == 2
    assert launches_needed(10.0, 0.03, 0.05) is None


def test_the_smallest_change_that_launches_show_is_found_nine_times_of_ten():
    draw = np.random.default_rng(4)
    (point,), _ = judge([tuple(np.exp(0.02 * draw.standard_normal((2, 50))))])
    assert point.verdict == "same"
    assert launches_needed(point.spread, point.smallest_change, 0.05) == pytest.approx(50, abs=1)


def test_points_are_matched_by_case_and_world_size(tmp_path):
    a = results(strong_tree(tmp_path / "a", {1: (0.1, 0.1), 2: (0.06, 0.06)}))
    b = results(strong_tree(tmp_path / "b", {2: (0.05, 0.050001), 4: (0.03, 0.03)}))
    made = compare(a, b)
    ((pair, found),) = made.points
    assert (pair.world_size, found.verdict) == (2, "faster")
    assert found.ratio == pytest.approx(1.2, rel=1e-4)
    assert [one.world_size for one in (*made.only_in_a, *made.only_in_b)] == [1, 4]
    other = results(strong_tree(tmp_path / "other", {8: (0.1,)}))
    with pytest.raises(ValueError, match=r"A holds test_strong.* at 1 on 1 node.* B holds .* at 8"):
        compare(a, other)


def test_points_that_could_be_paired_in_several_ways_are_named_and_not_paired(tmp_path):
    def side(*precisions):
        cases = {
            f"test_strong[precision={one}]": record(precision=one, factors={"precision": one})
            for one in precisions
        }
        return results(write(tmp_path / "-".join(precisions), document("w1-r0", 1, cases)))

    fp32 = side("fp32")
    with pytest.raises(ValueError, match=r"can be paired in several ways.*bf16.*tf32.*one of"):
        compare(fp32, side("bf16", "tf32"), allowed=["precision"])
    made = compare(fp32, side("bf16", "tf32", "fp32"), allowed=["precision"])
    assert [pair.b[0].precision for pair, _ in made.points] == ["fp32"]


@pytest.mark.parametrize(("changes", "fact", "allowed"), [
    ({"workload": "resnet18"}, "workload", "workload"),
    ({"precision": "bf16"}, "precision", "precision"),
    ({"scaling": "weak"}, "scaling", "scaling"),
    ({"global_batch": 32}, "global_batch", "batch"),
    ({"sample_unit": "tokens"}, "sample_unit", "unit"),
])  # fmt: skip
def test_what_makes_points_incomparable_is_refused_unless_allowed(tmp_path, changes, fact, allowed):
    write(tmp_path / "a", document("w1-r0", 1, {"case": record()}))
    write(tmp_path / "b", document("w1-r0", 1, {"case": replace(record(), **changes)}))
    sides = results(tmp_path / "a"), results(tmp_path / "b")
    with pytest.raises(ValueError, match=f"has {fact} .*--allow {allowed} to"):
        compare(*sides)
    assert len(compare(*sides, allowed=[allowed]).points) == 1


def test_two_layouts_are_compared_only_where_that_is_asked_for(tmp_path):
    for side, nodes in {"a": 1, "b": 2}.items():
        case = record(world_size=2, num_nodes=nodes)
        write(tmp_path / side, document("w2-r0", 2, {"case": case}, num_nodes=nodes))
    sides = results(tmp_path / "a"), results(tmp_path / "b")
    with pytest.raises(ValueError, match="on 2 nodes; pass --allow layout or"):
        compare(*sides)
    made = compare(*sides, allowed=["layout"])
    assert {(pair.a[0].num_nodes, pair.b[0].num_nodes) for pair, _ in made.points} == {(1, 2)}


def test_another_driver_or_image_is_what_one_compares_for_and_other_devices_may_be(tmp_path):
    facts = provenance(driver="575.2", image_sha256="cd", environment={"NCCL_ALGO": "Ring"})
    a = strong_tree(tmp_path / "a")
    b = strong_tree(tmp_path / "b", provenance=facts)
    made = compare(results(a), results(b))
    variables = ["variable OMP_NUM_THREADS", "variable NCCL_ALGO"]
    assert list(made.environment) == ["driver", "image_sha256", *variables]
    assert made.environment["driver"] == (["570.1"], ["575.2"])
    assert made.environment["variable NCCL_ALGO"] == ([], ["Ring"])
    assert {"torch", "nccl", "cuda", "num_nodes"} <= set(made.same_facts)
    assert {"torch", "nccl", "hosts"} <= {*made.same_facts[:8]}
    c = strong_tree(tmp_path / "c", provenance=provenance(device_names=["A100"]))
    with pytest.raises(ValueError, match="--allow device"):
        compare(results(a), results(c))
    made = compare(results(a), results(c), allowed=["device"])
    assert made.environment["device_names"] == ([["H100"]], [["A100"]])


def test_tables_of_other_quantities_are_refused(tmp_path):
    a = table(tmp_path / "a", "n,value,metric,unit\n1,10,time,h\n")
    others = {"metric": "1,9,epoch_time,h", "sample_unit": "1,9,throughput,images/s"}
    for fact, other in others.items():
        b = table(tmp_path / fact, f"n,value,metric,unit\n{other}\n")
        with pytest.raises(ValueError, match=f"has {fact}.*--allow unit"):
            compare(a, b)


def test_measured_is_not_compared_with_cited(tmp_path):
    a = results(strong_tree(tmp_path / "a"))
    case = a.rows[0].case
    b = table(tmp_path / "b", f"table_id,n,value,metric,unit\n{case},1,640,throughput,images/s\n")
    with pytest.raises(ValueError, match="has origin measured in A, but cited in B"):
        compare(a, b, allowed=["workload", "scaling", "precision", "batch", "unit"])


def timed(root, hours):
    for repeat, hour in enumerate(hours):
        facts = {"started": f"2026-11-20T{hour:02}:00:00+00:00"}
        write(root, document(f"w1-r{repeat}", 1, {"case": record()}, **facts))
    return results(root)


@pytest.mark.parametrize(("a", "b", "values"), [
    ((1, 2, 3), (4, 5, 6), {"first": "A", "last": "B", "share": "all"}),
    ((5, 6, 7, 8), (1, 2, 3, 4, 9), {"first": "B", "last": "A", "share": "most"}),
    ((1, 4, 5), (2, 3, 6), None),
    ((1, 3), (2, 4), None),
])  # fmt: skip
def test_launches_that_were_not_measured_in_turn_are_a_caution(tmp_path, a, b, values):
    cautions = compare(timed(tmp_path / "a", a), timed(tmp_path / "b", b)).cautions
    found = [(one.kind, one.values) for one in cautions]
    assert found == ([("not-in-turn", values)] if values else [])
    same = timed(tmp_path / "a", a)
    (itself,) = compare(same, same).cautions
    assert (itself.kind, itself.values) == ("copies", {"count": len(a)})
    whole, sides = {"full": [[0.1] * 5], "own": [[0.1] * 5]}, []
    for running in (0.09, 0.06):
        turns = [whole | {"running": [[running + 0.001 * x] * 5]} for x in range(len(a))]
        rows = [replace(x, rank_variant_s=s) for x, s in zip(same.rows, turns, strict=True)]
        sides.append(replace(same, rows=rows))
    made = compare(*sides)
    assert "B was busy: on 1 rank, the rank waited" in made.cautions[-1].text
    assert ("memory grew on 1 rank" in " ".join(outcome.text(made, ("a", "b")))) is (len(a) >= 3)


def test_shares_are_compared_too(tmp_path):
    for side_name, alone in (("a", (0.08, 0.08)), ("b", (0.09, 0.0900000001))):
        for repeat, seconds in enumerate(alone):
            case = record(world_size=2, step_s=0.1, details={"alone_step_s": [0.01, seconds]})
            write(tmp_path / side_name, document(f"w2-r{repeat}", 2, {"case": case}))
    ((pair, _),) = compare(results(tmp_path / "a"), results(tmp_path / "b")).points
    share = comparison.other_quantities(pair)["communication_share"]
    expected = {"a": 0.2, "b": 0.1, "difference": -0.1, "low": -0.1, "high": -0.1}
    assert share == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("a_reserved", "b_reserved", "b", "ratio"), [
    ([], [], 400, 0.5), ([900], [900], 400, 0.5), ([], [900], 400, None), ([], [], None, None)
])  # fmt: skip
def test_peak_memory_is_compared_if_it_means_the_same(tmp_path, a_reserved, b_reserved, b, ratio):
    for name, used, reserved in (("a", 800, a_reserved), ("b", b, b_reserved)):
        case = record(peak_memory_bytes=[used], peak_reserved_bytes=reserved)
        write(tmp_path / name, document("w1-r0", 1, {"case": case}))
    made = compare(results(tmp_path / "a"), results(tmp_path / "b"))
    (point,) = comparison.document(made, ("a", "b"))["points"]
    assert point["memory_ratio"] == ratio
    assert (point["a_peak_memory_bytes"], point["b_peak_memory_bytes"]) == (800, b)


@pytest.mark.parametrize(("kind", "points", "spread", "more"), [
    *((kind, points, 0.02, {}) for kind in noise.KINDS for points in (1, 4)),
    # Without a limit to what the quiet points say of the noisy one, 40 or more differ.
    ("normal", len(ONE_NOISY), ONE_NOISY, {"launches": 2}),
])  # fmt: skip
def test_equal_campaigns_are_rarely_said_to_differ(kind, points, spread, more):
    # Of 200 families 5 % are 10; 20 or more come by chance once in 500.
    assert false_claims(kind, points, spread, pairs=200, seed=11, **more) < 20 / 200


def test_a_slowdown_of_five_per_cent_is_found_and_never_called_the_same():
    found, same = power(points=1, all_slow=True, pairs=300, seed=5)
    # Student's t finds 92.6 % at the most; 0.86 is three standard deviations below 0.905.
    assert found > 0.86
    assert same <= 0.05


def test_what_is_not_interleaved_is_taken_for_a_difference_on_a_drifting_machine():
    together = false_claims("drift", 1, 0.02, pairs=200, seed=2)
    apart = false_claims("drift", 1, 0.02, pairs=200, seed=2, in_turn=False)
    assert apart > 0.1 > together
