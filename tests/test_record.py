import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core import record
from lockstep.core.record import Basis, CaseRecord
from lockstep.machine import provenance
from lockstep.report.load.contents import check_value, json_schema

SCHEMA = json_schema()

STEP = {
    "study": "weak", "workload": "resnet18", "scaling": "weak", "world_size": 2, "num_nodes": 1,
    "factors": {"workload": "resnet18", "local_batch": 32}, "sample_unit": "images",
    "samples_per_step": 64, "steps_per_round": 4,
    "rank_round_s": [[1.0, 2.0, 1.5], [1.25, 1.0, 2.0]], "precision": "fp32", "local_batch": 32,
    "global_batch": 64, "flop_per_sample": 2e8, "peak_flop_per_s": 1e12,
    "peak_memory_bytes": [600, None], "checks": {"parameters_equal": True},
    "details": {"bucket_bytes": [44_700_000]}, "flags": ["oversubscribed"],
}  # fmt: skip
COLLECTIVE = {
    "study": "collective", "workload": "all_reduce", "scaling": None, "world_size": 1,
    "num_nodes": 1, "factors": {"message_bytes": 1024}, "sample_unit": "bytes",
    "samples_per_step": 1024, "steps_per_round": 10, "rank_round_s": [[0.5]],
}  # fmt: skip
PROVENANCE = {
    "hostname": "laptop", "torch": "2.6.0", "cuda": None, "nccl": None, "driver": None,
    "image_sha256": None, "device_names": ["AMD EPYC"],
    "ranks": [{"rank": 0, "local_rank": 0, "host": "laptop", "device": "cpu", "device_name": "x"}],
}  # fmt: skip
LAUNCH = {
    "schema": 1, "complete": True, "launch": "w2-r0", "campaign": "laptop", "repeat": 0,
    "size": "laptop", "world_size": 2, "num_nodes": 1, "started": "2026-11-20T12:00:00+00:00",
    "provenance": PROVENANCE,
    "expected": ["bench/test_precision.py::test_precision[precision=fp16]"],
    "skipped": [{"case": "test_precision[precision=fp16]", "reason": "fp16 needs a GPU"}],
    "failed": [],
}  # fmt: skip


def validator(part=None):
    schema = {"$ref": f"#/$defs/{part}", "$defs": SCHEMA["$defs"]} if part else SCHEMA
    return jsonschema.Draft202012Validator(schema)


@st.composite
def records(draw):
    """Return a record of 1 to 8 ranks with any times and counts a launch could have."""
    num_ranks = draw(st.integers(1, 8))
    num_rounds = draw(st.integers(1, 12))
    rounds = st.lists(st.floats(1e-6, 1e4), min_size=num_rounds, max_size=num_rounds)
    return CaseRecord(
        **COLLECTIVE
        | {
            "world_size": num_ranks,
            "samples_per_step": draw(st.integers(1, 2**40)),
            "steps_per_round": draw(st.integers(1, 1000)),
            "rank_round_s": draw(st.lists(rounds, min_size=num_ranks, max_size=num_ranks)),
            "flop_per_sample": draw(st.none() | st.floats(1, 1e15)),
            "peak_flop_per_s": draw(st.none() | st.floats(1e9, 1e16)),
        }
    )


def test_derived_numbers_are_those_computed_by_hand():
    block = CaseRecord(**STEP).to_dict()
    # Slowest rank per round: 1.25, 2.0, 2.0 s. 3 rounds of 4 steps of 64 images.
    assert block["elapsed_s"] == 5.25
    assert block["samples"] == 768
    assert block["mean_throughput_samples_per_s"] == pytest.approx(146.2857142857)
    # 146.2857 images/s x 2e8 FLOP over 2 ranks of 1e12 FLOP/s.
    assert block["mean_mfu"] == pytest.approx(0.01462857142857)


