"""The phases of a step: forward, backward, optimizer, and when its first bucket is ready."""

import time
from collections.abc import Iterator

import pytest
import torch
from data.report_samples import document, record, write
from torch import nn

from lockstep.measure import step_cases, variants
from lockstep.measure.train_step import StepConfig, TrainStep
from lockstep.report.compute.point_table import table
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.page.content_of_page import page
from lockstep.world import process_group as world

CPU = torch.device("cpu")
NAP_S = 0.03


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    world.join(device="cpu", threads_per_rank=1)
    yield
    world.leave()


class Nap(torch.autograd.Function):
    """Sleeps in the backward."""

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
def step_of(cap):
    model = nn.Sequential(*(Layer(512, 512, bias=False) for _ in range(3)))
    return TrainStep(model, nn.functional.mse_loss, StepConfig(bucket_cap_mb=cap), CPU)


def test_with_a_smaller_cap_the_first_all_reduce_begins_earlier(group):
    found = {}
    for cap in (1, 100):
        step, batch = step_of(cap), torch.randn(4, 512)
        for _ in range(3):
            step.run(batch, batch)
        own = variants.without_sync(step.ddp, lambda step=step, batch=batch: step.run(batch, batch))
        found[cap] = step_cases._bucket_starts(step, own)
    assert found[1]["first_reduce_s"] < NAP_S
    assert 2 * NAP_S < found[100]["first_reduce_s"] < 3 * NAP_S
    assert [len(found[cap]["bucket_lead_s"]) for cap in (1, 100)] == [3, 1]


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
        one for one in page(load([tmp_path]), series, 0.7)["sections"] if one["id"] == "bucket"
    ]
    (shown,) = section["tables"]
    at = [one["label"] for one in shown["columns"]].index("First all-reduce")
    assert [row[at] for row in shown["rows"]] == ["2.00", "9.00"]
    assert any("smaller cap" in note for note in section["notes"])
