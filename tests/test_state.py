"""State that a case leaves behind is restored or flagged, for that case and not for the next."""

import json
from collections import defaultdict

import pytest
from launched import suite

from lockstep.core.record import KEY, case_name

CASES = """
import gc
import os
import random
import signal
import threading
import time
import numpy
import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset
from lockstep.measure.step.step_cases import measure_step

KEPT = []
LOADER = DataLoader(TensorDataset(torch.ones(8)), num_workers=1, persistent_workers=True)

def spin():
    while True:
        sum(range(1000))

def patch():
    whole = distributed.all_reduce
    distributed.all_reduce = lambda *a, **k: whole(*a, **k)

def drawn():
    return [float(torch.rand(1)), random.random(), float(numpy.random.rand())]

SLIPS = {
    "healthy": lambda: None,
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "autocast": lambda: os.environ["RANK"] == "1" and torch.set_autocast_enabled("cpu", True),
    "threads": lambda: torch.set_num_threads(2),
    "affinity": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "device": lambda: torch.set_default_device("meta"),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "tf32": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "folder": lambda: os.chdir("/"),
    "seeds": lambda: (torch.manual_seed(1), random.seed(1), numpy.random.seed(1)),
    "handler": lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    "variable": lambda: os.environ.update(SLIPPED="1"),
    "collector": gc.disable,
    "leak": lambda: KEPT.append(torch.ones(100_000_000)),
    "loader": lambda: KEPT.append(iter(LOADER)),  # its idle threads cost the next case nothing
    "spin": lambda: threading.Thread(target=spin, daemon=True, name="spinner").start(),
    "patched": patch,
    "destroyed": distributed.destroy_process_group,
}

@pytest.mark.cases("weak")
@pytest.mark.parametrize("number, slip", list(enumerate([*SLIPS, "healthy"])))
def test_case(lockstep, number, slip, workload, precision, local_batch):
    first = drawn()
    measure_step(lockstep, workload, local_batch, precision=precision)
    with open("drawn.txt", "a") as file:
        file.write(f"{os.environ['RANK']} {first}\\n")
    SLIPS[slip]()
"""
# slip -> kind, whether it is put back
EXPECTED = {
    "dtype": [("default_dtype", "torch.float32", "torch.float64", True)],
    "autocast": [("autocast_cpu", False, True, True)],
    "threads": [("num_threads", 1, 2, True)],
    "device": [("default_device", "cpu", "meta", True)],
    "deterministic": [("deterministic", 0, 2, True)],
    "handler": [("signals", {"SIGUSR2": 0}, {"SIGUSR2": 1}, True)],
    "variable": [("environment", {}, {"SLIPPED": "1"}, True)],
    "destroyed": [("process_group", True, False, False)],
}


@pytest.fixture(scope="module")
def launch(run_ranks, tmp_path_factory):
    """A launch of two ranks whose cases each leave something behind, but for the last."""
    folder = tmp_path_factory.mktemp("state")
    (folder / "cases.py").write_text(CASES)
    suite(folder, folder / "cases.py")
    arguments = [
        *("-m", "pytest", "bench", "--size=smoke", "--device=cpu", "--threads-per-rank=1"),
        "--benchmark-json=out.json",
    ]
    run_ranks([arguments] * 2, folder, PYTHONPATH=str(folder))
    drawn = (folder / "drawn.txt").read_text().splitlines()
    return json.loads((folder / "out.json").read_text()) | {"drawn": drawn}


def slip_of(case):
    return case.rstrip("]").rpartition("-")[2]


def flags_of(launch, kind):
    """Return case -> its flags of a kind."""
    return {
        case_name(entry): [
            f for f in entry["extra_info"][KEY]["flags"] if f["kind"].startswith(kind)
        ]
        for entry in launch["benchmarks"]
    }


def test_what_a_case_leaves_behind_is_a_record_that_names_it(launch):
    found = defaultdict(list)
    for left in launch[KEY]["left_behind"]:
        if left["rank"] == 1:
            facts = (left["kind"], left["before"], left["after"], left["is_restored"])
            found[slip_of(left["case"])].append(facts)
    assert {name: found[name] for name in EXPECTED} == EXPECTED
    others = found.keys() - EXPECTED
    assert {name: [(kind, restored) for kind, *_, restored in found[name]] for name in others} == {
        "affinity": [("affinity", True)],
        "collector": [("collector", True)],
        "folder": [("folder", True)],
        "tf32": [("backends", True)],
        "leak": [("memory_bytes", False)],
        "spin": [("python_threads", False)],
        "patched": [("collectives", True)],
    }
    assert "healthy" not in found


def test_the_next_case_is_measured_as_if_nothing_had_been_and_is_not_blamed(launch):
    assert launch[KEY]["failed"] == []
    blamed = {slip_of(name) for name, flags in flags_of(launch, "left-").items() if flags}
    assert blamed == {slip_of(left["case"]) for left in launch[KEY]["left_behind"]}
    assert len(set(launch["drawn"])) == 2  # each case of a rank begins with the same numbers
    assert "parameter-dtypes" not in json.dumps(launch["benchmarks"])


@pytest.mark.parametrize(
    ("kind", "slip", "what"),
    [("ran-beside", "spin", "thread spinner"), ("ran-under", "leak", "memory_bytes")],
)
def test_each_case_after_one_that_left_something_says_who_left_it(launch, kind, slip, what):
    flags = {
        name: {(flag["rank"], slip_of(flag["case"]), flag["what"]) for flag in own}
        for name, own in flags_of(launch, kind).items()
    }
    names = list(flags)
    after = next(i for i, name in enumerate(names) if slip_of(name) == slip) + 1
    assert not any(flags[name] for name in names[:after])
    assert all((1, slip, what) in flags[name] for name in names[after:])
    if kind == "ran-under":
        assert all(flags[name] == {(r, slip, what) for r in (0, 1)} for name in names[after:])