@given(records())
def test_throughput_times_time_is_samples(case):
    block = case.to_dict()
    slowest = [max(rank[i] for rank in case.rank_round_s) for i in range(len(case.rank_round_s[0]))]
    assert block["elapsed_s"] == pytest.approx(sum(slowest), rel=1e-12)
    assert block["samples"] == case.samples_per_step * case.steps_per_round * len(slowest)
    product = block["mean_throughput_samples_per_s"] * block["elapsed_s"]
    assert product == pytest.approx(block["samples"], rel=1e-12)


@given(records())
def test_a_record_survives_json_and_fits_the_schema(case):
    block = json.loads(json.dumps(case.to_dict(), allow_nan=False))
    validator().validate(block)
    assert check_value(CaseRecord, block, "x.json") == case


def test_the_schema_names_every_key_of_the_block():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(CaseRecord(**STEP).to_dict())
    assert set(record.POOLING_FACTS) <= set(SCHEMA["$defs"]["Provenance"]["properties"])


@pytest.mark.parametrize(
    "change",
    [{"schema": 2}, {"world_size": 0}, {"rank_round_s": [1.0, 2.0]}, {"mean_mfu": -0.1}],
    ids=str,
)
def test_the_schema_refuses(change):
    block = CaseRecord(**STEP).to_dict()
    validator().validate(block)
    assert not validator().is_valid(block | change)


def test_the_schema_describes_a_launch():
    validator("launch").validate(LAUNCH)
    assert not validator("launch").is_valid(LAUNCH | {"world_size": 0})
    assert not validator("launch").is_valid(LAUNCH | {"skipped": [{"reason": "no case"}]})


def test_the_schema_describes_this_machines_provenance():
    import torch

    rank = provenance.rank_facts(0, 0, torch.device("cpu"))
    facts = provenance.launch_provenance(provenance.launch_facts(0, ["pytest"]), [rank])
    validator("Provenance").validate(facts)
    assert set(facts) == set(SCHEMA["$defs"]["Provenance"]["properties"])
    assert set(rank) == set(SCHEMA["$defs"]["RankFacts"]["properties"])


def test_a_reader_leaves_unknown_keys_aside_and_needs_no_key_with_a_default():
    block = {key: value for key, value in STEP.items() if key in COLLECTIVE} | {"later": 1}
    assert check_value(CaseRecord, block, "x.json").precision is None


@pytest.mark.parametrize("version", [None, 2])
def test_another_schema_version_is_refused(version):
    with pytest.raises(ValueError, match=rf"^a\.json has the Lockstep schema {version!r}, but"):
        record.check_schema({"schema": version}, "a.json")


@pytest.mark.parametrize("name", COLLECTIVE)
def test_a_missing_field_is_named_with_its_place(name):
    block = CaseRecord(**STEP).to_dict()
    del block[name]
    with pytest.raises(ValueError, match=rf"^a\.json: entry b: {name} is missing"):
        check_value(CaseRecord, block, "a.json: entry b")


@pytest.mark.parametrize("name", ["test_a", "test_a[x=1]", "test_a[world_size=4]"])
def test_a_name_tells_world_sizes_apart_and_a_case_keeps_its_own(name):
    entry = {"name": record.sized_name(name, 2), "extra_info": {record.KEY: {"world_size": 2}}}
    assert entry["name"].endswith("world_size=2]")
    assert record.case_name(entry) == name
    assert record.case_name(entry | {"name": name}) == name  # as older files have it
    assert record.case_name({"name": entry["name"]}) == entry["name"]  # a benchmark of others


@pytest.mark.parametrize(
    ("given", "found", "is_bound"),
    [
        (Basis("synthetic", False, "SGD").to_dict(), Basis("synthetic", False, "SGD"), True),
        (Basis("real", True, "SGD").to_dict(), Basis("real", True, "SGD"), False),
        # Of older results, of a step of the user's own, and of a stranger's file.
        ({"data": "synthetic", "input": "not timed"}, Basis("synthetic", False), True),
        ({"data": ["x"], "times_input": "no", "optimizer": 3}, Basis(), None),
    ],
)
def test_a_basis_says_whether_it_is_an_upper_bound_for_production(given, found, is_bound):
    assert record.basis_of({"basis": given}) == found
    assert found.is_bound is is_bound
