"""A slow input, really measured: of one rank, and of workers that deliver in bursts."""

from pathlib import Path

import pytest
from commands import lockstep
from launched import environ

from lockstep.measure.causes.card import LATE_NEXT
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.words import verdict_card

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
NAP_S = 0.05
OWN_STEPS = f"""
import os
import time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class LateOnRank1:
    def __iter__(self):
        for _ in range(4):
            time.sleep({NAP_S} if os.environ["RANK"] == "1" else 0)
            yield torch.ones(8, 64)

class Slow(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep({NAP_S})
        return torch.ones(64)

def test_late(lockstep):
    model = DistributedDataParallel(torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(batch):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    lockstep.measure(step, samples=8, batches=LateOnRank1(), ddp=model)

def test_of_workers(lockstep):
    model = torch.nn.Linear(64, 1)
    batches = DataLoader(Slow(), batch_size=1, num_workers=3, persistent_workers=True)
    lockstep.measure(lambda batch: model(batch).sum().backward(), samples=1, batches=batches)
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """What two ranks measured, by the name of the test; again where other tests took the cores."""
    for attempt in range(3):
        found = measure(tmp_path_factory.mktemp(f"slow-input-{attempt}"))
        if judge(found["test_late"]).bound.kind != "open":
            break
    return found


def measure(folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "test_mine.py").write_text(OWN_STEPS)
    options = "--world-sizes 2 --repeats 1 --rounds 20 --size smoke --device cpu"
    ended = lockstep("run", "--tests", "mine", *options.split(), cwd=folder, env=environ(ROOT))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {row.case: row for row in load([folder / "results" / "mine"]).rows}


def judge(row):
    return verdict_card.judge(list(series_of([row])), 0.7)


def test_a_step_is_found_to_wait_for_the_input_of_one_rank_by_name(rows):
    row = rows["test_late"]
    judged = judge(row)
    assert (judged.bound.kind, judged.bound.late.rank) == ("input", 1)
    assert any(LATE_NEXT in line for line in judged.lines())
    (flag,) = (flag for flag in row.flags if flag.kind == "late-input")
    assert (flag.values["rank"], flag.values["host"]) == (1, row.rank_hosts[1])
    # A busy machine sleeps longer.
    assert flag.values["wait_s"] > 0.9 * NAP_S > flag.values["others_s"]


def test_a_step_takes_as_long_as_workers_that_deliver_in_bursts_need(rows):
    row = rows["test_of_workers"]
    assert row.steps_per_round == 3  # smoke has two: a round would meet one burst, two or none
    assert row.step_s > 0.9 * NAP_S / 3
    assert row.details["loader_settings"]["num_workers"] == 3
