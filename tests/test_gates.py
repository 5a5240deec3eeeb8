import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from data.report_samples import document, provenance, record, strong_tree, write
from hypothesis import given
from hypothesis import strategies as st

from lockstep.report.check.checker import check
from lockstep.report.compare.comparison import compare
from lockstep.report.compute.scaling import Point, series_of, table
from lockstep.report.gate import gates, targets, training_runs
from lockstep.report.gate.gates import Goal, verdicts
from lockstep.report.gate.targets import Targets
from lockstep.report.load.reading import load
from lockstep.report.report_cli import import_table

DATA = Path(__file__).parent / "data"
SCHEMA = Path(targets.__file__).with_name("targets.schema.json")
REGENERATE = (
    "python -c 'import json; from lockstep.report.gate.targets import Targets; "
    "print(json.dumps(Targets.model_json_schema(), indent=1))' "
    "> lockstep/report/gate/targets.schema.json"
)
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
# Launches that vary by about 1 %.
STEADY = np.array([1.0, 1.01, 0.99])


def wanted(**keys):
    return Targets.model_validate({"schema": 1} | keys)


def judged(results, **keys):
    return verdicts(wanted(**keys), results, findings=check(results))


def said(found):
    return [one.verdict for one in found]


def imported(folder, text, name="t.csv"):
    (folder / name).write_text(text)
    return imported_files(folder, folder / name)


def imported_files(folder, *paths):
    arguments = [*map(str, paths), "--to", str(folder / "out")]
    done = CliRunner().invoke(import_table, arguments)
    assert done.exit_code == 0, done.output
    return load([folder / "out"])


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


def test_the_published_schema_is_the_models():
    published = json.loads(SCHEMA.read_text())
    assert published == Targets.model_json_schema(), f"to write it again: {REGENERATE}"


def test_the_schema_takes_what_we_ship():
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    assert set(targets.built_in()) == {"proposal"}
    validator.validate(
        targets.load("proposal").model_dump(by_alias=True, exclude_none=True, mode="json")
    )
    assert not validator.is_valid({"schema": 1, "strong_efficency": {"2": 0.9}})


def test_all_that_the_shipped_file_mentions_is_a_target(tmp_path):
    text = targets.built_in()["proposal"].read_text()
    head, _, rest = text.partition("# Further targets:\n")
    opened = "\n".join(line.removeprefix("# ") for line in rest.replace("#\n", "\n").splitlines())
    (tmp_path / "all.toml").write_text(head + opened)
    given = targets.load(str(tmp_path / "all.toml")).model_dump(exclude_defaults=True)
    assert set(given) == set(Targets.model_fields)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("schema = 1", "holds no target; give at least one"),
        ("mfu = 0.5", "key 'schema' is missing"),
        ("schema = 1\nmfu = 50", "mfu = 50: not a fraction: 0.10 is ten per cent"),
        ("schema = 1\nweak_time_increase = 10", "weak_time_increase = 10: not a fraction: 0.10"),
        ("schema = 1\nthroughput_gain = 20.0", "throughput_gain = 20.0: not a fraction: 0.10"),
        ("schema = 1\nstrong_efficiency = {2 = 90}", "strong_efficiency.2 = 90: not a fraction"),
        ("schema = 1\nmfu = true", "mfu = true"),
        ("schema = 1\nmfu = nan", "mfu = nan"),
        ("schema = 1\nstrong_eficiency = {2 = 0.9}", "did you mean 'strong_efficiency'"),
        (
            "schema = 1\nstrong_efficiency = {two = 0.9}",
            r"strong_efficiency: two is no world size; they are whole numbers, as \{2 = 0.9\}$",
        ),
        ("schema = 1\nspeedup = {2.5 = [1, 2]}", "speedup: 2.5 is no world size"),
        ('schema = 1\nparallel_efficiency = {"2.5" = 0.9}', "parallel_efficiency: 2.5 is no world"),
        ("schema = 1\nparallel_efficiency = {0 = 0.9}", "parallel_efficiency: 0 is no world size"),
        (
            'schema = 1\n[[reference]]\ncase = "a"\nworld_size = 1\nvalue = 1\nunit = "s"\n'
            "lower = -10",
            "lower = -10: not a fraction: 0.10 is ten per cent",
        ),
        (
            'schema = 1\n[[reference]]\ncase = "a"\nworld_size = 1\nvalue = 1\nunit = "s"\n'
            "upper = 10",
            "upper = 10: not a fraction: 0.10 is ten per cent",
        ),
        ("schema = 1\nspeedup = {4 = [3.8, 3.5]}", "from 3.8 to 3.5; turn it round"),
        ("schema = 1\nspeedup = {4 = 3.5}", "speedup.4 = 3.5"),
        ("schema = 1\nclean_runs = false", "clean_runs = false"),
        (
            'schema = 1\n[[reference]]\ncase = "a"\nworld_size = 1\nvalue = 1\nunit = "s"',
            "neither lower nor upper is given",
        ),
        ("schema = 1\n[[reference]]\ncase = 'a'\nworld_sizes = 1", "did you mean 'world_size'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, text, match):
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=match) as refused:
        targets.load(str(path))
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def point(origin="measured"):
    row = load_row()
    return Point(2, 1.0, [1.0], [replace(row, origin=origin)])


