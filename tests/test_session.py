"""Launches as pytest sees them: real ranks, one voice, one result, and what happens to failures."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import finish
from hypothesis import given
from hypothesis import strategies as st
from launched import copy_suite

from lockstep.core import journal
from lockstep.core.processes import hostname
from lockstep.core.record import KEY, CaseRecord, case_name
from lockstep.launch import options as launch_options
from lockstep.launch.items import select_part
from lockstep.report.load.contents import check_value

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SMOKE = ("-m", "pytest", ROOT / "bench", "--size", "smoke")

# What a site's own PyTorch container has not.
WITHOUT_HOST_LIBRARIES = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {names} else super().find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""
HOST_LIBRARIES = {"click", "jinja2", "matplotlib", "pandas", "pydantic", "rich", "scipy", "sklearn"}


def documents(folder):
    return sorted(path.name for path in folder.rglob("*") if path.suffix in (".json", ".jsonl"))


def errors(ended):
    return [line for line in ended.stderr.splitlines() if line.startswith("ERROR: ")]


def test_every_ranks_rounds_are_kept_and_the_slowest_counts(measured):
    path = measured / "fp32" / "launches" / "w2-r0" / "result.json"
    for entry in json.loads(path.read_text())["benchmarks"]:
        block = entry["extra_info"][KEY]
        zero, one = block["rank_round_s"]
        assert entry["stats"]["data"] == [max(pair) for pair in zip(zero, one, strict=True)]
        assert entry["options"]["timer"] == "slowest_rank"
        assert check_value(CaseRecord, block, "out.json").to_dict() == block
        assert all(block["peak_memory_bytes"])
        assert block["peak_reserved_bytes"] == [None, None]  # on CPUs


def test_pytest_benchmark_compares_our_files(measured, tmp_path):
    path = measured / "fp32" / "launches" / "w2-r0" / "result.json"
    ended = finish(
        [sys.executable, "-m", "pytest_benchmark", "compare", path, "--columns", "median"],
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    for entry in json.loads(path.read_text())["benchmarks"]:
        assert entry["name"] in ended.stdout


def test_disabled_runs_every_case_once_with_what_any_image_has(run_ranks, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(
        WITHOUT_HOST_LIBRARIES.format(names=HOST_LIBRARIES), encoding="ascii"
    )
    (ended,) = run_ranks(
        [[*SMOKE, "--benchmark-disable", "-m", "not sensitivity"]],
        tmp_path,
        PYTHONPATH=f"{blocked}:{ROOT}",
    )
    assert ended.returncode == 0, ended.stdout
    passed, skipped = (
        int(found[1]) if (found := re.search(rf"(\d+) {word}", ended.stdout)) else 0
        for word in ("passed", "skipped")
    )
    # Skipped are fp16 and tf32 where the device has none, bf16 where a CPU emulates it, and
    # collectives and bucket sizes of one rank.
    assert passed + skipped == 29
    assert passed >= 11
    assert documents(tmp_path) == []


def test_ranks_that_collected_other_cases_are_refused_before_the_first(run_ranks, tmp_path):
    common = [*SMOKE, "-m", "collective", "--journal", "journal.jsonl"]
    zero, one = run_ranks(
        [[*common, "-k", "broadcast"], [*common, "-k", "broadcast and 4096"]], tmp_path
    )
    (sentence,) = errors(zero)
    assert re.search(
        r"rank 1 collected other cases than rank 0 \(number of cases: 1 instead of 2\): only "
        r"one of the two ranks has the case "
        r"\S*test_collectives\[collective=broadcast-message_bytes=65536\]; give every rank the "
        r"same files and options$",
        sentence,
    )
    assert (zero.returncode, one.returncode) == (4, 4)
    assert one.stdout == ""
    assert "passed" not in zero.stdout
    assert not (tmp_path / "journal.jsonl").exists()


@given(st.integers(1, 60), st.integers(1, 90))
def test_the_parts_hold_every_case_once(num_cases, num_parts):
    items = list(range(num_cases))
    parts = [select_part(items, (k, num_parts)) for k in range(1, min(num_cases, num_parts) + 1)]
    assert sorted(item for part in parts for item in part) == items
    assert all(part == sorted(part) for part in parts)
    if num_parts > num_cases:
        with pytest.raises(ValueError, match="has no case"):
            select_part(items, (num_parts, num_parts))


COLLECTIVE = (*SMOKE, "-m", "collective", "--benchmark-json", "out.json")


def stop_once_measured(folder, num_cases):
    """Make the stop file once so many cases stand in the journal, the launch's head beside."""
    path = folder / "out.journal.jsonl"
    while not (path.exists() and path.read_bytes().count(b'"kind": "case"') >= num_cases):
        time.sleep(0.02)
    (folder / "stop").touch()


