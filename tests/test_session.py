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
from launched import copy_suite, store

from lockstep.core import journal
from lockstep.core.metrics import relative_margin
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


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory, clean_environ):
    """One launch of two ranks under torchrun: its folder, its output, its result."""
    folder = tmp_path_factory.mktemp("torchrun")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", *SMOKE),
            *("-m", "strong or weak or bucket or collective", "--benchmark-json", "out.json"),
        ],
        cwd=folder,
        env=clean_environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return folder, ended.stdout, json.loads((folder / "out.json").read_text())


def test_rank_0_alone_prints_and_writes(torchrun):
    folder, output, _ = torchrun
    assert output.count("test session starts") == 1
    assert output.count("lockstep: world size 2 on 1 node(s), gloo on ") == 1
    assert output.count("torch sees no GPU, so") == 1
    assert output.count(" 16 passed, ") == 1
    assert documents(folder) == ["out.journal.jsonl", "out.json"]


def test_every_ranks_rounds_are_kept_and_the_slowest_counts(torchrun):
    for entry in torchrun[2]["benchmarks"]:
        block = entry["extra_info"][KEY]
        zero, one = block["rank_round_s"]
        assert entry["stats"]["data"] == [max(pair) for pair in zip(zero, one, strict=True)]
        assert entry["options"]["timer"] == "slowest_rank"
        assert check_value(CaseRecord, block, "out.json").to_dict() == block
        assert all(block["peak_memory_bytes"])
        assert block["peak_reserved_bytes"] == [None, None]  # on CPUs


def test_pytest_benchmark_compares_our_files(torchrun):
    folder, _, document = torchrun
    ended = finish(
        [sys.executable, "-m", "pytest_benchmark", "compare", "out.json", "--columns", "median"],
        cwd=folder,
    )
    assert ended.returncode == 0, ended.stderr
    for entry in document["benchmarks"]:
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


