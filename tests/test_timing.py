"""Rounds: how often a step runs, and how pytest-benchmark is shown what we measured."""

import gc
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.measure import timing
from lockstep.measure.timing import ReplayClock
from lockstep.ranks import process_group as world

ROUND_S = [0.25, 0.1, 1e-7, 3.0]

REPLAYED = f"""
import pytest
from lockstep.measure.timing import ReplayClock

CLOCK = ReplayClock()

@pytest.mark.benchmark(timer=CLOCK)
def test_replay(benchmark):
    CLOCK.load({ROUND_S})
    benchmark.pedantic(lambda: None, rounds={len(ROUND_S)}, iterations=1)
"""


def test_pytest_benchmark_sees_exactly_the_given_durations(tmp_path, pytestconfig):
    (tmp_path / "test_replay.py").write_text(REPLAYED)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", "--benchmark-json", "replay.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(pytestconfig.rootpath)},
        check=True,
        capture_output=True,
    )
    (entry,) = json.loads((tmp_path / "replay.json").read_text())["benchmarks"]
    assert entry["stats"]["data"] == ROUND_S
    assert entry["stats"]["total"] == sum(ROUND_S)
    assert entry["stats"]["min"] == 1e-7
    assert entry["options"]["timer"] == "slowest_rank"


@given(st.lists(st.floats(0, 1e6)))
def test_two_readings_are_one_duration(round_s):
    clock = ReplayClock()
    clock.load([1.0, 2.0])
    clock.load(round_s)  # a new case forgets what the last one left
    found = []
    for _ in round_s:
        start = clock()
        found.append(clock() - start)
    assert found == round_s
    with pytest.raises(StopIteration):
        clock()


@pytest.fixture
def world_of_one():
    yield world.join(device="cpu", threads_per_rank=1, environ={})
    world.leave()


@pytest.mark.parametrize(("rounds", "steps_per_round"), [(1, 1), (3, 4), (0, 5)])
def test_rounds_of_steps(world_of_one, rounds, steps_per_round):
    calls = []
    found = timing.time_rounds(
        world_of_one, lambda: calls.append(1), rounds=rounds, steps_per_round=steps_per_round
    )
    assert len(calls) == rounds * steps_per_round
    assert len(found) == rounds
    assert all(duration > 0 for duration in found)


def test_a_round_lasts_as_long_as_its_steps(world_of_one):
    import time

    (found,) = timing.time_rounds(
        world_of_one, lambda: time.sleep(0.02), rounds=1, steps_per_round=3
    )
    assert found >= 0.06


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_inside_a_round(world_of_one, enabled):
    seen = []

    def step():
        seen.append(gc.isenabled())
        raise ValueError("a step that fails")

    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="a step that fails"):
            timing.time_rounds(world_of_one, step, rounds=2, steps_per_round=1)
        assert seen == [False]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