def load_row():
    from lockstep.report.load.results import Row

    return Row(launch="a", case="c", study="strong", workload="mlp", world_size=2, rate=1.0)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.90, 0.95), "met"),
        ((0.899, 0.95), "not-shown"),
        ((0.85, 0.90), "not-shown"),
        ((0.85, 0.899), "missed"),
    ],
)
def test_a_least_target_is_judged_by_the_whole_interval(interval, verdict):
    assert Goal("t", least=0.9).judge(point(), "", 0.9, interval).verdict == verdict


@pytest.mark.parametrize(
    ("value", "origin", "verdict"),
    [
        (0.999, "measured", "not-shown"),
        (0.001, "measured", "not-shown"),
        (0.9, "cited", "met"),
        (0.9 * (1 - 1e-12), "cited", "met"),
        (0.899, "cited", "missed"),
        (0.95, "target", "not-shown"),
        (0.899, "target", "missed"),
    ],
)
def test_without_an_interval_a_value_counts_for_what_it_is(value, origin, verdict):
    found = Goal("t", least=0.9).judge(point(origin), "", value, None)
    assert found.verdict == verdict
    assert (found.low, found.high) == (None, None)
    assert ("no repeat: no interval" in found.reason) == (
        found.reason != "expected rather than measured"
    )


def test_launches_equal_to_the_last_digit_say_why_there_is_no_interval(tmp_path):
    results = strong(tmp_path, 0.95, launches=np.ones(3))
    (found,) = judged(results, strong_efficiency={"2": 0.9})
    assert (found.verdict, found.value) == ("not-shown", pytest.approx(0.95))
    assert found.reason == "equal to the last digit: rounded or copied, no spread known"


def test_a_baseline_without_repeat_leaves_no_interval(tmp_path):
    results = load([strong_tree(tmp_path, {1: (0.1,), 2: (0.05, 0.051)})])
    (found,) = judged(results, strong_efficiency={"2": 0.9})
    assert (found.verdict, found.reason) == ("not-shown", "no repeat: no interval")


def test_a_value_is_the_reports_and_its_interval_judges(tmp_path):
    # Of five launches of two ranks two are twice as slow: the median is 94.8 %, the geometric mean
    # 94.8 / 4^(1/5) = 71.8 %, which the interval is of.
    slow = np.array([1.0, 1.0, 1.0, 2.0, 2.0])
    steps = {1: tuple(0.1 * np.ones(5)), 2: tuple(0.05 / 0.948 * slow)}
    results = load([strong_tree(tmp_path, steps)])
    mean = 0.948 / 4**0.2
    for key in ("strong_efficiency", "parallel_efficiency"):
        (found,) = judged(results, **{key: {"2": 0.9}})
        assert found.value == pytest.approx(0.948)
        assert found.value == table(series_of(results.rows))[1]["parallel_efficiency"]
        assert found.low * found.high == pytest.approx(mean**2)
    (found,) = judged(results, speedup={"2": [2.99, 3.0]})
    assert (found.verdict, found.value) == ("missed", pytest.approx(2 * 0.948))
    assert found.reason == f"{2.99 - 2 * 0.948:.2f} short"
    case = {"case": results.rows[0].case, "world_size": 2}
    for unit, value in (("images/s", 64 / 0.05 * 0.948), ("ms", 50 / 0.948)):
        (found,) = judged(
            results, reference=[case | {"value": value, "unit": unit, "lower": -1.0, "upper": 1.0}]
        )
        assert found.value == pytest.approx(value)
        centre = value * (mean / 0.948 if unit == "images/s" else 0.948 / mean)
        assert found.low * found.high == pytest.approx(centre**2)


