"""What is added to a copy of the house in as few files as the documents say works there."""

import json
import shutil
from pathlib import Path

import commands
import pytest
from launched import environ

ROOT = Path(__file__).resolve().parents[1]
RECORD = """
    "stride": Study(
        "Stride of the input", lambda size: [_model(size) | {"local_batch": size.local_batch}],
        is_step=True, trains=True,
        compared_with=("precision", "fp32"),
    ),
}  # fmt: skip
NAMES = """
MEASURED = '''
import pytest

from lockstep.measure.step.step_cases import measure_step


@pytest.mark.cases("stride")
def test_stride(lockstep, workload, precision, local_batch):
    """What does a stride cost?"""
    measure_step(lockstep, workload, local_batch, precision=precision)
'''


# file -> what is replaced in it, and by what; "" is the end of the file.
ADDED = {
    "study": {
        "lockstep/core/studies.py": ("\n}  # fmt: skip\nNAMES = ", RECORD),
        "bench/test_stride.py": ("", MEASURED),
    },
    "rule of the check": {
        "lockstep/report/check/launches.py": (
            "",
            """

@rule("few-rounds", "warning", "a median of so few may be far off",
      "measure again with --rounds 10", "points")
def few_rounds(_series: Series, point: Point) -> Iterator[Finding]:
    \"\"\"A point rests on few rounds.\"\"\"
    rounds = sum(row.rounds or 0 for row in point.rows)
    if rounds < 50:
        yield fact("few-rounds", f"{rounds} rounds were timed", rounds=rounds)
""",
        )
    },
    "command": {
        "lockstep/hello.py": (
            "",
            """
import click


@click.command()
def hello():
    click.echo("hello from a command")
""",
        ),
        "lockstep/cli.py": (
            '        "bundle": (',
            '        "hello": ("hello", "Say hello."),\n        "bundle": (',
        ),
    },
    "workload": {
        "lockstep/workloads/__init__.py": (
            '    "gpt": "lockstep',
            '    "dense": "lockstep.workloads.dense:dense",\n    "gpt": "lockstep',
        ),
        "lockstep/workloads/dense.py": (
            "",
            """
from torch import nn

from lockstep.workloads.images import image_workload


def dense():
    return image_workload("dense", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 1, 8, 10)
""",
        ),
    },
}


@pytest.fixture
def copy(tmp_path):
    """A copy of all that is measured and reported with."""
    for name in ("lockstep", "bench", "reports", "slurm_templates"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_each_further_addition_changes_two_files_at_most_and_works(copy):
    for files in ADDED.values():
        assert len(files) <= 2
        for name, (old, new) in files.items():
            path = copy / name
            text = path.read_text() if path.exists() else ""
            assert old in text, name
            path.write_text(text.replace(old, new, 1) if old else text + new)
    measured = ("run", "smoke", "--studies", "weak,stride", "--world-sizes", "1", "--repeats", "1")
    assert "2 cases measured" in lockstep(copy, *measured, "--device", "cpu", "--workload", "dense")
    folder = "results/smoke"
    points = json.loads(lockstep(copy, "report", folder, "--json"))["points"]
    assert {point["workload"] for point in points} == {"dense"}
    assert {point["study"] for point in points} == {"weak", "stride"}
    lockstep(copy, "report", folder)
    assert "Stride of the input" in (copy / folder / "report.html").read_text()
    found = json.loads(lockstep(copy, "check", folder, "--json"))["findings"]
    assert "3 rounds were timed" in {one["message"].partition(":")[0] for one in found}
    assert lockstep(copy, "hello") == "hello from a command\n"


def lockstep(folder, *arguments):
    ended = commands.lockstep(*arguments, cwd=folder, env=environ(folder))
    assert ended.returncode in (0, 1), ended.stderr
    return ended.stdout + ended.stderr if arguments[0] == "run" else ended.stdout
