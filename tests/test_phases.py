"""The phases of a step: forward, backward, optimizer, and when its first bucket is ready."""

import json
import time
from pathlib import Path

import pytest
import torch
from data.report_samples import document, record, write
from torch import nn

from lockstep.core.record import KEY
from lockstep.measure.step import step_cases, variants
from lockstep.measure.step.train_step import StepConfig, TrainStep
from lockstep.report.columns import table
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.page.content_of_page import page
from lockstep.report.page.curves import phase_table

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]
NAP_S = 0.03


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(NAP_S)
        return gradient


class Layer(nn.Linear):
    def forward(self, inputs):
        return super().forward(Nap.apply(inputs))


# Each layer has 1 MiB of gradients, known before its nap; so the last one's are after two naps.
def test_with_a_smaller_cap_the_first_all_reduce_begins_earlier(group):
    found = {}
    for cap in (1, 100):
        model = nn.Sequential(*(Layer(512, 512, bias=False) for _ in range(3)))
        step = TrainStep(model, nn.functional.mse_loss, StepConfig(bucket_cap_mb=cap), CPU)
        batch = torch.randn(4, 512)
        for _ in range(3):
            step.run(batch, batch)
        own = variants.own_step(step.ddp, lambda step=step, batch=batch: step.run(batch, batch))
        found[cap] = step_cases.bucket_starts(step, own)
    assert found[1]["first_reduce_s"] < NAP_S
    assert 2 * NAP_S < found[100]["first_reduce_s"] < 3 * NAP_S
    assert [len(found[cap]["bucket_lead_s"]) for cap in (1, 100)] == [3, 1]


FORWARD_NAP = """
import time
from dataclasses import replace
from lockstep.workloads.mlp import mlp

def make():
    plain = mlp(width=512, depth=2)
    def loss(outputs, targets):
        time.sleep(0.03)
        return plain.loss(outputs, targets)
    return replace(plain, loss=loss)

def own():
    def step(taken, batch):
        loss = taken.loss(taken.ddp(batch[0]), batch[1])
        loss.backward()
        taken.optimizer.step()
        return loss
    return replace(mlp(width=512, depth=2), step=step)
"""


def measured_step(run_ranks, folder, name, num_ranks):
    (folder / "naps.py").write_text(FORWARD_NAP)
    arguments = [
        *("-m", "pytest", ROOT / "bench", "--size", "smoke", "-m", "weak", "--rounds", "8"),
        *("--workload", f"naps:{name}", "--benchmark-json", "out.json"),
    ]
    ended = run_ranks([arguments] * num_ranks, folder, PYTHONPATH=f"{folder}:{ROOT}")
    assert ended[0].returncode == 0, ended[0].stdout
    (entry,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    return entry["extra_info"][KEY]["details"]


@pytest.mark.slow
def test_phases_add_up_to_the_whole_step_and_a_nap_in_forward_is_seen_there(run_ranks, tmp_path):
    details = measured_step(run_ranks, tmp_path, "make", 2)
    of_ranks, variants = details["rank_phase_s"], details["rank_variant_s"]
    assert set(variants) == {"full", "own", "half", "reduce", "running"}
    assert len({len(turns) for ranks in variants.values() for turns in ranks}) == 1
    assert list(of_ranks) == ["forward", "backward", "optimizer"]
    for rank, turns in enumerate(variants["full"]):
        whole = [
            sum(each) for each in zip(*(of_ranks[name][rank] for name in of_ranks), strict=True)
        ]
        # On a busy machine a rank may wait for a core between two phases, in one turn or another.
        shares = [parts / turn for parts, turn in zip(whole, turns, strict=True)]
        assert max(shares) == pytest.approx(1.0, rel=0.05)
        assert min(of_ranks["forward"][rank]) > NAP_S > max(of_ranks["optimizer"][rank])
    series = series_of(load([tmp_path / "out.json"]).rows)
    (point,) = table(series)
    assert NAP_S < point["forward_s"] < point["step_s"]
    assert point["data_s"] is None  # no batch is drawn
    at = [one["label"] for one in phase_table(series[0])["columns"]]
    assert at[:4] == ["Ranks", "Forward", "Backward", "Optimizer"]


@pytest.mark.slow
def test_a_step_of_the_workloads_own_has_no_phases_that_we_know(run_ranks, tmp_path):
    details = measured_step(run_ranks, tmp_path, "own", 1)
    assert set(details["rank_variant_s"]) == {"full", "own", "half", "running"}
    assert "rank_phase_s" not in details


def test_phases_of_accumulated_batches_add_up():
    marks = variants.Marks(CPU)
    for _ in range(5):  # one untimed, then two turns of two steps
        marks.begin()
        for name in ("forward", "backward", "forward", "backward", "optimizer"):
            time.sleep(0.001)
            marks.end(name)
    found = marks.turn_seconds(2)
    assert {name: len(turns) for name, turns in found.items()} == dict.fromkeys(
        ("forward", "backward", "optimizer"), 2
    )
    assert min(found["forward"]) > 0.002
    assert marks.turn_seconds(0) == {}


def test_the_table_of_buckets_says_when_the_first_all_reduce_begins(tmp_path):
    def case(cap, seconds):
        factors = {"workload": "mlp", "bucket_cap_mb": cap}
        details = {"first_reduce_s": seconds, "bucket_lead_s": [0.0]}
        return record("bucket", 2, factors=factors, details=details)

    cases = {"bucket[1]": case(1, 0.002), "bucket[25]": case(25, 0.009)}
    write(tmp_path, document("w2-r0", 2, cases))
    series = series_of(load([tmp_path]).rows)
    assert [row["first_reduce_s"] for row in table(series)] == [0.002, 0.009]
    (section,) = [
        one for one in page(evaluate(load([tmp_path])), 0.7)["sections"] if one["id"] == "bucket"
    ]
    (shown,) = section["tables"]
    at = [one["label"] for one in shown["columns"]].index("First all-reduce")
    assert [row[at] for row in shown["rows"]] == ["2.00", "9.00"]
    assert any("smaller bucket_cap_mb" in note for note in section["notes"])
