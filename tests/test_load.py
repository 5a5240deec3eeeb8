import itertools
import json
import operator
import shutil
from functools import reduce

import pytest
from data.report_samples import CASE, document, one_launch, read_or_refused, record, write
from planted import ranks

from lockstep.core.record import KEY, case_name
from lockstep.report.check.checker import check
from lockstep.report.columns import table
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import gather, load
from lockstep.report.page.content_of_page import page


def settings(world_size, drift):
    """Return six settings of one sensitivity study and a strong case, each with its own time."""
    factors = [
        {"workload": "mlp", "precision": precision, "bucket_cap_mb": cap}
        for precision in ("fp32", "bf16")
        for cap in (1, 25, 50)
    ]
    cases = {
        f"sensitivity[{index}]": record(
            "sensitivity", world_size, drift * 0.01 * (7 - index) ** 0.5,
            factors=own, precision=own["precision"],
        )
        for index, own in enumerate(factors)
    }  # fmt: skip
    return cases | {CASE: record("strong", world_size, drift * 0.1 / world_size**0.9)}


def tree_of_settings(root, num_parts, skipped=()):
    """Write two sizes of three repeats, each as one launch or as so many parts of one."""
    for world_size, repeat in itertools.product((1, 2), range(3)):
        cases = settings(world_size, 1 + 0.01 * repeat * world_size)
        for number in range(1, num_parts + 1):
            expected = list(cases)[number - 1 :: num_parts]
            mine = {name: cases[name] for name in expected if name not in skipped}
            name = f"w{world_size}-r{repeat}" + (f"-p{number:02d}" if num_parts > 1 else "")
            facts = {"repeat": repeat, "expected": [f"bench/test_x.py::{n}" for n in expected]}
            facts |= {"skipped": [{"case": n, "reason": "no bf16"} for n in skipped]}
            facts |= {"part": [number, num_parts] if num_parts > 1 else None}
            write(root, document(name, world_size, mine, **facts))
    return root


@pytest.mark.parametrize(("num_parts", "skipped"), [(7, ("sensitivity[3]",))])
def test_what_is_measured_in_parts_reports_as_one_launch_of_all_cases(tmp_path, num_parts, skipped):
    def reported(root, num_parts):
        results = load([tree_of_settings(root, num_parts, skipped)])
        series = series_of(results.rows)
        made = page(evaluate(results), 0.8)
        studies = [s for s in made["sections"] if s["id"] in ("strong", "sensitivity")]
        assert len(studies) == 2
        return table(series), studies, made["verdicts"], made["warnings"]

    whole = reported(tmp_path / "whole", 1)
    assert reported(tmp_path / "parts", num_parts) == whole
    assert {point["num_launches"] for point in whole[0]} == {3}
    assert any("Best setting of" in text for text in whole[1][-1]["lead"])


@pytest.mark.parametrize("part", [[3, 2], [1], ["1", 2]])
def test_a_part_that_is_none_is_refused(tmp_path, part):
    path = write(tmp_path, document("w1-r0", 1, {CASE: record()}, part=part))
    with pytest.raises(ValueError, match=f"{path}: (key )?part"):
        load([path])


def test_a_row_holds_the_numbers_of_its_rounds(tmp_path):
    # Rounds of 4 steps, the slowest rank counts: 0.4, 0.8, 0.6 s; median 0.6, so 0.15 s a step.
    rounds = [[0.4, 0.8, 0.5], [0.3, 0.2, 0.6]]
    known = {"peak_memory_bytes": [5, None], "peak_reserved_bytes": [7, 8]}
    known |= {"flop_per_sample": 1e9, "peak_flop_per_s": 1e12}
    case = record(world_size=2, rank_round_s=rounds, **known)
    write(tmp_path, document("w2-r0", 2, {CASE: case}))
    (row,) = load([tmp_path]).rows
    assert row.step_s == pytest.approx(0.15)
    assert row.mean_step_s == pytest.approx(0.15)
    assert (row.min_step_s, row.max_step_s) == (pytest.approx(0.1), pytest.approx(0.2))
    assert row.stddev_step_s == pytest.approx(0.05)
    assert row.throughput_samples_per_s == pytest.approx(64 / 0.15)
    assert row.mfu == pytest.approx(64 / 0.15 * 1e9 / 2e12)
    assert row.rounds == 3
    assert (row.peak_memory_bytes, row.peak_reserved_bytes) == (5, 8)