def test_a_target_that_the_median_reaches_and_the_interval_does_not_says_by_how_much():
    goal = Goal("t", least=1.0, unit="x")
    found = goal.judge(point(), "", 1.1, (0.8, 0.9))
    assert (found.verdict, found.reason) == ("missed", "0.100 short")


def test_the_increase_of_skewed_launches_is_of_their_median(tmp_path):
    launches = np.array([1.0, 1.0, 1.0, 1.1, 1.1])
    for size in (1, 2):
        for repeat, factor in enumerate(launches if size == 2 else np.ones(5)):
            case = record("weak", size, 0.1 * factor)
            write(tmp_path, document(f"w{size}-r{repeat}", size, {"weak[64]": case}))
    (found,) = judged(load([tmp_path]), weak_time_increase=0.0)
    assert found.value == pytest.approx(0)
    assert found.low < 1.1**0.4 - 1 < found.high


@given(st.floats(0, 2), st.floats(0, 1), st.floats(0, 1), st.floats(0, 2), st.floats(0, 2))
def test_a_target_is_met_or_missed_by_every_value_of_the_interval(value, below, above, one, two):
    least, most = sorted((one, two))
    low, high = value - below, value + above
    found = Goal("t", least, most, "x").judge(point(), "", value, (low, high)).verdict
    inside = [least * (1 - 1e-9) <= v <= most * (1 + 1e-9) for v in np.linspace(low, high, 9)]
    if found == "met":
        assert all(inside)
    if found == "missed":
        assert not any(inside)


def test_a_ladder_is_judged_size_by_size(tmp_path):
    found = judged(strong(tmp_path, 0.95, 0.70), strong_efficiency={"2": 0.9, "4": 0.8, "8": 0.7})
    assert [(one.target, one.verdict) for one in found] == [
        ("strong_efficiency at 2", "met"),
        ("strong_efficiency at 4", "missed"),
        ("strong_efficiency at 8", "not-shown"),
    ]
    assert found[0].value == pytest.approx(0.95)
    assert found[0].low < 0.95 < found[0].high
    assert "10.0 percentage points short" in found[1].reason
    assert found[2].reason == "no series was measured at world size 8"


def test_noisy_launches_show_nothing(tmp_path):
    found = judged(
        strong(tmp_path, 0.9, launches=np.array([0.9, 1.0, 1.1])), strong_efficiency={"2": 0.85}
    )
    assert said(found) == ["not-shown"]
    assert found[0].reason == "the interval contains the target"


def test_the_baseline_shows_no_ratio_to_itself(tmp_path):
    (found,) = judged(strong(tmp_path, 0.9), strong_efficiency={"1": 0.9})
    assert found.verdict == "not-shown"
    assert "is 1 by definition" in found.reason


def test_launches_too_far_apart_for_an_interval_show_nothing(tmp_path):
    (found,) = judged(
        strong(tmp_path, 0.9, launches=np.array([1.0, 1e3])), strong_efficiency={"2": 0.1}
    )
    assert (found.verdict, found.value) == ("not-shown", None)
    assert "differ too much" in found.reason


def test_two_gpus_slower_than_one_miss_the_target(tmp_path):
    # 4507 images/s on one GPU, 2505 on two: 27.8 %.
    results = imported_files(tmp_path, DATA / "epochs_2644.csv", DATA / "epochs_2649.csv")
    (found,) = judged(results, parallel_efficiency={"2": 0.7})
    assert (found.verdict, found.value) == ("missed", pytest.approx(0.278, abs=0.0005))
    assert "no repeat: no interval" in found.reason


