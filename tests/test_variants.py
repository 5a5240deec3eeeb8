"""The turns of a step's variants: their number, order and batches, and waits for a core."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lockstep.core.sizes import find
from lockstep.measure import timing
from lockstep.measure.loop_variants import Loop
from lockstep.measure.step import variants

ALONE = SimpleNamespace(world_size=1, device=torch.device("cpu"))
STEPS = dict.fromkeys(("full", "own", "reduce", "half"), lambda: None)  # 3 whole steps a block


@pytest.mark.parametrize(
    ("num_steps", "steps", "blocks"),
    [
        (10, 5, variants.LEAST_BLOCKS),
        (130, 5, 5),  # of 78 steps' time, less 3 untimed ones, each block takes 15
        (10**6, 5, variants.MOST_BLOCKS),
    ],
)
def test_turns_add_a_share_to_a_case_within_bounds(num_steps, steps, blocks):
    rounds = replace(
        find("smoke"), rounds=num_steps // steps, warmup_rounds=0, steps_per_round=steps
    )
    assert variants.plan_turns(rounds, STEPS, torch.device("cuda"), 0).blocks == blocks


def test_an_order_is_drawn_for_each_block_and_equal_on_all_ranks():
    names = list(STEPS)
    order = variants.turns(names, 12, seed=3)
    assert variants.turns(names, 12, seed=3) == order != variants.turns(names, 12, seed=4)
    blocks = [order[first : first + len(names)] for first in range(0, len(order), len(names))]
    assert all(Counter(block) == Counter(names) for block in blocks)
    assert len(set(map(tuple, blocks))) > 1
    order = variants.turns(["full", "own"], 10, seed=3, run=5)  # of a user's own step
    runs = [order[first : first + 5] for first in range(0, len(order), 5)]
    assert all(len(set(run)) == 1 for run in runs)
    assert Counter(order) == {"full": 10, "own": 10}


@pytest.mark.parametrize(
    ("own_s", "blocks", "run"),
    [(0.01, variants.LEAST_OWN, 5), (3.0, 10, 5), (15.0, variants.LEAST_BLOCKS, 1)],
)
def test_a_step_of_ones_own_takes_turns_enough_for_one_launch_unless_it_is_long(own_s, blocks, run):
    rounds = replace(find("laptop"), rounds=2, warmup_rounds=0)
    plan = variants.plan_turns(rounds, ["full", "own"], torch.device("cpu"), 0, own_s)
    assert (plan.blocks, plan.run) == (blocks, run)


def test_variants_take_the_batches_that_the_whole_step_has_drawn_one_after_the_other():
    seen = []
    loop = Loop(seen.append, [], [torch.full((4,), float(n)) for n in range(25)])
    assert loop.problem() == ""
    ways = loop.variants()
    seen.clear()
    plan = variants.Plan(blocks=20, steps=1, run=5)
    turns = loop.time_in_turns(ALONE, ways, plan, seed=0)
    assert {len(seconds) for seconds in turns.values()} == {20}
    laps = np.split(np.array([float(batch[0]) for batch in seen]), 2)
    for lap in laps:
        drawn, rest = lap[1:11], lap[11:]  # an untimed step, then the lap; the same for the others
        assert len(set(drawn)) == 10
        assert set(rest) == set(drawn)
        assert {count for _, count in Counter(rest).items()} <= {3, 6}
    assert not set(laps[0][1:11]) & set(laps[1][1:11])
    assert {len(batch) for batch in seen} == {2, 4}


def test_waits_for_a_core_that_another_process_has_are_counted():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        taken_s, running_s = timing.time_turn(ALONE, lambda: sum(range(10_000_000)), 1)
    finally:
        neighbour.kill()
        neighbour.wait()
        os.sched_setaffinity(0, cores)
    assert 0 < running_s < 0.8 * taken_s
