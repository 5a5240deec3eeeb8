"""`lockstep run` and `make demo` on a machine that lacks what the campaign asks for."""

import json
import re
import sys
from pathlib import Path

import pytest
from commands import finish

ROOT = Path(__file__).parents[1]
CAMPAIGN = """
schema = 1
name = "laptop"
studies = ["weak"]
world_sizes = [1, 2]
repeats = 1
size = "smoke"
threads_per_rank = 1
"""
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
"""


@pytest.fixture
def machine(tmp_path, clean_environ):
    """Return a function that runs a command where each Python starts with a file of the test's."""

    def run(hook, *command, **own):
        (tmp_path / "hook").mkdir(exist_ok=True)
        if hook:
            (tmp_path / "hook" / "sitecustomize.py").write_text(hook)
        (tmp_path / "campaign.toml").write_text(CAMPAIGN)
        return finish(
            command or [sys.executable, "-m", "lockstep", "run", "campaign.toml"],
            cwd=tmp_path,
            env=clean_environ | {"PYTHONPATH": f"{tmp_path / 'hook'}:{ROOT}"} | own,
        )

    return run


def of_gpus():
    return (ROOT / "tests" / "samples" / "fewer_gpus.py").read_text()


@pytest.mark.chaos
@pytest.mark.slow
def test_on_one_gpu_what_needs_two_is_left_out_and_said(machine, tmp_path):
    ended = machine(of_gpus(), NUM_GPUS="1")
    assert ended.returncode == 0, ended.stderr
    assert "World size 2 is left out, because it needs one GPU per rank" in ended.stderr
    folder = tmp_path / "results" / "laptop"
    assert [path.name for path in (folder / "launches").iterdir()] == ["w1-r0"]
    (left_out,) = json.loads((folder / "campaign.json").read_text())["left_out"]
    assert left_out == {"kind": "too_few_gpus", "world_size": 2, "num_gpus": 1}


@pytest.mark.parametrize(("code", "ends", "commands"), [(1, 1, 3), (130, 130, 1)])
def test_the_demo_makes_the_page_where_launches_failed(code, ends, commands, tmp_path):
    command = tmp_path / "lockstep"
    command.write_text(f'#!/bin/sh\necho "$@" >> said\n[ "$1" != run ] || exit {code}\n')
    command.chmod(0o755)
    demo = ["make", "-f", ROOT / "Makefile", "demo", "-o", ".venv/bench", f"BIN={tmp_path}"]
    ended = finish(demo, cwd=tmp_path)
    wanted = ["run laptop", "run verify", "report results/laptop"]
    assert (tmp_path / "said").read_text().splitlines() == wanted[:commands]
    assert f"Error {ends}" in ended.stderr


def test_a_campaign_whose_sizes_all_need_more_gpus_is_refused_before_a_launch(machine, tmp_path):
    again = [sys.executable, "-m", "lockstep", "run", "campaign.toml", "--world-sizes", "2"]
    ended = machine(of_gpus(), *again, NUM_GPUS="1")
    assert (ended.returncode, ended.stderr) == (
        3,
        "Error: world size 2 needs one GPU per rank, but torch sees 1 GPU on this machine; give "
        "smaller --world-sizes, or pass --device cpu\n",
    )
    assert not (tmp_path / "results").exists()


def test_without_torch_one_sentence_comes_before_anything_starts(machine, tmp_path):
    ended = machine(WITHOUT_TORCH)
    assert ended.returncode == 3
    assert re.fullmatch(
        r"Error: this Python \(\S+\) lacks the packages that ranks need \(torch\); "
        r"run lockstep in an image that has these packages, or run pip install "
        r"'/path/\S+\[bench\]'\n",
        ended.stderr,
    )
    assert not (tmp_path / "results").exists()
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_ID": "0"}
    step |= {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_PROCID": "3"}
    for local, said in (("0", ended.stderr), ("1", "")):  # one sentence of each node
        ended = machine("", sys.executable, "-m", "lockstep", "screen", SLURM_LOCALID=local, **step)
        assert (ended.returncode, ended.stderr) == (3 if said else 0, said)


def test_that_there_is_no_gpu_is_said_once_where_no_device_was_asked_for(machine):
    start = [sys.executable, "-m", "lockstep", "run", "campaign.toml", "--dry-run"]
    for options, times in (([], 1), (["--device=cpu"], 0)):
        ended = machine("", *start, *options, CUDA_VISIBLE_DEVICES="")
        assert ended.returncode == 0, ended.stderr
        assert (ended.stdout + ended.stderr).count("torch sees no GPU, so") == times