def test_a_published_ladder_meets_and_misses_its_targets(tmp_path):
    results = imported(tmp_path, KEMPNER)
    found = judged(results, parallel_efficiency={"8": 0.7, "64": 0.8})
    assert [(one.verdict, round(one.value, 4)) for one in found] == [
        ("met", 0.9478),
        ("missed", 0.7676),
    ]


def test_fixed_epochs_are_not_strong_scaling(tmp_path):
    (found,) = judged(imported(tmp_path, KEMPNER), strong_efficiency={"8": 0.7})
    assert found.verdict == "not-shown"
    assert found.reason.startswith("no series is of strong scaling but of fixed-epochs scaling;")


def test_a_table_that_names_no_scaling_is_not_strong(tmp_path):
    results = imported(tmp_path, "n,value,metric,unit\n1,9,time,s\n2,5,time,s\n")
    (found,) = judged(results, strong_efficiency={"2": 0.7})
    assert "but of unnamed scaling" in found.reason


def test_an_expected_range_is_missed_with_the_shortfall(tmp_path):
    # 12 h on one, 3.5 h on four: 3.43, and 0.0714 less than 3.5. Expected, so never met.
    results = imported_files(tmp_path, DATA / "hours.csv")
    found = judged(results, speedup={"2": [1.8, 1.9], "4": [3.5, 3.8]})
    assert said(found) == ["not-shown", "missed"]
    assert "0.0714 short" in found[1].reason
    assert found[0].reason == "expected rather than measured"


def test_a_speedup_beyond_its_range_is_missed_too(tmp_path):
    (found,) = judged(strong(tmp_path, 1.2), speedup={"2": [1.8, 1.9]})
    assert (found.verdict, found.value) == ("missed", pytest.approx(2.4))
    assert found.reason == "0.500 too much"


@pytest.mark.parametrize(
    ("increase", "verdict"), [(0.05, "met"), (0.10, "not-shown"), (0.15, "missed")]
)
def test_the_increase_of_a_weak_step(tmp_path, increase, verdict):
    (found,) = judged(weak(tmp_path, increase), weak_time_increase=0.1)
    assert (found.verdict, found.value) == (verdict, pytest.approx(increase))


@pytest.mark.parametrize("increase", [0.0, 0.9])
def test_a_single_launch_shows_nothing(tmp_path, increase):
    (found,) = judged(weak(tmp_path, increase, np.array([1.0])), weak_time_increase=0.1)
    assert (found.verdict, found.value) == ("not-shown", pytest.approx(increase))
    assert found.reason == "no repeat: no interval"


def test_targets_of_scaling_do_not_speak_of_other_studies(tmp_path):
    for size in (1, 2):
        case = replace(record("strong", size), study="bucket")
        write(tmp_path, document(f"w{size}-r0", size, {"bucket[25]": case}))
    keys = {"strong_efficiency": {"2": 0.1}, "speedup": {"2": [0.1, 9.0]}}
    assert said(judged(load([tmp_path]), **keys)) == ["not-shown", "not-shown"]


def test_weak_targets_do_not_speak_of_strong_series(tmp_path):
    (found,) = judged(strong(tmp_path, 0.5), weak_time_increase=0.1)
    assert found.verdict == "not-shown"


@pytest.mark.parametrize(("gain", "verdict"), [(1.3, "met"), (1.2, "not-shown"), (1.05, "missed")])
def test_a_gain_is_shown_by_its_interval_alone(tmp_path, gain, verdict):
    base = load([strong_tree(tmp_path / "a", {1: tuple(0.1 * STEADY)})])
    here = load([strong_tree(tmp_path / "b", {1: tuple(0.1 / gain * STEADY)})])
    (found,) = verdicts(wanted(throughput_gain=0.2), here, compare(base, here))
    assert (found.verdict, found.value) == (verdict, pytest.approx(gain - 1))


