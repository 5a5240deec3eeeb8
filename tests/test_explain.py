"""`lockstep.explain` in scripts as users write them: a card, a record, and nothing else changed."""

import json
from pathlib import Path

import pytest
import torch
from launched import again_if_disturbed
from test_snapshot import exact
from torch import nn

import lockstep
from lockstep.measure.causes.card import KINDS as BOUND

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
SECONDS = "2"
KINDS = {*BOUND, "open"}


def run_script(run_ranks, folder, script, *options):
    folder.mkdir()
    ended = run_ranks([[script, "--save", "rank", *options]] * 2, folder)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    saved = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]
    return [rank.stdout for rank in ended], [exact(state) for state in saved]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_training_goes_on_as_if_nobody_had_asked(run_ranks, tmp_path, script):
    plain, state = run_script(run_ranks, tmp_path / "plain", script)
    asked, same = run_script(run_ranks, tmp_path / "asked", script, "--explain", SECONDS)
    assert same == state  # parameters, optimizer, schedule, scaler, loss curve: to the last bit
    assert asked[1] == plain[1]
    assert asked[0].endswith(plain[0])
    card = asked[0].removesuffix(plain[0]).splitlines()
    record = json.loads((tmp_path / "asked" / "lockstep-explain.json").read_text())
    assert 6 <= len(card) <= 16
    assert record["bound"]["kind"] in KINDS
    assert {len(turns) for turns in record["rank_variant_s"].values()} == {2}
    assert record["notes"] == []


class Script:
    """What a plain `python train.py` has: a model, its optimizer, and a step on a batch."""

    def __init__(self):
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch):
        loss = self.model(batch).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def refusing_step(self, batch):
        self.step(batch)
        if len(batch) != 4:
            raise RuntimeError(len(batch))


def asked(step, **options):
    return lockstep.explain(step, seconds=0.01, out=None, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "batches", "variants"),
    [
        ("step", [torch.ones(4, 8)], {"full", "resident", "own", "half"}),
        ("refusing_step", [torch.ones(4, 8)], {"full", "resident", "own"}),
    ],
    ids=["loader", "step-of-one-shape"],
)
def test_batches_show_what_the_step_waits_for(tmp_path, step, batches, variants):
    out = tmp_path / "record.json"
    script = Script()
    size = len(batches[0])
    lockstep.explain(getattr(script, step), batches=batches, seconds=0.01, out=out, samples=size)
    record = json.loads(out.read_text())
    assert record["samples_per_s"] == pytest.approx(size / record["bound"]["step_s"])
    assert script.optimizer.state_dict() == Script().optimizer.state_dict()
    assert set(record["rank_variant_s"]) == variants | {"running", "draw"}
    assert [note["kind"] for note in record["notes"]] == ["alone"]


def test_a_step_that_fails_leaves_nothing_behind():
    script = Script()
    before = script.model.weight.tolist()
    with pytest.raises(RuntimeError, match="1"):
        asked(script.refusing_step, batches=[torch.ones(1, 8)])
    assert script.model.weight.tolist() == before
    assert script.model.weight.grad is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seconds": 0}, "seconds=0 is not"),
        ({"samples": 2, "batches": [(torch.ones(8, 8), torch.ones(8))]}, "holds 8 items"),
        ({"batches": []}, "is empty"),
        ({"out": "nowhere/record.json"}, "the folder of out="),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        lockstep.explain(**{"step": Script().step, "seconds": 0.01} | wrong)


def test_an_iterator_keeps_its_batches_and_a_script_must_have_joined(monkeypatch):
    batches = iter([1, 2])
    with pytest.raises(ValueError, match="list_iterator"):
        asked(Script().step, batches=batches)
    assert list(batches) == [1, 2]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="after init_process_group"):
        asked(lambda: None)


SLOW_RANK = """
import json, time
from torch import distributed, nn, ones
from torch.nn.parallel import DistributedDataParallel
import lockstep

distributed.init_process_group("gloo")
layers = nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)  # whose buffers DDP sends, too
model = DistributedDataParallel(nn.Sequential(*layers))

def step():
    model(ones(4, 8)).sum().backward()
    time.sleep(0.04 + 0.04 * distributed.get_rank())

found = lockstep.explain(step, seconds=3, out=None)
distributed.barrier()
print(json.dumps(found))
"""


@pytest.mark.slow
@again_if_disturbed
def test_a_slow_rank_is_named_on_every_rank(run_ranks, tmp_path):
    (tmp_path / "script.py").write_text(SLOW_RANK)
    ended = run_ranks([["script.py"]] * 2, tmp_path)
    first, second = (json.loads(rank.stdout.splitlines()[-1]) for rank in ended)
    assert first == second
    assert (first["notes"], first["bound"] is None) == ([], False)
    assert (first["bound"]["kind"], first["bound"]["slow"]["rank"]) == ("imbalance", 1)
    assert first["bound"]["slow"]["ratio"] == pytest.approx(2, rel=0.2)


