"""What is found in a training script: each rule on a bad and a good one, and our own examples."""

import ast
import json
from pathlib import Path

import pytest
import stand_ins

from lockstep.before.lint.rules import judge
from lockstep.before.lint.training import TRAINING, Script, load

ROOT = Path(__file__).parents[1]
HEAD = "torch.manual_seed(0)\ntorch.cuda.set_device(local_rank)\n"
SAMPLED = "sampler = DistributedSampler(data)\nfor epoch in range(9):\n    {}\n"
LOOP = """for epoch in epochs:
    for batch in loader:
        loss = step(batch)
        loss.backward()
        {}
    print(loss.item())
"""
FORM = "dist.init_process_group()\n"
# rule -> (a script that breaks it, one that breaks none); both follow HEAD
EXAMPLES = {
    "SET-EPOCH": (SAMPLED.format("pass"), SAMPLED.format("sampler.set_epoch(epoch)")),
    "NO-SAMPLER": (
        f"{FORM}loader = DataLoader(data, shuffle=True, num_workers=4)\n",
        f"{FORM}s = DistributedSampler(data, shuffle=False)\n"
        "loader = DataLoader(data, sampler=s, num_workers=n)\n",
    ),
    "SYNC-IN-STEP": (
        LOOP.format("total += loss.item()"),
        LOOP.format("if batch % 100 == 0: print(loss.item())"),
    ),
    "STEP-COLLECTIVE": (
        LOOP.format("dist.all_reduce(loss)"),
        LOOP.format("if batch % 100 == 0: dist.all_reduce(loss)"),
    ),
    "UNUSED-PARAMETERS": (
        "model = DDP(model, find_unused_parameters=True)\n",
        "model = DDP(model)\n",
    ),
    "NO-WORKERS": (
        f"{FORM}loader = DataLoader(data, num_workers=0)\n",
        f"{FORM}loader = DataLoader(data, **options)\n",
    ),
    "NO-SYNC": (
        "model = DDP(model)\n" + LOOP.format("if (batch + 1) % 8 == 0: optimizer.step()"),
        "model = DDP(model)\n" + LOOP.format("optimizer.step()"),
    ),
    "RANK-FILES": (
        f"{FORM}torch.save(state, 'model.pt')\n",
        f"{FORM}if rank == 0:\n    torch.save(state, 'model.pt')\n",
    ),
    "RANK-DEVICE": (
        "torch.cuda.set_device(dist.get_rank())\n",
        "torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())\n",
    ),
    "GLOO": (
        "dist.init_process_group('gloo')\nmodel.cuda()\n",
        "dist.init_process_group('cpu:gloo,cuda:nccl')\nmodel.cuda()\n",
    ),
    "RANK-COLLECTIVE": (
        "if dist.get_rank() == 0:\n    dist.all_reduce(total)\n",
        "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)\n",
    ),
    "DATA-PARALLEL": ("model = nn.DataParallel(model)\n", "model = DDP(model)\n"),
    "FIXED-PORT": (
        'os.environ["MASTER_PORT"] = "29500"\n',
        'os.environ["MASTER_PORT"] = str(20000 + job % 10000)\n',
    ),
    "GPU-ZERO": (f"{FORM}model.cuda()\n", f"{FORM}model.cuda(local_rank)\n"),
    "NO-SEED": ("loss.backward()\n", "loss.backward()\n"),
}


def found(text):
    return [one.rule for one in judge(Script("train.py", ast.parse(text)), TRAINING)]


def head_of(rule, is_good):
    """Return what comes before an example; the bad one of some rules lacks a part of it."""
    without = {
        "GPU-ZERO": "torch.cuda.set_device",
        "RANK-DEVICE": "torch.cuda.set_device",
        "NO-SEED": "torch.manual_seed",
    }.get(rule)
    lines = HEAD.splitlines(keepends=True)
    return "".join(line for line in lines if is_good or not without or without not in line)


@pytest.mark.parametrize("rule", [rule.name for rule in TRAINING])
def test_a_rule_finds_the_bad_script_and_not_the_good_one(rule):
    bad, good = EXAMPLES[rule]
    assert found(head_of(rule, False) + bad) == [rule]
    assert found(head_of(rule, True) + good) == []


@pytest.mark.parametrize(("text", "is_found"), [
    # the first rank goes before the others
    ("if rank > 0:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()\n", False),
    ("if rank == 0:\n    save()\n    torch.distributed.barrier()\n", True),
    ("def f():\n    if rank != 0:\n        return\n    dist.all_reduce(x)\n", True),
    ("if rank == 0:\n    print(x)\nelse:\n    dist.reduce(x, 0)\n", True),
    ("if rank == 0:\n    dist.send(x, 1)\n    functools.reduce(add, x)\n", False),
])  # fmt: skip
def test_collectives_that_some_ranks_leave_out(text, is_found):
    assert found(HEAD + text) == (["RANK-COLLECTIVE"] if is_found else [])