def test_a_stop_file_ends_a_launch_in_order_and_resume_measures_the_rest(tmp_path, clean_environ):
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2", *COLLECTIVE, "--stop-file", "stop"),
    ]
    options = {"cwd": tmp_path, "env": clean_environ, "capture_output": True, "text": True}
    stopper = threading.Thread(target=stop_once_measured, args=(tmp_path, 2), daemon=True)
    stopper.start()
    stopped = subprocess.run(command, **options, check=False)
    stopper.join(timeout=0)
    assert stopped.stderr.count("exitcode  : 75 ") == 2, stopped.stderr
    # Rank 0 alone prints and writes.
    assert stopped.stdout.count("test session starts") == 1
    assert stopped.stdout.count("lockstep: world size 2 on 1 node(s), gloo on ") == 1
    assert documents(tmp_path) == ["out.journal.jsonl", "out.json"]
    done = kept(tmp_path, "case", full=True)
    assert 2 <= len(done) < 10
    assert (
        f"stop exists, so the launch ends with {len(done)} of 10 cases finished; remove the file "
        "and run again with --resume --journal=out.journal.jsonl"
    ) in stopped.stdout
    assert f" {len(done)} passed" in stopped.stdout
    assert "Traceback" not in stopped.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    collectives = [name.partition("::")[2] for name in document[KEY]["expected"]]
    assert len(collectives) == 10
    assert [case_name(entry) for entry in document["benchmarks"]] == [
        case for case in collectives if case.removesuffix("]") in done
    ]
    assert document[KEY]["complete"] is False

    (tmp_path / "stop").unlink()
    resumed = subprocess.run([*command, "--resume"], **options, check=False)
    assert resumed.returncode == 0, resumed.stdout
    assert f" {10 - len(done)} passed" in resumed.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert [case_name(entry) for entry in document["benchmarks"]] == collectives
    assert document[KEY]["complete"] is True
    entries = journal.read(tmp_path / "out.journal.jsonl")
    ran = [e["case"].partition("::")[2] for e in entries if e["kind"] in journal.ENDS]
    assert ran != collectives  # each launch has a random order of its own, and keeps it
    place = {case_name(e): e["extra_info"][KEY]["position"] for e in document["benchmarks"]}
    assert [place[case] for case in ran] == list(range(10))


@pytest.mark.chaos
def test_every_rank_ends_as_rank_0_finds_the_stop_file(run_ranks, tmp_path):
    (tmp_path / "stop").touch()
    ended = run_ranks(
        [[*COLLECTIVE, "--stop-file", "stop"]] + [[*COLLECTIVE, "--stop-file", "elsewhere"]] * 2,
        tmp_path,
        launcher="slurm",
    )
    assert [rank.returncode for rank in ended] == [75, 75, 75]
    assert "stop exists, so the launch ends with 0 of 10 cases finished; " in ended[0].stdout
    assert [rank.stdout + rank.stderr for rank in ended[1:]] == ["", ""]


