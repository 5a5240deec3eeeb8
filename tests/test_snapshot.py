"""A snapshot restores everything that a user's step changes, found from the step itself."""

import functools
import logging
import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.core.files import MIB
from lockstep.machine import memory
from lockstep.measure.reach import Snapshot, reach

STEPS = 5
num_taken = 0


class Trainer:
    """A trainer as users write one: all a step needs are its attributes."""

    def __init__(self):
        layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1)
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=100)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.losses, self.last, self.seen = [], deque(maxlen=3), {"steps": 0}
        self.mean, self.norms = torch.zeros(()), np.zeros(4)
        self.generator = torch.Generator().manual_seed(1)

    def step(self):
        global num_taken
        num_taken += 1
        noise = random.gauss() + np.random.normal()  # noqa: NPY002
        inputs = torch.randn(8, 4, generator=self.generator) + noise
        loss = self.model(inputs).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.losses.append(loss.item())
        self.last.append(loss.item())
        self.seen["steps"] += 1
        self.mean += loss.detach()
        self.norms[0] += 1
        self.zero_grad()

    def zero_grad(self):
        self.optimizer.zero_grad()

    def state(self):
        """Return all that a step changes, to the last bit."""
        parts = [self.model.state_dict(), [p.grad for p in self.model.parameters()], vars(self)]
        parts += [part.state_dict() for part in (self.optimizer, self.scheduler, self.scaler)]
        parts += [self.generator.get_state(), torch.get_rng_state(), num_taken]
        return repr(exact([*parts, random.getstate(), np.random.get_state()]))  # noqa: NPY002


def exact(value):
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: exact(held) for name, held in value.items()}
    return [exact(held) for held in value] if isinstance(value, list | tuple | deque) else value


WAYS = {
    "bound method": lambda trainer: trainer.step,
    "in containers": lambda trainer: functools.partial(take_step, {"all": [(trainer,)]}),
}


def take_step(everything):
    everything["all"][0][0].step()


@pytest.fixture(params=[0, 3], ids=["new", "trained"])
def trainer(request):
    torch.manual_seed(0)
    made = Trainer()
    for _ in range(request.param):
        made.step()
    return made


@pytest.mark.parametrize("way", WAYS)
def test_steps_leave_nothing_behind(trainer, way):
    step = WAYS[way](trainer)
    before, weight = trainer.state(), trainer.model[0].weight
    snapshot = Snapshot(reach(step=step))
    for _ in range(2):  # and it can be put back again
        for _ in range(STEPS):
            step()
        assert trainer.state() != before
        snapshot.restore()
        assert trainer.state() == before
    assert trainer.model[0].weight is weight


def test_an_interrupted_accumulation_goes_on():
    model = nn.Linear(4, 1)
    loss = model(torch.ones(1, 4)).sum()  # of a graph that is still to be gone through
    model(torch.ones(1, 4)).sum().backward()
    gradient = model.weight.grad
    snapshot = Snapshot(reach(step=lambda: model.zero_grad()))
    model.zero_grad()
    snapshot.restore()
    loss.backward()
    assert model.weight.grad is gradient
    assert gradient.tolist() == [[2.0] * 4]


def test_large_data_are_put_back_where_they_fit_and_named_where_not(monkeypatch):
    tensor, array = torch.zeros(2**20), np.zeros(2**20)  # 4 and 8 MiB

    def step():
        tensor.add_(1)
        array[:] += 1

    monkeypatch.setattr(memory, "free_bytes", lambda *_: 24 * MIB)
    snapshot = Snapshot(reach(step=step))
    step()
    snapshot.restore()
    assert (snapshot.left, tensor.max(), array.max()) == ({}, 0, 0)
    monkeypatch.setattr(memory, "free_bytes", lambda *_: 12 * MIB)
    assert Snapshot(reach(step=step)).left == {"array": 8 * MIB}


def test_what_comes_after_something_that_cannot_be_put_back_is_put_back():
    shrunk, numbers, expanded = np.zeros(2), np.zeros(2), torch.zeros(1).expand(4)
    snapshot = Snapshot(reach(step=lambda: (shrunk, numbers, expanded)))
    shrunk.resize(3, refcheck=False)
    numbers += 1
    expanded[:1].add_(1)
    with pytest.raises(ExceptionGroup, match="some objects that the step changed"):
        snapshot.restore()
    assert (numbers.tolist(), expanded.tolist()) == ([0, 0], [0.0] * 4)


def test_iterators_are_named_and_objects_of_packages_left_alone():
    batches = iter([1, 2])
    assert reach(step=lambda: next(batches)).iterators == ["batches"]
    handler = logging.StreamHandler()
    reached = reach(step=lambda: handler.flush())
    assert not any(held is vars(handler) for held in reached.containers)