def test_a_gain_of_what_does_no_training_is_not_asked_for(tmp_path):
    for side, loader_s in (("a", 0.1), ("b", 0.2)):
        for repeat, factor in enumerate(STEADY):
            cases = {
                "strong": record(step_s=factor * (0.1 if side == "a" else 0.05)),
                "loader": record("loader", step_s=factor * loader_s, scaling=None),
            }
            write(tmp_path / side, document(f"w1-r{repeat}", 1, cases))
    base, here = load([tmp_path / "a"]), load([tmp_path / "b"])
    (found,) = verdicts(wanted(throughput_gain=0.2), here, compare(base, here))
    assert (found.case, found.verdict) == ("strong", "met")


def test_a_launch_that_cannot_be_read_is_not_clean(tmp_path):
    tree = strong_tree(tmp_path)
    (tree / "launches" / "w1-r0" / "result.json").write_text("{")
    (found,) = judged(load([tree]), clean_runs=True)
    assert found.verdict == "missed"
    assert "w1-r0" in found.reason


def test_a_gain_without_a_base_or_repeats_is_not_shown(tmp_path):
    base = load([strong_tree(tmp_path / "a", {1: (0.1,)})])
    here = load([strong_tree(tmp_path / "b", {1: (0.05,)})])
    (alone,) = judged(here, throughput_gain=0.2)
    (single,) = verdicts(wanted(throughput_gain=0.2), here, compare(base, here))
    assert said([alone, single]) == ["not-shown"] * 2
    assert "--against BASE" in alone.reason
    assert "no repeat: no interval" in single.reason


def detailed(tmp_path, world_size=2, launches=3, **details):
    """Load launches a hair apart: equal ones have no interval."""
    for repeat in range(launches):
        own = {
            name: [(1 + 1e-7 * repeat) * one for one in value] if name == "alone_step_s"
            else value + 1e-7 * repeat if isinstance(value, float) else value
            for name, value in details.items()
        }  # fmt: skip
        case = record(world_size=world_size, step_s=0.1, details=own)
        write(tmp_path, document(f"w-r{repeat}", world_size, {"case": case}))
    return load([tmp_path])


@pytest.mark.parametrize(
    ("alone", "verdict", "share"), [([0.05, 0.09], "met", 0.1), ([0.06, 0.07], "missed", 0.3)]
)
def test_communication_is_what_the_slowest_rank_alone_leaves_of_the_step(
    tmp_path, alone, verdict, share
):
    (found,) = judged(detailed(tmp_path, alone_step_s=alone), communication_share=0.2)
    assert (found.verdict, found.value) == (verdict, pytest.approx(share, rel=1e-5))


def test_the_share_of_communication_is_the_mean_of_the_launches(tmp_path):
    # Noise: alone, the slowest rank took longer than the step of the second launch.
    for repeat, (step_s, alone) in enumerate(((0.1, 0.09), (0.1, 0.103), (0.2, 0.196))):
        case = record("strong", 2, step_s, details={"alone_step_s": [alone, alone / 2]})
        write(tmp_path, document(f"w2-r{repeat}", 2, {"strong[64]": case}))
    results = load([tmp_path])
    (found,) = judged(results, communication_share=0.2)
    assert found.value == pytest.approx((0.1 - 0.03 + 0.02) / 3)
    # Standard deviation 0.0656, t of 2 degrees of freedom 4.3027: from -0.13, which no share is.
    assert (found.low, found.high) == (0.0, pytest.approx(0.193, abs=5e-4))


def test_one_rank_communicates_with_nobody(tmp_path):
    results = detailed(tmp_path, world_size=1, alone_step_s=[0.05])
    assert said(judged(results, communication_share=0.2)) == ["not-shown"]


@pytest.mark.parametrize(
    ("name", "good", "bad", "limit"),
    [
        ("mfu", 0.6, 0.3, 0.5),
        ("validation_accuracy", 0.76, 0.64, 0.7),
    ],
)
def test_a_quantity_is_judged_where_results_hold_it(tmp_path, name, good, bad, limit):
    for folder, value, verdict in (("a", good, "met"), ("b", bad, "missed")):
        (found,) = judged(detailed(tmp_path / folder, **{name: value}), **{name: limit})
        assert (found.verdict, found.value) == (verdict, pytest.approx(value, rel=1e-4))
    (found,) = judged(detailed(tmp_path / "c"), **{name: limit})
    assert found.verdict == "not-shown"
    assert found.reason.startswith("no result holds the ")


