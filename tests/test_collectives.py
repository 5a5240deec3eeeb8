"""The collectives: what each must give, and that a wrong result is noticed."""

import json

import pytest

from lockstep.core.sizes import COLLECTIVES
from lockstep.measure import collective_cases as collectives

# Run by two ranks: every collective is right, and every wrong expectation is caught.
TWO_RANKS = """
import json, sys
from dataclasses import replace
from types import SimpleNamespace
import torch
from lockstep.measure import collective_cases as collectives
from lockstep.ranks import process_group as world

joined = world.join(60, device="cpu", threads_per_rank=1)
harness = SimpleNamespace(world=joined)
WRONG = {"sum": "root", "root": "sum", "ranks": "sum"}

def is_right(collective):
    return collectives._is_right(harness, collective, torch.zeros(8), torch.zeros(4))

table = collectives.TABLE
found = {
    name: [is_right(chosen), is_right(replace(chosen, expected=WRONG[chosen.expected]))]
    for name, chosen in table.items()
}
print(json.dumps(found))
world.leave()
"""


def test_bandwidth():
    # 1e9 bytes in 0.5 s; an all-reduce of 4 ranks moves 2 * 3/4 of them over the bus.
    assert collectives._bandwidth("all_reduce", 10**9, 4, 0.5) == {
        "message_bytes": 10**9,
        "algbw_gb_per_s": 2.0,
        "busbw_gb_per_s": 3.0,
    }


@pytest.mark.slow
def test_right_results_pass_and_wrong_ones_are_caught(run_ranks, tmp_path):
    (tmp_path / "script.py").write_text(TWO_RANKS)
    ended = run_ranks([["script.py"]] * 2, tmp_path)
    assert [rank.returncode for rank in ended] == [0, 0], ended
    zero, one = (json.loads(rank.stdout) for rank in ended)
    assert set(zero) == set(COLLECTIVES)
    for name in COLLECTIVES:
        # Only the root of a reduce is given the result.
        assert zero[name] == [True, False]
        assert one[name] == [True, name == "reduce"]
