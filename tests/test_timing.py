"""Rounds: how often a step runs, and how pytest-benchmark is shown what we measured."""

import gc
import time

import pytest

from lockstep.measure import timing
from lockstep.ranks import process_group as world


@pytest.fixture
def world_of_one():
    yield world.join(device="cpu", threads_per_rank=1, environ={})
    world.leave()


@pytest.mark.parametrize(("rounds", "steps_per_round"), [(1, 1), (3, 4), (0, 5)])
def test_a_round_has_its_steps_and_lasts_as_long(world_of_one, rounds, steps_per_round):
    calls = []

    def step():
        calls.append(1)
        time.sleep(0.02)

    counts = {"rounds": rounds, "steps_per_round": steps_per_round}
    round_s = timing.time_rounds(world_of_one, step, **counts)
    assert (len(calls), len(round_s)) == (rounds * steps_per_round, rounds)
    assert all(duration >= 0.02 * steps_per_round for duration in round_s)


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
