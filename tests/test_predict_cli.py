import csv
import json
import re
import shlex

import published
import pytest
from commands import lockstep, run
from data.report_samples import document, full_tree, record, strong_tree, write

from lockstep.report.predict.predict_cli import PREDICT_EXAMPLES, predict
from lockstep.report.report_cli import import_table, report

SIZES = (1, 2, 4, 8)
KEYS = ["at", "metric", "unit", "value", "low", "high", "level", "model", "assumed", "refused"]
KEYS += ["refusal", "warnings"]


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
    assert found["value"] == pytest.approx(64 / 0.025, rel=1e-6)
    assert found["low"] < found["value"] < found["high"]
    assert (found["metric"], found["unit"]) == ("throughput", "images/s")
    assert (found["level"], found["model"], found["refused"]) == (0.9, "amdahl", None)
    assert done.return_value == 0


def test_a_prediction_is_never_said_without_that_word(ladder):
    out = " ".join(run(predict, ladder, "--at", 16).stdout.split())
    assert "2560 images/s at 16 (throughput; predicted, not measured)" in out
    assert "90 % interval: " in out
    assert "warning: all sizes were measured within one node" in out
    assert "measured there: 2133 images/s" in run(predict, ladder, "--at", 8).stdout


def test_a_table_of_hours_predicts_hours(tmp_path):
    table = tmp_path / "hours.csv"
    table.write_text(
        "GPUs,value,metric,unit,scaling\n"
        + "".join(f"{n},{1 + 11 / n},time,h,strong\n" for n in (1, 2, 4, 8))
    )
    run(import_table, table, "--to", tmp_path / "out")
    found = json.loads(run(predict, tmp_path / "out", "--at", 16, "--json").stdout)
    assert (found["metric"], found["unit"]) == ("time", "h")
    assert found["value"] == pytest.approx(1 + 11 / 16, rel=1e-6)


def test_a_table_that_does_not_state_its_scaling_is_told_what_is_assumed(tmp_path):
    table = tmp_path / "rates.csv"
    rates = {1: 163, 2: 300, 4: 560, 8: 1031}
    lines = "".join(f"{n},{rate},throughput,images/s\n" for n, rate in rates.items())
    table.write_text(f"GPUs,value,metric,unit\n{lines}")
    run(import_table, table, "--to", tmp_path / "out")
    done = run(predict, tmp_path / "out", "--at", 16, "--json")
    found = json.loads(done.stdout)
    assert found["assumed"] == "global"
    assert found["high"] == pytest.approx(2 * 1031)
    for arguments in ([], ["--at", 16]):
        said = " ".join(run(predict, tmp_path / "out", *arguments).stdout.split())
        assert "assumed: the work of all ranks is fixed, since the table has neither a" in said
    assert json.loads(run(predict, tmp_path / "out", "--json").stdout)["assumed_work"] == "global"


def test_a_table_without_its_last_line_foretells_it_through_the_command(tmp_path):
    with published.TABLES.open(encoding="utf-8", newline="") as file:
        lines = [one for one in csv.DictReader(file) if one["table_id"] == "kempner_a100_resnet50"]
    short = tmp_path / "short.csv"
    with short.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines[:-1])
    run(import_table, short, "--to", tmp_path / "out")
    found = json.loads(run(predict, tmp_path / "out", "--at", 64, "--json").stdout)
    assert found["unit"] == "s"
    assert found["value"] == pytest.approx(2640, rel=0.05)
    assert found["low"] <= 2640 <= found["high"]


def test_beyond_twice_is_refused_in_words_and_by_exit_code(ladder):
    done = run(predict, ladder, "--at", 17)
    assert done.return_value == 1
    assert done.stdout.startswith("not predicted: 17 is more than 2 times the largest size meas")
    found = json.loads(run(predict, ladder, "--at", 17, "--json").stdout)
    assert [found[key] for key in ("value", "low", "high", "model")] == [None] * 4
    assert (found["refusal"]["kind"], found["refusal"]["measure"]) == ("beyond", [16])
    assert found["refused"].startswith("17 is more than 2 times")
    forced = run(predict, ladder, "--at", 17, "--force")
    assert forced.return_value == 0
    assert "warning: 17 is beyond 2 times the largest size measured, 8" in forced.stdout


def test_three_sizes_are_refused_with_the_reason(cited):
    done = run(predict, cited, "--case", "cyclone", "--at", 8, "--force", "--json")
    assert done.return_value == 1
    assert "3 distinct sizes (1, 2, 4)" in json.loads(done.stdout)["refused"]


def test_cases_of_equal_factors_are_told_apart_by_their_tests(tmp_path):
    cases = [f"test_{name}[workload=mlp-global_batch=64]" for name in ("mine", "strong_scaling")]
    for size in (1, 2):
        measured = {name: record("strong", size, 0.1 / size) for name in cases}
        write(tmp_path, document(f"w{size}-r0", size, measured))
    with pytest.raises(ValueError, match=r"choose one by --case: ") as refused:
        run(predict, tmp_path)
    assert str(refused.value).endswith("; ".join(cases))
    for name in cases:
        assert run(predict, tmp_path, "--case", name).return_value == 0