def test_the_ends_of_a_quantity_are_fractions(tmp_path):
    for repeat, share in enumerate((0.9, 1.0, 1.0)):
        case = record(world_size=2, details={"validation_accuracy": share})
        write(tmp_path, document(f"w-r{repeat}", 2, {"case": case}))
    (found,) = judged(load([tmp_path]), validation_accuracy=0.8)
    # Standard error 0.0333, t of 2 degrees of freedom 4.3027: to 1.11, which no share is.
    assert (found.low, found.high) == (pytest.approx(0.8232, abs=1e-4), 1.0)


@pytest.mark.parametrize("value", ["high", 1.5, -0.1, "nan", None, [0.9]])
def test_what_is_no_fraction_is_no_quantity(tmp_path, value):
    results = detailed(tmp_path, validation_accuracy=value)
    assert said(judged(results, validation_accuracy=0.1)) == ["not-shown"]


def test_a_column_of_a_table_is_a_quantity(tmp_path):
    text = "n,value,metric,unit,validation_accuracy\n1,9,time,s,0.85\n2,5,time,s,0.60\n"
    found = judged(imported(tmp_path, text), validation_accuracy=0.8)
    assert said(found) == ["met", "missed"]


def test_a_quantity_that_one_launch_lacks_is_no_value_of_the_point(tmp_path):
    detailed(tmp_path, mfu=0.6)
    write(tmp_path, document("w-r9", 2, {"case": record(world_size=2)}))
    assert said(judged(load([tmp_path]), mfu=0.5)) == ["not-shown"]


@pytest.mark.parametrize(("wanted_nodes", "verdict"), [(1, "met"), (2, "missed")])
def test_the_nodes_are_counted(tmp_path, wanted_nodes, verdict):
    assert said(judged(strong(tmp_path, 0.9), num_nodes=wanted_nodes)) == [verdict]


@pytest.mark.parametrize("keys", [{"num_nodes": 1}, {"clean_runs": True}])
def test_what_was_expected_was_on_no_node_and_never_clean(tmp_path, keys):
    results = imported_files(tmp_path, DATA / "hours.csv")
    for row in results.rows:
        row.num_nodes = 4
    assert {row.origin for row in results.rows} == {"target"}
    (found,) = judged(results, **keys)
    assert (found.verdict, found.reason) == ("not-shown", "expected rather than measured")


def test_a_table_without_nodes_shows_none(tmp_path):
    assert said(judged(imported(tmp_path, KEMPNER), num_nodes=1)) == ["not-shown"]


@pytest.mark.parametrize(
    ("flags", "facts", "problem"),
    [
        ([], {}, None),
        (["throttled"], {}, "throttled"),
        ([], {"complete": False}, "unfinished-launch: launch w1-r0"),
        ([], {"failed": [{"case": "x", "reason": "died"}]}, "failed-case: x at"),
        ([], {"expected": ["case", "other"]}, "missing-case: other at"),
        ([], {"skipped": [{"case": "x", "reason": "no GPU"}]}, None),
    ],
)
def test_clean_runs_have_no_flag_and_lost_nothing(tmp_path, flags, facts, problem):
    write(tmp_path, document("w1-r0", 1, {"case": record(flags=flags)}, **facts))
    (found,) = judged(load([tmp_path]), clean_runs=True)
    assert found.verdict == ("missed" if problem else "met")
    assert (problem or "") in found.reason


