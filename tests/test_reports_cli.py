import csv
import io
import json
import sys

import commands
import pytest
from commands import ROOT, run
from data.report_samples import (
    document,
    full_tree,
    provenance,
    record,
    strong_tree,
    unequal_tree,
    write,
)

from lockstep.report.page.render import MARK
from lockstep.report.report_cli import report

STRONG = "test_strong_scaling[workload=mlp-global_batch=64]"


def lines_of(done):
    return [line.split() for line in done.stdout.splitlines()]


def test_a_report_is_written_beside_the_results_and_the_points_are_printed(tmp_path):
    done = run(report, strong_tree(tmp_path))
    page = tmp_path / "report.html"
    assert page.read_text().count(MARK) == 1
    assert f"report: {page}" in done.stdout
    assert done.stdout.splitlines()[:6] == [
        "all series: mlp, precision=fp32, global_batch=64",
        "series  n  speed-up             efficiency  GPU-h/1e6     throughput  step time",
        "strong  1  baseline               baseline      0.434   640 images/s     100 ms",
        "strong  2      1.60  80.0 % (80.0 to 80.0)      0.543  1020 images/s    62.5 ms",
        "GPU-hours per 1e6 images use the mean step time, since costs add up. Step times",
        "  are medians.",
    ]
    assert done.stdout.splitlines()[-9:] == [
        "Strong scaling:",
        "  2 ranks give 1.60x the 640 images/s of 1 rank (80.0 % efficiency, 80.0 to",
        "    80.0)",
        "  trust: 2 launches a size, none of its 2 points flagged",
        "",
        "next: Measure every point in at least 3 launches, for tight intervals.",
        "check: 0 errors, no warning",
        f"report: {page}",
        f"open the page in a browser: {page.as_uri()}",
    ]
    assert max(map(len, done.stdout.splitlines()[:-2])) <= 80


def test_what_does_no_training_has_no_speedup_anywhere(tmp_path):
    points = json.loads(run(report, full_tree(tmp_path), "--json").stdout)["points"]
    found = [one for one in points if one["study"] in ("collective", "loader")]
    assert len(found) > 4
    for name in ("speedup", "parallel_efficiency", "baseline_world_size"):
        assert {one[name] for one in found} == {None}


def test_csv_is_data_on_stdout_and_nothing_else(tmp_path):
    done = run(report, strong_tree(tmp_path), "--csv")
    records = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [r["world_size"] for r in records] == ["1", "2"]
    assert float(records[1]["parallel_efficiency"]) == pytest.approx(0.8)
    assert float(records[1]["throughput_samples_per_s"]) == pytest.approx(1024)
    for name in ("min_step_s", "max_step_s", "mean_step_s", "step_s", "stddev_step_s", "rounds"):
        assert records[0][name]
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("first", ["=", "\t"])
def test_no_text_in_the_csv_is_a_formula(tmp_path, first):
    hostile = f"{first}cmd|' /C calc'!A1"
    case = record(workload=hostile, flags=[hostile], factors={})
    write(tmp_path, document("w1-r0", 1, {hostile: case}))
    text = io.StringIO(run(report, tmp_path, "--csv").stdout_bytes.decode(), newline="")
    (line,) = csv.DictReader(text)
    for name in ("case", "series", "workload", "flags"):
        assert line[name] == (hostile[1:] if first.isspace() else f"'{hostile}")
    assert float(line["speedup"]) == 1.0


def test_two_campaigns_make_one_report_where_there_is_a_folder_for_it(tmp_path):
    trees = (
        strong_tree(tmp_path / "a"),
        strong_tree(tmp_path / "b", started="2026-11-21T12:00:00+00:00"),
    )
    with pytest.raises(ValueError, match="there is no such folder; create it"):
        run(report, *trees, "--output", tmp_path / "no" / "x.html")
    run(report, *trees, "--output", tmp_path / "both.html")
    assert "8 launches" in (tmp_path / "both.html").read_text()


def test_a_launch_under_another_driver_is_left_out_by_name_and_its_points_keep_the_others(tmp_path):
    strong_tree(tmp_path, {1: (0.1, 0.1001), 2: (0.06, 0.0601)})
    late = {"provenance": provenance(driver="580"), "repeat": 2}
    for size in (1, 2):
        case = record("strong", size, 0.05)
        write(tmp_path, document(f"w{size}-r2", size, {STRONG: case}, **late))
    done = run(report, tmp_path, "--json")
    said = json.loads(done.stdout)
    assert done.return_value == 1
    assert [point["num_launches"] for point in said["points"]] == [2, 2]
    assert said["left_out"] == [
        {"case": STRONG, "world_size": size, "launches": [f"w{size}-r2"]} for size in (1, 2)
    ]
    assert "w1-r2, w2-r2" in done.stderr


@pytest.mark.slow
def test_reading_results_needs_no_torch(tmp_path):
    tree = str(strong_tree(tmp_path))
    code = f"""import sys; sys.modules['torch'] = None
from lockstep.cli import lockstep
for words in (['report', {tree!r}], ['check', {tree!r}], ['compare', {tree!r}, {tree!r}]):
    lockstep.main(words, standalone_mode=False)"""
    done = commands.finish([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_price_gives_every_point_a_cost(tmp_path):
    strong_tree(tmp_path)
    done = run(report, tmp_path, "--cost-per-gpu-hour", "2.5")
    page = (tmp_path / "report.html").read_text()
    # A million images take 0.434 and 0.543 GPU-hours.
    assert [line[-1] for line in lines_of(done)[3:5]] == ["1.09", "1.36"]
    assert '<span class="label">Cost<' in page
    assert "--cost-per-gpu-hour 2.5" in page
    points = json.loads(run(report, tmp_path, "--json").stdout)["points"]
    assert [point["cost"] for point in points] == [None, None]


def test_a_report_of_errors_gives_no_ratio_of_what_they_touch(tmp_path):
    done = run(report, unequal_tree(tmp_path, {1: 8, 8: 1}))
    assert [line[2:4] for line in lines_of(done)[2:4]] == [["baseline", "baseline"], ["-", "-"]]