def test_several_series_ask_for_a_case_and_name_them(cited):
    with pytest.raises(ValueError, match=r"several series; choose one by --case: .*kempner"):
        run(predict, cited, "--at", 8)
    with pytest.raises(ValueError, match="2 series have 'p2xlarge' in their names"):
        run(predict, cited, "--at", 8, "--case", "p2xlarge")
    with pytest.raises(ValueError, match="no series has 'nothing' in its name"):
        run(predict, cited, "--at", 8, "--case", "nothing")


def test_a_whole_name_picks_its_series_though_others_contain_it(cited):
    name = "pytorch_ddp_bench_resnext101_32x8d_step"
    found = json.loads(run(predict, cited, "--case", name, "--at", 16, "--json").stdout)
    assert found["value"] == pytest.approx(0.45, rel=0.01)


def test_only_ladders_have_models(tmp_path):
    full_tree(tmp_path)
    with pytest.raises(ValueError, match=r"--case: strong mlp, [^;]+; weak mlp, [^;]+$"):
        run(predict, tmp_path)
    with pytest.raises(ValueError, match="no series has 'loader' in its name"):
        run(predict, tmp_path, "--case", "loader")


def test_results_without_a_ladder_say_what_to_do(tmp_path):
    case = record("loader", 1, 0.1, scaling=None, precision=None)
    write(tmp_path, document("w1-r0", 1, {"loader[0]": case}))
    with pytest.raises(ValueError, match="measure one, or import a table"):
        run(predict, tmp_path)


def test_all_rules_are_shown_with_their_errors(cited):
    out = run(predict, cited, "--case", "kempner").stdout
    for text in (
        "* falling  error   2.9 %   efficiency falls on as between the last two sizes",
        "  level    error   6.0 %   efficiency stays as last measured",
        "* chosen by that error: falling",
        "no peak: the Universal Scalability Law's beta is not identifiable from these sizes",
        "expected at 128 (predicted, not measured): 1463 s, 90 % interval 13",
        "recommended: 64 (efficiency >= 70 %): efficiency 76.8 %, speed-up 49.12",
        "diminishing returns from 32 to 64: each added rank gains 68 %",
    ):  # fmt: skip
        assert text in out
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("usl_oracle_specsdm91", "peak by the Universal Scalability Law: 96.5 ranks"),
        # beta is 1.4 of its standard errors from 0, and the peak it gives seven times the sizes.
        (
            "dlperf_ngcpytorch_rn50_amp",
            "no peak: the Universal Scalability Law's beta is not identifiable",
        ),
    ],
)
def test_a_peak_is_said_only_where_beta_was_found(cited, case, said):
    assert said in run(predict, cited, "--case", case).stdout
    found = json.loads(run(predict, cited, "--case", case, "--json").stdout)
    assert found["peak_world_size"] == (pytest.approx(96.52, abs=5e-3) if "96.5" in said else None)


def test_karp_flatt_and_overhead_of_the_tutorial_are_printed(cited):
    out = run(predict, cited, "--case", "cyclone").stdout
    rows = [line.split() for line in out.splitlines()]
    assert ["2", "42.06", "1.75", "87.3", "0.1449", "74.7", "14.5"] in rows
    assert ["4", "25.61", "2.87", "71.7", "0.1314", "56.1", "39.4"] in rows
    said = "8 ranks are not predicted: 3 distinct sizes (1, 2, 4) are fewer than the 4 needed"
    assert f"{said}; measure 8 as well" in out


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("efficiency=0.8", "recommended: 4 (efficiency >= 80 %)"),
        ("fastest", "recommended: 8 (fastest)"),
        ("deadline=04:00:00", "recommended: 4 (fewest ranks done in 4 h): takes 3.5 h"),
        ("budget=13", "recommended: 2 (fastest within 13 device-hours): 13 device-hours, 6.5 h"),
        ("budget=1", "recommended: none (fastest within 1 device-hours): the cheapest costs 12"),
    ],
)
def test_the_guides_table_under_each_rule(tmp_path, rule, text):
    (tmp_path / "guide.csv").write_text(
        "n,value,metric,unit,scaling\n"
        + "".join(
            f"{n},{h},time,h,fixed-epochs\n" for n, h in ((1, 12), (2, 6.5), (4, 3.5), (8, 2))
        )
    )
    folder = tmp_path / "cited"
    assert run(import_table, tmp_path / "guide.csv", "--to", folder).exit_code == 0
    out = run(predict, folder, "--rule", rule).stdout
    assert text in out
    assert "diminishing returns from 4 to 8: each added rank gains 64 %" in out
    assert "[cited]" in out


def test_nothing_is_recommended_from_what_an_error_touches(cited):
    done = run(predict, cited, "--case", "guide_a100")
    assert done.return_value == 1
    assert "blocked by check: not-measured" in done.stdout
    assert "recommended:" not in done.stdout
    found = json.loads(run(predict, cited, "--case", "guide_a100", "--json").stdout)
    assert (found["recommendation"], found["blocked_by"]) == (None, ["not-measured"])


