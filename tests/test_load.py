import copy
import functools
import itertools
import json
import math
import os
import time

import pytest
from data.report_samples import (
    document,
    entry,
    provenance,
    record,
    strong_tree,
    unequal_tree,
    write,
)
from hypothesis import given
from hypothesis import strategies as st

from bench.journal import Journal
from bench.record import KEY
from reports.load import load
from reports.page import page
from reports.scaling import series_of, table

CASE = "strong[64]"


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


@pytest.mark.parametrize("num_parts", [2, 3, 7])
@pytest.mark.parametrize("skipped", [(), ("sensitivity[3]",)])
def test_what_is_measured_in_parts_reports_as_one_launch_of_all_cases(tmp_path, num_parts, skipped):
    def reported(root, num_parts):
        results = load([tree_of_settings(root, num_parts, skipped)])
        series = series_of(results.rows)
        made = page(results, series, 0.8)
        studies = [s for s in made["sections"] if s["id"] in ("strong", "sensitivity")]
        assert len(studies) == 2
        return table(series), studies, made["verdicts"], made["warnings"]

    whole = reported(tmp_path / "whole", 1)
    assert reported(tmp_path / "parts", num_parts) == whole
    assert {point["num_launches"] for point in whole[0]} == {3}
    assert any("Best setting of" in text for text in whole[1][-1]["lead"])


def test_parts_that_start_in_the_same_second_need_no_name(tmp_path):
    for number in (1, 2):
        part = document("", 1, {f"case {number}": record()}, part=[number, 2])
        (tmp_path / f"{number}.json").write_text(json.dumps(part))
    assert len(load([tmp_path]).rows) == 2


@pytest.mark.parametrize("part", [[0, 2], [3, 2], [1], [1, 2, 3], ["1", 2], "1/2"])
def test_a_part_that_is_none_is_refused(tmp_path, part):
    path = write(tmp_path, document("w1-r0", 1, {CASE: record()}, part=part))
    with pytest.raises(ValueError, match=f"{path}: part "):
        load([path])


def one_launch(**changes):
    return document("w1-r0", 1, {CASE: record(**changes)})


def test_a_campaign_becomes_one_row_per_case_and_launch(tmp_path):
    results = load([strong_tree(tmp_path)])
    assert [launch.name for launch in results.launches] == ["w1-r0", "w1-r1", "w2-r0", "w2-r1"]
    assert [(row.launch, row.world_size) for row in results.rows] == [
        ("w1-r0", 1), ("w1-r1", 1), ("w2-r0", 2), ("w2-r1", 2),
    ]  # fmt: skip
    assert all(row.origin == "measured" for row in results.rows)


def test_a_row_holds_the_numbers_of_its_rounds(tmp_path):
    # Rounds of 4 steps, the slowest rank counts: 0.4, 0.8, 0.6 s; median 0.6, so 0.15 s a step.
    rounds = [[0.4, 0.8, 0.5], [0.3, 0.2, 0.6]]
    case = record(world_size=2, rank_round_s=rounds, peak_memory_bytes=[5, None])
    write(tmp_path, document("w2-r0", 2, {CASE: case}))
    (row,) = load([tmp_path]).rows
    assert row.step_s == pytest.approx(0.15)
    assert row.mean_step_s == pytest.approx(0.15)
    assert (row.min_step_s, row.max_step_s) == (pytest.approx(0.1), pytest.approx(0.2))
    assert row.stddev_step_s == pytest.approx(0.05)
    assert row.throughput_samples_per_s == pytest.approx(64 / 0.15)
    assert row.imbalance == pytest.approx(1.7 / 1.4)
    assert row.rounds == 3
    assert row.peak_memory_bytes == 5


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.integers(1, 10_000))
def test_throughput_times_step_time_is_samples(tmp_path_factory, rounds, samples):
    root = tmp_path_factory.mktemp("tree")
    case = record(rank_round_s=[rounds], samples_per_step=samples)
    write(root, document("w1-r0", 1, {CASE: case}))
    (row,) = load([root]).rows
    assert row.throughput_samples_per_s * row.step_s == pytest.approx(samples)


def test_mfu_follows_from_the_median_step(tmp_path):
    case = record(flop_per_sample=1e9, peak_flop_per_s=1e12, step_s=0.1)
    write(tmp_path, document("w1-r0", 1, {CASE: case}))
    assert load([tmp_path]).rows[0].mfu == pytest.approx(0.64)


def test_an_unknown_peak_gives_no_mfu(tmp_path):
    write(tmp_path, one_launch())
    assert load([tmp_path]).rows[0].mfu is None


