"""The fixture `lockstep`: flags of slow ranks, checks and counts of samples, own steps."""

import json
import socket
from collections import UserDict
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from launched import suite
from torch import zeros

from lockstep.core.flags import flag
from lockstep.core.record import KEY
from lockstep.measure import harness
from lockstep.measure.harness import Goal, Harness, Measurement, Part
from lockstep.measure.loop_variants import Loop, halve
from lockstep.report.load.reading import gather
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
        ([X, zeros(256, 1)], 2, 256),  # as a loader makes it of a TensorDataset
        ((X, zeros(256, 1), zeros(256, 1)), 3, 256),
        ({"input_ids": TOKENS, "labels": TOKENS}, 2, 8),
        (UserDict(input_ids=TOKENS, attention_mask=TOKENS), 2, 8),
        (Batch(X, Y), 3, 256),
        (({"left": X, "right": X}, Y), 2, 256),
        ([[X, X], Y], 2, 256),
        ({"x": X, "y": Y, "weights": zeros(7)}, 512, 256),  # as two ranks have together
        ((X, Y), 1, 256),
        # the number is right, or it is not plain that it is not
        ((X, Y), 256, None),
        ({"input_ids": TOKENS, "labels": TOKENS}, 8 * 128, None),
        ((zeros(50, 32, 9), zeros(50, 32)), 32, None),
        ((X, zeros(10)), 2, None),
        (X, 2, None),
        ((zeros(1, 512), zeros(1, 512), zeros(1, 512)), 9, None),
        ({"ids": IDS, "labels": LABELS, "cu_seqlens": OFFSETS}, 4, None),
        ({"ids": IDS, "labels": LABELS, "lengths": [5, 4, 11, 10]}, 4, None),
        ({"x": zeros(90, 5), "node": zeros(90), "y": zeros(6)}, 6, None),
        (([IMAGE, IMAGE], [PART, PART]), 2, None),
        ([zeros(3, 9, 8), zeros(3, 7, 9)], 2, None),
        ([zeros(128)] * 6, 6, None),
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


def test_half_of_a_dataclass_is_half_of_its_tensors():
    half = halve(Batch(X, Y))
    assert (half.rows.shape, half.labels.shape, half.name) == ((128, 64), (128,), "digits")


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
    with pytest.raises(RuntimeError, match="ended at step 2; give a DataLoader"):
        loop.drawing_step()()


def test_a_wrapper_with_no_sync_and_no_buckets_is_no_ddp_model():
    fsdp = SimpleNamespace(no_sync=nullcontext)
    own = Measurement(print, 1, ddp=fsdp)
    assert "SimpleNamespace" in own.problem(2)
    assert not replace(own, ddp=None).problem(2)


@pytest.mark.slow
def test_no_half_batch_is_tried_of_a_step_that_reaches_what_is_compiled():
    model = torch.nn.Linear(1, 1)
    compiled = torch.compile(model)
    own = Measurement(lambda batch: compiled(batch), 1, [zeros(2, 1)])
    assert not own.loop.can_halve
    assert replace(own, step=lambda batch: model(batch)).loop.can_halve


def test_what_a_ranks_part_shows_against_the_result_is_flagged_with_its_host():
    held, hardly = ({"elapsed_s": 2.0, "throttled_s": held_s} for held_s in (0.5, 0.01))
    hot = ["hardware slowdown", "power brake"]
    parts = [Part([1.0], slowdowns=hot), Part([1.0], telemetry=hardly), Part([1.0], telemetry=held)]
    assert list(harness.find_flags(parts, ["a", "b", "c"], Goal(margin=0.01, confidence=0.99))) == [
        flag("no-margin", goal=0.01),  # of a single round, and no infinite one
        flag("throttled", rank=0, host="a", reasons=hot),
        flag("cpu-quota", rank=2, host="c", held_s=0.5),
    ]


TWICE = """
def test_twice(lockstep):
    lockstep.measure(lambda: None, samples=1)
    lockstep.measure(lambda: None, samples=2)
"""


