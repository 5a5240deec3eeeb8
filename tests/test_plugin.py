"""Lockstep in a repository of one's own: a wheel, a test with the fixture, a ladder, a page."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from commands import finish
from launched import environ, git, suite

from lockstep.report.load.reading import load

ROOT = Path(__file__).parents[1]
OWN_TEST = """
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel


@pytest.mark.parametrize("layer", [torch.nn.Linear])
@pytest.mark.parametrize("dtype", [torch.float32])
def test_my_step(lockstep, layer, dtype):
    torch.manual_seed(0)
    model = DistributedDataParallel(layer(64, 64, dtype=dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    lockstep.measure(step, samples=len(batch), ddp=model, unit="images")


def test_of_the_repository_itself():
    assert True
"""
TAKEN = 'raise ImportError("a folder of the repository was taken for one of Lockstep")\n'


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The Python of an environment that holds the wheel, beside what the tests' own holds."""
    made = tmp_path_factory.mktemp("installed")
    uv = [sys.executable, "-m", "uv", "--quiet"]
    for command in (
        [*uv, "build", "--wheel", "--out-dir", made, ROOT],
        [sys.executable, "-m", "venv", "--without-pip", made / "venv"],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    python = made / "venv" / "bin" / "python"
    (wheel,) = made.glob("*.whl")
    install = [*uv, "pip", "install", "--no-deps", "--python", python, wheel]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    (packages,) = (made / "venv").glob("lib/python*/site-packages")
    assert {path.name for path in packages.iterdir() if "-info" not in path.name} == {"lockstep"}
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository that has folders of Lockstep's names, and a test with the fixture."""
    made = tmp_path_factory.mktemp("repository")
    for name in ("bench", "reports", "containers", "slurm_templates"):
        (made / name).mkdir()
        (made / name / "__init__.py").write_text(TAKEN)
    (made / "benchmarks").mkdir()
    (made / "benchmarks" / "test_mine.py").write_text(OWN_TEST)
    git(made, "init", "--quiet")
    git(made, "add", "benchmarks")
    git(made, "commit", "--quiet", "-m", "Start")
    return made


def run(python, folder, *arguments, **variables):
    variables = environ(folder, **variables)
    del variables["PYTHONPATH"]
    return finish([python, "-m", *arguments], cwd=folder, env=variables)


@pytest.mark.slow
def test_a_repository_s_own_test_is_measured_as_a_launch_and_becomes_a_page(installed, repository):
    ladder = "--tests benchmarks --size smoke --world-sizes 2 --repeats 1 --device cpu"
    ended = run(installed, repository, "lockstep", "run", *ladder.split())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    written = run(installed, repository, "lockstep", "report", "results/benchmarks")
    assert written.returncode == 0, written.stderr
    assert "test_my_step" in (repository / "results" / "benchmarks" / "report.html").read_text()
    (row,) = load([repository / "results" / "benchmarks"]).rows
    assert (row.case, row.study, row.world_size) == ("test_my_step[dtype0-Linear]", "weak", 2)
    assert (row.samples_per_step, row.sample_unit) == (64, "images")


@pytest.mark.slow
def test_plain_pytest_measures_it_at_one_rank_beside_the_other_tests(installed, repository):
    ended = run(installed, repository, "pytest", "-q", "benchmarks", "--benchmark-json=mine.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout
    document = json.loads((repository / "mine.json").read_text())
    (entry,) = document["benchmarks"]
    assert entry["name"] == "test_my_step[dtype0-Linear-world_size=1]"
    assert entry["params"] == {"layer": "Linear", "dtype": "torch.float32"}
    measured = entry["extra_info"]["lockstep"]
    assert measured["details"]["gradient_bytes"] == 4 * (64 * 64 + 64)
    launch = document["lockstep"]["provenance"]
    assert launch["project_commit"] == git(repository, "rev-parse", "HEAD")
    assert launch["project_dirty"] is False


@pytest.mark.slow
def test_plain_pytest_ends_with_a_card(repository):
    ended = run(sys.executable, repository, "pytest", "benchmarks", "-s", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *_, before, last = ended.stdout[: ended.stdout.rindex("2 passed")].rstrip("= \n").splitlines()
    assert last.startswith("lockstep: to see the page, run lockstep report results/pytest/")
    assert before == ""
    card = ended.stdout[
        ended.stdout.index("test_my_step, dtype=torch.float32, layer=Linear on 1 rank:") :
    ]
    assert "a step takes" in card
    assert "trust" in card


@pytest.mark.slow
def test_a_checkout_measures_with_its_own_code(tmp_path):
    own, other = tmp_path / "checkout", tmp_path / "checkout" / ".venv"
    other.mkdir(parents=True)
    case = tmp_path / "cases.py"
    case.write_text(
        "def test_it():\n    from lockstep import content\n"
        f"    assert str(content.PACKAGE) == {str(own / 'lockstep')!r}\n"
    )
    suite(own, case)
    shutil.copytree(own / "lockstep", other / "lockstep")  # as an installation that is older
    command = [sys.executable, "-m", "pytest", "-q", own / "bench", "-p", "lockstep.plugin"]
    variables = environ(tmp_path, PYTHONPATH=str(other))
    ended = finish(command, cwd=tmp_path, env=variables)
    assert ended.returncode == 0, ended.stdout


def test_a_session_that_does_not_use_it_loads_the_plugin_alone(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_other(pytestconfig):\n"
        "    loaded = sorted(name for name in sys.modules if name.startswith('lockstep'))\n"
        "    assert loaded == ['lockstep', 'lockstep.launch', 'lockstep.plugin'], loaded\n"
        "    assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "    assert not hasattr(pytestconfig.option, 'journal')\n"
    )
    ended = with_the_plugin_alone(tmp_path)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize(
    ("place", "is_written"),
    [
        ({"TORCHELASTIC_RUN_ID": "any", "RANK": "1"}, False),
        ({"LOCKSTEP_LAUNCHER": "pmi", "PMI_RANK": "1"}, False),
        ({"RANK": "1"}, True),  # of a program around the session
    ],
)
def test_rank_0_alone_writes_the_files_of_a_session_of_many(tmp_path, place, is_written):
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    ended = with_the_plugin_alone(tmp_path, f"--junitxml={tmp_path}/out.xml", **place)
    assert ended.returncode == 0, ended.stdout
    assert (tmp_path / "out.xml").exists() == is_written


def with_the_plugin_alone(folder, *options, **variables):
    variables |= environ(folder) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ("-p", "lockstep.plugin", "-p", "pytest_benchmark.plugin")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *options, folder]
    return finish(command, cwd=folder, env=variables | {"PYTHONPATH": f"{folder}:{ROOT}"})


def test_a_measured_test_without_torch_says_what_to_install(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')\n")
    (tmp_path / "test_mine.py").write_text("def test_mine(lockstep):\n    pass\n")
    ended = with_the_plugin_alone(tmp_path)
    assert ended.returncode == 78
    assert "checkout[bench]" in ended.stdout