def test_a_single_file_is_read(tmp_path):
    path = write(tmp_path, one_launch())
    assert len(load([path]).rows) == 1


def test_a_folder_of_benchmark_files_is_read(tmp_path):
    (tmp_path / "0001_a.json").write_text(json.dumps(one_launch()))
    (tmp_path / "0002_b.json").write_text(json.dumps(document("w1-r1", 1, {CASE: record()})))
    assert len(load([tmp_path]).launches) == 2


def test_a_foreign_benchmark_is_a_time_of_one_process(tmp_path):
    stats = {"median": 0.2, "mean": 0.25, "min": 0.1, "max": 0.4, "stddev": 0.1, "rounds": 7}
    foreign = {"benchmarks": [{"name": "test_sort", "stats": stats}]}
    (tmp_path / "x.json").write_text(json.dumps(foreign))
    (row,) = load([tmp_path]).rows
    assert (row.study, row.world_size, row.step_s, row.rounds) == ("other", 1, 0.2, 7)
    assert row.throughput_samples_per_s is None


def write_journal(folder, content, **header):
    """Write the journal of a launch that was killed before its last case."""
    own = content[KEY]
    launch = {k: own[k] for k in ("launch", "campaign", "started", "world_size", "provenance")}
    journal = Journal(folder / "journal.jsonl")
    head = {"kind": "launch", "resumed": False, "schema": own["schema"], "launch": launch}
    journal.append(head | {"expected": [CASE, "never reached"], "document": {}} | header)
    for benchmark in content["benchmarks"]:
        journal.append({"kind": "case", "case": benchmark["name"], "benchmark": benchmark})
    journal.close()


def test_a_killed_launch_is_rebuilt_from_its_journal(tmp_path):
    write_journal(tmp_path / "launches" / "w1-r0", one_launch())
    results = load([tmp_path])
    assert not results.launches[0].complete
    assert results.rows[0].step_s == pytest.approx(0.1)


def test_a_folder_that_holds_nothing_but_a_journal_is_a_launch(tmp_path):
    folder = tmp_path / "20261120T120000Z"
    write_journal(folder, one_launch(), launch={"world_size": 1, "provenance": provenance()})
    results = load([folder])
    assert [launch.name for launch in results.launches] == [folder.name]
    assert [row.case for row in results.rows] == [CASE]


def test_a_launch_resumed_and_killed_is_read_from_its_journal(tmp_path):
    path = write(tmp_path, one_launch())
    more = document("w1-r0", 1, {CASE: record(), "measured later": record()})
    write_journal(path.parent, more)
    os.utime(path, (1, 1))
    assert [row.case for row in load([tmp_path]).rows] == [CASE, "measured later"]


@pytest.mark.parametrize("journal_s", [0, 1])
def test_a_result_that_is_no_older_is_preferred_to_the_journal(tmp_path, journal_s):
    path = write(tmp_path, one_launch())
    journal = path.with_name("journal.jsonl")
    journal.write_text("not read")
    os.utime(journal, (journal_s, journal_s))
    os.utime(path, (1, 1))
    assert len(load([tmp_path]).rows) == 1


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere: no such file or folder"):
        load([tmp_path / "nowhere"])


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no launch"):
        load([tmp_path])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "the file is empty"),
        ("  \n", "the file is empty"),
        ('{"benchmarks": [', "cut short"),
        ('{"benchmarks": [{"name": "a", "stats": {"median": NaN}}]}', "NaN is not a JSON number"),
        ("[1, 2]", "not a pytest-benchmark file"),
        ('{"benchmarks": {}}', "not a pytest-benchmark file"),
        ('{"benchmarks": [3]}', "entry 0 is no pytest-benchmark entry"),
        ('{"benchmarks": [{"name": "a"}]}', "entry a has no stats"),
        ('{"benchmarks": [{"name": "a", "stats": {"rounds": 3}}]}', "incomplete stats"),
    ],
)
def test_a_broken_file_is_one_sentence_that_names_it(tmp_path, content, sentence):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=sentence) as caught:
        load([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_training_run_is_refused_by_its_name(tmp_path):
    summary = {"schema": 1, "config": {}, "epoch_plan": {}, "step_losses": [], "epochs": []}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ValueError, match=r"training run of `lockstep train`; report reads") as got:
        load([tmp_path])
    assert str(tmp_path / "summary.json") in str(got.value)


def test_a_cut_file_is_refused_wherever_it_was_cut(tmp_path):
    text = json.dumps(one_launch())
    path = tmp_path / "cut.json"
    for length in range(0, len(text) - 1, 97):
        path.write_text(text[:length])
        with pytest.raises(ValueError, match=r"cut\.json"):
            load([path])


def test_another_schema_is_refused(tmp_path):
    content = one_launch()
    content["benchmarks"][0]["extra_info"][KEY]["schema"] = 99
    with pytest.raises(ValueError, match=r"entry strong\[64\]: lockstep schema 99"):
        load([write(tmp_path, content)])


def test_another_schema_of_the_launch_is_refused(tmp_path):
    content = one_launch()
    content[KEY]["schema"] = 0
    with pytest.raises(ValueError, match="lockstep schema 0"):
        load([write(tmp_path, content)])


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_round_that_is_no_time_is_refused(tmp_path, bad):
    content = one_launch()
    content["benchmarks"][0]["extra_info"][KEY]["rank_round_s"][0][1] = bad
    with pytest.raises(ValueError, match="not a positive time"):
        load([write(tmp_path, content)])


@pytest.mark.parametrize("bad", [None, 3, [1.0], [["x"]], [[None]], [[[1.0]]]])
def test_rounds_that_are_no_numbers_are_refused(tmp_path, bad):
    content = one_launch()
    content["benchmarks"][0]["extra_info"][KEY]["rank_round_s"] = bad
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=r"strong\[64\]") as caught:
        load([path])
    assert str(path) in str(caught.value)