@pytest.mark.slow
def test_a_test_that_measures_twice_is_refused_on_all_ranks(run_ranks, tmp_path):
    ended, cases = of_own_test(run_ranks, tmp_path, TWICE)
    assert [rank.returncode for rank in ended] == [1, 1], ended[0].stdout + ended[1].stderr
    assert cases == {}
    assert "ValueError: test_twice has already measured" in ended[0].stdout


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
"""


def of_own_test(run_ranks, folder, text):
    """Return the sessions of a user's own test on two ranks, and its cases by what they send."""
    (folder / "test_mine.py").write_text(text)
    options = ["--device=cpu", "--size=smoke", "--rounds=40", "--benchmark-json=out.json"]
    ended = run_ranks(
        [["-m", "pytest", "test_mine.py", "-p", "lockstep.launch.hooks", *options]] * 2, folder
    )
    found = json.loads((folder / "out.json").read_text() or "{}").get("benchmarks", [])
    return ended, {entry["params"].get("sends"): entry["extra_info"][KEY] for entry in found}


@pytest.mark.slow
def test_a_step_in_which_ranks_wait_also_without_gradients_has_no_variants(run_ranks, tmp_path):
    ended, cases = of_own_test(run_ranks, tmp_path, OWN_STEPS)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stdout
    plain, waits = cases["gradients"], cases["loss"]
    kinds = [{flag["kind"] for flag in case["flags"]} for case in (plain, waits)]
    assert [found & {"straggler", "own-waits"} for found in kinds] == [{"straggler"}, {"own-waits"}]
    assert set(waits["details"]) & {"rank_variant_s", "bucket_bytes"} == {"bucket_bytes"}
    (slow,) = (flag for flag in plain["flags"] if flag["kind"] == "straggler")
    assert (slow["rank"], slow["host"]) == (1, socket.gethostname())


SLIPS = """
import pytest
import torch
from torch import distributed, nn
from lockstep import workloads
from lockstep.measure.step.step_cases import build_step
from lockstep.workloads import Workload

def of_last_rank(asked):
    return asked + (distributed.get_rank() + 1 == distributed.get_world_size())

def make(num_of=lambda asked: asked):
    def make_batch(num_items, device, generator):
        shape = (num_of(num_items), 8)
        inputs = torch.randn(shape, device=device, generator=generator)
        return inputs, torch.zeros(len(inputs), dtype=torch.long, device=device)

    return Workload("mine", lambda: nn.Linear(8, 2), make_batch, nn.functional.cross_entropy)

healthy = lambda: make()
half = lambda: make(lambda asked: asked // 2)
one_more = lambda: make(of_last_rank)

@pytest.mark.cases("weak")
@pytest.mark.parametrize("slip", ["half", "one_more", "healthy"])
def test_slip(lockstep, slip, workload, precision, local_batch):
    model = workloads.make(f"slips:{slip}")
    with build_step(lockstep, model, local_batch, precision=precision) as step:
        lockstep.measure(step, samples=step.samples, ddp=step.ddp, unit=model.sample_unit)
"""


@pytest.mark.chaos
def test_a_workload_that_counts_wrongly_fails_its_own_case_alone(run_ranks, tmp_path):
    (tmp_path / "slips.py").write_text(SLIPS)
    suite(tmp_path, tmp_path / "slips.py")
    arguments = [
        *("-m", "pytest", "bench", "--size=smoke", "--device=cpu"),
        *("--threads-per-rank=1", "--benchmark-json=out.json"),
    ]
    run_ranks([arguments] * 2, tmp_path, PYTHONPATH=str(tmp_path))
    path = tmp_path / "out.json"
    launch = json.loads(path.read_text())[KEY]
    failed = {end["case"].rpartition("-")[2].rstrip("]"): end for end in launch["failed"]}
    assert set(failed) == {"half", "one_more"}
    said = "workload slips:half returned 16 items instead of 32; return"
    assert said in failed["half"]["reason"]
    own, others = failed["one_more"]["causes"]
    assert (own["rank"], own["kind"], others["kind"]) == (1, "fault", "consequence")
    assert "OtherRankError" in others["error"]  # it did not wait for the time-out
    (row,) = gather([path]).rows
    assert "healthy" in row.case
