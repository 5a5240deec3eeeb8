"""`lockstep.explain` in scripts as users write them: a card, a record, and nothing else changed."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_snapshot import exact
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep
from lockstep.measure import explain as explanation
from lockstep.measure.causes.bound import NAMES
from lockstep.measure.causes.card import KINDS as BOUND
from lockstep.measure.causes.card import NEXT_OWN

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
        ("step", [torch.ones(1, 8)], {"full", "resident", "own"}),
        ("step", [torch.ones(5, 8)], {"full", "resident", "own"}),
        ("refusing_step", [torch.ones(4, 8)], {"full", "resident", "own"}),
    ],
    ids=["loader", "batch-of-one", "odd-batch", "step-of-one-shape"],
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


@pytest.mark.slow
def test_an_epoch_whose_workers_persist_goes_on_with_the_same_batches():
    def losses(asks):
        torch.manual_seed(0)
        data, script, seen = TensorDataset(torch.randn(24, 8)), Script(), []
        loader = DataLoader(data, 4, shuffle=True, num_workers=1, persistent_workers=True)
        for number, (batch,) in enumerate(loader):
            seen.append(script.step(batch))
            if asks and number == 1:
                asked(lambda drawn: script.step(drawn[0]), batches=loader)
        return seen

    assert losses(asks=True) == losses(asks=False)


class SlowData(Dataset):
    """Batches that take two workers 0.15 s each."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.3)
        return torch.ones(4, 8)


@pytest.mark.slow
def test_what_workers_fetch_during_other_turns_hides_nothing():
    script = Script()
    loader = DataLoader(SlowData(), None, num_workers=2, prefetch_factor=4)

    def step(batch):
        time.sleep(0.03)
        script.step(batch)

    # Of too few turns a busy machine shows nothing.
    found = lockstep.explain(step, seconds=10, out=None, batches=loader)["bound"]
    assert found["kind"] == "input"
    assert found["shares"][0]["seconds"] > 0.06  # of 0.12, and more where the machine is busy


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
        ({"samples": 1.5}, "samples=1.5 is not"),
        ({"samples": 2, "batches": [(torch.ones(8, 8), torch.ones(8))]}, "holds 8 items"),
        ({"batches": []}, "is empty"),
        ({"out": "nowhere/record.json"}, "the folder of out="),
        ({"step": 1}, "step is of type int"),
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


def test_the_device_is_that_of_what_is_trained_or_else_a_gpu():
    on_gpu = SimpleNamespace(device=torch.device("cuda", 1))
    host, gpu = nn.Linear(1, 1), SimpleNamespace(parameters=lambda: [on_gpu])
    assert explanation._device([], [host, gpu]) == on_gpu.device  # an EMA beside the model
    assert explanation._device([gpu], [host, gpu]) == on_gpu.device
    assert explanation._device([host], [gpu, host]).type == "cpu"
    assert explanation._device([], [host]).type == "cpu"


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
    time.sleep(0.02 + 0.02 * distributed.get_rank())

found = lockstep.explain(step, seconds=1, out=None)
distributed.barrier()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_slow_rank_is_named_on_every_rank(run_ranks, tmp_path):
    (tmp_path / "script.py").write_text(SLOW_RANK)
    ended = run_ranks([["script.py"]] * 2, tmp_path)
    first, second = (json.loads(rank.stdout.splitlines()[-1]) for rank in ended)
    assert first == second
    assert first["notes"] == []
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
        if how == "by-hand":  # and not by no_sync()
            model.require_backward_grad_sync = True
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
    "41-plain": ({"reduce"}, 0),
    "41-synced": ({"reduce"}, 1),
    "44-by-hand": ({"reduce"}, 1),
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
import sys
from torch import distributed, nn, ones
from torch.nn.parallel import DistributedDataParallel
import lockstep

distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(8, 1), static_graph=True)
step = lambda: model(ones(4, 8)).sum().backward()
for _ in range(int(sys.argv[1])):
    step()
try:
    lockstep.explain(step, seconds=0.1, out=None)
except ValueError:
    print("refused")
step()
print("goes on")
distributed.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("num_steps", "is_refused"), [(0, True), (1, False)])
def test_a_static_graph_is_recorded_by_the_training(run_ranks, tmp_path, num_steps, is_refused):
    (tmp_path / "script.py").write_text(STATIC)
    for rank in run_ranks([["script.py", str(num_steps)]] * 2, tmp_path):
        lines = rank.stdout.splitlines()
        assert ("refused" in lines, lines[-1]) == (is_refused, "goes on"), rank.stderr


ONE_RANK_ASKS = """
import sys
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
import lockstep
from lockstep.measure import explain as explanation

explanation.PATIENCE_S = 2.0
distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(1, 1))
if distributed.get_rank() == int(sys.argv[1]):
    lockstep.explain(lambda: None, model=model)
distributed.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_asks_alone_is_told_so(run_ranks, tmp_path, rank):
    script = tmp_path / "script.py"
    script.write_text(ONE_RANK_ASKS)
    ended = run_ranks([[script, str(rank)]] * 2, tmp_path)
    assert f"rank {1 - rank}" in ended[rank].stderr
    assert "call lockstep.explain on every rank" in ended[rank].stderr


def test_the_card_of_the_readme_has_the_lines_of_a_card():
    (block,) = re.findall(
        r"^```text\n(\S+-bound: .*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    headline, *rows = block.splitlines()
    words = re.fullmatch(r"(.*)-bound: a step takes [\d.]+ ms; reduce (.*) first\.", headline)
    assert words.group(1).lower() == BOUND["communication"]
    assert words.group(2) == NAMES["exposed"]
    causes = [re.split(r"  +", row.strip())[0] for row in rows if row.startswith("  ")]
    assert causes[0] == "compute"
    assert set(causes[1:]) <= set(NAMES.values())
    assert rows[-1] == f"next      {NEXT_OWN['communication']}"