def test_a_key_that_a_later_release_adds_is_a_detail_of_the_point(tmp_path):
    launch = document("w1-r0", 1, {"a": record()})
    launch["benchmarks"][0]["extra_info"][KEY]["later"] = {"unit": "J"}
    write(tmp_path, launch)
    (point,) = table(series_of(load([tmp_path]).rows))
    assert point["details"]["later"] == [{"unit": "J"}]


def test_a_foreign_benchmark_is_a_time_of_one_process(tmp_path):
    stats = {"median": 0.2, "mean": 0.25, "min": 0.1, "max": 0.4, "stddev": 0.1, "rounds": 7}
    foreign = {"benchmarks": [{"name": "test_sort", "stats": stats}]}
    (tmp_path / "x.json").write_text(json.dumps(foreign))
    (row,) = load([tmp_path]).rows
    assert (row.study, row.world_size, row.step_s, row.rounds) == ("other", 1, 0.2, 7)
    assert row.throughput_samples_per_s is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"benchmarks": [{"name": "a", "stats": {"median": NaN}}]}', "stats"),
        ('{"benchmarks": {}}', "not a pytest-benchmark file"),
        ('{"benchmarks": [{"name": "a"}]}', "entry a: stats"),
        ('{"benchmarks": [{"name": "a", "stats": {"rounds": 3}}]}', "stats: median is missing"),
    ],
)
def test_a_broken_file_is_one_sentence_that_names_it(tmp_path, content, sentence):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=sentence) as caught:
        load([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_case_with_an_impossible_round_is_left_out_and_found(measured, tmp_path):
    """One case of a launch cannot make the others unreadable, nor end all checks."""
    folder = tmp_path / "fp32"
    # A journal that contradicts its result would be read in its stead.
    ignored = shutil.ignore_patterns("journal.jsonl")
    shutil.copytree(measured / "fp32", folder, ignore=ignored)
    path = folder / "launches" / "w2-r0" / "result.json"
    content = json.loads(path.read_text())
    content["benchmarks"][0]["extra_info"][KEY]["rank_round_s"][1][2] = 0.0
    path.write_text(json.dumps(content))
    case = case_name(content["benchmarks"][0])
    results = gather([folder])
    assert [(one.path.parent.name, one.case) for one in results.unread] == [("w2-r0", case)]
    assert "rank_round_s[1][2] is 0.0" in str(results.unread[0])
    assert len(results.rows) == len(gather([measured / "fp32"]).rows) - 1
    (found,) = [one for one in check(results) if one.rule == "unreadable-launch"]
    assert (found.cases, found.world_sizes) == ((case,), (2,))


SHAPES = "timed less often, or on fewer ranks"


@pytest.mark.parametrize(
    ("place", "bad", "sentence"),
    [
        (("schema",), 99, r"entry strong\[64\] has the Lockstep schema 99"),
        (("rank_round_s",), None, r"strong\[64\]: rank_round_s is None"),
        (("rank_round_s", 0, 1), 0.0, r"rank_round_s\[0\]\[1\]"),
        (("rank_round_s",), [[1.0, 2.0], [1.0]], "unequal numbers of rounds"),
        (("details", "rank_variant_s"), {"full": [[1.0] * 24], "own": [[1.0] * 12]}, SHAPES),
        (("details", "rank_variant_s"), {"own": []}, SHAPES),
        (("stats", "median"), "0.1", "stats: median is '0.1'"),
        (("stats", "max"), -1.0, "stats: max is -1.0"),
    ],
)
def test_what_a_case_cannot_have_measured_is_refused(tmp_path, place, bad, sentence):
    content = one_launch()
    *path, last = place
    entry = content["benchmarks"][0]
    held = reduce(operator.getitem, path, entry if path == ["stats"] else entry["extra_info"][KEY])
    held[last] = bad
    with pytest.raises(ValueError, match=sentence):
        load([write(tmp_path, content)])


def test_an_entry_twice_in_a_launch_is_refused(tmp_path):
    content = one_launch()
    content["benchmarks"] *= 2
    with pytest.raises(ValueError, match="occurs twice"):
        load([write(tmp_path, content)])


@pytest.mark.slow
def test_one_wrong_value_anywhere_is_read_or_refused_by_name(tmp_path):
    case = record("collective", 2, details={"algbw_gb_per_s": 1.0, "bucket_bytes": [1]},
                  checks={"precision": "fp32"})  # fmt: skip
    lost = {"skipped": [{"case": "z", "reason": "r"}], "failed": [{"case": "y", "reason": "r"}]}
    content = document("w2-r0", 2, {CASE: case}, provenance=ranks(2), **lost)
    for results in read_or_refused(tmp_path / "fuzzed.json", content, load):
        assert json.dumps(page(evaluate(results), 0.7), allow_nan=False)
