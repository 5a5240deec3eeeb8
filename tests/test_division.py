"""What turns of known making come to: shares, what comes in some steps, a drift, a single turn."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.measure.causes.bound import judge, split_at_change
from lockstep.measure.step.variants import RUN, turns

STEP_S, REDUCE_S, NOISE = 0.05, 0.002, 0.01
LAP = 10
WITH_LOADER = ("full", "resident", "own", "half")


@dataclass
class Made:
    """A step that takes turns as `explain` has it take them, with something put into it."""

    extra_s: object = lambda number: 0.0
    length: object = lambda draw, shape: np.ones(shape)
    halves: bool = True

    def turns(self, num_turns, names=WITH_LOADER, ranks=2, seed=0):
        draw = np.random.default_rng(seed)
        found = {name: [] for name in names}
        number = 0
        for lap in range(num_turns // LAP):
            lengths = self.length(draw, (LAP, ranks))
            others = [name for name in names if name != "full" or "resident" not in names]
            first = ["full"] * LAP if "resident" in names else []
            for name in [*first, *turns(others, LAP, seed + lap, RUN)]:
                took = STEP_S * lengths[len(found[name]) % LAP]
                took = took * (0.5 if name == "half" and self.halves else 1.0)
                took = took * (1 + NOISE * draw.standard_normal(ranks)) + self.extra_s(number)
                whole = name in ("full", "resident")  # whose ranks wait for each other
                found[name].append(np.full(ranks, took.max() + REDUCE_S) if whole else took)
                number += 1
        return {name: np.array(each).T for name, each in found.items()}


def together(every, seconds):
    return Made(lambda number: seconds if number % every == every - 1 else 0.0)


def on_one(every, seconds):
    return Made(lambda number: np.array([seconds, 0.0]) * (number % every == every - 1))


def shares_of(bound):
    found = {share.cause: share.seconds / bound.step_s for share in bound.shares}
    return found | {"compute": bound.compute_s / bound.step_s}


@pytest.mark.parametrize("names", [("full", "own"), WITH_LOADER])
@pytest.mark.parametrize(("every", "seconds"), [(3, 0.1), (4, 1.4), (10, 1.0)])
def test_what_comes_on_all_ranks_in_some_steps_is_own_work_that_nobody_waits_for(
    names, every, seconds
):
    for seed in range(5):
        found = judge([together(every, seconds).turns(max(50, 10 * every), names, seed=seed)])
        mean_s = seconds / every
        assert found.rare.seconds / found.step_s == pytest.approx(
            mean_s / (STEP_S + mean_s), abs=0.05
        )
        assert found.rare.every == pytest.approx(every, rel=0.2)
        assert found.kind in ("own", "compute")
        assert shares_of(found)["imbalance"] < 0.02
        assert found.slow is None


@pytest.mark.parametrize("names", [("full", "own"), WITH_LOADER])
@pytest.mark.parametrize(("every", "seconds"), [(3, 0.06), (8, 0.3)])
def test_what_one_rank_pauses_in_some_steps_is_waited_for(names, every, seconds):
    for seed in range(5):
        found = judge([on_one(every, seconds).turns(50, names, seed=seed)])
        mean_s = seconds / every
        assert found.kind == "imbalance"
        assert shares_of(found)["imbalance"] == pytest.approx(mean_s / (STEP_S + mean_s), abs=0.05)
        assert found.rare is None


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize(
    "length",
    [
        lambda draw, shape: draw.lognormal(0, 0.4, shape),
        lambda draw, shape: draw.choice([1.0, 1.0, 1.0, 2.0], shape),
    ],
    ids=["long-tailed", "some are long"],
)
def test_ranks_wait_for_the_longer_batch_and_none_is_slow(length, halves):
    for seed in range(5):
        made = Made(length=length, halves=halves).turns(100, seed=seed)
        found, own = judge([made]), made["own"]
        truth = (own.max(axis=0) - own.min(axis=0)).mean() / made["full"].max(axis=0).mean()
        assert (found.kind, found.slow, found.rare) == ("imbalance", None, None)
        shares = shares_of(found)
        assert shares["imbalance"] == pytest.approx(truth, abs=0.05)
        assert shares["input"] < 0.03
        assert shares.get("fixed", 0.0) == 0.0  # no half that takes as long as the whole is one


@pytest.mark.parametrize("again", [None, 50])
def test_a_slow_beginning_is_a_drift_and_no_cause(again):
    first = 60

    def extra_s(number):
        return 2 * STEP_S if (number % (4 * again) if again else number) < first else 0.0

    found = judge([Made(extra_s).turns(100)], again=again)
    assert found.drift.from_s == pytest.approx(3 * STEP_S, rel=0.1)
    assert found.drift.to_s == pytest.approx(STEP_S, rel=0.1)
    assert found.step_s == pytest.approx(STEP_S + REDUCE_S, rel=0.05)
    assert not found.named


def test_equal_turns_seldom_seem_to_drift():
    found = [split_at_change(Made().turns(50, seed=seed), 20)[1] for seed in range(200)]
    assert sum(one is not None for one in found) <= 2


@pytest.mark.parametrize("variant", ["full", "own"])
def test_one_turn_that_carries_a_cause_shows_none(variant):
    made = Made().turns(50, ("full", "own"))
    made[variant][0 if variant == "own" else slice(None), 17] += 3.0
    found = judge([made])
    assert not [share for share in found.named if share.cause in ("imbalance", "exposed")]
    assert found.rare is None


@pytest.mark.parametrize("waits", [0.1, 0.4])
@pytest.mark.parametrize("halves", [True, False])
def test_waits_for_a_core_are_no_fixed_cost_and_computing_is_left(waits, halves):
    for seed in range(5):
        made = Made(halves=halves).turns(50, seed=seed)
        found = judge([made | {"running": (1 - waits) * made["own"]}])
        shares = shares_of(found)
        assert shares["contention"] == pytest.approx(waits, abs=0.05)
        assert shares["fixed"] == pytest.approx(0.0 if halves else 1 - waits, abs=0.1)
        assert shares["compute"] > 0


seconds = st.floats(1e-3, 10)


def matrix(ranks, num_turns):
    row = st.lists(seconds, min_size=num_turns, max_size=num_turns)
    return st.lists(row, min_size=ranks, max_size=ranks).map(np.array)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([1, 2, 4]), st.sampled_from([2, 6, 20]), st.floats(0.2, 1))
def test_shares_add_up_to_the_step_and_each_is_one(data, ranks, num_turns, running):
    made = {name: data.draw(matrix(ranks, num_turns)) for name in (*WITH_LOADER, "reduce")}
    found = judge([made | {"running": running * made["own"]}])
    for bound in (found, found.rescale(2 * found.step_s, None)):
        shares = shares_of(bound)
        assert sum(shares.values()) == pytest.approx(1)
        assert all(0 <= share <= 1 + 1e-9 for share in shares.values())
        assert all(0 <= gain.step_s <= bound.step_s * (1 + 1e-9) for gain in bound.gains)
