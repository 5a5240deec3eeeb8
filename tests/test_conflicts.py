import pytest
from data.report_samples import CASE, document, one_launch, provenance, record, unequal_tree, write

from lockstep.core.flags import flag
from lockstep.report.check.checker import check, errors
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import gather, load
from lockstep.report.predict.prediction import can_be_modelled


@pytest.mark.parametrize("fact", ["driver", "image_sha256"])
def test_launches_that_differ_are_not_pooled(tmp_path, fact):
    write(tmp_path, one_launch())
    other = document("w1-r1", 1, {CASE: record()}, provenance=provenance(1, **{fact: "other"}))
    write(tmp_path, other)
    known = provenance().get(fact)
    with pytest.raises(ValueError, match=f"w1-r0 and w1-r1 differ in {fact} .{known} and other"):
        load([tmp_path])


@pytest.mark.parametrize(("other", "pools"), [("slurm", False), ("torchrun", True), (None, True)])
def test_ranks_that_srun_binds_are_not_pooled_with_those_of_torchrun(tmp_path, other, pools):
    for repeat, launcher in enumerate(("torchrun", other)):
        facts = provenance(1, launcher=launcher)
        write(tmp_path, document(f"w1-r{repeat}", 1, {CASE: record()}, provenance=facts))
    assert [one.fact for one in gather([tmp_path]).conflicts] == ["launcher"] * (not pools)


@pytest.mark.parametrize(
    ("change", "name"),
    [({"precision": "bf16"}, "precision"),
     ({"global_batch": 128, "world_size": 2}, "global_batch 64 in launch w1-r0, but 128")],
)  # fmt: skip
def test_one_case_name_with_two_meanings_is_refused(tmp_path, change, name):
    write(tmp_path, one_launch())
    size = change.get("world_size", 1)
    write(tmp_path, document(f"w{size}-r1", size, {CASE: record(**change)}))
    with pytest.raises(ValueError, match=f"has {name}"):
        load([tmp_path])


@pytest.mark.parametrize(
    ("batches", "compared"), [({1: 32, 2: 32, 4: 16}, [1, 2]), ({2: 16, 4: 8}, [])]
)
def test_a_smaller_batch_than_asked_for_is_seen_and_compared_with_nothing(
    tmp_path, batches, compared
):
    halved = [size for size, batch in batches.items() if batch < 32]
    for size, batch in batches.items():
        known = {"asked": 32, "measured": batch, "rank": 0, "host": "node1"}
        flags = [flag("smaller-batch", **known).to_dict()] if size in halved else []
        case = record("weak", size, local_batch=batch, global_batch=batch * size,
                      samples_per_step=batch * size, flags=flags)  # fmt: skip
        write(tmp_path, document(f"w{size}-r0", size, {"test_weak_scaling[local_batch=32]": case}))
    results = load([tmp_path])
    assert {row.recorded_case for row in results.rows} == {"test_weak_scaling[local_batch=32]"}
    series = series_of(results.rows)
    found = [[point.world_size for point in one.points] for one in series]
    assert sorted(found) == sorted(filter(None, [compared, *([size] for size in halved)]))
    assert [[p.world_size for p in one.points] for one in series if can_be_modelled(one)] == (
        [compared] if compared else []
    )
    blocked = {place for one in errors(check(results)) for place in one.points}
    assert {size for _, size in blocked} == set(halved)


def test_cpu_ranks_of_unequal_strength_are_flagged_at_every_size(tmp_path):
    rows = load([unequal_tree(tmp_path, {1: 8, 2: 4, 8: 1})]).rows
    found = flag("unequal-threads", threads={"1": [8], "2": [4], "8": [1]})
    assert str(found).endswith("8 threads at world size 1, 4 at 2, 1 at 8")
    assert [row.flags for row in rows] == [[found]] * 3
    for repeat, count in enumerate((2, 1)):
        facts = provenance(1, "cpu", threads_per_rank=count)
        write(tmp_path / "b", document(f"w1-r{repeat}", 1, {CASE: record()}, provenance=facts))
    found = flag("unequal-threads", threads={"1": [1, 2]})
    assert [row.flags for row in load([tmp_path / "b"]).rows] == [[found]] * 2


@pytest.mark.parametrize(("threads", "device"), [({1: 1, 8: 1}, "cpu"), ({1: 8, 8: 1}, "cuda:0")])
def test_equal_cpu_ranks_and_gpu_ranks_are_not_flagged(tmp_path, threads, device):
    rows = load([unequal_tree(tmp_path, threads, device)]).rows
    assert [row.flags for row in rows] == [[], []]
