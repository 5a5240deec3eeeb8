"""`examples/workloads` and `examples/own_repository`, measured as their texts say."""

import json
import re
import shlex
import shutil

import pytest
import torch
from launched import ROOT

from lockstep.core import record
from lockstep.core.record import KEY, Basis
from lockstep.workloads import Workload, trees

EXAMPLES = ROOT / "examples"
SMOKE = ["--size=smoke", "--device=cpu", "--threads-per-rank=1", "--benchmark-json=out.json"]


def measured(run_ranks, tmp_path, arguments):
    path = f"{EXAMPLES / 'workloads'}:{ROOT}"
    ended = run_ranks([["-m", "pytest", *arguments, *SMOKE]] * 2, tmp_path, PYTHONPATH=path)
    assert [rank.returncode for rank in ended] == [0] * 2, ended[0].stdout
    (entry,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    return entry["extra_info"][KEY]


@pytest.mark.parametrize("name", ["own_step", "dict_module"])
def test_a_workload_with_more_than_a_loss_is_measured(name, run_ranks, tmp_path):
    text = (EXAMPLES / "workloads" / f"{name}.py").read_text()
    (line,) = re.findall(r"^PYTHONPATH=examples/workloads pytest bench/ (.*)$", text, re.MULTILINE)
    block = measured(run_ranks, tmp_path, [str(ROOT / "bench"), *shlex.split(line)])
    assert record.basis_of(block["details"]) == Basis(None, times_input=False, optimizer="AdamW")
    # What a hook sends is not known, so there is no all-reduce to compare with.
    hooked = name == "own_step"
    assert ("reduce" in block["details"]["rank_variant_s"]) is not hooked
    assert block["checks"]["loss_last"] < block["checks"]["loss_first"]
    assert re.fullmatch(r"[0-9a-f]{64}", block["workload_sha256"])


def test_the_optimizer_is_a_factor_of_the_timed_step(run_ranks, tmp_path):
    chosen = ["-m", "weak", "--set=optimizer=adamw", "--set=fused=true"]
    block = measured(run_ranks, tmp_path, [str(ROOT / "bench"), *chosen])
    assert block["factors"]["optimizer"] == "adamw"
    assert record.basis_of(block["details"]).optimizer == "AdamW"


def test_a_repository_of_ones_own_measures_its_test(run_ranks, tmp_path):
    shutil.copytree(EXAMPLES / "own_repository" / "benchmarks", tmp_path / "benchmarks")
    block = measured(run_ranks, tmp_path, ["benchmarks", "-p", "lockstep.launch.hooks"])
    assert (block["world_size"], block["sample_unit"]) == (2, "rows")


def test_a_batch_is_a_tree_of_tensors():
    batch = {"ids": torch.arange(4), "more": (torch.zeros(4, 2), None)}
    assert trees.num_items(batch) == 4
    halves = trees.pieces(batch, 2)
    assert [half["ids"].tolist() for half in halves] == [[0, 1], [2, 3]]
    assert halves[0]["more"][0].shape == (2, 2)
    with pytest.raises(ValueError, match=r"but the first dimensions are \[3, 4\]"):
        trees.num_items([torch.zeros(3), torch.zeros(4)])


def test_a_workload_needs_a_loss_or_a_step():
    with pytest.raises(ValueError, match="neither a loss nor a step"):
        Workload("x", build=torch.nn.Identity, make_batch=lambda *_: (None, None))
