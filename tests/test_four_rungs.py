"""docs/how-to/four-rungs.md: its diffs lead from the scripts that ship to several nodes."""

import re
import shutil
import sys

import pytest
from commands import finish, run
from launched import ROOT, environ

from lockstep.before.lint.lint_cli import lint

PAGE = ROOT / "docs" / "how-to" / "four-rungs.md"
RUNGS = re.split(r"^## \d\. .*$", PAGE.read_text(), flags=re.MULTILINE)[1:]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def climbed(folder, rung):
    for name in ("train.py", "train.sbatch"):
        shutil.copy(ROOT / "examples" / "rungs" / name, folder)
    for text in RUNGS[:rung]:
        for diff in re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            ended = finish(["git", "apply", "-p0", "-"], cwd=folder, input=diff)
            assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("rung", "start"), [(1, ()), (4, TORCHRUN)])
def test_each_rung_learns_and_one_rank_says_so(tmp_path, rung, start):
    climbed(tmp_path, rung)
    ended = finish([sys.executable, *start, "train.py"], cwd=tmp_path, env=environ(ROOT))
    assert ended.returncode == 0, ended.stderr
    losses = re.findall(r"^epoch \d: loss (\S+),", ended.stdout, re.M)
    first, _, last = map(float, losses)
    assert last < first / 2


@pytest.mark.parametrize("rung", [1, 2, 3, 4])
def test_the_linter_finds_nothing_in_a_rung(tmp_path, rung):
    climbed(tmp_path, rung)
    assert run(lint, tmp_path / "train.sbatch", tmp_path / "train.py").stdout == ""