@pytest.mark.parametrize(
    ("rate", "verdict"), [(4953.76, "met"), (4459, "met"), (4458, "missed"), (5100, "missed")]
)
def test_a_reference_has_a_tolerance_below_and_above(tmp_path, rate, verdict):
    # 0.9 x 16 x 309.61 = 4458.4; 1.02 x that of the reference is 5052.8.
    one = {"case": "resnet50", "world_size": 16, "system": "Cyc*", "value": 309.61,
           "unit": "images/s per rank", "lower": -0.1, "upper": 0.02}  # fmt: skip
    (found,) = judged(imported(tmp_path, REFRAME.format(rate)), reference=[one])
    assert (found.verdict, found.value) == (verdict, pytest.approx(rate / 16))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system": "daint"}, "was measured on Cyclone, not daint"),
        ({"unit": "tokens/s"}, "has no value in tokens/s"),
        ({"world_size": 8}, "no result is of resnet50 at 8"),
        ({"case": "vgg"}, "no result is of vgg at 16; known: [cited] resnet50 at 16"),
    ],
)
def test_a_reference_for_something_else_shows_nothing(tmp_path, changes, reason):
    one = {
        "case": "resnet50",
        "world_size": 16,
        "value": 4953.76,
        "unit": "images/s",
        "lower": -0.1,
    }
    (found,) = judged(imported(tmp_path, REFRAME.format(4953.76)), reference=[one | changes])
    assert found.verdict == "not-shown"
    assert reason in found.reason


def test_a_reference_names_the_case_as_the_report_prints_it(tmp_path):
    results = strong(tmp_path, 0.9)
    (one,) = series_of(results.rows)
    for case in (one.case, one.label, one.name, "strong mlp, global_batch=64"):
        reference = {"case": case, "world_size": 1, "value": 100, "unit": "ms", "upper": 0.05}
        (found,) = judged(results, reference=[reference])
        assert (found.verdict, found.where) == ("met", "strong mlp, global_batch=64 at 1")


def test_intervals_say_where_they_are_of_one_job(tmp_path):
    def told(folder, jobs):
        for size, step_s in ((1, 0.1), (2, 0.0625)):
            for repeat, job in enumerate(jobs):
                case = record("strong", size, step_s * (1 + 0.01 * (repeat % 3)))
                facts = provenance(size, slurm={"SLURM_JOB_ID": f"{job}"})
                name = f"w{size}-r{repeat}"
                write(folder, document(name, size, {"strong[64]": case}, provenance=facts))
        results = load([folder])
        (found,) = judged(results, strong_efficiency={"2": 0.75})
        return found, table(series_of(results.rows))[1]

    found, one = told(tmp_path / "one", (7, 7, 7, 7, 7, 7))
    assert (found.in_one_job, one["num_jobs"]) == (True, 1)
    assert one["interval_over"] == "launches of one job"
    found, apart = told(tmp_path / "apart", range(6))
    assert (found.in_one_job, apart["num_jobs"], apart["interval_over"]) == (False, 6, "launches")
    assert apart["speedup_low"] == one["speedup_low"]
    found, both = told(tmp_path / "both", (1, 1, 1, 2, 2, 2))
    assert (found.in_one_job, both["num_jobs"], both["interval_over"]) == (False, 2, "jobs")


@pytest.mark.parametrize("system", ["node1", "H100", "gpu-*", "*"])
def test_a_measured_system_is_its_hosts_devices_and_partition(tmp_path, system):
    facts = provenance(slurm={"SLURM_JOB_PARTITION": "gpu-long"})
    results = load([strong_tree(tmp_path, {1: tuple(0.1 * STEADY)}, provenance=facts)])
    known = {"case": results.rows[0].case, "world_size": 1, "value": 100, "unit": "ms"}
    one = known | {"system": system, "upper": 0.05}
    (found,) = judged(results, reference=[one])
    assert (found.verdict, found.value) == ("met", pytest.approx(100, rel=1e-4))
    assert found.low < 100 < found.high


def summary(folder, accuracy, **final):
    known = {"workload": "mlp", "data": "digits", "world_size": 2, "samples_per_s": 100.0,
             "local_batch": 32, "global_batch": 64, "val_accuracy": accuracy}  # fmt: skip
    folder.mkdir(parents=True)
    document = {
        "schema": 1,
        "config": {},
        "epoch_plan": {},
        "step_losses": [],
        "final": known | final,
    }
    (folder / "summary.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("accuracy", "verdict"), [(0.75, "met"), (0.64, "missed"), (None, "not-shown")]
)
def test_the_accuracy_of_training_runs(tmp_path, accuracy, verdict):
    for run in range(3):
        summary(tmp_path / f"run{run}", accuracy and accuracy + 0.001 * run)
    assert said(judged(training_runs.gather(tmp_path), validation_accuracy=0.7)) == [verdict]


