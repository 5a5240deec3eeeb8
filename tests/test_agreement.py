"""What ranks of own cases must agree on: real ranks of a copy of the suite, cases written here."""

import json
import re
import shutil

import pytest
from test_session import errors, own_cases

from lockstep.core import journal

pytestmark = pytest.mark.slow

CASES = """
import time
import pytest

def keep(lockstep, round_s):
    lockstep.record(
        round_s, workload="none", scaling=None, sample_unit="samples", samples_per_step=1
    )
"""


def case(name, body):
    head = f"def test_{name}(lockstep, workload, precision, global_batch):"
    lines = ['@pytest.mark.cases("strong")', head, *(f"    {one}" for one in body.splitlines())]
    return "\n".join(lines) + "\n"


def the_failure(run_ranks, folder, cases, *options, ranks=2, measured="test_good"):
    """Measure cases, of which one fails and the other does not; return the journal's line of it."""
    arguments = [*own_cases(folder, cases), *options]
    ended = run_ranks([arguments] * ranks, folder, PYTHONPATH=str(folder))
    assert [rank.returncode for rank in ended] == [1] * ranks, ended[0].stdout
    document = json.loads((folder / "out.json").read_text())
    assert [entry["name"].partition("[")[0] for entry in document["benchmarks"]] == [measured]
    (failed,) = (one for one in journal.read(folder / "out.journal.jsonl") if one["kind"] == "fail")
    return failed


@pytest.mark.chaos
def test_a_collective_too_many_that_nobody_waits_for_fails_its_own_case(run_ranks, tmp_path):
    surplus = case(
        "surplus",
        """\
keep(lockstep, lockstep.time(int))
if lockstep.world.rank == 1:
    PENDING.append(distributed.all_reduce(torch.full((4,), 1000.0), async_op=True))""",
    )
    # The sum would be that of rank 0's ones and rank 1's thousands of the case before.
    good = case(
        "good",
        """\
ones = torch.ones(4)
distributed.all_reduce(ones)
assert ones.tolist() == [2.0] * 4
keep(lockstep, lockstep.time(int))""",
    )
    head = "import torch\nfrom torch import distributed\nPENDING = []\n"
    limits = ["--comm-timeout=5", "--case-budget=60"]
    failed = the_failure(run_ranks, tmp_path, head + CASES + surplus + good, *limits)
    assert "::test_surplus[" in failed["case"]
    assert re.match(r"rank 1 on \S+ \(cpu\) called \d+ collectives since ", failed["reason"])


def test_what_one_rank_cannot_measure_all_refuse_and_say(run_ranks, tmp_path):
    arguments = own_cases(tmp_path, CASES + case("good", "keep(lockstep, lockstep.time(int))"))
    (tmp_path / "rank_0_alone").mkdir()
    (tmp_path / "rank_0_alone" / "mymodel.py").write_text(
        "from lockstep import workloads\n"
        "def model():\n    return workloads.make('mlp:width=64,depth=2')\n"
    )
    sees = "import sys; sys.path.insert(0, 'rank_0_alone'); import pytest; sys.exit(pytest.main())"
    own = [*arguments[2:], "--workload=mymodel:model", "--comm-timeout=60"]
    zero, one = run_ranks(
        [["-c", sees, *own], ["-m", "pytest", *own]], tmp_path, PYTHONPATH=str(tmp_path)
    )
    (error,) = errors(zero)
    assert error.startswith("ERROR: rank 1 on ")
    assert "mymodel" in error
    assert error.endswith("; give every rank the same files and options")
    assert (zero.returncode, one.returncode) == (4, 4)


@pytest.mark.chaos
def test_a_rank_that_refuses_alone_before_it_joins_says_so(run_ranks, tmp_path):
    arguments = own_cases(tmp_path, CASES + case("good", "keep(lockstep, lockstep.time(int))"))
    zero, one = run_ranks(
        [[*arguments, "--comm-timeout=5"], [*arguments, "--rounds=0"]],
        tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert one.returncode == 4
    assert one.stderr.startswith("lockstep: rank 1 on ")
    assert one.stderr.endswith(": rounds=0 must be 1 or more\n")
    assert zero.returncode == 78


def test_a_case_is_the_same_from_whichever_folder_an_installed_suite_is_started(
    run_ranks, tmp_path
):
    arguments = own_cases(tmp_path, CASES + case("good", "keep(lockstep, lockstep.time(int))"))
    installed = tmp_path / "site" / "packages"
    installed.mkdir(parents=True)
    shutil.move(tmp_path / "lockstep", installed)
    content = installed / "lockstep" / "content"
    content.mkdir()
    shutil.move(tmp_path / "bench", content)
    (tmp_path / "conftest.py").unlink()
    (tmp_path / "pyproject.toml").unlink()
    own = [
        *("-m", "pytest", "-p", "lockstep.launch.hooks", content / "bench" / "test_own.py"),
        *(*arguments[3:-2], "--resume"),
        *("--journal", tmp_path / "a.jsonl", "--benchmark-json", tmp_path / "out.json"),
    ]
    codes = []
    for folder in (tmp_path / "site", tmp_path / "elsewhere"):
        folder.mkdir(exist_ok=True)
        (ended,) = run_ranks([own], folder, PYTHONPATH=str(installed))
        codes.append(ended.returncode)
    assert codes == [0, 5], ended.stdout
    kept = [one["case"] for one in journal.read(tmp_path / "a.jsonl") if one["kind"] == "case"]
    assert [name.partition("[")[0] for name in kept] == ["bench/test_own.py::test_good"]
