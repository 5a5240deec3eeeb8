"""What each target of `check --targets` asks of results, and what the command prints."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import commands
import numpy as np
import pytest
from data.report_samples import document, record, strong_tree, write
from hypothesis import given
from hypothesis import strategies as st
from planted import cited

from lockstep.core.flags import flag
from lockstep.core.record import KEY
from lockstep.report.check.check_cli import check as gate
from lockstep.report.check.checker import check
from lockstep.report.columns import table
from lockstep.report.compare.comparison import compare
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import Point, series_of
from lockstep.report.gate import gates, targets
from lockstep.report.gate.gates import Verdict
from lockstep.report.gate.targets import Targets
from lockstep.report.load.reading import load
from lockstep.report.load.results import Row

DATA = Path(__file__).parent / "data"
# Published by KempnerInstitute/scalable-vision-workflows, commit 42d82e2: seconds of a training.
KEMPNER = """table_id,n,value,metric,unit,scaling,model
kempner,1,129686,training_time,s,"fixed epochs, fixed batch per device",ResNet-50
kempner,8,17104,training_time,s,"fixed epochs, fixed batch per device",ResNet-50
kempner,64,2640,training_time,s,"fixed epochs, fixed batch per device",ResNet-50
"""
# CaSToRC-CyI/castorc-reframe, commit 2d17f85: 309.61 images/s per GPU on 16.
REFRAME = """table_id,n,value,metric,unit,scaling,system
resnet50,16,{},throughput,images/s,weak,Cyclone
"""
REFERENCE = {"case": "resnet50", "world_size": 16, "value": 309.61, "unit": "images/s per rank",
             "lower": -0.1, "upper": 0.02}  # fmt: skip
# Launches that vary by about 1 %.
STEADY = np.array([1.0, 1.01, 0.99])
LADDER = "schema = 1\nstrong_efficiency = {2 = 0.75}\n"
ROW = Row(launch="a", case="c", study="strong", workload="mlp", world_size=2, rate=1.0)

run = partial(commands.run, gate)


def wanted(**keys):
    return Targets.model_validate({"schema": 1} | keys)


def judged(results, **keys):
    return gates.verdicts(wanted(**keys), results, findings=check(results))


def kinds(*verdicts):
    return [(one.verdict, *(reason.kind for reason in one.reasons)) for one in verdicts]


def imported(folder, text):
    return load([cited(folder, text)])


def strong(tmp_path, *efficiencies, launches=STEADY):
    """Load a strong ladder over 1, 2, 4 ... with these efficiencies after the first."""
    steps = {1: tuple(0.1 * launches)}
    for power, efficiency in enumerate(efficiencies, start=1):
        steps[2**power] = tuple(0.1 / 2**power / efficiency * launches)
    return load([strong_tree(tmp_path, steps)])


def weak(tmp_path, increase, launches=STEADY):
    for size, factor in ((1, 1.0), (2, 1 + increase)):
        for repeat, noise in enumerate(launches):
            case = record("weak", size, 0.1 * factor * noise)
            write(tmp_path, document(f"w{size}-r{repeat}", size, {"weak[64]": case}))
    return load([tmp_path])


def point(origin="measured"):
    return Point(2, 1.0, [1.0], [replace(ROW, origin=origin)], [1.0])


# The file of targets.


@pytest.mark.parametrize(("text", "match"), [
    ("", "has no target"),
    ("mfu = 50", "not a fraction; write ten per cent as 0.10"),
    ("strong_eficiency = {2 = 0.9}", "did you mean 'strong_efficiency'"),
    ("speedup = {4 = [3.8, 3.5]}", "swap the two"),
    ('[[reference]]\ncase = "a"\nworld_size = 1\nvalue = 1\nunit = "s"', "are both missing"),
])  # fmt: skip
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, text, match):
    (tmp_path / "t.toml").write_text(f"schema = 1\n{text}")
    with pytest.raises(ValueError, match=rf"^[^\n]*t\.toml[^\n]*{match}[^\n]*$"):
        targets.load(str(tmp_path / "t.toml"))


# Intervals and values against a limit.


@pytest.mark.parametrize(("value", "interval", "origin", "expected"), [
    (0.9, (0.90, 0.95), "measured", ("met",)),
    (0.9, (0.899, 0.95), "measured", ("not-shown", "straddles")),
    (0.9, (0.85, 0.90), "measured", ("not-shown", "straddles")),
    (0.9, (0.85, 0.899), "measured", ("missed", "short")),
    (0.001, None, "measured", ("not-shown", "short", "no-repeat")),
    (0.9 * (1 - 1e-12), None, "cited", ("met", "no-repeat")),
    (0.95, None, "target", ("not-shown", "expected")),
])  # fmt: skip
def test_a_target_is_judged_by_the_whole_interval_or_the_value(value, interval, origin, expected):
    verdict = Verdict("t", least=0.9).judge([point(origin)], "", value, interval)
    assert (kinds(verdict), (verdict.low, verdict.high)) == ([expected], interval or (None, None))


@given(st.floats(-1, 2), st.floats(0, 1), st.floats(0, 1), st.floats(-1, 2), st.floats(-1, 2))
def test_a_target_is_met_or_missed_by_every_value_of_the_interval(value, below, above, one, two):
    least, most = sorted((one, two))
    low, high = value - below, value + above
    verdict = Verdict("t", least, most, "x").judge([point()], "", value, (low, high)).verdict
    inside = [least - 2e-9 <= v <= most + 2e-9 for v in np.linspace(low, high, 9)]
    if verdict == "met":
        assert all(inside)
    if verdict == "missed":
        assert not any(least <= v <= most for v in np.linspace(low, high, 9))


# Ratios to the baseline.


def test_a_ladder_is_judged_size_by_size(tmp_path):
    wanted_at = {"1": 0.9, "2": 0.9, "4": 0.8, "8": 0.7}
    verdicts = judged(strong(tmp_path, 0.95, 0.70), strong_efficiency=wanted_at)
    assert kinds(*verdicts) == [
        ("not-shown", "is-baseline"), ("met",), ("missed", "short"), ("not-shown", "no-size"),
    ]  # fmt: skip
    assert verdicts[1].value == pytest.approx(0.95)
    assert verdicts[1].low < 0.95 < verdicts[1].high
    assert verdicts[2].reasons[0].values["gap"] == pytest.approx(0.1)
    (beyond,) = judged(strong(tmp_path, 0.95), speedup={"2": [1.5, 1.6]})
    assert (beyond.value, kinds(beyond)) == (pytest.approx(1.9), [("missed", "too-much")])


@pytest.mark.parametrize(("launches", "least", "kind"), [
    (np.ones(3), 0.9, "no-spread"), (np.array([0.9, 1.0, 1.1]), 0.85, "straddles"),
    (np.array([1.0, 1e3]), 0.1, "no-interval"), (np.ones(1), 0.5, "no-repeat"),
])  # fmt: skip
def test_what_launches_cannot_show(tmp_path, launches, least, kind):
    results = strong(tmp_path, 0.95, launches=launches)
    assert kinds(*judged(results, strong_efficiency={"2": least})) == [("not-shown", kind)]


def test_a_value_is_the_reports_and_its_interval_judges(tmp_path):
    # Of five launches of two ranks two are twice as slow: the median is 94.8 %, the geometric mean
    # 94.8 / 4^(1/5) = 71.8 %, which the interval is of.
    slow = np.array([1.0, 1.0, 1.0, 2.0, 2.0])
    steps = {1: tuple(0.1 * np.ones(5)), 2: tuple(0.05 / 0.948 * slow)}
    results = load([strong_tree(tmp_path, steps)])
    mean = 0.948 / 4**0.2
    (one,) = judged(results, strong_efficiency={"2": 0.9})
    assert one.value == pytest.approx(0.948)
    assert one.value == table(series_of(results.rows))[1]["parallel_efficiency"]
    assert one.low * one.high == pytest.approx(mean**2)


def test_a_published_ladder_meets_and_misses_its_targets(tmp_path):
    results = imported(tmp_path, KEMPNER)
    found = judged(results, parallel_efficiency={"8": 0.7, "64": 0.8})
    assert [one.verdict for one in found] == ["met", "missed"]
    assert [one.value for one in found] == pytest.approx([0.9478, 0.7676], abs=5e-5)
    # Fixed epochs are no strong scaling, and a table without nodes shows none.
    assert kinds(*judged(results, strong_efficiency={"8": 0.7}, num_nodes=1)) == [
        ("not-shown", "no-scaling"), ("not-shown", "no-nodes"),
    ]  # fmt: skip


def test_an_expected_range_is_missed_with_the_shortfall_and_never_met(tmp_path):
    # 12 h on one, 3.5 h on four: 3.43, which is 0.0714 less than 3.5.
    results = imported(tmp_path, (DATA / "hours.csv").read_text())
    for row in results.rows:
        row.num_nodes = 4
    expected = {"speedup": {"2": [1.8, 1.9], "4": [3.5, 3.8]}, "num_nodes": 1, "clean_runs": True}
    verdicts = judged(results, **expected)
    assert [one.verdict for one in verdicts] == ["not-shown", "missed", "not-shown", "not-shown"]
    assert verdicts[1].reasons[0].values["gap"] == pytest.approx(0.0714, abs=5e-5)
    assert {verdicts[i].reasons[0].kind for i in (0, 2, 3)} == {"expected"}


def test_a_ratio_whose_whole_interval_lies_above_linear_is_not_shown(tmp_path):
    targets = {"strong_efficiency": {"2": 0.6}, "parallel_efficiency": {"2": 0.6},
               "speedup": {"2": [1.5, 2.0]}}  # fmt: skip
    assert kinds(*judged(strong(tmp_path / "above", 1.25), **targets),
                 *judged(weak(tmp_path / "weak", -0.2), weak_time_increase=0.1)) == [
        ("not-shown", "above-linear")] * 4  # fmt: skip
    contains_1 = kinds(*judged(strong(tmp_path / "linear", 1.002), **targets))
    assert not any("above-linear" in reason for reason in contains_1)


def change_launches(tree, size, change):
    for path in tree.glob(f"launches/w{size}-r*/result.json"):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))


def known(**facts):
    return lambda content: content[KEY]["provenance"].update(facts)


def flagged(kind, **values):
    found = flag(kind, **values).to_dict()
    return lambda content: content["benchmarks"][0]["extra_info"][KEY].update(flags=[found])


@pytest.mark.parametrize(("size", "change", "rules", "doubted"), [
    (1, known(git_commit="b" * 40), {"circumstances"}, [2, 4]),
    (1, flagged("throttled", rank=0, host="n", reasons="hot"), {"flagged"}, [2, 4]),
    (2, None, {"ladder-gap"}, []),  # the size is lost
    (2, known(), set(), []),
])  # fmt: skip
def test_a_warning_that_may_make_a_ratio_wrong_leaves_it_unshown_and_stands_beside_it(
    tmp_path, size, change, rules, doubted
):
    steps = {size: tuple(0.1 / size / 0.9 ** (size > 1) * STEADY) for size in (1, 2, 4)}
    tree = strong_tree(tmp_path, steps)
    for each in steps:
        change_launches(tree, each, known(git_commit="a" * 40, kernel="6.1.0"))
    if change is None:
        for path in tree.glob(f"launches/w{size}-*"):
            shutil.rmtree(path)
    else:
        change_launches(tree, size, change)
    (tmp_path / "t.toml").write_text("schema = 1\nstrong_efficiency = {2 = 0.75, 4 = 0.75}\n")
    done = run(tree, "--targets", tmp_path / "t.toml", "--json")
    content = json.loads(done.stdout)
    judged_at = {one["world_size"]: one for one in content["verdicts"] if one["world_size"]}
    assert {size: one["verdict"] for size, one in judged_at.items()} == {
        size: "not-shown" if size in doubted else "met" for size in judged_at
    }
    for size in doubted:
        (reason,) = judged_at[size]["reasons"]
        assert (reason["kind"], set(reason["values"]["rules"])) == ("warned", rules)
    assert {one["rule"] for one in content["warnings"]} == rules
    assert set().union(*(one["warned_by"] for one in judged_at.values())) == rules


def test_the_increase_of_a_weak_step(tmp_path):
    for increase, verdict in ((0.05, "met"), (0.10, "not-shown"), (0.15, "missed")):
        (one,) = judged(weak(tmp_path, increase), weak_time_increase=0.1)
        assert (one.verdict, one.value) == (verdict, pytest.approx(increase))


def test_targets_speak_of_their_own_studies_alone(tmp_path):
    for size in (1, 2):
        case = replace(record("strong", size), study="bucket")
        write(tmp_path / "bucket", document(f"w{size}-r0", size, {"bucket[25]": case}))
    keys = {"strong_efficiency": {"2": 0.1}, "speedup": {"2": [0.1, 9.0]}}
    found = judged(load([tmp_path / "bucket"]), **keys)
    found += judged(strong(tmp_path / "strong", 0.5), weak_time_increase=0.1)
    assert kinds(*found) == [
        ("not-shown", "no-scaling"), ("not-shown", "no-size"), ("not-shown", "no-weak"),
    ]  # fmt: skip


# A gain over a base, and the loss that is allowed.


@pytest.mark.parametrize(("gain", "least", "expected"), [
    (1.2, 0.2, ("not-shown", "straddles")), (1.05, 0.2, ("missed", "short")),
    (1.0, -0.05, ("met",)),
])  # fmt: skip
def test_a_gain_or_a_limit_to_a_loss_is_shown_by_its_interval_alone(
    tmp_path, gain, least, expected
):
    base = load([strong_tree(tmp_path / "a", {1: tuple(0.1 * STEADY)})])
    here = load([strong_tree(tmp_path / "b", {1: tuple(0.1 / gain * STEADY)})])
    (one,) = gates.verdicts(wanted(throughput_gain=least), here, compare(base, here))
    assert (kinds(one), one.value) == ([expected], pytest.approx(gain - 1))


def test_a_gain_without_a_base_or_repeats_is_not_shown(tmp_path):
    here = load([strong_tree(tmp_path, {1: (0.05,)})])
    found = judged(here, throughput_gain=0.2)
    found += gates.verdicts(wanted(throughput_gain=0.2), here, compare(here, here))
    assert kinds(*found) == [("not-shown", "no-base"), ("not-shown", "short", "no-repeat")]


# Quantities of a point.


def detailed(tmp_path, world_size=2, **details):
    """Load three launches a hair apart: equal ones have no interval."""
    for repeat in range(3):
        hair = 1 + 1e-7 * repeat
        own = {
            name: [hair * one for one in value] if name == "alone_step_s"
            else hair * value if isinstance(value, float) else value
            for name, value in details.items()
        }  # fmt: skip
        case = record(world_size=world_size, step_s=0.1, details=own)
        write(tmp_path, document(f"w-r{repeat}", world_size, {"case": case}))
    return load([tmp_path])


@pytest.mark.parametrize(("details", "limit", "verdict", "value"), [
    # Communication is what the slowest rank alone leaves of the step of 0.1 s.
    ({"alone_step_s": [0.05, 0.09]}, {"communication_share": 0.2}, "met", 0.1),
    ({"mfu": 0.6}, {"mfu": 0.5}, "met", 0.6),
    ({"validation_accuracy": 0.64}, {"validation_accuracy": 0.7}, "missed", 0.64),
    ({"telemetry": {}}, {"gpu_utilisation": 0.9}, "not-shown", None),
    ({"validation_accuracy": 1.5}, {"validation_accuracy": 0.1}, "not-shown", None),
])  # fmt: skip
def test_a_quantity_is_judged_where_results_hold_it(tmp_path, details, limit, verdict, value):
    (one,) = judged(detailed(tmp_path, **details), **limit)
    assert (one.verdict, one.value) == (verdict, value and pytest.approx(value, rel=1e-5))


def test_use_and_energy_of_gpus_follow_from_the_telemetry_of_every_rank(tmp_path):
    used = {"mean": [0.7, 0.9], "least": [0.0, 0.1], "most": [1.0, 1.0]}
    seen = {"gpu_utilisation": used, "energy_j": [300.0, 500.0], "elapsed_s": [1.0, 2.0]}
    row = detailed(tmp_path / "all", telemetry=seen).rows[0]
    assert quantities.values([row], "gpu_utilisation") == [pytest.approx(0.8)]
    assert quantities.joules_per_sample(row) == pytest.approx(550 / row.throughput_samples_per_s)
    seen = {"gpu_utilisation": used | {"mean": [0.7, None]}, "energy_j": [300.0, None]}
    row = detailed(tmp_path / "one", telemetry=seen).rows[0]
    assert quantities.values([row], "gpu_utilisation") == []
    assert quantities.joules_per_sample(row) is None


def test_a_share_is_the_mean_of_the_launches_and_its_interval_ends_within_0_and_1(tmp_path):
    # Noise: alone, the slowest rank took longer than the step of the second launch.
    for repeat, (step_s, alone) in enumerate(((0.1, 0.09), (0.1, 0.103), (0.2, 0.196))):
        case = record("strong", 2, step_s, details={"alone_step_s": [alone, alone / 2]})
        write(tmp_path, document(f"w2-r{repeat}", 2, {"strong[64]": case}))
    (one,) = judged(load([tmp_path]), communication_share=0.2)
    alone = detailed(tmp_path / "alone", world_size=1, alone_step_s=[0.05])
    assert kinds(*judged(alone, communication_share=0.2)) == [("not-shown", "no-quantity")]
    # As on the card: of the mean step, with t = 4.3027 from a value below 0, which no share is.
    assert one.value == pytest.approx((0.01 - 0.003 + 0.004) / 0.4)
    assert (one.low, one.high) == (0.0, pytest.approx(0.149, abs=5e-4))
    assert (one.widen(0.25).low, one.widen(0.25).verdict) == (0.0, "not-shown")
    next(tmp_path.rglob("w2-r2/*.json")).unlink()
    assert kinds(*judged(load([tmp_path]), communication_share=0.2)) == [("not-shown", "card")]


# All results together.


def test_the_nodes_are_counted(tmp_path):
    results = strong(tmp_path, 0.9)
    found = [*judged(results, num_nodes=1), *judged(results, num_nodes=2)]
    assert [(one.verdict, one.value) for one in found] == [("met", 1), ("missed", 1)]


@pytest.mark.parametrize(("flags", "facts", "problem"), [
    ([], {}, None),
    (["throttled"], {}, "throttled"),
    ([], {"complete": False}, "unfinished-launch: launch w1-r0"),
    ([], {"failed": [{"case": "x", "reason": "died"}]}, "failed-case: x at world size 1"),
    ([], {"skipped": [{"case": "x", "reason": "no GPU"}]}, None),
])  # fmt: skip
def test_clean_runs_have_no_flag_and_lost_nothing(tmp_path, flags, facts, problem):
    write(tmp_path, document("w1-r0", 1, {"case": record(flags=flags)}, **facts))
    (one,) = judged(load([tmp_path]), clean_runs=True)
    assert one.verdict == ("missed" if problem else "met")
    problems = [text for reason in one.reasons for text in reason.values["problems"]]
    assert all(text.startswith(problem) for text in problems) if problem else not problems


# References.


@pytest.mark.parametrize(("rate", "changes", "expected"), [
    # 0.9 x 16 x 309.61 = 4458.4; 1.02 x that of the reference is 5052.8.
    (4953.76, {}, ("met", "no-repeat")), (4459, {}, ("met", "no-repeat")),
    (4458, {}, ("missed", "short", "no-repeat")), (5100, {}, ("missed", "too-much", "no-repeat")),
    (4953.76, {"system": "daint"}, ("not-shown", "other-system")),
    (4953.76, {"unit": "tokens/s"}, ("not-shown", "no-unit")),
    (4953.76, {"case": "vgg"}, ("not-shown", "no-case")),
])  # fmt: skip
def test_a_reference_has_a_tolerance_below_and_above(tmp_path, rate, changes, expected):
    reference = REFERENCE | {"system": "Cyc*"} | changes
    (one,) = judged(imported(tmp_path, REFRAME.format(rate)), reference=[reference])
    assert kinds(one) == [expected]
    assert one.value in (None, pytest.approx(rate / 16))


# The command.


@pytest.fixture
def file(tmp_path):
    def written(text):
        (tmp_path / "t.toml").write_text(text)
        return tmp_path / "t.toml"

    return written


@pytest.fixture
def tree(tmp_path):
    # Efficiency 0.8, launches without spread.
    return strong_tree(tmp_path / "results")


def test_the_exit_code_is_1_where_a_target_is_not_met(tree, file):
    for least, code, verdict in ((0.75, 0, "met"), (0.85, 1, "missed")):
        done = run(tree, "--targets", file(f"schema = 1\nstrong_efficiency = {{2 = {least}}}"))
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{verdict} ")]
        assert f">= {100 * least:.1f} % wanted: 80.0 % (80.0 % to 80.0 %)" in line
        assert done.return_value == code


def test_the_json_holds_every_verdict_with_its_interval_reason_and_target(tree, file):
    path = tree / "launches" / "w2-r0" / "result.json"
    measured = json.loads(path.read_text())
    measured["benchmarks"][0]["extra_info"][KEY]["flags"] = [flag("git-dirty").to_dict()]
    path.write_text(json.dumps(measured))
    done = run(tree, "--targets", file(LADDER + "mfu = 0.5\n"), "--json")
    content = json.loads(done.stdout)
    assert (content["met"], done.return_value) == (False, 1)
    first, second = content["verdicts"]
    named = [first[key] for key in ("target", "verdict", "world_size", "least")]
    assert named == ["strong_efficiency at 2", "met", 2, 0.75]
    assert [first[key] for key in ("value", "low", "high")] == pytest.approx([0.8] * 3)
    assert [one["kind"] for one in first["flags"]] == ["git-dirty"]
    assert (second["verdict"], second["value"], second["low"]) == ("not-shown", None, None)
    assert [one["kind"] for one in second["reasons"]] == ["no-quantity"]
    assert second["reason"].startswith("no result holds")