def test_a_single_training_run_has_a_value_and_shows_nothing(tmp_path):
    summary(tmp_path / "run", 0.75)
    for folder in (tmp_path, tmp_path / "run"):
        (found,) = judged(training_runs.gather(folder), validation_accuracy=0.7)
        assert (found.verdict, found.value) == ("not-shown", 0.75)


def test_equal_training_runs_are_repeats(tmp_path):
    for number, accuracy in enumerate((0.74, 0.75, 0.76)):
        summary(tmp_path / f"run{number}", accuracy)
    (found,) = judged(training_runs.gather(tmp_path), validation_accuracy=0.7)
    assert found.value == pytest.approx(0.75)
    # Mean 0.75, standard error 0.01 / sqrt 3, t of 2 degrees of freedom 4.3027.
    assert (found.low, found.high) == pytest.approx((0.75 - 0.02484, 0.75 + 0.02484), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("precision", "bf16"), ("epochs", 3), ("lr", 1e-4), ("global_batch", 128), ("device", "cuda"),
     ("scheduler", "cosine")],
)  # fmt: skip
def test_training_runs_that_differ_in_what_is_learned_are_no_repeats(tmp_path, name, value):
    for run in range(6):
        summary(tmp_path / f"run{run}", 0.9 if run < 3 else 0.5 + 0.001 * run)
        path = tmp_path / f"run{run}" / "summary.json"
        document = json.loads(path.read_text())
        document["config"] = {"precision": "fp32", "epochs": 1, "lr": 0.1, "global_batch": 64}
        document["config"] |= {"seed": run, "name": f"run{run}"}
        document["config"] |= {name: value} if run > 2 else {}
        path.write_text(json.dumps(document))
    found = judged(training_runs.gather(tmp_path), validation_accuracy=0.7)
    values = [(one.verdict, round(one.value, 2)) for one in found]
    assert values == [("not-shown", 0.9), ("missed", 0.5)]
    assert f"{name}={value}" in found[1].where
    assert found[0].where.startswith("train mlp, data=digits, precision=fp32")


def test_training_runs_beside_a_campaign_are_read_too(tmp_path):
    strong(tmp_path, 0.9)
    for run in range(3):
        summary(tmp_path / f"run{run}", 0.8 + 0.001 * run)
    results = training_runs.gather(tmp_path)
    found = judged(results, strong_efficiency={"2": 0.8}, validation_accuracy=0.7)
    assert said(found) == ["met", "met"]


@pytest.mark.parametrize("final", [{"world_size": "two"}, {"world_size": 0}, {"samples_per_s": 0}])
def test_a_broken_summary_is_refused(tmp_path, final):
    summary(tmp_path / "run", 0.8, **final)
    with pytest.raises(ValueError, match=r"summary\.json: .*train again"):
        training_runs.gather(tmp_path)


def test_a_folder_with_neither_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no launch"):
        training_runs.gather(tmp_path)


def test_the_summary_names_what_fails():
    found = [
        Goal("a").unshown(""), replace(Goal("b").unshown(""), verdict="missed"),
        replace(Goal("c").unshown(""), verdict="met"),
    ]  # fmt: skip
    assert gates.summary(found) == "missed: b; not-shown: a"
    assert gates.summary(found[2:]) == "all met: 1 verdict"


def test_targets_are_rarely_met_by_chance():
    # The true efficiency is a hair below the target, so each verdict `met` is wrong: 2.5 % are.
    draw = np.random.default_rng(6)
    wrong = 0
    for _ in range(400):
        steps = np.exp(0.02 * draw.standard_normal((2, 3))) * [[1.0], [1 / 1.799]]
        rows = [
            replace(load_row(), world_size=size, rate=1 / s, launch=str(s), scaling="strong")
            for size, times in zip((1, 2), steps, strict=True)
            for s in times
        ]
        (one,) = gates._efficiencies(wanted(strong_efficiency={"2": 0.9}), series_of(rows))
        wrong += one.verdict == "met"
    assert wrong / 400 < 0.06