UNEVEN = """
import random, sys, time
from torch import distributed, nn, ones, tensor
from torch.nn.parallel import DistributedDataParallel
import lockstep

distributed.init_process_group("gloo")
rank, kind, count = distributed.get_rank(), sys.argv[1], 0
model = DistributedDataParallel(nn.Linear(8, 1))

def step(batch):
    global count
    model(batch["x"]).sum().backward()
    time.sleep(0.02 * float(batch["length"]))
    if kind == "together" and count % 4 == 3 or kind == "one" and count % 5 == 4 and rank == 1:
        time.sleep(0.1)
    count += 1

draw = random.Random(rank)
lengths = [draw.choice([0.5, 3.5]) if kind == "lengths" else 1.0 for _ in range(200)]
batches = [{"x": ones(4, 8), "length": tensor(each)} for each in lengths]
found = lockstep.explain(step, model=model, batches=batches, seconds=6, out=f"{rank}.json")
distributed.barrier()
print(found["order_seed"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "waiting_s", "rare_s"),
    [("together", 0.0, 0.025), ("one", 0.02, 0.0), ("lengths", 0.0236, 0.0)],
)
@again_if_disturbed
def test_what_comes_in_some_steps_or_with_the_batch_is_told_from_what_ranks_wait_for(
    run_ranks, tmp_path, kind, waiting_s, rare_s
):
    (tmp_path / "script.py").write_text(UNEVEN)
    ended = run_ranks([["script.py", kind]] * 2, tmp_path)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr
    record = json.loads((tmp_path / "0.json").read_text())
    assert {int(rank.stdout.split()[-1]) for rank in ended} == {record["order_seed"]}
    bound = record["bound"]
    seconds = {share["cause"]: share["seconds"] for share in bound["shares"]}
    # The sleeps are known in seconds; their share falls where a busy machine draws out the rest.
    near = 0.15 * bound["step_s"]
    assert seconds["imbalance"] == pytest.approx(waiting_s, abs=near)
    assert seconds["input"] < near
    assert (bound["rare"] or {}).get("seconds", 0.0) == pytest.approx(rare_s, abs=near)
    assert (bound["kind"] == "imbalance") == bool(waiting_s)


BATCHES_OF_RANKS = """
import json, sys
from torch import distributed, nn, ones
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
import lockstep

distributed.init_process_group("gloo")
rank = distributed.get_rank()

def ask(sizes, how):
    model = DistributedDataParallel(nn.Linear(8, 1))
    if how == "hooked":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)

    def step(batch):
        model(batch).sum().backward()
        if how == "synced":  # as SyncBatchNorm does
            distributed.all_reduce(batch.sum())

    batches = [ones(int(sizes[rank]), 8)]
    lockstep.explain(step, batches=batches, seconds=0.1, out=f"{sizes}-{how}-{rank}.json")
    distributed.barrier()

for asked in sys.argv[1:]:
    ask(*asked.split("-", 1))
"""
# Batches of the two ranks, and what their step does -> its variants, and how many waits are told.
OF_RANKS = {
    "44-plain": ({"half", "reduce"}, 0),
    "41-synced": ({"reduce"}, 1),
    "44-hooked": ({"half"}, 0),  # what a hook sends is not known
}


@pytest.fixture(scope="module")
def of_ranks(run_ranks, tmp_path_factory):
    """The folder with what two ranks were told of each."""
    folder = tmp_path_factory.mktemp("of-ranks")
    (folder / "script.py").write_text(BATCHES_OF_RANKS)
    ended = run_ranks([["script.py", *OF_RANKS]] * 2, folder)
    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr
    return folder


@pytest.mark.parametrize("asked", OF_RANKS)
def test_ranks_agree_on_their_variants_and_no_cause_is_told_where_they_wait(of_ranks, asked):
    variants, waits = OF_RANKS[asked]
    record = json.loads((of_ranks / f"{asked}-0.json").read_text())
    assert set(record["rank_variant_s"]) & {"half", "reduce"} == variants
    assert [(note["kind"], note["count"]) for note in record["notes"]] == (
        [("collectives", waits)] if waits else []
    )
    bound = record["bound"]
    assert (bound["kind"] == "open" and not bound["shares"] and not bound["slow"]) or not waits


STATIC = """
from torch import distributed, nn, ones
from torch.nn.parallel import DistributedDataParallel
import lockstep

distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(8, 1), static_graph=True)
step = lambda: model(ones(4, 8)).sum().backward()
for _ in range(2):
    try:
        lockstep.explain(step, seconds=0.1, out=None)
        print("explained")
    except ValueError:
        print("refused")
    step()
distributed.barrier()
"""


@pytest.mark.slow
def test_a_static_graph_is_recorded_by_the_training(run_ranks, tmp_path):
    (tmp_path / "script.py").write_text(STATIC)
    for rank in run_ranks([["script.py"]] * 2, tmp_path):
        found = [line for line in rank.stdout.splitlines() if line in ("refused", "explained")]
        assert found == ["refused", "explained"], rank.stderr


ONE_RANK_ASKS = """
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
import lockstep
from lockstep.measure import explain as explanation

explanation.PATIENCE_S = 2.0
distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(1, 1))
if distributed.get_rank() == 1:
    lockstep.explain(lambda: None, model=model)
distributed.barrier()
"""


@pytest.mark.slow
def test_a_rank_that_asks_alone_is_told_so(run_ranks, tmp_path):
    (tmp_path / "script.py").write_text(ONE_RANK_ASKS)
    _, one = run_ranks([["script.py"]] * 2, tmp_path)
    assert "rank 0" in one.stderr
    assert "call lockstep.explain on every rank" in one.stderr
