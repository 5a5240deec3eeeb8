"""The sizes: which cases a study holds, and which batches can be shared out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core import sizes, studies

ALL = pytest.mark.parametrize("name", sizes.SIZES)


@ALL
@pytest.mark.parametrize("study", studies.NAMES)
def test_ids_are_unique_and_say_name_equals_value(name, study):
    rows = studies.rows(study, sizes.find(name))
    ids = [sizes.case_id(row) for row in rows]
    assert len(ids) == len(set(ids)) > 0
    for row, case_id in zip(rows, ids, strict=True):
        assert re.fullmatch(r"[a-z_]+=[^-]+(-[a-z_]+=[^-]+)*", case_id)
        assert case_id.split("-") == [f"{key}={value}" for key, value in row.items()]
        assert list(row) == list(rows[0])  # one signature for all cases of a study


@ALL
def test_the_strong_study_fixes_the_global_batch_and_the_weak_one_the_local(name):
    size = sizes.find(name)
    common = {"workload": size.workload, "precision": "fp32"}
    assert studies.rows("strong", size) == [common | {"global_batch": size.global_batch}]
    assert studies.rows("weak", size) == [common | {"local_batch": size.local_batch}]


def loader_rows(**factors):
    size = sizes.adapt(sizes.find("laptop"), factors=tuple(factors.items()))
    return studies.rows("loader", size)


def test_a_cache_is_asked_about_for_files_alone_and_its_values_are_cases_of_their_own():
    rows = loader_rows(cache=("warm", "cold"), num_workers=(0,))
    assert [row["dataset"] for row in rows] == ["files", "files"]
    assert [row["cache"] for row in rows] == ["warm", "cold"]
    assert len({sizes.case_id(row) for row in rows}) == 2
    rows = loader_rows(cache=("cold",), dataset=("tensor", "files"))
    assert {row["dataset"] for row in rows} == {"files"}
    with pytest.raises(ValueError, match=r"no case of the study loader allows .*=.*; .*=files"):
        loader_rows(dataset=("tensor",), cache=("cold",))


@pytest.mark.parametrize(
    ("factors", "batches"),
    [
        ((), (96, None)),
        ((("global_batch", (64,)),), (64, None)),
        ((("local_batch", (16,)),), (None, 16)),
    ],
)
def test_a_training_has_a_global_batch_or_a_local_one(factors, batches):
    (row,) = studies.rows("train", sizes.adapt(sizes.find("smoke"), factors=factors))
    assert (row["global_batch"], row["local_batch"]) == batches
    both = (("global_batch", (64,)), ("local_batch", (16,)))
    with pytest.raises(ValueError, match="both factors global_batch and local_batch"):
        studies.rows("train", sizes.adapt(sizes.find("smoke"), factors=both))


@given(st.integers(1, 10**6), st.integers(1, 4096))
def test_a_global_batch_is_shared_out_whole_or_refused_with_one_that_can_be(batch, world_size):
    try:
        local_batch = sizes.local_batch_of(batch, world_size)
    except ValueError as error:
        assert batch % world_size != 0
        offered = re.search(r"; choose (\d+)(?: or (\d+))?, or leave that world", str(error))
        near = [int(n) for n in offered.groups() if n]
        assert all(n % world_size == 0 and n > 0 and abs(n - batch) < world_size for n in near)
        assert len(near) == (2 if batch > world_size else 1)
    else:
        assert local_batch * world_size == batch


@pytest.mark.parametrize(
    ("name", "value", "least"), [("rounds", 0, 1), ("local_batch", -4, 1), ("warmup_rounds", -1, 0)]
)
def test_a_count_that_is_not_positive_is_refused(name, value, least):
    with pytest.raises(ValueError, match=rf"^{name}={value} must be {least} or more$"):
        sizes.adapt(sizes.find("smoke"), **{name: value})
