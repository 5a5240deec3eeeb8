"""What a launch measured is not mixed with another model, another suite or another host."""

import json
import re
import shutil

import pytest
from launched import suite

from lockstep.core.record import KEY
from lockstep.report.load.reading import gather

# A user's own workload, whose width may be edited, and a suite of one case.
MINE = """
import torch
from torch import nn
from lockstep.workloads import Workload

WIDTH = 8

def mine() -> Workload:
    def make_batch(num_items, device, generator):
        inputs = torch.randn(num_items, WIDTH, device=device, generator=generator)
        return inputs, torch.zeros(num_items, dtype=torch.long, device=device)

    return Workload("mine", lambda: nn.Linear(WIDTH, 2), make_batch, nn.functional.cross_entropy)
"""
CASES = """
import pytest
from lockstep import workloads
from lockstep.measure.step.step_cases import build_step

@pytest.mark.cases("accumulation")
def test_mine(lockstep, workload, precision, accumulation, no_sync, local_batch):
    with build_step(lockstep, workloads.make(workload), local_batch, precision=precision) as step:
        lockstep.measure(step, samples=step.samples, ddp=step.ddp)
"""
# Another host's name, as a resumed job on another node has it.
MOVED = "import socket\nsocket.gethostname = lambda: 'node-b'\n"


@pytest.fixture(scope="module")
def half(run_ranks, tmp_path_factory):
    """A launch that has two of its three cases, in a copy of the suite beside a user's workload."""
    folder = tmp_path_factory.mktemp("half")
    (folder / "cases.py").write_text(CASES)
    suite(folder, folder / "cases.py")
    (folder / "mine.py").write_text(MINE)
    (folder / "moved.py").write_text(MOVED)
    (ended,) = measure(run_ranks, folder, "out")
    assert ended.returncode == 0, ended.stdout
    journal = folder / "out.journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:5]))  # the head, and the begin and end of two cases
    return folder


def measure(run_ranks, folder, name, *options):
    arguments = [
        *("-m", "pytest", "bench", "--size=smoke", "--device=cpu", "--threads-per-rank=1"),
        *("--workload=mine:mine", f"--benchmark-json={name}.json", *options),
    ]
    return run_ranks([arguments], folder, PYTHONPATH=str(folder))


def blocks(path):
    return [one["extra_info"][KEY] for one in json.loads(path.read_text())["benchmarks"]]


@pytest.mark.parametrize(
    ("file", "slip", "said"),
    [
        (
            "mine.py",
            ("WIDTH = 8", "WIDTH = 64"),
            r"journal.jsonl holds \S+test_mine\S+, measured with another source of workload "
            r"mine:mine \(workload_sha256 \w{12}, now \w{12}\); put the source back, or measure",
        ),
        (
            "bench/test_faulted.py",
            ("precision=precision", 'precision="bf16"'),
            r"journal.jsonl was measured with suite_sha256 \w+, now it is \w+; results that differ "
            "in it are not pooled: measure into another folder",
        ),
    ],
)
def test_a_resume_with_another_source_is_refused(half, tmp_path, run_ranks, file, slip, said):
    folder = tmp_path / "copy"
    shutil.copytree(half, folder)
    path = folder / file
    path.write_text(path.read_text().replace(*slip))
    (ended,) = measure(run_ranks, folder, "out", "--resume")
    assert ended.returncode == 4
    assert re.search(said, ended.stderr), ended.stderr


@pytest.mark.chaos
def test_launches_of_one_name_and_two_models_are_not_pooled(half, tmp_path, run_ranks):
    folder = tmp_path / "copy"
    shutil.copytree(half, folder)
    (folder / "mine.py").write_text(MINE.replace("WIDTH = 8", "WIDTH = 64"))
    (ended,) = measure(run_ranks, folder, "other")
    assert ended.returncode == 0, ended.stdout
    found = gather([folder / "out.json", folder / "other.json"]).conflicts
    assert {one.fact for one in found} == {"workload_sha256", "gradient_bytes"}
    assert "has gradient_bytes 72 in launch out and 520 in launch other" in found[-1].message


@pytest.mark.chaos
def test_a_launch_that_goes_on_elsewhere_says_which_host_measured_what(half, tmp_path, run_ranks):
    folder = tmp_path / "copy"
    shutil.copytree(half, folder)
    (first,) = {tuple(block["rank_hosts"]) for block in blocks(folder / "out.json")}
    (ended,) = measure(run_ranks, folder, "out", "--resume", "-p", "moved")
    assert ended.returncode == 0, ended.stdout
    in_order = sorted(blocks(folder / "out.json"), key=lambda block: block["position"])
    assert [tuple(block["rank_hosts"]) for block in in_order] == [first, first, ("node-b",)]
    launch = json.loads((folder / "out.json").read_text())[KEY]
    assert [tuple(one["rank_hosts"]) for one in launch["sessions"]] == [first, ("node-b",)]
    for row in gather([folder / "out.json"]).rows:
        assert any(flag.kind == "moved" for flag in row.flags)
