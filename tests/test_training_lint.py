"""What is found in a training script: each rule on a bad and a good one, and our own examples."""

import ast
import json
from pathlib import Path

import pytest
import stand_ins

from lockstep.slurm.lint.training.training_linter import RULES, lint, load
from lockstep.slurm.lint.training.training_script import Script

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
        f"{FORM}loader = DataLoader(data, shuffle=True)\n",
        f"{FORM}loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))\n",
    ),
    "SYNC-IN-STEP": (
        LOOP.format("total += loss.item()"),
        LOOP.format("if batch % 100 == 0: print(loss.item())"),
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
    return [one.rule for one in lint(Script("train.py", ast.parse(text)))]


def head_of(rule, is_good):
    """Return what comes before an example; the bad one of some rules lacks a part of it."""
    without = {"GPU-ZERO": "torch.cuda.set_device", "NO-SEED": "torch.manual_seed"}.get(rule)
    lines = HEAD.splitlines(keepends=True)
    return "".join(line for line in lines if is_good or not without or without not in line)


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_a_rule_finds_the_bad_script_and_not_the_good_one(rule):
    bad, good = EXAMPLES[rule]
    assert found(head_of(rule, False) + bad) == [rule]
    assert found(head_of(rule, True) + good) == []


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        # the first rank goes before the others
        ("if rank > 0:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()\n", False),
        ("if rank == 0:\n    save()\n    torch.distributed.barrier()\n", True),
        ("def f():\n    if rank != 0:\n        return\n    dist.all_reduce(x)\n", True),
        ("def f():\n    if rank != 0:\n        return\n    save(x)\n", False),
        ("if rank == 0:\n    print(x)\nelse:\n    dist.reduce(x, 0)\n", True),
        ("if step == 0:\n    dist.all_reduce(x)\n", False),
        ("if rank == 0:\n    dist.send(x, 1)\n    functools.reduce(add, x)\n", False),
    ],
)
def test_collectives_that_some_ranks_leave_out(text, is_found):
    assert found(HEAD + text) == (["RANK-COLLECTIVE"] if is_found else [])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_our_own_examples_have_no_error(path):
    assert [one for one in lint(load(str(path))) if one.severity == "error"] == []


def test_a_finding_names_its_line_and_another_language_is_refused(tmp_path):
    (tmp_path / "train.py").write_text(f"{HEAD}model = torch.nn.DataParallel(model)\n")
    ended = stand_ins.lockstep("lint train.py --json", tmp_path, "/nowhere")
    (finding,) = json.loads(ended.stdout)["findings"]
    assert (finding["rule"], finding["line"], ended.returncode) == ("DATA-PARALLEL", 3, 1)
    (tmp_path / "train.py").write_text("#!/bin/bash\nif true; then\n")
    assert stand_ins.lockstep("lint train.py", tmp_path, "/nowhere").returncode == 2
