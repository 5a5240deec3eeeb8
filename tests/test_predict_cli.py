import json
import re

import published
import pytest
from commands import run
from data.report_samples import full_tree, strong_tree
from planted import cited as imported
from planted import table

from lockstep.report.predict.predict_cli import predict
from lockstep.report.report_cli import import_table

KEYS = ["at", "metric", "unit", "value", "low", "high", "level", "model", "assumed"]
KEYS += ["origin", "predicted_from", "refused", "refusal", "warnings"]
RATIOS = ("speedup", "parallel_efficiency", "step_s")
KEYS += [name + end for name in RATIOS for end in ("", "_low", "_high")]


@pytest.fixture(scope="module")
def cited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cited")
    assert run(import_table, published.TABLES, "--to", folder).exit_code == 0
    return folder


@pytest.fixture
def ladder(tmp_path):
    """A measured ladder of four sizes whose step takes 20 + 80 / p ms."""
    return strong_tree(tmp_path, {p: (t := 0.02 + 0.08 / p, t * (1 + 1e-9)) for p in (1, 2, 4, 8)})


def test_a_measured_ladder_is_predicted_in_samples_per_second(ladder):
    done = run(predict, ladder, "--at", 16, "--json")
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    values = [found[name] for name in ("value", *RATIOS)]
    assert values == pytest.approx([64 / 0.025, 4, 0.25, 0.025], rel=1e-6)
    assert found["step_s_low"] < found["step_s"] < found["step_s_high"]
    assert (found["origin"], found["unit"]) == ("predicted", "images/s")
    assert (found["level"], found["model"], found["refused"]) == (0.9, "amdahl", None)
    assert done.return_value == 0


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_a_time_that_is_predicted_has_the_speed_up_of_its_own_interval(tmp_path, scaling):
    folder = imported(tmp_path, table({1: 8, 2: 4, 4: 2}, "time", "s", scaling=scaling))
    found = json.loads(run(predict, folder, "--at", 8, "--json").stdout)
    out = " ".join(run(predict, folder, "--at", 8).stdout.split())
    gain, low, high = re.search(r"over 1 device: (\S+) \((\S+) to (\S+)\)", out).groups()
    work = 1 if scaling == "strong" else 8
    ends = [8 * work / found[name] for name in ("value", "high", "low")]
    assert [float(gain), float(low), float(high)] == pytest.approx(ends, abs=0.01)
    assert "step time" not in out


def test_a_table_that_does_not_state_its_scaling_is_told_what_is_assumed(tmp_path):
    folder = imported(tmp_path, table({1: 163, 2: 300, 4: 560, 8: 1031}))
    found = json.loads(run(predict, folder, "--at", 16, "--json").stdout)
    assert found["assumed"] == "global"
    assert found["high"] == pytest.approx(2 * 1031 * 1.05)
    for arguments in ([], ["--at", 16]):
        said = " ".join(run(predict, folder, *arguments).stdout.split())
        assert (
            "assumed: the total work is the same at all sizes, because the table has neither a"
            in said
        )
    assert json.loads(run(predict, folder, "--json").stdout)["assumed_work"] == "global"


def test_beyond_twice_is_refused_in_words_and_by_exit_code(ladder):
    done = run(predict, ladder, "--at", 17)
    assert done.return_value == 1
    assert done.stdout.startswith("not predicted: 17 ranks are more than 2 times the largest mea")
    found = json.loads(run(predict, ladder, "--at", 17, "--json").stdout)
    assert [found[key] for key in ("value", "low", "high", "model")] == [None] * 4
    assert (found["refusal"]["kind"], found["refusal"]["measure"]) == ("beyond", [16])
    assert found["refused"].startswith("17 ranks are more than 2 times")
    forced = run(predict, ladder, "--at", 17, "--force")
    assert forced.return_value == 0
    assert "warning: 17 ranks are more than 2 times the largest measured size, 8" in forced.stdout


def test_several_series_ask_for_a_case_and_name_them(cited):
    with pytest.raises(ValueError, match=r"several series; choose one with --case .*kempner"):
        run(predict, cited, "--at", 8)
    with pytest.raises(ValueError, match="2 series have 'p2xlarge' in their names"):
        run(predict, cited, "--at", 8, "--case", "p2xlarge")
    with pytest.raises(ValueError, match="no series has 'nothing' in its name"):
        run(predict, cited, "--at", 8, "--case", "nothing")


def test_only_ladders_have_models(tmp_path):
    full_tree(tmp_path)
    with pytest.raises(ValueError, match=r"its name: strong mlp, [^;]+; weak mlp, [^;]+$"):
        run(predict, tmp_path)


def test_a_peak_is_given_only_where_beta_is_above_zero(cited):
    known = run(predict, cited, "--case", "usl_oracle_specsdm91").stdout
    assert "the throughput has its peak at 96.5 ranks" in known
    # beta is 1.4 of its standard errors from 0, and the peak it gives seven times the sizes.
    unknown = run(predict, cited, "--case", "dlperf_ngcpytorch_rn50_amp", "--json").stdout
    assert json.loads(unknown)["peak_world_size"] is None


def test_nothing_is_recommended_from_what_an_error_touches(tmp_path):
    folder = tmp_path / "out"
    assert run(import_table, "guide", "--to", folder).exit_code == 0
    done = run(predict, folder, "--case", "guide_throughput")
    assert done.return_value == 1
    assert "recommended:" not in done.stdout
    found = json.loads(run(predict, folder, "--case", "guide_throughput", "--json").stdout)
    assert (found["recommendation"], found["blocked_by"]) == (None, ["contradiction"])
    doubtful = strong_tree(tmp_path / "apart", {1: (0.1, 0.101), 2: (0.05, 0.1)})
    found = json.loads(run(predict, doubtful, "--rule", "efficiency=0.3", "--json").stdout)
    assert "does not warn of launches-apart would" in found["recommendation"]["why"]


def test_the_rules_are_one_json_object(cited):
    found = json.loads(run(predict, cited, "--case", "bertbase_amp", "--json").stdout)
    assert found["chosen"] == found["models"][0]["model"]
    assert found["models"][0]["error"] == min(m["error"] for m in found["models"])
    assert [break_["world_size"] for break_ in found["breaks"]] == [16]
    assert found["points"][0]["karp_flatt"] is None
    assert found["recommendation"] == {
        "rule": "efficiency >= 70 %", "world_size": 8,
        "why": "efficiency 91.4 %, speed-up 7.32",
    }  # fmt: skip
    assert (found["next_step"]["kind"], found["next_step"]["world_sizes"]) == ("stop", [])


@pytest.mark.parametrize(
    ("rule", "refusal"),
    [("cheap", "not a rule"), ("efficiency=80", "not a fraction"), ("budget=1", "by --samples")],
)
def test_what_cannot_be_answered_is_refused(ladder, rule, refusal):
    with pytest.raises(ValueError, match=refusal):
        run(predict, ladder, "--rule", rule)