IN_FUNCTION = """def one(batch):
    loss = model(batch)
    loss.backward()
    {}
for batch in loader:
    one(batch)
    {}
"""
OWN_GPU = 'rank = dist.get_rank()\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
SAVING = """def save():
    torch.save(state, "model.pt")
dist.init_process_group()
{}
"""


@pytest.mark.parametrize(("text", "rules"), [
    # A validation's order does not matter; of a wrapped model DDP sends the parameters.
    ("loader = DataLoader(x, sampler=DistributedSampler(test_set))\n", []),
    ("sampler = DistributedSampler(train_set)\n", ["SET-EPOCH"]),
    ("def test_a(lockstep):\n    sampler = DistributedSampler(train_set)\n", []),
    (f"{FORM}p.add_argument('--num-w', default=0)\nDataLoader(x, num_workers=a.num_w)\n"
     "test_loader = DataLoader(x)\n", ["NO-WORKERS"]),
    # What is done in each step, also where a function is the step, or rank 0 does it.
    (IN_FUNCTION.format("print(f'{loss}')", "pass"), ["SYNC-IN-STEP"]),
    (IN_FUNCTION.format("print(loss.shape)", "time.sleep(1)"), []),
    (LOOP.format("if rank == 0: writer.add_scalar('loss', loss)"), ["SYNC-IN-STEP"]),
    # One rank writes, or each its own file, or they take turns.
    (SAVING.format("save()"), ["RANK-FILES"]),
    (f"{FORM}if rank != 0: dist.barrier()\ndata = CIFAR10(download=True)\n"
     "if rank == 0: dist.barrier()\n", []),
    # The GPU of a rank: by its number on the node.
    ('rank = int(os.environ["RANK"])\ntorch.cuda.set_device(rank)\n', ["RANK-DEVICE"]),
    ('rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(rank)\n', []),
    (f"{OWN_GPU}net = DDP(net, device_ids=[rank])\nx.to(device)\n", ["RANK-DEVICE"]),
    # DDP's forward is a collective call where the model has buffers.
    ("model = DDP(net)\nif rank == 0:\n    model(x)\n", ["RANK-COLLECTIVE"]),
    ("model = DDP(net)\nif rank == 0:\n    model.module(x)\n", []),
    ("model = DDP(net)\nfor x in data:\n    with model.no_sync():\n        f(x).backward()\n"
     "    if i % 4 == 0:\n        optimizer.step()\n", []),
    ("kwargs = DistributedDataParallelKwargs(find_unused_parameters=True)\n",
     ["UNUSED-PARAMETERS"]),
])  # fmt: skip
def test_what_costs_each_step_or_fails_on_a_second_node(text, rules):
    assert found(HEAD + text) == rules


@pytest.mark.parametrize(("text", "rules"), [
    (f"{FORM}model.to('cuda:0')\n", ["GPU-ZERO"]),
    (f"{FORM}fully_shard(model)\nmodel.to_empty(device=torch.device('cuda'))\n", []),
    ("model = DDP(model)\nloss.backward()\n", []),
])  # fmt: skip
def test_a_mesh_sets_the_gpu_and_ddp_sends_the_parameters(text, rules):
    assert found(text) == rules


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_our_own_examples_have_no_error(path):
    assert [one for one in judge(load(str(path)), TRAINING) if one.severity == "error"] == []


def test_a_finding_names_its_line_and_another_language_is_refused(tmp_path):
    (tmp_path / "train.py").write_text(f"{HEAD}model = torch.nn.DataParallel(model)\n")
    ended = stand_ins.lockstep("lint train.py --json", tmp_path, "/nowhere")
    (finding,) = json.loads(ended.stdout)["findings"]
    assert (finding["rule"], finding["line"], ended.returncode) == ("DATA-PARALLEL", 3, 1)
    (tmp_path / "train.py").write_text("#!/bin/bash\nif true; then\n")
    assert stand_ins.lockstep("lint train.py", tmp_path, "/nowhere").returncode == 2


@pytest.mark.parametrize(("text", "variables"), [
    (FORM, ["MASTER_ADDR", "WORLD_SIZE"]),
    ("dist.init_process_group('nccl', rank=r, world_size=n)\n", ["MASTER_ADDR"]),
    ("def setup():\n    dist.init_process_group()\nif args.distributed:\n    setup()\n", []),
    ("def f():\n    if not many:\n        return\n    dist.init_process_group()\nf()\n", []),
])  # fmt: skip
def test_variables_by_which_ranks_surely_meet(text, variables):
    assert Script("train.py", ast.parse(text)).find_variables() == variables
