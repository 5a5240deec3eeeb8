"""What is added to a copy of the house in as few files as the documents say works there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launched import environ

ROOT = Path(__file__).resolve().parents[1]
RECORD = """
    "stride": Study(
        "Stride of the input", _weak_cases, is_step=True, trains=True,
        compared_with=("precision", "fp32"),
    ),
}  # fmt: skip
NAMES = """
MEASURED = '''
import pytest

from lockstep.measure.step.step_cases import measure_training


@pytest.mark.cases("stride")
def test_stride(lockstep, workload, precision, local_batch):
    """What does a stride cost?"""
    measure_training(lockstep, workload=workload, precision=precision, local_batch=local_batch)
'''


@pytest.fixture
def copy(tmp_path):
    """A copy of all that is measured and reported with."""
    for name in ("lockstep", "bench", "reports", "slurm_templates"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_a_study_is_one_record_and_one_measured_file(copy):
    table = copy / "lockstep" / "core" / "studies.py"
    table.write_text(table.read_text().replace("\n}  # fmt: skip\nNAMES = ", RECORD, 1))
    (copy / "bench" / "test_stride.py").write_text(MEASURED)
    measured = ("run", "smoke", "--studies", "stride", "--world-sizes", "1", "--repeats", "1")
    said = lockstep(copy, *measured, "--device", "cpu")
    assert "1 case measured" in said
    (point,) = json.loads(lockstep(copy, "report", "results/smoke", "--json"))["points"]
    assert (point["study"], point["world_size"]) == ("stride", 1)
    lockstep(copy, "report", "results/smoke")
    assert "Stride of the input" in (copy / "results" / "smoke" / "report.html").read_text()


def lockstep(folder, *arguments):
    ended = subprocess.run(
        [sys.executable, "-m", "lockstep", *arguments], cwd=folder, env=environ(folder),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode in (0, 1), ended.stderr
    return ended.stdout + ended.stderr if arguments[0] == "run" else ended.stdout
