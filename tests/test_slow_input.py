"""A slow input, really measured: a card that says so, and a gate that fails for it."""

from pathlib import Path

import pytest
from commands import lockstep
from launched import environ

from lockstep.measure.causes.card import LATE_NEXT
from lockstep.report.check.checker import check
from lockstep.report.columns import table
from lockstep.report.compute.scaling import series_of
from lockstep.report.gate import gates
from lockstep.report.gate.targets import Targets
from lockstep.report.load.reading import load
from lockstep.report.words import verdict_card

ROOT = Path(__file__).parents[1]
NAP_S = 0.05
OWN_STEP = f"""
import os
import time
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

class Slow:
    def __init__(self, ranks):
        self.nap_s = {NAP_S} if os.environ["RANK"] in ranks else 0

    def __iter__(self):
        for _ in range(4):
            time.sleep(self.nap_s)
            yield torch.ones(8, 64)

@pytest.mark.parametrize("ranks", ["01", "1"])
def test_mine(lockstep, ranks):
    model = DistributedDataParallel(torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(batch):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    lockstep.measure(step, samples=8, batches=Slow(ranks), ddp=model)
"""
WITH_WORKERS = f"""
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep({NAP_S})
        return torch.ones(64)

def test_mine(lockstep):
    model = torch.nn.Linear(64, 1)
    batches = DataLoader(Slow(), batch_size=1, num_workers=3, persistent_workers=True)
    lockstep.measure(lambda batch: model(batch).sum().backward(), samples=1, batches=batches)
"""
# Slow once the first epoch is over, which the study goes through to count its samples.
LOADING = """
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
import pytest
from torch import nn
from lockstep.measure.loading import data, loader_cases

class Eater(nn.Sequential):
    def forward(self, images):
        time.sleep(0.03)
        return super().forward(images)

def eater(name):
    return SimpleNamespace(build=lambda: Eater(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)))

class Slow(data.ImageDataset):
    def __init__(self, images, nap_s):
        vars(self).update(vars(images), nap_s=nap_s, num_given=0)

    def __getitem__(self, index):
        self.num_given += 1
        time.sleep(self.nap_s if self.num_given > len(self) else 0)
        return super().__getitem__(index)

@pytest.mark.parametrize("nap_s", [0.0, 0.3])
def test_loading(lockstep, monkeypatch, nap_s):
    fast = loader_cases._images

    @contextmanager
    def slow(*of):
        with fast(*of) as images:
            yield Slow(images, nap_s)

    monkeypatch.setattr(loader_cases.workloads, "make", eater)  # as long on a busy machine
    monkeypatch.setattr(loader_cases, "_images", slow)
    loader_cases.measure_loading(
        replace(lockstep, study="loader"), dataset="tensor", local_batch=1, num_workers=0,
        pin_memory=False, persistent_workers=False, prefetch_factor=None,
    )
"""


def measured_of(folder, source, *options):
    (folder / "mine").mkdir()
    (folder / "mine" / "test_mine.py").write_text(source)
    options = ("run", "--tests", "mine", *options, "--size", "smoke", "--device", "cpu")
    ended = lockstep(*options, cwd=folder, env=environ(ROOT), timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return load([folder / "results" / "mine"])


@pytest.mark.slow
def test_a_step_is_found_to_wait_for_its_input_and_for_that_of_one_rank_by_name(tmp_path):
    options = ("--world-sizes", "2", "--repeats", "1", "--rounds", "20")
    both, one = series_of(measured_of(tmp_path, OWN_STEP, *options).rows)
    judged, late = (verdict_card.judge([series], 0.7) for series in (both, one))
    assert [each.bound.kind for each in (judged, late)] == ["input", "input"]
    assert "input" in judged.lines()[0]
    (point,) = table([both])
    assert point["data_s"] > 0.9 * NAP_S  # a busy machine sleeps longer
    assert point["overlap"] is not None
    # All ranks wait for theirs alike, or one alone.
    assert (judged.bound.late, late.bound.late.rank) == (None, 1)
    (flag,) = (flag for flag in one.row.flags if flag.kind == "late-input")
    assert (flag.values["rank"], flag.values["host"]) == (1, one.row.rank_hosts[1])
    assert flag.values["wait_s"] > 0.9 * NAP_S > flag.values["others_s"]
    assert any(LATE_NEXT in line for line in late.lines())


@pytest.mark.slow
def test_a_step_takes_as_long_as_workers_that_deliver_in_bursts_need(tmp_path):
    options = ("--world-sizes", "1", "--repeats", "1", "--rounds", "20")
    (row,) = measured_of(tmp_path, WITH_WORKERS, *options).rows
    assert row.steps_per_round == 3  # smoke has two: a round would meet one burst, two or none
    assert row.step_s > 0.9 * NAP_S / 3
    assert row.details["loader_settings"]["num_workers"] == 3


@pytest.mark.slow
def test_a_slow_loader_is_reported_idle_and_fails_the_gate(tmp_path):
    options = ("--world-sizes", "1", "--repeats", "3")
    results = measured_of(tmp_path, LOADING, *options)
    targets = Targets.model_validate({"schema": 1, "loader_idle": 0.4})
    verdicts = gates.verdicts(targets, results, findings=check(results))
    assert [one.verdict for one in verdicts] == ["met", "missed"]
    fast, slow = (one.value for one in verdicts)
    assert fast < 0.4 < slow
