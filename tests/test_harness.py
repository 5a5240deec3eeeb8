"""What a case gets from us: whom it names as the rank that holds the others up, and what fits."""

import json
import socket
from collections import UserDict
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from launched import suite
from torch import zeros

from lockstep.core.flags import flag
from lockstep.core.record import KEY
from lockstep.measure import harness
from lockstep.measure.batches import Goal
from lockstep.measure.harness import Harness, Measurement, Part
from lockstep.measure.loop_variants import Loop, halved
from lockstep.report.load.reading import gather
from lockstep.workloads import trees

ROOT = Path(__file__).parents[1]
SMOKE = ("-m", "pytest", ROOT / "bench", "--size", "smoke")


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
    own_s = [[one * (1 + 0.001 * (turn % 2)) for turn in range(TURNS)] for one in own_s]

    def found(num_turns):
        parts = [Part([1.0], variant_s={"own": rank[:num_turns]}) for rank in own_s]
        return [one.values for one in harness.find_flags(parts, list("abcd"))]

    assert [(one["rank"], one["host"], one["ratio"]) for one in found(TURNS)] == (
        [(slow[0], "abcd"[slow[0]], pytest.approx(slow[1]))] if slow else []
    )
    assert found(2) == []


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
    with pytest.raises(ValueError, match="no whole number of 1 or more"):
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
        return [each.to_dict() for each in own.contradiction()]

    seen = [] if items is None else [{"kind": "other-samples", "samples": samples, "items": items}]
    assert flags("samples") == seen
    assert flags("tokens") == seen[: len(trees.parts(batch)) == samples]


def test_of_what_a_step_holds_only_the_number_of_its_parts_is_no_number_of_samples():
    pair, average = (X, Y), [zeros(64)] * 3

    def step(batch=None):
        return pair, average

    own = Measurement(step, 2, unit="rows")
    assert [each.values["items"] for each in own.contradiction()] == [256]
    other = replace(own, step=partial(print, pair))
    assert [each.kind for each in other.contradiction()] == ["other-samples"]
    assert not replace(own, samples=256).contradiction()
    assert not replace(own, samples=300).contradiction()


def test_half_of_a_dataclass_is_half_of_its_tensors():
    half = halved(Batch(X, Y))
    assert (half.rows.shape, half.labels.shape, half.name) == ((128, 64), (128,), "digits")


class Once:
    batches = iter([1, 2])

    def __iter__(self):
        return self.batches


def test_batches_that_hold_none_are_refused_and_used_up_ones_named(only_rank):
    with pytest.raises(ValueError, match="batches holds no batch"):
        only_rank.measure(print, samples=1, batches=[])
    loop = Loop(lambda batch: None, [], Once())
    assert loop.problem() == ""
    loop.drawing()()
    with pytest.raises(RuntimeError, match="used up at step 2; give a DataLoader"):
        loop.drawing()()


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


SLOW_RANK = """
import os
import time
from dataclasses import replace
from lockstep.workloads.mlp import mlp

def make():
    plain = mlp(width=64, depth=2)
    def loss(outputs, targets):
        time.sleep(0.05 if os.environ["RANK"] == "1" else 0.02)
        return plain.loss(outputs, targets)
    return replace(plain, loss=loss)
"""


@pytest.mark.slow
def test_a_slow_rank_is_flagged_with_its_host(run_ranks, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_RANK)
    options = ["--workload", "slow:make", "--rounds", "40", "--benchmark-json", "out.json"]
    arguments = [*SMOKE, "-m", "weak", *options]
    ended = run_ranks([arguments] * 2, tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stdout
    (entry,) = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    block = entry["extra_info"][KEY]
    variants = block["details"]["rank_variant_s"]
    assert set(variants) == {"full", "own", "half", "reduce", "running"}
    assert len({len(turns) for ranks in variants.values() for turns in ranks}) == 1
    zero_s, one_s = map(min, variants["own"])
    assert one_s > zero_s > 0.02
    (found,) = [flag for flag in block["flags"] if flag["kind"] == "straggler"]
    assert (found["rank"], found["host"]) == (1, socket.gethostname())


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
    assert "ValueError: test_twice has measured already" in ended[0].stdout


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


@pytest.mark.chaos
@pytest.mark.slow
def test_a_batch_beyond_memory_fails_on_all_ranks_before_it_is_made(run_ranks, tmp_path):
    arguments = [
        *(*SMOKE, "-m", "weak"),
        *("--local-batch", "1000000", "--workload", "resnet50:image=10000", "--comm-timeout", "30"),
    ]
    zero, one = run_ranks([arguments] * 2, tmp_path)
    assert (zero.returncode, one.returncode) == (1, 1)
    assert "ValueError: rank 0 on " in zero.stdout
    assert "GiB for its batch of 1000000, but " in zero.stdout


SLIPS = """
import pytest
import torch
from torch import distributed, nn
from lockstep import workloads
from lockstep.measure.step.step_cases import build_step
from lockstep.workloads import Workload

def of_last_rank(asked):
    return asked + (distributed.get_rank() + 1 == distributed.get_world_size())

def make(num_of=lambda asked: asked, **facts):
    def make_batch(num_items, device, generator):
        shape = (num_of(num_items), 8)
        inputs = torch.randn(shape, device=device, generator=generator)
        return inputs, torch.zeros(len(inputs), dtype=torch.long, device=device)

    loss = nn.functional.cross_entropy
    return Workload("mine", lambda: nn.Linear(8, 2), make_batch, loss, **facts)

healthy = lambda: make()
half = lambda: make(lambda asked: asked // 2)
one_more = lambda: make(of_last_rank)
floats = lambda: make(samples_per_item=1.5)
no_unit = lambda: make(sample_unit=None)
negative = lambda: make(samples_per_item=-1)

@pytest.mark.cases("weak")
@pytest.mark.parametrize("slip", ["half", "one_more", "floats", "no_unit", "negative", "healthy"])
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
    reasons = {slip: end["reason"] for slip, end in failed.items()}
    assert set(reasons) == {"half", "one_more", "floats", "no_unit", "negative"}
    assert "workload slips:half was asked for 32 items and returned 16; return" in reasons["half"]
    own, others = failed["one_more"]["causes"]
    assert (own["rank"], own["kind"], others["kind"]) == (1, "fault", "consequence")
    assert "OtherRankError" in others["error"]  # it did not wait for the time-out
    assert "samples_per_step is 96.0, which is no whole number of 1 or more" in reasons["floats"]
    assert "sample_unit is None; give a text, such as 'images'" in reasons["no_unit"]
    assert "samples_per_step is -64, which is no whole number" in reasons["negative"]
    (row,) = gather([path]).rows
    assert "healthy" in row.case
