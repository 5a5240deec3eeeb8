import pytest
from data.report_samples import (
    CASE,
    document,
    one_launch,
    provenance,
    record,
    unequal_tree,
    write,
)

from lockstep.report.load.reading import load
from lockstep.vocabulary.records.flags import flag


@pytest.mark.parametrize(
    "fact", ["torch", "cuda", "nccl", "driver", "image_sha256", "suite_sha256"]
)
def test_launches_that_differ_are_not_pooled(tmp_path, fact):
    write(tmp_path, one_launch())
    other = document("w1-r1", 1, {CASE: record()}, provenance=provenance(1, **{fact: "other"}))
    write(tmp_path, other)
    known = provenance().get(fact)
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


def test_cpu_ranks_of_unequal_strength_are_flagged_at_every_size(tmp_path):
    rows = load([unequal_tree(tmp_path, {1: 8, 2: 4, 8: 1})]).rows
    found = flag("unequal-threads", threads={"1": [8], "2": [4], "8": [1]})
    assert str(found).endswith("8 threads at world size 1, 4 at 2, 1 at 8")
    assert [row.flags for row in rows] == [[found]] * 3


def test_repeats_of_unequal_strength_are_flagged(tmp_path):
    for repeat, count in enumerate((2, 1)):
        facts = provenance(1, "cpu", threads_per_rank=count)
        write(tmp_path, document(f"w1-r{repeat}", 1, {CASE: record()}, provenance=facts))
    found = flag("unequal-threads", threads={"1": [1, 2]})
    assert [row.flags for row in load([tmp_path]).rows] == [[found]] * 2


@pytest.mark.parametrize(("threads", "device"), [({1: 1, 8: 1}, "cpu"), ({1: 8, 8: 1}, "cuda:0")])
def test_equal_cpu_ranks_and_gpu_ranks_are_not_flagged(tmp_path, threads, device):
    rows = load([unequal_tree(tmp_path, threads, device)]).rows
    assert [row.flags for row in rows] == [[], []]


def test_a_copy_of_a_launch_is_no_repeat(tmp_path):
    write(tmp_path / "a", one_launch())
    write(tmp_path / "b", one_launch())
    with pytest.raises(ValueError, match="already read from"):
        load([tmp_path / "a", tmp_path / "b"])
