"""`--torch-trace`: what torch.profiler sees of a few steps, and what a part of a step takes."""

import gzip
import json
import subprocess
import sys

import pytest
from launched import ROOT, environ

from lockstep.launch.torch_trace import shares

MS = 1e3  # a trace counts microseconds


def test_parts_are_shares_of_the_steps_and_communication_may_hide_behind_others():
    spans = [
        ("ProfilerStep*", 0, 10 * MS),
        ("ProfilerStep*", 10 * MS, 20 * MS),
        ("DistributedDataParallel.forward", -5 * MS, 2 * MS),  # it began before the window
        ("autograd::engine::evaluate_function: AddmmBackward0", 2 * MS, 5 * MS),
        ("autograd::engine::evaluate_function: AddmmBackward0", 4 * MS, 6 * MS),
        ("gloo:all_reduce", 5 * MS, 8 * MS),
        ("Optimizer.step#SGD.step", 8 * MS, 9 * MS),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10 * MS, 15 * MS),
        ("gloo:barrier", 15 * MS, 16 * MS),  # before a round, and none of the step's
        ("aten::mm", 16 * MS, 20 * MS),  # of no part: it is inside of one, or of the loss
    ]
    found = shares(spans)
    assert (found.num_steps, found.step_s) == (2, pytest.approx(0.01))
    assert found.parts == pytest.approx(
        {"data": 0.25, "forward": 0.1, "backward": 0.2, "optimizer": 0.05, "communication": 0.15}
    )
    assert (found.exposed, found.rest) == pytest.approx((0.1, 0.3))
    assert shares([("aten::mm", 0, 1)]) is None


@pytest.mark.slow
def test_every_rank_leaves_a_trace_of_three_steps_and_no_result(tmp_path):
    ended = traced(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 steps of " in ended.stdout
    assert not (tmp_path / "results").exists()
    paths = sorted((tmp_path / "traces").glob("*.gz"))
    assert [path.name[-14:] for path in paths] == ["-w2-r0.json.gz", "-w2-r1.json.gz"]
    for path in paths:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        names = {event.get("name", "") for event in events}
        steps = {name for name in names if name.startswith("ProfilerStep#")}
        assert len(steps) == 3
        assert {"DistributedDataParallel.forward", "gloo:all_reduce"} <= names
    kept = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("traces/*.shares.json"))]
    assert [(one["world_size"], one["rank"], one["num_steps"]) for one in kept] == [
        *((2, 0, 3), (2, 1, 3)),
    ]
    assert all(0 < one["parts"]["forward"] < 1 for one in kept)


def test_a_traced_session_takes_no_file_for_results(tmp_path):
    ended = traced(tmp_path, "--journal=here.jsonl", num_ranks=1)
    assert ended.returncode == 4
    assert "--torch-trace slows" in ended.stderr


@pytest.mark.slow
def test_a_campaign_is_traced_at_each_size_and_measures_nothing(tmp_path):
    options = "--device cpu --studies weak --world-sizes 1,2 --torch-trace traces"
    ended = subprocess.run(
        [sys.executable, "-m", "lockstep", "run", "smoke", *options.split()],
        cwd=tmp_path, env=environ(ROOT), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not (tmp_path / "results").exists()
    names = sorted(path.name for path in tmp_path.glob("traces/*.shares.json"))
    ranks = ("-w1-r0", "-w2-r0", "-w2-r1")
    assert [name[name.rindex("-w") :] for name in names] == [f"{one}.shares.json" for one in ranks]


def traced(folder, *options, num_ranks=2):
    ranks = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "-m"]
    case = ROOT / "bench" / "test_weak_scaling.py"
    return subprocess.run(
        [
            *(sys.executable, "-m", *(ranks if num_ranks > 1 else []), "pytest", case, "-q"),
            *("--size=smoke", "--device=cpu", "--torch-trace=traces", *options),
        ],
        cwd=folder, env=environ(ROOT), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