MEASURE = """
import os
import pytest

def measure(lockstep):
    round_s = lockstep.time(lambda: None)
    lockstep.record(
        round_s, workload="none", scaling=None, sample_unit="samples", samples_per_step=1
    )
"""
FAULTY = """

@pytest.mark.cases("strong")
def test_good(lockstep, workload, precision, global_batch):
    measure(lockstep)

@pytest.mark.cases("strong")
def test_raises(lockstep, workload, precision, global_batch):
    if lockstep.world.rank == 1:
        raise OSError("the disk of rank 1 is full")
    measure(lockstep)

@pytest.mark.cases("strong")
def test_wrong(lockstep, workload, precision, global_batch):
    measure(lockstep)
    assert lockstep.world.rank != 1, "a wrong result on one rank"

@pytest.mark.cases("strong")
def test_skips(lockstep, workload, precision, global_batch):
    if lockstep.world.rank == 1:
        pytest.skip("only rank 1 has no bf16")
    measure(lockstep)

@pytest.mark.cases("strong")
def test_skips_alike(lockstep, workload, precision, global_batch):
    pytest.skip("no rank has bf16")

@pytest.mark.skip(reason="marked")
@pytest.mark.cases("strong")
def test_marked(lockstep, workload, precision, global_batch):
    measure(lockstep)

@pytest.mark.cases("strong")
def test_dies(lockstep, workload, precision, global_batch):
    if lockstep.world.rank == 1:
        os._exit(9)
    measure(lockstep)

@pytest.mark.cases("strong")
def test_last(lockstep, workload, precision, global_batch):
    measure(lockstep)
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, run_ranks):
    """Sessions of two ranks, each resumed where the last one was stopped by a failure."""
    folder = tmp_path_factory.mktemp("faulty")
    arguments = [
        *own_cases(folder, MEASURE + FAULTY),
        *("--case-budget", "9", "--resume", "--skip-failed"),
    ]
    sessions = [run_ranks([arguments] * 2, folder, PYTHONPATH=str(folder)) for _ in range(2)]
    return folder, sessions


def kept(folder, kind, *, full=False):
    """Return short case name, or with its parameters, -> entry of one kind in the journal."""
    entries = journal.read(folder / "out.journal.jsonl")
    return {
        entry["case"].partition("::")[2].partition("]" if full else "[")[0]: entry
        for entry in entries
        if entry["kind"] == kind
    }


def test_a_failure_of_one_rank_is_one_of_all_and_names_it(faulty):
    folder, _ = faulty
    failed = kept(folder, "fail")
    first = {name: end["causes"][0] for name, end in failed.items()}
    assert {name: (cause["rank"], cause["kind"]) for name, cause in first.items()} == {
        "test_raises": (1, "fault"),
        "test_wrong": (1, "fault"),
        "test_skips": (1, "skip"),
        "test_dies": (1, "silence"),
    }
    assert {(cause["host"], cause["device"][:3]) for cause in first.values()} == {
        (hostname(), "cpu")
    }
    assert first["test_raises"]["error"] == "OSError: the disk of rank 1 is full"
    assert first["test_skips"]["error"] == "only rank 1 has no bf16"
    assert [cause["kind"] for cause in failed["test_raises"]["causes"]] == ["fault", "consequence"]
    assert len(failed["test_wrong"]["causes"]) == 1
    assert failed["test_dies"]["reason"].splitlines()[0].endswith("stacks/out.journal-rank-1.txt")


def test_a_launch_goes_on_after_a_failure_and_ends_where_a_rank_is_lost(faulty):
    _, (first, last) = faulty
    assert (first[0].returncode, first[1].returncode) == (70, 9)
    assert " 4 failed, 1 passed, 2 skipped" in first[0].stdout
    assert "the disk of rank 1 is full" in first[0].stdout
    assert "a wrong result on one rank" in first[0].stdout
    assert re.search(
        r"^lockstep: rank 1 on \S+ \(.*\) did not finish the case \S+::test_dies\S+ within "
        "9 s;",
        first[0].stderr,
        re.MULTILINE,
    )
    assert [rank.stdout for rank in (first[1], last[1])] == ["", ""]
    assert [rank.returncode for rank in last] == [0, 0], last[0].stdout


def test_what_failed_leaves_no_timings_and_what_ended_is_measured_once(faulty):
    folder, sessions = faulty
    document = json.loads((folder / "out.json").read_text())
    measured = [entry["name"].partition("[")[0] for entry in document["benchmarks"]]
    assert measured == ["test_good", "test_last"] == list(kept(folder, "case"))
    assert list(kept(folder, "skip")) == ["test_skips_alike", "test_marked"]
    assert document[KEY]["complete"] is False
    assert len(document[KEY]["expected"]) == 8
    assert len(document[KEY]["failed"]) == 4
    ends = [e for e in journal.read(folder / "out.journal.jsonl") if e["kind"] in journal.ENDS]
    assert len(ends) == len({entry["case"] for entry in ends}) == 8
    assert (
        "test_wrong"
        not in sessions[0][0].stdout.partition("benchmark 'strong'")[2].partition("short test")[0]
    )


def own_cases(folder, text):
    """Put a file of cases beside a copy of the suite, and return the start of a session of it."""
    copy_suite(folder)
    (folder / "bench" / "test_own.py").write_text(text)
    return ["-m", "pytest", "bench/test_own.py", "--size", "smoke", "--benchmark-json", "out.json"]


def test_a_case_that_would_choose_its_own_rounds_is_refused():
    def own(benchmark, lockstep):
        pass

    item = SimpleNamespace(nodeid="test_own", obj=own, get_closest_marker=lambda name: name)
    said = "test_own uses the fixture `benchmark`, which would let each rank choose its own"
    with pytest.raises(ValueError, match=said):
        launch_options.refuse_tests([item], [], 1)


def test_two_measured_tests_of_one_name_are_refused():
    def item(file, name="test_x"):
        return SimpleNamespace(name=name, nodeid=f"{file}.py::{name}", obj=None)

    one, other = item("a"), item("a", "test_x[1]")
    launch_options.refuse_tests([], [one, other, one], 1)
    with pytest.raises(ValueError, match=r"a.py::test_x and b.py::test_x have the same name"):
        launch_options.refuse_tests([], [one, other, item("b")], 1)


BROKEN_DEVICE = """
from lockstep.launch import session

def broken(device):
    raise RuntimeError("CUDA error: device-side assert triggered\\nno more")

@pytest.mark.cases("weak")
def test_fails(lockstep, workload, precision, local_batch):
    session.synchronise = broken  # stands for a GPU, which no test has
    raise AssertionError("wrong")

@pytest.mark.cases("weak")
def test_next(lockstep, workload, precision, local_batch):
    measure(lockstep)
"""


@pytest.mark.chaos
def test_one_rank_does_not_go_on_once_its_device_is_lost(run_ranks, tmp_path):
    arguments = own_cases(tmp_path, MEASURE + BROKEN_DEVICE)
    (ended,) = run_ranks([arguments], tmp_path, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1
    assert list(kept(tmp_path, "fail")) == ["test_fails"]
    assert list(kept(tmp_path, "case")) == []
    assert re.search(
        r"rank 0 on \S+ \(cpu.*\) lost its device in a failed case \(CUDA error: device-side "
        r"assert triggered\); run again with --resume",
        ended.stdout,
    )
