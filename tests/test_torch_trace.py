"""`--torch-trace`: what torch.profiler sees of a few steps, and what a part of a step takes."""

import contextlib
import gzip
import json
import sys
from types import SimpleNamespace

import pytest
from commands import finish, lockstep
from launched import ROOT, environ

from lockstep.core.phases import phases_of
from lockstep.launch import profiler
from lockstep.launch.profiler import shares
from lockstep.report.profiles.profiles import read

MS = 1e-3


def test_parts_are_shares_of_the_steps_and_communication_may_hide_behind_others():
    spans = [
        ("ProfilerStep*", 0, 10 * MS),
        ("ProfilerStep*", 10 * MS, 20 * MS),
        ("DistributedDataParallel.forward", -5 * MS, 2 * MS),  # it began before the window
        ("autograd::engine::evaluate_function: AddmmBackward0", 2 * MS, 5 * MS),
        ("autograd::engine::evaluate_function: AddmmBackward0", 4 * MS, 6 * MS),
        ("gloo:all_reduce", 5 * MS, 8 * MS),
        ("Optimizer.step#SGD.step", 8 * MS, 9 * MS),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10 * MS, 15 * MS),
        ("gloo:barrier", 15 * MS, 16 * MS),  # before a round, and none of the step's
        ("aten::mm", 16 * MS, 20 * MS),  # of the loss, or inside of a part
    ]
    found = shares(phases_of(spans))
    assert (found["num_steps"], found["step_s"]) == (2, pytest.approx(0.01))
    assert found["parts"] == pytest.approx(
        {
            "data": 0.25,
            "forward": 0.1,
            "backward": 0.2,
            "optimizer": 0.05,
            "communication": 0.15,
            "other operations": 0.2,
        }
    )
    assert (found["exposed"], found["rest"]) == pytest.approx((0.1, 0.1))
    assert phases_of([("aten::mm", 0, 1)]) is None


def test_what_lies_between_timed_steps_is_no_part_of_them():
    spans = [
        *(("ProfilerStep*", 0, 300 * MS), ("ProfilerStep*", 300 * MS, 600 * MS)),
        *(("lockstep:step", 280 * MS, 290 * MS), ("lockstep:step", 580 * MS, 590 * MS)),
        *(("gloo:all_reduce", 285 * MS, 295 * MS), ("Optimizer.step#SGD.step", 400 * MS, 500 * MS)),
    ]
    found = shares(phases_of(spans))
    assert (found["num_steps"], found["step_s"]) == (2, pytest.approx(0.01))
    assert found["parts"] == pytest.approx({"communication": 0.25, "optimizer": 0.0})
    assert (found["exposed"], found["rest"]) == pytest.approx((0.25, 0.75))


@pytest.fixture
def ranges():
    """Return how ranges are made, and the names of those that began and ended."""
    seen = []

    @contextlib.contextmanager
    def make(name):
        seen.append(name)
        yield
        seen.append(f"/{name}")

    return make, seen


def in_order(*phases):
    return [f"{sign}lockstep:{phase}" for phase in phases for sign in ("", "/")]


def test_the_phases_of_any_step_have_ranges_under_a_profiler_alone(ranges):
    import torch
    from torch.utils.checkpoint import checkpoint

    make, seen = ranges
    # A checkpoint computes its forward again in the backward.
    inner = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    optimizer = torch.optim.SGD([*model.parameters(), *inner.parameters()])

    class Net(torch.nn.Module):
        def forward(self, values):
            return checkpoint(inner, model(values), use_reentrant=False)

    def step():
        Net()(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    with profiler.phase_ranges(make):
        step()
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
    step()
    assert seen == in_order("forward", "backward", "optimizer", "forward")


def test_under_nsight_systems_the_ranges_are_nvtx(ranges, monkeypatch):
    import torch

    make, seen = ranges
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range", make)
    monkeypatch.setattr(profiler, "is_measured", lambda item: True)
    harness = SimpleNamespace(case=SimpleNamespace(around=None))
    item = SimpleNamespace(funcargs={"lockstep": harness})
    running = profiler.Marking().pytest_runtest_call(item)
    next(running)
    harness.case.around(lambda: torch.nn.Identity()(1))()
    with pytest.raises(StopIteration):
        next(running)
    inner, outer = in_order("forward"), in_order("step")
    assert seen == [outer[0], *inner, outer[1]]


def test_a_traced_session_takes_no_file_for_results(tmp_path):
    case = ROOT / "bench" / "test_weak_scaling.py"
    options = ("--size=smoke", "--device=cpu", "--torch-trace=traces", "--journal=here.jsonl")
    command = [sys.executable, "-m", "pytest", case, *options]
    ended = finish(command, cwd=tmp_path, env=environ(ROOT))
    assert ended.returncode == 4
    assert "--torch-trace slows" in ended.stderr


@pytest.mark.slow
def test_a_campaign_is_traced_on_each_rank_and_measures_nothing(tmp_path):
    options = "--device cpu --studies weak --world-sizes 2 --torch-trace traces"
    ended = lockstep("run", "smoke", *options.split(), cwd=tmp_path, env=environ(ROOT))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not (tmp_path / "results").exists()
    names = sorted(path.name for path in tmp_path.glob("traces/*.shares.json"))
    ranks = ("-w2-r0", "-w2-r1")
    events = json.loads(gzip.decompress(next(tmp_path.glob("traces/*-w2-r1.json.gz")).read_bytes()))
    seen = {event.get("name", "") for event in events["traceEvents"]}
    assert len({name for name in seen if name.startswith("ProfilerStep#")}) == 3
    assert {"DistributedDataParallel.forward", "gloo:all_reduce"} <= seen
    ranges = ("step", "forward", "backward", "optimizer", "bucket 0")
    assert {f"lockstep:{name}" for name in ranges} <= seen
    read_back = read(next(tmp_path.glob("traces/*-w2-r1.json.gz"))).phases
    assert {*ranges[1:]} <= {*read_back.parts}
    assert read_back.parts["bucket 0"] <= read_back.communication_s
    assert [name[name.rindex("-w") :] for name in names] == [f"{one}.shares.json" for one in ranks]
