"""`lockstep screen` names what is slow, in as many steps as it promises, and nothing else."""

import json
from dataclasses import replace
from itertools import chain
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_screens import Noise, Slow, screened, seats

from lockstep.before.screen import search
from lockstep.before.screen.screen_cli import find_rank
from lockstep.before.screen.screening import num_repeats
from lockstep.before.screen.search import describe_floor, node_lines, page

RNG = st.integers(0, 2**32).map(Random)


def slow_ones(num_nodes, ranks_per_node):
    """Return everything that may be slow among so many nodes."""
    nodes = st.sampled_from([f"n{i}" for i in range(num_nodes)])
    kinds = [nodes.map(lambda node: Slow("slow-node", (node,)))]
    if ranks_per_node > 1:
        ranks = st.integers(0, num_nodes * ranks_per_node - 1)
        kinds.append(ranks.map(lambda r: Slow("slow-device", (f"n{r // ranks_per_node}",), r)))
    if num_nodes >= search.FEWEST_FOR_PAIRS:
        kinds.append(nodes.map(lambda node: Slow("slow-link", (node,))))
        met = list(chain(*search.tournament([f"n{i}" for i in range(num_nodes)])))
        kinds.append(st.sampled_from(met).map(lambda pair: Slow("slow-link", pair)))
    return st.one_of(kinds)


@settings(max_examples=60)
@given(st.data(), RNG, st.integers(2, 64), st.sampled_from([1, 2, 4]))
def test_one_slow_thing_is_named_and_nothing_else_within_the_promised_steps(data, rng, n, ranks):
    slow = data.draw(slow_ones(n, ranks))
    found = screened(n, ranks, Noise(rng, neighbours=0), slow)
    named = {(one.kind, one.row.nodes, one.row.rank) for one in found.findings}
    assert named == {(slow.kind, slow.nodes, slow.rank)}
    assert 1 <= found.steps <= min(search.promised_steps(n), 4)


def test_nothing_is_named_of_clean_machines_with_busy_neighbours():
    noise = Noise(Random(0))  # noqa: S311, no secret
    draws = [screened(n, 2, noise) for n in (1, 2, 3, 4, 8) for _ in range(60)]
    assert sum(bool(found.findings) for found in draws) <= 3


@given(st.integers(1, 64))
def test_nobody_meets_a_partner_twice_and_a_turn_shares_no_host(num_nodes):
    nodes = [f"n{i}" for i in range(num_nodes)]
    rounds = search.tournament(nodes)
    assert len(rounds) == (3 if num_nodes > 2 else 0)
    assert len({frozenset(pair) for pair in chain(*rounds)}) == len([*chain(*rounds)])
    for one in rounds:
        together = list(chain(*one))
        assert len(set(together)) == len(together) >= num_nodes - 1
    assert search.turns([[0, 1], [1, 2], [3], [0, 3]], seats(4, 1)) == [[0, 2], [1, 3]]


def test_a_screening_says_what_to_do():
    found = screened(4, 2, Noise(Random(1), 0), Slow("slow-device", ("n2",), 5))  # noqa: S311
    lines = [json.loads(line) for line in node_lines(found)]
    assert [line["verdict"] for line in lines] == ["not-slow", "not-slow", "slow", "not-slow"]
    assert "--exclude=n2\n" in page(found)
    wide = replace(found.rows[0], ratio=1.0, low=0.9, high=2.0)
    noisy = replace(found, rows=(wide, *found.rows[1:]), findings=())
    says = ("Not shown", "100.0 % slower unseen (matrix product of rank 0)", "--repeats 580:")
    said = page(noisy) + next(node_lines(noisy))
    assert [text for text in (*says, '"verdict": "not-shown"') if text not in said] == []


@pytest.mark.parametrize(("nodes", "ranks", "slow", "uncompared"), [
    (2, 1, None, ("pair_all_reduce",)),
    (3, 2, None, ()),
    (3, 2, Slow("slow-node", ("n1",)), ("pair_all_reduce",)),  # of the others are too few
])  # fmt: skip
def test_links_that_were_not_compared_are_told(nodes, ranks, slow, uncompared):
    found = screened(nodes, ranks, Noise(Random(1)), slow)  # noqa: S311, no secret
    assert found.uncompared == uncompared
    rest = [row for row in found.rows if row.probe != "node_all_reduce"]
    unequal = replace(found, rows=tuple(rest))  # as of nodes with unequal numbers of ranks
    within = ("node_all_reduce",) if ranks > 1 and nodes > 1 else ()
    assert unequal.uncompared == (*within, *uncompared)
    assert page(unequal).count("not compared") == len(unequal.uncompared)


@pytest.mark.parametrize(("floor", "is_below"), [(0.02, False), (2.0, True)])
def test_all_ranks_together_are_held_against_a_floor(floor, is_below):
    found = screened(4, 2, Noise(Random(1)), Slow("slow-link", ("n2",)))  # noqa: S311, no secret
    held = search.add_all_reduce(found, [0.05, 0.01, 0.02], 2**22, floor)
    # 8 ranks: 2 * 7 / 8 * 4 MiB in 20 ms, as nccl-tests counts it.
    assert held.all_reduce.bus_gb_per_s == pytest.approx(0.367, rel=1e-3)
    assert json.loads(json.dumps(held.to_json()))["all_reduce"]["slowest"]["nodes"] == ["n2"]
    assert (describe_floor(held) is not None) == held.all_reduce.is_below == is_below
    assert replace(held, findings=()).is_clean is not is_below


@pytest.mark.parametrize(("hosts", "first"), [
    ("n1", "n1"), ("n[08-11,20],login", "n08"), ("a,b", "a"), ("r[2-3]n[7,9]-ib", "r2n7-ib")
])  # fmt: skip
def test_the_tasks_of_an_srun_meet_on_the_first_node(hosts, first):
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    given = find_rank(step | {"SLURM_STEP_NODELIST": hosts})
    assert (given["LOCKSTEP_LAUNCHER"], given["MASTER_ADDR"]) == ("slurm", first)
    asked = find_rank(step | {"SLURM_STEP_NODELIST": hosts, "MASTER_ADDR": "ib0"})
    assert asked["MASTER_ADDR"] == "ib0"


def test_one_process_alone_is_told_what_to_start():
    assert find_rank({}) is None
    with pytest.raises(ValueError, match="start lockstep screen with srun --ntasks-per-node"):
        find_rank({"SLURM_JOB_ID": "7", "SLURM_NNODES": "4"})
    with pytest.raises(ValueError, match="one rank cannot be compared"):
        num_repeats(1, None)
    with pytest.raises(ValueError, match="5 repeats on 4 ranks are too few"):
        num_repeats(4, 5)