def test_ranks_with_different_rounds_are_refused(tmp_path):
    content = one_launch()
    content["benchmarks"][0]["extra_info"][KEY]["rank_round_s"] = [[1.0, 2.0], [1.0]]
    with pytest.raises(ValueError, match="same number of rounds"):
        load([write(tmp_path, content)])


def test_an_entry_twice_in_a_launch_is_refused(tmp_path):
    content = one_launch()
    content["benchmarks"] *= 2
    with pytest.raises(ValueError, match="stands there twice"):
        load([write(tmp_path, content)])


@pytest.mark.parametrize("fact", ["torch", "cuda", "nccl", "driver", "image_sha256"])
def test_launches_that_differ_are_not_pooled(tmp_path, fact):
    write(tmp_path, one_launch())
    other = document("w1-r1", 1, {CASE: record()}, provenance=provenance(1, **{fact: "other"}))
    write(tmp_path, other)
    known = provenance()[fact]
    with pytest.raises(ValueError, match=f"w1-r0 and w1-r1 differ in {fact} .{known} and other"):
        load([tmp_path])


@pytest.mark.parametrize(
    ("change", "name"),
    [({"precision": "bf16"}, "precision"), ({"workload": "cnn"}, "workload"),
     ({"global_batch": 128}, "global_batch")],
)  # fmt: skip
def test_one_case_name_with_two_meanings_is_refused(tmp_path, change, name):
    write(tmp_path, one_launch())
    write(tmp_path, document("w1-r1", 1, {CASE: record(**change)}))
    with pytest.raises(ValueError, match=f"has {name}"):
        load([tmp_path])


def test_a_strong_series_keeps_its_global_batch(tmp_path):
    write(tmp_path, one_launch())
    write(tmp_path, document("w2-r0", 2, {CASE: record(world_size=2, global_batch=128)}))
    with pytest.raises(ValueError, match="has global_batch 64 in launch w1-r0 and 128"):
        load([tmp_path])


@pytest.mark.parametrize(
    ("campaign", "sentence"),
    [("[]", "holds no campaign"), ('{"schema": 7}', "schema 7"),
     ('{"schema": 1, "launches": [3]}', "launches holds 3"), ("{", "cut short")],
)  # fmt: skip
def test_a_broken_campaign_file_is_refused(tmp_path, campaign, sentence):
    write(tmp_path, one_launch())
    (tmp_path / "campaign.json").write_text(campaign)
    with pytest.raises(ValueError, match=sentence) as caught:
        load([tmp_path])
    assert "campaign.json" in str(caught.value)


def test_cpu_ranks_of_unequal_strength_are_flagged_at_every_size(tmp_path):
    rows = load([unequal_tree(tmp_path, {1: 8, 2: 4, 8: 1})]).rows
    flag = "ranks of unequal strength: 8 threads at world size 1, 4 at 2, 1 at 8"
    assert [row.flags for row in rows] == [[flag]] * 3