def test_a_session_that_measures_nothing_needs_no_plugin_of_benchmarks(run_ranks, tmp_path):
    own_cases(tmp_path, "def test_of_the_users_own():\n    pass\n")
    arguments = ["-m", "pytest", "-p", "no:benchmark", "bench/test_own.py"]
    (ended,) = run_ranks([arguments], tmp_path, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 1 passed" in ended.stdout


def test_ranks_that_collected_other_cases_are_refused_before_the_first(run_ranks, tmp_path):
    common = [*SMOKE, "-m", "collective", "--journal", "journal.jsonl"]
    zero, one = run_ranks(
        [[*common, "-k", "broadcast"], [*common, "-k", "broadcast and 4096"]], tmp_path
    )
    (sentence,) = errors(zero)
    assert re.search(
        r"rank 1 collected other cases than rank 0 \(number of cases: 1 instead of 2\); the "
        r"first difference is "
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


def short(names):
    return [name.partition("::")[2] for name in names]


@pytest.fixture(scope="module")
def collectives(run_ranks, tmp_path_factory):
    arguments = [*SMOKE, "-m", "collective", "--collect-only", "-q"]
    (ended,) = run_ranks([arguments], tmp_path_factory.mktemp("collected"))
    return short(line for line in ended.stdout.splitlines() if "::" in line)


def stop_once_measured(folder, num_cases):
    """Make the stop file once so many cases stand in the journal, the launch's head beside."""
    path = folder / "out.journal.jsonl"
    while not (path.exists() and path.read_bytes().count(b'"kind": "case"') >= num_cases):
        time.sleep(0.02)
    (folder / "stop").touch()


def test_a_stop_file_ends_a_launch_in_order_and_resume_measures_the_rest(
    tmp_path, clean_environ, collectives
):
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
    done = kept(tmp_path, "case", full=True)
    assert 2 <= len(done) < len(collectives)
    assert (
        f"stop exists, so the launch ends with {len(done)} of 10 cases finished; remove the file "
        "and run again with --resume --journal=out.journal.jsonl"
    ) in stopped.stdout
    assert f" {len(done)} passed" in stopped.stdout
    assert "Traceback" not in stopped.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert [case_name(entry) for entry in document["benchmarks"]] == [
        case for case in collectives if case.removesuffix("]") in done
    ]
    assert len(document[KEY]["expected"]) == 10
    assert document[KEY]["complete"] is False

    (tmp_path / "stop").unlink()
    resumed = subprocess.run([*command, "--resume"], **options, check=False)
    assert resumed.returncode == 0, resumed.stdout
    assert f" {10 - len(done)} passed" in resumed.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert [case_name(entry) for entry in document["benchmarks"]] == collectives
    assert document[KEY]["complete"] is True
    entries = journal.read(tmp_path / "out.journal.jsonl")
    ran = short(e["case"] for e in entries if e["kind"] in journal.ENDS)
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
import time
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
        *("--case-budget", "15", "--resume", "--skip-failed"),
    ]
    sessions = [run_ranks([arguments] * 2, folder, PYTHONPATH=str(folder)) for _ in range(3)]
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
    _, (first, last, none_left) = faulty
    assert (first[0].returncode, first[1].returncode) == (70, 9)
    assert " 4 failed, 1 passed, 2 skipped" in first[0].stdout
    assert "the disk of rank 1 is full" in first[0].stdout
    assert "a wrong result on one rank" in first[0].stdout
    assert re.search(
        r"^lockstep: rank 1 on \S+ \(.*\) did not finish the case \S+::test_dies\S+ within "
        "15 s;",
        first[0].stderr,
        re.MULTILINE,
    )
    assert [rank.stdout for rank in (first[1], last[1])] == ["", ""]
    assert [rank.returncode for rank in last] == [0, 0], last[0].stdout
    assert [rank.returncode for rank in none_left] == [5, 5]


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


@pytest.mark.chaos
def test_a_link_stays_a_link_to_no_file_to_a_file_and_to_one_not_there_yet(run_ranks, tmp_path):
    (tmp_path / "real.json").write_text("older")
    (tmp_path / "kept").mkdir()
    targets = {"sink": "/dev/stdout", "link.json": "real.json", "new.json": "kept/here.json"}
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
        arguments = [*SMOKE, "-m", "collective", "-k", "4096 and broadcast", "-q"]
        (ended, _) = run_ranks([[*arguments, "--benchmark-json", name]] * 2, tmp_path)
        assert ended.returncode == 0, ended.stdout
        assert (tmp_path / name).is_symlink()
    for name in ("real.json", "kept/here.json"):
        assert len(json.loads((tmp_path / name).read_text())["benchmarks"]) == 1


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
    with pytest.raises(ValueError, match=r"^a.py::test_x and b.py::test_x have the same name"):
        launch_options.refuse_tests([], [one, other, item("b")], 1)


HUNDRED = """
import pytest
import torch
from torch import distributed

@pytest.mark.cases("weak")
@pytest.mark.parametrize("number", range(100))
def test_sum(lockstep, workload, precision, local_batch, number):
    rank, n = lockstep.world.rank, lockstep.world.world_size
    tensor = torch.zeros(64)
    rounds = lockstep.time(lambda: distributed.all_reduce(tensor.fill_(rank + number)))
    assert float(tensor[0]) == n * (n - 1) / 2 + n * number
    lockstep.record(
        rounds, workload="sum", scaling=None, sample_unit="numbers", samples_per_step=64,
        details={"sum": float(tensor[0])},
    )
"""


@pytest.mark.chaos
def test_a_hundred_collective_cases_agree_on_their_rounds_until_a_precision(run_ranks, tmp_path):
    arguments = [*own_cases(tmp_path, HUNDRED), "--precision", "30%"]
    ended = run_ranks([arguments] * 3, tmp_path, PYTHONPATH=str(tmp_path))
    assert [rank.returncode for rank in ended] == [0, 0, 0], ended[0].stdout
    entries = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert len(entries) == 100
    counts = set()
    for entry in entries:
        block = entry["extra_info"][KEY]
        number = entry["params"]["number"]
        assert block["details"]["sum"] == 3 + 3 * number
        lengths = {len(rounds) for rounds in block["rank_round_s"]}
        assert lengths == {entry["stats"]["rounds"]}
        counts |= lengths
        flagged = any(flag["kind"] == "wide-margin" for flag in block["flags"])
        margin = relative_margin(entry["stats"]["data"], 0.99)
        assert flagged == (margin > 0.3)
    assert min(counts) >= 3
    assert all(count % 3 == 0 for count in counts)  # size smoke: batches of 3 rounds
    assert len(counts) > 1


PARTING = """
DOES = os.environ["DOES"].split()[int(os.environ["RANK"])]

@pytest.mark.cases("weak")
def test_first(lockstep, request, workload, precision, local_batch):
    measure(lockstep)
    if DOES == "other":
        items = request.session.items
        items[1:] = reversed(items[1:])

@pytest.mark.cases("weak")
def test_second(lockstep, workload, precision, local_batch):
    measure(lockstep)

@pytest.mark.cases("weak")
def test_third(lockstep, workload, precision, local_batch):
    measure(lockstep)
"""


@pytest.mark.chaos
def test_ranks_that_run_other_cases_end_alike_before_one_is_measured(run_ranks, tmp_path):
    arguments = [*own_cases(tmp_path, MEASURE + PARTING), "--comm-timeout=3", "--case-budget=20"]
    with store(tmp_path) as (address, _):
        variables = {"LOCKSTEP_STORE": address, "LOCKSTEP_STORE_PREFIX": "launch"}
        ended = run_ranks(
            [arguments] * 3,
            tmp_path,
            PYTHONPATH=str(tmp_path),
            DOES="waits waits other",
            **variables,
        )
    assert [rank.returncode for rank in ended] == [76] * 3, ended[0].stdout
    assert re.search(
        r"rank 2 on \S+ \(cpu.*\) is at \S+::test_third\[\S+, but rank 0 is at "
        r"\S+::test_second\[",
        ended[0].stdout,
    )
    assert list(kept(tmp_path, "case")) == ["test_first"]


SLOW_DISK = """
def slow(descriptor):
    os.fsync = fsync
    time.sleep(6)

fsync = os.fsync

@pytest.mark.cases("weak")
def test_slow_disk(lockstep, workload, precision, local_batch):
    measure(lockstep)
    os.fsync = slow  # of what is kept of this case, once all phases are over
"""


@pytest.mark.chaos
def test_a_disk_that_is_slow_after_a_case_costs_the_case_nothing(run_ranks, tmp_path):
    arguments = [*own_cases(tmp_path, MEASURE + SLOW_DISK), "--comm-timeout=2", "--case-budget=4"]
    (ended,) = run_ranks([arguments], tmp_path, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 1 passed" in ended.stdout
    assert list(kept(tmp_path, "case")) == ["test_slow_disk"]


BROKEN_DEVICE = """
from lockstep.launch import session

def broken(device):
    raise RuntimeError("CUDA error: device-side assert triggered\\nno more")

@pytest.mark.cases("weak")
def test_fails(lockstep, workload, precision, local_batch):
    if os.environ["BREAKS"] == "yes":  # stands for a GPU, which no test has
        session.synchronise = broken
    raise AssertionError("wrong")

@pytest.mark.cases("weak")
def test_next(lockstep, workload, precision, local_batch):
    measure(lockstep)
"""


@pytest.mark.chaos
@pytest.mark.parametrize(("breaks", "measured"), [("no", ["test_next"]), ("yes", [])])
def test_one_rank_goes_on_after_a_failure_unless_its_device_is_lost(
    run_ranks, tmp_path, breaks, measured
):
    arguments = own_cases(tmp_path, MEASURE + BROKEN_DEVICE)
    (ended,) = run_ranks([arguments], tmp_path, PYTHONPATH=str(tmp_path), BREAKS=breaks)
    assert ended.returncode == 1
    assert list(kept(tmp_path, "fail")) == ["test_fails"]
    assert list(kept(tmp_path, "case")) == measured
    said = re.search(
        r"rank 0 on \S+ \(cpu.*\) lost its device in a failed case \(CUDA error: device-side "
        r"assert triggered\); run again with --resume",
        ended.stdout,
    )
    assert bool(said) == (breaks == "yes")
