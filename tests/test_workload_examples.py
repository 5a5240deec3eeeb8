"""`examples/workloads` and `examples/own_repository`, measured as their texts say."""

import json
import re
import shlex
import shutil
import sys

import numpy as np
import pytest
import torch
import yaml
from launched import ROOT

from lockstep import workloads
from lockstep.cli import COMMANDS
from lockstep.core import record
from lockstep.core.record import KEY, Basis
from lockstep.measure.causes.bound import pool
from lockstep.measure.causes.division import divide
from lockstep.report.compare.comparison import compare
from lockstep.report.load.reading import load
from lockstep.workloads import Workload, trees

CPU = torch.device("cpu")
EXAMPLES = ROOT / "examples"
SMOKE = ["--size=smoke", "--device=cpu", "--threads-per-rank=1", "--benchmark-json=out.json"]


# The texts of `sequences`, each padded token of which takes 0.2 ms and nothing else much.
PADDED = """
import time
from dataclasses import replace
from lockstep import workloads

def make():
    made = workloads.make("sequences:layers=1,width=4")

    def build():
        model = made.build()
        forward = model.forward

        def padded(tokens, lengths):
            longest = lengths[:, model.num_calls % lengths.shape[1]].max()
            time.sleep(2e-4 * float(longest))
            return forward(tokens[..., :8], lengths.clamp(max=8))

        model.forward = padded
        return model

    return replace(made, build=build)
"""


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


@pytest.mark.chaos
def test_the_imbalance_of_padding_is_named_within_five_points(run_ranks, tmp_path):
    (tmp_path / "padded.py").write_text(PADDED)
    chosen = ["-m", "weak", "--workload", "padded:make", "--rounds=80", "--local-batch=64"]
    launches = []
    # The 24 turns of one launch draw too few of the 16 texts to hit their mean within five points.
    for _ in range(4):
        block = measured(run_ranks, tmp_path, [str(ROOT / "bench"), *chosen])
        timed = block["details"]["rank_variant_s"]
        launches.append({name: np.array(seconds) for name, seconds in timed.items()})
    lengths = torch.stack([
        workloads.make("sequences")
        .make_batch(64, CPU, torch.Generator().manual_seed(1 + rank))[0]["lengths"]
        .max(0).values.float()
        for rank in range(2)
    ])  # fmt: skip
    longest, shortest = lengths.max(0).values.sum(), lengths.min(0).values.sum()
    put_in = float((longest - shortest) / longest)
    found = divide(pool(launches))
    # Beside other processes a step also waits for cores, which is no matter of the padding.
    share = found["imbalance"] / (found["own"] + found["imbalance"])
    sys.stderr.write(f"imbalance of padding: put in {put_in:.3f}, named {share:.3f}\n")
    assert share == pytest.approx(put_in, abs=0.05)


@pytest.mark.chaos
def test_bucketing_by_length_is_shown_to_be_faster(run_ranks, tmp_path):
    for turn, side in enumerate("abbaabba"):
        spec = {"a": "sequences", "b": "sequences:bucketed=1"}[side]
        chosen = ["-m", "weak", "--workload", spec, "--rounds=20", "--local-batch=16"]
        measured(run_ranks, tmp_path, [str(ROOT / "bench"), *chosen])
        (tmp_path / side).mkdir(exist_ok=True)
        (tmp_path / "out.json").rename(tmp_path / side / f"r{turn}.json")
    made = compare(load([tmp_path / "a"]), load([tmp_path / "b"]), allowed=["workload"])
    ((_, judged),) = made.points
    sys.stderr.write(
        f"bucketing by length: {judged.ratio:.2f} times the texts/s, interval {judged.interval}\n"
    )
    # Whether the interval shows it depends on how busy the machine is.
    assert judged.verdict in ("faster", "not-enough-evidence")
    assert judged.ratio > 1


def test_a_repository_of_ones_own_measures_its_test(run_ranks, tmp_path):
    shutil.copytree(EXAMPLES / "own_repository" / "benchmarks", tmp_path / "benchmarks")
    block = measured(run_ranks, tmp_path, ["benchmarks", "-p", "lockstep.launch.hooks"])
    assert (block["world_size"], block["sample_unit"]) == (2, "rows")


def test_its_workflow_gives_commands_that_there_are():
    path = EXAMPLES / "own_repository" / ".github" / "workflows" / "benchmarks.yml"
    (job,) = yaml.safe_load(path.read_text())["jobs"].values()
    given = re.findall(r"lockstep ([a-z]+)", "".join(step.get("run", "") for step in job["steps"]))
    assert given == ["run", "compare"]
    assert set(given) <= set(COMMANDS)


def test_a_batch_is_a_tree_of_tensors():
    batch = {"ids": torch.arange(4), "more": (torch.zeros(4, 2), None)}
    assert trees.num_items(batch) == 4
    halves = trees.pieces(batch, 2)
    assert [half["ids"].tolist() for half in halves] == [[0, 1], [2, 3]]
    assert halves[0]["more"][0].shape == (2, 2)
    with pytest.raises(ValueError, match=r"equal first dimensions, but have \[3, 4\]"):
        trees.num_items([torch.zeros(3), torch.zeros(4)])


def test_a_workload_needs_a_loss_or_a_step():
    with pytest.raises(ValueError, match="neither a loss nor a step"):
        Workload("x", build=torch.nn.Identity, make_batch=lambda *_: (None, None))