def test_repeats_of_unequal_strength_are_flagged(tmp_path):
    for repeat, count in enumerate((2, 1)):
        facts = provenance(1, "cpu", threads_per_rank=count)
        write(tmp_path, document(f"w1-r{repeat}", 1, {CASE: record()}, provenance=facts))
    flag = "ranks of unequal strength: 1 and 2 threads at world size 1"
    assert [row.flags for row in load([tmp_path]).rows] == [[flag]] * 2


@pytest.mark.parametrize(("threads", "device"), [({1: 1, 8: 1}, "cpu"), ({1: 8, 8: 1}, "cuda:0")])
def test_equal_cpu_ranks_and_gpu_ranks_are_not_flagged(tmp_path, threads, device):
    rows = load([unequal_tree(tmp_path, threads, device)]).rows
    assert [row.flags for row in rows] == [[], []]


def test_a_copy_of_a_launch_is_no_repeat(tmp_path):
    write(tmp_path / "a", one_launch())
    write(tmp_path / "b", one_launch())
    with pytest.raises(ValueError, match="already read from"):
        load([tmp_path / "a", tmp_path / "b"])


def test_a_folder_given_twice_is_read_once(tmp_path):
    write(tmp_path, one_launch())
    assert len(load([tmp_path, tmp_path]).rows) == 1


def test_equal_names_of_other_campaigns_are_told_apart(tmp_path):
    write(tmp_path / "a", one_launch())
    other = one_launch()
    other[KEY]["started"] = "2026-11-21T12:00:00+00:00"
    write(tmp_path / "b", other)
    names = [launch.name for launch in load([tmp_path / "a", tmp_path / "b"]).launches]
    assert len(set(names)) == 2


def test_a_launch_without_a_finished_case_still_counts(tmp_path):
    write(tmp_path, document("w1-r0", 1, {}, complete=False))
    results = load([tmp_path])
    assert (len(results.launches), results.rows) == (1, [])


def test_loading_grows_with_the_number_of_entries_and_no_faster(tmp_path):
    def seconds(count):
        entries = [entry(f"c[{i}]", record(factors={"i": i})) for i in range(count)]
        path = tmp_path / f"{count}.json"
        path.write_text(json.dumps({"benchmarks": entries}))
        best = math.inf
        for _ in range(3):
            start = time.perf_counter()
            load([path])
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(2000) < 40 * seconds(200)


def positions(value, path=()):
    """Yield the place of every value in a JSON document."""
    if path:
        yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from positions(value[key], (*path, key))


@pytest.mark.slow
def test_one_wrong_value_anywhere_is_read_or_refused_by_name(tmp_path):
    case = record("collective", 2, details={"algbw_gb_per_s": 1.0, "bucket_bytes": [1]})
    content = document("w2-r0", 2, {CASE: case}, skipped=[{"case": "z", "reason": "r"}])
    path = tmp_path / "fuzzed.json"
    for place in positions(content):
        for value in (None, "x", -1, 0, [], {}, 1e308, True, [[]]):
            changed = copy.deepcopy(content)
            holder = functools.reduce(lambda inner, key: inner[key], place[:-1], changed)
            holder[place[-1]] = value
            path.write_text(json.dumps(changed))
            try:
                results = load([path])
            except ValueError as error:
                assert "fuzzed.json" in str(error), (place, value)
            else:
                series = series_of(results.rows)
                assert json.dumps(page(results, series, 0.7), allow_nan=False)


def test_a_launch_whose_result_was_cut_is_read_from_its_journal_or_left_out(tmp_path):
    strong_tree(tmp_path)
    whole = load([tmp_path])
    assert whole.unread == []
    first, second = sorted(tmp_path.glob("launches/*/result.json"))[:2]
    for path in (first, second):
        os.truncate(path, 100)
    write_journal(first.parent, one_launch())
    os.utime(first.parent / "journal.jsonl", (0, 0))  # older than the result that was cut
    found = load([tmp_path])
    assert len(found.launches) == len(whole.launches) - 1
    assert first.parent.name in [launch.path.parent.name for launch in found.launches]
    (why,) = found.unread
    assert why.startswith(f"{second}: not valid JSON, perhaps cut short: ")
    shown = str(page(found, series_of(found.rows), 0.7))
    assert "Not in this report, for it cannot be read: " in shown


def test_a_folder_of_which_nothing_can_be_read_is_refused(tmp_path):
    strong_tree(tmp_path)
    for path in tmp_path.glob("launches/*/result.json"):
        os.truncate(path, 100)
    with pytest.raises(ValueError, match="perhaps cut short"):
        load([tmp_path])
