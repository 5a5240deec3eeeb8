"""The fixture `lockstep`: flags of slow ranks, checks and counts of samples, own steps."""

import json
import socket
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import zeros

from lockstep.core.flags import flag
from lockstep.core.record import KEY
from lockstep.measure import harness
from lockstep.measure.harness import Goal, Harness, Measurement, Part
from lockstep.measure.loop_variants import Loop
from lockstep.measure.step.step_cases import WorkloadMeasurement
from lockstep.workloads import trees

TURNS = 8


@pytest.mark.parametrize(
    ("own_s", "slow"),
    [
        ([1.0], None),
        ([1.0, 1.03], None),
        ([1.0, 1.2], (1, 1.2)),
        ([2.0, 1.0], (0, 2.0)),
        ([1.0, 1.0, 0.5, 1.0], None),  # one fast rank holds nobody up
        ([1.0, 1.1, 0.9, 3.0], (3, 3.0)),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(own_s, slow):
    own_s = [[mean_s * (1 + 0.001 * (turn % 2)) for turn in range(TURNS)] for mean_s in own_s]

    def flags(num_turns):
        parts = [Part([1.0], variant_s={"own": rank[:num_turns]}) for rank in own_s]
        return [flag.values for flag in harness.find_flags(parts, list("abcd"))]

    expected = [(slow[0], "abcd"[slow[0]], pytest.approx(slow[1]))] if slow else []
    assert [(flag["rank"], flag["host"], flag["ratio"]) for flag in flags(TURNS)] == expected
    assert flags(2) == []


@pytest.fixture
def only_rank(monkeypatch):
    """Return what a case of the only rank works with, whose rounds take a second."""
    monkeypatch.setattr(Harness, "time", lambda self, step: [1.0])
    absent = dict.fromkeys(field.name for field in fields(Harness))
    return Harness(**absent | {"world": SimpleNamespace(world_size=1)})


@pytest.mark.parametrize("answer", [False, np.False_, torch.tensor(False)], ids=type)
def test_a_check_that_says_false_fails_its_case(only_rank, answer):
    with pytest.raises(RuntimeError, match="the check of the measured step"):
        only_rank.measure(lambda: None, samples=1, check=lambda: answer)


@pytest.mark.parametrize("samples", [0, -1, 1.5, True, "32", None])
def test_a_count_of_samples_that_is_no_count_is_refused_before_the_rounds(
    only_rank, monkeypatch, samples
):
    monkeypatch.setattr(Harness, "time", lambda *_: pytest.fail("its rounds were timed"))
    with pytest.raises(ValueError, match="not a whole number of 1 or more"):
        only_rank.measure(lambda: None, samples=samples)


@dataclass
class Batch:
    rows: torch.Tensor
    labels: torch.Tensor
    name: str = "digits"


X, Y, TOKENS, IMAGE = zeros(256, 64), zeros(256), zeros(8, 128).long(), zeros(3, 9, 9)
OFFSETS = torch.tensor([0, 5, 9, 20, 30])
IDS, LABELS, PART = zeros(30).long(), zeros(30).long(), {"box": zeros(5, 4), "of": zeros(5)}


@pytest.mark.parametrize(
    ("batch", "samples", "items"),
    [
        ((X, Y), 2, 256),
        ({"input_ids": TOKENS, "labels": TOKENS}, 2, 8),
        (Batch(X, Y), 3, 256),
        ([[X, X], Y], 2, 256),
        ({"x": X, "y": Y, "weights": zeros(7)}, 512, 256),  # as two ranks have together
        # the number is right, or it is not plain that it is not
        ((X, Y), 256, None),
        ({"input_ids": TOKENS, "labels": TOKENS}, 8 * 128, None),
        ({"ids": IDS, "labels": LABELS, "cu_seqlens": OFFSETS}, 4, None),
        ({"x": zeros(90, 5), "node": zeros(90), "y": zeros(6)}, 6, None),
        (([IMAGE, IMAGE], [PART, PART]), 2, None),
        ({"text": ["a", "b"], "x": "no tensor"}, 2, None),
        (None, 2, None),
    ],
)
def test_a_batch_that_holds_other_samples_than_are_given_is_seen(only_rank, batch, samples, items):
    assert trees.other_items(batch, samples) == items

    def flags(unit):
        own = Measurement(print, samples, [batch], unit=unit)
        assert own.problem(1) == ""  # draws the first batch
        return [flag_.to_dict() for flag_ in own.contradiction()]

    seen = [] if items is None else [{"kind": "other-samples", "samples": samples, "items": items}]
    assert flags("samples") == seen
    assert flags("tokens") == seen[: len(trees.parts(batch)) == samples]


def test_of_what_a_step_holds_only_the_number_of_its_parts_is_no_number_of_samples():
    pair, average = (X, Y), [zeros(64)] * 3

    def step(batch=None):
        return pair, average

    own = Measurement(step, 2, unit="rows")
    assert [flag_.values["items"] for flag_ in own.contradiction()] == [256]
    other = replace(own, step=partial(print, pair))
    assert [flag_.kind for flag_ in other.contradiction()] == ["other-samples"]
    assert not replace(own, samples=256).contradiction()
    assert not replace(own, samples=300).contradiction()


def test_a_workload_that_makes_other_items_than_it_is_asked_for_fails_its_case():
    step = SimpleNamespace(local_batch=32, inputs=X[:16], model=SimpleNamespace(name="half"))
    said = WorkloadMeasurement(step, 32).problem(1)
    assert "make_batch of workload half returned 16 items instead of 32; return" in said


class Once:
    batches = iter([1, 2])

    def __iter__(self):
        return self.batches


def test_batches_that_hold_none_are_refused_and_used_up_ones_named(only_rank):
    with pytest.raises(ValueError, match="batches is empty"):
        only_rank.measure(print, samples=1, batches=[])
    loop = Loop(lambda batch: None, [], Once())
    assert loop.problem() == ""
    loop.drawing_step()()
    with pytest.raises(RuntimeError, match="ended at step 2; pass a DataLoader"):
        loop.drawing_step()()


def test_what_a_ranks_part_shows_against_the_result_is_flagged_with_its_host():
    held, hardly = ({"elapsed_s": 2.0, "throttled_s": held_s} for held_s in (0.5, 0.01))
    hot = ["hardware slowdown", "power brake"]
    parts = [Part([1.0], slowdowns=hot), Part([1.0], telemetry=hardly), Part([1.0], telemetry=held)]
    assert list(harness.find_flags(parts, ["a", "b", "c"], Goal(margin=0.01, confidence=0.99))) == [
        flag("no-margin", goal=0.01),  # of a single round, and no infinite one
        flag("throttled", rank=0, host="a", reasons=hot),
        flag("cpu-quota", rank=2, host="c", held_s=0.5),
    ]


OWN_STEPS = """
import time
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

@pytest.mark.parametrize("sends", ["gradients", "loss"])
def test_step(lockstep, sends):
    model = DistributedDataParallel(nn.Linear(8, 1))

    def step():
        time.sleep(0.01 + 0.02 * lockstep.world.rank)
        loss = model(torch.ones(4, 8)).sum()
        loss.backward()
        if sends == "loss":
            distributed.all_reduce(loss.detach())

    lockstep.measure(step, samples=4, ddp=model)

def test_twice(lockstep):
    lockstep.measure(lambda: None, samples=1)
    lockstep.measure(lambda: None, samples=2)
"""


@pytest.mark.slow
def test_a_step_in_which_ranks_wait_also_without_gradients_has_no_variants(run_ranks, tmp_path):
    (tmp_path / "test_mine.py").write_text(OWN_STEPS)
    options = ["--device=cpu", "--size=smoke", "--rounds=20", "--benchmark-json=out.json"]
    ended = run_ranks(
        [["-m", "pytest", "test_mine.py", "-p", "lockstep.launch.hooks", *options]] * 2, tmp_path
    )
    assert [rank.returncode for rank in ended] == [1, 1], ended[0].stdout + ended[1].stderr
    assert "ValueError: test_twice has already measured" in ended[0].stdout
    entries = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    cases = {entry["params"].get("sends"): entry["extra_info"][KEY] for entry in entries}
    assert cases.keys() == {"gradients", "loss"}
    plain, waits = cases["gradients"], cases["loss"]
    kinds = [{flag["kind"] for flag in case["flags"]} for case in (plain, waits)]
    assert [found & {"straggler", "own-waits"} for found in kinds] == [{"straggler"}, {"own-waits"}]
    assert set(waits["details"]) & {"rank_variant_s", "bucket_bytes"} == {"bucket_bytes"}
    (slow,) = (flag for flag in plain["flags"] if flag["kind"] == "straggler")
    assert (slow["rank"], slow["host"]) == (1, socket.gethostname())