def test_the_rules_are_one_json_object(cited):
    found = json.loads(run(predict, cited, "--case", "bertbase_amp", "--json").stdout)
    assert found["chosen"] == found["models"][0]["model"]
    assert found["models"][0]["error"] == min(m["error"] for m in found["models"])
    assert [one["world_size"] for one in found["breaks"]] == [16]
    assert found["points"][0]["karp_flatt"] is None
    assert found["recommendation"] == {
        "rule": "efficiency >= 70 %", "world_size": 8,
        "why": "efficiency 91.4 %, speed-up 7.32",
    }  # fmt: skip
    assert (found["next_step"]["kind"], found["next_step"]["world_sizes"]) == ("stop", [])


EXAMPLES = [
    shlex.split(line)[2:]
    for line in PREDICT_EXAMPLES.splitlines()
    if line.strip().startswith("lockstep predict")
]


@pytest.mark.parametrize("example", EXAMPLES, ids=" ".join)
def test_every_example_of_the_help_works_on_what_was_measured(measured, example):
    assert example[0] == "results/node"
    done = lockstep("predict", measured / "fp32", *example[1:])
    assert (done.stderr, done.returncode) == ("", 1 if "--at" in example else 0)
    said = "2 distinct sizes (1, 2) are fewer than the 4 needed; measure 4 and 8 as well"
    assert said in " ".join(done.stdout.split())


def test_a_measured_ladder_meets_a_deadline_by_its_samples(ladder):
    done = run(predict, ladder, "--rule", "deadline=100", "--samples", 100_000)
    assert "recommended: 2 (fewest ranks done in 100 s): takes 93.8 s" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--at", "16"], 0, ""),
        (["--at", "99"], 1, ""),
        (["--at", "16", "--case", "nothing"], 2, "Error: no series has 'nothing' in its name"),
        (["--rule", "cheap"], 2, "Error: --rule cheap is no rule; give efficiency=FRACTION"),
        (["--at", "0"], 2, "Error: "),
        (["--at", "99999999999999999999"], 2, "Error: --at 99999999999999999999 is no world size"),
        (["--level", "1"], 2, "Error: --level 1 is no share"),
        (["--level", "nan"], 2, "Error: --level nan is no share"),
        (["--rule", "deadline=9", "--samples", "nan"], 2, "Error: --samples nan is no positive"),
        (["--samples", "9"], 2, "Error: --samples serves a deadline or a budget"),
        (["--force"], 2, "Error: --force allows sizes far from those measured; add --at"),
        (["--at", "16", "--rule", "fastest"], 2, "Error: --rule chooses of the sizes measured"),
        (["--at", "16", "--samples", "9"], 2, "Error: --samples chooses of the sizes measured"),
        (["--rule", "efficiency=0"], 2, "Error: --rule efficiency=0: 0 is no positive number"),
        (["--rule", "budget=1"], 2, "Error: test_strong_scaling[workload=mlp-global_batch=64]: "),
    ],
)
def test_the_command_ends_with_the_code_of_what_happened(ladder, arguments, code, said):
    done = lockstep("predict", ladder, *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)


def test_the_level_is_that_of_the_size_expected_next(ladder):
    out = run(predict, ladder, "--level", 0.5).stdout
    assert "50 % interval " in out and "90 % interval" not in out
    found = json.loads(run(predict, ladder, "--level", 0.5, "--json").stdout)["expected"]
    assert found == json.loads(run(predict, ladder, "--at", 16, "--level", 0.5, "--json").stdout)


def test_the_page_draws_what_is_predicted_apart_from_what_was_measured(ladder, tmp_path):
    run(report, ladder)
    page = (ladder / "report.html").read_text()
    assert "Dashed with a hollow mark: by the rule chosen, predicted and not measured" in page
    assert "global_batch=64, amdahl: 25.0 % at 16, 90 % interval" in page
    assert ">by the rule, predicted</text>" in page
    short = strong_tree(tmp_path / "short", {1: (0.1,), 2: (0.06,), 4: (0.04,)})
    run(report, short)
    assert "predicted and not measured" not in (short / "report.html").read_text()


def test_a_caption_names_three_predictions_and_counts_the_rest(tmp_path):
    for count, more in ((3, None), (5, "; and 2 more")):
        tables = [tmp_path / f"{count}-{i}.csv" for i in range(count)]
        for table in tables:
            lines = "".join(f"{n},{1 + 11 / n},time,h,strong\n" for n in SIZES)
            table.write_text(f"GPUs,value,metric,unit,scaling\n{lines}")
        out = tmp_path / f"out-{count}"
        run(import_table, *tables, "--to", out)
        run(report, out)
        (caption,) = re.findall(
            r"predicted and not measured \((.*?)\)\.", (out / "report.html").read_text()
        )
        assert caption.count("90 % interval") == 3
        assert caption.endswith(more) if more else " more" not in caption
