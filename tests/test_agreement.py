"""What ranks of own cases must agree on: real ranks of a copy of the suite, cases written here."""

import shutil

import pytest
from test_session import errors, own_cases

from lockstep.core import journal

pytestmark = pytest.mark.slow

CASE = """
import pytest

@pytest.mark.cases("strong")
def test_good(lockstep, workload, precision, global_batch):
    lockstep.record(
        lockstep.time(int), workload="none", scaling=None, sample_unit="samples", samples_per_step=1
    )
"""


def test_what_one_rank_cannot_measure_all_refuse_and_say(run_ranks, tmp_path):
    arguments = own_cases(tmp_path, CASE)
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
    arguments = own_cases(tmp_path, CASE)
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
    arguments = own_cases(tmp_path, CASE)
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
